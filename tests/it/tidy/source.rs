//! Rust source, lexed to separate code from comments, strings and tests.

/// A Rust file.
pub(crate) struct RustSource {
    pub(crate) path: String,
    pub(crate) text: String,
    /// The text with comments, strings and `#[cfg(test)]` items blanked out; line numbers are
    /// unchanged.
    pub(crate) code: String,
    /// Whether the whole file is a test.
    pub(crate) is_test: bool,
}

/// A function with a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// First line, starting at 1.
    pub(crate) line: usize,
    /// Number of lines from `fn` to the closing brace.
    pub(crate) lines: usize,
}

impl RustSource {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        let name = path.rsplit('/').next().unwrap_or(path);
        Self {
            path: path.to_owned(),
            text: text.to_owned(),
            code: without_tests(&code_only(text)),
            is_test: path.contains("tests/") || name == "tests.rs" || name.ends_with("_tests.rs"),
        }
    }

    /// Lines of code that contain `word` as a whole word.
    pub(crate) fn lines_with_word(&self, word: &str) -> Vec<String> {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        self.matching(word, |line| line.split(|c| !is_part(c)).any(|found| found == word))
    }

    /// Lines of code that contain `path`.
    pub(crate) fn lines_with(&self, path: &str) -> Vec<String> {
        self.matching(path, |line| line.contains(path))
    }

    fn matching(&self, what: &str, matches: impl Fn(&str) -> bool) -> Vec<String> {
        let lines = self.code.lines().enumerate().filter(|(_, line)| matches(line));
        lines.map(|(line, _)| format!("{}:{}: {what}", self.path, line + 1)).collect()
    }

    /// The text with its code blanked out: comments, strings and characters.
    pub(crate) fn prose(&self) -> String {
        let code = code_only(&self.text);
        let mut bytes = self.text.as_bytes().to_vec();
        for (byte, _) in bytes.iter_mut().zip(code.bytes()).filter(|(_, code)| *code > b' ') {
            *byte = b' ';
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The names of all structs, enums, traits and unions, and of the type aliases that are not
    /// indented: an indented alias is an associated type or local. Tests are included.
    pub(crate) fn type_names(&self) -> Vec<String> {
        let defined = |line: &str| {
            let item = line.trim_start();
            let item = match item.strip_prefix("pub(") {
                Some(rest) => rest.split_once(") ")?.1,
                None => item.strip_prefix("pub ").unwrap_or(item),
            };
            let (keyword, name) = item.split_once(' ')?;
            let is_type = ["struct", "enum", "trait", "union"].contains(&keyword)
                || keyword == "type" && !line.starts_with(' ');
            let name = Some(name).filter(|_| is_type)?;
            let end = name.find(|c: char| !c.is_alphanumeric()).unwrap_or(name.len());
            (end > 0).then(|| name[..end].to_owned())
        };
        code_only(&self.text).lines().filter_map(defined).collect()
    }

    /// Every function with a body, tests included.
    pub(crate) fn functions(&self) -> Vec<Function> {
        let code = code_only(&self.text);
        let bytes = code.as_bytes();
        let mut functions = Vec::new();
        for (start, _) in code.match_indices("fn ") {
            let name: String = code[start + 3..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if name.is_empty() || start > 0 && is_word(bytes[start - 1]) {
                continue;
            }
            let Some(open) = body_of(bytes, start) else { continue };
            let close = closing_brace(bytes, open);
            let line = 1 + line_breaks(&bytes[..start]);
            functions.push(Function { name, line, lines: 1 + line_breaks(&bytes[start..close]) });
        }
        functions
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn line_breaks(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte == b'\n').count()
}

/// The position of the brace that opens the body of the item at `start`; `None` if a semicolon ends
/// it first.
fn body_of(bytes: &[u8], start: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (place, byte) in bytes.iter().enumerate().skip(start) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(place),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

/// The position of the brace that closes the one at `open`, or the end of the text.
fn closing_brace(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0_i32;
    for (place, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return place;
        }
    }
    bytes.len()
}

/// Blanks out every item under `#[cfg(test)]`.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut bytes = code.as_bytes().to_vec();
    for (start, _) in code.match_indices(MARK) {
        let item = start + MARK.len();
        let end = match body_of(&bytes, item) {
            Some(open) => closing_brace(&bytes, open),
            None => {
                bytes[item..].iter().position(|b| *b == b';').map_or(bytes.len(), |at| item + at)
            }
        };
        blank(&mut bytes[start..end]);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// Blanks out comments, strings and characters, so that braces and words in them do not count.
pub(crate) fn code_only(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut place = 0;
    while place < bytes.len() {
        let end = match &bytes[place..] {
            [b'/', b'/', ..] => find(&bytes, place, b"\n"),
            [b'/', b'*', ..] => end_of_comment(&bytes, place),
            [b'"', ..] => end_of_string(&bytes, place),
            [b'r', b'"' | b'#', ..]
                if place == 0 || !is_word(bytes[place - 1]) || is_byte_string(&bytes, place) =>
            {
                end_of_raw_string(&bytes, place)
            }
            [b'\'', ..] => end_of_character(&bytes, place),
            _ => place,
        };
        if end > place {
            blank(&mut bytes[place..end]);
            place = end;
        } else {
            place += 1;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether the `r` at `place` belongs to a `br"…"`.
fn is_byte_string(bytes: &[u8], place: usize) -> bool {
    bytes[place - 1] == b'b' && (place == 1 || !is_word(bytes[place - 2]))
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let found = bytes[from..].windows(what.len()).position(|window| window == what);
    found.map_or(bytes.len(), |at| from + at)
}

fn end_of_comment(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut place = start;
    while place < bytes.len() {
        match &bytes[place..] {
            [b'/', b'*', ..] => {
                depth += 1;
                place += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                place += 2;
                if depth == 0 {
                    return place;
                }
            }
            _ => place += 1,
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut place = start + 1;
    while place < bytes.len() {
        match bytes[place] {
            b'\\' => place += 2,
            b'"' => return place + 1,
            _ => place += 1,
        }
    }
    bytes.len()
}

/// The end of `r"…"` or `r#"…"#`; `start` for a raw identifier such as `r#type`.
fn end_of_raw_string(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(start + 1 + hashes) != Some(&b'"') {
        return start;
    }
    let mut closing = vec![b'"'];
    closing.extend(std::iter::repeat_n(b'#', hashes));
    (find(bytes, start + 2 + hashes, &closing) + closing.len()).min(bytes.len())
}

/// The end of `'a'`, `'\n'` or `'→'`; `start` for a lifetime.
fn end_of_character(bytes: &[u8], start: usize) -> usize {
    const CHARACTER_BYTES_MAX: usize = 4;
    if bytes.get(start + 1) == Some(&b'\\') {
        return (find(bytes, start + 3, b"'") + 1).min(bytes.len());
    }
    let after = bytes.iter().skip(start + 2).take(CHARACTER_BYTES_MAX);
    let ascii = bytes.get(start + 1).is_some_and(u8::is_ascii);
    let close = after.enumerate().find(|(_, byte)| **byte == b'\'').map(|(at, _)| start + 2 + at);
    match close {
        Some(close) if !ascii || close == start + 2 => close + 1,
        _ => start,
    }
}

#[test]
fn code_is_separated_from_comments_strings_and_characters() {
    let table = [
        ("a // b", "a"),
        ("a /* b /* c */ d */ e", "a e"),
        ("a \"b \\\" c\" d", "a d"),
        ("a r#\"b \" c\"# d", "a d"),
        ("a br\"b\" d", "a b d"),
        ("r#type + 1", "r#type + 1"),
        ("fn f<'a>(x: &'a str) { '{' }", "fn f<'a>(x: &'a str) { }"),
        ("a '\\'' b '→' c", "a b c"),
        ("a #[cfg(test)] mod t { x } b", "a } b"),
        ("a #[cfg(test)] use x; b", "a ; b"),
    ];
    for (text, wanted) in table {
        let source = RustSource::new("a.rs", text);
        let words: Vec<&str> = source.code.split_whitespace().collect();
        assert_eq!(words.join(" "), wanted, "{text}");
    }
}

#[test]
fn prose_is_separated_from_code() {
    let text = "let text = \"a\"; // b\nlet x = 'c';\n/* d\n */ e";
    let source = RustSource::new("a.rs", text);
    assert_eq!(source.prose(), "           \"a\"  // b\n        'c' \n/* d\n */  ");
}

#[test]
fn type_names_are_found_without_associated_types() {
    let text = "pub(crate) struct A<T>(T);\nenum B { X }\npub(in a::b) trait C {\n    type No;\n}\n\
                pub type D = u8;\nmod m {\n    pub struct E;\n}\nimpl A {}\n// struct No\n\
                #[cfg(test)]\nmod tests {\n    struct F;\n}\nstruct $name;\n";
    assert_eq!(RustSource::new("a.rs", text).type_names(), ["A", "B", "C", "D", "E", "F"]);
}

#[test]
fn functions_are_found_with_their_lines() {
    let text = "trait T { fn none(&self); }\nfn one() {}\npub fn two<F: Fn(u8)>(f: F)\nwhere\n    F: Copy,\n{\n    f(1);\n}\n";
    let functions = RustSource::new("a.rs", text).functions();
    let found: Vec<(&str, usize, usize)> =
        functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
    assert_eq!(found, [("one", 2, 1), ("two", 3, 6)]);
}
