//! Leases from order to settlement: honest ones, and each deviation.

mod checkpoints;
mod data_classes;
mod refusals;
mod silence;

use florin_protocol::merkle::ClaimTotals;

use super::*;
use crate::audit::{end_commitment, segment_leaf};
use crate::bid_commitment;
use crate::card::StepTimes;

const RENTER: Address = Address([1; 20]);
const REFEREE: Address = Address([2; 20]);
const ANN: Address = Address([10; 20]);
const BEN: Address = Address([11; 20]);
const SALT: Digest = Digest([9; 32]);
/// The bond of an auditor.
const BOND: u128 = 8_000;
const BEACON: Digest = Digest([77; 32]);

fn auditor(number: u8) -> Address {
    Address([100 + number; 20])
}

fn units(units: u128) -> Amount {
    Amount::from_units(units)
}

pub(crate) fn order() -> ComputeOrder {
    ComputeOrder::example()
}

fn bid(per_second: u128, times: &[u64]) -> Bid {
    let devices = times.len() as u32;
    Bid { per_second: units(per_second), devices, times: StepTimes::new(times.to_vec()).unwrap() }
}

/// The state after a step of a toy training: a hash of the state before it.
fn step(state: Digest) -> Digest {
    Digest(*blake3::hash(&state.0).as_bytes())
}

/// The states of a segment, from its start to its end, wrong from a step on.
fn trace(start: Digest, wrong_from: Option<u32>) -> Vec<Digest> {
    let mut states = vec![start];
    for number in 1..=order().steps {
        let mut next = step(*states.last().unwrap());
        if wrong_from == Some(number) {
            next.0[0] ^= 1;
        }
        states.push(next);
    }
    states
}

/// A market of one order.
struct LeaseMarket {
    lease: Lease,
    now: Timestamp,
    /// The provider's states of each segment.
    traces: Vec<Vec<Digest>>,
}

impl LeaseMarket {
    fn open() -> Self {
        Self::of(order())
    }

    fn of(order: ComputeOrder) -> Self {
        let now = Timestamp(1_000);
        Self { lease: Lease::open(order, now).unwrap(), now, traces: Vec::new() }
    }

    fn act(&mut self, by: Address, action: &ComputeAction) -> Result<(), &'static str> {
        let before = self.lease.clone();
        let done = self.lease.apply(by, action, self.now);
        assert!(self.lease.books().is_conserved(), "{action:?}");
        if done.is_err() {
            assert_eq!(self.lease, before, "a refused action changes nothing: {action:?}");
        }
        done.map_err(|error| {
            assert!(!error.to_string().is_empty());
            error.code()
        })
    }

    #[track_caller]
    fn go(&mut self, by: Address, action: &ComputeAction) {
        assert_eq!(self.act(by, action), Ok(()), "{action:?} in {:?}", self.lease.phase());
    }

    #[track_caller]
    fn expire(&mut self) {
        self.now = self.lease.phase().1;
        assert_eq!(self.act(BEN, &ComputeAction::Expire), Err("COMPUTE_EARLY"));
        self.now = self.now.saturating_add_ms(1);
        self.go(BEN, &ComputeAction::Expire);
    }

    #[track_caller]
    fn phase(&self, phase: Phase) {
        assert_eq!(self.lease.phase().0, phase);
    }

    /// Bids of Ann and Ben, four auditors, the award to Ann.
    fn awarded() -> Self {
        let mut market = Self::open();
        market.auction(&[(ANN, bid(5_000_000, &[10, 6])), (BEN, bid(6_000_000, &[10, 7]))]);
        market
    }

    fn auction(&mut self, bids: &[(Address, Bid)]) {
        let id = self.lease.order().id();
        for (bidder, bid) in bids {
            let sealed = bid_commitment(id, *bidder, bid, SALT);
            self.go(*bidder, &ComputeAction::SealBid(sealed));
        }
        (0..4).for_each(|number| self.go(auditor(number), &ComputeAction::JoinAudit));
        self.expire();
        for (bidder, bid) in bids {
            self.go(*bidder, &ComputeAction::OpenBid { bid: bid.clone(), salt: SALT });
        }
        self.phase(Phase::Funding);
    }

    fn funded() -> Self {
        let mut market = Self::awarded();
        market.go(ANN, &ComputeAction::Fund);
        market.phase(Phase::Running);
        // Both bonds of bids are owed; stake, escrow and four bonds of auditors are locked.
        let escrow = order().escrow().unwrap();
        let locked = units(22_000 + 4 * BOND).plus(escrow);
        assert_eq!(market.lease.books().locked(), locked);
        assert_eq!(
            Ok(market.lease.books().deposited()),
            locked.and_then(|sum| sum.plus(units(4_000)))
        );
        market
    }

    fn secret(&self, segment: u32) -> Secret {
        let trace = &self.traces[segment as usize];
        Secret { end: *trace.last().unwrap(), salt: Digest([segment as u8; 32]) }
    }

    fn deliver_one(&mut self) {
        let segment = self.lease.delivered();
        let start = self.traces.last().map_or(self.lease.order().start, |trace| trace[10]);
        self.traces.push(trace(start, None));
        let leaf = segment_leaf(self.lease.id, ANN, segment, self.secret(segment));
        self.go(ANN, &ComputeAction::Deliver { segment, leaf });
    }

    /// Delivers segments, of which the wrong ones are wrong from a step on.
    fn deliver(&mut self, count: u32, wrong: &[(u32, u32)]) {
        for segment in 0..count {
            let start = match self.traces.last() {
                None => self.lease.order().start,
                Some(trace) => *trace.last().unwrap(),
            };
            let from = wrong.iter().find(|(own, _)| *own == segment).map(|(_, step)| *step);
            self.traces.push(trace(start, from));
            let leaf = segment_leaf(self.lease.id, ANN, segment, self.secret(segment));
            self.go(ANN, &ComputeAction::Deliver { segment, leaf });
        }
    }

    /// The drawn segments.
    fn drawn(&self) -> Vec<u32> {
        self.lease.audited().map(|(segment, _)| segment).collect()
    }

    fn served(count: u32, wrong: &[(u32, u32)]) -> Self {
        let mut market = Self::funded();
        market.deliver(count, wrong);
        if count < market.lease.order().segments {
            market.expire();
        }
        market.go(RENTER, &ComputeAction::Draw(BEACON));
        market.serve();
        market
    }

    fn serve(&mut self) {
        for segment in self.drawn() {
            let start = self.traces[segment as usize][0];
            self.go(ANN, &ComputeAction::Serve { segment, start });
        }
    }

    fn asked(&self) -> Vec<(u32, Address)> {
        let pairs = self
            .lease
            .audited()
            .flat_map(|(segment, asked)| asked.iter().map(move |auditor| (segment, *auditor)));
        pairs.collect()
    }

    /// The honest end of a drawn segment.
    fn honest_end(&self, segment: u32) -> Digest {
        *trace(self.traces[segment as usize][0], None).last().unwrap()
    }

    fn seal_and_open(&mut self, end: impl Fn(&Self, u32, Address) -> Digest) {
        let asked = self.asked();
        let secret = |market: &Self, segment, auditor| Secret {
            end: end(market, segment, auditor),
            salt: Digest(*blake3::hash(&auditor.0).as_bytes()),
        };
        for &(segment, auditor) in &asked {
            let secret = secret(self, segment, auditor);
            let sealed = end_commitment(self.lease.id, auditor, segment, secret);
            self.go(auditor, &ComputeAction::SealEnd { segment, sealed });
        }
        self.phase(Phase::Opening);
        for segment in self.drawn() {
            self.open_leaf(segment);
        }
        for &(segment, auditor) in &asked {
            let secret = secret(self, segment, auditor);
            self.go(auditor, &ComputeAction::OpenEnd { segment, secret });
        }
        self.open_result();
    }

    /// Opens the last leaf, if it is not drawn.
    fn open_result(&mut self) {
        let last = self.lease.delivered() - 1;
        if !self.drawn().contains(&last) {
            assert!(self.lease.outcome().is_none(), "the result comes first");
            self.go(
                ANN,
                &ComputeAction::OpenLeaf {
                    segment: last,
                    secret: self.secret(last),
                    salt_before: SALT,
                },
            );
        }
        assert_eq!(self.lease.result(), Some(self.secret(last).end));
    }

    fn open_leaf(&mut self, segment: u32) {
        let before = segment.checked_sub(1).map_or(SALT, |before| self.secret(before).salt);
        self.go(
            ANN,
            &ComputeAction::OpenLeaf { segment, secret: self.secret(segment), salt_before: before },
        );
    }

    /// The balance of an account at the end: pay and returned deposits.
    fn owed(&self, account: Address) -> u128 {
        let balance = |of: ComputeAccount| self.lease.books().balance(of).units();
        balance(ComputeAccount::Owed(account)) + balance(ComputeAccount::Returned(account))
    }

    fn treasury(&self) -> u128 {
        self.lease.books().forfeited().unwrap().units()
    }

    /// Nothing is locked at the end.
    #[track_caller]
    fn ends_with(&self, outcome: LeaseOutcome) {
        assert_eq!(self.lease.outcome(), Some(outcome));
        self.phase(Phase::Over);
        assert_eq!(self.lease.books().locked(), Ok(Amount::ZERO));
        assert!(self.lease.books().is_conserved());
    }
}

/// 200 steps of 10 µs useful time at 5 and 6 units a µs: 10,000 and 12,000. Scores 60,000 and 84,000.
const PRICE: u128 = 14_000;

#[test]
fn honest_work_is_paid_at_the_second_score() {
    let mut market = LeaseMarket::served(20, &[]);
    assert_eq!(market.drawn().len(), 2);
    assert_eq!(market.asked().len(), 4);
    market.seal_and_open(LeaseMarket::honest_end_of);
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.lease.award().unwrap().price(&order(), 0), units(PRICE));
    assert_eq!(market.owed(ANN), PRICE + 22_000 + 2_000);
    assert_eq!(market.owed(BEN), 2_000);
    // Of the escrow of 20,000 and four audits, the price and the audits are spent.
    assert_eq!(market.owed(RENTER), 20_000 - PRICE);
    let audits: u128 = (0..4).map(|number| market.owed(auditor(number))).sum();
    assert_eq!(audits, 4 * BOND + 4 * 700);
    assert_eq!(market.treasury(), 0);
}

impl LeaseMarket {
    fn honest_end_of(&self, segment: u32, _: Address) -> Digest {
        self.honest_end(segment)
    }
}

/// A wrong segment that is audited is found in a dispute of four answers of each side, whichever step is wrong.
#[test]
fn a_wrong_segment_costs_the_stake() {
    let probe = LeaseMarket::served(20, &[]);
    let wrong_segment = probe.drawn()[0];
    for from in 1..=order().steps {
        let mut market = LeaseMarket::served(20, &[(wrong_segment, from)]);
        // Leaves differ, so that other segments are drawn: a beacon is searched that draws the wrong one.
        market = market.drawing(wrong_segment, from);
        market.seal_and_open(LeaseMarket::honest_end_of);
        market.phase(Phase::Disputing);
        let answers = market.answer_honestly(from);
        assert!(answers <= 8, "{answers} answers");
        let dispute = market.lease.dispute().unwrap().clone();
        assert_eq!(dispute.differ.0, from, "the wrong step is found");
        assert_eq!(dispute.agreed.0, from - 1);
        assert_eq!(market.act(RENTER, &ComputeAction::Rule(SALT)), Err("COMPUTE_ACCOUNT"));
        market.go(REFEREE, &ComputeAction::Rule(step(dispute.agreed.1)));
        market.ends_with(LeaseOutcome::Slashed { segment: wrong_segment });
        // Bond of the bid; nothing else.
        assert_eq!(market.owed(ANN), 2_000);
        // The renter pays the audits and the bounty: no account gains by a stake.
        let escrow = order().escrow().unwrap().units();
        assert_eq!(market.owed(RENTER), escrow - 4 * 700 - 7_000);
        // The bounty of a fee divided by a tenth.
        assert_eq!(
            market.owed(dispute.auditor),
            BOND + market.audits(dispute.auditor) * 700 + 7_000
        );
        assert_eq!(market.treasury(), 22_000);
        let totals = market.lease.books().totals();
        assert_eq!(totals[&ANN], ClaimTotals { paid: units(0), debited: units(22_000) });
        assert_eq!(market.lease.books().bond_needed(ANN), Ok(units(22_000)));
        assert_eq!(market.lease.books().bond_needed(dispute.auditor), Ok(units(0)));
    }
}

impl LeaseMarket {
    fn audits(&self, auditor: Address) -> u128 {
        self.asked().iter().filter(|(_, own)| *own == auditor).count() as u128
    }

    /// The same delivery with a beacon that draws a segment.
    fn drawing(self, segment: u32, from: u32) -> Self {
        for number in 0..=255 {
            let mut market = Self::funded();
            market.deliver(20, &[(segment, from)]);
            market.go(RENTER, &ComputeAction::Draw(Digest([number; 32])));
            if market.drawn().contains(&segment) {
                market.serve();
                return market;
            }
        }
        panic!("no beacon draws segment {segment}");
    }

    /// Both sides answer from their traces until one step is left. Returns the number of answers.
    fn answer_honestly(&mut self, wrong_from: u32) -> u32 {
        let mut answers = 0;
        while let Some(by) = self.lease.answers() {
            let dispute = self.lease.dispute().unwrap().clone();
            let start = self.traces[dispute.segment as usize][0];
            let own = if by == ANN { Some(wrong_from) } else { None };
            let state = trace(start, own)[dispute.middle().unwrap() as usize];
            let wrong = if by == ANN { dispute.auditor } else { ANN };
            assert_eq!(self.act(wrong, &ComputeAction::Answer(state)), Err("COMPUTE_ACCOUNT"));
            self.go(by, &ComputeAction::Answer(state));
            answers += 1;
        }
        self.phase(Phase::Refereeing);
        answers
    }
}

#[test]
fn a_false_accusation_costs_the_auditor_its_bond() {
    let mut market = LeaseMarket::served(20, &[]);
    let (segment, liar) = market.asked()[0];
    market.seal_and_open(|market, own, auditor| match (own, auditor) == (segment, liar) {
        true => Digest([0xee; 32]),
        false => market.honest_end(own),
    });
    market.phase(Phase::Disputing);
    // The liar disagrees with everything.
    while let Some(by) = market.lease.answers() {
        let dispute = market.lease.dispute().unwrap().clone();
        let start = market.traces[segment as usize][0];
        let honest = trace(start, None)[dispute.middle().unwrap() as usize];
        market.go(by, &ComputeAction::Answer(if by == ANN { honest } else { Digest([0xdd; 32]) }));
    }
    let dispute = market.lease.dispute().unwrap().clone();
    market.go(REFEREE, &ComputeAction::Rule(step(dispute.agreed.1)));
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!(market.owed(ANN), PRICE + 22_000 + 2_000);
    assert_eq!(market.owed(liar), 0, "no bond and no fees, also of its other audits");
    assert_eq!(market.treasury(), BOND);
}

#[test]
fn a_silent_side_of_a_dispute_is_wrong() {
    for provider_is_silent in [true, false] {
        let mut market = LeaseMarket::served(20, &[]);
        let (segment, liar) = market.asked()[0];
        market.seal_and_open(|market, own, auditor| match (own, auditor) == (segment, liar) {
            true => Digest([0xee; 32]),
            false => market.honest_end(own),
        });
        if !provider_is_silent {
            market.go(ANN, &ComputeAction::Answer(Digest([1; 32])));
        }
        market.expire();
        match provider_is_silent {
            true => market.ends_with(LeaseOutcome::Slashed { segment }),
            false => {
                market.ends_with(LeaseOutcome::Settled);
                assert_eq!(market.treasury(), BOND);
            }
        }
    }
}

/// A renter cannot save the price by a referee that does not rule.
#[test]
fn without_a_ruling_the_end_of_the_provider_counts() {
    let mut market = LeaseMarket::served(20, &[]).drawing(5, 10);
    market.seal_and_open(LeaseMarket::honest_end_of);
    // Two auditors found the difference: each of them has a dispute.
    for _ in 0..2 {
        market.answer_honestly(10);
        market.expire();
    }
    market.ends_with(LeaseOutcome::Settled);
    assert_eq!((market.treasury(), market.owed(ANN)), (0, PRICE + 24_000));
    for (_, auditor) in market.asked() {
        assert_eq!(market.owed(auditor), BOND + market.audits(auditor) * 700);
    }
}

/// One honest auditor is enough, beside one that works for the provider, and if it lost its bond elsewhere.
#[test]
fn one_honest_auditor_finds_a_wrong_end() {
    let mut market = LeaseMarket::served(20, &[]).drawing(5, 3);
    let honest = market.asked().into_iter().find(|(segment, _)| *segment == 5).unwrap().1;
    market.seal_and_open(|market, segment, auditor| match (segment, auditor == honest) {
        (5, false) => market.secret(5).end,
        _ => market.honest_end(segment),
    });
    market.lease.forfeit_audit_bond(honest).unwrap();
    market.answer_honestly(3);
    let agreed = market.lease.dispute().unwrap().agreed.1;
    market.go(REFEREE, &ComputeAction::Rule(step(agreed)));
    market.ends_with(LeaseOutcome::Slashed { segment: 5 });
    let books = market.lease.books();
    let paid = books.totals().values().map(|totals| totals.paid.units()).sum::<u128>();
    assert_eq!(market.owed(RENTER) + paid, order().escrow().unwrap().units());
    assert_eq!(books.totals()[&honest].debited, units(BOND));
}

#[test]
fn both_sides_of_a_dispute_can_be_wrong() {
    let mut market = LeaseMarket::served(20, &[]).drawing(5, 1);
    let first = market.asked().into_iter().find(|(segment, _)| *segment == 5).unwrap().1;
    market.seal_and_open(|market, segment, auditor| match (segment, auditor == first) {
        (5, true) => trace(market.traces[5][0], Some(2))[10],
        _ => market.honest_end(segment),
    });
    while let Some(by) = market.lease.answers() {
        let dispute = market.lease.dispute().unwrap().clone();
        let own = if by == ANN { 1 } else { 2 };
        let mut state = trace(market.traces[5][0], Some(own))[dispute.middle().unwrap() as usize];
        if by != ANN && dispute.middle() == Some(1) {
            state.0[5] ^= 7;
        }
        market.go(by, &ComputeAction::Answer(state));
    }
    let agreed = market.lease.dispute().unwrap().agreed;
    assert_eq!(agreed.0, 0);
    market.go(REFEREE, &ComputeAction::Rule(step(agreed.1)));
    market.ends_with(LeaseOutcome::Slashed { segment: 5 });
    assert!(market.owed(first) < BOND, "{}", market.owed(first));
    assert_eq!(market.owed(ANN), 2_000);
}

#[test]
fn a_provider_that_stops_is_paid_for_what_is_audited_and_fined() {
    let mut market = LeaseMarket::served(7, &[]);
    assert_eq!(market.drawn().len(), 1);
    market.seal_and_open(LeaseMarket::honest_end_of);
    market.ends_with(LeaseOutcome::Defaulted { delivered: 7 });
    assert_eq!(market.owed(ANN), PRICE * 7 / 20 + 24_000 - 2_000);
    assert_eq!(market.owed(RENTER), 20_000 - PRICE * 7 / 20 + 2 * 700);
    assert_eq!(market.treasury(), 2_000);

    let mut market = LeaseMarket::funded();
    market.expire();
    market.ends_with(LeaseOutcome::Defaulted { delivered: 0 });
    assert_eq!(market.owed(ANN), 24_000 - 2_000);
    assert_eq!(market.owed(RENTER), order().escrow().unwrap().units());
}
