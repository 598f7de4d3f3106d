//! From requests to shards: checks what arrives, finds the shard, maps errors.
//!
//! Decoding is done (rpc), the work is done below (`shard.rs`, engine). Nothing here changes anything by itself.
//! Invariants: whatever a client sends is answered; a request routed by another shard map than ours is not carried out.

use std::sync::{Arc, OnceLock};

use pando_rpc::Handler;
use pando_types::request::{MountInfo, Request, RequestMessage, Response, ResponseMessage};
use pando_types::shard_map::ShardMap;
use pando_types::{Errno, ErrorKind, FsError, Generation, InodeId, MapEpoch};

use crate::gc::Collector;
use crate::shard::Shard;

mod admin;
mod check;
mod namespace;
mod session;

/// Answers requests with one node's shards.
pub struct Service {
    pub(crate) shard: Arc<Shard>,
    pub(crate) collector: Arc<Collector>,
    pub(crate) mount: MountInfo,
    /// Known once the server listens.
    map: OnceLock<ShardMap>,
    /// One check of everything at a time.
    checking: tokio::sync::Mutex<()>,
}

impl Service {
    /// A service that answers `Unavailable` until it has its map.
    pub fn new(shard: Arc<Shard>, collector: Arc<Collector>, mount: MountInfo) -> Service {
        Service { shard, collector, mount, map: OnceLock::new(), checking: tokio::sync::Mutex::default() }
    }

    /// The map to serve by; the first one counts.
    pub fn serve_by(&self, map: ShardMap) {
        self.map.get_or_init(|| map);
    }

    pub(crate) fn map(&self) -> Result<&ShardMap, FsError> {
        self.map.get().ok_or_else(|| FsError::unavailable("the server is starting"))
    }

    /// The shard of an inode, if it is here and the request was routed by our map.
    pub(crate) fn shard_of(&self, epoch: MapEpoch, inode: InodeId) -> Result<&Arc<Shard>, FsError> {
        let map = self.map()?;
        if epoch > map.epoch {
            return Err(FsError::unavailable("this server has not got the newest shard map yet"));
        }
        let here = map.shard_of(inode.slot()).is_some_and(|shard| shard.id == self.shard.id);
        if epoch < map.epoch || !here {
            let kind = ErrorKind::Redirect(Box::new(map.clone()));
            return Err(FsError { kind, errno: Errno::EIO, detail: "routed by an old shard map".into() });
        }
        Ok(&self.shard)
    }

    async fn answer(&self, message: RequestMessage) -> Result<Response, FsError> {
        let epoch = message.epoch;
        match message.request {
            Request::ShardMap => self.map().map(|map| Response::ShardMap(map.clone())),
            Request::Mount => Ok(Response::Mount(self.mount.clone())),
            Request::OpenSession => session::open(self).await,
            Request::KeepAlive { session } => session::keep_alive(self, session).await,
            Request::Change(envelope) => namespace::change(self, epoch, envelope).await,
            Request::Lookup { parent, name } => namespace::lookup(self, epoch, parent, name).await,
            Request::GetAttr { inode } => namespace::getattr(self, epoch, inode).await,
            Request::Content { inode, offset } => namespace::content(self, epoch, inode, offset).await,
            Request::ReadDir { inode, after, plus, limit } => {
                namespace::readdir(self, epoch, inode, after, plus, limit).await
            }
            Request::ReadLink { inode } => namespace::readlink(self, epoch, inode).await,
            Request::GetXattr { inode, name } => namespace::getxattr(self, epoch, inode, name).await,
            Request::ListXattr { inode } => namespace::listxattr(self, epoch, inode).await,
            Request::Parent { inode } => namespace::parent(self, epoch, inode).await,
            Request::Totals => admin::totals(self).await,
            Request::Fsck => admin::fsck(self).await,
            Request::SegmentsInUse { segments } => admin::segments_in_use(self, segments).await,
            Request::Collect => admin::collect(self).await,
            Request::Status => admin::status(self).await,
        }
    }
}

impl Handler for Service {
    async fn handle(&self, request: RequestMessage) -> ResponseMessage {
        ResponseMessage { generation: Generation::FIRST, result: self.answer(request).await }
    }
}
