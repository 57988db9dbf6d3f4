//! One lease, played to its end by a provider, a rival, auditors and a referee.

use std::collections::BTreeSet;

use florin_compute::{
    AuditTerms, Bid, ComputeAccount, ComputeAction, ComputeOrder, DataClass, Deposits, Lease,
    LeaseError, Phase, Secret, StepTimes, bid_commitment, end_commitment, segment_leaf,
};
use florin_protocol::{Address, Amount, Digest, Timestamp, blob_digest};

/// Segments of the orders, and the share of them that is audited, in parts per million.
pub(super) const SEGMENTS: u32 = 100;
pub(super) const SHARE: u32 = 50_000;
pub(super) const STEPS: u32 = 4;
/// Auditors of a segment, and auditors that stand ready.
const AUDITORS: u32 = 2;
const POOL: u8 = 60;
/// The price that the winner is paid.
pub(super) const PRICE: u128 = 1_000_000;
/// Pay for an audit: the price of a segment.
pub(super) const FEE: u128 = PRICE / SEGMENTS as u128;

pub(super) const PROVIDER: Address = Address([10; 20]);
const RIVAL: Address = Address([11; 20]);
pub(super) const RENTER: Address = Address([1; 20]);

/// How the parties deviate from honest work.
#[derive(Clone, Debug, Default)]
pub(super) struct Conduct {
    /// Segments that the provider does not compute.
    pub(super) fakes: BTreeSet<u32>,
    /// Auditors that return the provider's end, of all.
    pub(super) colluding: u8,
    /// The auditor that does not compute and seals some end.
    pub(super) lazy: Option<u8>,
    /// Segments after which the provider is gone.
    pub(super) leaves_after: Option<u32>,
    /// Whether the audits are never drawn.
    pub(super) undrawn: bool,
    /// Whether the leaves are those of another order.
    pub(super) replays: bool,
    /// Whether the renter of private rows does not audit, and disputes each audited segment.
    pub(super) disputes: bool,
}

/// The computations of the parties of a lease.
pub(super) trait OrderWork {
    /// The state after some steps of the segment that starts at a state, as `by` computes it.
    fn after(&mut self, by: Address, start: Digest, steps: u32) -> anyhow::Result<Digest>;

    /// The end of a segment by a provider that saves work.
    fn fake(&mut self, segment: u32, start: Digest) -> anyhow::Result<Digest>;

    /// The state after a single step.
    fn step(&mut self, state: Digest) -> anyhow::Result<Digest>;

    /// The state that a provider states in a dispute after some steps of a segment that it did not compute.
    fn claimed(&mut self, start: Digest, steps: u32) -> anyhow::Result<Digest>;
}

/// Trainings whose states are hashes of the states before them.
pub(super) struct HashWork;

impl OrderWork for HashWork {
    fn after(&mut self, _by: Address, start: Digest, steps: u32) -> anyhow::Result<Digest> {
        Ok((0..steps).fold(start, |state, _| blob_digest(&state.0)))
    }

    fn fake(&mut self, segment: u32, _start: Digest) -> anyhow::Result<Digest> {
        Ok(made_up(segment, 1))
    }

    fn step(&mut self, state: Digest) -> anyhow::Result<Digest> {
        Ok(blob_digest(&state.0))
    }

    fn claimed(&mut self, _start: Digest, steps: u32) -> anyhow::Result<Digest> {
        Ok(made_up(steps, PROVIDER.0[0]))
    }
}

/// A lease that is over.
pub(super) struct Played {
    pub(super) lease: Lease,
    /// Audits that an auditor was asked for.
    pub(super) asked: Vec<(u32, Address)>,
}

pub(super) fn auditor(number: u8) -> Address {
    Address([100 + number; 20])
}

/// The number of an auditor that is not the renter.
fn number_of(auditor: Address) -> Option<u8> {
    auditor.0[0].checked_sub(100)
}

fn units(units: u128) -> Amount {
    Amount::from_units(units)
}

/// The order with the stake of its price and a distinct number.
pub(super) fn order(nonce: u64) -> ComputeOrder {
    ComputeOrder {
        renter: RENTER,
        nonce,
        segments: SEGMENTS,
        steps: STEPS,
        price_max: units(2 * PRICE),
        step_us_max: 1_000_000,
        deposits: Deposits {
            bid_bond: units(PRICE / 20),
            stake: units(PRICE),
            audit_bond: units(20 * FEE),
            default_fine: units(PRICE / 20),
        },
        audit: AuditTerms { share: SHARE, auditors: AUDITORS, colluding: 333_333, fee: units(FEE) },
        ..ComputeOrder::example()
    }
}

/// The order on private rows, which its renter audits.
pub(super) fn private_order(nonce: u64) -> ComputeOrder {
    let order = order(nonce);
    let audit = AuditTerms { auditors: 1, colluding: 0, ..order.audit };
    ComputeOrder { data_class: DataClass::Private, audit, ..order }
}

/// An end that was not computed.
fn made_up(segment: u32, by: u8) -> Digest {
    let mut bytes = [by; 32];
    bytes[..4].copy_from_slice(&segment.to_le_bytes());
    Digest(bytes)
}

struct LeasePlay<'a> {
    work: &'a mut dyn OrderWork,
    lease: Lease,
    now: Timestamp,
    conduct: &'a Conduct,
    /// The provider's end of each segment.
    ends: Vec<Digest>,
}

impl LeasePlay<'_> {
    fn act(&mut self, by: Address, action: &ComputeAction) -> Result<(), LeaseError> {
        self.lease.apply(by, action, self.now)?;
        assert!(self.lease.books().is_conserved(), "the books of a lease do not balance");
        Ok(())
    }

    fn expire(&mut self) -> Result<(), LeaseError> {
        self.now = self.lease.phase().1.saturating_add_ms(1);
        self.act(RENTER, &ComputeAction::Expire)
    }

    fn start(&self, segment: u32) -> Digest {
        match segment.checked_sub(1) {
            None => self.lease.order().start,
            Some(before) => self.ends[before as usize],
        }
    }

    fn secret(&self, segment: u32) -> Secret {
        Secret { end: self.ends[segment as usize], salt: made_up(segment, 7) }
    }

    fn auction(&mut self) -> Result<(), LeaseError> {
        let id = self.lease.order().id();
        // The price of 400 steps of 1 s is half the rival's: the second score is a price of 1,000,000.
        let bid = |per_second: u128, step_us: u64| {
            let times = StepTimes::new(vec![1_000_000, step_us])?;
            Ok::<_, LeaseError>(Bid { per_second: units(per_second), devices: 2, times })
        };
        let bids = [(PROVIDER, bid(1_250, 600_000)?), (RIVAL, bid(2_500, 600_000)?)];
        for (bidder, bid) in &bids {
            let sealed = bid_commitment(id, *bidder, bid, Digest([9; 32]));
            self.act(*bidder, &ComputeAction::SealBid(sealed))?;
        }
        if self.lease.order().data_class == DataClass::Private {
            self.act(RENTER, &ComputeAction::JoinAudit)?;
        } else {
            for number in 0..POOL {
                self.act(auditor(number), &ComputeAction::JoinAudit)?;
            }
        }
        self.expire()?;
        for (bidder, bid) in bids {
            self.act(bidder, &ComputeAction::OpenBid { bid, salt: Digest([9; 32]) })?;
        }
        self.act(PROVIDER, &ComputeAction::Fund)
    }

    fn deliver(&mut self) -> anyhow::Result<()> {
        let id = match self.conduct.replays {
            true => ComputeOrder { nonce: u64::MAX, ..self.lease.order().clone() }.id(),
            false => self.lease.order().id(),
        };
        let ComputeOrder { segments, steps, .. } = *self.lease.order();
        for segment in 0..self.conduct.leaves_after.unwrap_or(segments) {
            let start = self.start(segment);
            let end = match self.conduct.fakes.contains(&segment) {
                true => self.work.fake(segment, start)?,
                false => self.work.after(PROVIDER, start, steps)?,
            };
            self.ends.push(end);
            let leaf = segment_leaf(id, PROVIDER, segment, self.secret(segment));
            self.act(PROVIDER, &ComputeAction::Deliver { segment, leaf })?;
        }
        Ok(())
    }

    fn audit(&mut self, beacon: Digest) -> anyhow::Result<Vec<(u32, Address)>> {
        self.act(RENTER, &ComputeAction::Draw(beacon))?;
        let drawn: Vec<u32> = self.lease.audited().map(|(segment, _)| segment).collect();
        for &segment in &drawn {
            self.act(PROVIDER, &ComputeAction::Serve { segment, start: self.start(segment) })?;
        }
        let asked: Vec<(u32, Address)> = self
            .lease
            .audited()
            .flat_map(|(segment, asked)| asked.iter().map(move |auditor| (segment, *auditor)))
            .collect();
        let id = self.lease.order().id();
        let mut returned = Vec::new();
        for &(segment, auditor) in &asked {
            let secret = self.returned(segment, auditor)?;
            let sealed = end_commitment(id, auditor, segment, secret);
            self.act(auditor, &ComputeAction::SealEnd { segment, sealed })?;
            returned.push((segment, auditor, secret));
        }
        for &segment in &drawn {
            let salt = segment.checked_sub(1).map_or(Digest([0; 32]), |at| self.secret(at).salt);
            let opened = ComputeAction::OpenLeaf {
                segment,
                secret: self.secret(segment),
                salt_before: salt,
            };
            // Leaves of another order cannot be opened.
            if self.act(PROVIDER, &opened).is_err() {
                self.expire()?;
                return Ok(asked);
            }
        }
        self.open_result()?;
        for (segment, auditor, secret) in returned {
            self.act(auditor, &ComputeAction::OpenEnd { segment, secret })?;
        }
        self.resolve()?;
        Ok(asked)
    }

    /// Opens the last leaf, if it is not drawn.
    fn open_result(&mut self) -> Result<(), LeaseError> {
        let last = self.ends.len() as u32 - 1;
        if self.lease.result().is_some() {
            return Ok(());
        }
        self.act(
            PROVIDER,
            &ComputeAction::OpenLeaf {
                segment: last,
                secret: self.secret(last),
                salt_before: Digest([0; 32]),
            },
        )
    }

    /// The end that an auditor returns.
    fn returned(&mut self, segment: u32, by: Address) -> anyhow::Result<Secret> {
        let steps = self.lease.order().steps;
        let colludes = number_of(by).is_some_and(|number| number < self.conduct.colluding);
        let end = if colludes {
            self.ends[segment as usize]
        } else if self.computes(by) {
            self.work.after(by, self.start(segment), steps)?
        } else {
            made_up(segment, 2)
        };
        Ok(Secret { end, salt: made_up(segment, by.0[0]) })
    }

    /// Whether an auditor computes its segments.
    fn computes(&self, by: Address) -> bool {
        match number_of(by) {
            Some(number) => self.conduct.lazy != Some(number),
            None => !self.conduct.disputes,
        }
    }

    /// Answers each dispute. A side without a trace states some state.
    fn resolve(&mut self) -> anyhow::Result<()> {
        while self.lease.phase().0 != Phase::Over {
            let Some(dispute) = self.lease.dispute().cloned() else { return Ok(()) };
            let Some(by) = self.lease.answers() else {
                let ruling = ComputeAction::Rule(self.work.step(dispute.agreed.1)?);
                self.act(self.lease.order().referee, &ruling)?;
                continue;
            };
            let computed = match by == PROVIDER {
                true => !self.conduct.fakes.contains(&dispute.segment),
                false => self.computes(by),
            };
            let middle = dispute.middle().unwrap_or_default();
            let start = self.start(dispute.segment);
            let state = match computed {
                true => self.work.after(by, start, middle)?,
                false if by == PROVIDER => self.work.claimed(start, middle)?,
                false => made_up(middle, by.0[0]),
            };
            self.act(by, &ComputeAction::Answer(state))?;
        }
        Ok(())
    }
}

/// Plays a lease whose trainings are hashes. The beacon is that of a later block.
pub(super) fn play(
    order: ComputeOrder,
    beacon: Digest,
    conduct: &Conduct,
) -> anyhow::Result<Played> {
    play_on(&mut HashWork, order, beacon, conduct)
}

/// Plays a lease.
pub(super) fn play_on(
    work: &mut dyn OrderWork,
    order: ComputeOrder,
    beacon: Digest,
    conduct: &Conduct,
) -> anyhow::Result<Played> {
    let (now, segments) = (Timestamp(1_000), order.segments);
    let lease = Lease::open(order, now)?;
    let mut game = LeasePlay { work, lease, now, conduct, ends: Vec::new() };
    game.auction()?;
    game.deliver()?;
    if conduct.leaves_after.is_some_and(|after| after < segments) {
        game.expire()?;
    }
    let mut asked = Vec::new();
    if game.lease.phase().0 == Phase::Delivered {
        match conduct.undrawn {
            true => {
                game.expire()?;
                game.open_result()?;
            }
            false => asked = game.audit(beacon)?,
        }
    }
    Ok(Played { lease: game.lease, asked })
}

impl Played {
    /// Deposits that returned and pay, of an account.
    pub(super) fn owed(&self, account: Address) -> i128 {
        let accounts = [ComputeAccount::Owed(account), ComputeAccount::Returned(account)];
        accounts.map(|account| self.lease.books().balance(account).units() as i128).iter().sum()
    }

    /// The gain of an account by the lease, without the cost of its computations.
    pub(super) fn earned(&self, account: Address) -> i128 {
        let deposits = &self.lease.order().deposits;
        let deposited = match account {
            PROVIDER => deposits.bid_bond.units() + deposits.stake.units(),
            RENTER => {
                let audits = self.lease.order().data_class == DataClass::Private;
                let bond = if audits { deposits.audit_bond.units() } else { 0 };
                self.lease.order().escrow().map_or(0, Amount::units) + bond
            }
            _ => deposits.audit_bond.units(),
        };
        self.owed(account) - deposited as i128
    }
}
