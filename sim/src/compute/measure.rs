//! The measures of a simulated market for compute.

use super::outcome::{ComputeLease, ComputeMember, ComputeOutcome, LeaseEnd};
use super::scenario::{ComputeScenario, Role};
use crate::measure::{MeasureKey, MeasureValues};

/// Every measure with its description.
pub const COMPUTE_MEASURES: &[(&str, &str)] = &[
    ("profit", "earnings of a member minus its costs, in florins"),
    ("earned", "pay minus debits and fees; of a renter its results minus what it paid, in florins"),
    ("cost", "cost of a member's computations, in florins"),
    ("gain", "profit minus that of the same members in the same market if all groups are honest"),
    (
        "gain_together",
        "the same for all members of all groups that are not honest, in florins of all of them",
    ),
    ("earned_per_hour", "earned for an hour of a device at work, in florins"),
    ("works", "leases won, orders placed, or audits asked of a member"),
    ("slashed", "stakes lost in leases and listings, of a member"),
    ("slashed_members", "fraction of the members that lost a stake"),
    ("defaulted", "leases of a member that ended early"),
    ("listed", "fraction of the members whose bids count at the end"),
    ("jobs", "jobs that were ordered"),
    ("completed", "fraction of the jobs that have their result"),
    ("fake_results", "fraction of the jobs whose result was not computed, and not found"),
    ("completion_hours", "hours from the order of a job to its result"),
    ("price", "paid to providers for an hour of a device of median speed, in florins"),
    ("utilisation", "fraction of the time for which the devices of all providers compute leases"),
    ("unawarded", "fraction of the orders that no provider took"),
    ("slashed_leases", "fraction of the leases whose provider lost its stake"),
    ("defaulted_leases", "fraction of the leases that ended early"),
    (
        "audited",
        "audits that auditors computed, two of a drawn segment, for each delivered segment",
    ),
    ("audit_share", "paid for audits and bounties, as a fraction of all that renters paid"),
    ("treasury", "stakes and bonds that were lost, and fees for probes, in florins"),
    ("data_paid", "paid to the members of a task for their updates, in florins"),
    ("infrastructure_paid", "paid to providers and auditors by all renters, in florins"),
    ("in_time", "fraction of the trainings of a task's members that ended before the next round"),
    ("balanced", "1 if the books balanced after every action, and all florins have an owner"),
];

/// The measures of one seed. `honest` is the outcome of the same market with all groups honest.
pub(super) fn measure(
    scenario: &ComputeScenario,
    played: &ComputeOutcome,
    honest: Option<&ComputeOutcome>,
) -> MeasureValues {
    let mut all = MeasureValues::new();
    let mut put = |group: Option<&str>, measure: &'static str, value: f64| {
        if value.is_finite() {
            all.insert(MeasureKey { group: group.map(str::to_owned), measure }, value);
        }
    };
    for (name, role, _) in scenario.groups() {
        for (measure, value) in group_measures(&of_group(played, name), role) {
            put(Some(name), measure, value);
        }
    }
    let profit = |outcome: &ComputeOutcome, name: &str| -> f64 {
        of_group(outcome, name).iter().map(|member| member.profit()).sum()
    };
    if let Some(honest) = honest {
        let mut together = 0.0;
        for name in scenario.deviating() {
            let gain = profit(played, name) - profit(honest, name);
            together += gain;
            put(Some(name), "gain", gain / of_group(played, name).len() as f64);
        }
        // A coordinator that deviates alone gains nothing by leases: what others gain is shown.
        if scenario.deviating().next().is_none() {
            for (name, _, count) in scenario.groups() {
                put(
                    Some(name),
                    "gain",
                    (profit(played, name) - profit(honest, name)) / f64::from(count),
                );
            }
        }
        put(None, "gain_together", together);
    }
    for (measure, value) in market_measures(played) {
        put(None, measure, value);
    }
    all
}

fn of_group<'a>(outcome: &'a ComputeOutcome, name: &str) -> Vec<&'a ComputeMember> {
    outcome.members.iter().filter(|member| member.group == name).collect()
}

fn group_measures(members: &[&ComputeMember], role: Role) -> Vec<(&'static str, f64)> {
    let count = members.len() as f64;
    let mean = |of: &dyn Fn(&ComputeMember) -> f64| -> f64 {
        members.iter().map(|member| of(member)).sum::<f64>() / count
    };
    let mut all = vec![
        ("profit", mean(&ComputeMember::profit)),
        ("earned", mean(&|member| member.earned)),
        ("cost", mean(&|member| member.cost)),
        ("works", mean(&|member| f64::from(member.works))),
    ];
    if role == Role::Provider {
        let hours: f64 = members.iter().map(|member| member.device_hours).sum();
        let earned: f64 = members.iter().map(|member| member.earned).sum();
        all.extend([
            ("earned_per_hour", earned / hours),
            ("slashed", mean(&|member| f64::from(member.slashed))),
            ("slashed_members", mean(&|member| f64::from(u8::from(member.slashed > 0)))),
            ("defaulted", mean(&|member| f64::from(member.defaulted))),
            ("listed", mean(&|member| f64::from(u8::from(member.is_listed)))),
        ]);
    }
    all
}

fn market_measures(played: &ComputeOutcome) -> Vec<(&'static str, f64)> {
    let leases = &played.leases;
    let sum = |of: &dyn Fn(&ComputeLease) -> f64| leases.iter().map(of).sum::<f64>();
    let share =
        |end: LeaseEnd, of: f64| leases.iter().filter(|lease| lease.end == end).count() as f64 / of;
    let opened = leases.len() as f64;
    let awarded = leases.iter().filter(|lease| lease.end != LeaseEnd::Unawarded).count() as f64;
    let (paid, audit_paid) = (sum(&|lease| lease.paid), sum(&|lease| lease.audit_paid));
    // Hours of devices of median speed, from each lease's own price.
    let hours = sum(&|lease| lease.price.map_or(0.0, |price| lease.paid / price));
    let device_hours: f64 = played.members.iter().map(|member| member.device_hours).sum();
    let completion = &played.completion_hours;
    let mut all = vec![
        ("jobs", f64::from(played.jobs.0)),
        ("completed", f64::from(played.jobs.1) / f64::from(played.jobs.0)),
        ("fake_results", f64::from(played.fake_results) / f64::from(played.jobs.0)),
        ("completion_hours", completion.iter().sum::<f64>() / completion.len() as f64),
        ("price", paid / hours),
        ("utilisation", device_hours / (played.hours * f64::from(played.devices))),
        ("unawarded", share(LeaseEnd::Unawarded, opened)),
        ("slashed_leases", share(LeaseEnd::Slashed, awarded)),
        ("defaulted_leases", share(LeaseEnd::Defaulted, awarded)),
        (
            "audited",
            sum(&|lease| f64::from(lease.audited)) / sum(&|lease| f64::from(lease.delivered)),
        ),
        ("audit_share", audit_paid / (paid + audit_paid)),
        ("treasury", played.treasury),
        ("balanced", f64::from(u8::from(played.is_balanced))),
    ];
    if played.trainings > 0 {
        all.extend([
            ("data_paid", played.data_paid),
            ("infrastructure_paid", paid + audit_paid),
            ("in_time", f64::from(played.in_time) / f64::from(played.trainings)),
        ]);
    }
    all
}
