//! Rows of a source in the form that a task requires.

use florin_learning::data::{
    EncodeError, FeatureEncoder, TextTokenizer, TokenEncoder, load, load_table, load_tokens,
    table_parts, unscaled_feature,
};
use florin_learning::{DataSource, Dataset, RowEncoder};
use florin_protocol::{Blob, TaskSpec};

use super::schema_mismatch;
use crate::failure::Failure;

/// Features that are encoded at a time, at most: 64 MiB.
const PART_FEATURES_MAX: usize = 1 << 24;
/// Rows that are encoded at a time, at most.
const PART_ROWS_MAX: usize = 1 << 16;

/// Reads a blob of a task, such as its tokenizer.
pub type BlobReader<'a> = &'a dyn Fn(Blob) -> anyhow::Result<Vec<u8>>;

/// Loads a source, and encodes its rows as the task declares: text by the task's tokenizer. Rows of a `florin:` file have been
/// encoded before and are used as they are, and so is every source of a task without an encoding.
///
/// # Errors
/// `INVALID_DATA` if the source cannot be read, `INVALID_TOKENIZER` if the tokenizer is not usable, `DATA_MISMATCH` if it does not fit the encoding.
pub fn load_for_task(
    spec: &TaskSpec,
    source: &DataSource,
    blob: BlobReader<'_>,
) -> anyhow::Result<Dataset> {
    let Some(encoder) = florin_work::row_encoder(&spec.data) else { return Ok(load(source)?) };
    if let DataSource::Florin { .. } = source {
        let data = load(source)?;
        let are_tokens = matches!(encoder.features, FeatureEncoder::Tokens(_));
        if let Some(found) = unscaled_feature(&data).filter(|_| !are_tokens) {
            let message = format!(
                "{source}: feature {} has mean {:.3} and standard deviation {:.3}: these rows were \
                 not encoded for the task. Use the original file, or `florin data encode --task`",
                found.feature, found.mean, found.sd
            );
            return Err(Failure::input("DATA_MISMATCH", message).into());
        }
        return Ok(data);
    }
    let table = match tokens_of_text(&EncodingTask { spec, blob }, &encoder, source)? {
        Some((tokenizer, tokens)) => load_tokens(source, &tokenizer, tokens)?,
        None => load_table(source)?,
    };
    encoder.encode(&table).map_err(|error| misfit(source, &error))
}

/// A task whose encoding is applied, and its blobs.
pub struct EncodingTask<'a> {
    /// The task.
    pub spec: &'a TaskSpec,
    /// Reads its blobs.
    pub blob: BlobReader<'a>,
}

/// As [`load_for_task`], but calls `look` with the rows part after part: they may exceed the memory if
/// the source can be read in parts.
///
/// # Errors
/// As [`load_for_task`], and those of `look`.
pub(crate) fn encode_for_task(
    task: &EncodingTask<'_>,
    source: &DataSource,
    mut look: impl FnMut(&Dataset) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut look = |rows: &Dataset| match schema_mismatch(rows, task.spec) {
        None => look(rows),
        Some(misfit) => {
            let message = format!("{source} does not match the task: {misfit}");
            Err(Failure::input("DATA_MISMATCH", message).into())
        }
    };
    let encoder = florin_work::row_encoder(&task.spec.data);
    let Some(encoder) = encoder.filter(|_| !matches!(source, DataSource::Florin { .. })) else {
        let data = load_for_task(task.spec, source, task.blob)?;
        let rows = rows_of_part(data.width());
        for from in (0..data.rows()).step_by(rows) {
            look(&data.slice(from..data.rows().min(from + rows))?)?;
        }
        return Ok(());
    };
    let mut parts = table_parts(source, tokens_of_text(task, &encoder, source)?)?;
    let (rows, mut first) = (rows_of_part(encoder.width()), 0);
    while let Some(part) = parts.next_part(rows)? {
        let encoded = encoder.encode(&part);
        look(&encoded.map_err(|error| misfit(source, &error.in_part_from(first)))?)?;
        first += part.rows();
    }
    Ok(())
}

/// Rows of a part with this many features per row.
fn rows_of_part(width: usize) -> usize {
    (PART_FEATURES_MAX / width.max(1)).clamp(1, PART_ROWS_MAX)
}

/// The task's tokenizer, if a text becomes tokens by it.
fn tokens_of_text(
    task: &EncodingTask<'_>,
    encoder: &RowEncoder,
    source: &DataSource,
) -> anyhow::Result<Option<(TextTokenizer, TokenEncoder)>> {
    let (FeatureEncoder::Tokens(tokens), Some(tokenizer), DataSource::Text { length: None, .. }) =
        (&encoder.features, task.spec.tokenizer(), source)
    else {
        return Ok(None);
    };
    let tokenizer = TextTokenizer::from_bytes(&(task.blob)(tokenizer)?)
        .map_err(|error| Failure::input(error.code(), error.to_string()))?;
    Ok(Some((tokenizer, *tokens)))
}

/// The failure of a source that does not fit the encoding.
fn misfit(source: &DataSource, error: &EncodeError) -> anyhow::Error {
    let code = match error {
        EncodeError::Image { .. } => "INVALID_DATA",
        _ => "DATA_MISMATCH",
    };
    Failure::input(code, format!("{source}: {error}")).into()
}
