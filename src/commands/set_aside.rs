//! Records that a later one of the same file replaces: an earlier one is set aside under its id, never overwritten.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The name under which the record `NAME.json` is set aside: `NAME-ID.json`.
pub(super) fn path_aside(record: &Path, id: impl Display) -> PathBuf {
    let stem = record.file_stem().unwrap_or_default().to_string_lossy();
    record.with_file_name(format!("{stem}-{id}.json"))
}

/// The records that were set aside from `NAME.json`, ascending by their names.
///
/// # Errors
/// Those of the folder.
pub(super) fn paths_aside(record: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let folder = match record.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    };
    let prefix = format!("{}-", record.file_stem().unwrap_or_default().to_string_lossy());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(&prefix) && name.ends_with(".json") {
            found.push(path);
        }
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_were_set_aside_are_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let record = folder.path().join("order.order.json");
        assert_eq!(paths_aside(&record).unwrap(), Vec::<PathBuf>::new());
        let aside = ["b2", "a1"].map(|id| path_aside(&record, id));
        let others = ["order.order.json", "order.after-a1.order-b2.json", "order.order-a1.new"];
        let others = others.map(|name| folder.path().join(name));
        for path in aside.iter().chain(&others) {
            std::fs::write(path, "").unwrap();
        }
        let found = paths_aside(&record).unwrap();
        assert_eq!(found, [folder.path().join("order.order-a1.json"), aside[0].clone()]);
    }
}
