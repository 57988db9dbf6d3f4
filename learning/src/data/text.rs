//! Text as rows of bytes: the tokens of a language model over bytes.

use std::path::Path;

use serde::Deserialize;

use super::file::read;
use super::table::MatrixValues;
use super::{LoadError, Table};

/// A line of a file of documents.
#[derive(Deserialize)]
struct Document {
    text: String,
}

/// Consecutive pieces of `length` bytes, without the rest at the end, and without labels. Of a file
/// that ends in `.jsonl` the texts of its lines, `{"text": "…"}`, with a line break between two.
pub(super) fn table(file: &Path, length: usize) -> Result<Table, LoadError> {
    let mut bytes = read(file)?;
    if file.extension().is_some_and(|end| end == "jsonl") {
        bytes = documents(file, &bytes)?;
    }
    let rows = bytes.len() / length;
    bytes.truncate(rows * length);
    Ok(Table::from_matrix(length, MatrixValues::Bytes(bytes), vec![0.0; rows]))
}

fn documents(file: &Path, bytes: &[u8]) -> Result<Vec<u8>, LoadError> {
    let mut all = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let read: Result<Document, _> = serde_json::from_slice(line);
        let Document { text } = read.map_err(|error| LoadError::InvalidDocument {
            path: file.to_owned(),
            line: number + 1,
            why: error.to_string(),
        })?;
        if !all.is_empty() {
            all.push(b'\n');
        }
        all.extend_from_slice(text.as_bytes());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DataSource;
    use crate::data::load;

    fn source(name: &str, content: &str, length: usize) -> (tempfile::TempDir, DataSource) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        (folder, DataSource::Text { file, length })
    }

    #[test]
    fn text_is_cut_into_rows_of_bytes() {
        let (_folder, source) = source("a.txt", "abcdefgé", 4);
        let data = load(&source).unwrap();
        // The last letter has two bytes, of which the second is left over.
        assert_eq!((data.rows(), data.width(), data.classes()), (2, 4, 1));
        assert_eq!(data.row(1), [101.0, 102.0, 103.0, 195.0]);
        assert_eq!(source.to_string().parse(), Ok(source));
    }

    #[test]
    fn documents_are_joined_by_line_breaks() {
        let lines = "{\"text\":\"ab\"}\n\n{\"text\":\"c\",\"id\":7}\n";
        let (_folder, source) = source("a.jsonl", lines, 2);
        let data = load(&source).unwrap();
        assert_eq!(data.features(), [97.0, 98.0, 10.0, 99.0]);
    }

    #[test]
    fn damaged_documents_and_short_texts_are_refused() {
        let (_folder, damaged) = source("a.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"b\"}\n", 1);
        let error = load(&damaged).unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("text"), "{error}");
        let (_folder, short) = source("b.txt", "abc", 4);
        assert!(matches!(load(&short), Err(LoadError::NoRows { .. })));
    }
}
