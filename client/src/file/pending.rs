//! What changes with the next commit of a file, beside its bytes: cut, punched ranges, size, attributes.
//!
//! Pure. Invariant: two of them in a row do the same as their merger.

use pando_types::attr::{MODE_SETGID, MODE_SETUID};
use pando_types::command::{AttrChange, SetTime};
use pando_types::{Attr, Timestamp};

use crate::file::ranges::RangeSet;

/// Group execution: sgid without it is a lock mode, not a privilege.
const MODE_GROUP_EXECUTE: u32 = 0o010;

/// See the module. Carried out in the order of the fields, the new bytes between `punched` and `grown`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Everything from this byte on is dropped.
    pub(crate) cut: Option<u64>,
    /// These ranges read as zeros.
    pub(crate) punched: RangeSet,
    /// The size is at least this.
    pub(crate) grown: u64,
    /// New attributes.
    pub(crate) change: AttrChange,
    /// The content changes (also if only the size does).
    pub(crate) content: bool,
}

impl Pending {
    pub(crate) fn is_empty(&self) -> bool {
        !self.content && self.change == AttrChange::default()
    }

    /// The size of a file that had `size` bytes.
    pub(crate) fn size_after(&self, size: u64) -> u64 {
        size.min(self.cut.unwrap_or(u64::MAX)).max(self.grown)
    }

    /// Bytes were written up to `end`.
    pub(crate) fn write(&mut self, end: u64, now: Timestamp, kill_privileges: bool) {
        self.content = true;
        self.grown = self.grown.max(end);
        self.change.mtime = Some(SetTime::At(now));
        self.kill_privileges(kill_privileges);
    }

    /// The size became `size`; it was `old`.
    pub(crate) fn truncate(&mut self, size: u64, old: u64, now: Timestamp, kill_privileges: bool) {
        if size < old {
            self.cut = Some(self.cut.map_or(size, |cut| cut.min(size)));
            self.punched.remove(size, u64::MAX);
            self.grown = size;
        }
        self.write(size, now, kill_privileges);
    }

    /// `[from, to)` became zeros.
    pub(crate) fn punch(&mut self, from: u64, to: u64, now: Timestamp, kill_privileges: bool) {
        self.punched.insert(from, to);
        self.write(0, now, kill_privileges);
    }

    /// Attributes were set after what is pending.
    pub(crate) fn set(&mut self, later: &AttrChange, now: Timestamp) {
        let own = &mut self.change;
        let owner_changes = later.uid.is_some() || later.gid.is_some();
        if let (Some(mode), true) = (&mut own.mode, owner_changes) {
            *mode = without_privileges(*mode);
        }
        own.uid = later.uid.or(own.uid);
        own.gid = later.gid.or(own.gid);
        own.atime = later.atime.map(|t| fixed(t, now)).or(own.atime);
        own.mtime = later.mtime.map(|t| fixed(t, now)).or(own.mtime);
        if later.mode.is_some() {
            own.mode = later.mode;
            own.kill_privileges = false;
        }
        self.kill_privileges(later.kill_privileges);
    }

    fn kill_privileges(&mut self, kill: bool) {
        match &mut self.change.mode {
            Some(mode) if kill => *mode = without_privileges(*mode),
            _ => self.change.kill_privileges |= kill,
        }
    }

    /// Adds what came afterwards.
    pub(crate) fn merge(&mut self, later: Pending) {
        if let Some(cut) = later.cut {
            self.cut = Some(self.cut.map_or(cut, |own| own.min(cut)));
            self.punched.remove(cut, u64::MAX);
            self.grown = self.grown.min(cut);
        }
        for (from, to) in later.punched.iter() {
            self.punched.insert(from, to);
        }
        self.grown = self.grown.max(later.grown);
        self.content |= later.content;
        self.set(&later.change, Timestamp::default());
    }

    /// Attributes as they will be; their size is that of the content before.
    pub(crate) fn show(&self, attr: &mut Attr, now: Timestamp) {
        if self.is_empty() {
            return;
        }
        attr.size = self.size_after(attr.size);
        let change = &self.change;
        if change.uid.is_some() || change.gid.is_some() {
            attr.mode = without_privileges(attr.mode);
        }
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.mode = change.mode.unwrap_or(attr.mode);
        if change.kill_privileges {
            attr.mode = without_privileges(attr.mode);
        }
        attr.atime = change.atime.map_or(attr.atime, |t| time(t, now));
        attr.mtime = change.mtime.map_or(attr.mtime, |t| time(t, now));
        attr.ctime = attr.ctime.max(now);
    }
}

/// The mode of a file after a write by another than root.
fn without_privileges(mode: u32) -> u32 {
    let sgid = if mode & MODE_GROUP_EXECUTE != 0 { MODE_SETGID } else { 0 };
    mode & !(MODE_SETUID | sgid)
}

fn fixed(set: SetTime, now: Timestamp) -> SetTime {
    SetTime::At(time(set, now))
}

fn time(set: SetTime, now: Timestamp) -> Timestamp {
    match set {
        SetTime::Now => now,
        SetTime::At(at) => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::testing::attr;
    use pando_types::InodeId;

    const NOW: Timestamp = Timestamp(1000);

    #[test]
    fn a_time_set_after_the_last_write_wins_and_a_later_write_wins_again() {
        let mut pending = Pending::default();
        pending.write(10, NOW, false);
        pending.set(&AttrChange { mtime: Some(SetTime::At(Timestamp(5))), ..AttrChange::default() }, NOW);
        assert_eq!(pending.change.mtime, Some(SetTime::At(Timestamp(5))));
        pending.write(20, NOW, false);
        assert_eq!(pending.change.mtime, Some(SetTime::At(NOW)));
    }

    #[test]
    fn a_write_kills_privileges_that_were_set_before_it_only() {
        let mut pending = Pending::default();
        pending.set(&AttrChange { mode: Some(0o6755), ..AttrChange::default() }, NOW);
        pending.write(1, NOW, true);
        let mut shown = attr(InodeId(1));
        pending.show(&mut shown, NOW);
        assert_eq!(shown.mode, 0o755);
        pending.set(&AttrChange { mode: Some(0o4755), ..AttrChange::default() }, NOW);
        assert_eq!((pending.change.mode, pending.change.kill_privileges), (Some(0o4755), false));
    }

    #[test]
    fn shrinking_and_growing_again_leaves_the_smallest_cut() {
        let mut pending = Pending::default();
        let mut size = 100;
        for new in [50, 80, 60, 90] {
            pending.truncate(new, size, NOW, false);
            size = pending.size_after(100);
            assert_eq!(size, new);
        }
        assert_eq!(pending.cut, Some(50));
        let mut earlier = Pending::default();
        earlier.write(500, NOW, false);
        earlier.merge(pending);
        assert_eq!((earlier.cut, earlier.size_after(10)), (Some(50), 90));
    }
}
