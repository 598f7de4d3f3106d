//! Session: a client's registration and how far it has acknowledged.
//!
//! Key: shard, session u64. Value: version, acked u64, opened i64 (nanoseconds since 1970).

use pando_types::{SessionId, ShardId, Timestamp};

use super::layout::{Fields, VERSION};
use super::{KeyKind, of_shard};
use crate::error::Corrupt;

/// The value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Session {
    /// Replies of operations below this are forgotten.
    pub acked: u64,
    /// When it was opened.
    pub opened: Timestamp,
}

/// The key.
pub fn key(shard: ShardId, session: SessionId) -> Vec<u8> {
    let mut key = of_shard(KeyKind::Session, shard, 8);
    key.extend_from_slice(&session.0.to_be_bytes());
    key
}

/// What all keys of a shard's sessions begin with.
pub fn prefix(shard: ShardId) -> Vec<u8> {
    of_shard(KeyKind::Session, shard, 0)
}

/// The session of a key's rest.
pub fn parse(rest: &[u8]) -> Result<SessionId, Corrupt> {
    let mut fields = Fields::key("session", rest);
    let session = SessionId(fields.key_u64()?);
    fields.end()?;
    Ok(session)
}

impl Session {
    /// The value.
    pub fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend_from_slice(&self.acked.to_le_bytes());
        value.extend_from_slice(&self.opened.0.to_le_bytes());
        value
    }

    /// Reads a value.
    pub fn decode(bytes: &[u8]) -> Result<Session, Corrupt> {
        let mut fields = Fields::value("session", bytes)?;
        let session = Session { acked: fields.u64()?, opened: Timestamp(fields.i64()?) };
        fields.end()?;
        Ok(session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden() {
        let key = key(ShardId(1), SessionId(2));
        assert_eq!(key, [255, 255, 255, 255, 0x42, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
        let session = Session { acked: 3, opened: Timestamp(4) };
        assert_eq!(session.encode(), [1, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn round_trip(id: u64, acked: u64, opened: i64) {
            let key = key(ShardId(0), SessionId(id));
            prop_assert_eq!(parse(&key[super::super::PREFIX_BYTES..]).unwrap(), SessionId(id));
            let session = Session { acked, opened: Timestamp(opened) };
            prop_assert_eq!(Session::decode(&session.encode()).unwrap(), session);
        }
    }
}
