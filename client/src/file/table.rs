//! Which inodes are open, and which are being given up.
//!
//! Invariant: an inode is never open and given up at once: an open waits for the unlink, an unlink of an open inode keeps it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_types::InodeId;
use tokio::sync::watch;

use crate::file::open_file::OpenFile;

/// See the module.
#[derive(Default)]
pub(crate) struct Table {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    open: HashMap<InodeId, Entry>,
    /// Dropping the sender wakes those who wait.
    given_up: HashMap<InodeId, watch::Sender<()>>,
}

#[derive(Default)]
struct Entry {
    /// Handles, and opens in progress.
    opens: usize,
    file: Option<Arc<OpenFile>>,
    /// The last name is gone; the metadata server keeps the inode for this client.
    orphan: bool,
}

/// What was left when a handle was closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Other handles.
    Open,
    /// Nothing.
    Closed,
    /// Nothing, and the inode has no name: it can be released.
    Orphan,
}

impl Table {
    /// Counts an open, after the end of an unlink that gives the inode up.
    pub(crate) async fn enter(&self, inode: InodeId) {
        loop {
            let mut end = {
                let mut entries = self.lock();
                match entries.given_up.get(&inode) {
                    None => {
                        entries.open.entry(inode).or_default().opens += 1;
                        return;
                    }
                    Some(sender) => sender.subscribe(),
                }
            };
            // Ends with an error when the unlink, which has a deadline, is over.
            while end.changed().await.is_ok() {}
        }
    }

    /// The open file of a counted open; made by `make` if there is none yet. Tells whether it was made.
    pub(crate) fn file(&self, inode: InodeId, make: impl FnOnce() -> OpenFile) -> (Arc<OpenFile>, bool) {
        let mut entries = self.lock();
        let entry = entries.open.entry(inode).or_default();
        match &entry.file {
            Some(file) => (file.clone(), false),
            None => (entry.file.insert(Arc::new(make())).clone(), true),
        }
    }

    /// Takes an open back.
    pub(crate) fn leave(&self, inode: InodeId) -> Left {
        let mut entries = self.lock();
        let Some(entry) = entries.open.get_mut(&inode) else { return Left::Closed };
        entry.opens -= 1;
        if entry.opens > 0 {
            return Left::Open;
        }
        let gone = entries.open.remove(&inode);
        match gone.is_some_and(|e| e.orphan) {
            true => Left::Orphan,
            false => Left::Closed,
        }
    }

    /// The open file of an inode.
    pub(crate) fn find(&self, inode: InodeId) -> Option<Arc<OpenFile>> {
        self.lock().open.get(&inode).and_then(|e| e.file.clone())
    }

    /// Whether the inode has no name any more.
    pub(crate) fn is_orphan(&self, inode: InodeId) -> bool {
        self.lock().open.get(&inode).is_some_and(|e| e.orphan)
    }

    /// All open files.
    pub(crate) fn all(&self) -> Vec<Arc<OpenFile>> {
        self.lock().open.values().filter_map(|e| e.file.clone()).collect()
    }

    /// Inodes that are open.
    pub(crate) fn len(&self) -> usize {
        self.lock().open.len()
    }

    /// The inode has lost its last name and is kept; false if it is not open here, so nobody needs it.
    pub(crate) fn orphan(&self, inode: InodeId) -> bool {
        match self.lock().open.get_mut(&inode) {
            Some(entry) => {
                entry.orphan = true;
                true
            }
            None => false,
        }
    }

    /// Promises that an inode will not be opened until the promise is dropped; none if it is open or not known.
    pub(crate) fn give_up(self: &Arc<Self>, inode: Option<InodeId>) -> GivingUp {
        let inode = inode.filter(|inode| {
            let mut entries = self.lock();
            let free = !entries.open.contains_key(inode) && !entries.given_up.contains_key(inode);
            if free {
                entries.given_up.insert(*inode, watch::Sender::new(()));
            }
            free
        });
        GivingUp { table: self.clone(), inode }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Table::give_up`].
pub(crate) struct GivingUp {
    table: Arc<Table>,
    inode: Option<InodeId>,
}

impl GivingUp {
    /// The inode, if it is promised.
    pub(crate) fn inode(&self) -> Option<InodeId> {
        self.inode
    }
}

impl Drop for GivingUp {
    fn drop(&mut self) {
        if let Some(inode) = self.inode {
            self.table.lock().given_up.remove(&inode);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn an_open_waits_for_an_unlink_and_an_unlink_keeps_what_is_open() {
        let table = Arc::new(Table::default());
        let inode = InodeId(5);
        let promise = table.give_up(Some(inode));
        assert_eq!(promise.inode(), Some(inode));
        let opening = tokio::spawn({
            let table = table.clone();
            async move { table.enter(inode).await }
        });
        tokio::task::yield_now().await;
        assert!(!opening.is_finished());
        drop(promise);
        tokio::time::timeout(Duration::from_secs(20), opening).await.unwrap().unwrap();
        assert_eq!(table.give_up(Some(inode)).inode(), None, "it is open");
        assert!(table.orphan(inode));
        assert_eq!(table.leave(inode), Left::Orphan);
        assert!(!table.orphan(inode));
        assert_eq!(table.len(), 0);
    }
}
