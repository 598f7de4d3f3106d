//! Names that are valid because they exist.
//!
//! Invariant: no value of these types, decoded ones included, breaks the rule of its constructor.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::Errno;
use crate::limits::{NAME_BYTES_MAX, XATTR_NAME_BYTES_MAX};

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:path) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "Vec<u8>", into = "Vec<u8>")]
        pub struct $name(Box<[u8]>);

        impl $name {
            /// Checks and takes a name. The error is what the system call reports.
            pub fn new(bytes: &[u8]) -> Result<Self, Errno> {
                $check(bytes)?;
                Ok(Self(bytes.into()))
            }

            /// The bytes, in any encoding.
            pub fn as_bytes(&self) -> &[u8] {
                &self.0
            }
        }

        impl TryFrom<Vec<u8>> for $name {
            type Error = Errno;

            fn try_from(bytes: Vec<u8>) -> Result<Self, Errno> {
                Self::new(&bytes)
            }
        }

        impl From<$name> for Vec<u8> {
            fn from(name: $name) -> Vec<u8> {
                name.0.into()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", self.0.escape_ascii())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.escape_ascii())
            }
        }
    };
}

name!(
    /// One component of a path: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`.
    FileName,
    check_file_name
);
name!(
    /// The name of an extended attribute with its namespace (`user.x`): 1 to 255 bytes, no NUL.
    XattrName,
    check_xattr_name
);

fn check_file_name(bytes: &[u8]) -> Result<(), Errno> {
    match bytes {
        b"" => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EINVAL),
        _ if bytes.len() > NAME_BYTES_MAX => Err(Errno::ENAMETOOLONG),
        _ if bytes.contains(&b'/') || bytes.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

fn check_xattr_name(bytes: &[u8]) -> Result<(), Errno> {
    match bytes.len() {
        0 => Err(Errno::ERANGE),
        n if n > XATTR_NAME_BYTES_MAX => Err(Errno::ERANGE),
        _ if bytes.contains(&0) => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec;

    #[test]
    fn only_valid_names_exist() {
        assert!(FileName::new(&[b'a'; 255]).is_ok());
        assert!(FileName::new(b"\xff\xfe \n").is_ok());
        for (bad, errno) in [
            (&b""[..], Errno::ENOENT),
            (b".", Errno::EINVAL),
            (b"..", Errno::EINVAL),
            (b"a/b", Errno::EINVAL),
            (b"a\0", Errno::EINVAL),
            (&[b'a'; 256], Errno::ENAMETOOLONG),
        ] {
            assert_eq!(FileName::new(bad), Err(errno));
        }
    }

    #[test]
    fn decoding_checks_too() {
        let bad = codec::encode(&b"a/b".to_vec());
        assert!(codec::decode::<FileName>(&bad).is_err());
    }
}
