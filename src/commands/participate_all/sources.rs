//! The rows of a policy: checked before anything else, and encoded for a task.

use std::path::{Path, PathBuf};

use anyhow::Context;
use florin_learning::data::{load, load_table};
use florin_learning::{DataSource, Dataset};
use florin_participant::task_blob;
use florin_protocol::TaskSpec;

use super::file::PolicySource;
use crate::failure::Failure;
use crate::market::MarketConnection;
use crate::task_file::{load_for_task, select_rows};

/// Checks that all files exist, and that the rows that the policy selects do.
///
/// # Errors
/// `FILE_NOT_FOUND` and the other codes of reading a file; `INVALID_POLICY` for rows that the file does
/// not have.
pub(super) fn check(policy: &Path, sources: &[PolicySource]) -> anyhow::Result<()> {
    for PolicySource { source, rows } in sources {
        for file in files(source) {
            let named = || format!("{}: the source {source}", policy.display());
            std::fs::metadata(file).with_context(named)?;
        }
        let Some(range) = rows else { continue };
        // A pipe can be read once.
        if !files(source).iter().all(|file| file.is_file() || file.is_dir()) {
            continue;
        }
        let named = || format!("{}: the source {source}", policy.display());
        let Some(count) = row_count(source).with_context(named)? else { continue };
        if range.end > count {
            let (from, to) = (range.start, range.end);
            let message = format!(
                "{}: rows = \"{from}..{to}\": {source} has {count} rows: write 0..{count} or a range \
                 within it",
                policy.display()
            );
            return Err(Failure::input("INVALID_POLICY", message).into());
        }
    }
    Ok(())
}

/// The files and folders of a source.
fn files(source: &DataSource) -> Vec<&PathBuf> {
    match source {
        DataSource::Digits => Vec::new(),
        DataSource::Idx { images, labels } => vec![images, labels],
        DataSource::Cifar10 { files } => files.iter().collect(),
        DataSource::Npy { features, labels } => vec![features, labels],
        DataSource::Csv { file, .. }
        | DataSource::Parquet { file, .. }
        | DataSource::Npz { file, .. }
        | DataSource::Safetensors { file, .. }
        | DataSource::Text { file, .. }
        | DataSource::Florin { file } => vec![file],
        DataSource::Images { folder } => vec![folder],
    }
}

/// The rows of a source; `None` for a text, whose rows follow from a task's tokenizer.
fn row_count(source: &DataSource) -> anyhow::Result<Option<usize>> {
    Ok(match source {
        DataSource::Text { .. } => None,
        DataSource::Florin { .. } => Some(load(source)?.rows()),
        source => Some(load_table(source)?.rows()),
    })
}

/// The rows of a rule, encoded as the task declares.
pub(super) fn load_rows(
    source: &PolicySource,
    spec: &TaskSpec,
    folder: &Path,
    market: &MarketConnection,
) -> anyhow::Result<Dataset> {
    let blob = |blob| Ok(task_blob(folder, market, blob)?);
    let data = load_for_task(spec, &source.source, &blob)?;
    match &source.rows {
        None => Ok(data),
        Some(range) => select_rows(&data, range.clone())
            .map_err(|right| Failure::input("INVALID_DATA", format!("rows: {right}")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Exit, classify};

    fn checked(source: &str, rows: Option<std::ops::Range<usize>>) -> anyhow::Result<()> {
        let sources = [PolicySource { source: source.parse().unwrap(), rows }];
        check(Path::new("policy.toml"), &sources)
    }

    #[test]
    fn a_file_that_does_not_exist_is_refused() {
        let error = checked("csv:/gone/rows.csv#label", None).unwrap_err();
        assert_eq!(classify(&error), ("FILE_NOT_FOUND".to_owned(), Exit::Input), "{error:#}");
        assert!(error.to_string().contains("policy.toml: the source csv:"), "{error}");
        checked("digits", None).unwrap();
    }

    #[test]
    fn rows_that_the_source_does_not_have_are_refused() {
        checked("digits", Some(0..1_797)).unwrap();
        let error = checked("digits", Some(0..99_999)).unwrap_err();
        assert_eq!(classify(&error), ("INVALID_POLICY".to_owned(), Exit::Input), "{error:#}");
        let text = error.to_string();
        assert!(text.contains("rows = \"0..99999\"") && text.contains("1797 rows"), "{text}");
    }
}
