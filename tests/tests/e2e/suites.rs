//! The suites of others: pjdfstest and fsx.
fn _x() {}
