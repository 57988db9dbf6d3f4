//! The policy refuses each order that breaks one of its rules, with the reason.

use florin_compute::{AuditTerms, Deposits, Windows};
use florin_protocol::{
    Blob, Canonical, GraphForm, GraphModel, Micro, ModelLoss, TaskSpec, TensorShape, Timestamp,
    Training, blob_digest,
};

use super::*;

const HOST: Address = Address([9; 20]);

fn units(units: u128) -> Amount {
    Amount::from_units(units)
}

pub(in crate::leases) fn job() -> ComputeJob {
    let blob = |bytes: u64| Blob { digest: blob_digest(&bytes.to_le_bytes()), bytes };
    ComputeJob {
        graph: GraphModel {
            form: GraphForm::Operators,
            graph: blob(100),
            frozen: Some(blob(50)),
            inputs: 4,
            targets: 0,
            outputs: 3,
            loss: ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO },
            tensors: vec![TensorShape { name: "weight".to_owned(), shape: vec![3, 4] }],
        },
        start: blob(200),
        rows: blob(300),
        row_count: 100,
        training: Training { epochs: 20, batch: 10, ..TaskSpec::example().training },
        virtual_workers: 4,
        seed: 7,
    }
}

/// Twenty segments of ten steps, in windows of half a minute.
fn order() -> ComputeOrder {
    let example = ComputeOrder::example();
    let windows = Windows {
        bid: LEASE_WINDOW_MS,
        reveal: LEASE_WINDOW_MS,
        fund: LEASE_WINDOW_MS,
        draw: LEASE_WINDOW_MS,
        audit: LEASE_WINDOW_MS,
        answer: LEASE_WINDOW_MS,
        segment: 1_000,
        ..example.windows
    };
    ComputeOrder { job: job().digest(), windows, ..example }
}

fn policy() -> LeasePolicy {
    LeasePolicy {
        bid: Some(BidRule {
            per_hour: "3.6".parse().unwrap(),
            stake_max: units(22_000),
            orders_max: 1,
        }),
        audit: Some(AuditRule { fee_min: units(700), bond_max: units(8_000) }),
        referees: vec![order().referee],
        ..LeasePolicy::none()
    }
}

fn refused(
    policy: &LeasePolicy,
    role: LeaseRole,
    order: &ComputeOrder,
    job: &ComputeJob,
) -> Option<String> {
    let terms =
        Terms::from_order(order, order.market, HOST, LEASE_CHALLENGE_MS, Timestamp(0)).unwrap();
    let class = ComputeOrder::example().class;
    policy.refuse(role, &OfferedOrder { order, job, terms: &terms, class })
}

#[test]
fn an_order_within_all_rules_is_accepted_for_each_role() {
    for role in [LeaseRole::Provider, LeaseRole::Auditor] {
        assert_eq!(refused(&policy(), role, &order(), &job()), None);
    }
}

#[test]
fn each_rule_refuses_an_order_and_names_itself() {
    type Change = fn(&mut LeasePolicy);
    let both: [(Change, &str); 6] = [
        (|policy| policy.referees = vec![HOST], "is not one of the policy's referees"),
        (|policy| policy.segments_max = 19, "segments_max is 19"),
        (|policy| policy.challenge_min_ms += 1, "challenge_min is 600001 ms"),
        (|policy| policy.window_min_ms += 1, "window_min is 30001 ms"),
        (|policy| policy.job_bytes_max = 649, "its job has 650 bytes"),
        (|policy| (policy.bid, policy.audit) = (None, None), "the policy has no ["),
    ];
    for (change, part) in both {
        let mut other = policy();
        change(&mut other);
        for role in [LeaseRole::Provider, LeaseRole::Auditor] {
            let why = refused(&other, role, &order(), &job()).unwrap();
            assert!(why.contains(part), "{why}");
        }
    }
    let one: [(Change, LeaseRole, &str); 3] = [
        (
            |policy| policy.bid.as_mut().unwrap().stake_max = units(21_999),
            LeaseRole::Provider,
            "bid.stake_max",
        ),
        (
            |policy| policy.audit.as_mut().unwrap().fee_min = units(701),
            LeaseRole::Auditor,
            "audit.fee_min",
        ),
        (
            |policy| policy.audit.as_mut().unwrap().bond_max = units(7_999),
            LeaseRole::Auditor,
            "audit.bond_max",
        ),
    ];
    for (change, role, part) in one {
        let mut other = policy();
        change(&mut other);
        let why = refused(&other, role, &order(), &job()).unwrap();
        assert!(why.contains(part), "{why}");
    }
}

#[test]
fn an_order_with_windows_of_a_millisecond_is_refused_for_each_role() {
    let short =
        Windows { reveal: 1, fund: 1, slack: 1_000_000, segment: 1, answer: 1, ..order().windows };
    let tiny = ComputeOrder { windows: short, ..order() };
    assert!(tiny.check().is_ok(), "the market accepts the order");
    for role in [LeaseRole::Provider, LeaseRole::Auditor] {
        let why = refused(&policy(), role, &tiny, &job()).unwrap();
        assert!(why.contains("its reveal window is 1 ms, and window_min is 30000 ms"), "{why}");
    }
}

#[test]
fn an_order_of_another_class_or_job_is_refused() {
    let elsewhere = ComputeOrder { class: Digest([1; 32]), ..order() };
    let why = refused(&policy(), LeaseRole::Provider, &elsewhere, &job()).unwrap();
    assert!(why.contains("class"), "{why}");
    let other = ComputeJob { seed: 8, ..job() };
    let why = refused(&policy(), LeaseRole::Provider, &order(), &other).unwrap();
    assert!(why.contains("the job is not the one"), "{why}");
    let shorter = ComputeOrder { steps: 20, ..order() };
    assert!(refused(&policy(), LeaseRole::Auditor, &shorter, &job()).is_some());
}

#[test]
fn a_policy_without_a_role_a_referee_or_a_number_is_invalid() {
    assert_eq!(policy().check(), Ok(()));
    let only_referee = LeasePolicy { referee: true, ..LeasePolicy::none() };
    assert_eq!(only_referee.check(), Ok(()));
    type Change = fn(&mut LeasePolicy);
    let changes: [(Change, &str); 9] = [
        (|policy| *policy = LeasePolicy::none(), "bid"),
        (|policy| policy.bid.as_mut().unwrap().per_hour = Amount::ZERO, "bid"),
        (|policy| policy.bid.as_mut().unwrap().orders_max = 0, "bid.orders_max"),
        (|policy| policy.bid.as_mut().unwrap().orders_max = 9, "bid.orders_max"),
        (|policy| policy.audit.as_mut().unwrap().bond_max = Amount::ZERO, "audit.bond_max"),
        (|policy| policy.referees.clear(), "referees"),
        (|policy| policy.referees = vec![HOST; REFEREES_MAX + 1], "referees"),
        (|policy| policy.segments_max = 0, "segments_max"),
        (|policy| policy.window_min_ms = 0, "window_min"),
    ];
    for (change, key) in changes {
        let mut other = policy();
        change(&mut other);
        let error = other.check().unwrap_err();
        assert_eq!(error.key, key, "{error}");
    }
}

#[test]
fn leases_at_the_same_time_share_the_device_at_one_price() {
    // 3.6 FLN an hour are 0.001 FLN a second.
    let rule = BidRule { per_hour: "3.6".parse().unwrap(), stake_max: units(1), orders_max: 1 };
    let alone = rule.bid(80, 1).unwrap();
    assert_eq!(alone.per_second, "0.001".parse().unwrap());
    assert_eq!((alone.devices, alone.times.useful_us()), (1, 100));
    let two = rule.bid(80, 2).unwrap();
    assert_eq!(two.per_second, "0.0005".parse().unwrap());
    assert_eq!(two.times.useful_us(), 200);
    assert_eq!(two.price(&order()), alone.price(&order()));
    // Prices are rounded up.
    let small = BidRule { per_hour: units(3_601), ..rule };
    assert_eq!(small.bid(1, 1).unwrap().per_second, units(2));
    assert!(rule.bid(86_400_000_000, 1).is_err());
}

#[test]
fn leases_share_a_device_of_executors_where_the_policy_takes_more_than_devices() {
    let sharing = |orders_max, executors| {
        let bid = policy().bid.map(|rule| BidRule { orders_max, ..rule });
        LeasePolicy { bid, executors, ..policy() }.sharing()
    };
    let machine =
        |leases_of_each| Some(DeviceSupply::Machine { devices: 2, launches: true, leases_of_each });
    let batch = Some(DeviceSupply::Batch { of_each: 1, queue_ms: 1 });
    assert_eq!((sharing(3, None), sharing(3, batch)), (3, 1));
    assert_eq!([2, 3, 4].map(|orders| sharing(orders, machine(2))), [1, 2, 2]);
    assert_eq!(sharing(2, machine(1)), 1);
    // A device that was promised whole is shared by no lease.
    let alone = LeasePolicy { executors: machine(2), ..policy() };
    assert_eq!(alone.supply(), machine(1));
}

#[test]
fn a_bid_that_cannot_win_is_refused_with_the_reason() {
    let bid = |per_second: u128, us: u64| Bid {
        per_second: units(per_second),
        devices: 1,
        times: StepTimes::new(vec![us]).unwrap(),
    };
    // 200 steps of 40 µs at 2,500,000 a second are 20,000.
    assert_eq!(refuse_bid(&order(), &bid(2_500_000, 40)), None);
    assert!(refuse_bid(&order(), &bid(2_500_000, 41)).unwrap().contains("at most 40 µs"));
    assert!(refuse_bid(&order(), &bid(2_500_126, 40)).unwrap().contains("price_max"));
}

#[test]
fn an_auditor_needs_time_for_all_drawn_segments() {
    // Two of twenty segments of ten steps are drawn, and the window is a second.
    let audit = AuditTerms { share: 100_000, ..order().audit };
    let windows = Windows { audit: 1_000, ..order().windows };
    let deposits = Deposits { ..order().deposits };
    let order = ComputeOrder { audit, deposits, windows, ..order() };
    assert_eq!(refuse_audit_time(&order, 40_000), None);
    assert!(refuse_audit_time(&order, 40_100).unwrap().contains("its window is 1000 ms"));
}
