//! Text as rows of bytes, the tokens of a language model over bytes, or of tokens by a tokenizer.

use std::path::Path;

use serde::Deserialize;

use super::file::read;
use super::table::MatrixValues;
use super::tokenizer::{TextTokenizer, TokenEncoder};
use super::{DataSource, LoadError, Table};

/// A line of a file of documents.
#[derive(Deserialize)]
struct Document {
    text: String,
}

/// Consecutive pieces of `length` bytes, without the rest at the end, and without labels. Of a file
/// that ends in `.jsonl` the texts of its lines, `{"text": "…"}`, with a line break between two.
pub(super) fn table(file: &Path, length: usize) -> Result<Table, LoadError> {
    let mut bytes = read(file)?;
    if has_documents(file) {
        let mut all = Vec::new();
        for text in documents(file, &bytes)? {
            if !all.is_empty() {
                all.push(b'\n');
            }
            all.extend_from_slice(text.as_bytes());
        }
        bytes = all;
    }
    let rows = bytes.len() / length;
    bytes.truncate(rows * length);
    Ok(Table::from_matrix(length, MatrixValues::Bytes(bytes), vec![0.0; rows]))
}

/// A text as rows of tokens.
#[derive(Debug)]
pub struct TokenizedText {
    /// Rows of consecutive tokens, without the rest at the end, and without labels.
    pub table: Table,
    /// Number of documents.
    pub documents: usize,
    /// Number of tokens, separators and the rest at the end included.
    pub tokens: usize,
}

/// The tokens of a file: one document, or of one that ends in `.jsonl` the `text` of each line.
///
/// # Errors
/// [`LoadError`] if the file is not UTF-8, if the tokenizer refuses it, or if it gives no row or too many.
pub fn tokenize(
    file: &Path,
    tokenizer: &TextTokenizer,
    encoder: TokenEncoder,
) -> Result<TokenizedText, LoadError> {
    let bytes = read(file)?;
    let documents = match has_documents(file) {
        true => documents(file, &bytes)?,
        false => vec![String::from_utf8(bytes).map_err(|error| LoadError::InvalidDocument {
            path: file.to_owned(),
            line: 1,
            why: format!("the file is not UTF-8: {error}"),
        })?],
    };
    let refused = |source| LoadError::Tokens { path: file.to_owned(), source };
    let tokens = tokenizer.tokens(&documents, encoder.separator).map_err(refused)?;
    let (length, all) = (encoder.length.max(1), tokens.len());
    let rows = all / length;
    if rows == 0 {
        let data_source = DataSource::Text { file: file.to_owned(), length: None };
        return Err(LoadError::NoRows { data_source });
    }
    if !Table::fits(rows, length) {
        return Err(LoadError::TableSize { path: file.to_owned(), rows, columns: length });
    }
    // A vocabulary is below 2²⁴, so every token is exact.
    let values = tokens.into_iter().take(rows * length).map(|token| token as f32).collect();
    let table = Table::from_matrix(length, MatrixValues::Singles(values), vec![0.0; rows]);
    Ok(TokenizedText { table, documents: documents.len(), tokens: all })
}

fn has_documents(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "jsonl")
}

fn documents(file: &Path, bytes: &[u8]) -> Result<Vec<String>, LoadError> {
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
        all.push(text);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{FeatureEncoder, RowEncoder, load, load_table, load_tokens};

    fn source(name: &str, content: &str, length: usize) -> (tempfile::TempDir, DataSource) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        (folder, DataSource::Text { file, length: Some(length) })
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
    fn a_tokenizer_makes_rows_of_tokens() {
        let words = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "|": 3},
                      "unk_token": "?"},
        });
        let tokenizer = TextTokenizer::from_bytes(words.to_string().as_bytes()).unwrap();
        let lines = "{\"text\":\"A b\"}\n{\"text\":\"b c\"}\n{\"text\":\"a\"}\n";
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.jsonl");
        std::fs::write(&file, lines).unwrap();
        let source = DataSource::Text { file: file.clone(), length: None };
        assert_eq!(source.to_string().parse(), Ok(source.clone()));
        let encoder = TokenEncoder { length: 3, separator: Some(3) };
        let read = tokenize(&file, &tokenizer, encoder).unwrap();
        assert_eq!((read.documents, read.tokens, read.table.rows()), (3, 8, 2));
        let table = load_tokens(&source, &tokenizer, encoder).unwrap();
        let features = FeatureEncoder::Tokens(encoder);
        let rows = RowEncoder { classes: 1, class_names: Vec::new(), features, target: None };
        let data = rows.encode(&table).unwrap();
        assert_eq!(data.features(), [0.0, 1.0, 3.0, 1.0, 2.0, 3.0]);
        let error = load_table(&source).unwrap_err().to_string();
        assert!(error.contains("becomes tokens by a tokenizer"), "{error}");
        let long = TokenEncoder { length: 9, separator: None };
        assert!(matches!(tokenize(&file, &tokenizer, long), Err(LoadError::NoRows { .. })));
        std::fs::write(folder.path().join("b.txt"), [0xff]).unwrap();
        let error = tokenize(&folder.path().join("b.txt"), &tokenizer, encoder).unwrap_err();
        assert!(error.to_string().contains("not UTF-8"), "{error}");
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
