//! Verifiable work of a round: valuation and aggregation of its updates, from public bytes alone.
//!
//! Coordinator, provider and auditor call the same [`carry_out`]. The same bytes give the same
//! integers on every machine, up to [`TOLERANCE_NANO`] where floats are rounded. [`audit_round`]
//! recomputes a report with it and with the protocol's pay rule, and returns every line that
//! differs.
//!
//! This crate contains no pay rules (`florin-protocol` does) and no state: no files, no sockets, no
//! clock.

mod audit;
mod check;
mod contents;
mod convert;
mod holdout;
mod opinion;
pub mod protect;
mod round;
mod source;
mod spot;

pub use audit::{AuditInputs, Difference, audit_round, draw_differs};
pub use check::{
    Inspected, check_model, check_update_header, clip_update, decode_update_into, encode,
    encode_update, initial_model, inspect_model, inspect_update, model_bytes, update_bytes,
};
pub use contents::{Contents, NOTHING};
pub use convert::{aggregation, format, model_spec, training};
pub use holdout::{Committed, ShownError, check_shown};
pub use round::{
    Disagreement, Inputs, LastUpdates, Outcome, TOLERANCE_NANO, WorkError, agree, carry_out,
};
pub use spot::{Spot, Spotted, escape_probability, spot_check_round};

#[cfg(test)]
mod check_tests;
#[cfg(test)]
mod known_tests;
#[cfg(test)]
mod large_tests;
#[cfg(test)]
mod spot_tests;
#[cfg(test)]
mod tests;
