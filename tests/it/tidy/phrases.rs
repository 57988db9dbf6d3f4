//! Banned phrases in comments, literals and documentation. STYLE.md gives the reasons ("Prose").

use super::refuse;
use super::repository::{Repository, TextFile};
use super::source::RustSource;

/// Pronouns for roles, programs that speak, and idioms that no reader would search for.
const PHRASES: [&str; 25] = [
    "nobody",
    "somebody",
    "everybody",
    "anybody",
    "someone",
    "whoever",
    "whatever",
    "kept",
    "told",
    "tell",
    "tells",
    "telling",
    "says",
    "said",
    "hear",
    "hears",
    "heard",
    "beforehand",
    "by heart",
    "so many",
    "so much",
    "come to",
    "comes to",
    "came to",
    "coming to",
];

/// Subjects of a sentence that are not nouns. A question may begin with one.
const SUBJECTS: [&str; 3] = ["Who", "What", "Whose"];

/// A file that has banned phrases for a reason.
struct Exception {
    path: &'static str,
    /// The exact number of its lines that have one.
    lines: usize,
    reason: &'static str,
}

/// The list may only shrink.
const EXCEPTIONS: [Exception; 2] = [
    Exception { path: "CHANGELOG.md", lines: 1, reason: "its first line is older than the rule" },
    Exception { path: "STYLE.md", lines: 3, reason: "the rule on prose quotes examples" },
];

/// Limit on the lines of all exceptions together. It may only shrink, too.
const EXCEPTION_LINES_MAX: usize = 4;

/// The file that holds the list of phrases, and planted ones in its tests.
const THIS_FILE: &str = "tests/it/tidy/phrases.rs";

/// The changelog, and the first of its entries that are older than the rule.
const OLD_CHANGES: (&str, &str) = ("CHANGELOG.md", "* The market runs: ");

/// A word of a text, with the offsets of its bytes.
struct Word<'a> {
    text: &'a str,
    start: usize,
    end: usize,
}

/// The text to which the rule applies: the comments and literals of Rust, and the whole of other
/// files.
fn prose(file: &TextFile) -> String {
    if file.path.ends_with(".rs") {
        return RustSource::new(&file.path, &file.text).prose();
    }
    let (changelog, old) = OLD_CHANGES;
    let end = if file.path == changelog { file.text.find(old) } else { None };
    file.text[..end.unwrap_or(file.text.len())].to_owned()
}

/// The runs of letters of a text. A letter behind a backslash is an escape and ends a word.
fn words(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let (mut start, mut escaped) = (None, false);
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        let is_letter = c.is_alphabetic() && !escaped;
        escaped = c == '\\' && !escaped;
        match start {
            None if is_letter => start = Some(at),
            Some(first) if !is_letter => {
                words.push(Word { text: &text[first..at], start: first, end: at });
                start = None;
            }
            _ => {}
        }
    }
    words
}

/// Whether a text has only white space and marks of comments, lists, quotations and continued
/// lines.
fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || "/!*#>\\".contains(c))
}

fn begins_with(text: &str, words: &[Word<'_>], phrase: &str) -> bool {
    phrase.split(' ').enumerate().all(|(at, wanted)| {
        words.get(at).is_some_and(|word| {
            word.text.eq_ignore_ascii_case(wanted)
                && (at == 0 || is_blank(&text[words[at - 1].end..word.start]))
        })
    })
}

/// Whether the sentence that ends in `rest` is a question. A paragraph ends its last sentence.
fn is_question(rest: &str) -> bool {
    let lines = rest.lines().enumerate();
    let paragraph = lines.take_while(|(at, line)| *at == 0 || !is_blank(line));
    let paragraph: String = paragraph.flat_map(|(_, line)| [line, "\n"]).collect();
    let mut pieces = paragraph.split_inclusive(['.', '!', '?']).peekable();
    while let Some(piece) = pieces.next() {
        // A point within a word ends no sentence.
        if pieces.peek().is_none_or(|next| !next.starts_with(char::is_alphanumeric)) {
            return piece.ends_with('?');
        }
    }
    false
}

/// The banned phrases of a text, each with its line.
fn hits(text: &str) -> Vec<(usize, &'static str)> {
    let words = words(text);
    let mut hits = Vec::new();
    for (at, word) in words.iter().enumerate() {
        let phrase = PHRASES.iter().find(|phrase| begins_with(text, &words[at..], phrase));
        let subject = SUBJECTS.iter().find(|subject| **subject == word.text);
        let subject = subject.filter(|_| !is_question(&text[word.end..]));
        if let Some(found) = phrase.or(subject) {
            hits.push((1 + text[..word.start].matches('\n').count(), *found));
        }
    }
    hits
}

/// The violations of all files, less the exceptions.
fn banned(files: &[TextFile], exceptions: &[Exception]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path != THIS_FILE) {
        let hits = hits(&prose(file));
        let mut lines: Vec<usize> = hits.iter().map(|(line, _)| *line).collect();
        lines.dedup();
        let exception = exceptions.iter().find(|exception| exception.path == file.path);
        let allowed = exception.map_or(0, |exception| exception.lines);
        if lines.len() > allowed {
            let found = hits.iter().map(|(line, found)| format!("{}:{line}: {found}", file.path));
            violations.extend(found);
        } else if let Some(Exception { path, lines: rows, reason }) = exception
            && lines.len() < *rows
        {
            violations.push(format!("{path}: {} lines; tighten its row ({reason})", lines.len()));
        }
    }
    let is_read = |exception: &&Exception| files.iter().any(|file| file.path == exception.path);
    let gone = exceptions.iter().filter(|exception| !is_read(exception));
    violations.extend(gone.map(|exception| format!("{}: remove its row", exception.path)));
    violations
}

#[test]
fn prose_has_no_banned_phrases() {
    let lines: usize = EXCEPTIONS.iter().map(|exception| exception.lines).sum();
    assert!(lines <= EXCEPTION_LINES_MAX, "{lines} lines are exceptions");
    refuse("banned phrases", &banned(&Repository::read().files, &EXCEPTIONS));
}

#[test]
fn a_banned_phrase_is_detected() {
    for phrase in PHRASES {
        let (capital, rest) = phrase.split_at(1);
        let capital = capital.to_uppercase();
        let (two_lines, key) = (phrase.replace(' ', "\n/// "), phrase.replace(' ', "\\\n "));
        let table = [
            ("a.rs", format!("//! Doc.\n/// It {two_lines} it.\nfn a() {{}}"), 2),
            ("a.rs", format!("//! Doc.\nfn a() {{ \"\\n{key}\" }}"), 2),
            ("a.rs", format!("//! Doc.\nfn a() {{ \"round_not_{phrase}\" }}"), 2),
            ("a.md", format!("# A\n\n* {capital}{rest}"), 3),
            ("a.toml", format!("question = \"{phrase}?\""), 1),
            ("a.sol", format!("/// @notice {phrase}"), 1),
            (".ci/run", format!("# {phrase}"), 1),
        ];
        for (path, text, line) in table {
            let planted = TextFile { path: path.to_owned(), text };
            let expected = format!("{path}:{line}: {phrase}");
            assert_eq!(banned(&[planted], &[]), [expected]);
        }
    }
}

#[test]
fn only_questions_begin_with_an_interrogative_pronoun() {
    for subject in SUBJECTS {
        let table = [
            (format!("/// {subject} is paid."), 1),
            (format!("A. {subject} is paid\nby v1.2 of a?x"), 1),
            (format!("{subject} is paid\n\nWhy?"), 1),
            (format!("| {subject} | the pay |"), 1),
            (format!("{subject} is paid in\nv1.2?\nAll."), 0),
            (format!("question = \\\"{subject} is paid?\\\""), 0),
            (format!("the {} of it, {subject}x", subject.to_lowercase()), 0),
        ];
        for (text, count) in table {
            assert_eq!(hits(&text).len(), count, "{text}");
        }
    }
}

#[test]
fn code_parts_of_words_and_old_changes_are_not_prose() {
    let table = [
        ("a.rs", "let kept = 'a; // A so-called many-body \"stellar\" sum, so\n// as many."),
        ("CHANGELOG.md", "# Changelog\n\n* The market runs: nobody is told.\n* What it says."),
        ("a.md", "The hearing comes together. So, many retell it."),
    ];
    for (path, text) in table {
        let planted = TextFile { path: path.to_owned(), text: text.to_owned() };
        assert_eq!(banned(&[planted], &[]), Vec::<String>::new());
    }
    let new = "# Changelog\n\n* The node says.\n* The market runs: nobody is told.";
    let planted = TextFile { path: "CHANGELOG.md".to_owned(), text: new.to_owned() };
    assert_eq!(banned(&[planted], &[]), ["CHANGELOG.md:3: says"]);
}

#[test]
fn an_exception_only_shrinks() {
    let row = |lines| [Exception { path: "a.md", lines, reason: "b" }];
    let planted = |text: &str| [TextFile { path: "a.md".to_owned(), text: text.to_owned() }];
    let two = planted("It says, it said.\nIt was told.");
    assert!(banned(&two, &row(2)).is_empty());
    assert_eq!(banned(&two, &row(1)).len(), 3, "every phrase of a file with too many is listed");
    assert_eq!(banned(&two, &row(3)), ["a.md: 2 lines; tighten its row (b)"]);
    assert_eq!(banned(&[], &row(1)), ["a.md: remove its row"]);
}
