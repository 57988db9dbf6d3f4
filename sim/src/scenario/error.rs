//! Why a scenario is invalid.

use super::TraceError;
use super::built_in::{names, suggestion};

/// Why a scenario is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// The text is not TOML, or has an unknown key or a value of the wrong type.
    #[error("{0} [SCENARIO_MALFORMED]")]
    Malformed(String),
    /// A value is invalid: the key, the value and the permitted values.
    #[error("{key} = {value}: {right} [SCENARIO_VALUE]")]
    Value {
        /// The key, as in `--set`.
        key: String,
        /// The value.
        value: String,
        /// The permitted values.
        right: String,
    },
    /// A `--set` change is malformed or does not apply to the scenario.
    #[error("{0} [SCENARIO_CHANGE]")]
    Change(String),
    /// The file is not a valid trace.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// There is no built-in scenario with this name.
    #[error(
        "there is no scenario {name}{}: the built-in ones are {} (`florin sim list`); the path of \
         a scenario file ends in .toml [SCENARIO_UNKNOWN]",
        suggestion(name),
        names()
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
}

impl ScenarioError {
    /// The stable error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "SCENARIO_MALFORMED",
            Self::Value { .. } => "SCENARIO_VALUE",
            Self::Change(_) => "SCENARIO_CHANGE",
            Self::Trace(_) => "SCENARIO_TRACE",
            Self::Unknown { .. } => "SCENARIO_UNKNOWN",
        }
    }
}
