//! Loading a data set or a table from its source, and saving a data set.

use std::path::Path;

use super::error::LoadError;
use super::row_encoder::{FeatureEncoder, NumberScale, RowEncoder};
use super::source::DataSource;
use super::table::MatrixValues;
use super::tokenizer::{TextTokenizer, TokenEncoder};
use super::{
    CanonicalWriter, Cells, Dataset, RowShape, Table, canonical_file, cifar, csv, digits, idx,
    images, npy, npz, safetensors, text,
};

/// Loads a data set of at least one row whose features and labels are used as they are; pixels are
/// scaled to 0..=1. Only `florin:` files, which contain shards, may be empty.
pub fn load(source: &DataSource) -> Result<Dataset, LoadError> {
    let data = match source {
        DataSource::Digits => digits::load()?,
        DataSource::Idx { images, labels } => idx::load(images, labels)?,
        DataSource::Cifar10 { files } => cifar::load(files)?,
        DataSource::Csv { file, label } => csv::load(file, label)?,
        DataSource::Parquet { .. }
        | DataSource::Npy { .. }
        | DataSource::Npz { .. }
        | DataSource::Safetensors { .. }
        | DataSource::Images { .. }
        | DataSource::Text { .. } => {
            return plain(&load_table(source)?).map_err(|error| LoadError::NotPlain {
                data_source: source.clone(),
                source: error.into(),
            });
        }
        DataSource::Florin { file } => {
            return canonical_file::load(file);
        }
    };
    if data.rows() == 0 {
        return Err(LoadError::NoRows { data_source: source.clone() });
    }
    Ok(data)
}

/// Loads a table of at least one row as its source has it: pixels are bytes, and a folder of images
/// is the names of its files. The rows of a
/// `florin:` file have been encoded before; their features are the cells.
pub fn load_table(source: &DataSource) -> Result<Table, LoadError> {
    let table = match source {
        DataSource::Digits => digits::table()?,
        DataSource::Idx { images, labels } => idx::table(images, labels)?,
        DataSource::Cifar10 { files } => cifar::table(files)?,
        DataSource::Csv { file, label } => csv::table(file, label)?,
        #[cfg(feature = "parquet")]
        DataSource::Parquet { file, label } => super::parquet::table(file, label)?,
        #[cfg(not(feature = "parquet"))]
        DataSource::Parquet { file, .. } => {
            return Err(LoadError::NoParquet { path: file.clone() });
        }
        DataSource::Npy { features, labels } => npy::table(features, labels)?,
        DataSource::Npz { file, features, labels } => {
            npz::table(file, features.as_deref(), labels)?
        }
        DataSource::Safetensors { file, features, labels } => {
            safetensors::table(file, features.as_deref(), labels)?
        }
        DataSource::Text { file, length: Some(length) } => text::table(file, *length)?,
        DataSource::Text { file, length: None } => {
            return Err(LoadError::NeedsTokenizer { path: file.clone() });
        }
        DataSource::Images { folder } => images::table(folder)?,
        DataSource::Florin { file } => {
            let data = load(source)?;
            data.check_fits_memory().map_err(|error| LoadError::NotCanonical {
                path: file.clone(),
                source: error.into(),
            })?;
            let labels = data.labels().iter().map(|label| f64::from(*label)).collect();
            let values = MatrixValues::Singles(data.features().to_vec());
            let table = Table::from_matrix(data.width(), values, labels);
            Table { classes_min: data.classes(), ..table }
        }
    };
    if table.rows() == 0 {
        return Err(LoadError::NoRows { data_source: source.clone() });
    }
    Ok(table)
}

/// As [`load_table`], for a task of tokens: a text without a length becomes rows of tokens. Rows of
/// another source are tokens already.
pub fn load_tokens(
    source: &DataSource,
    tokenizer: &TextTokenizer,
    encoder: TokenEncoder,
) -> Result<Table, LoadError> {
    let DataSource::Text { file, length: None } = source else { return load_table(source) };
    Ok(text::tokenize(file, tokenizer, encoder)?.table)
}

/// A table of numbers and whole labels, used as they are.
fn plain(table: &Table) -> Result<Dataset, super::EncodeError> {
    let highest = match table.labels() {
        Cells::Numbers(numbers) => numbers.iter().copied().fold(0.0, f64::max),
        Cells::Texts { .. } => 0.0,
    };
    // The encoder refuses labels that are not whole or too high.
    let classes = (highest as usize).saturating_add(1).min(super::CLASSES_MAX);
    let features = FeatureEncoder::Uniform { width: table.columns(), scale: NumberScale::IDENTITY };
    RowEncoder { classes, class_names: Vec::new(), features, target: None }.encode(table)
}

/// Writes the canonical bytes of a data set to a file, which `florin:FILE` loads. The file is
/// synced to disk before the function returns. An existing file is replaced as a whole: a process
/// that has mapped it still has the old rows.
pub fn save(data: &Dataset, path: &Path) -> Result<(), LoadError> {
    let shape = RowShape { width: data.width(), classes: data.classes() };
    let mut writer = CanonicalWriter::create(path, shape)?;
    writer.append(data)?;
    writer.replace()
}
