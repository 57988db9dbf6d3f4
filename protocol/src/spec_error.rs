//! The error of an invalid task setting.

/// An invalid setting: its key, its value, and what is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {expected}")]
pub struct SpecError {
    /// The key as written in the task file.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The valid values.
    pub expected: String,
}

pub(crate) fn spec_error(
    key: &'static str,
    value: impl std::fmt::Display,
    right: impl Into<String>,
) -> SpecError {
    SpecError { key, value: value.to_string(), expected: right.into() }
}

pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl std::fmt::Display,
    right: &str,
) -> Result<(), SpecError> {
    if holds { Ok(()) } else { Err(spec_error(key, value, right)) }
}
