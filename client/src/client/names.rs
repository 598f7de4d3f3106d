//! Which inode a name had when it was last seen: a hint, so that unlink need not ask.
//!
//! Invariant: only sent as `unheld`, which the metadata server compares with the truth.

use pando_types::{Attr, FileKind, FileName, InodeId};

use crate::cache::recent::Recent;

/// Names remembered: a directory tree that is listed and then removed, at about 100 bytes each.
const NAMES_MAX: usize = 32 << 10;

/// Recently seen names of files.
pub(crate) struct Names(Recent<(InodeId, FileName), InodeId>);

impl Names {
    pub(crate) fn new() -> Names {
        Names(Recent::new(NAMES_MAX))
    }

    /// A name was seen to lead to this inode.
    pub(crate) fn saw(&self, parent: InodeId, name: &FileName, attr: &Attr) {
        if attr.kind != FileKind::Directory {
            self.0.insert((parent, name.clone()), attr.inode);
        }
    }

    /// The inode that a name had.
    pub(crate) fn hint(&self, parent: InodeId, name: &FileName) -> Option<InodeId> {
        self.0.find(&(parent, name.clone()))
    }

    /// A name is about to change.
    pub(crate) fn forget(&self, parent: InodeId, name: &FileName) {
        self.0.remove(&(parent, name.clone()));
    }
}
