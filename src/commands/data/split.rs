//! `florin data split`: splits rows into shards, optionally with a holdout and a test set.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context;
use florin_learning::data::{LoadError, load, load_table, save};
use florin_learning::{DataSource, Dataset, SplitPart, partition, split};
use florin_protocol::{Blob, blob_digest};
use serde_json::json;

use crate::cli::DataSplit;
use crate::commands::task::prepared_task;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show::{self, TextTable};
use crate::task_file::load_for_task;

/// File name of a split's holdout.
const HOLDOUT_FILE: &str = "holdout.florin";
/// File name of a split's test set.
const TEST_FILE: &str = "test.florin";
/// Start of the file name of a shard; its number follows.
const SHARD_PREFIX: &str = "shard-";

/// All rows: encoded as the task file declares, if one is given.
fn read(arguments: &DataSplit) -> anyhow::Result<Dataset> {
    let source = &arguments.source;
    let read = || match &arguments.task {
        None => load(source).map_err(|error| unencoded(source, error)),
        Some(file) => {
            let task = prepared_task(file)?;
            load_for_task(&task.spec, source, &|blob: Blob| Ok(task.blob(blob.digest)))
        }
    };
    Progress::during(format!("reading {source}"), read)
}

/// The failure to load rows as they are. A table that needs an encoding is no mistake in the file:
/// then the failure names the option.
fn unencoded(source: &DataSource, error: LoadError) -> anyhow::Error {
    if load_table(source).is_err() {
        return error.into();
    }
    let message = format!(
        "{error}; --task FILE encodes texts and missing values as a task file declares, such as one \
         that `florin task new --data {source}` writes"
    );
    Failure::input("INVALID_DATA", message).into()
}

/// A part of a data set and its file name.
struct DataPart {
    /// File name without the folder.
    file: String,
    /// The rows.
    data: Dataset,
}

/// The parameters of a split.
struct SplitPlan<'a> {
    /// Fractions of the rows for the holdout and the test set.
    fractions: (f64, f64),
    /// The shards' file names, without the extension.
    shards: &'a [String],
    /// The partition of the rows into shards.
    partition: &'a florin_learning::PartitionScheme,
    /// Minimum number of rows per shard.
    rows_min: usize,
    /// Seed of the split.
    seed: u64,
}

/// Draws the holdout and the test set, and partitions the other rows into shards.
fn split_rows(data: &Dataset, deal: &SplitPlan<'_>) -> anyhow::Result<Vec<DataPart>> {
    let (holdout, test) = deal.fractions;
    if holdout + test > 0.95 {
        let message = "holdout and test together must leave at least 5 % of the rows for shards";
        return Err(Failure::input("INVALID_SPLIT", message).into());
    }
    // Each part is a copy.
    data.check_fits_memory().map_err(|e| Failure::input("INVALID_DATA", e.to_string()))?;
    let bad = |error: String| Failure::input("INVALID_SPLIT", error);
    let parts = [SplitPart::Fraction(holdout), SplitPart::Fraction(test), SplitPart::Rest];
    let cut = split(data.rows(), deal.seed, &parts).map_err(|e| bad(e.to_string()))?;
    let train = data.subset(&cut[2])?;
    let shards = partition(&train, deal.shards.len(), deal.partition, deal.rows_min, deal.seed)
        .map_err(|e| bad(e.to_string()))?;
    let mut pieces = Vec::with_capacity(shards.len() + 2);
    for (name, rows) in deal.shards.iter().zip(&shards) {
        pieces.push(DataPart { file: format!("{name}.florin"), data: train.subset(rows)? });
    }
    for (file, rows) in [(HOLDOUT_FILE, &cut[0]), (TEST_FILE, &cut[1])] {
        if !rows.is_empty() {
            pieces.push(DataPart { file: file.to_owned(), data: data.subset(rows)? });
        }
    }
    Ok(pieces)
}

/// Refuses a folder that already has files of a split. Their rows may overlap with those of the new
/// split, and a holdout whose rows are also in a shard measures nothing.
///
/// # Errors
/// `FILE_EXISTS`, with the first file by name.
fn refuse_earlier_split(folder: &Path) -> anyhow::Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| folder.display().to_string())?,
    };
    let mut existing = Vec::new();
    for entry in entries {
        let name = entry.with_context(|| folder.display().to_string())?.file_name();
        existing.extend(name.into_string().ok().filter(|name| is_part_of_split(name)));
    }
    let Some(first) = existing.into_iter().min() else { return Ok(()) };
    let message = format!(
        "{} already exists, and nothing is overwritten: the rows of two splits overlap. Choose \
         another folder with --out, or remove the files of the earlier split",
        folder.join(first).display()
    );
    Err(Failure::input("FILE_EXISTS", message).into())
}

/// Whether a split writes a file with this name: a shard, the holdout or the test set.
fn is_part_of_split(name: &str) -> bool {
    let number = name.strip_prefix(SHARD_PREFIX).and_then(|rest| rest.strip_suffix(".florin"));
    let is_shard = number.is_some_and(|number| number.parse::<u32>().is_ok());
    is_shard || name == HOLDOUT_FILE || name == TEST_FILE
}

/// Writes each part to a file in a folder.
fn write(pieces: &[DataPart], folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    for piece in pieces {
        save(&piece.data, &folder.join(&piece.file))?;
    }
    Ok(())
}

pub(super) fn run(arguments: &DataSplit) -> anyhow::Result<Exit> {
    refuse_earlier_split(&arguments.out)?;
    let data = read(arguments)?;
    let names: Vec<String> =
        (0..arguments.shards).map(|at| format!("{SHARD_PREFIX}{at}")).collect();
    let pieces = split_rows(
        &data,
        &SplitPlan {
            fractions: (arguments.holdout, arguments.test),
            shards: &names,
            partition: &arguments.partition,
            rows_min: arguments.rows_min,
            seed: arguments.seed,
        },
    )?;
    let shown = arguments.out.display();
    Progress::during(format!("writing {shown}"), || write(&pieces, &arguments.out))?;
    let source = |piece: &DataPart| DataSource::Florin { file: arguments.out.join(&piece.file) };
    if arguments.json.json {
        let files: Vec<_> = pieces
            .iter()
            .map(|piece| {
                json!({
                    "source": source(piece).to_string(),
                    "rows": piece.data.rows(),
                    "digest": blob_digest(&florin_learning::data::canonical_bytes(&piece.data)),
                })
            })
            .collect();
        show::json(&files)?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&["data source", ">rows", "rows by label"]);
    for piece in &pieces {
        let counts: Vec<String> = piece.data.class_counts().iter().map(usize::to_string).collect();
        let rows = piece.data.rows();
        table.row([source(piece).into(), rows.into(), counts.join(" ").into()]);
    }
    table.print();
    Ok(Exit::Done)
}
