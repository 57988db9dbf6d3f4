//! The next steps of all parties of a lease, from its bids to its end.

use std::collections::BTreeMap;

use florin_compute::{
    AuditTerms, Bid, ComputeAction, ComputeOrder, DataClass, LeaseOutcome, Secret, StepTimes,
    bid_commitment, end_commitment, segment_leaf,
};

use super::*;

const ANN: Address = Address([10; 20]);
const BEN: Address = Address([11; 20]);
const BEACON: Digest = Digest([77; 32]);
const NOW: Timestamp = Timestamp(1_000);
const ALL: LeaseRoles = LeaseRoles { bids: true, audits: true, referees: true };

fn auditor(number: u8) -> Address {
    Address([100 + number; 20])
}

fn step(state: Digest) -> Digest {
    Digest(*blake3::hash(&state.0).as_bytes())
}

/// A bid of an account: that of Ann is the better one.
fn bid(of: Address) -> Bid {
    let per_second = Amount::from_units(if of == ANN { 5_000_000 } else { 6_000_000 });
    Bid { per_second, devices: 1, times: StepTimes::new(vec![10]).unwrap() }
}

fn salt(number: u32) -> Digest {
    Digest([number as u8; 32])
}

/// A lease whose parties perform every step that is due, by a toy training of hashes.
struct PlayedLease {
    lease: Lease,
    now: Timestamp,
    /// The segments that Ann does not compute.
    fakes: Vec<u32>,
    /// All steps, by account.
    steps: BTreeMap<Address, Vec<LeaseStep>>,
}

impl PlayedLease {
    fn new(fakes: &[u32]) -> Self {
        let lease = Lease::open(ComputeOrder::example(), NOW).unwrap();
        Self { lease, now: NOW, fakes: fakes.to_vec(), steps: BTreeMap::new() }
    }

    fn roles(account: Address) -> LeaseRoles {
        let bids = account == ANN || account == BEN;
        LeaseRoles { bids, audits: !bids, referees: true }
    }

    fn accounts() -> Vec<Address> {
        let order = ComputeOrder::example();
        let auditors = (0..3).map(auditor);
        auditors.chain([ANN, BEN, order.referee, order.renter]).collect()
    }

    /// The states of a segment as an account computes it, without its start.
    fn trace(&self, segment: u32, by: Address) -> Vec<Digest> {
        let mut state = self.lease.order().start;
        for before in 0..segment {
            state = self.end(before, state, ANN);
        }
        let mut trace = Vec::new();
        for _ in 0..self.lease.order().steps {
            state = step(state);
            if by == ANN && self.fakes.contains(&segment) {
                state.0[0] ^= 1;
            }
            trace.push(state);
        }
        trace
    }

    fn end(&self, segment: u32, start: Digest, by: Address) -> Digest {
        let is_fake = by == ANN && self.fakes.contains(&segment);
        (0..self.lease.order().steps).fold(start, |state, _| {
            let mut next = step(state);
            next.0[0] ^= u8::from(is_fake);
            next
        })
    }

    fn secret(&self, segment: u32, by: Address) -> Secret {
        let end = *self.trace(segment, by).last().unwrap();
        Secret { end, salt: salt(segment) }
    }

    fn action(&self, by: Address, due: LeaseStep) -> ComputeAction {
        let id = self.lease.order().id();
        match due {
            LeaseStep::SealBid => ComputeAction::SealBid(bid_commitment(id, by, &bid(by), salt(9))),
            LeaseStep::JoinAudit => ComputeAction::JoinAudit,
            LeaseStep::OpenBid => ComputeAction::OpenBid { bid: bid(by), salt: salt(9) },
            LeaseStep::Fund => ComputeAction::Fund,
            LeaseStep::Deliver(segment) => {
                let leaf = segment_leaf(id, by, segment, self.secret(segment, by));
                ComputeAction::Deliver { segment, leaf }
            }
            LeaseStep::Serve(segment) => {
                ComputeAction::Serve { segment, start: self.start(segment) }
            }
            LeaseStep::SealEnd(segment, start) => {
                assert_eq!(start, self.start(segment));
                let secret = self.secret(segment, by);
                ComputeAction::SealEnd { segment, sealed: end_commitment(id, by, segment, secret) }
            }
            LeaseStep::OpenLeaf(segment) => {
                let before = segment.checked_sub(1).map_or(Digest::default(), salt);
                ComputeAction::OpenLeaf {
                    segment,
                    secret: self.secret(segment, by),
                    salt_before: before,
                }
            }
            LeaseStep::OpenEnd(segment, _) => {
                ComputeAction::OpenEnd { segment, secret: self.secret(segment, by) }
            }
            LeaseStep::Answer(at) => {
                assert_eq!(at.start, self.start(at.segment));
                ComputeAction::Answer(self.trace(at.segment, by)[at.step as usize - 1])
            }
            LeaseStep::ShowAgreed(_) => panic!("the rows of this order are public"),
            LeaseStep::Rule(at) => {
                let agreed = self.lease.dispute().unwrap().agreed.1;
                assert!(at.step >= 1);
                ComputeAction::Rule(step(agreed))
            }
        }
    }

    fn start(&self, segment: u32) -> Digest {
        match segment.checked_sub(1) {
            None => self.lease.order().start,
            Some(before) => *self.trace(before, ANN).last().unwrap(),
        }
    }

    /// Performs all steps that are due, until no account has one.
    fn play_phase(&mut self) {
        while let Some((by, due)) = Self::accounts().into_iter().find_map(|account| {
            let due = next_step(&self.lease, account, Self::roles(account), self.now)?;
            Some((account, due))
        }) {
            let action = self.action(by, due);
            assert_eq!(self.lease.apply(by, &action, self.now), Ok(()), "{by} {due:?}");
            self.steps.entry(by).or_default().push(due);
        }
    }

    fn after_the_deadline(&self) -> Timestamp {
        Timestamp(self.lease.phase().1.0 + 1)
    }

    /// Plays until the lease is over. The beacon is opened at once.
    fn play(&mut self) {
        for _ in 0..20 {
            self.play_phase();
            let late = self.after_the_deadline();
            for account in Self::accounts() {
                assert_eq!(next_step(&self.lease, account, ALL, late), None, "after a deadline");
            }
            match self.lease.phase().0 {
                Phase::Over => return,
                Phase::Delivered => {
                    self.lease.apply(BEN, &ComputeAction::Draw(BEACON), self.now).unwrap();
                }
                _ => {
                    self.now = late;
                    self.lease.apply(BEN, &ComputeAction::Expire, self.now).unwrap();
                }
            }
        }
        panic!("the lease is not over");
    }

    fn steps_of(&self, account: Address) -> &[LeaseStep] {
        self.steps.get(&account).map_or(&[], Vec::as_slice)
    }
}

#[test]
fn honest_parties_bring_a_lease_to_its_settlement_and_repeat_no_step() {
    let mut played = PlayedLease::new(&[]);
    played.play();
    assert_eq!(played.lease.outcome(), Some(LeaseOutcome::Settled));
    for steps in played.steps.values() {
        for (at, due) in steps.iter().enumerate() {
            assert!(!steps[..at].contains(due), "{due:?} is due twice");
        }
    }
    let ann = played.steps_of(ANN);
    assert_eq!(ann[..3], [LeaseStep::SealBid, LeaseStep::OpenBid, LeaseStep::Fund]);
    let delivered = ann.iter().filter(|due| matches!(due, LeaseStep::Deliver(_))).count();
    assert_eq!(delivered, 20);
    // Two segments are drawn; the last one is opened in any case.
    let served = ann.iter().filter(|due| matches!(due, LeaseStep::Serve(_))).count();
    assert_eq!(served, 2);
    assert!(ann.contains(&LeaseStep::OpenLeaf(19)));
    assert_eq!(played.steps_of(BEN), [LeaseStep::SealBid, LeaseStep::OpenBid]);
    let audits: usize = (0..3).map(|number| played.steps_of(auditor(number)).len()).sum();
    // Three places, and two ends of two segments, sealed and opened.
    assert_eq!(audits, 3 + 2 * 2 * 2);
    let order = ComputeOrder::example();
    assert!(played.steps_of(order.referee).is_empty() && played.steps_of(order.renter).is_empty());
}

#[test]
fn a_fake_segment_is_disputed_to_one_step_and_ruled_on() {
    let mut played = PlayedLease::new(&(0..20).collect::<Vec<_>>());
    played.play();
    assert!(matches!(played.lease.outcome(), Some(LeaseOutcome::Slashed { .. })));
    let referee = played.steps_of(ComputeOrder::example().referee);
    assert!(matches!(referee, [LeaseStep::Rule(DisputedStep { step: 1, .. })]), "{referee:?}");
    let answers: Vec<u32> = played
        .steps_of(ANN)
        .iter()
        .filter_map(|due| match due {
            LeaseStep::Answer(at) => Some(at.step),
            _ => None,
        })
        .collect();
    // Ten steps, halved: the first one differs.
    assert_eq!(answers, [5, 2, 1]);
}

#[test]
fn an_account_without_a_role_does_nothing() {
    let lease = Lease::open(ComputeOrder::example(), NOW).unwrap();
    let order = lease.order();
    let due = |account, roles| next_step(&lease, account, roles, NOW);
    assert_eq!(due(ANN, LeaseRoles::default()), None);
    assert_eq!(due(order.renter, ALL), None);
    assert_eq!(due(order.referee, ALL), None);
    assert_eq!(due(ANN, ALL), Some(LeaseStep::SealBid));
    let audits = LeaseRoles { audits: true, ..LeaseRoles::default() };
    assert_eq!(due(ANN, audits), Some(LeaseStep::JoinAudit));
}

#[test]
fn private_rows_are_audited_by_their_renter_alone() {
    let example = ComputeOrder::example();
    let audit = AuditTerms { auditors: 1, colluding: 0, ..example.audit };
    let order = ComputeOrder { data_class: DataClass::Private, audit, ..example };
    let lease = Lease::open(order, NOW).unwrap();
    let order = lease.order();
    let audits = LeaseRoles { audits: true, ..LeaseRoles::default() };
    let due = |account, roles| next_step(&lease, account, roles, NOW);
    assert_eq!(due(order.renter, ALL), Some(LeaseStep::JoinAudit));
    assert_eq!(due(order.renter, audits), Some(LeaseStep::JoinAudit));
    assert_eq!(due(order.renter, LeaseRoles::default()), None);
    assert_eq!(due(order.referee, ALL), None);
    assert_eq!(due(ANN, ALL), Some(LeaseStep::SealBid));
    assert_eq!(due(ANN, audits), None);
}

#[test]
fn a_referee_that_does_not_serve_leaves_the_ruling() {
    let mut played = PlayedLease::new(&(0..20).collect::<Vec<_>>());
    while played.lease.phase().0 != Phase::Refereeing {
        let before = played.lease.clone();
        // One step at a time, up to the ruling.
        let due = PlayedLease::accounts().into_iter().find_map(|account| {
            let roles = PlayedLease::roles(account);
            Some((account, next_step(&played.lease, account, roles, played.now)?))
        });
        match due {
            Some((by, due)) => {
                let action = played.action(by, due);
                played.lease.apply(by, &action, played.now).unwrap();
            }
            None if played.lease.phase().0 == Phase::Delivered => {
                played.lease.apply(BEN, &ComputeAction::Draw(BEACON), played.now).unwrap();
            }
            None => {
                played.now = played.after_the_deadline();
                played.lease.apply(BEN, &ComputeAction::Expire, played.now).unwrap();
            }
        }
        assert_ne!(played.lease, before);
    }
    let referee = played.lease.order().referee;
    let off = LeaseRoles { referees: false, ..ALL };
    assert_eq!(next_step(&played.lease, referee, off, played.now), None);
    assert!(next_step(&played.lease, referee, ALL, played.now).is_some());
    assert!(!is_over_for(&played.lease, referee));
    assert!(is_over_for(&played.lease, BEN) && !is_over_for(&played.lease, ANN));
}

#[test]
fn a_bid_promises_the_rest_of_its_stake_until_it_has_lost() {
    let mut played = PlayedLease::new(&[]);
    let units = Amount::from_units;
    assert_eq!(promised(&played.lease, ANN), Amount::ZERO);
    assert!(!is_computing(&played.lease, ANN));
    let seal = played.action(ANN, LeaseStep::SealBid);
    played.lease.apply(ANN, &seal, NOW).unwrap();
    assert_eq!(promised(&played.lease, ANN), units(22_000 - 2_000));
    assert!(is_computing(&played.lease, ANN) && !is_over_for(&played.lease, ANN));
    played.play();
    assert_eq!(promised(&played.lease, ANN), Amount::ZERO);
    assert!(is_over_for(&played.lease, ANN) && !is_computing(&played.lease, ANN));
}
