//! Ledgers as their users see them. The list of modules is the table of contents.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests unwrap, and the model keeps small integers")]

mod model;
mod remote;
