//! The messages of the TOML parser without the names of Rust types.

/// Types of the program, and what a file has in their place.
const WORDS: [(&str, &str); 9] = [
    ("u8", "a whole number from 0 to 255"),
    ("u16", "a whole number from 0 to 65535"),
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number from 0 on"),
    ("usize", "a whole number from 0 on"),
    ("i64", "a whole number"),
    ("f64", "a number"),
    ("a map", "a table"),
    ("string or map", "a string or a table"),
];

/// A message in which `expected u32` reads `expected a whole number from 0 to 4294967295`, and the name
/// of a struct or an enum reads as a table.
pub(crate) fn in_words(message: &str) -> String {
    let lines: Vec<String> = message.split('\n').map(line_in_words).collect();
    lines.join("\n")
}

fn line_in_words(line: &str) -> String {
    // A line of the file, which the parser shows behind its number.
    let of_file = line
        .split_once('|')
        .is_some_and(|(number, _)| number.trim().bytes().all(|byte| byte.is_ascii_digit()));
    if of_file {
        return line.to_owned();
    }
    let Some((before, expected)) = line.rsplit_once("expected ") else { return line.to_owned() };
    let word = WORDS.iter().find(|(name, _)| *name == expected).map(|(_, word)| *word);
    let is_table = ["struct ", "internally tagged enum "].iter().any(|of| expected.starts_with(of));
    match (word, is_table) {
        (Some(word), _) => format!("{before}expected {word}"),
        (None, true) => format!("{before}expected a table"),
        (None, false) => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_the_program_are_named_in_words() {
        for (message, expected) in [
            (
                "invalid value: integer `-1`, expected u32",
                "invalid value: integer `-1`, expected a whole number from 0 to 4294967295",
            ),
            (
                "invalid type: string \"a\", expected struct Section",
                "invalid type: string \"a\", expected a table",
            ),
            ("expected internally tagged enum ModeSection", "expected a table"),
            (
                "at line 1\ninvalid type: map, expected usize\n",
                "at line 1\ninvalid type: map, expected a whole number from 0 on\n",
            ),
            (
                "unknown field `a`, expected one of `b`, `c`",
                "unknown field `a`, expected one of `b`, `c`",
            ),
            ("expected `.`, `=`", "expected `.`, `=`"),
            ("12 | x = -1 # expected u32", "12 | x = -1 # expected u32"),
        ] {
            assert_eq!(in_words(message), expected);
        }
    }
}
