//! The waits between members and the programs that write their rows, in one round.

use super::round::TracedRound;

/// A member waits for rows of its producer: the producer is slow.
pub(crate) const WAIT_FOR_ROWS: &str = "wait for rows";
/// Rows of a producer wait for a training to end: the trainer is slow.
pub(crate) const WAIT_FOR_TRAINER: &str = "wait for trainer";

/// The waits of one member and of its producer, in nanoseconds. They may also be outside of the
/// critical path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProducerWaits {
    /// The member.
    pub(crate) member: String,
    /// It waited for rows.
    pub(crate) for_rows: i64,
    /// Rows waited for it, and their producer was blocked.
    pub(crate) for_trainer: i64,
}

/// The waits of each member of the cohort that has a producer and waited, or whose producer did.
/// Another participant has no part in the round.
pub(crate) fn producer_waits(round: &TracedRound) -> Vec<ProducerWaits> {
    let of = |member: &String| {
        let time = |name| time_between(round, member, name, (round.start, round.end));
        let (for_rows, for_trainer) = (time(WAIT_FOR_ROWS), time(WAIT_FOR_TRAINER));
        ProducerWaits { member: member.clone(), for_rows, for_trainer }
    };
    let all = round.cohort.iter().map(of);
    all.filter(|waits| waits.for_rows > 0 || waits.for_trainer > 0).collect()
}

/// The time of a member's spans of one name within two moments.
pub(crate) fn time_between(
    round: &TracedRound,
    member: &str,
    name: &str,
    (from, to): (i64, i64),
) -> i64 {
    let spans = round.work.get(member).map_or(&[][..], Vec::as_slice);
    let spans = spans.iter().filter(|span| span.name == name);
    let times = spans.map(|span| (span.to.min(to) - span.from.max(from)).max(0));
    // Hostile traces have many long spans.
    times.fold(0, i64::saturating_add).min((to - from).max(0))
}
