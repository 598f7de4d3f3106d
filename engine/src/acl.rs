//! POSIX ACLs by Linux's rules: its xattr form (version 2), validity, inheritance, and how they follow the mode.
//!
//! Pure. Invariant: an [`Acl`] that exists is valid as `posix_acl_valid` has it: one entry each for owner, group and others, entries in
//! order, a mask when any user or group is named.

use pando_types::Errno;

/// Where the access ACL is stored.
pub const ACCESS_XATTR: &[u8] = b"system.posix_acl_access";
/// Where a directory's default ACL is stored.
pub const DEFAULT_XATTR: &[u8] = b"system.posix_acl_default";
/// Read, write and execute of owner, group and others.
pub const PERMISSION_BITS: u32 = 0o777;

const XATTR_VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const NO_ID: u32 = u32::MAX;

/// Whom an entry is about. The order is the order in an ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tag {
    Owner,
    User,
    OwningGroup,
    Group,
    Mask,
    Other,
}

use Tag::{Group, Mask, Other, Owner, OwningGroup, User};

impl Tag {
    const ALL: [(u16, Tag); 6] = [(1, Owner), (2, User), (4, OwningGroup), (8, Group), (16, Mask), (32, Other)];

    fn from_wire(wire: u16) -> Option<Tag> {
        Tag::ALL.into_iter().find(|(number, _)| *number == wire).map(|(_, tag)| tag)
    }

    fn wire(self) -> u16 {
        Tag::ALL.into_iter().find(|(_, tag)| *tag == self).map_or(0, |(number, _)| number)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: Tag,
    permissions: u16,
    id: u32,
}

/// A valid ACL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// Reads Linux's xattr form; `None` for an ACL without entries. EINVAL, EOPNOTSUPP (another version).
    pub fn decode(bytes: &[u8]) -> Result<Option<Acl>, Errno> {
        let (version, entries) = bytes.split_first_chunk().ok_or(Errno::EINVAL)?;
        if u32::from_le_bytes(*version) != XATTR_VERSION {
            return Err(Errno::EOPNOTSUPP);
        }
        if !entries.len().is_multiple_of(ENTRY_BYTES) {
            return Err(Errno::EINVAL);
        }
        let entries =
            entries.chunks_exact(ENTRY_BYTES).map(decode_entry).collect::<Option<Vec<_>>>().ok_or(Errno::EINVAL)?;
        match entries.as_slice() {
            [] => Ok(None),
            valid if is_valid(valid) => Ok(Some(Acl { entries })),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Linux's xattr form.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(4 + self.entries.len() * ENTRY_BYTES);
        bytes.extend_from_slice(&XATTR_VERSION.to_le_bytes());
        for entry in &self.entries {
            bytes.extend_from_slice(&entry.tag.wire().to_le_bytes());
            bytes.extend_from_slice(&entry.permissions.to_le_bytes());
            bytes.extend_from_slice(&entry.id.to_le_bytes());
        }
        bytes
    }

    /// The permission bits that `stat` shows for it: the mask stands for the group.
    pub fn mode(&self) -> u32 {
        let group = if self.find(Mask).is_some() { Mask } else { OwningGroup };
        [(Owner, 6), (group, 3), (Other, 0)].into_iter().map(|(tag, shift)| self.permissions(tag) << shift).sum()
    }

    /// The mode that says the same, if one can: there are no named entries and no mask.
    pub fn equivalent_mode(&self) -> Option<u32> {
        let plain = self.entries.iter().all(|entry| matches!(entry.tag, Owner | OwningGroup | Other));
        plain.then(|| self.mode())
    }

    /// The access ACL and permission bits of what is made with `mode` under this default ACL (`posix_acl_create`).
    pub fn inherit(&self, mode: u32) -> (Acl, u32) {
        let mut access = self.clone();
        let group = if self.find(Mask).is_some() { Mask } else { OwningGroup };
        for entry in &mut access.entries {
            let asked = match entry.tag {
                Owner => mode >> 6,
                Other => mode,
                tag if tag == group => mode >> 3,
                _ => continue,
            };
            entry.permissions &= (asked & 7) as u16;
        }
        let permissions = access.mode();
        (access, permissions)
    }

    /// The mode was set (`posix_acl_chmod`): owner, others, and the mask or the group follow.
    pub fn chmod(&mut self, mode: u32) {
        let group = if self.find(Mask).is_some() { Mask } else { OwningGroup };
        for entry in &mut self.entries {
            let bits = match entry.tag {
                Owner => mode >> 6,
                Other => mode,
                tag if tag == group => mode >> 3,
                _ => continue,
            };
            entry.permissions = (bits & 7) as u16;
        }
    }

    fn find(&self, tag: Tag) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    fn permissions(&self, tag: Tag) -> u32 {
        self.find(tag).map_or(0, |entry| u32::from(entry.permissions))
    }
}

fn decode_entry(bytes: &[u8]) -> Option<Entry> {
    let tag = Tag::from_wire(u16::from_le_bytes([bytes[0], bytes[1]]))?;
    let id = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    let named = matches!(tag, User | Group);
    let entry =
        Entry { tag, permissions: u16::from_le_bytes([bytes[2], bytes[3]]), id: if named { id } else { NO_ID } };
    (!named || id != NO_ID).then_some(entry)
}

/// `posix_acl_valid`: owner, users, owning group, groups, mask, others, in this order.
fn is_valid(entries: &[Entry]) -> bool {
    let count = |tag| entries.iter().filter(|entry| entry.tag == tag).count();
    let named = count(User) + count(Group) > 0;
    let once = [Owner, OwningGroup, Other].into_iter().all(|tag| count(tag) == 1);
    let mask = count(Mask) == 1 || (count(Mask) == 0 && !named);
    let ordered = entries.is_sorted_by_key(|entry| entry.tag as u8);
    once && mask && ordered && entries.iter().all(|entry| entry.permissions <= 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            bytes.extend_from_slice(&tag.to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&id.to_le_bytes());
        }
        bytes
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn reads_what_setfacl_writes_and_writes_it_back() {
        // setfacl -m u:1000:rw file (mode 0644), as getfattr -e hex shows it.
        let bytes = acl(&[(1, 6, NONE), (2, 6, 1000), (4, 4, NONE), (16, 6, NONE), (32, 4, NONE)]);
        let parsed = Acl::decode(&bytes).unwrap().unwrap();
        assert_eq!(parsed.encode(), bytes);
        assert_eq!((parsed.mode(), parsed.equivalent_mode()), (0o664, None));
        let plain = Acl::decode(&acl(&[(1, 7, 0), (4, 5, 0), (32, 1, 0)])).unwrap().unwrap();
        assert_eq!(plain.equivalent_mode(), Some(0o751));
    }

    #[test]
    fn refuses_what_linux_refuses() {
        let base = [(1, 6, NONE), (4, 4, NONE), (32, 4, NONE)];
        let bad: [&[(u16, u16, u32)]; 9] = [
            &[(1, 6, NONE), (4, 4, NONE)],
            &[(1, 6, NONE), (1, 6, NONE), (4, 4, NONE), (32, 4, NONE)],
            &[(4, 4, NONE), (1, 6, NONE), (32, 4, NONE)],
            &[(1, 8, NONE), (4, 4, NONE), (32, 4, NONE)],
            &[(1, 6, NONE), (2, 6, 5), (4, 4, NONE), (32, 4, NONE)],
            &[(1, 6, NONE), (2, 6, NONE), (4, 4, NONE), (16, 7, NONE), (32, 4, NONE)],
            &[(1, 6, NONE), (4, 4, NONE), (16, 7, NONE), (16, 7, NONE), (32, 4, NONE)],
            &[(1, 6, NONE), (4, 4, NONE), (32, 4, NONE), (64, 4, NONE)],
            &[(1, 6, NONE), (4, 4, NONE), (8, 4, 1), (16, 4, NONE), (2, 4, 1), (32, 4, NONE)],
        ];
        for entries in bad {
            assert_eq!(Acl::decode(&acl(entries)), Err(Errno::EINVAL), "{entries:?}");
        }
        let good = acl(&base);
        assert_eq!(Acl::decode(&good[..good.len() - 1]), Err(Errno::EINVAL));
        assert_eq!(Acl::decode(&good[..3]), Err(Errno::EINVAL));
        assert_eq!(Acl::decode(&[1, 0, 0, 0]), Err(Errno::EOPNOTSUPP));
        assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
    }

    #[test]
    fn a_default_acl_limits_what_the_mode_asks() {
        let default = acl(&[(1, 7, NONE), (2, 7, 9), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE)]);
        let (access, mode) = Acl::decode(&default).unwrap().unwrap().inherit(0o640);
        assert_eq!(mode, 0o640);
        assert_eq!(access.encode(), acl(&[(1, 6, NONE), (2, 7, 9), (4, 5, NONE), (16, 4, NONE), (32, 0, NONE)]));
        let plain = acl(&[(1, 7, NONE), (4, 5, NONE), (32, 0, NONE)]);
        let (access, mode) = Acl::decode(&plain).unwrap().unwrap().inherit(0o666);
        assert_eq!((mode, access.equivalent_mode()), (0o640, Some(0o640)));
    }

    #[test]
    fn chmod_changes_the_mask_or_the_group() {
        let mut masked =
            Acl::decode(&acl(&[(1, 7, NONE), (2, 7, 9), (4, 5, NONE), (16, 7, NONE), (32, 5, NONE)])).unwrap().unwrap();
        masked.chmod(0o4710);
        assert_eq!(masked.encode(), acl(&[(1, 7, NONE), (2, 7, 9), (4, 5, NONE), (16, 1, NONE), (32, 0, NONE)]));
        let mut plain = Acl::decode(&acl(&[(1, 7, NONE), (4, 5, NONE), (32, 5, NONE)])).unwrap().unwrap();
        plain.chmod(0o123);
        assert_eq!(plain.mode(), 0o123);
    }
}
