//! From requests to shards: checks what arrives, finds the shard, maps errors.
//!
//! Decoding is done (rpc), the work is done below (`shard.rs`, engine). Nothing here changes anything by itself.
//! Invariants: whatever a client sends is answered; a request routed by another shard map than ours is not carried out.

use std::sync::{Arc, OnceLock, Weak};

use pando_rpc::Handler;
use pando_types::request::{Request, RequestMessage, Response, ResponseMessage};
use pando_types::shard_map::{ClusterTag, ShardMap};
use pando_types::{Errno, ErrorKind, FsError, Generation, InodeId, MapEpoch, ShardId};

use crate::replicas::Replicas;
use crate::shard::Shard;

mod admin;
mod check;
mod namespace;
mod node;
pub(crate) mod placement;
mod session;

/// Answers requests with one node's shards.
#[derive(Default)]
pub struct Service {
    /// Known once the server has started; gone when it stops.
    replicas: OnceLock<Weak<Replicas>>,
    /// One check of everything at a time.
    checking: tokio::sync::Mutex<()>,
}

impl Service {
    /// From now on it answers; before, everything is `Unavailable`. The first call counts.
    pub fn serve(&self, replicas: &Arc<Replicas>) {
        self.replicas.get_or_init(|| Arc::downgrade(replicas));
    }

    fn replicas(&self) -> Result<Arc<Replicas>, FsError> {
        let replicas = self.replicas.get().ok_or_else(|| FsError::unavailable("the server is starting"))?;
        replicas.upgrade().ok_or_else(|| FsError::unavailable("the server is stopping"))
    }

    async fn answer(&self, message: RequestMessage) -> Result<Response, FsError> {
        let (epoch, here) = (message.epoch, &*self.replicas()?);
        check_cluster(here, message.cluster)?;
        match message.request {
            Request::ShardMap => here.hinted_map().map(Response::ShardMap),
            Request::Mount => Ok(Response::Mount(here.cluster.mount.clone())),
            Request::OpenSession => session::open(here).await,
            Request::JoinSession { shard, session } => session::join(here, shard, session).await,
            Request::KeepAlive { shard, session } => session::keep_alive(here, epoch, shard, session).await,
            Request::CloseSession { shard, session } => session::close(here, shard, session).await,
            Request::Change(envelope) => namespace::change(here, epoch, envelope).await,
            Request::Lookup { parent, name } => namespace::lookup(here, epoch, parent, name).await,
            Request::GetAttr { inode } => namespace::getattr(here, epoch, inode).await,
            Request::Content { inode, offset } => namespace::content(here, epoch, inode, offset).await,
            Request::ReadDir { inode, after, plus, limit } => {
                namespace::readdir(here, epoch, inode, after, plus, limit).await
            }
            Request::ReadLink { inode } => namespace::readlink(here, epoch, inode).await,
            Request::GetXattr { inode, name } => namespace::getxattr(here, epoch, inode, name).await,
            Request::ListXattr { inode } => namespace::listxattr(here, epoch, inode).await,
            Request::Parent { inode } => namespace::parent(here, epoch, inode).await,
            Request::Totals { shard } => admin::totals(here, shard).await,
            Request::Fsck { shard } => admin::fsck(here, shard, &self.checking).await,
            Request::SegmentsInUse { shard, segments } => admin::segments_in_use(here, shard, segments).await,
            Request::Collect { shard } => admin::collect(here, shard).await,
            Request::Status => admin::status(here).await,
            Request::Raft { cluster, shard, message } => node::raft(here, &cluster, shard, &message).await,
            Request::StartReplica { cluster, shard, slots } => node::start_replica(here, &cluster, shard, slots).await,
            Request::StopReplica { cluster, shard, members_at } => {
                node::stop_replica(here, &cluster, shard, members_at).await
            }
            Request::Replicas => Ok(Response::Replicas(here.list())),
            Request::Join(join) => placement::join(here, join).await,
            Request::ChangeNode { node, change } => placement::change_node(here, node, change).await,
            Request::TransferShard { shard, to } => placement::transfer(here, shard, to).await,
            Request::SplitShard { shard } => placement::split(here, shard).await,
            Request::MoveReplica { shard, from, to } => placement::move_replica(here, shard, from, to).await,
            Request::HalfOf { shard } => placement::half_of(here, shard).await,
            Request::TakePart { cluster, shard, command } => node::take_part(here, &cluster, shard, command).await,
            Request::Outcome { cluster, shard, intent } => node::outcome(here, &cluster, shard, intent).await,
        }
    }
}

/// Which replica answers, and whom to ask where none does.
impl Replicas {
    /// The replica that leads a shard; a redirect to its node if that is another one.
    pub(crate) fn led(&self, id: ShardId) -> Result<Arc<Shard>, FsError> {
        let shard = self.shard(id);
        if let Some(shard) = shard.as_ref().filter(|shard| shard.group.is_leader()) {
            return Ok(shard.clone());
        }
        let map = self.cluster.map()?;
        let hint = match &shard {
            Some(shard) => shard.group.leader().filter(|leader| *leader != self.cluster.node),
            None => map.shard(id).and_then(|shard| shard.leader.or(shard.replicas.first().copied())),
        };
        match hint {
            Some(_) => Err(redirect(ShardMap::clone(&map).led_by(id, hint))),
            None => Err(FsError::unavailable(format!("shard {id} is electing a leader"))),
        }
    }

    /// The leading replica of an inode's shard, if the request was routed by our map.
    pub(crate) fn shard_of(&self, epoch: MapEpoch, inode: InodeId) -> Result<Arc<Shard>, FsError> {
        let map = self.check_epoch(epoch)?;
        let shard = map.shard_of(inode.slot()).ok_or_else(|| FsError::bug("the shard map has a gap"))?;
        self.led(shard.id)
    }

    /// The map, if the request was routed by it.
    pub(crate) fn check_epoch(&self, epoch: MapEpoch) -> Result<Arc<ShardMap>, FsError> {
        let map = self.cluster.map()?;
        if epoch > map.epoch {
            self.cluster.behind.notify_one();
            return Err(FsError::unavailable("this server has not got the newest shard map yet"));
        }
        if epoch < map.epoch { Err(redirect(self.hinted_map()?)) } else { Ok(map) }
    }

    /// The map with the leaders that are known here.
    pub(crate) fn hinted_map(&self) -> Result<ShardMap, FsError> {
        let map = ShardMap::clone(&*self.cluster.map()?);
        Ok(self.shards().iter().fold(map, |map, shard| map.led_by(shard.id, shard.group.leader())))
    }
}

/// A client that was connected to another cluster, whose server had this address before, must not write into this one.
fn check_cluster(here: &Replicas, cluster: ClusterTag) -> Result<(), FsError> {
    if cluster == ClusterTag::UNKNOWN || cluster == ClusterTag::of(here.cluster.id()) {
        return Ok(());
    }
    let detail =
        "another cluster's server has this address now; unmount, and mount the cluster that is meant".to_owned();
    Err(FsError { kind: ErrorKind::User, errno: Errno::EIO, detail })
}

fn redirect(map: ShardMap) -> FsError {
    let kind = ErrorKind::Redirect(Box::new(map));
    FsError { kind, errno: Errno::EIO, detail: "routed by an old shard map, or to a replica that does not lead".into() }
}

impl Handler for Service {
    async fn handle(&self, request: RequestMessage) -> ResponseMessage {
        ResponseMessage { generation: Generation::FIRST, result: self.answer(request).await }
    }
}
