//! Florin.
fn main() {}
