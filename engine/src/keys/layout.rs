//! Fixed layouts: little-endian fields in values, read back with their lengths checked.
//!
//! Invariant: reading never panics; a value of another version or length is [`Corrupt`].

use pando_types::InodeId;

use crate::error::Corrupt;

/// Version byte of every value.
pub const VERSION: u8 = 1;

/// Takes fields from the front of a value or key.
pub struct Fields<'a> {
    record: &'static str,
    left: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Of a value: checks the version byte.
    pub fn value(record: &'static str, bytes: &'a [u8]) -> Result<Fields<'a>, Corrupt> {
        match bytes.split_first() {
            Some((&VERSION, left)) => Ok(Fields { record, left }),
            Some((other, _)) => {
                Err(Corrupt(format!("{record} record has version {other}, this program reads {VERSION}")))
            }
            None => Err(Corrupt(format!("{record} record is empty"))),
        }
    }

    /// Of the rest of a key.
    pub fn key(record: &'static str, bytes: &'a [u8]) -> Fields<'a> {
        Fields { record, left: bytes }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Corrupt> {
        let (field, left) =
            self.left.split_first_chunk().ok_or_else(|| Corrupt(format!("{} record is too short", self.record)))?;
        self.left = left;
        Ok(*field)
    }

    /// A byte.
    pub fn u8(&mut self) -> Result<u8, Corrupt> {
        self.array().map(|[byte]| byte)
    }

    /// Two bytes.
    pub fn u16(&mut self) -> Result<u16, Corrupt> {
        self.array().map(u16::from_le_bytes)
    }

    /// Four bytes.
    pub fn u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_le_bytes)
    }

    /// Eight bytes, signed.
    pub fn i64(&mut self) -> Result<i64, Corrupt> {
        self.array().map(i64::from_le_bytes)
    }

    /// Eight bytes of a key.
    pub fn key_u64(&mut self) -> Result<u64, Corrupt> {
        self.array().map(u64::from_be_bytes)
    }

    /// Four bytes of a key.
    pub fn key_u32(&mut self) -> Result<u32, Corrupt> {
        self.array().map(u32::from_be_bytes)
    }

    /// An inode of a key.
    pub fn key_inode(&mut self) -> Result<InodeId, Corrupt> {
        self.key_u64().map(InodeId)
    }

    /// This many bytes.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], Corrupt> {
        let short = || Corrupt(format!("{} record is too short", self.record));
        let (field, left) = self.left.split_at_checked(length).ok_or_else(short)?;
        self.left = left;
        Ok(field)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// All that is left.
    pub fn rest(self) -> &'a [u8] {
        self.left
    }

    /// Nothing must be left.
    pub fn end(self) -> Result<(), Corrupt> {
        match self.left.len() {
            0 => Ok(()),
            n => Err(Corrupt(format!("{} record is {n} bytes too long", self.record))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_long_and_foreign_values_are_corrupt() {
        assert!(Fields::value("x", &[]).is_err());
        assert!(Fields::value("x", &[2, 0]).is_err());
        let mut fields = Fields::value("x", &[1, 5, 6]).unwrap();
        assert_eq!(fields.u8().unwrap(), 5);
        assert!(fields.u16().is_err());
        assert!(fields.end().is_err());
    }
}
