//! The orders of a file, stored next to it before any tokens are locked, so that an interrupted order resumes where
//! it stopped. A record is never overwritten: its escrow may be locked, also by another wallet.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_compute::{ComputeOrder, OrderRequest};
use florin_participant::write_atomically;
use florin_protocol::Digest;
use serde::Deserialize;

use crate::commands::set_aside::{path_aside, paths_aside};
use crate::failure::Failure;
use crate::task_file::order::OrderRest;

/// The file that stores the newest order of an order file, or of the segments that another order left.
fn path_of(file: &Path, rest: Option<&OrderRest>) -> PathBuf {
    match rest {
        None => file.with_extension("order.json"),
        Some(rest) => file.with_extension(format!("after-{}.order.json", rest.after.short())),
    }
}

/// A stored order. Its job is for people.
#[derive(Debug, Deserialize)]
struct OrderRecord {
    order: ComputeOrder,
}

/// A stored order; `None` without a file.
fn read_record(path: &Path) -> anyhow::Result<Option<ComputeOrder>> {
    let bytes = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        read => read.with_context(|| path.display().to_string())?,
    };
    let damaged = |error: serde_json::Error| {
        let message = format!(
            "{} is no record of an order of this version ({error}). Its order may have locked an escrow: `florin \
             market` lists it then. Move the file to another folder, and run the command again",
            path.display()
        );
        Failure::input("ORDER_RECORD_INVALID", message)
    };
    let OrderRecord { order } = serde_json::from_slice(&bytes).map_err(damaged)?;
    Ok(Some(order))
}

/// The stored orders of a file, of all renters, the newest first.
///
/// # Errors
/// `ORDER_RECORD_INVALID`, and those of the files.
pub(super) fn read_all(file: &Path, rest: Option<&OrderRest>) -> anyhow::Result<Vec<ComputeOrder>> {
    let newest = path_of(file, rest);
    let aside = paths_aside(&newest)?;
    let mut orders = Vec::new();
    for path in std::iter::once(newest).chain(aside) {
        orders.extend(read_record(&path)?);
    }
    Ok(orders)
}

/// Stores an order. The one that was stored before is set aside under its id.
///
/// # Errors
/// `ORDER_RECORD_INVALID`, and those of the files.
pub(super) fn store(
    file: &Path,
    rest: Option<&OrderRest>,
    request: &OrderRequest,
) -> anyhow::Result<()> {
    store_bytes(&path_of(file, rest), request.order.id(), &serde_json::to_vec_pretty(request)?)
}

fn store_bytes(path: &Path, id: Digest, bytes: &[u8]) -> anyhow::Result<()> {
    let before = read_record(path)?.map(|before| before.id());
    if before == Some(id) {
        return Ok(());
    }
    if let Some(before) = before {
        let aside = path_aside(path, before.short());
        std::fs::rename(path, &aside).with_context(|| aside.display().to_string())?;
    }
    write_atomically(path, bytes)?;
    let again = path_aside(path, id.short());
    match std::fs::remove_file(&again) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| again.display().to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_record_of_an_order_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("order.toml");
        let store = |nonce| {
            let order = ComputeOrder { nonce, ..ComputeOrder::example() };
            let bytes = serde_json::json!({ "order": order, "job": {} }).to_string();
            store_bytes(&path_of(&file, None), order.id(), bytes.as_bytes())
        };
        for nonce in [1, 2, 3, 3, 1] {
            store(nonce).unwrap();
        }
        let stored = read_all(&file, None).unwrap();
        let mut nonces: Vec<u64> = stored.iter().map(|order| order.nonce).collect();
        assert_eq!(nonces[0], 1, "the newest is first");
        nonces.sort_unstable();
        assert_eq!(nonces, [1, 2, 3]);
        std::fs::write(folder.path().join("order.order.json"), "{").unwrap();
        for error in [read_all(&file, None).unwrap_err(), store(4).unwrap_err()] {
            assert_eq!(crate::failure::classify(&error).0, "ORDER_RECORD_INVALID");
        }
    }
}
