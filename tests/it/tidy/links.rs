//! Links of the documentation: files, headings, and the symbols that docs/walk.md names.

use std::path::{Component, Path, PathBuf};

use super::refuse;
use super::repository::{Repository, TextFile};
use super::source::code_only;

/// Keywords that define a symbol, in Rust and in Solidity.
const DEFINITIONS: [&str; 15] = [
    "fn",
    "struct",
    "enum",
    "trait",
    "type",
    "const",
    "static",
    "mod",
    "contract",
    "interface",
    "library",
    "function",
    "event",
    "error",
    "modifier",
];

/// History is not rewritten when a heading changes.
const CHANGELOG: &str = "CHANGELOG.md";

/// A link of a document. Its text is a symbol if it is code.
#[derive(Debug, PartialEq, Eq)]
struct Link<'a> {
    line: usize,
    text: &'a str,
    /// The path relative to the document; empty for the document itself.
    path: &'a str,
    heading: Option<&'a str>,
}

/// The links of a document to files of this repository, without those in blocks of code.
fn links(text: &str) -> Vec<Link<'_>> {
    let mut links = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        in_code ^= line.starts_with("```");
        for (at, _) in line.match_indices("](").filter(|_| !in_code) {
            let target = line[at + 2..].split(')').next().unwrap_or_default();
            let text = line[..at].rsplit('[').next().unwrap_or_default();
            let (path, heading) = match target.split_once('#') {
                Some((path, heading)) => (path, Some(heading)),
                None => (target, None),
            };
            if !target.contains("://") {
                links.push(Link { line: number + 1, text, path, heading });
            }
        }
    }
    links
}

/// The path of a link, relative to the root.
fn resolve(document: &str, path: &str) -> String {
    if path.is_empty() {
        return document.to_owned();
    }
    let mut resolved = PathBuf::from(document);
    resolved.pop();
    for part in Path::new(path).components() {
        match part {
            Component::ParentDir => drop(resolved.pop()),
            part => resolved.push(part),
        }
    }
    resolved.to_string_lossy().replace('\\', "/")
}

/// The anchor of a heading: lower case, hyphens for spaces, no punctuation.
fn anchor(heading: &str) -> String {
    let heading = heading.trim().to_lowercase().replace(' ', "-");
    heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

fn has_heading(text: &str, wanted: &str) -> bool {
    let headings = text.lines().filter_map(|line| line.split_once("# "));
    let headings = headings.filter(|(marks, _)| marks.chars().all(|c| c == '#'));
    headings.into_iter().any(|(_, heading)| anchor(heading) == wanted)
}

/// The last part of a symbol in backticks; `None` for a path or a command.
fn symbol(text: &str) -> Option<&str> {
    let symbol = text.strip_prefix('`')?.strip_suffix('`')?;
    let is_symbol = symbol.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | ':'));
    is_symbol.then(|| symbol.rsplit(':').next().unwrap_or(symbol))
}

/// Whether a source file defines `symbol`, outside comments and literals.
fn defines(source: &str, symbol: &str) -> bool {
    let code = code_only(source);
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty());
    let mut previous = "";
    words.into_iter().any(|word| {
        let defined = word == symbol && DEFINITIONS.contains(&previous);
        previous = word;
        defined
    })
}

/// Why a link is wrong.
fn defect(document: &TextFile, link: &Link<'_>, files: &[TextFile], root: &Path) -> Option<String> {
    let path = resolve(&document.path, link.path);
    let file = files.iter().find(|file| file.path == path);
    if file.is_none() && !root.join(&path).exists() {
        return Some(format!("there is no {path}"));
    }
    if let Some(heading) = link.heading
        && !file.is_some_and(|file| has_heading(&file.text, heading))
    {
        return Some(format!("{path} has no heading #{heading}"));
    }
    let is_source = path.ends_with(".rs") || path.ends_with(".sol");
    let symbol = symbol(link.text).filter(|_| is_source)?;
    let defined = file.is_some_and(|file| defines(&file.text, symbol));
    (!defined).then(|| format!("{path} does not define `{symbol}`"))
}

fn wrong_links(files: &[TextFile], root: &Path) -> Vec<String> {
    let mut violations = Vec::new();
    let documents = files.iter().filter(|file| file.path.ends_with(".md"));
    for document in documents.filter(|file| file.path != CHANGELOG) {
        for link in links(&document.text) {
            if let Some(defect) = defect(document, &link, files, root) {
                violations.push(format!("{}:{}: {defect}", document.path, link.line));
            }
        }
    }
    violations
}

#[test]
fn documents_link_to_files_headings_and_symbols_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    refuse("links", &wrong_links(&Repository::read().files, root));
}

/// The numbered steps of a document that link to no symbol.
fn steps_without_symbols(document: &TextFile) -> (usize, Vec<String>) {
    let links = links(&document.text);
    let names_symbol = |link: &&Link<'_>| symbol(link.text).is_some() && !link.path.is_empty();
    let named: Vec<usize> = links.iter().filter(names_symbol).map(|link| link.line).collect();
    let is_step = |line: &str| line.starts_with(|c: char| c.is_ascii_digit());
    let lines = document.text.lines().enumerate();
    let starts: Vec<usize> =
        lines.filter(|(_, line)| is_step(line)).map(|(at, _)| at + 1).collect();
    let ends = starts.iter().skip(1).copied().chain([usize::MAX]);
    let steps = starts.iter().zip(ends);
    let silent = steps.filter(|(start, end)| !named.iter().any(|at| (**start..*end).contains(at)));
    let silent = silent.map(|(start, _)| format!("{}:{start}", document.path));
    (starts.len(), silent.collect())
}

#[test]
fn every_step_of_the_walk_links_to_a_symbol() {
    const STEPS_MIN: usize = 20;
    let repository = Repository::read();
    let (steps, silent) = steps_without_symbols(repository.file("docs/walk.md"));
    assert!(steps >= STEPS_MIN, "the walk has {steps} steps");
    refuse("steps without a symbol", &silent);
}

#[test]
fn the_line_that_the_walk_quotes_is_in_the_source() {
    let repository = Repository::read();
    let walk = &repository.file("docs/walk.md").text;
    let (_, line) = walk.split_once("**The line** is `").unwrap();
    let (line, _) = line.split_once('`').unwrap();
    let pay = &repository.file("protocol/src/pay.rs").text;
    assert!(pay.lines().any(|found| found.trim() == line), "protocol/src/pay.rs has no `{line}`");
}

#[test]
fn a_step_without_a_symbol_is_detected() {
    let text = "# A\n\n1. [`a`](a.rs)\n2. [b](b.rs),\n   [`c`](c.rs)\n3. [`d/e.rs`](d/e.rs)\n";
    let walk = TextFile { path: "walk.md".to_owned(), text: text.to_owned() };
    assert_eq!(steps_without_symbols(&walk), (3, vec!["walk.md:6".to_owned()]));
}

#[test]
fn a_wrong_link_is_detected() {
    let file = |path: &str, text: &str| TextFile { path: path.to_owned(), text: text.to_owned() };
    let source = "//! fn gone.\npub fn pay() {}\npub struct Offer;\n";
    let glossary = "# Words\n\n### Nat (ln 2)\n\n```\n[`no`](link)\n```\n";
    let plant = |text: &str| {
        let files =
            [file("docs/a.md", text), file("docs/glossary.md", glossary), file("src/a.rs", source)];
        wrong_links(&files, Path::new("/nowhere"))
    };
    let fine = [
        "[`pay`](../src/a.rs) and [`Offer::new`](https://example.org/#x) and\n[`Offer`](../src/a.rs)",
        "[a nat](glossary.md#nat-ln-2), [`glossary.md`](glossary.md)",
        "# Own heading\n\n[up](#own-heading)\n\n```\n[x](y)\n```\n",
    ];
    for text in fine {
        assert_eq!(plant(text), Vec::<String>::new(), "{text}");
    }
    let wrong = [
        ("[`gone`](../src/a.rs)", "docs/a.md:1: src/a.rs does not define `gone`"),
        ("A\n\n[`Offer::gone`](../src/a.rs)", "docs/a.md:3: src/a.rs does not define `gone`"),
        ("[b](../src/b.rs)", "docs/a.md:1: there is no src/b.rs"),
        ("[nat](glossary.md#nat)", "docs/a.md:1: docs/glossary.md has no heading #nat"),
        ("```\n[x](y)\n```\n[x](#y)", "docs/a.md:4: docs/a.md has no heading #y"),
    ];
    for (text, expected) in wrong {
        assert_eq!(plant(text), [expected], "{text}");
    }
}
