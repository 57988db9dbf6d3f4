//! The output of `florin participate` and `florin provide`: one line for each event, as text or, with
//! `--json`, as a JSON object.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use florin_ledger::MemberShare;
use florin_participant::{ParticipantEvent, ProducerNews};
use florin_protocol::TaskId;
use serde::Serialize;
use serde_json::json;

use super::silo::counted_members;
use crate::cli::JsonArg;
use crate::show::{self, BAD, JsonEvent, NOTE};

/// Prints events. Each line has the name of the wallet, because several participants may share a
/// terminal.
pub(super) struct EventPrinter {
    wallet: String,
    json: JsonArg,
    /// Members of the split that receives the account's pay; none for an account without one.
    members: AtomicUsize,
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
        Self { wallet: name.to_string_lossy().into_owned(), json, members: AtomicUsize::new(0) }
    }

    /// A printer for the events of one of several tasks.
    pub(super) fn for_task(&self, task: TaskId) -> Self {
        let wallet = format!("{} {}", self.wallet, task.short());
        Self { wallet, json: self.json, members: AtomicUsize::new(self.members()) }
    }

    /// Members of the split that receives the account's pay.
    pub(super) fn members(&self) -> usize {
        self.members.load(Ordering::Relaxed)
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
        let text = text_for(event, self.members());
        self.print_text(&text, style);
    }

    /// Prints the members that receive the account's pay; nothing for an account without a split.
    pub(super) fn print_split(&self, members: &[MemberShare]) {
        self.members.store(members.len(), Ordering::Relaxed);
        if members.is_empty() {
            return;
        }
        if self.is_json() {
            let fields = json!({ "members": members });
            return self.print_json(&JsonEvent { event: "split", fields });
        }
        let each = members.iter().map(|each| format!("{} {}", each.member, each.share));
        let list = each.collect::<Vec<_>>().join(", ");
        let count = counted_members(members.len());
        let text = format!("all pay goes to the {count} of the split: {list}");
        show::paragraph(&format!("{}: ", self.wallet), &text, anstyle::Style::new());
    }

    /// Prints a JSON object in one line, with the name of the wallet.
    pub(super) fn print_json(&self, event: &impl Serialize) {
        show::json_line(&JsonLine { event, wallet: &self.wallet });
    }
}

/// An event in words; `members` are those of the split that receives the account's pay.
fn text_for(event: &ParticipantEvent, members: usize) -> String {
    match event {
        ParticipantEvent::BondLocked { until } => format!(
            "the bond is locked until {}, so that pending debits can still be applied",
            show::date(*until)
        ),
        ParticipantEvent::CloseAnnounced { at } => format!(
            "the coordinator will close the task from {} on; until then no update is sent",
            show::date(*at)
        ),
        ParticipantEvent::Claimed { .. } if members > 0 => {
            format!("{event}; all pay went to the {} of the split", counted_members(members))
        }
        event => event.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use florin_participant::ClaimSummary;
    use florin_protocol::Amount;
    use florin_protocol::merkle::ClaimTotals;

    use super::*;

    #[test]
    fn a_claim_of_a_silo_names_the_members_that_were_paid() {
        let paid: Amount = "421".parse().unwrap();
        let totals = ClaimTotals { paid, ..ClaimTotals::default() };
        let drawn = ClaimSummary { paid, taken: Amount::ZERO, totals };
        let event = ParticipantEvent::Claimed { task: TaskId::default(), drawn };
        assert!(text_for(&event, 2).ends_with("; all pay went to the 2 members of the split"));
        assert!(text_for(&event, 1).ends_with("the 1 member of the split"));
        assert_eq!(text_for(&event, 0), event.to_string());
    }
}
