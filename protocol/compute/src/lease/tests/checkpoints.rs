//! Providers that are gone, and checkpoints that speak for them.

use super::*;
use crate::data_class::DataClass;

impl LeaseMarket {
    fn checkpoints(&self) -> Vec<Checkpoint> {
        let needed = self.lease.checkpoints_needed().into_iter();
        needed.map(|segment| Checkpoint { segment, secret: self.secret(segment) }).collect()
    }

    /// The code of refused checkpoints, which change nothing.
    fn refusal(&self, checkpoints: &[Checkpoint], late_ms: u64) -> &'static str {
        let now = self.lease.phase().1.saturating_add_ms(late_ms);
        let mut lease = self.lease.clone();
        let code = lease.use_checkpoints(checkpoints, now).unwrap_err().code();
        assert_eq!(lease, self.lease, "refused checkpoints change nothing");
        code
    }

    /// Uses all needed checkpoints after the deadline of the phase.
    #[track_caller]
    fn stand_in(&mut self) {
        let checkpoints = self.checkpoints();
        assert_eq!(self.refusal(&checkpoints, 0), "COMPUTE_EARLY");
        self.now = self.lease.phase().1.saturating_add_ms(1);
        self.lease.use_checkpoints(&checkpoints, self.now).unwrap();
        assert!(self.lease.books().is_conserved());
    }

    /// Seals and opens the ends that each auditor has, without the provider.
    fn audit(&mut self, end: impl Fn(&Self, u32) -> Digest) {
        let asked = self.asked();
        let secret = |market: &Self, segment| Secret { end: end(market, segment), salt: SALT };
        for &(segment, auditor) in &asked {
            let sealed = end_commitment(self.lease.id, auditor, segment, secret(self, segment));
            self.go(auditor, &ComputeAction::SealEnd { segment, sealed });
        }
        self.phase(Phase::Opening);
        for &(segment, auditor) in &asked {
            let secret = secret(self, segment);
            self.go(auditor, &ComputeAction::OpenEnd { segment, secret });
        }
    }
}

/// After each number of segments: the fine is its only loss, and the next order begins after its last segment.
#[test]
fn a_gone_provider_is_paid_for_its_checkpoints_without_the_fine() {
    for count in 1..=20 {
        let mut market = LeaseMarket::funded();
        market.deliver(count, &[]);
        if count < 20 {
            market.expire();
        }
        market.go(RENTER, &ComputeAction::Draw(BEACON));
        let drawn = market.drawn();
        market.stand_in();
        market.phase(Phase::Auditing);
        for audit in market.lease.audits() {
            assert_eq!(audit.start, Some(market.traces[audit.segment as usize][0]));
        }
        market.audit(LeaseMarket::honest_end);
        market.stand_in();
        let (outcome, fine) = match count {
            20 => (LeaseOutcome::Settled, 0),
            delivered => (LeaseOutcome::Defaulted { delivered }, 2_000),
        };
        market.ends_with(outcome);
        assert_eq!(market.lease.result(), Some(market.secret(count - 1).end));
        let pay = PRICE * u128::from(count) / 20;
        // The bond of its bid and the stake return.
        assert_eq!(market.owed(ANN), pay + 2_000 + 22_000 - fine, "{count}");
        assert_eq!(market.treasury(), fine);
        let audits = 2 * drawn.len() as u128;
        let paid: u128 = (0..4).map(|number| market.owed(auditor(number))).sum();
        assert_eq!(paid, 4 * BOND + audits * 700);
    }
}

/// It serves what it can, and is gone then.
#[test]
fn checkpoints_do_only_what_is_left() {
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    let drawn = market.drawn();
    let start = market.traces[drawn[0] as usize][0];
    market.go(ANN, &ComputeAction::Serve { segment: drawn[0], start });
    assert_eq!(market.lease.checkpoints_needed(), BTreeSet::from([drawn[1] - 1]));
    market.stand_in();
    market.audit(LeaseMarket::honest_end);
    market.open_leaf(drawn[1]);
    let mut needed = BTreeSet::from([drawn[0], 19]);
    needed.extend(drawn[0].checked_sub(1));
    assert_eq!(market.lease.checkpoints_needed(), needed);
    market.stand_in();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.lease.checkpoints_needed(), BTreeSet::new());
}

/// Without a draw the result alone is opened.
#[test]
fn checkpoints_open_a_result_without_audits() {
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.expire();
    assert_eq!(market.lease.checkpoints_needed(), BTreeSet::from([19]));
    market.stand_in();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.lease.result(), Some(market.secret(19).end));
}

/// A fake segment is found as before: its provider does not answer in the dispute, and the referee computes the segment.
#[test]
fn checkpoints_save_no_fake_segment() {
    let fakes: Vec<(u32, u32)> = (0..20).map(|segment| (segment, 3)).collect();
    for rules in [true, false] {
        let mut market = LeaseMarket::funded();
        market.deliver(20, &fakes);
        market.go(RENTER, &ComputeAction::Draw(BEACON));
        market.stand_in();
        market.audit(LeaseMarket::honest_end);
        market.stand_in();
        market.phase(Phase::Disputing);
        let segment = market.drawn()[0];
        assert_eq!(market.lease.checkpoints_needed(), BTreeSet::from([segment]));
        if rules {
            market.stand_in();
            market.phase(Phase::Refereeing);
            let accuser = market.lease.dispute().unwrap().auditor;
            market.go(REFEREE, &ComputeAction::Rule(market.honest_end(segment)));
            // Two audits of two segments, and the bounty.
            assert_eq!(market.owed(accuser), BOND + 2 * 700 + 7_000);
        } else {
            // The coordinator has no checkpoint of the segment.
            market.expire();
        }
        market.ends_with(LeaseOutcome::Slashed { segment });
        assert_eq!(market.treasury(), 22_000);
    }
}

/// Auditors that know that the provider is gone and seal some end lose their bonds.
#[test]
fn the_referee_rules_against_a_wrong_auditor_of_a_gone_provider() {
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    market.stand_in();
    market.audit(|_, _| Digest([66; 32]));
    let asked: BTreeSet<Address> = market.asked().into_iter().map(|(_, auditor)| auditor).collect();
    market.stand_in();
    while market.lease.outcome().is_none() {
        market.stand_in();
        market.phase(Phase::Refereeing);
        assert_eq!(market.refusal(&[], 1), "COMPUTE_PHASE");
        let segment = market.lease.dispute().unwrap().segment;
        market.go(REFEREE, &ComputeAction::Rule(market.honest_end(segment)));
    }
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.treasury(), BOND * asked.len() as u128);
    assert_eq!(market.owed(ANN), PRICE + 2_000 + 22_000);
}

/// The auditor's answer is due: its silence is its own.
#[test]
fn checkpoints_do_not_speak_for_an_auditor() {
    let mut market = LeaseMarket::served(20, &[]);
    market.audit(|_, _| Digest([66; 32]));
    market.stand_in();
    market.phase(Phase::Disputing);
    market.go(ANN, &ComputeAction::Answer(Digest([3; 32])));
    assert_eq!(market.lease.checkpoints_needed(), BTreeSet::new());
    assert_eq!(market.refusal(&[], 1), "COMPUTE_PHASE");
    // The provider answered half of the way, and is silent then: the ruling is on the rest.
    let auditor = market.lease.dispute().unwrap().auditor;
    market.go(auditor, &ComputeAction::Answer(Digest([4; 32])));
    market.stand_in();
    market.phase(Phase::Refereeing);
    let differ = market.lease.dispute().unwrap().differ;
    assert_eq!(differ, (5, Digest([3; 32]), Digest([4; 32])));
    market.go(REFEREE, &ComputeAction::Rule(Digest([3; 32])));
    assert!(!market.lease.is_auditor(auditor));
}

#[test]
fn checkpoints_of_auditors_that_do_not_open_cost_their_bonds() {
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        market.go(auditor, &ComputeAction::SealEnd { segment, sealed: SALT });
    }
    let asked: BTreeSet<Address> = market.asked().into_iter().map(|(_, auditor)| auditor).collect();
    market.stand_in();
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.treasury(), BOND * asked.len() as u128);
}

/// All leaves are open, and an auditor is silent: the default is that of the auditor.
#[test]
fn checkpoints_are_not_used_for_a_provider_that_has_opened_all() {
    let mut market = LeaseMarket::served(20, &[]);
    for (segment, auditor) in market.asked() {
        market.go(auditor, &ComputeAction::SealEnd { segment, sealed: SALT });
    }
    market.drawn().into_iter().for_each(|segment| market.open_leaf(segment));
    market.open_result();
    assert_eq!(market.lease.checkpoints_needed(), BTreeSet::new());
    assert_eq!(market.refusal(&[], 1), "COMPUTE_PHASE");
    market.expire();
    market.ends_with(LeaseOutcome::Settled);
}

#[test]
fn wrong_checkpoints_are_refused() {
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    assert_eq!(market.refusal(&[], 1), "COMPUTE_PHASE");
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    for is_opening in [false, true] {
        if is_opening {
            market.stand_in();
            market.audit(LeaseMarket::honest_end);
        }
        let right = market.checkpoints();
        let mut less = right.clone();
        less.pop();
        let mut more = right.clone();
        more.insert(0, right[0]);
        let mut reversed = right.clone();
        reversed.reverse();
        for list in [less, more, reversed] {
            assert_eq!(market.refusal(&list, 1), "COMPUTE_MISMATCH");
        }
        for at in 0..right.len() {
            let changes: [fn(&mut Secret); 2] = [|one| one.end.0[0] ^= 1, |one| one.salt.0[0] ^= 1];
            for change in changes {
                let mut wrong = right.clone();
                change(&mut wrong[at].secret);
                assert_eq!(market.refusal(&wrong, 1), "COMPUTE_COMMITMENT");
            }
        }
    }
}

/// The provider served a start that is not the end of the segment before, and is gone.
#[test]
fn checkpoints_do_not_open_a_leaf_behind_another_start() {
    let mut market = LeaseMarket::funded();
    market.deliver(20, &[]);
    market.go(RENTER, &ComputeAction::Draw(BEACON));
    for segment in market.drawn() {
        let start = if segment == 0 { order().start } else { Digest([3; 32]) };
        market.go(ANN, &ComputeAction::Serve { segment, start });
    }
    market.audit(LeaseMarket::honest_end);
    assert_eq!(market.refusal(&market.checkpoints(), 1), "COMPUTE_COMMITMENT");
    market.expire();
    let segment = market.drawn()[0];
    market.ends_with(LeaseOutcome::Slashed { segment });
}

/// The owner of private rows audits: with checkpoints its false dispute would have a gone provider's work for nothing.
#[test]
fn private_rows_have_no_checkpoints() {
    let audit = crate::order::AuditTerms { auditors: 1, ..order().audit };
    let order = ComputeOrder { data_class: DataClass::Private, audit, ..order() };
    let market = LeaseMarket::of(order);
    assert_eq!(market.refusal(&[], 1), "COMPUTE_MISMATCH");
}
