//! The order of a file, stored next to it before any tokens are locked, so that an interrupted order
//! resumes where it stopped.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_compute::{ComputeOrder, OrderRequest};
use florin_participant::write_atomically;

use crate::task_file::order::{ClassAndStep, OrderDraft, OrderParties, OrderRest};

/// The file that stores the order of an order file, or of the segments that another order left.
fn path_of(file: &Path, rest: Option<&OrderRest>) -> PathBuf {
    match rest {
        None => file.with_extension("order.json"),
        Some(rest) => file.with_extension(format!("after-{}.order.json", rest.after.short())),
    }
}

/// The stored order, if the file is the one that it was made from. The longest step and the class may
/// have been measured then.
///
/// # Errors
/// Those of the file.
pub(super) fn resume(
    file: &Path,
    draft: &OrderDraft,
    parties: &OrderParties,
    rest: Option<&OrderRest>,
) -> anyhow::Result<Option<ComputeOrder>> {
    let path = path_of(file, rest);
    let stored: OrderRequest = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let (class, step_us_max) = draft.stated();
    let machine = ClassAndStep {
        class: class.unwrap_or(stored.order.class),
        step_us_max: step_us_max.unwrap_or(stored.order.step_us_max),
    };
    let order = draft.order(file, parties, machine, rest)?;
    Ok((order == stored.order).then_some(order))
}

/// Stores the order.
///
/// # Errors
/// Those of the file.
pub(super) fn store(
    file: &Path,
    rest: Option<&OrderRest>,
    request: &OrderRequest,
) -> anyhow::Result<()> {
    Ok(write_atomically(&path_of(file, rest), &serde_json::to_vec_pretty(request)?)?)
}
