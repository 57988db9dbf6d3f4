//! `florin trace show`: prints each round of a trace, the causes of its waits, and its critical path.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::predicted::{self, Prediction};
use super::{damage, read};
use crate::cli::TraceShow;
use crate::failure::{Exit, Failure};
use crate::show::{self, Cell, DIM, HEAD, NOTE, TextTable};
use crate::trace::analysis::delays::{Delay, delays};
use crate::trace::analysis::path::{NAMES_SEPARATOR, Party, PathStep, latencies};
use crate::trace::analysis::producers::producer_waits;
use crate::trace::analysis::replay::{ReplayChange, replay};
use crate::trace::analysis::round::{MILLISECOND, TracedRound, rounds};
use crate::trace::analysis::waits::{RoundTimes, round_times};

/// Steps of a critical path that are shorter than this share of the round are not printed.
const STEP_SHARE_MIN: i64 = 200;
/// Maximum number of printed delays of a round.
const DELAYS_MAX: usize = 3;
/// Characters of an account in a table.
const ACCOUNT_CHARS: usize = 10;
/// Nanoseconds of a second.
const SECOND: f64 = 1e9;

pub(super) fn run(arguments: &TraceShow) -> anyhow::Result<Exit> {
    let found = read(&arguments.folder)?;
    let rounds = rounds(&found.traces);
    if rounds.is_empty() {
        let mut message = "no round in these traces has an offer and an end: the trace of a \
            coordinator, or of `florin sim run`, is missing, or ends before the first round"
            .to_owned();
        for line in damage::lines(&found) {
            message.push_str("; ");
            message.push_str(&line);
        }
        return Err(Failure::input("TRACE_WITHOUT_ROUNDS", message).into());
    }
    let report = TraceReport::new(&rounds, arguments)?;
    if arguments.json.json {
        let damaged = damage::to_json(&found);
        show::json(&report.to_json(&damaged))?;
    } else {
        damage::print(&found);
        report.print();
    }
    Ok(Exit::Done)
}

/// All results for one folder.
struct TraceReport<'a> {
    rounds: &'a [TracedRound],
    times: Vec<RoundTimes>,
    delays: Vec<Vec<Delay>>,
    members: Vec<&'a str>,
    change: Option<ReplayChange>,
    predicted: Vec<Option<Prediction>>,
}

impl<'a> TraceReport<'a> {
    fn new(rounds: &'a [TracedRound], arguments: &TraceShow) -> anyhow::Result<Self> {
        let usual = latencies(rounds);
        let times: Vec<_> = rounds.iter().map(|round| round_times(round, &usual)).collect();
        let delays = delays(rounds, &times);
        let cohorts = rounds.iter().flat_map(|round| &round.cohort);
        let members: BTreeSet<&str> = cohorts.map(String::as_str).collect();
        let members: Vec<&str> = members.into_iter().collect();
        let change = change(arguments, &members)?;
        let predict = |round: &TracedRound| Some(replay(round, rounds, change.as_ref()?));
        let predicted = rounds.iter().map(predict).collect();
        Ok(Self { rounds, times, delays, members, change, predicted })
    }

    /// A party, with the member's number.
    fn party(&self, party: &Party) -> String {
        let one = |account: &str| {
            let number = self.members.iter().position(|member| *member == account);
            let short: String = account.chars().take(ACCOUNT_CHARS).collect();
            match number {
                Some(number) => format!("member {} ({short})", number + 1),
                None if self.is_provider(account) => format!("provider {short}"),
                // It has no place in any round of the trace.
                None if account.starts_with("0x") => format!("participant {short}"),
                None => account.to_owned(),
            }
        };
        let member = |accounts: &str| {
            let all: Vec<String> = accounts.split(NAMES_SEPARATOR).map(one).collect();
            all.join(NAMES_SEPARATOR)
        };
        match party {
            Party::Sender(account) => format!("late sender: {}", member(account)),
            Party::Receiver(account) => format!("late receiver: {}", member(account)),
            Party::Producer(account) => format!("slow producer: {}", member(account)),
            Party::Transfer(account) => format!("transfer: {}", member(account)),
            Party::Coordinator => "coordinator".to_owned(),
            Party::Disk => "disk".to_owned(),
            Party::Ledger => "ledger".to_owned(),
        }
    }

    /// Whether a work record of this account arrived.
    fn is_provider(&self, account: &str) -> bool {
        self.rounds.iter().any(|round| round.records.contains_key(account))
    }

    /// A party without its cause.
    fn short_party(&self, party: &Party) -> String {
        let text = self.party(party);
        let who = text.split_once(": ").map_or(text.as_str(), |(_, who)| who);
        who.split(" (").next().unwrap_or(who).to_owned()
    }

    fn print(&self) {
        let mut table = TextTable::new(&[">member", "account"]);
        for (number, member) in self.members.iter().enumerate() {
            table.row([Cell::from((number + 1).to_string()), (*member).into()]);
        }
        table.print();
        anstream::println!();
        self.print_phases();
        for (at, round) in self.rounds.iter().enumerate() {
            let (times, delays) = (&self.times[at], &self.delays[at]);
            anstream::println!("\n{HEAD}round {} of task {}{HEAD:#}", round.number, round.task);
            if let Some(Ok(predicted)) = &self.predicted[at] {
                show::paragraph(
                    "predicted: ",
                    &predicted::remaining(predicted, &self.members),
                    DIM,
                );
            }
            self.print_causes(round, times);
            self.print_producers(round);
            self.print_delays(delays);
            self.print_path(round, &times.path);
        }
    }

    fn print_phases(&self) {
        let tasks: BTreeSet<&str> = self.rounds.iter().map(|round| round.task.as_str()).collect();
        let task = (tasks.len() > 1).then_some("task");
        let mut titles = Vec::from_iter(task);
        titles.extend([">round", ">ms", ">commit", ">reveal", ">value", ">settle", "longest wait"]);
        if self.change.is_some() {
            titles.extend(predicted::TITLES);
        }
        let mut table = TextTable::new(&titles);
        for ((round, times), predicted) in self.rounds.iter().zip(&self.times).zip(&self.predicted)
        {
            let longest = times.waits.iter().max_by_key(|(_, wait)| **wait);
            let longest = longest.map_or_else(String::new, |(party, wait)| {
                format!("{} {}", self.party(party), percent(*wait, round.duration()))
            });
            let mut row: Vec<Cell> = task.map(|_| round.task.as_str().into()).into_iter().collect();
            row.extend([
                round.number.to_string().into(),
                ms(round.duration()).into(),
                ms(round.commit_end - round.start).into(),
                ms(round.reveal_end - round.commit_end).into(),
                ms(round.value_end - round.reveal_end).into(),
                ms(round.end - round.value_end).into(),
                longest.into(),
            ]);
            row.extend(predicted.iter().flat_map(|it| predicted::cells(round, it)));
            table.row(row);
        }
        table.print();
        let predicted: Vec<_> = self.predicted.iter().flatten().collect();
        predicted::print_notes(&predicted);
    }

    fn print_causes(&self, round: &TracedRound, times: &RoundTimes) {
        let mut table = TextTable::new(&["time", ">ms", ">%"]);
        let mut row = |cause: String, time: i64| {
            table.row([cause.into(), ms(time).into(), percent(time, round.duration()).into()]);
        };
        row("work of all members".to_owned(), times.work);
        let mut waits: Vec<_> = times.waits.iter().collect();
        waits.sort_by_key(|(_, wait)| std::cmp::Reverse(**wait));
        for (party, wait) in waits {
            row(self.party(party), *wait);
        }
        table.print();
    }

    /// Prints the waits between members and their producers, on the critical path or not.
    fn print_producers(&self, round: &TracedRound) {
        for waits in producer_waits(round) {
            let member = self.short_party(&Party::Producer(waits.member));
            show::sentence(&format!(
                "{NOTE}rows of {member}:{NOTE:#} it waited {} ms for them (slow producer), and they \
                 waited {} ms for its training (slow trainer)",
                ms(waits.for_rows),
                ms(waits.for_trainer)
            ));
        }
    }

    /// Prints the delays that cost most; of those without a cost, the longest.
    fn print_delays(&self, delays: &[Delay]) {
        let mut costly: Vec<&Delay> =
            delays.iter().filter(|delay| delay.cost >= MILLISECOND).collect();
        costly.sort_by_key(|delay| std::cmp::Reverse(delay.cost));
        costly.truncate(DELAYS_MAX);
        let longest = delays.first().filter(|_| costly.is_empty());
        for delay in costly.into_iter().chain(longest) {
            let Delay { party, name, usual, excess, cost } = delay;
            show::sentence(&format!(
                "{NOTE}longer than usual:{NOTE:#} {}, {name}: {} ms more than {} ms; the round took \
                 {} ms more",
                self.short_party(party),
                ms(*excess),
                ms(*usual),
                ms(*cost)
            ));
        }
    }

    fn print_path(&self, round: &TracedRound, path: &[PathStep]) {
        let least = round.duration() / STEP_SHARE_MIN;
        let long = path.iter().filter(|step| step.to - step.from >= least);
        let steps: Vec<String> = long
            .map(|step| {
                let who = self.short_party(&step.party);
                format!("{who}: {} {} ms", step.name, ms(step.to - step.from))
            })
            .collect();
        show::paragraph("critical path: ", &steps.join(" → "), DIM);
    }

    fn to_json(&self, damaged: &Value) -> Value {
        let rounds: Vec<Value> = (0..self.rounds.len()).map(|at| self.round_json(at)).collect();
        json!({ "members": self.members, "damaged_files": damaged, "rounds": rounds })
    }

    fn round_json(&self, at: usize) -> Value {
        let (round, times) = (&self.rounds[at], &self.times[at]);
        let waits: Vec<Value> =
            times.waits.iter().map(|(party, wait)| merged(party, json!({ "ns": wait }))).collect();
        let delays: Vec<Value> = self.delays[at]
            .iter()
            .map(|Delay { party, name, usual, excess, cost }| {
                let fields = json!({ "part": name, "usual_ns": usual, "excess_ns": excess,
                    "cost_ns": cost });
                merged(party, fields)
            })
            .collect();
        let path: Vec<Value> = times
            .path
            .iter()
            .map(|step| {
                let fields = json!({ "work": step.name, "from_ns": step.from - round.start,
                    "to_ns": step.to - round.start });
                merged(&step.party, fields)
            })
            .collect();
        let producers: Vec<Value> = producer_waits(round)
            .iter()
            .map(|waits| {
                json!({ "member": waits.member, "slow_producer_ns": waits.for_rows,
                    "slow_trainer_ns": waits.for_trainer })
            })
            .collect();
        let predicted = self.predicted[at].as_ref().map(|it| predicted::to_json(round, it));
        let phases = BTreeMap::from([
            ("commit", round.commit_end - round.start),
            ("reveal", round.reveal_end - round.commit_end),
            ("value", round.value_end - round.reveal_end),
            ("settle", round.end - round.value_end),
        ]);
        json!({
            "task": round.task, "round": round.number, "ns": round.duration(),
            "phases_ns": phases, "work_ns": times.work, "waits": waits, "delays": delays,
            "critical_path": path, "producers": producers, "predicted": predicted,
        })
    }
}

/// The fields of a party, and further ones.
fn merged(party: &Party, mut fields: Value) -> Value {
    let (cause, member) = match party {
        Party::Sender(member) => ("late-sender", Some(member)),
        Party::Receiver(member) => ("late-receiver", Some(member)),
        Party::Producer(member) => ("slow-producer", Some(member)),
        Party::Transfer(member) => ("transfer", Some(member)),
        Party::Coordinator => ("coordinator", None),
        Party::Disk => ("disk", None),
        Party::Ledger => ("ledger", None),
    };
    fields["cause"] = cause.into();
    if let Some(member) = member {
        fields["member"] = member.as_str().into();
    }
    fields
}

/// The change that the arguments ask for.
fn change(arguments: &TraceShow, members: &[&str]) -> anyhow::Result<Option<ReplayChange>> {
    if arguments.without.is_none() && arguments.deadline.is_none() {
        return Ok(None);
    }
    let without = arguments.without.as_deref().map(|text| find(text, members)).transpose()?;
    let deadline = arguments.deadline.map(|seconds| (seconds * SECOND) as i64);
    Ok(Some(ReplayChange { without: without.map(str::to_owned), deadline }))
}

/// The member with this number, or whose account begins like this.
fn find<'a>(text: &str, members: &[&'a str]) -> Result<&'a str, Failure> {
    let number = text.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    if let Some(member) = number.and_then(|at| members.get(at)) {
        return Ok(member);
    }
    let lower = text.to_lowercase();
    let is_like = |member: &&&str| number.is_none() && member.to_lowercase().starts_with(&lower);
    let like: Vec<_> = members.iter().filter(is_like).collect();
    match like[..] {
        [one] => Ok(one),
        _ => {
            let found = match text.parse::<usize>() {
                Ok(_) => "no member has this number".to_owned(),
                Err(_) => format!("{} accounts begin like this", like.len()),
            };
            let message = format!(
                "--without {text}: {found}; give a number from 1 to {}, or the first digits of one \
                 account",
                members.len()
            );
            Err(Failure::input("UNKNOWN_MEMBER", message))
        }
    }
}

pub(super) fn ms(ns: i64) -> String {
    format!("{:.1}", ns as f64 / MILLISECOND as f64)
}

pub(super) fn percent(part: i64, whole: i64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole.max(1) as f64)
}
