//! The critical path of a round: the chain of work and messages without which it would have ended
//! earlier. Its steps follow each other without a gap from the offer to the settlement.

use std::collections::BTreeMap;

use super::producers::{WAIT_FOR_ROWS, WAIT_FOR_TRAINER, time_between};
use super::round::{MemberMessages, NamedSpan, TracedRound};

/// The party that a step of the path waits for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// A member that works, or that does not answer.
    Sender(String),
    /// A member that has not read a message yet.
    Receiver(String),
    /// The program that writes a member's rows: the member waits for them.
    Producer(String),
    /// A message between a member and the coordinator.
    Transfer(String),
    /// The coordinator's own work.
    Coordinator,
    /// The coordinator's disk.
    Disk,
    /// The ledger.
    Ledger,
}

/// Number of missing members up to which they are named.
const NAMED_MAX: usize = 3;
/// Between the names of missing members.
pub(crate) const NAMES_SEPARATOR: &str = ", ";

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PathStep {
    /// The party.
    pub(crate) party: Party,
    /// The work.
    pub(crate) name: String,
    /// Its start.
    pub(crate) from: i64,
    /// Its end.
    pub(crate) to: i64,
}

/// The least time between a message of the coordinator and its reading, per member.
pub(crate) type Latencies = BTreeMap<String, i64>;

/// The least latencies of all rounds: a reading that takes longer is late.
pub(crate) fn latencies(rounds: &[TracedRound]) -> Latencies {
    let mut least = Latencies::new();
    for round in rounds {
        for (member, times) in &round.members {
            let delays = [(times.offer_read, round.start), (times.reveal_read, round.commit_end)];
            for delay in delays.into_iter().filter_map(|(read, sent)| Some(read? - sent)) {
                let known = least.entry(member.clone()).or_insert(delay);
                *known = delay.max(0).min(*known);
            }
        }
    }
    least
}

/// The critical path of a round.
pub(crate) fn critical_path(round: &TracedRound, latencies: &Latencies) -> Vec<PathStep> {
    let mut path = PathBuilder { round, latencies, steps: Vec::new(), at: round.start };
    path.messages(&PhaseMessages::of_commits(round));
    path.messages(&PhaseMessages::of_updates(round));
    path.value();
    path.coordinator("settle phase", round.end);
    path.steps
}

/// The messages that end a phase, as times of one member.
pub(crate) struct PhaseMessages<'a> {
    pub(crate) name: &'static str,
    pub(crate) start: i64,
    pub(crate) end: i64,
    pub(crate) need: usize,
    pub(crate) arrivals: Vec<(i64, &'a str)>,
    expected: Vec<&'a str>,
    read: fn(&MemberMessages) -> Option<i64>,
    sent: fn(&MemberMessages) -> Option<i64>,
}

impl<'a> PhaseMessages<'a> {
    /// The commits.
    pub(crate) fn of_commits(round: &'a TracedRound) -> Self {
        Self {
            name: "commit",
            start: round.start,
            end: round.commit_end,
            need: round.commits.need,
            arrivals: round.commit_arrivals(),
            expected: round.cohort.iter().map(String::as_str).collect(),
            read: |times| times.offer_read,
            sent: |times| times.commit_sent,
        }
    }

    /// The updates.
    pub(crate) fn of_updates(round: &'a TracedRound) -> Self {
        let commits = round.commit_arrivals();
        Self {
            name: "update",
            start: round.commit_end,
            end: round.reveal_end,
            need: round.updates.need,
            arrivals: round.update_arrivals(),
            expected: commits.into_iter().map(|(_, member)| member).collect(),
            read: |times| times.reveal_read,
            sent: |times| times.update_sent,
        }
    }

    /// The message that ended the phase; `None` if its deadline did.
    pub(crate) fn last(&self) -> Option<(i64, &'a str)> {
        let at = self.need.checked_sub(1)?;
        self.arrivals.get(at).copied()
    }

    /// The members from which no message arrived: a few accounts, or their number.
    pub(crate) fn missing(&self) -> String {
        let arrived = |member: &&&str| self.arrivals.iter().any(|(_, other)| other == *member);
        let missing: Vec<&str> =
            self.expected.iter().filter(|member| !arrived(member)).copied().collect();
        match missing.len() {
            1..=NAMED_MAX => missing.join(NAMES_SEPARATOR),
            number => format!("{number} members"),
        }
    }
}

struct PathBuilder<'a> {
    round: &'a TracedRound,
    latencies: &'a Latencies,
    steps: Vec<PathStep>,
    /// The end of the path so far.
    at: i64,
}

impl PathBuilder<'_> {
    /// Extends the path; an end before its start adds nothing.
    fn step(&mut self, party: Party, name: &str, to: i64) {
        let to = to.min(self.round.end);
        if to <= self.at {
            return;
        }
        let from = std::mem::replace(&mut self.at, to);
        if let Some(last) = self.steps.last_mut()
            && (&last.party, last.name.as_str()) == (&party, name)
        {
            last.to = to;
            return;
        }
        self.steps.push(PathStep { party, name: name.to_owned(), from, to });
    }

    /// A phase that waits for messages of members.
    fn messages(&mut self, phase: &PhaseMessages<'_>) {
        match phase.last() {
            Some((arrived, member)) => self.member(phase, member, arrived),
            None if phase.end > phase.start => {
                // The deadline ended the phase. Without a message that is missing, the trace is cut.
                let party = match self.lacks_rows(phase) {
                    Some(member) => Party::Producer(member),
                    None => Party::Sender(phase.missing()),
                };
                self.step(party, &format!("no {} until the deadline", phase.name), phase.end);
            }
            None => {}
        }
        self.coordinator(&format!("end of the {} phase", phase.name), phase.end);
    }

    /// The chain of the member whose message ended the phase.
    fn member(&mut self, phase: &PhaseMessages<'_>, member: &str, arrived: i64) {
        let times = self.round.members.get(member).cloned().unwrap_or_default();
        let own = |party: fn(String) -> Party| party(member.to_owned());
        if let Some(read) = (phase.read)(&times).filter(|read| *read <= arrived) {
            let latency = self.latencies.get(member).copied().unwrap_or(0);
            self.step(own(Party::Transfer), "notice on its way", read.min(phase.start + latency));
            self.step(own(Party::Receiver), "notice not read yet", read);
        }
        let sent = (phase.sent)(&times).filter(|sent| *sent <= arrived);
        self.work(member, sent.unwrap_or(arrived));
        self.step(own(Party::Transfer), &format!("{} on its way", phase.name), arrived);
    }

    /// The member whose message alone is missing, if it waited for rows more than half of the phase.
    fn lacks_rows(&self, phase: &PhaseMessages<'_>) -> Option<String> {
        let member = phase.missing();
        let within = (phase.start, phase.end);
        let waited = time_between(self.round, &member, WAIT_FOR_ROWS, within);
        (waited > (phase.end - phase.start) / 2).then_some(member)
    }

    /// A member's work up to a moment, by its spans.
    fn work(&mut self, member: &str, to: i64) {
        let spans = self.round.work.get(member).map_or(&[][..], Vec::as_slice);
        // A producer's wait is beside the work of its member.
        let beside = ["wait", "steps", WAIT_FOR_TRAINER];
        let spans = spans.iter().filter(|span| !beside.contains(&span.name.as_str()));
        let mut spans: Vec<&NamedSpan> =
            spans.filter(|span| span.to > self.at && span.from < to).collect();
        spans.sort_by_key(|span| span.from);
        for span in spans {
            self.step(Party::Sender(member.to_owned()), "other work", span.from.min(to));
            let party = match span.name == WAIT_FOR_ROWS {
                true => Party::Producer(member.to_owned()),
                false => Party::Sender(member.to_owned()),
            };
            self.step(party, &span.name, span.to.min(to));
        }
        self.step(Party::Sender(member.to_owned()), "other work", to);
    }

    /// The phase of the valuation: until the coordinator has its own result it works, and then it
    /// waits for a provider.
    fn value(&mut self) {
        let own = self.round.coordinator.iter().filter(|span| span.name == "value");
        let valued = own.map(|span| span.to).filter(|to| *to <= self.round.value_end).max();
        let record = self.round.records.iter().filter(|(_, at)| **at <= self.round.value_end);
        let record = record.min_by_key(|(_, at)| **at);
        if let (Some(valued), Some((provider, arrived))) = (valued, record) {
            self.coordinator("value phase", valued);
            // The model is durable before the coordinator looks at records.
            let stored = self.round.coordinator.iter().filter(|span| span.name == "store");
            let stored = stored.filter(|span| span.from >= valued && span.to <= *arrived);
            if let Some(stored) = stored.map(|span| span.to).min() {
                self.coordinator("value phase", stored);
            }
            self.step(Party::Sender(provider.clone()), "work record", *arrived);
        }
        self.coordinator("value phase", self.round.value_end);
    }

    /// The coordinator's time up to a moment: its disk first, then the ledger, then its own work.
    fn coordinator(&mut self, phase: &str, to: i64) {
        let to = to.min(self.round.end);
        while self.at < to {
            let (party, name, until) = coordinator_at(self.round, self.at, phase, to);
            self.step(party, name, until);
        }
    }
}

/// The coordinator's work at a moment, and until when it lasts.
fn coordinator_at<'a>(
    round: &'a TracedRound,
    at: i64,
    phase: &'a str,
    to: i64,
) -> (Party, &'a str, i64) {
    let rank = |span: &NamedSpan| match span.name.as_str() {
        "journal" => 0,
        "store" => 1,
        "ledger" => 2,
        "disclose" | "value" => 3,
        _ => 4,
    };
    let spans = || round.coordinator.iter().filter(|span| rank(span) < 4);
    let now = spans().filter(|span| span.from <= at && at < span.to);
    let now = now.min_by_key(|span| rank(span));
    let best = now.map_or(4, rank);
    // A span of a higher rank interrupts this one.
    let next = spans().filter(|span| span.from > at && rank(span) < best);
    let next = next.map(|span| span.from).min().unwrap_or(to);
    match now {
        None => (Party::Coordinator, phase, next.min(to)),
        Some(span) => {
            let party = match best {
                0 | 1 => Party::Disk,
                2 => Party::Ledger,
                _ => Party::Coordinator,
            };
            (party, &span.name, span.to.min(next).min(to))
        }
    }
}
