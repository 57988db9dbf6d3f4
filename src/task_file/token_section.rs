//! `data.tokens`: the tokenizer of a task of texts; and the section that a new task has.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use florin_learning::data::{TextTokenizer, TokenEncoder};
use florin_learning::graph::{Dimension, Graph, InputRole};
use florin_protocol::limits::TOKENIZER_BYTES_MAX;
use florin_protocol::{Blob, Digest, FeatureEncoding, RowEncoding, TokenEncoding, blob_digest};
use serde::Deserialize;

use super::TaskFileError;
use super::new_task::quoted;

const KEY: &str = "data.tokens";

/// `data.tokens`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenSection {
    length: u32,
    tokenizer: PathBuf,
    end_of_text: Option<String>,
}

/// A tokenizer with the bytes that its task refers to.
#[derive(Debug)]
pub(super) struct TokenizerFile {
    pub(super) encoding: TokenEncoding,
    pub(super) tokenizer: TextTokenizer,
    bytes: Vec<u8>,
}

impl TokenSection {
    /// Reads the tokenizer. `folder` is that of the task file; `None` if no file may be read.
    pub(super) fn read(&self, folder: Option<&Path>) -> Result<TokenizerFile, TaskFileError> {
        let wrong = |right: String| {
            TaskFileError::key(KEY, format!("{:?}", self.tokenizer.display().to_string()), right)
        };
        let folder = folder.ok_or_else(|| wrong("no tokenizer is read here".to_owned()))?;
        TokenizerFile::read(&folder.join(&self.tokenizer), self.length, self.end_of_text.as_deref())
            .map_err(wrong)
    }
}

impl TokenizerFile {
    /// Reads a tokenizer for rows of `length` tokens. The error is a sentence.
    pub(super) fn read(
        path: &Path,
        length: u32,
        end_of_text: Option<&str>,
    ) -> Result<Self, String> {
        let bytes = read_tokenizer(path)?;
        let tokenizer = TextTokenizer::from_bytes(&bytes)
            .map_err(|error| format!("{}: {error} [{}]", path.display(), error.code()))?;
        let missing = |text: &str| format!("{} has no token {text:?}", path.display());
        let token = |text| tokenizer.token(text).ok_or_else(|| missing(text));
        let separator = end_of_text.map(token).transpose()?;
        let blob = Blob { digest: blob_digest(&bytes), bytes: bytes.len() as u64 };
        let encoding = TokenEncoding { length, tokenizer: blob, separator };
        Ok(Self { encoding, tokenizer, bytes })
    }

    /// The encoding of a task's rows.
    pub(super) fn row_encoding(&self) -> RowEncoding {
        let features = FeatureEncoding::Tokens(self.encoding);
        RowEncoding { class_names: Vec::new(), features, target: None }
    }

    pub(super) fn encoder(&self) -> TokenEncoder {
        let TokenEncoding { length, separator, .. } = self.encoding;
        TokenEncoder { length: length as usize, separator }
    }

    pub(super) fn into_blob(self) -> (Digest, Vec<u8>) {
        (self.encoding.tokenizer.digest, self.bytes)
    }
}

/// The bytes of a tokenizer, within the limit. The error is a sentence.
pub(crate) fn read_tokenizer(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: std::io::Error| format!("cannot read {}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(TOKENIZER_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() as u64 > TOKENIZER_BYTES_MAX {
        true => Err(format!("{} has more than {TOKENIZER_BYTES_MAX} bytes", path.display())),
        false => Ok(bytes),
    }
}

/// The tokens of a new task.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewTokens<'a> {
    /// A `tokenizer.json`.
    pub(crate) tokenizer: &'a Path,
    /// Tokens of a row; `None` for those of the graph's input.
    pub(crate) length: Option<u32>,
    /// The token behind each document.
    pub(crate) end_of_text: Option<&'a str>,
}

impl NewTokens<'_> {
    /// The keys of the encoding, as lines of `[data]`. `here` is the folder of the tokenizer's path.
    pub(super) fn keys(&self, here: &Path, length: u32) -> String {
        let path = quoted(&here.join(self.tokenizer).display().to_string());
        let end = self.end_of_text.map(|text| format!(", end_of_text = {}", quoted(text)));
        format!("tokens = {{ length = {length}, tokenizer = {path}{} }}", end.unwrap_or_default())
    }
}

/// The tokens of a row that a graph takes, `[rows, tokens]`. The error is a sentence.
pub(super) fn length_of_graph(graph: &Graph, file: &Path) -> Result<u32, String> {
    let mut inputs = graph.inputs.iter().filter(|input| input.role == InputRole::User);
    let shape = inputs.next().map(|input| input.tensor.shape.as_slice());
    let found = match (shape, inputs.next()) {
        (Some([_, Dimension::Fixed(length)]), None) => u32::try_from(*length).ok(),
        _ => None,
    };
    found.ok_or_else(|| {
        format!(
            "{} does not take tokens of fixed number, [rows, tokens]: state the tokens of a row by \
             --length 128",
            file.display()
        )
    })
}
