//! Verifiable work of a round: valuation and aggregation of its updates, from public bytes alone.
//!
//! Coordinator, provider and auditor run the same valuation, [`value_and_aggregate`]: a provider records its
//! evaluations with [`value_and_record`], and the coordinator reads them with [`replay_transcript`]. The same bytes give
//! the same integers on every machine, up to [`TOLERANCE_NANO`] where floats are rounded. [`audit_round`]
//! recomputes a report with it and with the protocol's pay rule, and returns every line that
//! differs.
//!
//! This crate contains no pay rules (`florin-protocol` does) and no state: no files, no sockets, no
//! clock.

mod audit;
mod blob_source;
mod class_effects;
mod codec;
mod convert;
mod cross_check;
mod encoding;
mod evaluations;
mod graph;
mod holdout;
mod leased_training;
mod model_check;
pub mod preprocess;
mod probe;
mod public_baseline;
mod round;
mod round_model;
mod round_source;
mod spot_check;
mod transcript;

pub use audit::{AuditInputs, audit_round};
pub use blob_source::{BlobSource, NO_BLOBS};
pub use codec::{
    InspectedUpdate, check_update_header, clip_update, decode_model, decode_update_into,
    derived_model, encode_parameters, encode_update, initial_model, inspect_model, inspect_update,
    model_bytes, update_bytes,
};
pub use convert::{aggregation_rule, graph_declaration, model_spec, training, update_format};
pub use encoding::{number_encoding, row_encoder, row_encoding, target_scale};
pub use graph::{
    BASELINE_FLOPS_MAX, GraphOutput, baseline_flops, declared_graph, inspect_blob, load_graph,
    task_model,
};
pub use holdout::{CommittedHoldout, DisclosureError, verify_disclosed_rows};
pub use leased_training::{
    JobRows, LeasedTraining, LeasedTrainingError, SegmentStart, compute_class, delivered_state,
    initial_state, job_state,
};
pub use model_check::{ModelCheck, check_model};
pub use probe::{
    CardMeasurement, ComputedProbe, MeasuredCard, ProbeDevices, ProbeProgress, measure_card,
};
pub use public_baseline::{baseline_rows, disclosed_indices};
pub use round::{
    EarlierUpdateBlobs, ResultMismatch, TOLERANCE_NANO, ValuationInputs, ValuationOutput,
    WorkError, compare_results, value_and_aggregate,
};
pub use round_model::void_metrics;
pub use spot_check::{SpotCheckOptions, SpotCheckResult, escape_probability, spot_check_round};
pub use transcript::{
    RecordedRound, TRANSCRIPT_BYTES_MAX, TRANSCRIPT_PARTS, TranscriptError, TranscriptSample,
    replay_transcript, value_and_record,
};

#[cfg(test)]
mod codec_tests;
#[cfg(test)]
mod cross_check_vectors;
#[cfg(test)]
mod duplicate_tests;
#[cfg(test)]
mod gap_rule_vectors;
#[cfg(test)]
mod large_cohort_tests;
#[cfg(test)]
mod leased_training_tests;
#[cfg(test)]
mod model_check_tests;
#[cfg(test)]
mod near_duplicate_vectors;
#[cfg(test)]
mod public_baseline_tests;
#[cfg(test)]
mod round_vectors;
#[cfg(test)]
mod spot_check_tests;
#[cfg(test)]
mod tests;
