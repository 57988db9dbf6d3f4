//! Loading a data set from its source, and saving it.

use std::io::Write;
use std::path::Path;

use super::error::LoadError;
use super::file::read;
use super::source::DataSource;
use super::{Dataset, canonical_bytes, cifar, csv, digits, from_canonical_bytes, idx};

/// Loads a data set of at least one row; only `florin:` files, which contain shards, may be empty.
pub fn load(source: &DataSource) -> Result<Dataset, LoadError> {
    let data = match source {
        DataSource::Digits => digits::load()?,
        DataSource::Idx { images, labels } => idx::load(images, labels)?,
        DataSource::Cifar10 { files } => cifar::load(files)?,
        DataSource::Csv { file, label } => csv::load(file, label)?,
        DataSource::Florin { file } => {
            return from_canonical_bytes(&read(file)?)
                .map_err(|source| LoadError::NotCanonical { path: file.clone(), source });
        }
    };
    if data.rows() == 0 {
        return Err(LoadError::NoRows { data_source: source.clone() });
    }
    Ok(data)
}

/// Writes the canonical bytes of a data set to a file, which `florin:FILE` loads. The file is
/// synced to disk before the function returns; it is not replaced atomically.
pub fn save(data: &Dataset, path: &Path) -> Result<(), LoadError> {
    let write = || {
        let mut file = std::fs::File::create(path)?;
        file.write_all(&canonical_bytes(data))?;
        file.sync_all()
    };
    write().map_err(|source| LoadError::Unwritable { path: path.to_owned(), source })
}
