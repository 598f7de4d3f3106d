//! Shipping an image from a leader to a replica: begin, numbered chunks, finish.
//!
//! Not here: how messages travel (transport.rs). Invariants:
//! - the receiver accepts chunks in order and counts them; only a whole image is installed;
//! - one image per group is received at a time, the newest; one that is being installed is not disturbed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use openraft::Snapshot;
use openraft::async_runtime::watch::WatchReceiver as _;
use pando_types::ShardId;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use super::{ImageData, SpoolWriter};
use crate::applier::off_workers;
use crate::group::Alive;
use crate::limits::{IMAGE_CHUNK_BYTES_MAX, IMAGE_POLL};
use crate::mark::Mark;
use crate::raft_types::{self, ImageMeta, Vote};
use crate::transport::Consensus;

/// Names a transfer among all that reach one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferId {
    term: u64,
    node: u64,
    number: u64,
}

/// A message of the sender.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ImageMessage {
    Begin {
        id: TransferId,
        vote: Vote,
        meta: ImageMeta,
    },
    Chunk {
        id: TransferId,
        number: u64,
        bytes: Bytes,
    },
    /// Installs the image; repeated until the answer is no longer `Wait`.
    Finish {
        id: TransferId,
        chunks: u64,
    },
}

/// The receiver's answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ImageAnswer {
    /// Stored; go on.
    Next,
    /// Being installed; ask again.
    Wait,
    /// Installed, or not wanted since this vote is higher.
    Done(Vote),
    /// This transfer is over; begin another one later.
    Failed(String),
}

static TRANSFERS: AtomicU64 = AtomicU64::new(0);

/// Ships an image by `call`, which delivers one message. Returns the receiver's vote.
pub(crate) async fn send<F, E>(
    vote: Vote,
    image: Snapshotted,
    call: impl Fn(ImageMessage) -> F,
) -> Result<Vote, SendError<E>>
where
    F: Future<Output = Result<ImageAnswer, E>>,
{
    let ImageData::Source(mut source) = image.snapshot else {
        return Err(SendError::Image("it is not one to be sent".to_owned()));
    };
    let number = TRANSFERS.fetch_add(1, Ordering::Relaxed);
    let id = TransferId { term: vote.leader_id.term, node: vote.leader_id.node_id, number };
    let mut next = ImageMessage::Begin { id, vote, meta: image.meta };
    let mut chunks = 0;
    loop {
        match call(next).await.map_err(SendError::Call)? {
            ImageAnswer::Done(vote) => return Ok(vote),
            ImageAnswer::Failed(reason) => return Err(SendError::Image(reason)),
            ImageAnswer::Wait => {
                tokio::time::sleep(IMAGE_POLL).await;
                next = ImageMessage::Finish { id, chunks };
            }
            ImageAnswer::Next => {
                next = match off_workers(|| source.next()).map_err(|e| SendError::Image(e.to_string()))? {
                    Some(bytes) if bytes.len() > IMAGE_CHUNK_BYTES_MAX => {
                        return Err(SendError::Image(format!("a chunk of {} bytes is too long", bytes.len())));
                    }
                    Some(bytes) => {
                        chunks += 1;
                        ImageMessage::Chunk { id, number: chunks - 1, bytes }
                    }
                    None => ImageMessage::Finish { id, chunks },
                }
            }
        }
    }
}

/// An image with its position, as the consensus library hands it out.
pub(crate) type Snapshotted = raft_types::Snapshot<ImageData>;

/// Why an image was not delivered.
pub(crate) enum SendError<E> {
    /// A message was not answered.
    Call(E),
    /// The image cannot be read, or the receiver refused it.
    Image(String),
}

/// Receives images for one group.
pub(crate) struct Receiver {
    dir: PathBuf,
    group: ShardId,
    /// Given to installations; taken when the group closes.
    alive: Mutex<Option<Alive>>,
    current: Mutex<Option<Incoming>>,
}

struct Incoming {
    id: TransferId,
    vote: Vote,
    meta: ImageMeta,
    stage: Stage,
}

enum Stage {
    Receiving(SpoolWriter),
    Installing(JoinHandle<Result<Vote, String>>),
}

impl Receiver {
    pub fn new(dir: &Path, group: ShardId, alive: Alive) -> Receiver {
        Receiver { dir: dir.to_owned(), group, alive: Mutex::new(Some(alive)), current: Mutex::new(None) }
    }

    /// Forgets what is being received: the group stops.
    pub async fn close(&self) {
        self.alive.lock().await.take();
        let incoming = self.current.lock().await.take();
        if let Some(Incoming { stage: Stage::Installing(task), .. }) = incoming {
            let _ = task.await;
        }
    }

    /// Handles one message of a sender.
    pub async fn receive(&self, message: ImageMessage, raft: &Consensus) -> ImageAnswer {
        let mut current = self.current.lock().await;
        let result = match message {
            ImageMessage::Begin { id, vote, meta } => self.begin(&mut current, Beginning { id, vote, meta }, raft),
            ImageMessage::Chunk { id, number, bytes } => chunk(&mut current, id, number, &bytes),
            ImageMessage::Finish { id, chunks } => self.finish(&mut current, id, chunks, raft).await,
        };
        result.unwrap_or_else(|reason| {
            current.take_if(|incoming| matches!(incoming.stage, Stage::Receiving(_)));
            ImageAnswer::Failed(reason)
        })
    }

    fn begin(
        &self,
        current: &mut Option<Incoming>,
        beginning: Beginning,
        raft: &Consensus,
    ) -> Result<ImageAnswer, String> {
        let Beginning { id, vote, meta } = beginning;
        let local = raft.metrics().borrow_watched().vote;
        if local > vote {
            return Ok(ImageAnswer::Done(local));
        }
        if let Some(Incoming { stage: Stage::Installing(task), .. }) = current
            && !task.is_finished()
        {
            return Err("another image is being installed".to_owned());
        }
        *current = None; // closes the file before it is made anew
        let writer = off_workers(|| SpoolWriter::create(&self.dir, self.group, &Mark::from(&meta)));
        let stage = Stage::Receiving(writer.map_err(|e| self.disk(&e))?);
        *current = Some(Incoming { id, vote, meta, stage });
        Ok(ImageAnswer::Next)
    }

    async fn finish(
        &self,
        current: &mut Option<Incoming>,
        id: TransferId,
        chunks: u64,
        raft: &Consensus,
    ) -> Result<ImageAnswer, String> {
        if current.as_ref().is_none_or(|incoming| incoming.id != id) {
            return Ok(ImageAnswer::Failed(superseded()));
        }
        let Some(mut incoming) = current.take() else { return Err(superseded()) };
        match incoming.stage {
            Stage::Receiving(writer) => {
                if writer.chunks() != chunks {
                    return Err(format!("{} of {chunks} chunks arrived", writer.chunks()));
                }
                let image = off_workers(|| writer.finish()).map_err(|e| self.disk(&e))?;
                let snapshot = Snapshot { meta: incoming.meta.clone(), snapshot: ImageData::Spooled(image) };
                let alive = self.alive.lock().await.clone().ok_or("the group is shut down")?;
                let (raft, vote) = (raft.clone(), incoming.vote);
                let file = super::whole_path(&self.dir, self.group);
                incoming.stage = Stage::Installing(tokio::spawn(async move {
                    let result = raft.install_full_snapshot(vote, snapshot).await;
                    if result.is_ok() {
                        // Still there if the image was not wanted; after an error it must stay.
                        let _ = std::fs::remove_file(file);
                    }
                    drop((raft, alive));
                    result.map(|response| response.vote).map_err(|e| e.to_string())
                }));
                *current = Some(incoming);
                Ok(ImageAnswer::Wait)
            }
            Stage::Installing(task) if task.is_finished() => {
                let installed = task.await.map_err(|e| e.to_string())?;
                installed.map(ImageAnswer::Done)
            }
            Stage::Installing(_) => {
                *current = Some(incoming);
                Ok(ImageAnswer::Wait)
            }
        }
    }

    fn disk(&self, e: &std::io::Error) -> String {
        format!("image file in {}: {e}", self.dir.display())
    }
}

struct Beginning {
    id: TransferId,
    vote: Vote,
    meta: ImageMeta,
}

fn chunk(current: &mut Option<Incoming>, id: TransferId, number: u64, bytes: &Bytes) -> Result<ImageAnswer, String> {
    let Some(incoming) = current.as_mut().filter(|incoming| incoming.id == id) else {
        return Ok(ImageAnswer::Failed(superseded()));
    };
    let Stage::Receiving(writer) = &mut incoming.stage else { return Err("the image is complete already".to_owned()) };
    if number != writer.chunks() {
        return Err(format!("chunk {number} came, {} was expected", writer.chunks()));
    }
    off_workers(|| writer.push(bytes)).map_err(|e| format!("image file: {e}"))?;
    Ok(ImageAnswer::Next)
}

fn superseded() -> String {
    "another transfer has taken its place".to_owned()
}
