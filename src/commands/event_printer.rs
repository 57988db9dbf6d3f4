//! The output of `florin participate` and `florin provide`: one line for each event, as text or, with
//! `--json`, as a JSON object.

use std::path::Path;

use florin_ledger::MemberShare;
use florin_participant::{ParticipantEvent, ProducerNews};
use florin_protocol::TaskId;
use serde::Serialize;
use serde_json::json;

use crate::cli::JsonArg;
use crate::show::{self, BAD, JsonEvent, NOTE};

/// Prints events. Each line has the name of the wallet, because several participants may share a
/// terminal.
pub(super) struct EventPrinter {
    wallet: String,
    json: JsonArg,
}

/// An event as JSON: the name of the event is first.
#[derive(Serialize)]
struct JsonLine<'a, T> {
    #[serde(flatten)]
    event: T,
    wallet: &'a str,
}

impl EventPrinter {
    /// A printer for the events of the wallet in this file.
    pub(super) fn new(wallet: &Path, json: JsonArg) -> Self {
        let name = wallet.file_stem().unwrap_or(wallet.as_os_str());
        Self { wallet: name.to_string_lossy().into_owned(), json }
    }

    /// A printer for the events of one of several tasks.
    pub(super) fn for_task(&self, task: TaskId) -> Self {
        Self { wallet: format!("{} {}", self.wallet, task.short()), json: self.json }
    }

    /// Prints a text.
    pub(super) fn print_text(&self, text: &str, style: anstyle::Style) {
        show::paragraph(&format!("{}: ", self.wallet), text, style);
    }

    /// Whether the output is JSON.
    pub(super) const fn is_json(&self) -> bool {
        self.json.json
    }

    /// Prints an event.
    pub(super) fn print(&self, event: &ParticipantEvent) {
        if self.is_json() {
            return self.print_json(event);
        }
        let style = match event {
            event if event.is_alarm() => BAD,
            ParticipantEvent::Experiment { .. }
            | ParticipantEvent::Retrying { .. }
            | ParticipantEvent::Producer { news: ProducerNews::Refused { .. } } => NOTE,
            _ => anstyle::Style::new(),
        };
        let text = match event {
            ParticipantEvent::BondLocked { until } => format!(
                "the bond is locked until {}, so that pending debits can still be applied",
                show::date(*until)
            ),
            ParticipantEvent::CloseAnnounced { at } => format!(
                "the coordinator will close the task from {} on; until then no update is sent",
                show::date(*at)
            ),
            event => event.to_string(),
        };
        self.print_text(&text, style);
    }

    /// Prints the members that receive the account's pay; nothing for an account without a split.
    pub(super) fn print_split(&self, members: &[MemberShare]) {
        if members.is_empty() {
            return;
        }
        if self.is_json() {
            let fields = json!({ "members": members });
            return self.print_json(&JsonEvent { event: "split", fields });
        }
        let each = members.iter().map(|each| format!("{} {}", each.member, each.share));
        let list = each.collect::<Vec<_>>().join(", ");
        let text = format!("all pay goes to the {} members of the split: {list}", members.len());
        show::paragraph(&format!("{}: ", self.wallet), &text, anstyle::Style::new());
    }

    /// Prints a JSON object in one line, with the name of the wallet.
    pub(super) fn print_json(&self, event: &impl Serialize) {
        show::json_line(&JsonLine { event, wallet: &self.wallet });
    }
}
