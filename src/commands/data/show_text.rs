//! `florin data show text:FILE --tokenizer T`: documents, tokens and rows of a text.

use std::path::Path;

use florin_learning::data::{TextTokenizer, TokenEncoder, TokenizedText, tokenize};
use serde_json::json;

use crate::cli::DataShow;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show;
use crate::task_file::read_tokenizer;

/// Prints the text in `file`, by the tokenizer of the arguments.
pub(super) fn run(arguments: &DataShow, file: &Path, tokenizer: &Path) -> anyhow::Result<Exit> {
    let invalid = |why: String| Failure::input("INVALID_TOKENIZER", why);
    let bytes = read_tokenizer(tokenizer).map_err(invalid)?;
    let tokenizer = TextTokenizer::from_bytes(&bytes)
        .map_err(|error| invalid(format!("{}: {error}", tokenizer.display())))?;
    let encoder = TokenEncoder { length: arguments.length, separator: None };
    let read = || tokenize(file, &tokenizer, encoder);
    let TokenizedText { table, documents, tokens } =
        Progress::during(format!("tokenizing {}", arguments.source), read)?;
    if arguments.json.json {
        show::json(&json!({
            "source": arguments.source.to_string(),
            "vocabulary": tokenizer.vocabulary(),
            "documents": documents,
            "tokens": tokens,
            "length": arguments.length,
            "rows": table.rows(),
        }))?;
        return Ok(Exit::Done);
    }
    let count = |number: usize| show::thousands(&number.to_string());
    show::facts(&[
        ("source", arguments.source.to_string()),
        ("vocabulary", count(tokenizer.vocabulary())),
        ("documents", count(documents)),
        ("tokens", count(tokens)),
        ("rows", format!("{} of {} tokens", count(table.rows()), arguments.length)),
    ]);
    Ok(Exit::Done)
}
