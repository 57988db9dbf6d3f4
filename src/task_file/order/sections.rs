//! The sections and keys of an order file, as serde types.

use florin_protocol::{Address, Amount, Digest};
use serde::{Deserialize, Deserializer, de};

use super::super::TaskFileError;
use super::super::data_section::DataSection;
use super::super::file::{Decimal, Duration, ModelSection, TrainingSection};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderFile {
    pub(super) data_class: String,
    pub(super) referee: Address,
    pub(super) nonce: u64,
    pub(super) challenge: Option<Duration>,
    pub(super) model: ModelSection,
    pub(super) split: Option<SplitSection>,
    pub(super) data: DataSection,
    pub(super) rows: RowsSection,
    pub(super) training: TrainingSection,
    pub(super) order: OrderSection,
    #[serde(default)]
    pub(super) audit: AuditSection,
    #[serde(default)]
    pub(super) deposits: DepositSection,
    #[serde(default)]
    pub(super) windows: WindowSection,
}

/// `[split]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SplitSection {
    /// Names of the parameters that stay at home, with `*` for any text.
    pub(super) at_home: Vec<String>,
}

/// `[rows]`
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowsSection {
    pub(super) source: String,
    pub(super) rows: Option<String>,
}

/// `[order]`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OrderSection {
    pub(super) segments: Option<u32>,
    pub(super) steps: Option<u32>,
    pub(super) price_max: Amount,
    pub(super) step_max: Option<Microseconds>,
    pub(super) virtual_workers: u32,
    pub(super) seed: u64,
    pub(super) class: Option<Digest>,
    #[serde(default)]
    pub(super) listed: bool,
}

impl OrderSection {
    /// Segments of a job of a number of steps, and steps of a segment.
    pub(super) fn segments_of(&self, total: u64) -> Result<(u32, u32), TaskFileError> {
        let count = |steps: u64| u32::try_from(steps).unwrap_or(u32::MAX);
        match (self.segments, self.steps) {
            (Some(0), None) => {
                Err(TaskFileError::key("order.segments", "0", "from 1 to 10,000 segments"))
            }
            (None, Some(0)) => {
                Err(TaskFileError::key("order.steps", "0", "from 1 to 1,000,000 steps"))
            }
            (Some(segments), None) => {
                // Rounded up, so that some segments may be left over.
                let steps = total.div_ceil(u64::from(segments));
                Ok((count(total.div_ceil(steps.max(1))), count(steps)))
            }
            (None, Some(steps)) => Ok((count(total.div_ceil(u64::from(steps))), steps)),
            (segments, _) => {
                let value = segments.map_or("nothing".to_owned(), |segments| segments.to_string());
                let right = format!(
                    "write either the number of segments or order.steps, the steps of a segment: \
                     the job has {total} steps"
                );
                Err(TaskFileError::key("order.segments", value, right))
            }
        }
    }
}

/// `[audit]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AuditSection {
    pub(super) share: Option<Decimal>,
    pub(super) auditors: Option<u32>,
    pub(super) colluding: Option<Decimal>,
    pub(super) fee: Option<Amount>,
}

/// `[deposits]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DepositSection {
    pub(super) bid_bond: Option<Amount>,
    pub(super) stake: Option<Amount>,
    pub(super) audit_bond: Option<Amount>,
    pub(super) default_fine: Option<Amount>,
}

/// `[windows]`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WindowSection {
    pub(super) bid: Option<Duration>,
    pub(super) reveal: Option<Duration>,
    pub(super) fund: Option<Duration>,
    pub(super) slack: Option<Decimal>,
    pub(super) segment: Option<Duration>,
    pub(super) draw: Option<Duration>,
    pub(super) audit: Option<Duration>,
    pub(super) answer: Option<Duration>,
}

/// Microseconds of a step, written as a duration such as `"250 ms"` or `"900 us"`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Microseconds(pub(super) u64);

impl<'de> Deserialize<'de> for Microseconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        let parsed = humantime::parse_duration(&text).ok();
        let us = parsed.and_then(|time| u64::try_from(time.as_micros()).ok());
        us.map(Self).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is not a duration: write a number and a unit (us, ms, s, min, h), for \
                 example \"250 ms\""
            ))
        })
    }
}
