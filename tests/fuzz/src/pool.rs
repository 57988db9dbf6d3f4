//! The inputs that variants are made from: the committed corpus, and inputs with new behaviour.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// Maximum number of inputs in memory; beyond it, a new input replaces an old one.
const INPUTS_MAX: usize = 2_048;
/// Maximum size of an input, in bytes.
pub(super) const INPUT_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of corpus files of a target.
const FILES_MAX: usize = 4_096;

/// The inputs of one target.
pub(super) struct Pool {
    /// In the order of their names, then in the order of discovery.
    pub(super) inputs: Vec<Vec<u8>>,
    /// Signatures of the behaviours so far.
    behaviours: BTreeSet<u64>,
    next: usize,
}

impl Pool {
    /// Reads a target's corpus.
    pub(super) fn open(corpus: &Path, target: &str) -> anyhow::Result<Self> {
        let folder = corpus.join(target);
        let context = || format!("corpus {}", folder.display());
        let files = std::fs::read_dir(&folder).with_context(context)?;
        let mut names = files.map(|file| Ok(file?.path())).collect::<std::io::Result<Vec<_>>>()?;
        names.sort();
        names.truncate(FILES_MAX);
        let mut inputs = names.iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()?;
        inputs.iter_mut().for_each(|input| input.truncate(INPUT_BYTES_MAX));
        anyhow::ensure!(!inputs.is_empty(), "{} is empty", context());
        Ok(Self { inputs, behaviours: BTreeSet::new(), next: 0 })
    }

    /// Records the behaviour of the target; returns whether it is new.
    pub(super) fn is_new(&mut self, behaviour: &str) -> bool {
        self.behaviours.insert(signature(behaviour))
    }

    /// The number of distinct behaviours so far.
    pub(super) fn behaviours(&self) -> usize {
        self.behaviours.len()
    }

    /// Adds an input to make variants from.
    pub(super) fn add(&mut self, input: Vec<u8>) {
        if self.inputs.len() < INPUTS_MAX {
            self.inputs.push(input);
            return;
        }
        self.next = (self.next + 1) % INPUTS_MAX;
        self.inputs[self.next] = input;
    }
}

/// Hashes a behaviour. Numbers and quoted parts of the input are ignored, so that behaviours are
/// equal if their words are.
fn signature(behaviour: &str) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    let mut quote = None;
    for c in behaviour.lines().filter(|line| !is_excerpt(line)).flat_map(str::chars) {
        match quote {
            Some(end) if c == end => quote = None,
            Some(_) => {}
            None if matches!(c, '"' | '`' | '\'') => quote = Some(c),
            None if c.is_ascii_digit() => {}
            None => std::hash::Hash::hash(&c, &mut hasher),
        }
    }
    std::hash::Hasher::finish(&hasher)
}

/// Whether a line quotes the input, as in `3 | size = x`. Without this check every malformed file
/// would have a distinct behaviour, and such files would fill the pool.
fn is_excerpt(line: &str) -> bool {
    let in_margin = |c: char| c == ' ' || c.is_ascii_digit();
    line.split_once('|').is_some_and(|(margin, _)| margin.chars().all(in_margin))
}

/// Writes an input into a target's corpus, under a name derived from its digest.
pub(super) fn save(
    corpus: &Path,
    target: &str,
    kind: &str,
    bytes: &[u8],
) -> anyhow::Result<PathBuf> {
    let name = florin_protocol::blob_digest(bytes).short();
    let path = corpus.join(target).join(format!("{kind}-{name}"));
    std::fs::write(&path, bytes).with_context(|| path.display().to_string())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviours_differ_by_words_and_not_by_numbers_or_quotes() {
        assert_eq!(signature("line 3: unknown key `a`"), signature("line 14: unknown key `bcd`"));
        assert_ne!(signature("line 3: unknown key"), signature("line 3: missing key"));
        let shown =
            |line: &str| signature(&format!("at line 3\n  |\n3 | {line}\n  |  ^\nno value"));
        assert_eq!(shown("size = "), shown("[rate\" `]"));
    }
}
