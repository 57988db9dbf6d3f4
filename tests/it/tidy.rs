//! The house rules that a machine can check. STYLE.md and ARCHITECTURE.md give the reasons.
//!
//! Every rule is a function from files to violations, so that each is also tested on a planted
//! violation.

mod arrows;
mod drawing;
mod feature_sets;
mod links;
mod manifest;
mod phrases;
mod repository;
mod source;
mod type_names;

use arrows::ARROWS;
use manifest::Manifest;
use repository::{Repository, TextFile};
use source::RustSource;

/// The crate of test fixtures: any crate may use it, in its tests only.
const TESTKIT: &str = "florin-testkit";

/// All dependencies of the state machine. The crate is `no_std`, so that this list is its whole wall.
const ENGINE_DEPENDENCIES: [&str; 3] = ["florin-protocol", "blake3", "borsh"];

/// External crates that only these of our crates may use.
const OWNERS: [(&str, &[&str]); 8] = [
    ("axum", &["florin-coordinator"]),
    ("object_store", &["florin-store"]),
    ("tch", &["florin-learning"]),
    ("torch-sys", &["florin-learning"]),
    ("redb", &["florin-ledger", "florin-ledger-ethereum", "florin-coordinator"]),
    ("alloy", &["florin-ledger-ethereum"]),
    ("alloy-provider", &["florin-ledger-ethereum"]),
    ("alloy-contract", &["florin-ledger-ethereum"]),
];

/// Words that would break a guarantee of the folder they appear in.
const FORBIDDEN_WORDS: [(&str, &[&str]); 5] = [
    ("protocol/src/", &["f32", "f64", "HashMap", "HashSet", "SystemTime", "Instant"]),
    ("protocol/compute/src/", &["f32", "f64", "HashMap", "HashSet", "SystemTime", "Instant"]),
    ("ledger/src/", &["f32", "f64", "HashMap", "HashSet", "SystemTime", "Instant"]),
    ("participant/scheduler/src/", &["f32", "f64", "HashMap", "HashSet", "SystemTime", "Instant"]),
    ("ledger/ethereum/src/", &["f32", "f64", "HashMap", "HashSet", "SystemTime", "Instant"]),
];

/// Paths that would break the same guarantees: the protocol only computes.
const FORBIDDEN_PATHS: [(&str, &[&str]); 1] = [(
    "protocol/src/",
    &["std::fs", "std::net", "std::thread", "std::env", "std::process", "rand::"],
)];

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 600;

/// Functions that were longer when the rule was introduced: path, name, lines. The list may only
/// shrink.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

/// Files that were longer when the rule was introduced: path, lines. The list may only shrink.
const LONG_FILES: [(&str, usize); 0] = [];

/// Marks of unfinished work that no file may contain; split in two, so that this file passes.
const UNFINISHED: [(&str, &str); 6] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("unimplemen", "ted!"),
    ("to", "do!("),
    ("#[ign", "ore"),
    ("XX", "X"),
];

fn refuse(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

fn foreign_arrows(manifests: &[Manifest]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in manifests {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == manifest.name) else {
            violations.push(format!("{}: ARROWS has no row for it", manifest.name));
            continue;
        };
        // Tests of a crate may switch on its own features.
        let of_tests = manifest.dev_dependencies.iter();
        let of_tests = of_tests.filter(|name| *name != TESTKIT && **name != manifest.name);
        for dependency in manifest.dependencies.iter().chain(of_tests) {
            let ours = ARROWS.iter().any(|(name, _)| name == dependency);
            if ours && !allowed.contains(&dependency.as_str()) {
                violations.push(format!("{} may not use {dependency}", manifest.name));
            }
        }
    }
    violations
}

#[test]
fn crates_use_only_allowed_crates() {
    let repository = Repository::read();
    let manifests = repository.manifests();
    assert_eq!(manifests.len(), ARROWS.len(), "a crate is new or gone: change ARROWS");
    refuse("arrows between our crates", &foreign_arrows(&manifests));
}

#[test]
fn a_forbidden_crate_dependency_is_detected() {
    let plant = |name: &str, text: &str| {
        foreign_arrows(&[Manifest::parse(&format!("[package]\nname = \"{name}\"\n{text}"))])
    };
    let refused = [
        ("florin-protocol", "[dependencies]\nflorin-ledger.workspace = true"),
        ("florin-coordinator", "[dependencies.florin-participant]\nworkspace = true"),
        ("florin-ledger", "[dev-dependencies]\nflorin-coordinator = { path = \"../coordinator\" }"),
        ("florin-ledger", "[target.'cfg(unix)'.dependencies]\nflorin-work.workspace = true"),
        ("florin-learning", "[dependencies]\nother = { package = \"florin-work\", path = \"..\" }"),
        ("xtask", "[build-dependencies]\nflorin-protocol.workspace = true"),
        ("florin-ledger", "[dependencies]\nflorin-testkit.workspace = true"),
        ("florin-newcomer", ""),
    ];
    for (name, text) in refused {
        assert_eq!(plant(name, text).len(), 1, "{name}: {text}");
    }
    let fine = "[dependencies]\nflorin-protocol.workspace = true\n[features]\nflorin-work = []";
    assert!(plant("florin-ledger", fine).is_empty());
    let tests = "[dev-dependencies]\nflorin-testkit.workspace = true\n\
                 florin-protocol.workspace = true";
    assert!(plant("florin-protocol", tests).is_empty());
}

/// Breaches of the wall around the state machine: dependencies, and the standard library.
fn engine_breaches(manifest: &Manifest, front: &str) -> Vec<String> {
    let strangers = manifest.dependencies.iter();
    let strangers = strangers.filter(|name| !ENGINE_DEPENDENCIES.contains(&name.as_str()));
    let mut violations: Vec<String> =
        strangers.map(|name| format!("florin-engine may not use {name}")).collect();
    if !front.lines().any(|line| line == "#![no_std]") {
        violations.push("florin-engine is not no_std".to_owned());
    }
    if front.contains("extern crate std") {
        violations.push("florin-engine names the standard library".to_owned());
    }
    violations
}

#[test]
fn the_engine_has_no_standard_library_and_three_dependencies() {
    let repository = Repository::read();
    let manifests = repository.manifests();
    let engine = manifests.iter().find(|manifest| manifest.name == "florin-engine").unwrap();
    let front = &repository.file("coordinator/engine/src/lib.rs").text;
    refuse("the engine's wall", &engine_breaches(engine, front));
}

#[test]
fn a_breach_of_the_engines_wall_would_be_seen() {
    let manifest = |dependency: &str| {
        Manifest::parse(&format!(
            "[package]\nname = \"florin-engine\"\n[dependencies]\n{dependency}"
        ))
    };
    assert_eq!(engine_breaches(&manifest("tokio.workspace = true"), "#![no_std]\n").len(), 1);
    assert_eq!(engine_breaches(&manifest("borsh = \"1\""), "//! Doc.\n").len(), 1);
    assert_eq!(engine_breaches(&manifest(""), "#![no_std]\nextern crate std;").len(), 1);
    assert!(engine_breaches(&manifest("blake3 = \"1\""), "//! Doc.\n#![no_std]\n").is_empty());
}

fn strangers(manifests: &[Manifest]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in manifests {
        for (stranger, owners) in OWNERS {
            let uses = manifest.dependencies.iter().any(|dependency| dependency == stranger);
            if uses && !owners.contains(&manifest.name.as_str()) {
                let owners = owners.join(" or ");
                violations.push(format!("{} uses {stranger}, which is {owners}'s", manifest.name));
            }
        }
    }
    violations
}

#[test]
fn axum_tch_redb_and_alloys_network_live_with_their_owners() {
    refuse("owners", &strangers(&Repository::read().manifests()));
}

#[test]
fn a_misplaced_dependency_is_detected() {
    let plant = |name: &str, dependency: &str| {
        let text = format!("[package]\nname = \"{name}\"\n[dependencies]\n{dependency}\n");
        strangers(&[Manifest::parse(&text)]).len()
    };
    assert_eq!(plant("florin-participant", "axum.workspace = true"), 1);
    assert_eq!(plant("florin", "redb = \"4\""), 1);
    assert_eq!(plant("florin-coordinator", "\"tch\" = { version = \"0.24\" }"), 1);
    assert_eq!(plant("florin-participant", "alloy-provider = \"2\""), 1);
    assert_eq!(plant("florin-ledger", "redb.workspace = true\nalloy-provider = \"2\""), 1);
    assert_eq!(plant("florin-ledger-ethereum", "redb = \"4\"\nalloy-provider = \"2\""), 0);
    assert_eq!(plant("florin-participant", "alloy-signer.workspace = true"), 0);
}

#[test]
fn every_crate_obeys_the_workspace_lints() {
    let repository = Repository::read();
    let lax: Vec<String> = repository
        .manifests()
        .into_iter()
        .filter(|manifest| !manifest.has_workspace_lints)
        .map(|manifest| format!("{}: add `[lints] workspace = true`", manifest.name))
        .collect();
    refuse("lints", &lax);
}

fn without_wall(sources: &[RustSource]) -> Vec<String> {
    const WALL: [&str; 7] = [
        "clippy::arithmetic_side_effects",
        "clippy::float_arithmetic",
        "clippy::indexing_slicing",
        "clippy::unwrap_used",
        "clippy::expect_used",
        "clippy::panic",
        "clippy::as_conversions",
    ];
    let mut violations = Vec::new();
    for front in [
        "protocol/src/lib.rs",
        "protocol/compute/src/lib.rs",
        "ledger/src/lib.rs",
        "ledger/ethereum/src/lib.rs",
    ] {
        let source = sources.iter().find(|source| source.path == front);
        let wall = source.and_then(|source| source.code.split("deny(").nth(1)).unwrap_or_default();
        let wall = wall.split(')').next().unwrap_or_default();
        for lint in WALL.iter().filter(|lint| !wall.contains(*lint)) {
            violations.push(format!("{front}: does not deny {lint}"));
        }
    }
    violations
}

#[test]
fn protocol_and_ledger_deny_the_strict_lints() {
    refuse("the wall around money", &without_wall(&Repository::read().sources()));
}

#[test]
fn a_missing_lint_is_detected() {
    let gap = "//! Doc.\n#![cfg_attr(not(test), deny(clippy::panic, clippy::as_conversions))]\n";
    let found = without_wall(&[
        RustSource::new("protocol/src/lib.rs", gap),
        RustSource::new("protocol/compute/src/lib.rs", gap),
        RustSource::new("ledger/src/lib.rs", gap),
        RustSource::new("ledger/ethereum/src/lib.rs", gap),
    ]);
    assert_eq!(found.len(), 4 * 5);
}

fn broken_promises(sources: &[RustSource]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources.iter().filter(|source| !source.is_test) {
        for (folder, words) in FORBIDDEN_WORDS {
            if source.path.starts_with(folder) {
                let found = words.iter().flat_map(|word| source.lines_with_word(word));
                violations.extend(found);
            }
        }
        for (folder, paths) in FORBIDDEN_PATHS {
            if source.path.starts_with(folder) {
                violations.extend(paths.iter().flat_map(|path| source.lines_with(path)));
            }
        }
    }
    violations
}

#[test]
fn protocol_and_ledger_have_no_floats_no_clock_and_no_random_order() {
    refuse("promised absences", &broken_promises(&Repository::read().sources()));
}

#[test]
fn a_float_a_clock_or_a_hash_map_would_be_seen() {
    let plant = |path: &str, text: &str| broken_promises(&[RustSource::new(path, text)]);
    let refused = [
        ("protocol/src/amount.rs", "fn half(a: f64) {}"),
        ("ledger/src/local/chain.rs", "let now = std::time::Instant::now();"),
        ("ledger/src/entry.rs", "use std::collections::HashMap;"),
        ("protocol/src/task.rs", "std::fs::read(path)"),
        ("protocol/src/id.rs", "/* fine */ let x: /* not */ f32 = 0;"),
    ];
    for (path, text) in refused {
        let found = plant(path, text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}:1: ")), "{found:?}");
    }
    let fine = [
        ("protocol/src/amount.rs", "// no f64 here\n/* HashMap */ let f64s = \"f32 HashMap\";"),
        ("protocol/src/amount.rs", "#[cfg(test)]\nmod tests { fn t(x: f64) { let y = '{'; } }"),
        ("protocol/src/pay_tests.rs", "fn t(x: f64) {}"),
        ("coordinator/src/server/mod.rs", "let t = Instant::now();"),
        ("learning/src/model.rs", "fn f(x: f64) {}"),
    ];
    for (path, text) in fine {
        assert_eq!(plant(path, text), Vec::<String>::new());
    }
}

fn long_functions(sources: &[RustSource], known: &[(&str, &str, usize)]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut used = vec![false; known.len()];
    for source in sources {
        for function in source.functions() {
            let row = known
                .iter()
                .position(|(path, name, _)| *path == source.path && *name == function.name);
            let limit = row.map_or(FUNCTION_LINES_MAX, |row| known[row].2);
            if let Some(row) = row.filter(|_| function.lines > FUNCTION_LINES_MAX) {
                used[row] = function.lines == limit;
            }
            if function.lines > limit {
                violations.push(format!(
                    "{}:{}: `{}` has {} lines; {limit} are allowed: split it",
                    source.path, function.line, function.name, function.lines
                ));
            }
        }
    }
    let idle = known.iter().zip(used).filter(|(_, used)| !used);
    let idle = idle.map(|((path, name, _), _)| format!("{path}: tighten the row of `{name}`"));
    violations.extend(idle);
    violations
}

#[test]
fn functions_fit_on_a_screen() {
    refuse("long functions", &long_functions(&Repository::read().sources(), &LONG_FUNCTIONS));
}

#[test]
fn a_long_function_would_be_seen_and_its_exception_only_shrinks() {
    let body = "    let _x = \"{\";\n".repeat(FUNCTION_LINES_MAX - 2);
    let fits = RustSource::new("a.rs", &format!("fn fits() {{\n{body}}}\n"));
    assert!(long_functions(&[fits], &[]).is_empty());

    let long = format!("trait T {{ fn no_body(&self); }}\nfn long() {{\n{body}    1;\n}}\n");
    let long = [RustSource::new("a.rs", &long)];
    let found = long_functions(&long, &[]);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("a.rs:2: `long` has 71 lines"), "{found:?}");

    assert!(long_functions(&long, &[("a.rs", "long", 71)]).is_empty());
    assert_eq!(long_functions(&long, &[("a.rs", "long", 90)]).len(), 1, "a row that is too lax");
    assert_eq!(long_functions(&[], &[("a.rs", "long", 71)]).len(), 1, "a row of nothing");
}

fn long_files(sources: &[RustSource], known: &[(&str, usize)]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        let row = known.iter().find(|(path, _)| *path == source.path);
        let limit = row.map_or(FILE_LINES_MAX, |(_, lines)| *lines);
        if lines > limit {
            let path = &source.path;
            violations.push(format!("{path}: {lines} lines; {limit} are allowed: split it"));
        } else if row.is_some() && lines < limit {
            violations.push(format!("{}: {lines} lines; tighten its row", source.path));
        }
    }
    violations
}

#[test]
fn files_are_short() {
    refuse("long files", &long_files(&Repository::read().sources(), &LONG_FILES));
}

#[test]
fn a_long_file_would_be_seen() {
    let long = [RustSource::new("a.rs", &"//\n".repeat(FILE_LINES_MAX + 1))];
    assert_eq!(long_files(&long, &[]).len(), 1);
    assert!(long_files(&long, &[("a.rs", FILE_LINES_MAX + 1)]).is_empty());
    assert_eq!(long_files(&long, &[("a.rs", FILE_LINES_MAX + 9)]).len(), 1);
}

fn unfinished(files: &[TextFile]) -> Vec<String> {
    let marks = UNFINISHED.map(|(head, tail)| format!("{head}{tail}"));
    let mut violations = Vec::new();
    // Prose may mention the marks; code must not contain them.
    for file in files.iter().filter(|file| !file.path.ends_with(".md")) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(mark) = marks.iter().find(|mark| line.contains(*mark)) {
                violations.push(format!("{}:{}: {mark}", file.path, number + 1));
            }
        }
    }
    violations
}

#[test]
fn no_file_has_marks_of_unfinished_work() {
    refuse("unfinished work is an issue, not a comment", &unfinished(&Repository::read().files));
}

#[test]
fn a_mark_of_unfinished_work_is_detected() {
    for (head, tail) in UNFINISHED {
        let text = format!("fn a() {{}}\n    // {head}{tail}\n");
        let planted = [TextFile { path: "a.rs".to_owned(), text }];
        assert!(unfinished(&planted)[0].starts_with("a.rs:2: "), "{head}{tail}");
    }
}

fn without_front(sources: &[RustSource]) -> Vec<String> {
    let silent = sources.iter().filter(|source| !source.text.starts_with("//! "));
    silent.map(|source| format!("{}: open with `//!` and what it is for", source.path)).collect()
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    refuse("front lines", &without_front(&Repository::read().sources()));
}

#[test]
fn a_file_without_a_header_is_detected() {
    assert_eq!(without_front(&[RustSource::new("a.rs", "use std::fs;\n")]).len(), 1);
    assert_eq!(without_front(&[RustSource::new("a.rs", "//!\n//! Late.\n")]).len(), 1);
    assert!(without_front(&[RustSource::new("a.rs", "//! Ready.\n")]).is_empty());
}

/// Commands `cargo xtask …` in a text that xtask does not have.
fn unknown_commands(text: &TextFile, xtask: &str) -> Vec<String> {
    let calls = text.text.split("cargo xtask ").skip(1);
    let words = calls.map(|rest| {
        rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default().to_owned()
    });
    words
        .filter(|word| !word.is_empty() && !xtask.contains(&format!("\"{word}\" =>")))
        .map(|word| format!("{}: xtask has no command `{word}`", text.path))
        .collect()
}

#[test]
fn documents_mention_only_existing_xtask_commands() {
    let repository = Repository::read();
    let xtask = &repository.file("xtask/src/main.rs").text;
    let mut violations = Vec::new();
    for file in repository.files.iter().filter(|file| file.path.ends_with(".md")) {
        violations.extend(unknown_commands(file, xtask));
    }
    let readme = &repository.file("README.md").text;
    for command in ["cargo xtask demo", "cargo xtask test"] {
        if !readme.contains(command) {
            violations.push(format!("README.md does not name `{command}`"));
        }
    }
    refuse("commands", &violations);
}

#[test]
fn a_command_that_does_not_exist_would_be_seen() {
    let text = "run `cargo xtask demo`, `cargo xtask dance` and `cargo xtask …`".to_owned();
    let readme = TextFile { path: "README.md".to_owned(), text };
    let found = unknown_commands(&readme, "\"demo\" => demo(),");
    assert_eq!(found, ["README.md: xtask has no command `dance`"]);
}

/// Decisions that are missing in the index, and links to missing decisions.
fn unlisted(index: &str, notes: &[&str]) -> Vec<String> {
    let mut violations: Vec<String> = notes
        .iter()
        .filter(|note| !index.contains(&format!("({note})")))
        .map(|note| format!("docs/decisions/README.md does not list {note}"))
        .collect();
    let links = index.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let lost = links.filter(|link| link.ends_with(".md") && !notes.contains(link));
    violations.extend(lost.map(|link| format!("docs/decisions/README.md: there is no {link}")));
    violations
}

#[test]
fn every_decision_is_in_the_index() {
    let repository = Repository::read();
    let folder = "docs/decisions/";
    let notes: Vec<&str> = repository
        .files
        .iter()
        .filter_map(|file| file.path.strip_prefix(folder))
        .filter(|name| *name != "README.md")
        .collect();
    let index = &repository.file("docs/decisions/README.md").text;
    refuse("decisions", &unlisted(index, &notes));
}

#[test]
fn an_unlisted_decision_would_be_seen() {
    let index = "| [0001](0001-a.md) | A. |\n| [0002](0002-gone.md) | B. |";
    let found = unlisted(index, &["0001-a.md", "0003-new.md"]);
    assert_eq!(found.len(), 2, "{found:?}");
}
