//! Metrics of a listener's connections.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

/// Connection metrics of a listener; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ConnectionMetrics {
    pub(super) accepted: Counter,
    pub(super) open: Gauge,
    pub(super) refused: Family<CloseReason, Counter>,
}

/// The metric label for the reason why a connection was refused or evicted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CloseReason {
    reason: &'static str,
}

impl ConnectionMetrics {
    pub(super) fn connection_opened(&self) {
        self.accepted.inc();
        self.open.inc();
    }

    pub(super) fn connection_closed(&self) {
        self.open.dec();
    }

    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&CloseReason { reason }).inc();
    }
}
