//! Memory that the client keeps: one budget for every buffer.
//!
//! Not here: pressure of the host (a later governor sets the budget's limit).

pub(crate) mod budget;
