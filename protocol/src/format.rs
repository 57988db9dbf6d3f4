//! Encodings of an update's numbers. The encoding is a term of the task: every reader must decode
//! the same delta.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::spec_error::{SpecError, require};

/// Largest share of a model's parameters, in permille, for [`UpdateFormat::TopK`]. Above it a dense
/// update is shorter.
pub const TOP_K_PERMILLE_MAX: u16 = 500;

/// Encoding of an update's numbers. Norm check, valuation, aggregation and audit all use the
/// decoded delta; `docs/protocol.md` specifies the bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    BorshSerialize,
    BorshDeserialize,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum UpdateFormat {
    /// 32-bit floats, unchanged from training.
    #[default]
    F32,
    /// bfloat16: the upper 16 bits of each float, rounded to nearest.
    Bf16,
    /// Integers from -127 to 127 times a scale per tensor, with stochastic rounding.
    Int8,
    /// Only the largest parameters; participants carry the rest over to the next round.
    TopK {
        /// Share of the parameters that is sent, in permille: 1 to [`TOP_K_PERMILLE_MAX`], and at
        /// least one parameter.
        permille: u16,
    },
}

impl UpdateFormat {
    pub(crate) fn check(self) -> Result<(), SpecError> {
        match self {
            Self::F32 | Self::Bf16 | Self::Int8 => Ok(()),
            Self::TopK { permille } => require(
                (1..=TOP_K_PERMILLE_MAX).contains(&permille),
                "rounds.format.permille",
                permille,
                "use 1 to 500 permille of the parameters; above 500 the kind \"f32\" is shorter",
            ),
        }
    }
}
