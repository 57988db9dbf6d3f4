//! No code: this crate selects features of dependencies; see its `Cargo.toml`.
