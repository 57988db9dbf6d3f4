//! Rows of a source in the form that a task requires.

use florin_learning::data::{
    EncodeError, FeatureEncoder, TextTokenizer, load, load_table, load_tokens, unscaled_feature,
};
use florin_learning::{DataSource, Dataset};
use florin_protocol::{Blob, TaskSpec};

use crate::failure::Failure;

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
                 not encoded for the task. Use the original file, or `florin data split --task`",
                found.feature, found.mean, found.sd
            );
            return Err(Failure::input("DATA_MISMATCH", message).into());
        }
        return Ok(data);
    }
    let table = match (&encoder.features, spec.tokenizer(), source) {
        (
            FeatureEncoder::Tokens(tokens),
            Some(tokenizer),
            DataSource::Text { length: None, .. },
        ) => {
            let tokenizer = TextTokenizer::from_bytes(&blob(tokenizer)?)
                .map_err(|error| Failure::input(error.code(), error.to_string()))?;
            load_tokens(source, &tokenizer, *tokens)?
        }
        _ => load_table(source)?,
    };
    encoder.encode(&table).map_err(|error| {
        let code = match error {
            EncodeError::Image { .. } => "INVALID_DATA",
            _ => "DATA_MISMATCH",
        };
        Failure::input(code, format!("{source}: {error}")).into()
    })
}
