//! Finds the line of a key in a TOML file, and the key at a position.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

type SpannedEntry<'a> = (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// The line of a byte offset, starting at 1.
pub(super) fn line_at(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// The line of a key such as `rounds.count`; the line of its section if the key is missing; `None`
/// if the section is missing too.
pub(super) fn line_of(text: &str, key: &str) -> Option<usize> {
    let table = DeTable::parse(text).ok()?;
    let mut table = table.get_ref();
    let mut line = None;
    for part in key.split('.') {
        let Some((name, value)) = find(table, part) else { break };
        line = Some(line_at(text, name.span().start));
        match value.get_ref() {
            DeValue::Table(inner) => table = inner,
            _ => break,
        }
    }
    line
}

fn find<'a>(table: &'a DeTable<'a>, part: &str) -> Option<SpannedEntry<'a>> {
    table.iter().find(|(name, _)| name.get_ref() == part)
}

/// The dotted key whose name or value contains a byte offset. The span of a section covers only its
/// header, so the search descends into every section.
pub(super) fn key_at(text: &str, offset: usize) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    within(table.get_ref(), offset).map(|path| path.join("."))
}

fn within<'a>(table: &'a DeTable<'_>, offset: usize) -> Option<Vec<&'a str>> {
    table.iter().find_map(|(name, value)| {
        let deeper = match value.get_ref() {
            DeValue::Table(inner) => within(inner, offset),
            _ => None,
        };
        let here = name.span().contains(&offset) || value.span().contains(&offset);
        let mut path = vec![name.get_ref().as_ref()];
        path.extend(deeper.or(here.then(Vec::new))?);
        Some(path)
    })
}
