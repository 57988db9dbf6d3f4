//! Rows of a source in the form that a task requires.

use florin_learning::data::{EncodeError, load, load_table, unscaled_feature};
use florin_learning::{DataSource, Dataset};
use florin_protocol::TaskSpec;

use crate::failure::Failure;

/// Loads a source, and encodes its rows as the task declares. Rows of a `florin:` file have been
/// encoded before and are used as they are, and so is every source of a task without an encoding.
///
/// # Errors
/// `INVALID_DATA` if the source cannot be read, `DATA_MISMATCH` if it does not fit the encoding.
pub fn load_for_task(spec: &TaskSpec, source: &DataSource) -> anyhow::Result<Dataset> {
    let Some(encoder) = florin_work::row_encoder(&spec.data) else { return Ok(load(source)?) };
    if let DataSource::Florin { .. } = source {
        let data = load(source)?;
        if let Some(found) = unscaled_feature(&data) {
            let message = format!(
                "{source}: feature {} has mean {:.3} and standard deviation {:.3}: these rows were \
                 not encoded for the task. Use the original file, or `florin data split --task`",
                found.feature, found.mean, found.sd
            );
            return Err(Failure::input("DATA_MISMATCH", message).into());
        }
        return Ok(data);
    }
    let table = load_table(source)?;
    encoder.encode(&table).map_err(|error| {
        let code = match error {
            EncodeError::Image { .. } => "INVALID_DATA",
            _ => "DATA_MISMATCH",
        };
        Failure::input(code, format!("{source}: {error}")).into()
    })
}
