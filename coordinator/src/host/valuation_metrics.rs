//! Metrics of the valuations that the valuation threads record and the server exposes.

use prometheus_client::metrics::counter::Counter;

/// Counts since the start; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ValuationMetrics {
    /// Rounds that were replayed from a transcript.
    pub(crate) replayed: Counter,
    /// Attempts to value a round in full.
    pub(crate) computed: Counter,
    /// Transcripts that were not accepted.
    pub(crate) refused: Counter,
}
