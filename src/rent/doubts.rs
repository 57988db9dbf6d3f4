//! Doubts about a valid order: terms with which most providers leave it out.

use florin_compute::{ComputeOrder, Windows};
use florin_participant::leases::{
    LEASE_CHALLENGE_MS, LEASE_WINDOW_MS, SEGMENT_WINDOW_MS_MIN, served_ms,
};
use florin_protocol::format_ms;

/// Facts that an order itself does not have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderFacts {
    /// The challenge window in milliseconds.
    pub(crate) challenge_ms: u64,
    /// Virtual workers and rows of a batch of the job.
    pub(crate) virtual_workers: u32,
    pub(crate) batch: u32,
    /// Milliseconds in which a state of the job is written and sent.
    pub(crate) state_ms: u64,
    /// Microseconds of a step on this machine, if the file states the longest one and it was measured.
    pub(crate) step_us: Option<u64>,
}

/// The doubts about an order, each with its code.
pub(crate) fn doubts(order: &ComputeOrder, facts: OrderFacts) -> Vec<String> {
    let OrderFacts { challenge_ms, virtual_workers: workers, batch, state_ms, step_us } = facts;
    let step = step_us.filter(|measured| *measured > order.step_us_max).map(|measured| {
        format!(
            "order.step_max: a step takes {measured} µs on this machine, and only bids of at most {} µs count \
             [STEP_TOO_SHORT]",
            order.step_us_max
        )
    });
    let challenge = (challenge_ms < LEASE_CHALLENGE_MS).then(|| {
        format!(
            "challenge: providers leave out orders with a challenge window below {}, unless their policy permits {} \
             [CHALLENGE_TOO_SHORT]",
            format_ms(LEASE_CHALLENGE_MS),
            format_ms(challenge_ms)
        )
    });
    let unused = (workers > batch).then(|| {
        format!(
            "order.virtual_workers: a batch of {batch} rows has parts for {batch} of {workers} workers [WORKERS_UNUSED]"
        )
    });
    let windows = short_windows(&order.windows, served_ms(order, state_ms));
    [step, windows, challenge, unused].into_iter().flatten().collect()
}

fn short_windows(windows: &Windows, served_ms: u64) -> Option<String> {
    let all = [
        ("bid", windows.bid, LEASE_WINDOW_MS),
        ("reveal", windows.reveal, LEASE_WINDOW_MS),
        ("fund", windows.fund, LEASE_WINDOW_MS),
        ("segment", windows.segment, SEGMENT_WINDOW_MS_MIN),
        ("draw", windows.draw, LEASE_WINDOW_MS),
        ("audit", windows.audit, LEASE_WINDOW_MS.max(served_ms)),
        ("answer", windows.answer, LEASE_WINDOW_MS),
    ];
    let short = all.into_iter().filter(|(_, found, least)| found < least);
    let short: Vec<String> = short
        .map(|(name, found, least)| {
            format!("windows.{name} = {} (at least {})", format_ms(found), format_ms(least))
        })
        .collect();
    (!short.is_empty()).then(|| {
        format!(
            "{}: providers leave out orders with shorter windows, unless their policy permits them \
             [WINDOWS_TOO_SHORT]",
            short.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_that_most_providers_leave_out_are_doubted() {
        let example = ComputeOrder::example();
        let long = Windows {
            bid: LEASE_WINDOW_MS,
            reveal: LEASE_WINDOW_MS,
            fund: LEASE_WINDOW_MS,
            segment: SEGMENT_WINDOW_MS_MIN,
            draw: LEASE_WINDOW_MS,
            audit: LEASE_WINDOW_MS,
            answer: LEASE_WINDOW_MS,
            ..example.windows
        };
        let order = ComputeOrder { windows: long.clone(), step_us_max: 100, ..example };
        let facts = OrderFacts {
            challenge_ms: LEASE_CHALLENGE_MS,
            virtual_workers: 8,
            batch: 8,
            state_ms: 0,
            step_us: Some(100),
        };
        assert_eq!(doubts(&order, facts), Vec::<String>::new());
        assert_eq!(doubts(&order, OrderFacts { step_us: None, ..facts }), Vec::<String>::new());
        let short = Windows { bid: LEASE_WINDOW_MS - 1, segment: 1, ..long };
        let short = ComputeOrder { windows: short, ..order.clone() };
        for (order, facts, code) in [
            (&order, OrderFacts { step_us: Some(101), ..facts }, "[STEP_TOO_SHORT]"),
            (&order, OrderFacts { challenge_ms: 599_999, ..facts }, "[CHALLENGE_TOO_SHORT]"),
            (&order, OrderFacts { virtual_workers: 9, ..facts }, "[WORKERS_UNUSED]"),
            (&short, facts, "[WINDOWS_TOO_SHORT]"),
            // At least one segment is drawn.
            (&order, OrderFacts { state_ms: LEASE_WINDOW_MS, ..facts }, "[WINDOWS_TOO_SHORT]"),
        ] {
            let found = doubts(order, facts);
            assert!(found.len() == 1 && found[0].ends_with(code), "{code}: {found:?}");
        }
        let named = &doubts(&short, facts)[0];
        assert!(named.contains("windows.bid") && named.contains("windows.segment"), "{named}");
    }
}
