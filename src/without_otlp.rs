//! Stands in for `otlp` in a build without that feature: settings that name a collector are refused.

use crate::failure::Failure;
use crate::log::LogLayer;

/// The exporter of spans; this build has none.
pub(crate) enum OtlpExport {}

impl OtlpExport {
    /// Refuses a collector.
    ///
    /// # Errors
    /// `FEATURE_NOT_BUILT`.
    pub(crate) fn new(_url: &str) -> anyhow::Result<Self> {
        Err(Failure::not_built("otlp", "an export of spans (otlp.url)").into())
    }

    pub(crate) fn layer(&self) -> LogLayer {
        match *self {}
    }

    pub(crate) const fn shutdown(&self) {
        match *self {}
    }
}
