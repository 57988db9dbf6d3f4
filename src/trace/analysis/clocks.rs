//! Aligns the clocks of processes with the coordinator's, as NTP does: the fastest message in each
//! direction took half of the fastest round trip.

use std::collections::BTreeMap;

use super::read::{ProcessTrace, clamp_time};
use crate::trace::record::{EventKind, message_id};

/// The role whose clock all times follow.
const REFERENCE: &str = "coordinator";

/// Shifts the events of each process to the coordinator's clock. Returns the shift of each file in
/// nanoseconds. Without a coordinator nothing is shifted.
pub(crate) fn align(traces: &mut [ProcessTrace]) -> Vec<i64> {
    let reference = traces.iter().filter(|trace| trace.role == REFERENCE);
    let (mut sent, mut received) = (BTreeMap::new(), BTreeMap::new());
    for trace in reference {
        for event in &trace.events {
            match event.kind {
                // A coordinator that starts again sends a message twice: the first one was read.
                EventKind::FlowStart => sent.entry(message_id(&event.fields)).or_insert(event.at),
                EventKind::FlowEnd => received.entry(message_id(&event.fields)).or_insert(event.at),
                _ => continue,
            };
        }
    }
    let shift = |trace: &ProcessTrace| {
        let (mut there, mut back) = (None, None);
        for event in &trace.events {
            let id = || message_id(&event.fields);
            let (least, delay) = match event.kind {
                EventKind::FlowEnd => (&mut there, sent.get(&id()).map(|at| event.at - at)),
                EventKind::FlowStart => (&mut back, received.get(&id()).map(|at| at - event.at)),
                _ => continue,
            };
            *least = [*least, delay].into_iter().flatten().min();
        }
        shift_of(there, back)
    };
    let shifts: Vec<i64> =
        traces.iter().map(|trace| if trace.role == REFERENCE { 0 } else { shift(trace) }).collect();
    for (trace, shift) in traces.iter_mut().zip(&shifts) {
        let shifted = |at: i64| clamp_time(at.saturating_add(*shift));
        trace.events.iter_mut().for_each(|event| event.at = shifted(event.at));
    }
    shifts
}

/// The shift of a clock by its least delays: from the coordinator, and to it. With messages in one
/// direction only, no message may arrive before it was sent.
fn shift_of(there: Option<i64>, back: Option<i64>) -> i64 {
    match (there, back) {
        (Some(there), Some(back)) => (back - there) / 2,
        (Some(there), None) => (-there).max(0),
        (None, Some(back)) => back.min(0),
        (None, None) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_shifted_by_half_of_the_asymmetry() {
        // Delays of 4 ms both ways, by a clock that is 100 ms ahead.
        assert_eq!(shift_of(Some(104), Some(-96)), -100);
        assert_eq!(shift_of(Some(-3), None), 3);
        assert_eq!(shift_of(Some(3), None), 0);
        assert_eq!(shift_of(None, Some(-3)), -3);
        assert_eq!(shift_of(None, None), 0);
    }
}
