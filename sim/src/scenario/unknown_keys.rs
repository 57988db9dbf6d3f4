//! Finds unknown keys. Serde rejects most of them itself, but beside a unit variant, such as
//! `kind = "honest"`, it silently drops any key.

use toml::{Table, Value};

/// The first key that is in the written table but not in the parsed one, as a dotted key.
pub(crate) fn unknown_key(written: &Table, understood: &Table) -> Option<String> {
    written.iter().find_map(|(key, value)| match understood.get(key) {
        // Empty lists are omitted on output, so a missing one is not unknown.
        None if value.as_array().is_some_and(Vec::is_empty) => None,
        None => Some(key.clone()),
        Some(other) => unknown_key_in(value, other).map(|below| format!("{key}{below}")),
    })
}

fn unknown_key_in(written: &Value, understood: &Value) -> Option<String> {
    match (written, understood) {
        (Value::Table(written), Value::Table(understood)) => {
            unknown_key(written, understood).map(|below| format!(".{below}"))
        }
        (Value::Array(written), Value::Array(understood)) => {
            let mut pairs = written.iter().zip(understood).enumerate();
            pairs
                .find_map(|(at, (w, u))| unknown_key_in(w, u).map(|below| format!("[{at}]{below}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_keys_are_found_at_any_depth() {
        let table = |text: &str| text.parse::<Table>().unwrap();
        let understood = table("a = 1\nb = { c = 2 }\nd = [{ e = 1 }, { e = 2, f = 3 }]");
        for (written, found) in [
            ("a = 1\nb = { c = 2 }", None),
            ("a = 1\nx = []", None),
            ("a = 1\nx = [1]", Some("x")),
            ("b = { c = 2, x = 3 }", Some("b.x")),
            ("d = [{ e = 1 }, { x = 2 }]", Some("d[1].x")),
        ] {
            assert_eq!(unknown_key(&table(written), &understood).as_deref(), found, "{written}");
        }
    }
}
