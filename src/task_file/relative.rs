//! Names of files in a task file, relative to its folder.

use std::path::Path;

use florin_learning::DataSource;

/// Resolves the file names of a data source relative to a folder.
pub(crate) fn relative_to(folder: &Path, source: DataSource) -> DataSource {
    match source {
        DataSource::Digits => DataSource::Digits,
        DataSource::Idx { images, labels } => {
            DataSource::Idx { images: folder.join(images), labels: folder.join(labels) }
        }
        DataSource::Cifar10 { files } => {
            DataSource::Cifar10 { files: files.into_iter().map(|f| folder.join(f)).collect() }
        }
        DataSource::Csv { file, label } => DataSource::Csv { file: folder.join(file), label },
        DataSource::Parquet { file, label } => {
            DataSource::Parquet { file: folder.join(file), label }
        }
        DataSource::Npz { file, features, labels } => {
            DataSource::Npz { file: folder.join(file), features, labels }
        }
        DataSource::Safetensors { file, features, labels } => {
            DataSource::Safetensors { file: folder.join(file), features, labels }
        }
        DataSource::Npy { features, labels } => {
            DataSource::Npy { features: folder.join(features), labels: folder.join(labels) }
        }
        DataSource::Text { file, length } => DataSource::Text { file: folder.join(file), length },
        DataSource::Images { folder: images } => DataSource::Images { folder: folder.join(images) },
        DataSource::Florin { file } => DataSource::Florin { file: folder.join(file) },
    }
}
