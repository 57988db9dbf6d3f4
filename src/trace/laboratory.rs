//! The trace of a simulation, in virtual time: the same events as those of a market, with one
//! location for each member.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use florin_protocol::{Address, Timestamp};
use florin_sim::SimulationOutcome;
use florin_sim::market::{RoundTimeline, SpareCommit};
use serde_json::{Map, Value, json};

use super::record::{EventKind, Process, Record};
use super::session;
use super::writer::TraceWriter;

/// Nanoseconds of a millisecond.
const NANOS: u64 = 1_000_000;
/// The location of the task.
const TASK: u32 = 0;

/// Writes the rounds of one seed into a file of the folder.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write_simulation(
    folder: &Path,
    scenario: &str,
    outcome: &SimulationOutcome,
) -> io::Result<()> {
    let id = format!("{}_seed_{}", scenario.replace(['-', ' '], "_"), outcome.seed);
    let writer = TraceWriter::create(folder, &Process { role: "laboratory", id })?;
    let task = format!("seed {}", outcome.seed);
    let continued = continued(&outcome.timelines);
    let mut file = SimulationFile { writer, task, members: BTreeMap::new(), continued };
    file.name(TASK, &format!("task {}", file.task));
    for round in &outcome.timelines {
        file.round(round);
    }
    file.writer.finish(Vec::new())?;
    session::export(file.writer.path());
    Ok(())
}

/// The trainings that a later round counts, each as its member and the offer of its first round.
fn continued(rounds: &[RoundTimeline]) -> BTreeSet<(Address, Timestamp)> {
    let counted = rounds.iter().flat_map(|round| {
        let commits = round.commits.iter();
        commits.filter_map(|(member, _)| Some((*member, *round.begun.get(member)?)))
    });
    counted.collect()
}

/// A file, and the locations of its members.
struct SimulationFile {
    writer: TraceWriter,
    task: String,
    members: BTreeMap<Address, u32>,
    continued: BTreeSet<(Address, Timestamp)>,
}

impl SimulationFile {
    fn push(&self, name: &str, kind: EventKind, place: (u32, Timestamp), fields: Value) {
        let fields = match fields {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        let (location, Timestamp(ms)) = place;
        let (name, at_ns) = (name.to_owned(), ms.saturating_mul(NANOS));
        self.writer.push_waiting(Record { name, kind, at_ns, location, fields });
    }

    fn name(&self, location: u32, name: &str) {
        let place = (location, Timestamp(0));
        self.push("thread_name", EventKind::Metadata, place, json!({ "name": name }));
    }

    fn member(&mut self, account: Address) -> u32 {
        let next = u32::try_from(self.members.len()).unwrap_or(u32::MAX).saturating_add(1);
        if let Some(known) = self.members.get(&account) {
            return *known;
        }
        self.members.insert(account, next);
        self.name(next, &account.to_string());
        next
    }

    /// A phase with its end.
    fn phase(&self, phase: &str, round: &RoundTimeline, [from, to]: [Timestamp; 2]) {
        let (need, by) = match phase {
            "commit" => (round.commits_needed, round.commit_by),
            "reveal" => (round.commits.len(), round.reveal_by),
            _ => (0, round.opened),
        };
        let fields = json!({ "phase": phase, "task": self.task, "round": round.round,
            "need": need, "by_ms": by.ms_since(round.opened), "least": round.updates_least,
            "continuing": round.begun.len() });
        self.push(phase, EventKind::Begin, (TASK, from), fields);
        self.push(phase, EventKind::End, (TASK, to), Value::Null);
    }

    /// A message of the coordinator, which arrives at once.
    fn notice(&mut self, kind: &str, round: &RoundTimeline, member: Address, at: Timestamp) {
        let fields = self.fields(kind, round, member);
        self.push(kind, EventKind::FlowStart, (TASK, at), fields.clone());
        let location = self.member(member);
        self.push(kind, EventKind::FlowEnd, (location, at), fields);
    }

    /// A member's work, and its message at `sent`, which arrives at the end of the work.
    fn work(&mut self, round: &RoundTimeline, member: Address, work: &MemberWork) {
        let location = self.member(member);
        let MemberWork { name, kind, from, sent, to } = *work;
        let duration = EventKind::Complete(to.ms_since(from).saturating_mul(NANOS));
        let fields = self.fields(kind, round, member);
        self.push(name, duration, (location, from), fields.clone());
        self.push(kind, EventKind::FlowStart, (location, sent), fields.clone());
        self.push(kind, EventKind::FlowEnd, (TASK, to), fields);
    }

    /// A training for whose commit the round did not wait. Unless a later round counts it, it ends
    /// with the commits.
    fn spare(&mut self, round: &RoundTimeline, member: Address, spare: SpareCommit) {
        let location = self.member(member);
        let RoundTimeline { opened, commits_closed, .. } = *round;
        let from = round.begun.get(&member).copied().unwrap_or(opened);
        let mut fields = self.fields("commit", round, member);
        if !self.continued.contains(&(member, from)) {
            let ready = opened.saturating_add_ms(spare.commit_ms);
            let duration = commits_closed.min(ready).ms_since(opened).saturating_mul(NANOS);
            let duration = EventKind::Complete(duration);
            self.push("train", duration, (location, opened), fields.clone());
        }
        fields["commit_ms"] = spare.commit_ms.into();
        fields["upload_ms"] = spare.upload_ms.into();
        self.push("spare", EventKind::Instant, (location, commits_closed), fields);
    }

    fn fields(&self, kind: &str, round: &RoundTimeline, member: Address) -> Value {
        json!({ "kind": kind, "task": self.task, "round": round.round,
            "member": member.to_string() })
    }

    fn round(&mut self, round: &RoundTimeline) {
        let RoundTimeline { opened, commits_closed, updates_closed, .. } = *round;
        self.phase("commit", round, [opened, commits_closed]);
        for member in &round.cohort {
            self.notice("offer", round, *member, opened);
        }
        for (member, at) in &round.commits {
            let (name, kind) = ("train", "commit");
            let from = round.begun.get(member).copied().unwrap_or(opened);
            self.work(round, *member, &MemberWork { name, kind, from, sent: *at, to: *at });
        }
        for (member, spare) in &round.spares {
            self.spare(round, *member, *spare);
        }
        self.phase("reveal", round, [commits_closed, updates_closed]);
        for (member, _) in &round.commits {
            self.notice("reveal", round, *member, commits_closed);
        }
        for (member, at) in &round.updates {
            let (name, kind, from) = ("upload", "update", commits_closed);
            self.work(round, *member, &MemberWork { name, kind, from, sent: from, to: *at });
        }
        for phase in ["value", "settle", "enrol"] {
            self.phase(phase, round, [updates_closed, updates_closed]);
        }
    }
}

/// A span of a member, and the message that it ends with.
#[derive(Clone, Copy)]
struct MemberWork {
    name: &'static str,
    kind: &'static str,
    from: Timestamp,
    sent: Timestamp,
    to: Timestamp,
}
