//! One request until it is answered: the only place that decides what an error means for the caller.
//!
//! Not here: what is asked (`meta.rs`), op ids (`session.rs`), where to send it (`router.rs`).
//! Invariants: a request is resent unchanged but for what its sender knows (epoch, generation), so a change keeps its op id;
//! no call outlives its deadline; a failure says whether an earlier try may have taken effect.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use pando_rpc::RpcError;
use pando_types::request::{RequestMessage, Response};
use pando_types::{ErrorKind, FsError, Reply, SlotId};

use crate::router::Router;

/// How long and how often to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// A call gives up after this long, with EIO.
    pub deadline: Duration,
    /// A try gives up after this long and is repeated.
    pub attempt: Duration,
    /// Wait after the first failed try; doubles with each further one.
    pub backoff_first: Duration,
    /// Longest wait between two tries.
    pub backoff_max: Duration,
}

impl Default for RetryPolicy {
    /// 30 s covers an election or a restart of a server; what lasts longer is an outage that the application should see. A
    /// server that has stopped without a word is given up after 3 s, and none waits longer than an election takes.
    fn default() -> RetryPolicy {
        RetryPolicy {
            deadline: Duration::from_secs(30),
            attempt: Duration::from_secs(3),
            backoff_first: Duration::from_millis(5),
            backoff_max: Duration::from_millis(200),
        }
    }
}

/// Redirects followed at once; more of them in a row are two servers that disagree, and are waited out.
const REDIRECTS_AT_ONCE: u32 = 3;

/// Why a call has no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The session is gone. `perhaps_done`: an earlier try may have taken effect before that.
    Stale { perhaps_done: bool, error: FsError },
    /// Final.
    Error(FsError),
}

impl From<Failure> for FsError {
    fn from(failure: Failure) -> FsError {
        match failure {
            Failure::Stale { error, .. } | Failure::Error(error) => error,
        }
    }
}

/// What to do after a try.
enum Next {
    Return(Result<Response, Failure>),
    Again,
    After(Duration, String),
}

/// Sends a request to the leader of the slot's shard until it is answered or `deadline` has passed.
pub(crate) fn call<'a>(
    router: &'a Router,
    slot: SlotId,
    message: &'a mut RequestMessage,
    policy: &'a RetryPolicy,
    deadline: Instant,
) -> BoxFuture<'a, Result<Response, Failure>> {
    Box::pin(async move {
        let mut tries = Tries { perhaps_done: false, failed: 0, redirects: 0 };
        loop {
            let address = router.address(slot);
            message.cluster = router.cluster();
            message.epoch = router.epoch();
            message.generation = router.generation();
            let left = deadline.saturating_duration_since(Instant::now());
            let next = match router.pool().call(&address, message, policy.attempt.min(left)).await {
                Ok(answer) => {
                    router.saw(answer.generation);
                    router.reached(&address);
                    tries.judge(router, slot, &address, answer.result, policy)
                }
                Err(error) => tries.not_answered(router, slot, &address, error, policy),
            };
            match next {
                Next::Return(result) => return result,
                Next::Again => {}
                Next::After(wait, reason) => {
                    if Instant::now() + wait >= deadline {
                        return Err(Failure::Error(FsError::unavailable(format!(
                            "no answer from the metadata server at {address} in time ({reason}); see that it runs and can be reached"
                        ))));
                    }
                    tokio::time::sleep(wait).await;
                }
            }
        }
    })
}

/// What has happened to a call so far.
struct Tries {
    perhaps_done: bool,
    failed: u32,
    redirects: u32,
}

impl Tries {
    fn judge(
        &mut self,
        router: &Router,
        slot: SlotId,
        address: &str,
        result: Result<Response, FsError>,
        policy: &RetryPolicy,
    ) -> Next {
        let error = match result {
            Ok(Response::Reply(Reply::Stale)) => FsError::stale("the session of this client has ended"),
            Ok(response) => return Next::Return(Ok(response)),
            Err(error) => error,
        };
        match error.kind {
            ErrorKind::User | ErrorKind::Corrupt | ErrorKind::Bug => Next::Return(Err(Failure::Error(error))),
            ErrorKind::Stale => Next::Return(Err(Failure::Stale { perhaps_done: self.perhaps_done, error })),
            ErrorKind::Throttled(after_ms) => Next::After(Duration::from_millis(after_ms.max(1)), error.detail),
            ErrorKind::Redirect(map) => {
                router.adopt(*map);
                self.redirects += 1;
                if self.redirects <= REDIRECTS_AT_ONCE && router.address(slot) != address {
                    return Next::Again;
                }
                // It knows no better; somebody else may.
                router.unavailable(slot, address);
                Next::After(self.backoff(policy), error.detail)
            }
            ErrorKind::Unavailable => {
                self.perhaps_done = true;
                router.unavailable(slot, address);
                Next::After(self.backoff(policy), error.detail)
            }
        }
    }

    fn not_answered(
        &mut self,
        router: &Router,
        slot: SlotId,
        address: &str,
        error: RpcError,
        policy: &RetryPolicy,
    ) -> Next {
        self.perhaps_done |= !matches!(error, RpcError::Connect { .. });
        let error = FsError::from(error);
        if error.kind != ErrorKind::Unavailable {
            return Next::Return(Err(Failure::Error(error)));
        }
        router.lost(slot, address, &error.detail);
        Next::After(self.backoff(policy), error.detail)
    }

    /// Exponential with jitter (half to all of it), so that many clients do not come back in step.
    fn backoff(&mut self, policy: &RetryPolicy) -> Duration {
        let full = policy.backoff_first.saturating_mul(1 << self.failed.min(16)).min(policy.backoff_max);
        self.failed += 1;
        let random = RandomState::new().build_hasher().finish() % 512;
        full * (512 + random as u32) / 1024
    }
}
