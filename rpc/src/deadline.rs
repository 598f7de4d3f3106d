//! A moment after which nobody waits any more. Passed as an argument through everything that waits.

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// When to give up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    start: Instant,
    at: Instant,
}

impl Deadline {
    /// This long from now.
    pub fn after(wait: Duration) -> Deadline {
        let start = Instant::now();
        Deadline { start, at: start + wait }
    }

    /// What is left of it; zero when it has passed.
    pub fn remaining(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    /// It has passed.
    pub fn passed(&self) -> bool {
        self.remaining().is_zero()
    }

    /// How long has been waited since it was made, in milliseconds.
    pub fn waited_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// The future's result, or `None` when the deadline passes first; the future is dropped then.
    pub async fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::time::timeout_at(self.at, future).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ends_every_wait() {
        let deadline = Deadline::after(Duration::from_millis(50));
        assert_eq!(deadline.run(async { 7 }).await, Some(7));
        assert_eq!(deadline.run(std::future::pending::<()>()).await, None);
        assert!(deadline.passed());
        assert!(deadline.waited_ms() >= 50);
    }
}
