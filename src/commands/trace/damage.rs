//! Files of a folder of traces of which something is missing.

use serde_json::{Value, json};

use crate::show::{self, NOTE};
use crate::trace::analysis::read::{FileDamage, TraceFolder};

/// One sentence for each file of which something is missing, with the file's name first.
pub(super) fn lines(found: &TraceFolder) -> Vec<String> {
    let used = found.traces.iter().filter(|trace| trace.damage.is_any());
    let used = used.map(|trace| format!("{}: {}", trace.file, missing(&trace.damage)));
    let left_out = found.left_out.iter().map(|(file, damage)| match damage.unreadable_lines {
        0 => format!("{file} is left out: it has no event of a known process"),
        lines => format!(
            "{file} is left out: {} unreadable, and no other is an event of a known process",
            count(lines, "line is", "lines are")
        ),
    });
    used.chain(left_out).collect()
}

/// The missing parts of a file.
fn missing(damage: &FileDamage) -> String {
    let FileDamage { unreadable_lines, is_last_unreadable, dropped_events, reached_limit } =
        *damage;
    let mut parts = Vec::new();
    match (unreadable_lines, is_last_unreadable) {
        (0, _) => {}
        (1, true) => parts.push("its last line is cut, and unreadable".to_owned()),
        (1, false) => parts.push("1 line is unreadable, and its event is missing".to_owned()),
        (lines, _) => {
            parts.push(format!("{lines} lines are unreadable, and their events are missing"));
        }
    }
    if dropped_events > 0 {
        let events = count(dropped_events, "event was", "events were");
        parts.push(format!("{events} dropped, because the disk was slower"));
    }
    if reached_limit {
        parts.push("it reached the limit of its size, and its last events are missing".to_owned());
    }
    parts.join("; ")
}

fn count(number: u64, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Prints the sentences.
pub(super) fn print(found: &TraceFolder) {
    for line in lines(found) {
        show::paragraph("", &line, NOTE);
    }
}

/// The same for machines.
pub(super) fn to_json(found: &TraceFolder) -> Value {
    let fields = |file: &str, damage: &FileDamage, is_left_out: bool| {
        json!({
            "file": file,
            "unreadable_lines": damage.unreadable_lines,
            "is_last_line_unreadable": damage.is_last_unreadable,
            "dropped_events": damage.dropped_events,
            "reached_limit": damage.reached_limit,
            "left_out": is_left_out,
        })
    };
    let used = found.traces.iter().filter(|trace| trace.damage.is_any());
    let used = used.map(|trace| fields(&trace.file, &trace.damage, false));
    let left_out = found.left_out.iter().map(|(file, damage)| fields(file, damage, true));
    used.chain(left_out).collect()
}
