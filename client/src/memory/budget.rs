//! The budget: every byte of file data that the client keeps is granted here first.
//!
//! Not here: which buffers are given back under pressure (`file/reclaim.rs`). Invariants: the bytes granted never exceed
//! the limit; writes and look-ahead leave the reserve to reads, so that a full write buffer cannot stop reads; grants of one
//! kind are first come, first served; every wait ends, at the latest at its deadline.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Written bytes and look-ahead: all but the reserve.
    Keep,
    /// The answer of a read in progress: may use the reserve too.
    Read,
}

/// A wait for memory was longer than its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no buffer memory became free in time; the object store may be slow or out of order")]
pub(crate) struct OutOfTime;

/// See the module.
pub(crate) struct Budget {
    state: Mutex<State>,
    limit: u64,
    reserve: u64,
    /// Somebody waits: memory should be given back.
    pub(crate) pressure: Notify,
}

#[derive(Default)]
struct State {
    used: u64,
    peak: u64,
    keep: VecDeque<Waiter>,
    read: VecDeque<Waiter>,
}

struct Waiter {
    bytes: u64,
    granted: oneshot::Sender<Grant>,
}

/// Bytes that may be used; given back when dropped.
pub(crate) struct Grant {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit` bytes, of which `reserve` are for reads alone.
    pub(crate) fn new(limit: u64, reserve: u64) -> Arc<Budget> {
        assert!(reserve < limit, "writes need memory too");
        Arc::new(Budget { state: Mutex::default(), limit, reserve, pressure: Notify::new() })
    }

    /// Takes memory if it is free and nobody waits for it.
    pub(crate) fn try_take(self: &Arc<Self>, purpose: Purpose, bytes: u64) -> Option<Grant> {
        let mut state = self.lock();
        let first = match purpose {
            Purpose::Keep => state.keep.is_empty() && state.read.is_empty(),
            Purpose::Read => state.read.is_empty(),
        };
        (first && self.fits(&state, purpose, bytes)).then(|| self.grant(&mut state, bytes))
    }

    /// Takes memory, after those who came before. More than could ever be granted is refused at once.
    pub(crate) async fn take(
        self: &Arc<Self>,
        purpose: Purpose,
        bytes: u64,
        wait: Duration,
    ) -> Result<Grant, OutOfTime> {
        if bytes > self.most(purpose) {
            return Err(OutOfTime);
        }
        let granted = {
            let mut state = self.lock();
            let queue = state.queue(purpose);
            let (sender, granted) = oneshot::channel();
            queue.push_back(Waiter { bytes, granted: sender });
            granted
        };
        self.serve();
        self.pressure.notify_one();
        // A grant that arrives in the same moment lies in the channel and is given back with it.
        match tokio::time::timeout(wait, granted).await {
            Ok(Ok(grant)) => Ok(grant),
            _ => {
                self.serve();
                Err(OutOfTime)
            }
        }
    }

    /// Whether somebody waits.
    pub(crate) fn is_short(&self) -> bool {
        let state = self.lock();
        !state.keep.is_empty() || !state.read.is_empty()
    }

    /// The most that can be in use for this purpose.
    pub(crate) fn most(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Keep => self.limit - self.reserve,
            Purpose::Read => self.limit,
        }
    }

    /// Bytes granted now, and the most that ever were.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let state = self.lock();
        (state.used, state.peak)
    }

    fn fits(&self, state: &State, purpose: Purpose, bytes: u64) -> bool {
        state.used + bytes <= self.most(purpose)
    }

    fn grant(self: &Arc<Self>, state: &mut State, bytes: u64) -> Grant {
        state.used += bytes;
        state.peak = state.peak.max(state.used);
        Grant { budget: self.clone(), bytes }
    }

    /// Grants to those who wait what has become free. Grants that nobody takes any more are dropped outside the lock.
    fn serve(self: &Arc<Self>) {
        let mut refused = Vec::new();
        loop {
            let mut state = self.lock();
            for purpose in [Purpose::Read, Purpose::Keep] {
                loop {
                    let queue = state.queue(purpose);
                    while queue.front().is_some_and(|w| w.granted.is_closed()) {
                        queue.pop_front();
                    }
                    let Some(bytes) = queue.front().map(|w| w.bytes) else { break };
                    if !self.fits(&state, purpose, bytes) {
                        break;
                    }
                    let grant = self.grant(&mut state, bytes);
                    if let Some(waiter) = state.queue(purpose).pop_front() {
                        refused.extend(waiter.granted.send(grant).err());
                    }
                }
            }
            for grant in &mut refused {
                state.used -= std::mem::take(&mut grant.bytes);
            }
            if refused.is_empty() {
                return;
            }
            drop(state);
            refused.clear();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn queue(&mut self, purpose: Purpose) -> &mut VecDeque<Waiter> {
        match purpose {
            Purpose::Keep => &mut self.keep,
            Purpose::Read => &mut self.read,
        }
    }
}

impl Grant {
    /// A grant of nothing, to which others are added.
    pub(crate) fn none(budget: &Arc<Budget>) -> Grant {
        Grant { budget: budget.clone(), bytes: 0 }
    }

    /// Bytes of it.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds another grant of the same budget.
    pub(crate) fn merge(&mut self, mut other: Grant) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes `bytes` (at most all) out of it.
    pub(crate) fn split(&mut self, bytes: u64) -> Grant {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Grant { budget: self.budget.clone(), bytes }
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let waiting = {
            let mut state = self.budget.lock();
            state.used -= self.bytes;
            !state.keep.is_empty() || !state.read.is_empty()
        };
        self.bytes = 0;
        if waiting {
            self.budget.serve();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn first_come_first_served_and_never_over_the_limit() {
        let budget = Budget::new(100, 20);
        let first = budget.try_take(Purpose::Keep, 80).unwrap();
        assert!(budget.try_take(Purpose::Keep, 1).is_none());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for bytes in [70, 1, 5] {
            let (budget, order) = (budget.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let grant = budget.take(Purpose::Keep, bytes, LONG).await.unwrap();
                order.lock().unwrap().push(bytes);
                drop(grant);
            }));
            tokio::task::yield_now().await;
        }
        assert!(budget.is_short());
        assert!(budget.try_take(Purpose::Keep, 0).is_none(), "others wait");
        assert!(budget.try_take(Purpose::Read, 20).is_some(), "the reserve is there for reads");
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [70, 1, 5]);
        let (used, peak) = budget.usage();
        assert_eq!(used, 0);
        assert!(peak <= 100);
    }

    #[tokio::test]
    async fn a_wait_ends_and_leaves_nothing_behind() {
        let budget = Budget::new(100, 20);
        let grant = budget.try_take(Purpose::Keep, 80).unwrap();
        assert_eq!(budget.take(Purpose::Keep, 10, SOON).await.err(), Some(OutOfTime));
        assert_eq!(budget.take(Purpose::Keep, 81, LONG).await.err(), Some(OutOfTime), "can never be granted");
        assert!(!budget.is_short());
        drop(grant);
        assert_eq!(budget.usage().0, 0);
        let mut all = budget.take(Purpose::Keep, 80, SOON).await.unwrap();
        let part = all.split(30);
        drop(all);
        assert_eq!(budget.usage().0, 30);
        let mut sum = Grant::none(&budget);
        sum.merge(part);
        assert_eq!(sum.bytes(), 30);
        drop(sum);
        assert_eq!(budget.usage().0, 0);
    }

    #[tokio::test]
    async fn many_takers_share_and_all_finish() {
        let budget = Budget::new(1000, 100);
        let tasks: Vec<_> = (0..200u64)
            .map(|n| {
                let budget = budget.clone();
                tokio::spawn(async move {
                    for round in 0..20 {
                        let bytes = 1 + (n * 7 + round * 13) % 400;
                        let grant = budget.take(Purpose::Keep, bytes, LONG).await.unwrap();
                        tokio::task::yield_now().await;
                        drop(grant);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let (used, peak) = budget.usage();
        assert_eq!(used, 0);
        assert!(peak <= 900 && peak > 300, "{peak}");
    }
}
