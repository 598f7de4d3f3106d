//! The metadata half of the client: an async fn per verb, over sessions, routing and retries.
//!
//! Not here: open files and their unsaved bytes (`client.rs`, `file/`), caching.
//! Invariants: a change takes effect once, however often it is sent; reads see every change that was acknowledged before;
//! every call ends within the policy's deadline.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures::future::{BoxFuture, join_all};
use futures::stream::{self, StreamExt, TryStreamExt};
use pando_rpc::Pool;
use pando_types::command::{Commit, Create, Rename, XattrMode};
use pando_types::limits::SESSION_TTL_MS;
use pando_types::request::{Content, DirectoryEntry, DirectoryPage, Request, RequestMessage, Response};
use pando_types::{
    Attr, Command, Envelope, Errno, FileName, FsError, InodeId, OpId, Reply, SegmentId, SessionId, ShardId, SlotId,
    XattrName, command::AttrChange,
};

use crate::retry::{self, Failure, RetryPolicy};
use crate::router::Router;
use crate::session::{Session, Sessions};

mod admin;

/// A first connection fails sooner than a later call: a wrong address should be told at once.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(10);
/// Time for saying goodbye; a server that misses it ends the session by itself.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(5);
/// Two of three keep-alives may be lost.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(SESSION_TTL_MS / 3);
const ROOT_SLOT: SlotId = SlotId(0);
/// Lookups of a name that is replaced by others all the time, before one gives up.
const LOOKUPS_MAX: usize = 16;
/// Questions for attributes of one page of a directory that are asked at the same time.
const GETATTRS_MAX: usize = 32;

/// A connection to the metadata servers of a cluster. Clones share it.
#[derive(Clone)]
pub struct Meta(Arc<Inner>);

struct Inner {
    router: Router,
    sessions: Sessions,
    policy: RetryPolicy,
}

/// What [`Meta::unlink`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unlinked {
    /// The inode that lost a name.
    pub inode: InodeId,
    /// It has no name left and is kept until [`Meta::release_orphans`].
    pub held: bool,
}

/// What [`Meta::rename`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renamed {
    /// The moved inode.
    pub inode: InodeId,
    /// The inode that lost the new name, if one did; when exchanging: the other one.
    pub replaced: Option<InodeId>,
    /// The replaced inode has no name left and is kept until [`Meta::release_orphans`].
    pub held: bool,
}

/// The verbs. Each fails with the errno that the system call should report; EIO when no server answered in time.
impl Meta {
    /// Connects to the cluster that the server at `address` (`host:port`, or several with commas between, one of which must
    /// answer) belongs to. Needs a tokio runtime.
    pub fn connect(address: &str, policy: RetryPolicy) -> BoxFuture<'_, Result<Meta, FsError>> {
        Meta::connect_by(Pool::new(), address, policy)
    }

    /// The same, with connections of this pool.
    pub fn connect_by(pool: Pool, address: &str, policy: RetryPolicy) -> BoxFuture<'_, Result<Meta, FsError>> {
        Box::pin(async move {
            let router = Router::new(address.split(','), pool);
            let meta = Meta(Arc::new(Inner { router, sessions: Sessions::default(), policy }));
            let deadline = Instant::now() + policy.deadline.min(CONNECT_TIME_MAX);
            match meta.0.call(ROOT_SLOT, Request::ShardMap, deadline).await? {
                Response::ShardMap(map) => meta.0.router.adopt(map),
                other => return Err(unexpected(&other)),
            };
            Ok(meta)
        })
    }

    /// The attributes of a name's inode. ENOENT, ENOTDIR.
    pub async fn lookup(&self, parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        self.found(parent.slot(), Request::Lookup { parent, name: name.clone() }).await
    }

    /// Attributes of what a question leads to, which another shard may know.
    async fn found(&self, slot: SlotId, request: Request) -> Result<Attr, FsError> {
        for _ in 0..LOOKUPS_MAX {
            let inode = match self.read(slot, request.clone()).await? {
                Response::Elsewhere(inode) => inode,
                answer => return attr(answer),
            };
            match self.getattr(inode).await {
                // It was removed, or replaced by another, between the two questions.
                Err(error) if error.errno == Errno::ENOENT => {}
                answer => return answer,
            }
        }
        Err(FsError::unavailable("a name was replaced again and again while it was looked up"))
    }

    /// Attributes. ENOENT.
    pub async fn getattr(&self, inode: InodeId) -> Result<Attr, FsError> {
        attr(self.read(inode.slot(), Request::GetAttr { inode }).await?)
    }

    /// A page of a regular file's content map, from `offset` (bytes) on.
    pub async fn content(&self, inode: InodeId, offset: u64) -> Result<Content, FsError> {
        match self.read(inode.slot(), Request::Content { inode, offset }).await? {
            Response::Content(content) => Ok(content),
            other => Err(unexpected(&other)),
        }
    }

    /// A page of a directory, in name order, after a name.
    pub async fn readdir(
        &self,
        inode: InodeId,
        after: Option<FileName>,
        plus: bool,
        limit: u32,
    ) -> Result<DirectoryPage, FsError> {
        let page = match self.read(inode.slot(), Request::ReadDir { inode, after, plus, limit }).await? {
            Response::Directory(page) => page,
            other => return Err(unexpected(&other)),
        };
        if plus { self.complete(page).await } else { Ok(page) }
    }

    /// Asks other shards for the attributes of their inodes; what is gone by then is left out.
    async fn complete(&self, page: DirectoryPage) -> Result<DirectoryPage, FsError> {
        let DirectoryPage { entries, end } = page;
        let complete = stream::iter(entries).map(|mut entry| async move {
            if entry.attr.is_none() {
                entry.attr = match self.getattr(entry.inode).await {
                    Err(error) if error.errno == Errno::ENOENT => return Ok::<_, FsError>(None),
                    answer => Some(answer?),
                };
            }
            Ok(Some(entry))
        });
        let entries: Vec<Option<DirectoryEntry>> = complete.buffered(GETATTRS_MAX).try_collect().await?;
        Ok(DirectoryPage { entries: entries.into_iter().flatten().collect(), end })
    }

    /// A symbolic link's target. EINVAL for anything else.
    pub async fn readlink(&self, inode: InodeId) -> Result<Vec<u8>, FsError> {
        bytes(self.read(inode.slot(), Request::ReadLink { inode }).await?)
    }

    /// An extended attribute. ENODATA.
    pub async fn getxattr(&self, inode: InodeId, name: &XattrName) -> Result<Vec<u8>, FsError> {
        bytes(self.read(inode.slot(), Request::GetXattr { inode, name: name.clone() }).await?)
    }

    /// Names of the extended attributes.
    pub async fn listxattr(&self, inode: InodeId) -> Result<Vec<XattrName>, FsError> {
        match self.read(inode.slot(), Request::ListXattr { inode }).await? {
            Response::Xattrs(names) => Ok(names),
            other => Err(unexpected(&other)),
        }
    }

    /// The parent of a directory; the root's is the root.
    pub async fn parent(&self, inode: InodeId) -> Result<Attr, FsError> {
        self.found(inode.slot(), Request::Parent { inode }).await
    }

    /// Makes a name and an inode. EEXIST, ENOENT, ENOTDIR.
    pub async fn create(&self, create: Create) -> Result<Attr, FsError> {
        inode(self.change(create.parent.slot(), Command::Create(create)).await?)
    }

    /// Removes a name. `unheld`: the inode is this one and not open here, so it need not be kept. ENOENT, EISDIR.
    pub async fn unlink(&self, parent: InodeId, name: &FileName, unheld: Option<InodeId>) -> Result<Unlinked, FsError> {
        match self.change(parent.slot(), Command::Unlink { parent, name: name.clone(), unheld }).await? {
            Reply::Unlinked { inode, held } => Ok(Unlinked { inode, held }),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes an empty directory. ENOTEMPTY, ENOTDIR.
    pub async fn rmdir(&self, parent: InodeId, name: &FileName) -> Result<(), FsError> {
        done(self.change(parent.slot(), Command::Rmdir { parent, name: name.clone() }).await?)
    }

    /// Moves a name.
    pub async fn rename(&self, rename: Rename) -> Result<Renamed, FsError> {
        match self.change(rename.parent.slot(), Command::Rename(rename)).await? {
            Reply::Renamed { inode, replaced, held } => Ok(Renamed { inode, replaced, held }),
            other => Err(unexpected(&other)),
        }
    }

    /// Makes a further name of an inode. EEXIST, EMLINK, EPERM for a directory.
    pub async fn link(&self, target: InodeId, parent: InodeId, name: &FileName) -> Result<Attr, FsError> {
        let command = Command::Link { inode: target, parent, name: name.clone() };
        inode(self.change(parent.slot(), command).await?)
    }

    /// Changes attributes, and the size (bytes) if given.
    pub async fn setattr(&self, target: InodeId, change: AttrChange, size: Option<u64>) -> Result<Attr, FsError> {
        inode(self.change(target.slot(), Command::SetAttr { inode: target, change, size }).await?)
    }

    /// Makes stored bytes part of files; one result per file. All files and segments must belong to one shard.
    ///
    /// Fails with EIO when the session that wrote the segments has ended: they may have been collected by now.
    pub async fn commit(&self, commit: Commit) -> Result<Vec<Result<Attr, Errno>>, FsError> {
        let Some(slot) = commit.files.first().map(|f| f.inode.slot()) else { return Ok(Vec::new()) };
        match self.change(slot, Command::Commit(commit)).await? {
            Reply::Committed(results) => Ok(results),
            other => Err(unexpected(&other)),
        }
    }

    /// Sets an extended attribute. EEXIST, ENODATA by `mode`.
    pub async fn setxattr(
        &self,
        inode: InodeId,
        name: &XattrName,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Result<(), FsError> {
        done(self.change(inode.slot(), Command::SetXattr { inode, name: name.clone(), value, mode }).await?)
    }

    /// Removes an extended attribute. ENODATA.
    pub async fn removexattr(&self, inode: InodeId, name: &XattrName) -> Result<(), FsError> {
        done(self.change(inode.slot(), Command::RemoveXattr { inode, name: name.clone() }).await?)
    }

    /// These nameless inodes, all of one shard, are not open any more.
    pub async fn release_orphans(&self, inodes: Vec<InodeId>) -> Result<(), FsError> {
        let Some(slot) = inodes.first().map(|i| i.slot()) else { return Ok(()) };
        done(self.change(slot, Command::ReleaseOrphans { inodes }).await?)
    }

    /// A name for a new object that will be committed to `inode`, or to others of its slot.
    pub async fn segment_id(&self, inode: InodeId) -> Result<SegmentId, FsError> {
        let deadline = Instant::now() + self.0.policy.deadline;
        Ok(self.0.session(inode.slot(), deadline).await?.segment_id(inode.slot()))
    }

    /// The shard that holds an inode, as far as it is known.
    pub fn shard(&self, inode: InodeId) -> ShardId {
        self.0.router.shard(inode.slot())
    }

    /// Ends the session. Changes made afterwards open a new one.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let Some(session) = self.0.sessions.live() else { return };
            session.end();
            let deadline = Instant::now() + CLOSE_TIME_MAX;
            let joined = self.0.router.shards().into_iter().filter(|(shard, _)| session.has_joined(*shard));
            let closed = joined
                .map(|(shard, slot)| self.0.call(slot, Request::CloseSession { shard, session: session.id }, deadline));
            for error in join_all(closed).await.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, "the session could not be closed everywhere and will end by itself");
            }
        })
    }

    async fn read(&self, slot: SlotId, request: Request) -> Result<Response, FsError> {
        self.0.call(slot, request, Instant::now() + self.0.policy.deadline).await
    }

    /// Carries a change out once: the same op id for every try, a new session only if nothing can have happened.
    async fn change(&self, slot: SlotId, command: Command) -> Result<Reply, FsError> {
        let inner = &self.0;
        let deadline = Instant::now() + inner.policy.deadline;
        let mut message = inner.message(change_request(OpId { session: SessionId::LEADER, sequence: 0 }, 0, command));
        loop {
            let session = inner.session(slot, deadline).await?;
            let op = session.begin(deadline).await?;
            let Request::Change(envelope) = &mut message.request else {
                return Err(FsError::bug("a change lost its command"));
            };
            check_segments(&envelope.command, session.id)?;
            let repeatable = is_repeatable(&envelope.command);
            envelope.op = op.id();
            envelope.acked = op.acked();
            match retry::call(&inner.router, slot, &mut message, &inner.policy, deadline).await {
                Ok(Response::Reply(Reply::Refused(errno))) => return Err(FsError::user(errno)),
                Ok(Response::Reply(reply)) => return Ok(reply),
                Ok(other) => return Err(unexpected(&other)),
                Err(Failure::Error(error)) => return Err(error),
                Err(Failure::Stale { perhaps_done, error }) => {
                    session.end();
                    if perhaps_done && !repeatable {
                        return Err(FsError::unavailable(format!("a change may or may not have been made: {error}")));
                    }
                    if Instant::now() >= deadline {
                        return Err(error);
                    }
                }
            }
        }
    }
}

impl Inner {
    fn message(&self, request: Request) -> RequestMessage {
        RequestMessage {
            cluster: self.router.cluster(),
            epoch: self.router.epoch(),
            generation: self.router.generation(),
            request,
        }
    }

    async fn call(&self, slot: SlotId, request: Request, deadline: Instant) -> Result<Response, FsError> {
        let mut message = self.message(request);
        Ok(retry::call(&self.router, slot, &mut message, &self.policy, deadline).await?)
    }

    /// The live session, which the slot's shard knows; opens one if there is none.
    async fn session(self: &Arc<Inner>, slot: SlotId, deadline: Instant) -> Result<Arc<Session>, FsError> {
        let shard = self.router.shard(slot);
        if let Some(session) = self.sessions.live().filter(|session| session.has_joined(shard)) {
            return Ok(session);
        }
        let opening = tokio::time::timeout_at(deadline.into(), self.sessions.opening.lock()).await;
        let _opening = opening.map_err(|_| FsError::unavailable("no session with the metadata server in time"))?;
        let session = match self.sessions.live() {
            Some(session) => session,
            None => self.open_session(deadline).await?,
        };
        if !session.has_joined(shard) {
            match self.call(slot, Request::JoinSession { shard, session: session.id }, deadline).await? {
                Response::Done => session.joined(shard),
                other => return Err(unexpected(&other)),
            }
        }
        Ok(session)
    }

    async fn open_session(self: &Arc<Inner>, deadline: Instant) -> Result<Arc<Session>, FsError> {
        match self.call(ROOT_SLOT, Request::OpenSession, deadline).await? {
            Response::Session(id) => {
                let session = Session::new(id);
                self.sessions.opened(session.clone());
                tokio::spawn(keep_alive(Arc::downgrade(self), session.clone()));
                Ok(session)
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Lets a shard know that the session lives. A shard may know it that it has not joined: one that was split off, or one in
    /// which a change of several shards keeps something for it.
    async fn keep_alive(&self, session: &Session, shard: ShardId, slot: SlotId) {
        let mut message = self.message(Request::KeepAlive { shard, session: session.id });
        let deadline = Instant::now() + KEEP_ALIVE_INTERVAL;
        match retry::call(&self.router, slot, &mut message, &self.policy, deadline).await {
            Ok(_) => session.joined(shard),
            Err(Failure::Stale { .. }) if session.has_joined(shard) => {
                tracing::warn!(session = %session.id, %shard, "the metadata server has ended this client's session");
                session.end();
            }
            Err(Failure::Stale { .. }) => {}
            Err(Failure::Error(error)) => tracing::debug!(%error, %shard, "keep-alive failed"),
        }
    }
}

/// Runs as long as the session and the connection that it belongs to.
async fn keep_alive(inner: Weak<Inner>, session: Arc<Session>) {
    loop {
        tokio::time::sleep(KEEP_ALIVE_INTERVAL).await;
        let Some(inner) = inner.upgrade().filter(|_| !session.has_ended()) else { return };
        let shards = inner.router.shards();
        join_all(shards.into_iter().map(|(shard, slot)| inner.keep_alive(&session, shard, slot))).await;
    }
}

fn change_request(op: OpId, acked: u64, command: Command) -> Request {
    Request::Change(Envelope { op, acked, command })
}

/// A segment may be collected once its session has ended, so only that session may commit it.
fn check_segments(command: &Command, session: SessionId) -> Result<(), FsError> {
    match command {
        Command::Commit(commit) if commit.segments.iter().any(|s| s.id.session != session) => {
            Err(FsError::unavailable("the session that stored these bytes has ended"))
        }
        _ => Ok(()),
    }
}

/// Done twice, these leave what they leave when done once.
fn is_repeatable(command: &Command) -> bool {
    match command {
        Command::SetAttr { .. } | Command::ReleaseOrphans { .. } => true,
        Command::SetXattr { mode, .. } => *mode == XattrMode::Any,
        Command::Commit(commit) => commit.segments.is_empty(),
        _ => false,
    }
}

fn attr(response: Response) -> Result<Attr, FsError> {
    match response {
        Response::Attr(attr) => Ok(attr),
        other => Err(unexpected(&other)),
    }
}

fn bytes(response: Response) -> Result<Vec<u8>, FsError> {
    match response {
        Response::Bytes(bytes) => Ok(bytes),
        other => Err(unexpected(&other)),
    }
}

fn inode(reply: Reply) -> Result<Attr, FsError> {
    match reply {
        Reply::Inode(attr) => Ok(attr),
        other => Err(unexpected(&other)),
    }
}

fn done(reply: Reply) -> Result<(), FsError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(answer: &impl std::fmt::Debug) -> FsError {
    let mut text = format!("{answer:?}");
    text.truncate(text.char_indices().nth(200).map_or(text.len(), |(at, _)| at));
    FsError::bug(format!("the metadata server gave an answer of the wrong type: {text}"))
}

#[cfg(test)]
#[path = "meta/meta_test.rs"]
mod tests;
