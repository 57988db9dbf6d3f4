//! Small cases beside all schedules without preemption.

use std::cell::Cell;

use florin_scheduler::{SchedulePolicy, TrainingOrder, simulate};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::{ALL, KIND, PLAIN, arrivals, cluster, completion_sum, order, runner};

/// The least sum of completion times of orders that are all there at the begin, on one node: every
/// order starts when another one ends, or at once, on any count of devices.
fn least_sum(orders: &[TrainingOrder], free_at: &[u128]) -> u128 {
    if orders.is_empty() {
        return 0;
    }
    let mut least = u128::MAX;
    for (at, order) in orders.iter().enumerate() {
        let mut rest = orders.to_vec();
        rest.remove(at);
        let profile = order.profile(KIND).unwrap();
        for count in 1..=free_at.len() {
            // The devices that are free first; a later start never finishes an order earlier.
            let mut free: Vec<u128> = free_at.to_vec();
            free.sort_unstable();
            let end = free[count - 1] + order.remaining_nano(profile.step_nano(count as u32));
            free[..count].fill(end);
            least = least.min(end + least_sum(&rest, &free));
        }
    }
    least
}

#[test]
fn no_policy_without_preemption_beats_all_schedules() {
    let steps = vec((1_u64..40, 1_u64..40, 1_u64..40, 1_u64..20), 1..=4);
    let (reached, cases) = (Cell::new(0), Cell::new(0));
    runner(81, 96)
        .run(&(steps, 1_u32..=3), |(rows, devices)| {
            let orders: Vec<TrainingOrder> = (1..)
                .zip(&rows)
                .map(|(id, (one, two, three, steps))| order(id, &[*one, *two, *three], *steps))
                .collect();
            let least = least_sum(&orders, &vec![0; devices as usize]);
            let arrivals = arrivals(orders.into_iter().map(|order| (0, order)));
            for policy in [SchedulePolicy::Marble(PLAIN), SchedulePolicy::Exclusive] {
                let log = simulate(cluster(&[devices]), &policy, &arrivals).unwrap();
                let sum = completion_sum(&log);
                prop_assert!(sum >= least, "{policy:?}: {sum} is less than {least}");
                cases.set(cases.get() + 1);
                reached.set(reached.get() + u32::from(sum == least));
            }
            Ok(())
        })
        .unwrap();
    // The bound is tight: many of these cases reach it.
    let (reached, cases) = (reached.get(), cases.get());
    assert!(reached * 5 > cases, "{reached} of {cases}");
}

#[test]
fn one_order_alone_takes_its_fastest_time_where_the_knee_allows_it() {
    for policy in ALL {
        let orders = arrivals([(3, order(1, &[80, 40, 30], 5))]);
        let log = simulate(cluster(&[3]), &policy, &orders).unwrap();
        let fastest = 150;
        assert!(completion_sum(&log) >= fastest, "{policy:?}");
    }
}
