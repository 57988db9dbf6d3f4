//! The sections and keys of an order file, as serde types.

use florin_protocol::{Address, Amount, Digest};
use serde::{Deserialize, Deserializer, de};

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
