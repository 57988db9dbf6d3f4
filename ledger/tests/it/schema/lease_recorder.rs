//! Records a lease whose accounts sign each action, for a golden vector.

use florin_compute::{
    AuditTerms, Bid, Checkpoint, ComputeAction, ComputeOrder, DataClass, Deposits, Lease,
    LeaseAction, LeaseOpening, LeaseRecord, Party, Phase, RecordedAction, RecordedLease, Secret,
    StepTimes, beacon_commitment, bid_commitment, end_commitment, segment_leaf,
};
use florin_ledger::conformance::TestSigner;
use florin_protocol::*;

/// Numbers of the signers.
const RENTER: u64 = 1;
const REFEREE: u64 = 2;
pub(crate) const WINNER: u64 = 3;
pub(crate) const SECOND: u64 = 4;
const ACCOUNTS: u64 = 20;
/// One more than are asked and in reserve for a segment.
const AUDITORS: [u64; 9] = [11, 12, 13, 14, 15, 16, 17, 18, 19];

pub(crate) const SEGMENTS: u32 = 6;
pub(crate) const STEPS: u32 = 7;
const OPENED: Timestamp = Timestamp(1_700_000_000_000);
const BEACON: Digest = Digest([7; 32]);

pub(crate) fn address(signer: u64) -> Address {
    TestSigner::new(signer).unwrap().address()
}

/// The state after a number of steps of the job. The right one has the version 0.
pub(crate) fn state(step: u32, version: u8) -> Digest {
    let mut bytes = [0x50; 32];
    bytes[..4].copy_from_slice(&step.to_le_bytes());
    bytes[4] = version;
    Digest(bytes)
}

fn salt(segment: u32) -> Digest {
    state(segment, 0xff)
}

/// Six segments of seven steps. A third is audited, by two accounts each; private rows by the
/// renter.
pub(crate) fn order(data_class: DataClass) -> ComputeOrder {
    let example = ComputeOrder::example();
    let auditors = if data_class == DataClass::Private { 1 } else { 2 };
    ComputeOrder {
        renter: address(RENTER),
        referee: address(REFEREE),
        start: state(0, 0),
        segments: SEGMENTS,
        steps: STEPS,
        step_us_max: 2_000_000,
        data_class,
        deposits: Deposits { stake: Amount::from_units(100_000), ..example.deposits },
        audit: AuditTerms { share: 333_333, auditors, ..example.audit },
        ..example
    }
}

/// A bid on one device, of a second for each step: 42 device-seconds.
pub(crate) fn bid(per_second: u128) -> Bid {
    let times = StepTimes::new(vec![1_000_000]).unwrap();
    Bid { per_second: Amount::from_units(per_second), devices: 1, times }
}

/// Where an auditor seals no end.
#[derive(Clone, Copy)]
pub(crate) enum Silence {
    Everywhere(Address),
    FirstSegment(Address),
}

/// A lease with its record, and its digest after each one.
pub(crate) struct LeaseRecorder {
    fold: RecordedLease,
    pub(crate) records: Vec<LeaseRecord>,
    pub(crate) states: Vec<Digest>,
    now: Timestamp,
    /// The provider's states are wrong from this step of the job on.
    pub(crate) wrong_from: u32,
    /// An auditor whose ends are wrong.
    pub(crate) liar: Option<Address>,
}

impl LeaseRecorder {
    fn open(order: ComputeOrder) -> Self {
        let beacon = beacon_commitment(order.id(), BEACON);
        let opening = LeaseOpening { order, opened: OPENED, beacon };
        let fold = RecordedLease::open(opening).unwrap();
        let (records, states) = (Vec::new(), Vec::new());
        Self { fold, records, states, now: OPENED, wrong_from: u32::MAX, liar: None }
    }

    pub(crate) fn lease(&self) -> &Lease {
        self.fold.lease()
    }

    pub(crate) fn opening(&self) -> &LeaseOpening {
        self.fold.opening()
    }

    /// The bids are sealed, and all auditors have joined.
    pub(crate) fn with_bids(data_class: DataClass, bids: &[(u64, Bid)]) -> Self {
        let is_private = data_class == DataClass::Private;
        Self::with_auditors(data_class, if is_private { &[RENTER] } else { &AUDITORS }, bids)
    }

    /// The bids are sealed, and some auditors have joined.
    pub(crate) fn with_auditors(
        data_class: DataClass,
        auditors: &[u64],
        bids: &[(u64, Bid)],
    ) -> Self {
        let mut recorder = Self::open(order(data_class));
        auditors.iter().for_each(|auditor| recorder.act(*auditor, ComputeAction::JoinAudit));
        let id = recorder.lease().id();
        for (bidder, bid) in bids {
            let sealed = bid_commitment(id, address(*bidder), bid, salt(0));
            recorder.act(*bidder, ComputeAction::SealBid(sealed));
        }
        recorder.expire();
        recorder
    }

    pub(crate) fn open_bid(&mut self, bidder: u64, bid: &Bid) {
        self.act(bidder, ComputeAction::OpenBid { bid: bid.clone(), salt: salt(0) });
    }

    /// The winner has its stake in the lease.
    pub(crate) fn funded(data_class: DataClass) -> Self {
        let bids = [(WINNER, bid(100)), (SECOND, bid(200))];
        let mut recorder = Self::with_bids(data_class, &bids);
        bids.iter().for_each(|(bidder, bid)| recorder.open_bid(*bidder, bid));
        recorder.act(WINNER, ComputeAction::Fund);
        recorder
    }

    /// The audits are drawn, and all starts are served.
    pub(crate) fn served(data_class: DataClass, wrong_from: u32) -> Self {
        let mut recorder = Self { wrong_from, ..Self::funded(data_class) };
        recorder.deliver(SEGMENTS);
        recorder.draw();
        recorder.serve(usize::MAX);
        recorder
    }

    fn apply(&mut self, action: RecordedAction) {
        let record = LeaseRecord { at: self.now, action };
        self.fold.apply(&record).unwrap();
        self.records.push(record);
        self.states.push(self.lease().digest());
    }

    pub(crate) fn act(&mut self, signer: u64, action: ComputeAction) {
        self.now = self.now.saturating_add_ms(1);
        let (by, order) = (address(signer), self.lease().id());
        let body = LeaseAction { order, by, nonce: self.fold.next_nonce(by), action };
        let market = self.fold.opening().order.market;
        let signed = body.sign(market, &TestSigner::new(signer).unwrap()).unwrap();
        self.apply(RecordedAction::Signed(Box::new(signed)));
    }

    /// Acts for an account whose address is known.
    fn act_of(&mut self, account: Address, action: ComputeAction) {
        let signer = (1..=ACCOUNTS).find(|signer| address(*signer) == account).unwrap();
        self.act(signer, action);
    }

    pub(crate) fn phase(&self) -> Phase {
        self.lease().phase().0
    }

    /// Applies the default of the phase.
    pub(crate) fn expire(&mut self) {
        self.now = self.lease().phase().1.saturating_add_ms(1);
        self.apply(RecordedAction::Expired);
    }

    /// The coordinator uses the checkpoints that the provider left, after its deadline.
    pub(crate) fn use_checkpoints(&mut self) {
        self.now = self.lease().phase().1.saturating_add_ms(1);
        let needed = self.lease().checkpoints_needed().into_iter();
        let checkpoint = |segment| Checkpoint { segment, secret: self.own_secret(segment) };
        let action = RecordedAction::Checkpoints(needed.map(checkpoint).collect());
        self.apply(action);
    }

    /// The coordinator starts again after an outage.
    pub(crate) fn resume(&mut self, outage_ms: u64) {
        self.now = self.now.saturating_add_ms(outage_ms);
        self.apply(RecordedAction::Resumed);
    }

    /// The provider's state after a step of the job.
    fn own(&self, step: u32) -> Digest {
        state(step, u8::from(step >= self.wrong_from))
    }

    fn own_secret(&self, segment: u32) -> Secret {
        Secret { end: self.own((segment + 1) * STEPS), salt: salt(segment) }
    }

    /// The secret of an auditor. A liar's end is wrong.
    fn secret_of(&self, auditor: Address, segment: u32) -> Secret {
        let version = u8::from(self.liar == Some(auditor));
        Secret { end: state((segment + 1) * STEPS, version), salt: salt(segment) }
    }

    /// Delivers the next segments.
    pub(crate) fn deliver(&mut self, count: u32) {
        let first = u32::try_from(self.lease().leaves().len()).unwrap();
        for segment in first..first + count {
            let (id, secret) = (self.lease().id(), self.own_secret(segment));
            let leaf = segment_leaf(id, address(WINNER), segment, secret);
            self.act(WINNER, ComputeAction::Deliver { segment, leaf });
        }
    }

    pub(crate) fn draw(&mut self) {
        self.apply(RecordedAction::Beacon(BEACON));
    }

    pub(crate) fn drawn(&self) -> Vec<u32> {
        self.lease().audited().map(|(segment, _)| segment).collect()
    }

    /// Serves the starts of the first drawn segments.
    pub(crate) fn serve(&mut self, count: usize) {
        for segment in self.drawn().into_iter().take(count) {
            let start = self.own(segment * STEPS);
            self.act(WINNER, ComputeAction::Serve { segment, start });
        }
    }

    /// The accounts that are asked or have sealed, by segment.
    fn asked(&self) -> Vec<(u32, Address)> {
        let audits = self.lease().audited();
        audits.flat_map(|(segment, asked)| asked.iter().map(move |own| (segment, *own))).collect()
    }

    /// The first asked account of the first drawn segment.
    pub(crate) fn first_asked(&self) -> Address {
        self.asked()[0].1
    }

    /// An account that is asked in the first drawn segment, and in another one.
    pub(crate) fn asked_twice(&self) -> Address {
        let asked = self.asked();
        let is_twice = |one: &Address| asked.iter().filter(|(_, other)| other == one).count() > 1;
        asked.iter().map(|(_, account)| *account).find(is_twice).unwrap()
    }

    /// Seals the ends of all asked accounts that have not sealed, but for a silent one.
    pub(crate) fn seal(&mut self, silent: Option<Silence>) {
        let id = self.lease().id();
        for (segment, auditor) in self.asked() {
            let audits = self.lease().audits();
            let audit = audits.iter().find(|audit| audit.segment == segment).unwrap();
            let is_silent = match silent {
                None => false,
                Some(Silence::Everywhere(account)) => account == auditor,
                Some(Silence::FirstSegment(account)) => {
                    account == auditor && segment == audits[0].segment
                }
            };
            if !is_silent && !audit.sealed.contains_key(&auditor) {
                let sealed = end_commitment(id, auditor, segment, self.secret_of(auditor, segment));
                self.act_of(auditor, ComputeAction::SealEnd { segment, sealed });
            }
        }
    }

    /// Opens the sealed ends of all accounts but one.
    pub(crate) fn open_ends(&mut self, closed: Option<Address>) {
        for (segment, auditor) in self.asked() {
            if closed != Some(auditor) {
                let secret = self.secret_of(auditor, segment);
                self.act_of(auditor, ComputeAction::OpenEnd { segment, secret });
            }
        }
    }

    /// Opens a leaf.
    pub(crate) fn open_leaf(&mut self, segment: u32) {
        let (secret, salt_before) = (self.own_secret(segment), salt(segment.saturating_sub(1)));
        self.act(WINNER, ComputeAction::OpenLeaf { segment, secret, salt_before });
    }

    /// Opens all leaves of drawn segments, and that of the last delivered one.
    pub(crate) fn open_leaves(&mut self) {
        let last = u32::try_from(self.lease().leaves().len()).unwrap() - 1;
        let drawn = self.drawn();
        drawn.iter().for_each(|segment| self.open_leaf(*segment));
        if !drawn.contains(&last) {
            self.open_leaf(last);
        }
    }

    /// Answers a dispute until a phase ends, or a side has to answer that is silent.
    pub(crate) fn answer(&mut self, silent: Option<Party>) {
        while self.phase() == Phase::Disputing {
            let dispute = self.lease().dispute().unwrap().clone();
            let (middle, side) = (dispute.middle().unwrap(), dispute.next().unwrap());
            if silent == Some(side) {
                return;
            }
            let step = dispute.segment * STEPS + middle;
            match side {
                Party::Provider => self.act(WINNER, ComputeAction::Answer(self.own(step))),
                Party::Auditor => {
                    let version = u8::from(self.liar == Some(dispute.auditor));
                    let answer = ComputeAction::Answer(state(step, version));
                    self.act_of(dispute.auditor, answer);
                }
            }
        }
    }

    /// The ruling of the referee: the state of a version.
    pub(crate) fn rule(&mut self, version: u8) {
        let dispute = self.lease().dispute().unwrap();
        let step = dispute.segment * STEPS + dispute.differ.0;
        self.act(REFEREE, ComputeAction::Rule(state(step, version)));
    }
}
