//! The waterline command.
fn main() {}
