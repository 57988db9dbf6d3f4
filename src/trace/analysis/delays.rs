//! Parts of a round that took longer than usual: each is compared with the median of the same part
//! of the other rounds, or of the other members where there are too few rounds.

use std::collections::BTreeMap;

use super::path::{Party, PathStep, PhaseMessages};
use super::producers::{WAIT_FOR_ROWS, time_between};
use super::round::{MILLISECOND, TracedRound};
use super::waits::RoundTimes;

/// Number of other rounds, or of other members, that make a median.
const OTHERS_MIN: usize = 2;
/// The least delay in nanoseconds, and its least share of the usual time in percent.
const DELAY_MIN: (i64, i64) = (10 * MILLISECOND, 20);

/// A member's work before its commit.
const WORK: &str = "work until the commit";

/// A part of a round that took longer than usual.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delay {
    /// The party.
    pub(crate) party: Party,
    /// The part of the round.
    pub(crate) name: String,
    /// Its usual time in nanoseconds.
    pub(crate) usual: i64,
    /// The time beyond it.
    pub(crate) excess: i64,
    /// By how much the round was longer for it.
    pub(crate) cost: i64,
}

type PartKey = (Party, String);

/// The delays of each round, the longest first. `times` are those of the same rounds.
pub(crate) fn delays(rounds: &[TracedRound], times: &[RoundTimes]) -> Vec<Vec<Delay>> {
    let parts: Vec<BTreeMap<PartKey, i64>> =
        rounds.iter().zip(times).map(|(round, times)| parts(round, &times.path)).collect();
    let mut by_part: BTreeMap<(&str, &PartKey), Vec<i64>> = BTreeMap::new();
    for (round, parts) in rounds.iter().zip(&parts) {
        for (key, time) in parts {
            by_part.entry((round.task.as_str(), key)).or_default().push(*time);
        }
    }
    by_part.values_mut().for_each(|all| all.sort_unstable());
    let of_round = |(round, parts): (&TracedRound, &BTreeMap<PartKey, i64>)| {
        let delay = |(key, time): (&PartKey, &i64)| {
            let all = by_part.get(&(round.task.as_str(), key)).map_or(&[][..], Vec::as_slice);
            let usual = median_without(all, *time).or_else(|| usual_of_others(parts, key))?;
            let (least, percent) = DELAY_MIN;
            let excess = time - usual;
            (excess >= least && excess / percent.max(1) >= usual / 100).then(|| Delay {
                party: key.0.clone(),
                name: key.1.clone(),
                usual,
                excess,
                cost: cost(round, key, excess),
            })
        };
        let mut found: Vec<Delay> = parts.iter().filter_map(delay).collect();
        found.sort_by_key(|delay| std::cmp::Reverse((delay.excess, delay.cost)));
        found
    };
    rounds.iter().zip(&parts).map(of_round).collect()
}

/// The parts of a round: of each member all seven, of the coordinator those on the critical path.
fn parts(round: &TracedRound, path: &[PathStep]) -> BTreeMap<PartKey, i64> {
    let mut parts = BTreeMap::new();
    for (member, times) in &round.members {
        let receiver = || Party::Receiver(member.clone());
        let sender = || Party::Sender(member.clone());
        let transfer = || Party::Transfer(member.clone());
        // Without the member's own trace its work begins with the offer.
        let (begin, request) = (Some(round.start), Some(round.commit_end));
        let first = times.offer_read.or(begin);
        let second = times.reveal_read.or(request);
        let (commit, update) = (times.commit_arrived, times.update_arrived);
        let all = [
            (receiver(), "offer", begin, times.offer_read),
            (sender(), WORK, first, times.commit_sent.or(commit)),
            (transfer(), "commit", times.commit_sent, commit),
            (receiver(), "request for the update", request, times.reveal_read),
            (sender(), "work until the update", second, times.update_sent.or(update)),
            (transfer(), "update", times.update_sent, update),
        ];
        for (party, name, from, to) in all {
            if let (Some(from), Some(to)) = (from, to) {
                parts.insert((party, name.to_owned()), (to - from).max(0));
            }
        }
        if let (Some(from), Some(to)) = (first, times.commit_sent.or(commit)) {
            let waited = time_between(round, member, WAIT_FOR_ROWS, (from, to));
            parts.insert((Party::Producer(member.clone()), WAIT_FOR_ROWS.to_owned()), waited);
            // It did not work meanwhile.
            parts.entry((sender(), WORK.to_owned())).and_modify(|work| *work -= waited);
        }
    }
    for step in path {
        let is_record = step.name == "work record";
        if is_record || matches!(step.party, Party::Coordinator | Party::Disk | Party::Ledger) {
            let key = (step.party.clone(), step.name.clone());
            *parts.entry(key).or_insert(0) += step.to - step.from;
        }
    }
    parts
}

/// The median of sorted times without one of them; `None` if there are too few.
fn median_without(sorted: &[i64], one: i64) -> Option<i64> {
    let at = sorted.binary_search(&one).ok()?;
    let mut others = sorted.to_vec();
    others.remove(at);
    (others.len() >= OTHERS_MIN).then(|| others[(others.len() - 1) / 2])
}

/// The median of the same part of other members in this round.
fn usual_of_others(parts: &BTreeMap<PartKey, i64>, key: &PartKey) -> Option<i64> {
    let (party, name) = key;
    let is_like = |other: &Party| {
        std::mem::discriminant(other) == std::mem::discriminant(party) && other != party
    };
    let others = parts.iter().filter(|((of, part), _)| is_like(of) && part == name);
    let mut others: Vec<i64> = others.map(|(_, time)| *time).collect();
    others.sort_unstable();
    (others.len() >= OTHERS_MIN).then(|| others[(others.len() - 1) / 2])
}

/// By how much a round was longer: nothing for a member for whom the round did not wait.
fn cost(round: &TracedRound, (party, name): &PartKey, excess: i64) -> i64 {
    let member = match party {
        Party::Sender(_) if name == "work record" => return excess,
        Party::Sender(member)
        | Party::Receiver(member)
        | Party::Producer(member)
        | Party::Transfer(member) => member,
        Party::Coordinator | Party::Disk | Party::Ledger => return excess,
    };
    let phase = match name.as_str() {
        "offer" | WORK | WAIT_FOR_ROWS | "commit" => PhaseMessages::of_commits(round),
        _ => PhaseMessages::of_updates(round),
    };
    let Some((last, _)) = phase.last().filter(|(_, of)| of == member) else { return 0 };
    let others = phase.arrivals.iter().map(|(at, _)| *at).filter(|at| *at < last);
    let before = others.max().unwrap_or(phase.start);
    excess.min(last - before)
}
