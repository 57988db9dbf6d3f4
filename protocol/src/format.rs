//! How the numbers of an update are written: a term of the task, as everybody must read the same delta.

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::task::{SpecError, require};

/// Most permille of a model's parameters that [`UpdateFormat::TopK`] keeps: with more, whole updates are shorter.
pub const TOP_K_PERMILLE_MAX: u16 = 500;

/// How the numbers of an update are written. What is valued, aggregated, held to the norm and audited is the decoded
/// delta; `docs/protocol.md` has the bytes.
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
pub enum UpdateFormat {
    /// Floats of 32 bits: as training made them.
    #[default]
    F32,
    /// The upper 16 bits of each, rounded to nearest.
    Bf16,
    /// Whole multiples, -127 to 127, of a scale that each tensor has, rounded by chance.
    Int8,
    /// The largest parameters only; participants keep the rest back for the next round.
    TopK {
        /// How many of a thousand parameters are kept: 1 to [`TOP_K_PERMILLE_MAX`], and at least one parameter.
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
                "use 1 to 500 thousandths of the parameters: beyond, the kind \"f32\" is shorter",
            ),
        }
    }
}
