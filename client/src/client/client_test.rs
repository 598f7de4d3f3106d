//! The barriers between names and bytes: what a metadata server is asked, and in which order.

use super::*;
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use pando_rpc::{Handler, Server};
use pando_types::request::{Request, RequestMessage, Response, ResponseMessage};
use pando_types::shard_map::ShardMap;
use pando_types::{Command, Generation, NodeId, Reply, SessionId};
use tempfile::TempDir;

use crate::file::testing::{self, attr};

const DIRECTORY: InodeId = InodeId(50);
const WRITE: OpenMode =
    OpenMode { read: true, write: true, truncate: false, append: false, direct: false, kill_privileges: false };

/// A server with one flat directory; it keeps files as the double of the file half does.
#[derive(Default)]
struct Fake {
    files: testing::Server,
    names: Mutex<HashMap<FileName, InodeId>>,
    map: Mutex<Option<ShardMap>>,
    log: Mutex<Vec<String>>,
    /// An unlink waits for this long.
    unlink_time: Mutex<Duration>,
}

impl Fake {
    fn note(&self, line: String) {
        self.log.lock().unwrap().push(line);
    }

    fn drain(&self) -> Vec<String> {
        std::mem::take(&mut *self.log.lock().unwrap())
    }

    fn named(&self, name: &FileName) -> Result<Attr, FsError> {
        if name.as_bytes() == b"directory" {
            return Ok(Attr { kind: FileKind::Directory, ..attr(DIRECTORY) });
        }
        let inode = self.names.lock().unwrap().get(name).copied().ok_or(Errno::ENOENT)?;
        Ok(self.files.attr(inode))
    }

    async fn change(&self, command: Command) -> Result<Reply, FsError> {
        Ok(match command {
            Command::Create(create) => {
                let inode = InodeId(100 + self.names.lock().unwrap().len() as u64);
                self.names.lock().unwrap().insert(create.name, inode);
                Reply::Inode(self.files.create(inode))
            }
            Command::Commit(commit) => {
                let files = commit.files.iter().map(|f| f.inode.0.to_string()).collect::<Vec<_>>().join("+");
                self.note(format!("commit {files}"));
                Reply::Committed(crate::file::testing::commit(&self.files, commit).await?)
            }
            Command::Rename(rename) => {
                self.note(format!("rename {} {:?}", rename.name, rename.unheld.map(|i| i.0)));
                let mut names = self.names.lock().unwrap();
                let inode = names.remove(&rename.name).unwrap_or(DIRECTORY);
                let replaced = names.insert(rename.new_name, inode);
                Reply::Renamed { inode, replaced, held: replaced.is_some() && rename.unheld != replaced }
            }
            Command::Unlink { name, unheld, .. } => {
                let wait = *self.unlink_time.lock().unwrap();
                tokio::time::sleep(wait).await;
                self.note(format!("unlink {name} {:?}", unheld.map(|i| i.0)));
                let inode = self.names.lock().unwrap().remove(&name).ok_or(Errno::ENOENT)?;
                Reply::Unlinked { inode, held: unheld != Some(inode) }
            }
            Command::Link { inode, .. } => {
                self.note("link".into());
                Reply::Inode(self.files.attr(inode))
            }
            Command::SetXattr { name, .. } => {
                self.note(format!("setxattr {name}"));
                Reply::Done
            }
            Command::ReleaseOrphans { inodes } => {
                self.note(format!("release {}", inodes[0].0));
                Reply::Done
            }
            _ => Reply::Done,
        })
    }

    async fn answer(&self, request: Request) -> Result<Response, FsError> {
        Ok(match request {
            Request::ShardMap => Response::ShardMap(self.map.lock().unwrap().clone().unwrap()),
            Request::OpenSession => Response::Session(SessionId(1)),
            Request::Lookup { name, .. } => Response::Attr(self.named(&name)?),
            Request::GetAttr { inode } => Response::Attr(self.files.attr(inode)),
            Request::Content { inode, offset } => {
                self.note(format!("open {}", inode.0));
                Response::Content(crate::file::testing::content(&self.files, inode, offset).await?)
            }
            Request::Change(envelope) => Response::Reply(self.change(envelope.command).await?),
            _ => Response::Done,
        })
    }
}

impl Handler for Fake {
    async fn handle(&self, message: RequestMessage) -> ResponseMessage {
        ResponseMessage { generation: Generation(1), result: self.answer(message.request).await }
    }
}

struct Setup {
    fake: Arc<Fake>,
    client: Client,
    _server: Server,
    _directory: TempDir,
}

async fn setup() -> Setup {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = testing::store(directory.path()).await;
    let fake = Arc::new(Fake::default());
    let server = Server::bind("127.0.0.1:0", false, fake.clone()).await.unwrap();
    *fake.map.lock().unwrap() = Some(ShardMap::single(NodeId(1), server.address().to_string()));
    let meta = Meta::connect(&server.address().to_string(), RetryPolicy::default()).await.unwrap();
    let client = Client::new(meta, store, BUFFER_BYTES_MIN);
    Setup { fake, client, _server: server, _directory: directory }
}

fn name(text: &str) -> FileName {
    FileName::new(text.as_bytes()).unwrap()
}

impl Setup {
    async fn create(&self, text: &str) -> (InodeId, HandleId) {
        let node = NewNode::File;
        let create = Create { parent: InodeId::ROOT, name: name(text), node, mode: 0o644, umask: 0, uid: 0, gid: 0 };
        let opened = self.client.create_open(create, WRITE).await.unwrap();
        (opened.attr.inode, opened.handle)
    }

    async fn rename(&self, from: &str, to: &str) -> Result<(), FsError> {
        let root = InodeId::ROOT;
        self.client.rename(root, &name(from), root, &name(to), RenameMode::Replace).await
    }
}

#[tokio::test]
async fn a_rename_or_link_comes_after_the_bytes_of_its_source() {
    let setup = setup().await;
    let (inode, handle) = setup.create("temporary").await;
    setup.client.write(handle, 0, &[1; 9000], false).await.unwrap();
    assert_eq!(setup.client.getattr(inode).await.unwrap().size, 9000, "seen before it is committed");
    assert_eq!(setup.client.lookup(InodeId::ROOT, &name("temporary")).await.unwrap().size, 9000);
    setup.rename("temporary", "final").await.unwrap();
    assert_eq!(setup.fake.drain(), ["commit 100", "rename temporary None"]);
    setup.client.write(handle, 0, &[2; 9000], false).await.unwrap();
    setup.client.link(inode, InodeId::ROOT, &name("second")).await.unwrap();
    assert_eq!(setup.fake.drain(), ["commit 100", "link"]);
    setup.client.write(handle, 0, &[3; 9000], false).await.unwrap();
    setup.rename("directory", "renamed").await.unwrap();
    assert_eq!(setup.fake.drain(), ["commit 100", "rename directory None"], "any file may lie below a directory");
    setup.client.flush(handle).await.unwrap();
    setup.rename("renamed", "again").await.unwrap();
    assert_eq!(setup.fake.drain(), ["rename renamed None"], "clean files cost nothing");
}

/// A commit after it would drop it: it vouches for the content.
#[tokio::test]
async fn capabilities_are_set_after_the_bytes_that_they_vouch_for() {
    let setup = setup().await;
    let (inode, handle) = setup.create("program").await;
    for xattr in ["user.x", "security.capability"] {
        setup.client.write(handle, 0, &[1; 9000], false).await.unwrap();
        let xattr = XattrName::new(xattr.as_bytes()).unwrap();
        setup.client.setxattr(inode, &xattr, vec![1], XattrMode::Any).await.unwrap();
    }
    assert_eq!(setup.fake.drain(), ["setxattr user.x", "commit 100", "setxattr security.capability"]);
}

#[tokio::test]
async fn what_is_open_is_kept_and_what_is_not_is_given_up() {
    let setup = setup().await;
    let (open, handle) = setup.create("open").await;
    let (_, closed) = setup.create("closed").await;
    setup.client.release(closed).await;
    setup.client.unlink(InodeId::ROOT, &name("open")).await.unwrap();
    setup.client.unlink(InodeId::ROOT, &name("closed")).await.unwrap();
    assert_eq!(setup.fake.drain(), ["unlink open None", "unlink closed Some(101)"]);
    setup.client.release(handle).await;
    for _ in 0..1000 {
        if !setup.fake.log.lock().unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(setup.fake.drain(), [format!("release {}", open.0)]);
}

#[tokio::test]
async fn a_replaced_file_is_given_up_unless_it_is_open() {
    let setup = setup().await;
    for keep_open in [false, true] {
        let (_, first) = setup.create("new").await;
        let (target, second) = setup.create("old").await;
        setup.client.release(first).await;
        if !keep_open {
            setup.client.release(second).await;
        }
        setup.rename("new", "old").await.unwrap();
        let unheld = (!keep_open).then_some(target.0);
        assert_eq!(setup.fake.drain(), [format!("rename new {unheld:?}")]);
    }
}

#[tokio::test]
async fn an_open_waits_for_an_unlink_that_gives_its_inode_up() {
    let setup = setup().await;
    let (inode, handle) = setup.create("file").await;
    setup.client.release(handle).await;
    *setup.fake.unlink_time.lock().unwrap() = Duration::from_millis(100);
    let unlinking = tokio::spawn({
        let client = setup.client.clone();
        async move { client.unlink(InodeId::ROOT, &name("file")).await }
    });
    while setup.client.0.names.hint(InodeId::ROOT, &name("file")).is_some() {
        tokio::task::yield_now().await;
    }
    setup.client.open(inode, WRITE).await.unwrap();
    unlinking.await.unwrap().unwrap();
    assert_eq!(setup.fake.drain(), ["unlink file Some(100)", "open 100"]);
}
