//! What the client remembers of the metadata: hints, never answers.
//!
//! Invariant: a stale entry costs time, never correctness.

pub(crate) mod recent;
