//! Before the rounds: registration, task publication and enrolment.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::limits::{BLOB_BYTES_MAX, ENROLLED_MAX};
use florin_protocol::{
    Address, Admission, Amount, Digest, EarlierUpdates, EnrolRequest, ErrorCode, Invitation,
    Registration, Rejection, Role, RoundNumber, TaskId, TaskSpec, Timestamp,
};

use super::event::EventStatus;
use super::rejection::{expired, reject};
use super::state::{PoolAmounts, ReceivedRecord, RegistrationEntry, TaskStage, TaskState};
use super::{Engine, REGISTRATION_MS_MAX, REGISTRATIONS_MAX, SIT_OUT_ROUNDS, TASKS_MAX};

/// Exact lengths of a task's blobs, in bytes.
#[derive(Clone, Copy)]
pub(super) struct BlobLengths {
    pub(super) model: u64,
    pub(super) update: u64,
}

impl Engine {
    /// A wallet has one node key for each role, permanently, so that its signatures can always be
    /// verified. The same key may be registered again with a later expiry, once less than half of
    /// its validity is left.
    pub(super) fn check_registered(
        &self,
        registration: &Registration,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(registration.market)?;
        let (wallet, role) = (registration.wallet, registration.role);
        let known = self.state.registrations.get(&(wallet, role));
        if known.is_some_and(|known| known.registration == *registration) {
            return Ok(EventStatus::Duplicate);
        }
        if now > registration.expires {
            return expired("the registration", registration.expires, now);
        }
        let latest = now.saturating_add_ms(REGISTRATION_MS_MAX);
        if registration.expires > latest {
            let message =
                format!("expires = {}: at most two years from now, {latest}", registration.expires);
            return reject(ErrorCode::InvalidExpiry, message);
        }
        match known {
            Some(known) if known.registration.node_key != registration.node_key => {
                let message = format!(
                    "{wallet} is registered as a {role} with another node key, and its earlier \
                     signatures are verified with that key: use a new wallet for a new key"
                );
                reject(ErrorCode::ConflictingMessage, message)
            }
            Some(known)
                if registration.expires > known.registration.expires && known.is_half_over(now) =>
            {
                Ok(EventStatus::New)
            }
            Some(_) => Ok(EventStatus::Duplicate),
            None if self.state.registrations.len() < REGISTRATIONS_MAX => Ok(EventStatus::New),
            None if !self.evictable(now).is_empty() => Ok(EventStatus::New),
            None => reject(
                ErrorCode::LimitReached,
                format!("this market stores at most {REGISTRATIONS_MAX} registrations"),
            ),
        }
    }

    pub(super) fn register(&mut self, registration: &Registration, now: Timestamp) {
        let key = (registration.wallet, registration.role);
        let registrations = &self.state.registrations;
        if registrations.len() >= REGISTRATIONS_MAX && !registrations.contains_key(&key) {
            for gone in self.evictable(now) {
                self.state.registrations.remove(&gone);
            }
        }
        let registered = RegistrationEntry { registration: registration.clone(), since: now };
        self.state.registrations.insert(key, registered);
    }

    /// Expired registrations whose wallet has no signature in the state.
    fn evictable(&self, now: Timestamp) -> Vec<(Address, Role)> {
        let all = self.state.registrations.iter();
        let over = all.filter(|(_, known)| known.registration.expires < now).map(|(key, _)| *key);
        let mut over: Vec<(Address, Role)> = over.collect();
        if over.is_empty() {
            return over;
        }
        let named: BTreeSet<Address> =
            self.state.tasks.values().flat_map(TaskState::signatories).collect();
        over.retain(|(wallet, _)| !named.contains(wallet));
        over
    }

    pub(super) fn require_registration(
        &self,
        wallet: Address,
        role: Role,
    ) -> Result<&Registration, Rejection> {
        let known = self.state.registrations.get(&(wallet, role)).map(|known| &known.registration);
        known.ok_or_else(|| {
            let message = format!("{wallet} is not registered as a {role}: register it first");
            Rejection::new(ErrorCode::NotRegistered, message)
        })
    }

    pub(super) fn check_published(
        &self,
        spec: &TaskSpec,
        lengths: BlobLengths,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(spec.market)?;
        if self.state.tasks.contains_key(&spec.id()) {
            return Ok(EventStatus::Duplicate);
        }
        spec.check().map_err(|error| Rejection::new(ErrorCode::InvalidTask, error.to_string()))?;
        if spec.coordinator != self.coordinator {
            let message = format!(
                "coordinator = {}: this coordinator is {}",
                spec.coordinator, self.coordinator
            );
            return reject(ErrorCode::InvalidTask, message);
        }
        for (what, bytes) in [("model parameters", lengths.model), ("update", lengths.update)] {
            if !(1..=BLOB_BYTES_MAX).contains(&bytes) {
                let message = format!("{what}: {bytes} bytes; the limit is {BLOB_BYTES_MAX}");
                return reject(ErrorCode::InvalidTask, message);
            }
        }
        if now > last_start(spec) {
            let message = format!(
                "expires = {}: one round, its settlement and the challenge window take {} ms, and \
                 it is {now} now: use a later time",
                spec.expires,
                spec.unbond_ms_min()
            );
            return reject(ErrorCode::InvalidTask, message);
        }
        let open = self.state.tasks.values().filter(|task| !matches!(task.stage, TaskStage::Done));
        if open.count() >= TASKS_MAX {
            let message = format!("this coordinator runs at most {TASKS_MAX} tasks at once");
            return reject(ErrorCode::LimitReached, message);
        }
        Ok(EventStatus::New)
    }

    pub(super) fn publish(&mut self, spec: &TaskSpec, lengths: BlobLengths, now: Timestamp) {
        let id = spec.id();
        let task = TaskState {
            id,
            spec: spec.clone(),
            model_bytes: lengths.model,
            update_bytes: lengths.update,
            sequence: 0,
            missing_blobs: BTreeSet::from([spec.base_model]),
            holdout: None,
            enrolled: BTreeMap::new(),
            invitations: BTreeMap::new(),
            sitting_out: BTreeMap::new(),
            providers: BTreeSet::new(),
            stage: TaskStage::AwaitingBlobs,
            rounds: Vec::new(),
            rounds_in_memory: BTreeMap::new(),
            earlier: EarlierUpdates::default(),
            paid: PoolAmounts::default(),
            final_totals: None,
            exposed: BTreeSet::new(),
            record_providers: BTreeSet::new(),
            pending_settlements: BTreeMap::new(),
            final_rounds: BTreeSet::new(),
            rounds_with_unproven_debits: BTreeSet::new(),
            orders: BTreeMap::new(),
            public: BTreeSet::new(),
            end: None,
            abandoned_in_a_row: 0,
            refund: None,
        };
        self.state.now = self.state.now.max(now);
        self.state.tasks.insert(id, task);
    }

    pub(super) fn check_blob(&self, id: TaskId, digest: Digest) -> Result<EventStatus, Rejection> {
        let task = self.task(id)?;
        if task.missing_blobs.contains(&digest) {
            return Ok(EventStatus::New);
        }
        if digest == task.spec.base_model {
            return Ok(EventStatus::Duplicate);
        }
        reject(ErrorCode::NotFound, format!("task {} is not waiting for blob {digest}", id.short()))
    }

    /// A task's commitment fixes its holdout, so a second upload is a duplicate.
    pub(super) fn check_holdout(&self, id: TaskId) -> Result<EventStatus, Rejection> {
        let there = self.task(id)?.holdout.is_some();
        Ok(if there { EventStatus::Duplicate } else { EventStatus::New })
    }

    pub(super) fn check_enrolled(
        &self,
        enrol: &EnrolRequest,
        bond: Amount,
        now: Timestamp,
    ) -> Result<EventStatus, Rejection> {
        self.check_market(enrol.market)?;
        let task = self.task(enrol.task)?;
        self.require_registration(enrol.sender, Role::Participant)?;
        if now > enrol.expires {
            return expired("the enrolment", enrol.expires, now);
        }
        if task.is_over() {
            return reject(ErrorCode::TaskClosed, format!("task {} is over", enrol.task.short()));
        }
        task.check_admitted(enrol, now)?;
        let bond = task.bond_at_risk(enrol.sender, bond)?;
        match task.enrolled.get(&enrol.sender) {
            Some(known) if *known == bond && !task.must_enrol_again(enrol.sender) => {
                Ok(EventStatus::Duplicate)
            }
            None if task.enrolled.len() >= ENROLLED_MAX => reject(
                ErrorCode::TaskFull,
                format!("a task takes at most {ENROLLED_MAX} participants"),
            ),
            _ => Ok(EventStatus::New),
        }
    }
}

impl TaskState {
    /// Every account whose signature is in the state.
    fn signatories(&self) -> impl Iterator<Item = Address> + '_ {
        let records = self.running().into_iter().flat_map(|running| &running.records);
        let authors = records.map(ReceivedRecord::provider);
        let known = self.enrolled.keys().chain(&self.providers).chain(&self.record_providers);
        known.copied().chain(authors)
    }

    /// Checks that the task admits the sender. An enrolled account stays admitted.
    fn check_admitted(&self, enrol: &EnrolRequest, now: Timestamp) -> Result<(), Rejection> {
        let (who, admission) = (enrol.sender, &self.spec.admission);
        if self.enrolled.contains_key(&who) || admission.admits(who) {
            return Ok(());
        }
        match (admission, &enrol.invitation) {
            (Admission::Invitation, Some(invitation)) => {
                self.check_invitation(invitation, who, now)
            }
            (Admission::Invitation, None) => reject(
                ErrorCode::NotAdmitted,
                format!(
                    "task {} admits invited accounts only: ask its buyer, {}, for an invitation \
                     and enrol with it (`florin participate --invitation`)",
                    self.id.short(),
                    self.spec.buyer
                ),
            ),
            (Admission::Open | Admission::AllowList { .. }, _) => reject(
                ErrorCode::NotAdmitted,
                format!(
                    "{who} is not in the allow list of task {}: use a listed account, or ask the \
                     buyer, {}, for a task that lists yours",
                    self.id.short(),
                    self.spec.buyer
                ),
            ),
        }
    }

    /// Checks that `who` can use the invitation. The caller has verified the buyer's signature.
    fn check_invitation(
        &self,
        invitation: &Invitation,
        who: Address,
        now: Timestamp,
    ) -> Result<(), Rejection> {
        if invitation.market != self.spec.market {
            let message = "the invitation is for another market: ask the buyer for one of this one";
            return reject(ErrorCode::WrongMarket, message);
        }
        if invitation.task != self.id {
            let message = format!(
                "the invitation is for task {}, not for task {}: use the one that the buyer sent \
                 for this task",
                invitation.task.short(),
                self.id.short()
            );
            return reject(ErrorCode::InvalidInvitation, message);
        }
        if let Some(account) = invitation.account.filter(|account| *account != who) {
            let message =
                format!("the invitation is for {account}, not for {who}: enrol with that account");
            return reject(ErrorCode::InvalidInvitation, message);
        }
        if now > invitation.expires {
            return expired("the invitation", invitation.expires, now);
        }
        if self.invitations.contains_key(&invitation.nonce) {
            let message = "another account has used the invitation: ask the buyer for another one";
            return reject(ErrorCode::InvitationUsed, message);
        }
        Ok(())
    }

    /// The bond of `account` less debits that the ledger has not applied yet, if that is at least
    /// the minimum.
    pub(super) fn bond_at_risk(&self, account: Address, bond: Amount) -> Result<Amount, Rejection> {
        let smallest = self.spec.budget.bond_min;
        let left = bond.minus(self.pending_debits(account)).unwrap_or(Amount::ZERO);
        if left >= smallest {
            return Ok(left);
        }
        let message = format!(
            "the bond of {account} is {left} FLN and must be at least {smallest} FLN: bond more (a \
             bond that is being withdrawn does not count)"
        );
        reject(ErrorCode::BondTooSmall, message)
    }

    pub(super) fn blob_arrived(&mut self, digest: Digest, now: Timestamp) {
        self.missing_blobs.remove(&digest);
        if digest == self.spec.base_model {
            self.public.insert(digest);
        }
        self.begin_if_complete(now);
    }

    pub(super) fn holdout_arrived(&mut self, digest: Digest, now: Timestamp) {
        self.holdout = Some(digest);
        self.begin_if_complete(now);
    }

    fn begin_if_complete(&mut self, now: Timestamp) {
        let complete = self.missing_blobs.is_empty() && self.holdout.is_some();
        if complete && matches!(self.stage, TaskStage::AwaitingBlobs) {
            let target_until = now.saturating_add_ms(self.spec.rounds.enrol_ms);
            self.stage = TaskStage::Enrolling { target_until };
            self.open_if_ready(now);
        }
    }

    pub(super) fn enrol(&mut self, enrol: &EnrolRequest, bond: Amount, now: Timestamp) {
        let sender = enrol.sender;
        let known = self.enrolled.contains_key(&sender);
        let admits_invited = matches!(self.spec.admission, Admission::Invitation);
        if let Some(invitation) = enrol.invitation.as_ref().filter(|_| admits_invited && !known) {
            self.invitations.insert(invitation.nonce, sender);
        }
        let left = bond.minus(self.pending_debits(sender)).unwrap_or(Amount::ZERO);
        self.enrolled.insert(sender, left);
        if self.must_enrol_again(sender) {
            let next = self.current_round().0.saturating_add(u32::from(self.running().is_some()));
            let from = RoundNumber(next.saturating_add(SIT_OUT_ROUNDS));
            self.sitting_out.insert(sender, Some(from));
        }
        self.open_if_ready(now);
    }

    /// Whether `sender` was selected, did not deliver, and has not enrolled again since.
    pub(super) fn must_enrol_again(&self, sender: Address) -> bool {
        self.sitting_out.get(&sender) == Some(&None)
    }
}

/// The latest time at which a round can open and still become final before the task expires. The
/// round's phases, the posting of its settlement and the challenge window must fit. The same sum is
/// the minimum time for which a bond stays locked.
pub(super) fn last_start(spec: &TaskSpec) -> Timestamp {
    Timestamp(spec.expires.0.saturating_sub(spec.unbond_ms_min()))
}
