//! Hugging Face's tokenizers (`tokenizer.json`), and text as rows of tokens.
//!
//! A tokenizer may come from a stranger: it is refused unless its parts are known and bounded. A text
//! is divided into pieces of bounded length, and a pattern stops after a bounded number of steps.

use serde_json::Value;
use thiserror::Error;
use tokenizers::Tokenizer;

use crate::parallel::{cores, parallel_map};

/// Largest size of a tokenizer, in bytes: 64 MiB.
pub const TOKENIZER_BYTES_MAX: usize = 64 << 20;
/// Most tokens of a vocabulary; larger numbers are not exact in `f32`.
pub const VOCABULARY_MAX: usize = 1 << 24;
/// Longest pattern of a tokenizer, in bytes.
pub const PATTERN_BYTES_MAX: usize = 4_096;
/// Most parts of a tokenizer before its model.
pub const TOKENIZER_PARTS_MAX: usize = 64;
/// Factor by which the normalizers of a tokenizer lengthen a text at most.
pub const NORMALIZER_GROWTH_MAX: usize = 256;
/// Longest piece of a text that is tokenized at a time, in bytes. A longer text is divided at its last
/// line break within them, or at a letter.
pub const PIECE_BYTES_MAX: usize = 64 << 10;
/// Pieces that are tokenized at a time.
const PIECES_PER_PART: usize = 256;

/// Normalizers, with the factor by which one lengthens a text at most.
const NORMALIZERS: [(&str, usize); 10] = [
    ("NFC", 3),
    ("NFD", 4),
    ("NFKC", 12),
    ("NFKD", 12),
    ("Lowercase", 2),
    ("Strip", 1),
    ("StripAccents", 1),
    ("BertNormalizer", 12),
    ("ByteLevel", 2),
    ("Prepend", 1),
];
const PRE_TOKENIZERS: [&str; 11] = [
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Split",
    "UnicodeScripts",
    "Whitespace",
    "WhitespaceSplit",
    "FixedLength",
];
const MODELS: [&str; 4] = ["BPE", "WordPiece", "WordLevel", "Unigram"];

/// The bytes are no tokenizer that a task can have.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("the tokenizer is not usable: {why}")]
pub struct TokenizerError {
    why: String,
}

impl TokenizerError {
    /// A stable code of the error.
    pub const fn code(&self) -> &'static str {
        "INVALID_TOKENIZER"
    }
}

fn refused(why: impl Into<String>) -> TokenizerError {
    TokenizerError { why: why.into() }
}

/// A checked tokenizer.
#[derive(Debug)]
pub struct TextTokenizer {
    inner: Tokenizer,
}

/// How the tokens of documents become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenEncoder {
    /// Tokens of a row.
    pub length: usize,
    /// The token behind each document.
    pub separator: Option<u32>,
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. Its truncation, padding and special tokens around a text are not used.
    ///
    /// # Errors
    /// [`TokenizerError`] for bytes that are no tokenizer, one with unknown or random parts, or one that
    /// exceeds a limit.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        if bytes.len() > TOKENIZER_BYTES_MAX {
            return Err(refused(format!(
                "it has {} bytes; at most {TOKENIZER_BYTES_MAX}",
                bytes.len()
            )));
        }
        let description: Value =
            serde_json::from_slice(bytes).map_err(|error| refused(error.to_string()))?;
        check(&description)?;
        drop(description);
        let mut inner = Tokenizer::from_bytes(bytes).map_err(|error| refused(error.to_string()))?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| refused(error.to_string()))?;
        let largest = inner.get_vocab(true).into_values().max().unwrap_or(0);
        if largest as usize >= VOCABULARY_MAX {
            return Err(refused(format!("it has a token {largest}; at most {VOCABULARY_MAX}")));
        }
        Ok(Self { inner })
    }

    /// The number of a token, by its text.
    pub fn token(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Number of tokens, added ones included.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The tokens of documents, one after another, each with the separator behind it.
    ///
    /// # Errors
    /// [`TokenizerError`] if the tokenizer refuses a text.
    pub fn tokens(
        &self,
        documents: &[String],
        separator: Option<u32>,
    ) -> Result<Vec<u32>, TokenizerError> {
        let mut pieces = Vec::new();
        for document in documents {
            pieces.extend(divide(document).map(|piece| (piece, None)));
            if let Some(last) = pieces.last_mut() {
                last.1 = separator;
            }
        }
        let mut tokens = Vec::new();
        for part in pieces.chunks(PIECES_PER_PART) {
            let encode = |(piece, separator): (&str, Option<u32>)| {
                let encoding = self.inner.encode_fast(piece, false);
                encoding.map(|found| (found.get_ids().to_vec(), separator))
            };
            for found in parallel_map(cores(), part.to_vec(), encode) {
                let (found, separator) = found.map_err(|error| refused(error.to_string()))?;
                tokens.extend(found);
                tokens.extend(separator);
            }
        }
        Ok(tokens)
    }
}

/// The pieces of a text; one empty piece of an empty text.
fn divide(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        if text.len() <= PIECE_BYTES_MAX {
            return rest.take();
        }
        let most = text.floor_char_boundary(PIECE_BYTES_MAX);
        let end = text[..most].rfind('\n').map_or(most, |line| line + 1);
        rest = Some(&text[end..]);
        Some(&text[..end])
    })
}

/// Checks the parts of a tokenizer before they are built.
fn check(description: &Value) -> Result<(), TokenizerError> {
    let model = &description["model"];
    let name = model["type"].as_str().unwrap_or_default();
    if !MODELS.contains(&name) {
        return Err(refused(format!("its model {name:?} is none of {}", MODELS.join(", "))));
    }
    if model["dropout"].as_f64().is_some_and(|share| share != 0.0) {
        return Err(refused("its model drops merges at random: set dropout to null"));
    }
    let mut growth = 1_usize;
    for part in parts(&description["normalizer"], "normalizers")? {
        growth = growth.saturating_mul(normalizer_growth(part)?);
    }
    if growth > NORMALIZER_GROWTH_MAX {
        return Err(refused(format!(
            "its normalizers may lengthen a text by a factor of {growth}; at most \
             {NORMALIZER_GROWTH_MAX}"
        )));
    }
    for part in parts(&description["pre_tokenizer"], "pretokenizers")? {
        let name = part["type"].as_str().unwrap_or_default();
        if !PRE_TOKENIZERS.contains(&name) {
            return Err(refused(format!("its pre-tokenizer {name:?} is unknown")));
        }
        check_pattern(part)?;
    }
    Ok(())
}

/// The parts of a normalizer or pre-tokenizer, with those of sequences in `key`, in order.
fn parts<'a>(root: &'a Value, key: &str) -> Result<Vec<&'a Value>, TokenizerError> {
    let (mut found, mut waiting) = (Vec::new(), vec![root]);
    let mut count = 0;
    while let Some(part) = waiting.pop() {
        count += 1;
        if count > TOKENIZER_PARTS_MAX {
            return Err(refused(format!("it has more than {TOKENIZER_PARTS_MAX} parts")));
        }
        match part["type"].as_str() {
            None if part.is_null() => {}
            Some("Sequence") => {
                let inner = part[key].as_array().map(Vec::as_slice).unwrap_or_default();
                waiting.extend(inner.iter().rev());
            }
            _ => found.push(part),
        }
    }
    Ok(found)
}

fn normalizer_growth(part: &Value) -> Result<usize, TokenizerError> {
    let name = part["type"].as_str().unwrap_or_default();
    if name == "Replace" {
        check_pattern(part)?;
        // A pattern that matches the empty text inserts its content before each letter.
        return Ok(1 + part["content"].as_str().map_or(0, str::len));
    }
    let known = NORMALIZERS.iter().find(|(known, _)| *known == name);
    known.map(|(_, growth)| *growth).ok_or_else(|| {
        refused(format!("its normalizer {name:?} is unknown, or its length has no bound"))
    })
}

fn check_pattern(part: &Value) -> Result<(), TokenizerError> {
    let texts = [&part["pattern"]["Regex"], &part["pattern"]["String"], &part["pattern"]];
    let length = texts.into_iter().find_map(Value::as_str).map_or(0, str::len);
    match length > PATTERN_BYTES_MAX {
        true => Err(refused(format!("a pattern has {length} bytes; at most {PATTERN_BYTES_MAX}"))),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A tokenizer of words, with other parts.
    fn words(parts: &Value) -> Result<TextTokenizer, TokenizerError> {
        let mut whole = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": null, "decoder": null,
            "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "?": 2, "|": 3}, "unk_token": "?"},
        });
        for (key, value) in parts.as_object().unwrap() {
            whole[key] = value.clone();
        }
        TextTokenizer::from_bytes(whole.to_string().as_bytes())
    }

    #[test]
    fn documents_are_joined_by_the_separator() {
        let tokenizer = words(&json!({})).unwrap();
        let documents = ["a b", "", "b c"].map(str::to_owned);
        assert_eq!(tokenizer.token("|"), Some(3));
        assert_eq!(tokenizer.tokens(&documents, Some(3)).unwrap(), [0, 1, 3, 3, 1, 2, 3]);
        assert_eq!(tokenizer.tokens(&documents, None).unwrap(), [0, 1, 1, 2]);
        assert_eq!(tokenizer.vocabulary(), 4);
    }

    #[test]
    fn truncation_and_padding_of_a_tokenizer_are_not_used() {
        let tokenizer = words(&json!({
            "truncation": {"max_length": 1, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
            "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
                        "pad_id": 0, "pad_type_id": 0, "pad_token": "a"},
        }));
        assert_eq!(tokenizer.unwrap().tokens(&["a b".to_owned()], None).unwrap(), [0, 1]);
    }

    #[test]
    fn a_long_text_is_divided_at_line_breaks_and_loses_nothing() {
        let line = "a b a\n";
        let text = line.repeat(PIECE_BYTES_MAX / 2);
        let pieces: Vec<&str> = divide(&text).collect();
        assert!(pieces.len() > 3 && pieces.iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(pieces.concat(), text);
        let wide = "é".repeat(PIECE_BYTES_MAX);
        assert_eq!(divide(&wide).collect::<String>(), wide);
        let count = words(&json!({})).unwrap().tokens(&[text], None).unwrap().len();
        assert_eq!(count, 3 * PIECE_BYTES_MAX / 2);
    }

    #[test]
    fn hostile_tokenizers_are_refused() {
        let split = |pattern: &str| {
            json!({"pre_tokenizer": {"type": "Split", "invert": false,
            "pattern": {"Regex": pattern}, "behavior": "Isolated"}})
        };
        let replace = |content: &str| {
            json!({"type": "Replace", "pattern": {"String": "a"},
            "content": content})
        };
        let twice = json!({"normalizer": {"type": "Sequence",
            "normalizers": [replace(&"a".repeat(20)), replace(&"a".repeat(20))]}});
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        let many = json!({"type": "Sequence", "normalizers": vec![strip; 70]});
        for (parts, message) in [
            (json!({"model": {"type": "Script"}}), "its model \"Script\" is none of"),
            (json!({"model": {"type": "BPE", "dropout": 0.1}}), "drops merges at random"),
            (json!({"normalizer": {"type": "Precompiled"}}), "its normalizer \"Precompiled\""),
            (json!({"pre_tokenizer": {"type": "Other"}}), "its pre-tokenizer \"Other\" is unknown"),
            (split(&"x".repeat(5_000)), "a pattern has 5000 bytes; at most 4096"),
            (twice, "by a factor of 441; at most 256"),
            (json!({"normalizer": many}), "more than 64 parts"),
            (split("(x"), "not usable"),
        ] {
            let error = words(&parts).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
            assert_eq!(error.code(), "INVALID_TOKENIZER");
        }
        let deep = "[".repeat(100_000);
        assert!(TextTokenizer::from_bytes(deep.as_bytes()).is_err());
        assert!(TextTokenizer::from_bytes(b"{}").is_err());
        assert!(TextTokenizer::from_bytes(b"").is_err());
    }

    #[test]
    fn a_pattern_that_backtracks_stops() {
        let parts = json!({"pre_tokenizer": {"type": "Split", "invert": false,
            "pattern": {"Regex": "(?=(a+)+b)\\1c"}, "behavior": "Isolated"}});
        let tokenizer = words(&parts).unwrap();
        let text = "a".repeat(2_000);
        let start = std::time::Instant::now();
        tokenizer.tokens(&[text], None).ok();
        assert!(start.elapsed().as_secs() < 60);
    }
}
