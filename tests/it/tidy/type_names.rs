//! A type name that three files define is too general. STYLE.md gives the reason ("Words").

use std::collections::{BTreeMap, BTreeSet};

use super::refuse;
use super::repository::Repository;
use super::source::RustSource;

/// The number of files that make a name too general.
const FILES_MAX: usize = 2;

/// Names that more files define for a reason: name, number of files. The list may only shrink.
const EXCEPTIONS: [(&str, usize); 0] = [];

/// Limit on the exceptions.
const EXCEPTIONS_MAX: usize = 10;

fn general_names(sources: &[RustSource], exceptions: &[(&str, usize)]) -> Vec<String> {
    let mut files: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for source in sources {
        for name in source.type_names() {
            files.entry(name).or_default().insert(&source.path);
        }
    }
    let mut violations = Vec::new();
    for (name, files) in &files {
        let exception = exceptions.iter().find(|(exception, _)| exception == name);
        let allowed = exception.map_or(FILES_MAX, |(_, files)| *files);
        if files.len() > allowed {
            let files: Vec<&str> = files.iter().copied().collect();
            violations.push(format!(
                "{name}: {} files define it: {}",
                files.len(),
                files.join(", ")
            ));
        } else if exception.is_some() && files.len() < allowed {
            violations.push(format!("{name}: {} files; tighten its row", files.len()));
        }
    }
    let gone = exceptions.iter().filter(|(name, _)| !files.contains_key(*name));
    violations.extend(gone.map(|(name, _)| format!("{name}: remove its row")));
    violations
}

#[test]
fn at_most_two_files_define_a_type_of_one_name() {
    const { assert!(EXCEPTIONS.len() <= EXCEPTIONS_MAX) };
    refuse("type names", &general_names(&Repository::read().sources(), &EXCEPTIONS));
}

#[test]
fn a_type_name_in_three_files_is_detected_and_its_exception_only_shrinks() {
    let sources = |count: usize| -> Vec<RustSource> {
        let paths = ["a.rs", "b.rs", "c.rs", "d.rs"];
        let text = "pub struct Stage;\nimpl T for Stage {\n    type Error = ();\n}\n";
        paths[..count].iter().map(|path| RustSource::new(path, text)).collect()
    };
    assert!(general_names(&sources(2), &[]).is_empty());
    assert_eq!(general_names(&sources(3), &[]), ["Stage: 3 files define it: a.rs, b.rs, c.rs"]);
    assert!(general_names(&sources(3), &[("Stage", 3)]).is_empty());
    assert_eq!(general_names(&sources(4), &[("Stage", 3)]).len(), 1);
    assert_eq!(general_names(&sources(3), &[("Stage", 4)]), ["Stage: 3 files; tighten its row"]);
    assert_eq!(general_names(&[], &[("Stage", 3)]), ["Stage: remove its row"]);
}
