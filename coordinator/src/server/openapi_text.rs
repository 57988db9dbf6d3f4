//! The texts of the OpenAPI document: the comments of the Rust types, without their links, and with
//! the values of the constants that they name.

use florin_ledger::limits as ledger;
use florin_protocol::{SPEC_VERSION, STALENESS_ROUNDS_MAX, TOP_K_PERMILLE_MAX, limits as protocol};
use serde_json::Value;

/// The constants that descriptions may name.
fn constants() -> [(&'static str, u64); 18] {
    [
        ("ALLOW_LIST_MAX", protocol::ALLOW_LIST_MAX as u64),
        ("BASELINE_ROUNDS_MAX", protocol::BASELINE_ROUNDS_MAX as u64),
        ("CROP_PADDING_MAX", protocol::CROP_PADDING_MAX.into()),
        ("CROSS_CHECK_COHORT_MAX", protocol::CROSS_CHECK_COHORT_MAX as u64),
        ("DECLARED_ROWS_MAX", protocol::DECLARED_ROWS_MAX),
        ("GLOBAL_DELTAS_MAX", protocol::GLOBAL_DELTAS_MAX as u64),
        ("IMAGE_SIDE_MAX", protocol::IMAGE_SIDE_MAX.into()),
        ("NAME_BYTES_MAX", protocol::NAME_BYTES_MAX as u64),
        ("PROOF_LEN_MAX", protocol::PROOF_LEN_MAX as u64),
        ("SPEC_VERSION", SPEC_VERSION.into()),
        ("STALENESS_ROUNDS_MAX", STALENESS_ROUNDS_MAX.into()),
        ("TOKENIZER_BYTES_MAX", protocol::TOKENIZER_BYTES_MAX),
        ("TOKENS_MAX", protocol::TOKENS_MAX.into()),
        ("TOP_K_PERMILLE_MAX", TOP_K_PERMILLE_MAX.into()),
        ("WARMUP_STEPS_MAX", protocol::WARMUP_STEPS_MAX.into()),
        ("PENDING_MAX", ledger::PENDING_MAX as u64),
        ("RECENT_MAX", ledger::RECENT_MAX as u64),
        ("TASK_RESPONSE_BYTES_MAX", ledger::TASK_RESPONSE_BYTES_MAX as u64),
    ]
}

/// Rewrites every description in a schema.
pub(super) fn rewrite_descriptions(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::String(text) if key == "description" => *text = plain(text),
                    value => rewrite_descriptions(value),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(rewrite_descriptions),
        _ => {}
    }
}

/// The text without links: ``[`crate::limits::PENDING_MAX`]`` becomes `` `PENDING_MAX` (64)``, and
/// ``[`crate::Ledger::claim`]`` becomes `` `Ledger::claim` ``.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        plain.push_str(before);
        let Some((path, after)) = link.split_once("`]") else {
            plain.push_str("[`");
            rest = link;
            continue;
        };
        plain.push_str(&shown(path));
        // A link with a target of its own: `[name](target)`.
        rest = match after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            Some((_, after)) => after,
            None => after,
        };
    }
    plain + rest
}

/// A path of Rust without its modules, in code quotes, and the value of a constant.
fn shown(path: &str) -> String {
    let is_module = |part: &&str| !part.starts_with(|first: char| first.is_ascii_uppercase());
    let mut parts: Vec<&str> = path.split("::").collect();
    while parts.len() > 1 && parts.first().is_some_and(is_module) {
        parts.remove(0);
    }
    let name = parts.join("::");
    let value = constants().into_iter().find(|(known, _)| *known == name);
    value.map_or_else(|| format!("`{name}`"), |(name, value)| format!("`{name}` ({value})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_names_and_constants_have_values() {
        for (text, expected) in [
            ("[`crate::Ledger::claim`]", "`Ledger::claim`"),
            ("at most [`crate::limits::PENDING_MAX`].", "at most `PENDING_MAX` (64)."),
            ("1 to [`DECLARED_ROWS_MAX`]", "1 to `DECLARED_ROWS_MAX` (1000000000)"),
            ("[`A`](crate::limits::A) and [`B::c`]", "`A` and `B::c`"),
            ("no link, [0, 1] and `code`", "no link, [0, 1] and `code`"),
            ("open [`end", "open [`end"),
        ] {
            assert_eq!(plain(text), expected);
        }
    }

    #[test]
    fn the_document_has_no_links_and_no_constant_without_a_value() {
        let document = crate::openapi().to_string();
        assert!(!document.contains("crate::"), "a path of Rust");
        assert!(!document.contains("[`"), "a link of Rust");
        for (at, _) in document.match_indices("_MAX`") {
            let text: String = document[..at].chars().rev().take(60).collect();
            let text: String = text.chars().rev().collect();
            assert!(document[at..].starts_with("_MAX` ("), "{text}_MAX has no value");
        }
    }
}
