//! Records about inodes and of the shard: orphans, segments, sessions.

use pando_types::limits::{SEGMENT_BYTES_MAX, SESSION_WINDOW_OPS};
use pando_types::{InodeId, Reply, SessionId, codec};

use super::Check;
use crate::error::{Corrupt, EngineError};
use crate::keys::inode::{self, Head};
use crate::keys::op_result::{self, OpResults};
use crate::keys::orphan::{self, Orphan};
use crate::keys::segment::{self, Segment};
use crate::keys::session::{self, Session};
use crate::kv::View;

impl<V: View> Check<'_, V> {
    pub(super) fn orphan(&mut self, id: InodeId, value: &[u8]) -> Result<(), EngineError> {
        let record = Orphan::decode(value)?;
        let value = self.view.get(&inode::key(id))?.ok_or_else(|| Corrupt(format!("orphan {id} has no inode")))?;
        let links = Head::decode(&value)?.0.nlink;
        self.expect(links == 0, || format!("orphan {id} has {links} links"));
        let indexed = self.view.get(&orphan::index_key(record.holder, id))?.is_some();
        self.expect(indexed, || format!("orphan {id} is missing among those of session {}", record.holder));
        let held =
            record.holder != SessionId::LEADER && self.view.get(&session::key(self.shard, record.holder))?.is_some();
        self.report.orphans += u64::from(!held);
        Ok(())
    }

    pub(super) fn orphan_of(&mut self, key: &[u8]) -> Result<(), EngineError> {
        let (holder, id) = orphan::parse_index(key)?;
        let record = self.view.get(&orphan::key(id))?.map(|value| Orphan::decode(&value)).transpose()?;
        self.expect(record.is_some_and(|record| record.holder == holder), || {
            format!("session {holder} is said to hold orphan {id}, which is not so")
        });
        Ok(())
    }

    pub(super) fn segment(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let id = segment::parse(key)?;
        let record = Segment::decode(value)?;
        let live = self.live.remove(&id).unwrap_or(0);
        self.expect(record.live == live && live > 0, || {
            format!("segment {id} says {} live bytes, extents refer to {live}", record.live)
        });
        let fits = record.live <= record.length && record.length <= SEGMENT_BYTES_MAX as u64;
        self.expect(fits, || format!("segment {id} has {} live of {} bytes", record.live, record.length));
        Ok(())
    }

    pub(super) fn dead_segment(&mut self, key: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let id = segment::parse(key)?;
        segment::decode_dead(value)?;
        self.report.dead_segments += 1;
        let live = self.view.get(&segment::key(id))?.is_some();
        self.expect(!live, || format!("segment {id} is dead and in use"));
        Ok(())
    }

    pub(super) fn session(&mut self, rest: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let id = session::parse(rest)?;
        Session::decode(value)?;
        let given = self.state.map_or(0, |state| state.sessions);
        // Those of other shards' sessions are checked there.
        let known = id.0 >> 32 != u64::from(self.shard.0) || (1..=given).contains(&(id.0 & u64::from(u32::MAX)));
        self.expect(known, || format!("session {id} was never given out"));
        Ok(())
    }

    pub(super) fn op_result(&mut self, rest: &[u8], value: &[u8]) -> Result<(), EngineError> {
        let (id, record) = op_result::parse(rest)?;
        let session = self.view.get(&session::key(self.shard, id))?;
        let session = session.ok_or_else(|| Corrupt(format!("replies of session {id}, which is not open")))?;
        let acked = Session::decode(&session)?.acked;
        let window = op_result::record_of(acked)..=op_result::record_of(acked.saturating_add(SESSION_WINDOW_OPS));
        self.expect(window.contains(&record), || format!("session {id} keeps replies outside its window"));
        for reply in OpResults::decode(value)?.0.values() {
            let readable = codec::decode::<Reply>(reply).is_ok();
            self.expect(readable, || format!("session {id} keeps a reply that cannot be read"));
        }
        Ok(())
    }
}
