//! pando
fn main() {}
