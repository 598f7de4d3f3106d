//! How messages lie on the wire.
//!
//! ```text
//! hello   "PANDO\0" | version u16 BE                       each side once, the client first
//! frame   length u32 LE (of the rest) | id u64 LE | body   body: a message in `codec`; an answer has its request's id
//! ```
//! Invariant: memory grows with the bytes that arrived, never with a length that a peer only claims.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use pando_types::limits::{FRAME_BYTES_MAX, REQUESTS_PER_CONNECTION_MAX};

use crate::RpcError;

/// Version of hello, frames and messages together.
pub(crate) const VERSION: u16 = 2;
/// Bytes of a hello.
pub(crate) const HELLO_BYTES: usize = 8;

/// Room for a read, in bytes: many small frames at once, or a good part of a large one.
pub(crate) const READ_BYTES: usize = 16 << 10;

const MAGIC: &[u8; 6] = b"PANDO\0";
const LENGTH_BYTES: usize = 4;
const ID_BYTES: usize = 8;
/// Bytes of messages that cost as much as one more request: so many bytes in progress fill a connection.
const BYTES_PER_UNIT: usize = 16 << 10;

const _: () = assert!(cost(FRAME_BYTES_MAX) < REQUESTS_PER_CONNECTION_MAX, "the largest frame can be in progress");

/// Our half of the handshake.
pub(crate) fn hello() -> [u8; HELLO_BYTES] {
    let mut bytes = [0; HELLO_BYTES];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[MAGIC.len()..].copy_from_slice(&VERSION.to_be_bytes());
    bytes
}

/// The version in the other side's hello, if it is one.
pub(crate) fn read_hello(bytes: &[u8; HELLO_BYTES]) -> Option<u16> {
    bytes.strip_prefix(MAGIC)?.try_into().ok().map(u16::from_be_bytes)
}

/// What a message of this size takes of a connection's [`REQUESTS_PER_CONNECTION_MAX`].
pub(crate) const fn cost(bytes: usize) -> usize {
    1 + bytes / BYTES_PER_UNIT
}

/// Appends a frame.
pub(crate) fn put(out: &mut BytesMut, id: u64, body: &[u8]) -> Result<(), RpcError> {
    let length = ID_BYTES + body.len();
    if length > FRAME_BYTES_MAX {
        return Err(RpcError::TooLarge { bytes: body.len() });
    }
    out.reserve(LENGTH_BYTES + length);
    out.put_u32_le(length as u32);
    out.put_u64_le(id);
    out.put_slice(body);
    Ok(())
}

/// Takes the next whole frame; `None` if it has not arrived yet. An error ends the connection.
pub(crate) fn take(input: &mut BytesMut) -> Result<Option<(u64, Bytes)>, RpcError> {
    let Some(head) = input.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if !(ID_BYTES..=FRAME_BYTES_MAX).contains(&length) {
        return Err(RpcError::TooLarge { bytes: length });
    }
    if input.len() < LENGTH_BYTES + length {
        return Ok(None);
    }
    input.advance(LENGTH_BYTES);
    let mut frame = input.split_to(length).freeze();
    let id = frame.get_u64_le();
    Ok(Some((id, frame)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_reads_back_however_it_is_cut() {
        let mut whole = BytesMut::new();
        put(&mut whole, 7, b"hello").unwrap();
        put(&mut whole, u64::MAX, b"").unwrap();
        let mut input = BytesMut::new();
        let mut got = Vec::new();
        for byte in whole {
            input.put_u8(byte);
            while let Some(frame) = take(&mut input).unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, [(7, Bytes::from_static(b"hello")), (u64::MAX, Bytes::new())]);
        assert!(input.is_empty());
    }

    #[test]
    fn refuses_what_no_frame_can_be() {
        assert!(put(&mut BytesMut::new(), 1, &vec![0; FRAME_BYTES_MAX]).is_err());
        for length in [0, 7, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            assert!(take(&mut BytesMut::from(&length.to_le_bytes()[..])).is_err(), "{length}");
        }
    }

    #[test]
    fn a_hello_is_known_by_its_magic() {
        assert_eq!(read_hello(&hello()), Some(VERSION));
        assert_eq!(read_hello(b"GET / HT"), None);
    }
}
