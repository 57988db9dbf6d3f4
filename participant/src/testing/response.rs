//! Responses of the fake coordinator.

use florin_protocol::{ErrorCode, Rejection};
use serde::Serialize;

pub(super) type FakeResponse = Result<Vec<u8>, Rejection>;

pub(super) fn json(value: &impl Serialize) -> FakeResponse {
    Ok(serde_json::to_vec(value).unwrap())
}

pub(super) fn reject<T>(code: ErrorCode) -> Result<T, Rejection> {
    Err(Rejection::new(code, "rejected by the fake coordinator"))
}
