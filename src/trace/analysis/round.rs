//! The rounds of a trace: the phases that the coordinator recorded, and the messages and the work of
//! all members in each.

use std::collections::{BTreeMap, BTreeSet};

use super::read::{ProcessTrace, TracedEvent, clamp_time};
use crate::trace::record::EventKind;

/// Nanoseconds of a millisecond.
pub(crate) const MILLISECOND: i64 = 1_000_000;

/// The span of a training.
const TRAIN: &str = "train";

/// A span of time in nanoseconds, with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamedSpan {
    /// The work.
    pub(crate) name: String,
    /// Its start.
    pub(crate) from: i64,
    /// Its end.
    pub(crate) to: i64,
}

/// The messages of one member in one round. `None` is a message that was not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberMessages {
    /// The member reads the offer.
    pub(crate) offer_read: Option<i64>,
    /// It sends its commit.
    pub(crate) commit_sent: Option<i64>,
    /// The commit arrives, and counts.
    pub(crate) commit_arrived: Option<i64>,
    /// A commit arrives that is refused: the cohort was full, or it was late.
    pub(crate) commit_refused: Option<i64>,
    /// The latest commit arrives, whether it counts or not.
    commit_last: Option<i64>,
    /// The member reads that updates are due.
    pub(crate) reveal_read: Option<i64>,
    /// It starts its upload.
    pub(crate) update_sent: Option<i64>,
    /// The last byte arrives.
    pub(crate) update_arrived: Option<i64>,
}

/// The end of a phase that waits for messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Barrier {
    /// Number of messages that end the phase.
    pub(crate) need: usize,
    /// Its deadline in nanoseconds after the offer; `None` if the trace has none.
    pub(crate) deadline: Option<i64>,
}

/// A commit for which a round did not wait, in nanoseconds after the offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpareTimes {
    /// When it would have arrived.
    pub(crate) commit: i64,
    /// The duration of its upload.
    pub(crate) upload: i64,
}

/// One round of one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TracedRound {
    /// The task, shortened.
    pub(crate) task: String,
    /// The round.
    pub(crate) number: u64,
    /// The offer is public.
    pub(crate) start: i64,
    /// The commits are closed.
    pub(crate) commit_end: i64,
    /// The updates are closed.
    pub(crate) reveal_end: i64,
    /// The report exists; the same as the end if the round has none.
    pub(crate) value_end: i64,
    /// The settlement is posted, or the round was given up.
    pub(crate) end: i64,
    /// The end of the commits.
    pub(crate) commits: Barrier,
    /// The end of the updates.
    pub(crate) updates: Barrier,
    /// Smallest number of updates, with fewer of which the round is given up; 0 if the trace has
    /// none.
    pub(crate) least: usize,
    /// Number of members whose trainings began in an earlier round.
    pub(crate) continuing: u64,
    /// The cohort.
    pub(crate) cohort: BTreeSet<String>,
    /// The messages of each member.
    pub(crate) members: BTreeMap<String, MemberMessages>,
    /// The work of each member that has a trace.
    pub(crate) work: BTreeMap<String, Vec<NamedSpan>>,
    /// The ends of the members' trainings for this round, also after its end.
    pub(crate) trained: BTreeMap<String, i64>,
    /// The members whose messages in the trace went in one direction only: their clocks are unknown.
    pub(crate) one_way: BTreeSet<String>,
    /// The commits of a laboratory for which the round did not wait.
    pub(crate) spares: BTreeMap<String, SpareTimes>,
    /// The arrivals of the providers' work records.
    pub(crate) records: BTreeMap<String, i64>,
    /// The coordinator's work.
    pub(crate) coordinator: Vec<NamedSpan>,
}

impl TracedRound {
    /// Its duration in nanoseconds.
    pub(crate) const fn duration(&self) -> i64 {
        self.end - self.start
    }

    /// The arrivals of commits up to the end of their phase, the earliest first.
    pub(crate) fn commit_arrivals(&self) -> Vec<(i64, &str)> {
        self.arrivals(self.commit_end, |member| member.commit_arrived)
    }

    /// The arrivals of updates up to the end of their phase, the earliest first.
    pub(crate) fn update_arrivals(&self) -> Vec<(i64, &str)> {
        self.arrivals(self.reveal_end, |member| member.update_arrived)
    }

    fn arrivals(
        &self,
        end: i64,
        arrived: impl Fn(&MemberMessages) -> Option<i64>,
    ) -> Vec<(i64, &str)> {
        let all = self.members.iter();
        // The coordinator also receives messages of others, which it rejects.
        let all = all.filter(|(member, _)| self.cohort.contains(*member));
        let all = all.filter_map(|(member, of)| Some((arrived(of)?, member.as_str())));
        let mut all: Vec<_> = all.filter(|(at, _)| *at <= end).collect();
        all.sort_unstable();
        all
    }
}

/// The rounds of all tasks that have an offer and an end, task by task in the order of their offers.
/// The clocks are aligned.
pub(crate) fn rounds(traces: &[ProcessTrace]) -> Vec<TracedRound> {
    let mut found = BTreeMap::new();
    let mut hosts: Vec<_> = traces.iter().filter(|trace| trace.role != "participant").collect();
    // A coordinator that starts again has another file, and goes on with the phase of the one before.
    let at = |event: Option<&TracedEvent>| event.map(|event| event.at);
    hosts.sort_by_key(|trace| (at(trace.events.first()), at(trace.events.last())));
    let mut running = BTreeMap::new();
    for trace in hosts {
        add_phases(&mut found, &mut running, trace);
    }
    found.retain(|_, round: &mut TracedRound| round.end > round.start);
    for trace in traces {
        add_messages(&mut found, trace);
        // The work of an unknown member is not the coordinator's.
        if trace.member.is_some() || !["participant", "provider"].contains(&trace.role.as_str()) {
            add_work(&mut found, trace);
        }
        let has = |kind| trace.events.iter().any(|event| event.kind == kind);
        if let Some(member) = &trace.member
            && has(EventKind::FlowStart) != has(EventKind::FlowEnd)
        {
            for round in found.values_mut().filter(|round| round.cohort.contains(member)) {
                round.one_way.insert(member.clone());
            }
        }
    }
    let mut rounds: Vec<_> = found.into_values().collect();
    // Two tasks do not share a row of rounds.
    rounds.sort_by(|a, b| (&a.task, a.start).cmp(&(&b.task, b.start)));
    rounds
}

type RoundMap = BTreeMap<(String, u64), TracedRound>;

/// Adds the phases of a process. `running` has the round of each task that has not ended.
fn add_phases(rounds: &mut RoundMap, running: &mut BTreeMap<String, u64>, trace: &ProcessTrace) {
    for event in &trace.events {
        let phase = event.text("phase");
        if phase.is_empty() || event.kind == EventKind::End {
            continue;
        }
        let (task, number) = (event.text("task").to_owned(), event.number("round"));
        // A phase that no round has ends the settlement of the one before. A coordinator that starts again repeats one;
        // a task that starts anew has no end of the round before.
        if let Some(before) = running.get(&task)
            && !(phase == "commit" && number <= *before)
            && let Some(round) = rounds.get_mut(&(task.clone(), *before))
        {
            round.end_phase(phase, event.at);
        }
        let barrier = Barrier {
            need: usize::try_from(event.number("need")).unwrap_or(usize::MAX),
            deadline: Some(event.number("by_ms")).filter(|ms| *ms > 0).map(milliseconds),
        };
        match phase {
            "commit" => {
                let least = usize::try_from(event.number("least")).unwrap_or(usize::MAX);
                let continuing = event.number("continuing");
                let begun = TracedRound { least, continuing, ..new(&task, number) };
                let round = TracedRound { start: event.at, commits: barrier, ..begun };
                // A coordinator that starts again is in the same round.
                rounds.entry((task.clone(), number)).or_insert(round);
                running.insert(task, number);
            }
            "reveal" => {
                if let Some(round) = rounds.get_mut(&(task, number)) {
                    round.updates = barrier;
                }
            }
            "value" | "settle" => {}
            _ => {
                running.remove(&task);
            }
        }
    }
}

/// Milliseconds of a field, in nanoseconds.
fn milliseconds(ms: u64) -> i64 {
    clamp_time(i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(MILLISECOND))
}

fn new(task: &str, number: u64) -> TracedRound {
    TracedRound { task: task.to_owned(), number, ..TracedRound::default() }
}

impl TracedRound {
    /// The phase before this one ends.
    fn end_phase(&mut self, next: &str, at: i64) {
        let ends = [&mut self.commit_end, &mut self.reveal_end, &mut self.value_end, &mut self.end];
        let last = match next {
            "reveal" => 0,
            "value" => 1,
            "settle" => 2,
            _ => 3,
        };
        // A round that was given up has no later phases before its settlement; a coordinator that starts again repeats
        // one.
        for end in ends.into_iter().take(last + 1).filter(|end| **end == 0) {
            *end = at;
        }
    }
}

fn add_messages(rounds: &mut RoundMap, trace: &ProcessTrace) {
    for event in &trace.events {
        let is_start = event.kind == EventKind::FlowStart;
        let is_moment = event.kind == EventKind::Instant;
        let is_refused = is_moment && event.name == "refused";
        let is_spare = is_moment && event.name == "spare";
        if !is_start && !is_refused && !is_spare && event.kind != EventKind::FlowEnd {
            continue;
        }
        let key = (event.text("task").to_owned(), event.number("round"));
        let Some(round) = rounds.get_mut(&key) else { continue };
        let (kind, member) = (event.text("kind"), event.text("member"));
        if is_refused {
            round.members.entry(member.to_owned()).or_default().refuse_commit();
            continue;
        }
        if is_spare {
            let time = |key: &str| milliseconds(event.number(key));
            let times = SpareTimes { commit: time("commit_ms"), upload: time("upload_ms") };
            round.spares.insert(member.to_owned(), times);
            continue;
        }
        if kind == "record" {
            if !is_start {
                round.records.entry(member.to_owned()).or_insert(event.at);
            }
            continue;
        }
        if (kind, is_start) == ("offer", true) {
            round.cohort.insert(member.to_owned());
        }
        let times = round.members.entry(member.to_owned()).or_default();
        if (kind, is_start) == ("commit", false) {
            times.commit_last = Some(event.at);
        }
        let time = match (kind, is_start) {
            ("offer", false) => &mut times.offer_read,
            ("commit", true) => &mut times.commit_sent,
            ("commit", false) => &mut times.commit_arrived,
            ("reveal", false) => &mut times.reveal_read,
            ("update", true) => &mut times.update_sent,
            ("update", false) => &mut times.update_arrived,
            _ => continue,
        };
        // The first one counts: a message that was sent again has no other effect.
        time.get_or_insert(event.at);
    }
}

impl MemberMessages {
    /// The latest commit is refused. After one that counts it has no effect.
    fn refuse_commit(&mut self) {
        if self.commit_arrived == self.commit_last {
            // The first one is when it would have counted.
            let arrived = self.commit_arrived.take();
            self.commit_refused = self.commit_refused.or(arrived);
        }
    }
}

/// The member to which a span belongs; `None` is the coordinator. One file has all members of a
/// laboratory.
fn owner<'a>(trace: &'a ProcessTrace, event: &'a TracedEvent) -> Option<&'a str> {
    match &trace.member {
        Some(member) => Some(member),
        None if trace.role == "laboratory" => {
            Some(event.text("member")).filter(|member| !member.is_empty())
        }
        None => None,
    }
}

/// Adds the spans of a process to the rounds that they overlap, and the ends of its trainings to
/// the rounds for which they are.
fn add_work(rounds: &mut RoundMap, trace: &ProcessTrace) {
    let is_span = |event: &&TracedEvent| matches!(event.kind, EventKind::Complete(_));
    let mut spans: Vec<_> = trace.events.iter().filter(is_span).collect();
    spans.sort_by_key(|event| event.at);
    for event in spans.iter().filter(|event| event.name == TRAIN) {
        let key = (event.text("task").to_owned(), event.number("round"));
        if let (Some(round), Some(member)) = (rounds.get_mut(&key), owner(trace, event)) {
            let end = round.trained.entry(member.to_owned()).or_insert(event.end());
            *end = event.end().max(*end);
        }
    }
    // A span that begins much earlier and reaches into a round is found by the longest one.
    let longest = spans.iter().map(|event| event.end() - event.at).max().unwrap_or(0);
    for round in rounds.values_mut() {
        let first = spans.partition_point(|event| event.at < round.start - longest);
        let overlapping = spans[first..].iter().take_while(|event| event.at < round.end);
        let overlapping = overlapping.filter(|event| event.end() > round.start);
        // A span of another task is not work for this one.
        let own = overlapping.filter(|event| {
            let task = event.text("task");
            task.is_empty() || task == round.task
        });
        for event in own {
            let span = NamedSpan {
                name: event.name.clone(),
                from: event.at.max(round.start),
                to: event.end().min(round.end),
            };
            match owner(trace, event) {
                Some(member) => round.work.entry(member.to_owned()).or_default().push(span),
                None => round.coordinator.push(span),
            }
        }
    }
}
