//! The sections and keys of a task file, as serde types.

use std::fmt;

use florin_protocol::{Address, Amount, DuplicatePolicy, Micro, NormScaling};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TaskFile {
    pub(super) name: String,
    pub(super) salt: u64,
    pub(super) expires: String,
    pub(super) arbiter: Arbiter,
    pub(super) model: ModelSection,
    pub(super) data: DataSection,
    pub(super) holdout: HoldoutSection,
    pub(super) training: TrainingSection,
    pub(super) rounds: RoundsSection,
    pub(super) estimator: EstimatorSection,
    pub(super) budget: BudgetSection,
}

/// The account that may cancel settlements.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arbiter {
    /// The market's coordinator.
    Coordinator,
    /// Another account.
    Account(Address),
}

impl<'de> Deserialize<'de> for Arbiter {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        if text == "coordinator" {
            return Ok(Self::Coordinator);
        }
        let wrong = |error| de::Error::custom(format!("{error}; or write \"coordinator\""));
        text.parse().map(Self::Account).map_err(wrong)
    }
}

/// `[model]`: the union of the keys of all kinds, so that a misplaced key is reported with its
/// line.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelSection {
    pub(super) kind: ModelKind,
    pub(super) inputs: Option<u32>,
    pub(super) hidden: Option<HiddenUnits>,
    pub(super) channels: Option<u32>,
    pub(super) height: Option<u32>,
    pub(super) width: Option<u32>,
    pub(super) filters: Option<[u32; 2]>,
    pub(super) classes: u32,
    pub(super) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum ModelKind {
    Softmax,
    Mlp,
    Cnn,
}

/// The units of one hidden layer, or of several.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a number of units, or a list of them such as [64, 32]")]
pub(super) enum HiddenUnits {
    One(u32),
    Many(Vec<u32>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DataSection {
    pub(super) width: u32,
    pub(super) classes: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HoldoutSection {
    pub(super) source: String,
    pub(super) rows: Option<String>,
    pub(super) rows_per_round: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrainingSection {
    pub(super) epochs: u32,
    pub(super) batch: u32,
    pub(super) learning_rate: Decimal,
    #[serde(default)]
    pub(super) momentum: Decimal,
    #[serde(default)]
    pub(super) weight_decay: Decimal,
    #[serde(default)]
    pub(super) clip_gradient: Decimal,
    #[serde(default)]
    pub(super) fedprox: Decimal,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RoundsSection {
    pub(super) count: u32,
    pub(super) cohort_min: u32,
    pub(super) cohort_target: u32,
    #[serde(default)]
    pub(super) over_selection: u32,
    pub(super) enrol: Duration,
    pub(super) train: Duration,
    pub(super) reveal: Duration,
    pub(super) value: Duration,
    pub(super) format: Option<FormatSection>,
    pub(super) delta_norm_max: Decimal,
    pub(super) aggregation: AggregationSection,
    #[serde(default)]
    pub(super) norm_scaling: NormScaling,
    #[serde(default)]
    pub(super) near_duplicates: DuplicatePolicy,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FormatSection {
    pub(super) kind: FormatKind,
    pub(super) permille: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FormatKind {
    F32,
    Bf16,
    Int8,
    TopK,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AggregationSection {
    pub(super) rule: AggregationKind,
    pub(super) trim: Option<Decimal>,
    pub(super) byzantine: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AggregationKind {
    Mean,
    Median,
    TrimmedMean,
    Krum,
    ClippedMean,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EstimatorSection {
    #[expect(
        dead_code,
        reason = "there is only one kind so far; the key makes the choice explicit in the file"
    )]
    pub(super) kind: EstimatorKind,
    pub(super) nodes: u8,
    pub(super) cross_check_pairs: Option<u8>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EstimatorKind {
    Path,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetSection {
    pub(super) data: Amount,
    pub(super) infrastructure: Amount,
    pub(super) per_nat_max: Amount,
    pub(super) confidence_z: Decimal,
    pub(super) bond_min: Amount,
    pub(super) bond_per_row: Amount,
    pub(super) debit_max: Amount,
    pub(super) stake_min: Amount,
    pub(super) per_unit: Amount,
    pub(super) challenge: Duration,
    pub(super) unbond: Duration,
}

/// A decimal number, written as a TOML number or as text; exact to six decimals.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Decimal(pub(super) Micro);

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DecimalVisitor;
        impl Visitor<'_> for DecimalVisitor {
            type Value = Decimal;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number with at most six decimals, such as 0.05")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Decimal, E> {
                text.parse().map(Decimal).map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Decimal, E> {
                self.visit_str(&value.to_string())
            }
            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Decimal, E> {
                self.visit_str(&value.to_string())
            }
            // The shortest decimal that parses to this float equals the text in the file.
            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Decimal, E> {
                self.visit_str(&value.to_string())
            }
        }
        deserializer.deserialize_any(DecimalVisitor)
    }
}

/// Milliseconds, written as a duration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Duration(pub(super) u64);

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        super::duration::parse_ms(&text).map(Self).map_err(de::Error::custom)
    }
}
