//! Text as rows of bytes, the tokens of a language model over bytes, or of tokens by a tokenizer.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::file::{open, read};
use super::parts::{TableParts, rows_of_part};
use super::table::{MatrixValues, Positions};
use super::tokenizer::{TextTokenizer, TokenEncoder};
use super::{DataSource, FILE_BYTES_MAX, LoadError, Table};

/// Bytes of documents that become tokens at a time, or one document.
const PART_BYTES: usize = 1 << 20;

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

/// A file of documents whose tokens are made when they are needed: it may exceed the memory.
pub(super) struct DocumentParts {
    lines: BufReader<Box<dyn Read>>,
    path: PathBuf,
    tokenizer: TextTokenizer,
    encoder: TokenEncoder,
    /// Number of lines so far.
    line: usize,
    /// Tokens that are in no row yet.
    tokens: VecDeque<u32>,
    next: usize,
}

impl DocumentParts {
    pub(super) fn open(
        path: &Path,
        tokenizer: TextTokenizer,
        encoder: TokenEncoder,
    ) -> Result<Self, LoadError> {
        let (lines, tokens) = (BufReader::new(open(path)?.reader), VecDeque::new());
        Ok(Self { lines, path: path.to_owned(), tokenizer, encoder, line: 0, tokens, next: 0 })
    }

    /// Reads some documents and makes their tokens; `false` at the end of the file.
    fn read_documents(&mut self) -> Result<bool, LoadError> {
        let unreadable = |source| LoadError::Unreadable { path: self.path.clone(), source };
        let (mut texts, mut bytes, mut is_end) = (Vec::new(), 0, false);
        while bytes < PART_BYTES {
            let mut line = Vec::new();
            let limited = self.lines.by_ref().take(FILE_BYTES_MAX + 1);
            let read = { limited }.read_until(b'\n', &mut line).map_err(unreadable)?;
            if read as u64 > FILE_BYTES_MAX {
                return Err(LoadError::FileTooLarge { path: self.path.clone() });
            }
            if read == 0 {
                is_end = true;
                break;
            }
            self.line += 1;
            bytes += read;
            texts.extend(document(&self.path, self.line, &line)?);
        }
        let found = self.tokenizer.tokens(&texts, self.encoder.separator);
        let refused = |source| LoadError::Tokens { path: self.path.clone(), source };
        self.tokens.extend(found.map_err(refused)?);
        Ok(!is_end)
    }
}

impl TableParts for DocumentParts {
    fn next_part(&mut self, rows: usize) -> Result<Option<Table>, LoadError> {
        let length = self.encoder.length.max(1);
        let wanted = rows_of_part(rows, length);
        while self.tokens.len() < wanted * length && self.read_documents()? {}
        let rows = wanted.min(self.tokens.len() / length);
        if rows == 0 {
            return Ok(None);
        }
        let values = self.tokens.drain(..rows * length).map(|token| token as f32).collect();
        let table = Table::from_matrix(length, MatrixValues::Singles(values), vec![0.0; rows]);
        let positions = Positions::Rows(self.next);
        self.next += rows;
        Ok(Some(Table { positions, ..table }))
    }
}

pub(super) fn has_documents(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "jsonl")
}

fn documents(file: &Path, bytes: &[u8]) -> Result<Vec<String>, LoadError> {
    let mut all = Vec::new();
    for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        all.extend(document(file, number + 1, line)?);
    }
    Ok(all)
}

/// The text of a line, which has this number; `None` of an empty line.
fn document(file: &Path, line: usize, bytes: &[u8]) -> Result<Option<String>, LoadError> {
    if bytes.trim_ascii().is_empty() {
        return Ok(None);
    }
    let read: Result<Document, _> = serde_json::from_slice(bytes);
    read.map(|document| Some(document.text)).map_err(|error| LoadError::InvalidDocument {
        path: file.to_owned(),
        line,
        why: error.to_string(),
    })
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
