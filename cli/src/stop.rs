//! When a serving process is told to end: SIGINT, SIGTERM, or the terminal's end (SIGHUP).
//!
//! Invariant: a signal that arrives before `wait` is kept for it.

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Listens for the signals from when it is made.
pub struct Stop([Signal; 3]);

impl Stop {
    /// From now on the signals do not kill the process.
    pub fn listen() -> anyhow::Result<Stop> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Stop([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    /// Waits for the next one.
    pub async fn wait(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
