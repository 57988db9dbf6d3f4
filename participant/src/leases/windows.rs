//! The windows of an order: an account that deposits needs enough time for each of its actions.
//! With windows that are too short, a renter takes the deposits of honest accounts by their
//! silence.

use florin_compute::{Bid, ComputeJob, ComputeOrder, Phase};

/// Shortest window of an accepted order, unless the policy has another, in milliseconds: half a
/// minute.
pub const LEASE_WINDOW_MS: u64 = 30_000;
/// Shortest time of a segment beside its predicted one, in milliseconds: transfers and the start.
pub const SEGMENT_WINDOW_MS_MIN: u64 = 1_000;
/// A segment has at least this many times its measured time before it is late.
const SEGMENT_MARGIN: u64 = 2;
/// An answer has at least this many times the measured time of a segment: its trace is computed
/// once.
const ANSWER_MARGIN: u64 = 4;
/// Time for the messages of a drawn segment in one phase, in milliseconds: two, at the half of a coordinator's default
/// rate.
const SERVED_MS: u64 = 80;
/// A segment takes at most this part of the shortest window of another order with a deposit.
const OTHER_WINDOW_PART: u64 = 2;

/// The measured time of a segment, rounded up to milliseconds.
#[must_use]
pub(super) fn measured_ms(order: &ComputeOrder, step_us: u64) -> u64 {
    step_us.saturating_mul(order.steps.into()).div_ceil(1_000)
}

/// Why the windows of an order are too short for any device; `None` if they are long enough.
#[must_use]
pub(super) fn refuse_windows(order: &ComputeOrder, least: u64) -> Option<String> {
    let windows = &order.windows;
    let all = [
        ("bid", windows.bid),
        ("reveal", windows.reveal),
        ("fund", windows.fund),
        ("draw", windows.draw),
        ("audit", windows.audit),
        ("answer", windows.answer),
    ];
    if let Some((name, found)) = all.into_iter().find(|(_, found)| *found < least) {
        return Some(format!("its {name} window is {found} ms, and window_min is {least} ms"));
    }
    let (found, least) = (windows.segment, SEGMENT_WINDOW_MS_MIN);
    (found < least).then(|| {
        format!("its segment window is {found} ms, and a segment needs {least} ms beside its steps")
    })
}

/// The milliseconds that the messages and states of all drawn segments of an order take in one phase, with
/// `state_ms` for a state of its job.
#[must_use]
pub fn served_ms(order: &ComputeOrder, state_ms: u64) -> u64 {
    let drawn = u64::from(order.audited(order.segments));
    drawn.saturating_mul(state_ms.saturating_add(SERVED_MS))
}

/// Why the drawn segments could not all be served, audited or opened in time; `None` if there is enough time.
#[must_use]
pub(super) fn refuse_served_time(order: &ComputeOrder, job: &ComputeJob) -> Option<String> {
    let (needed, window) = (served_ms(order, job.state_ms()), order.windows.audit);
    (needed > window).then(|| {
        format!(
            "the messages and states of {} drawn segments take up to {needed} ms, and its audit window is {window} ms",
            order.audited(order.segments)
        )
    })
}

/// Why a segment could be late: its time by the card and the slack is too short for the leases
/// that share this device, with the time of the start of an executor. `None` if there is enough time.
#[must_use]
pub(super) fn refuse_segment_time(
    order: &ComputeOrder,
    bid: &Bid,
    (shared_step_us, start_ms): (u64, u64),
) -> Option<String> {
    let found = order.segment_ms(bid.times.useful_us());
    let measured = measured_ms(order, shared_step_us).saturating_add(start_ms);
    (found < measured.saturating_mul(SEGMENT_MARGIN)).then(|| {
        format!(
            "a segment may take {found} ms by its slack and window, and takes {measured} ms here: \
             it needs {SEGMENT_MARGIN} times as long"
        )
    })
}

/// Why an answer in a dispute could be late; `None` if there is enough time.
#[must_use]
pub(super) fn refuse_answer_time(order: &ComputeOrder, step_us: u64) -> Option<String> {
    let (found, measured) = (order.windows.answer, measured_ms(order, step_us));
    (found < measured.saturating_mul(ANSWER_MARGIN)).then(|| {
        format!(
            "its answer window is {found} ms, and a segment takes {measured} ms here: an answer \
             needs {ANSWER_MARGIN} times as long"
        )
    })
}

/// The shortest window in which an order may still ask for an action of an account, with its bid if
/// it may compute the segments.
#[must_use]
pub(super) fn shortest_window(order: &ComputeOrder, phase: Phase, bid: Option<&Bid>) -> u64 {
    let windows = &order.windows;
    let shortest = windows.audit.min(windows.answer);
    let segment = bid.map_or(u64::MAX, |bid| order.segment_ms(bid.times.useful_us()));
    match phase {
        Phase::Bidding | Phase::Revealing | Phase::Funding if bid.is_some() => {
            shortest.min(windows.reveal).min(windows.fund).min(segment)
        }
        Phase::Running => shortest.min(segment),
        _ => shortest,
    }
}

/// Why the segments of an order could make an action on another one late, whose shortest window
/// is given; `None` if they cannot.
#[must_use]
pub(super) fn refuse_beside(
    order: &ComputeOrder,
    step_us: u64,
    shortest_ms: Option<u64>,
) -> Option<String> {
    let (measured, shortest) = (measured_ms(order, step_us), shortest_ms?);
    (measured > shortest / OTHER_WINDOW_PART).then(|| {
        format!(
            "a segment takes {measured} ms here, and another order with a deposit has a window \
             of {shortest} ms: a segment may take a half of it"
        )
    })
}

#[cfg(test)]
mod tests {
    use florin_compute::{AuditTerms, StepTimes, Windows};
    use florin_protocol::{Amount, Blob};

    use super::*;
    use crate::leases::policy::tests::job;

    /// Ten steps of a segment, with windows of a second, and an exact slack.
    fn order() -> ComputeOrder {
        let windows = Windows {
            bid: 1_000,
            reveal: 1_000,
            fund: 1_000,
            slack: 1_000_000,
            segment: 1_000,
            draw: 1_000,
            audit: 1_000,
            answer: 1_000,
        };
        ComputeOrder { windows, ..ComputeOrder::example() }
    }

    #[test]
    fn each_short_window_refuses_an_order_with_its_numbers() {
        assert_eq!(refuse_windows(&order(), 1_000), None);
        type Change = fn(&mut Windows);
        let changes: [(Change, &str); 7] = [
            (|windows| windows.bid = 999, "its bid window is 999 ms, and window_min is 1000 ms"),
            (|windows| windows.reveal = 1, "its reveal window is 1 ms"),
            (|windows| windows.fund = 1, "its fund window is 1 ms"),
            (|windows| windows.draw = 1, "its draw window is 1 ms"),
            (|windows| windows.audit = 1, "its audit window is 1 ms"),
            (|windows| windows.answer = 1, "its answer window is 1 ms"),
            (|windows| windows.segment = 999, "its segment window is 999 ms"),
        ];
        for (change, part) in changes {
            let mut other = order();
            change(&mut other.windows);
            let why = refuse_windows(&other, 1_000).unwrap();
            assert!(why.contains(part), "{why}");
        }
    }

    /// Two of twenty segments are drawn.
    #[test]
    fn the_messages_and_states_of_drawn_segments_fit_the_audit_window() {
        let audit = AuditTerms { share: 100_000, ..order().audit };
        let order = ComputeOrder { audit, segments: 20, ..order() };
        let of_bytes = |bytes: u64| {
            let job = job();
            ComputeJob { start: Blob { bytes, ..job.start }, ..job }
        };
        let per_segment = order.windows.audit / 2;
        let fits = (per_segment - SERVED_MS) * 20_000 / 3;
        assert_eq!(refuse_served_time(&order, &of_bytes(fits)), None);
        let why = refuse_served_time(&order, &of_bytes(fits + 20_000)).unwrap();
        assert!(why.contains("2 drawn segments") && why.contains("window is 1000 ms"), "{why}");
    }

    #[test]
    fn a_segment_needs_twice_its_measured_time() {
        // Ten steps of 100 ms by the card, and a second: two seconds for a segment.
        let times = StepTimes::new(vec![100_000]).unwrap();
        let bid = Bid { per_second: Amount::from_units(1), devices: 1, times };
        assert_eq!(refuse_segment_time(&order(), &bid, (100_000, 0)), None);
        let why = refuse_segment_time(&order(), &bid, (100_100, 0)).unwrap();
        assert!(why.contains("may take 2000 ms") && why.contains("takes 1001 ms"), "{why}");
    }

    #[test]
    fn an_answer_needs_four_times_a_segment() {
        assert_eq!(refuse_answer_time(&order(), 25_000), None);
        let why = refuse_answer_time(&order(), 25_100).unwrap();
        assert!(why.contains("1000 ms") && why.contains("251 ms"), "{why}");
    }

    #[test]
    fn a_segment_takes_at_most_half_of_another_window() {
        assert_eq!(refuse_beside(&order(), 1_000_000, None), None);
        assert_eq!(refuse_beside(&order(), 50_000, Some(1_000)), None);
        let why = refuse_beside(&order(), 50_100, Some(1_000)).unwrap();
        assert!(why.contains("501 ms") && why.contains("1000 ms"), "{why}");
    }
}
