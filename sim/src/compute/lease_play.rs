//! One lease, played to its end on the rules of production: every action is one that a coordinator would record.

mod audits;

use std::collections::{BTreeMap, BTreeSet};

use florin_compute::{
    AuditDraw, Bid, Checkpoint, ComputeAccount, ComputeAction, ComputeOrder, Lease, LeaseError,
    Phase, Secret, award, bid_commitment, draw_audits, segment_leaf,
};
use florin_protocol::{Address, Amount, Digest, Timestamp, blob_digest};

/// The salt of all sealed bids.
const BID_SALT: Digest = Digest([9; 32]);

/// The computations of the parties of a lease.
pub trait OrderWork {
    /// Its error.
    type Error: From<LeaseError>;

    /// The state after some steps of the segment that starts at a state, as `by` computes it.
    ///
    /// # Errors
    /// If it cannot be computed.
    fn after(&mut self, by: Address, start: Digest, steps: u32) -> Result<Digest, Self::Error>;

    /// The end of a segment by a provider that saves work.
    ///
    /// # Errors
    /// If it cannot be computed.
    fn fake(&mut self, segment: u32, start: Digest) -> Result<Digest, Self::Error>;

    /// The state after a single step.
    ///
    /// # Errors
    /// If it cannot be computed.
    fn step(&mut self, state: Digest) -> Result<Digest, Self::Error>;

    /// The state that a provider states in a dispute after some steps of a segment that it did not compute.
    ///
    /// # Errors
    /// If it cannot be computed.
    fn claimed(&mut self, start: Digest, steps: u32) -> Result<Digest, Self::Error>;
}

/// Trainings whose states are hashes of the states before them.
#[derive(Clone, Copy, Debug)]
pub struct HashWork;

impl OrderWork for HashWork {
    type Error = LeaseError;

    fn after(&mut self, _by: Address, start: Digest, steps: u32) -> Result<Digest, LeaseError> {
        Ok((0..steps).fold(start, |state, _| blob_digest(&state.0)))
    }

    fn fake(&mut self, segment: u32, _start: Digest) -> Result<Digest, LeaseError> {
        Ok(made_up(segment, 1))
    }

    fn step(&mut self, state: Digest) -> Result<Digest, LeaseError> {
        Ok(blob_digest(&state.0))
    }

    fn claimed(&mut self, _start: Digest, steps: u32) -> Result<Digest, LeaseError> {
        Ok(made_up(steps, 3))
    }
}

/// When a sealed bid is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BidOpening {
    /// In time.
    Always,
    /// Never: its bond is lost.
    Never,
    /// Behind all others, if the order then costs less and the winner stays: a bid of the renter. Of several the one
    /// that lowers the price most is opened.
    IfCheaper,
}

/// A provider that does not come back after it stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    /// Whether it has left checkpoints of its segments.
    pub checkpoints: bool,
}

/// The work of a provider on a lease that it wins.
#[derive(Clone, Debug)]
pub struct ProviderPlan {
    /// Whether it deposits the stake.
    pub funds: bool,
    /// Microseconds that a step takes.
    pub step_us: u64,
    /// Microseconds of a device that a step costs: fewer where leases share a device.
    pub device_us: u64,
    /// Segments that it does not compute.
    pub fakes: BTreeSet<u32>,
    /// Segments after which it is gone.
    pub stops_after: Option<u32>,
    /// Whether it is gone for the audits, too.
    pub absence: Option<Absence>,
    /// Whether its leaves are those of another order.
    pub replays: bool,
    /// Salts of the last leaf that it tries, and the beacon that it expects: it looks for a draw without a fake segment.
    pub grinding: Option<(u32, Digest)>,
}

impl ProviderPlan {
    /// Honest work, with steps of a duration.
    #[must_use]
    pub const fn honest(step_us: u64) -> Self {
        Self {
            funds: true,
            step_us,
            device_us: step_us,
            fakes: BTreeSet::new(),
            stops_after: None,
            absence: None,
            replays: false,
            grinding: None,
        }
    }
}

/// A sealed bid, and the plan of its bidder.
#[derive(Clone, Debug)]
pub struct PlannedBid {
    /// The account.
    pub bidder: Address,
    /// The bid.
    pub bid: Bid,
    /// When it is opened.
    pub opening: BidOpening,
    /// The bidder's work if it wins.
    pub plan: ProviderPlan,
}

/// The conduct of an auditor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditorConduct {
    /// It computes its segments.
    Computes,
    /// It seals ends that it did not compute.
    MakesUp,
    /// It seals the ends that the provider gives it.
    Copies,
    /// It does so for the favoured providers of a plan, and computes the segments of others.
    Colludes,
    /// It computes, and seals another end of each segment.
    Accuses,
    /// It seals nothing.
    Silent,
}

/// An auditor with a bond.
#[derive(Clone, Copy, Debug)]
pub struct PlannedAuditor {
    /// The account.
    pub account: Address,
    /// Its conduct.
    pub conduct: AuditorConduct,
    /// Microseconds that a step takes it.
    pub step_us: u64,
}

/// A lease with the plans of its parties.
#[derive(Clone, Copy, Debug)]
pub struct LeasePlan<'a> {
    /// The bids.
    pub bids: &'a [PlannedBid],
    /// The auditors; those of private rows are the renter alone.
    pub auditors: &'a [PlannedAuditor],
    /// Providers whose ends colluding auditors seal.
    pub favoured: &'a BTreeSet<Address>,
    /// The beacon of a later block; `None` if the audits are never drawn.
    pub beacon: Option<Digest>,
}

/// A lease that is over.
#[derive(Clone, Debug)]
pub struct PlayedLease {
    /// The lease.
    pub lease: Lease,
    /// Whether its books balanced after every action.
    pub is_balanced: bool,
    /// Audits for which an auditor was asked.
    pub asked: Vec<(u32, Address)>,
    /// Segments that each account computed.
    pub computed: BTreeMap<Address, u32>,
    /// When the bids were opened.
    pub awarded: Timestamp,
    /// When the provider began, and when it stopped; the award without a provider.
    pub ran: (Timestamp, Timestamp),
    /// When it was over.
    pub ended: Timestamp,
    /// Whether a delivered segment was not computed.
    pub has_fakes: bool,
}

impl PlayedLease {
    /// Pay minus debits of an account, in base units.
    #[must_use]
    pub fn net(&self, account: Address) -> i128 {
        let books = self.lease.books();
        let units = |account| i128::try_from(books.balance(account).units()).unwrap_or(i128::MAX);
        units(ComputeAccount::Owed(account))
            .saturating_sub(units(ComputeAccount::Forfeited(account)))
    }

    /// Paid from the renter's escrow.
    #[must_use]
    pub fn spent(&self) -> Amount {
        let totals = self.lease.books().totals();
        // An escrow bounds the sum.
        Amount::total(totals.values().map(|totals| totals.paid)).unwrap_or_default()
    }
}

/// An end that was not computed.
#[must_use]
pub fn made_up(segment: u32, by: u8) -> Digest {
    let mut bytes = [by; 32];
    bytes[..4].copy_from_slice(&segment.to_le_bytes());
    Digest(bytes)
}

/// Plays a lease from its opening at a moment.
///
/// # Errors
/// If the order is invalid, or a computation fails.
pub fn play_lease<W: OrderWork>(
    work: &mut W,
    order: ComputeOrder,
    plan: LeasePlan<'_>,
    now: Timestamp,
) -> Result<PlayedLease, W::Error> {
    let lease = Lease::open(order, now)?;
    let (asked, computed) = (Vec::new(), BTreeMap::new());
    let mut game = LeaseGame {
        work,
        plan,
        own: None,
        ends: Vec::new(),
        salts: BTreeMap::new(),
        sealed: BTreeMap::new(),
        played: PlayedLease {
            lease,
            is_balanced: true,
            asked,
            computed,
            awarded: now,
            ran: (now, now),
            ended: now,
            has_fakes: false,
        },
        now,
    };
    game.auction()?;
    if game.phase() == Phase::Running {
        game.deliver()?;
    }
    if game.phase() == Phase::Delivered {
        match plan.beacon {
            Some(beacon) => game.audit(beacon)?,
            None => {
                game.expire()?;
                game.open_result()?;
            }
        }
    }
    while game.phase() != Phase::Over {
        game.expire()?;
    }
    game.played.ended = game.now;
    Ok(game.played)
}

struct LeaseGame<'a, W> {
    work: &'a mut W,
    plan: LeasePlan<'a>,
    /// The winner.
    own: Option<&'a PlannedBid>,
    /// The provider's end of each segment.
    ends: Vec<Digest>,
    /// Salts of leaves that were chosen.
    salts: BTreeMap<u32, Digest>,
    /// Ends that auditors sealed.
    sealed: BTreeMap<(u32, Address), Secret>,
    played: PlayedLease,
    now: Timestamp,
}

impl<'a, W: OrderWork> LeaseGame<'a, W> {
    fn phase(&self) -> Phase {
        self.played.lease.phase().0
    }

    fn act(&mut self, by: Address, action: &ComputeAction) -> Result<(), LeaseError> {
        self.played.lease.apply(by, action, self.now)?;
        self.played.is_balanced &= self.played.lease.books().is_conserved();
        Ok(())
    }

    /// Applies the default of the phase. Any account can do it.
    fn expire(&mut self) -> Result<(), LeaseError> {
        let deadline = self.played.lease.phase().1;
        self.now = self.now.max(deadline.saturating_add_ms(1));
        let renter = self.played.lease.order().renter;
        self.act(renter, &ComputeAction::Expire)
    }

    /// Uses the checkpoints of a gone provider after its deadline, or applies the default.
    fn pass_deadline_of(&mut self, absence: Absence) -> Result<(), LeaseError> {
        if !absence.checkpoints {
            return self.expire();
        }
        let deadline = self.played.lease.phase().1;
        self.now = self.now.max(deadline.saturating_add_ms(1));
        let needed = self.played.lease.checkpoints_needed().into_iter();
        let checkpoint = |segment| Checkpoint { segment, secret: self.secret(segment) };
        let checkpoints: Vec<Checkpoint> = needed.map(checkpoint).collect();
        self.played.lease.use_checkpoints(&checkpoints, self.now)?;
        self.played.is_balanced &= self.played.lease.books().is_conserved();
        Ok(())
    }

    /// Whether the provider of the lease is gone.
    fn absence(&self) -> Option<Absence> {
        self.own.and_then(|own| own.plan.absence)
    }

    /// Lets milliseconds pass.
    fn wait(&mut self, ms: u64) {
        self.now = self.now.saturating_add_ms(ms);
    }

    fn auction(&mut self) -> Result<(), LeaseError> {
        let (id, plan) = (self.played.lease.id(), self.plan);
        for planned in plan.bids {
            let sealed = bid_commitment(id, planned.bidder, &planned.bid, BID_SALT);
            self.act(planned.bidder, &ComputeAction::SealBid(sealed))?;
        }
        for auditor in plan.auditors {
            self.act(auditor.account, &ComputeAction::JoinAudit)?;
        }
        self.expire()?;
        if self.phase() == Phase::Revealing {
            let opened = plan.bids.iter().filter(|planned| planned.opening == BidOpening::Always);
            for planned in opened.chain(self.cheaper_bid()) {
                let opened = ComputeAction::OpenBid { bid: planned.bid.clone(), salt: BID_SALT };
                self.act(planned.bidder, &opened)?;
            }
            if self.phase() == Phase::Revealing {
                self.expire()?;
            }
        }
        self.played.awarded = self.now;
        self.played.ran = (self.now, self.now);
        while self.phase() == Phase::Funding {
            let winner = self.played.lease.award().map(|award| award.provider);
            let own = plan.bids.iter().find(|planned| Some(planned.bidder) == winner);
            match own.filter(|own| own.plan.funds) {
                Some(own) => {
                    self.act(own.bidder, &ComputeAction::Fund)?;
                    self.own = Some(own);
                    self.played.ran = (self.now, self.now);
                }
                None => self.expire()?,
            }
        }
        Ok(())
    }

    /// The renter's own bid that lowers the price most, and leaves the winner.
    fn cheaper_bid(&self) -> Option<&'a PlannedBid> {
        let order = self.played.lease.order();
        let of = |opening| {
            self.plan.bids.iter().filter(move |planned: &&PlannedBid| planned.opening == opening)
        };
        let mut bids: BTreeMap<Address, Bid> =
            of(BidOpening::Always).map(|planned| (planned.bidder, planned.bid.clone())).collect();
        let won = award(order, &bids)?;
        let mut best = (won.price(order, 0), None);
        for planned in of(BidOpening::IfCheaper) {
            bids.insert(planned.bidder, planned.bid.clone());
            let price = award(order, &bids)
                .filter(|found| found.provider == won.provider)
                .map(|found| found.price(order, 0));
            bids.remove(&planned.bidder);
            if let Some(price) = price.filter(|price| *price < best.0) {
                best = (price, Some(planned));
            }
        }
        best.1
    }

    fn deliver(&mut self) -> Result<(), W::Error> {
        let Some(own) = self.own else { return Ok(()) };
        let order = self.played.lease.order();
        let id = match own.plan.replays {
            true => ComputeOrder { nonce: u64::MAX, ..order.clone() }.id(),
            false => order.id(),
        };
        let (segments, steps, transfer_ms) = (order.segments, order.steps, order.windows.segment);
        let segment_ms = steps_ms(own.plan.step_us, steps).saturating_add(transfer_ms);
        for segment in 0..own.plan.stops_after.unwrap_or(segments).min(segments) {
            let is_fake = own.plan.replays || own.plan.fakes.contains(&segment);
            // A segment that is not computed takes its transfer alone.
            self.wait(if is_fake { transfer_ms } else { segment_ms });
            let deadline = self.played.lease.phase().1;
            if self.now > deadline {
                // It computed until the deadline, for nothing.
                self.count_segment(own.bidder);
                self.played.ran.1 = deadline;
                break;
            }
            let start = self.start(segment);
            let end = if is_fake {
                self.played.has_fakes = true;
                self.work.fake(segment, start)?
            } else {
                self.count_segment(own.bidder);
                self.work.after(own.bidder, start, steps)?
            };
            self.ends.push(end);
            if segment.checked_add(1) == Some(segments) {
                self.grind(id, own);
            }
            let leaf = segment_leaf(id, own.bidder, segment, self.secret(segment));
            self.act(own.bidder, &ComputeAction::Deliver { segment, leaf })?;
            self.played.ran.1 = self.now;
        }
        if self.phase() == Phase::Running {
            self.expire()?;
        }
        Ok(())
    }

    /// Looks for a salt of the last leaf with which the expected beacon draws no fake segment.
    fn grind(&mut self, id: Digest, own: &PlannedBid) {
        let Some((salts, beacon)) = own.plan.grinding else { return };
        let last = u32::try_from(self.ends.len()).unwrap_or(u32::MAX).saturating_sub(1);
        let mut leaves = self.played.lease.leaves().to_vec();
        let audited = self.played.lease.order().audited(last.saturating_add(1));
        for tried in 0..salts {
            self.salts.insert(last, made_up(tried, 8));
            leaves.push(segment_leaf(id, own.bidder, last, self.secret(last)));
            let draw = AuditDraw { order: id, leaves: &leaves, beacon };
            let drawn = draw_audits(&draw, audited);
            if drawn.iter().all(|segment| !own.plan.fakes.contains(segment)) {
                return;
            }
            leaves.pop();
        }
    }

    fn start(&self, segment: u32) -> Digest {
        let before = segment.checked_sub(1).and_then(|before| self.ends.get(before as usize));
        before.copied().unwrap_or(self.played.lease.order().start)
    }

    fn secret(&self, segment: u32) -> Secret {
        let end = self.ends.get(segment as usize).copied().unwrap_or_default();
        let salt = self.salts.get(&segment).copied();
        Secret { end, salt: salt.unwrap_or_else(|| made_up(segment, 7)) }
    }

    fn count_segment(&mut self, account: Address) {
        let computed = self.played.computed.entry(account).or_default();
        *computed = computed.saturating_add(1);
    }
}

/// Milliseconds of some steps.
fn steps_ms(step_us: u64, steps: u32) -> u64 {
    step_us.saturating_mul(steps.into()).div_ceil(1_000)
}
