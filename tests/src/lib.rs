//! What the end-to-end tests and the benches share: a `pando` process under control, system calls that std lacks,
//! and file content that can be told from its seed.
//!
//! Not here: tests. Nothing in this package is part of the product.

pub mod bytes;
pub mod cluster;
pub mod pando;
pub mod spawn;
pub mod sys;
pub mod tools;
pub mod tree;
