//! The one encoding of messages and log entries: a version byte, then postcard.
//!
//! Invariant: decoding never panics and never allocates more than the input justifies; trailing bytes are an error.

use serde::{Serialize, de::DeserializeOwned};

/// First byte of everything encoded here.
pub const VERSION: u8 = 1;

/// Why bytes could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Written by another version of Pando.
    #[error("message has format version {found}, this program reads {VERSION}; run the same version on both sides")]
    Version {
        /// The version byte found.
        found: u8,
    },
    /// Not a value of the expected type.
    #[error("message is damaged or of another type: {0}")]
    Damaged(String),
}

/// Encodes a value.
pub fn encode<T: Serialize + ?Sized>(value: &T) -> Vec<u8> {
    postcard::to_extend(value, vec![VERSION]).expect("writing to memory cannot fail")
}

/// Decodes a whole buffer.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (&found, rest) = bytes.split_first().ok_or_else(|| DecodeError::Damaged("empty".into()))?;
    if found != VERSION {
        return Err(DecodeError::Version { found });
    }
    let (value, left) = postcard::take_from_bytes(rest).map_err(|e| DecodeError::Damaged(e.to_string()))?;
    match left.len() {
        0 => Ok(value),
        n => Err(DecodeError::Damaged(format!("{n} bytes too many"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refuses_other_versions_and_extra_bytes() {
        let good = encode(&(7u32, "x"));
        assert_eq!(decode::<(u32, String)>(&good), Ok((7, "x".into())));
        let mut other = good.clone();
        other[0] = 9;
        assert_eq!(decode::<(u32, String)>(&other), Err(DecodeError::Version { found: 9 }));
        let mut long = good.clone();
        long.push(0);
        assert!(decode::<(u32, String)>(&long).is_err());
        assert!(decode::<(u32, String)>(&good[..good.len() - 1]).is_err());
        assert!(decode::<u8>(&[]).is_err());
    }
}
