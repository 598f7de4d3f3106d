//! When to try again: a fixed schedule of pauses, bounded in number and in time.
//!
//! Without jitter: tests are exact, and the clients of one store are kept apart by their own timing.
//! Invariant: after [`RetryPolicy::give_up_after`] no try begins, so that a call ends within it and one try's deadline.

use std::time::Duration;

/// The schedule of a call's tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Tries in all; at least one is made.
    pub tries: u32,
    /// Pause after the first failed try.
    pub first_pause: Duration,
    /// Each pause is this many times the one before it.
    pub factor: u32,
    /// From this long after the first try began, no other begins.
    pub give_up_after: Duration,
    /// Deadline of a try, without the time for its bytes.
    pub try_timeout: Duration,
    /// What a try must move at least, in bytes per second: the time this takes is added to its deadline.
    pub bytes_per_second_min: u64,
}

impl RetryPolicy {
    /// For S3: pauses of 0.2, 0.6, 1.8 and 5.4 s, given up after 10 s; a try may take 5 s and 1 s for each MB.
    pub const REMOTE: RetryPolicy = RetryPolicy {
        tries: 5,
        first_pause: Duration::from_millis(200),
        factor: 3,
        give_up_after: Duration::from_secs(10),
        try_timeout: Duration::from_secs(5),
        bytes_per_second_min: 1_000_000,
    };

    /// For a local directory: the same pauses, but a try may take a minute, since a disk whose caches are full of other
    /// programs' bytes makes an fsync wait for all of them.
    pub const LOCAL: RetryPolicy = RetryPolicy { try_timeout: Duration::from_secs(60), ..RetryPolicy::REMOTE };

    /// For a question that a person waits for: two tries.
    pub(crate) fn impatient(self) -> RetryPolicy {
        RetryPolicy { tries: self.tries.min(2), ..self }
    }

    /// The pause after failed try number `failed` (from 1), when the call began `elapsed` ago; none to give up.
    pub(crate) fn pause(&self, failed: u32, elapsed: Duration) -> Option<Duration> {
        if failed >= self.tries {
            return None;
        }
        let pause = self.first_pause.saturating_mul(self.factor.saturating_pow(failed - 1));
        (elapsed.saturating_add(pause) < self.give_up_after).then_some(pause)
    }

    /// The deadline of a try that moves this many bytes.
    pub(crate) fn try_deadline(&self, bytes: u64) -> Duration {
        self.try_timeout + Duration::from_secs(bytes / self.bytes_per_second_min.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let policy = RetryPolicy::REMOTE;
        let pauses: Vec<_> = (1..=5).map(|n| policy.pause(n, Duration::ZERO).map(|p| p.as_millis())).collect();
        assert_eq!(pauses, [Some(200), Some(600), Some(1800), Some(5400), None]);
        assert_eq!(policy.pause(1, Duration::from_millis(9_900)), None, "no try begins after the end");
        assert_eq!(policy.try_deadline(16_000_000), Duration::from_secs(21));
        assert_eq!(policy.impatient().pause(2, Duration::ZERO), None);
    }
}
