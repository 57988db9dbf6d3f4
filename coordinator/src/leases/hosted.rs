//! An order at its coordinator: what has arrived, and the lease that follows from its record.

use std::collections::{BTreeMap, BTreeSet};

use florin_compute::{
    ComputeAction, LeaseError, LeaseOpening, LeaseRecord, OrderView, Phase, RecordedAction,
    RecordedLease, SignedLeaseAction, beacon_commitment,
};
use florin_protocol::{Address, Blob, Digest, ErrorCode, Rejection, Timestamp};

use super::restricted::RestrictedFiles;
use super::store::{LoadedOrder, StoredCheckpoint, StoredOrder, StoredState};
use super::{BLOBS_MS_MAX, is_restricted, log_unremoved, refused};

/// An order with its lease.
#[derive(Clone, Debug)]
pub(super) struct HostedOrder {
    pub(super) stored: StoredOrder,
    /// Blobs of the job that have not arrived.
    pub(super) missing: Vec<Blob>,
    /// The lease, once the bids have begun.
    pub(super) lease: Option<RecordedLease>,
    pub(super) records: Vec<LeaseRecord>,
    pub(super) states: BTreeMap<Digest, StoredState>,
    /// The states that its provider left while it computed, by the number of segments before them.
    pub(super) checkpoints: BTreeMap<u32, StoredCheckpoint>,
    /// Whether it needs no more of the coordinator's wallet: its settlement is posted with a bond, or has no pay. After a
    /// start that is found again on the ledger.
    pub(super) is_covered: bool,
}

/// The need of a lease at a moment without an action of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DueAction {
    /// Blobs did not arrive in time.
    Abandon,
    /// A record of the coordinator.
    Record,
}

impl HostedOrder {
    /// An order that was just received.
    pub(super) fn new(stored: StoredOrder, missing: Vec<Blob>) -> Self {
        Self {
            stored,
            missing,
            lease: None,
            records: Vec::new(),
            states: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            is_covered: false,
        }
    }

    /// An order from its stored record.
    pub(super) fn load(loaded: LoadedOrder, missing: Vec<Blob>) -> Result<Self, String> {
        let LoadedOrder { stored, records, states, checkpoints } = loaded;
        let mut order = Self { states, checkpoints, ..Self::new(stored, missing) };
        if let Some(opened) = order.stored.opened {
            let mut lease = RecordedLease::open(order.opening(opened))
                .map_err(|error| format!("a stored order is invalid: {error}"))?;
            for record in &records {
                lease.apply(record).map_err(|error| format!("a stored record: {error}"))?;
            }
            order.lease = Some(lease);
        }
        order.records = records;
        if !order.is_open() {
            order.checkpoints.clear();
        }
        Ok(order)
    }

    fn opening(&self, opened: Timestamp) -> LeaseOpening {
        let order = self.stored.request.order.clone();
        let beacon = beacon_commitment(order.id(), self.stored.beacon);
        LeaseOpening { order, opened, beacon }
    }

    /// The lease that begins at a moment.
    pub(super) fn begin(&self, now: Timestamp) -> Result<RecordedLease, Rejection> {
        RecordedLease::open(self.opening(now)).map_err(|error| refused(&error))
    }

    /// Whether only some accounts may read its rows.
    pub(super) fn is_restricted(&self) -> bool {
        is_restricted(&self.stored.request.order)
    }

    /// Whether a blob of its job is in its own folder.
    pub(super) fn is_own_file(&self, digest: Digest) -> bool {
        self.is_restricted() && digest == self.stored.request.job.rows.digest
    }

    /// Whether a stored state of the order, or a checkpoint, has these bytes.
    pub(super) fn has_file(&self, blob: Digest) -> bool {
        let checkpoints = self.checkpoints.values().map(|one| one.stored);
        self.states.values().copied().chain(checkpoints).any(|state| state.blob == blob)
    }

    /// The files in the order's own folder: states, checkpoints, and the rows of a restricted order while it needs them.
    /// A state of a public order is there if it was a checkpoint before.
    pub(super) fn own_files(&self) -> impl Iterator<Item = Digest> {
        let rows = self.stored.request.job.rows.digest;
        let has_rows = self.is_restricted() && self.lease.is_some() && self.is_open();
        let checkpoints = self.checkpoints.values().filter(|_| self.is_open());
        let states = self.states.values().chain(checkpoints.map(|one| &one.stored));
        states.map(|state| state.blob).chain(has_rows.then_some(rows))
    }

    /// The files in the order's own folder at a start: also the rows that have arrived before its bids.
    pub(super) fn own_or_arrived_files(&self) -> BTreeSet<Digest> {
        let rows = self.is_waiting().then_some(self.stored.request.job.rows.digest);
        self.own_files().chain(rows).collect()
    }

    /// Whether a file of the order is in its own folder, and not in the blob store: all of a restricted order, and
    /// states of a public one that were checkpoints.
    pub(super) fn has_own_file(&self, files: &RestrictedFiles, id: Digest, file: Digest) -> bool {
        let is_checkpoint = self.checkpoints.values().any(|one| one.stored.blob == file);
        self.is_restricted() || is_checkpoint || files.contains(id, file)
    }

    /// The files of a lease that is over that no account may read any more.
    pub(super) fn unneeded_files(&self) -> Vec<Digest> {
        let needed: BTreeSet<Digest> = self.own_files().collect();
        let rows = self.is_restricted().then_some(self.stored.request.job.rows.digest);
        let checkpoints = self.checkpoints.values().map(|one| one.stored.blob);
        checkpoints.chain(rows).filter(|file| !needed.contains(file)).collect()
    }

    /// Removes the files that no account may read any more, from the order's own folder.
    pub(super) fn remove_unneeded(&self, files: &RestrictedFiles, id: Digest) {
        if self.stored.refused.is_some() {
            log_unremoved(id, files.remove_all(id));
        } else if !self.is_open() && self.is_restricted() {
            log_unremoved(id, files.remove(id, &self.unneeded_files()));
        }
    }

    /// Whether it still waits for blobs or has a lease that goes on.
    pub(super) fn is_open(&self) -> bool {
        self.stored.refused.is_none()
            && self.lease.as_ref().is_none_or(|lease| lease.lease().outcome().is_none())
    }

    /// Whether its bids have neither begun nor been refused.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_open() && self.lease.is_none()
    }

    /// Whether its money still has to move.
    pub(super) fn is_unsettled(&self) -> bool {
        !self.is_open() && !self.stored.money.is_final()
    }

    /// The lease, or why there is none.
    pub(super) fn begun(&self) -> Result<&RecordedLease, Rejection> {
        if let Some(why) = &self.stored.refused {
            return Err(Rejection::new(ErrorCode::LeaseRefused, why.clone()));
        }
        self.lease.as_ref().ok_or_else(|| {
            let message = "the bids have not begun: blobs of the job are missing";
            Rejection::new(ErrorCode::TooEarly, message)
        })
    }

    /// Whether all blobs are there, and the bids have not begun.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.is_empty() && self.is_waiting()
    }

    /// Refuses cheaply an action that the lease would refuse: another number than the account's next, or an account
    /// without a part.
    pub(super) fn check_sender(&self, signed: &SignedLeaseAction) -> Result<(), Rejection> {
        let (lease, body) = (self.begun()?, &signed.body);
        if !body.action.joins() && !lease.lease().has_part(body.by) {
            let role = "a bidder, an auditor or the referee of this order";
            return Err(refused(&LeaseError::Account { account: body.by, role }));
        }
        lease.check_turn(body).map_err(|error| refused(&error))
    }

    /// The recorded action that an account repeats.
    pub(super) fn has_recorded(&self, signed: &SignedLeaseAction) -> bool {
        let is_same = |record: &LeaseRecord| match &record.action {
            RecordedAction::Signed(known) => known.body == signed.body,
            _ => false,
        };
        self.records.iter().rev().any(is_same)
    }

    /// When an account sealed its bid.
    pub(super) fn sealed_at(&self, account: Address) -> Option<Timestamp> {
        self.lease.as_ref()?.lease().sealed_bid(account)?;
        let is_seal = |record: &&LeaseRecord| match &record.action {
            RecordedAction::Signed(signed) => {
                signed.body.by == account && matches!(signed.body.action, ComputeAction::SealBid(_))
            }
            _ => false,
        };
        self.records.iter().find(is_seal).map(|record| record.at)
    }

    /// Checks what only the holder of the bytes can: that a named state is stored, and is after the right steps.
    pub(super) fn check_states(&self, action: &ComputeAction) -> Result<(), Rejection> {
        let (state, step) = match action {
            ComputeAction::Serve { segment, start } => (*start, self.steps_before(*segment)),
            ComputeAction::OpenLeaf { segment, secret, .. } if self.is_last(*segment) => {
                (secret.end, self.steps_before(segment.saturating_add(1)))
            }
            _ => return Ok(()),
        };
        match self.states.get(&state) {
            Some(stored) if stored.step == step => Ok(()),
            Some(stored) => {
                let found = stored.step;
                let message = format!("state {state} is after {found} steps, and not after {step}");
                Err(Rejection::new(ErrorCode::LeaseRefused, message))
            }
            None => {
                let message = format!("upload the bytes of state {state} first");
                Err(Rejection::new(ErrorCode::LeaseRefused, message))
            }
        }
    }

    /// Steps of the job before a segment, of which the last one may be shorter.
    pub(super) fn steps_before(&self, segment: u32) -> u64 {
        let request = &self.stored.request;
        request.order.steps_before(segment).min(request.job.steps())
    }

    /// Segments that were delivered.
    pub(super) fn delivered(&self) -> u32 {
        let leaves = self.lease.as_ref().map_or(0, |lease| lease.lease().leaves().len());
        u32::try_from(leaves).unwrap_or(u32::MAX)
    }

    fn is_last(&self, segment: u32) -> bool {
        segment.checked_add(1) == Some(self.delivered())
    }

    /// The action that is due at a moment.
    pub(super) fn due(&self, now: Timestamp) -> Option<DueAction> {
        if !self.is_open() {
            return None;
        }
        let Some(lease) = &self.lease else {
            let is_late = now > self.stored.received.saturating_add_ms(BLOBS_MS_MAX);
            return (is_late && !self.missing.is_empty()).then_some(DueAction::Abandon);
        };
        let (phase, deadline) = lease.lease().phase();
        (phase == Phase::Delivered || now > deadline).then_some(DueAction::Record)
    }

    /// The coordinator's own record at a moment: the beacon in time, or a default.
    pub(super) fn own_record(&self, now: Timestamp) -> Option<LeaseRecord> {
        let (phase, deadline) = self.lease.as_ref()?.lease().phase();
        let action = match (phase, now > deadline) {
            (_, true) => self.stood_in(now).unwrap_or(RecordedAction::Expired),
            (Phase::Delivered, false) => RecordedAction::Beacon(self.stored.beacon),
            (_, false) => return None,
        };
        Some(LeaseRecord { at: now, action })
    }

    /// The public view.
    pub(super) fn view(&self, id: Digest) -> OrderView {
        let order = self.stored.request.order.clone();
        let lease = self.lease.as_ref().map(RecordedLease::lease);
        let waits_until = self.stored.received.saturating_add_ms(BLOBS_MS_MAX);
        let (phase, deadline) = lease.map_or((Phase::Bidding, waits_until), |lease| lease.phase());
        OrderView {
            id,
            beacon: beacon_commitment(id, self.stored.beacon),
            missing: self.missing.clone(),
            opened: self.stored.opened,
            refused: self.stored.refused.clone(),
            records: self.lease.as_ref().map_or(0, RecordedLease::length),
            phase: if self.stored.refused.is_some() { Phase::Over } else { phase },
            deadline,
            provider: lease.and_then(|lease| lease.award()).map(|award| award.provider),
            delivered: self.delivered(),
            outcome: lease.and_then(|lease| lease.outcome()),
            money: self.stored.money,
            order,
        }
    }
}
