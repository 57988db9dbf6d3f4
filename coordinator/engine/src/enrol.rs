//! Before the rounds: registration, task publication and enrolment.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::ToString;
use alloc::vec::Vec;

use florin_protocol::limits::{BLOB_BYTES_MAX, ENROLLED_MAX};
use florin_protocol::{
    Address, Amount, Digest, EarlierUpdates, EnrolRequest, ErrorCode, Registration, Rejection,
    Role, RoundNumber, TaskId, TaskSpec, Timestamp,
};

use super::event::Verdict;
use super::state::{Registered, Stage, TaskState};
use super::{Engine, REGISTRATION_MS_MAX, REGISTRATIONS_MAX, SIT_OUT_ROUNDS, TASKS_MAX, reject};

impl Engine {
    /// A wallet has one node key for each role, permanently, so that its signatures can always be
    /// verified. The same key may be registered again with a later expiry, once less than half of
    /// its validity is left.
    pub(super) fn check_registered(
        &self,
        said: &Registration,
        now: Timestamp,
    ) -> Result<Verdict, Rejection> {
        self.check_market(said.market)?;
        let (wallet, role) = (said.wallet, said.role);
        let known = self.state.registrations.get(&(wallet, role));
        if known.is_some_and(|known| known.said == *said) {
            return Ok(Verdict::Repeat);
        }
        if now > said.expires {
            return expired("the registration", said.expires, now);
        }
        let latest = now.saturating_add_ms(REGISTRATION_MS_MAX);
        if said.expires > latest {
            let message =
                format!("expires = {}: at most two years from now, {latest}", said.expires);
            return reject(ErrorCode::LimitReached, message);
        }
        match known {
            Some(known) if known.said.node_key != said.node_key => {
                let message = format!(
                    "{wallet} is registered as a {role} with another node key, and its earlier \
                     signatures are verified with that key: use a new wallet for a new key"
                );
                reject(ErrorCode::ConflictingMessage, message)
            }
            Some(known) if said.expires > known.said.expires && known.is_half_over(now) => {
                Ok(Verdict::New)
            }
            Some(_) => Ok(Verdict::Repeat),
            None if self.state.registrations.len() < REGISTRATIONS_MAX => Ok(Verdict::New),
            None if !self.evictable(now).is_empty() => Ok(Verdict::New),
            None => reject(
                ErrorCode::LimitReached,
                format!("this market stores at most {REGISTRATIONS_MAX} registrations"),
            ),
        }
    }

    pub(super) fn register(&mut self, said: &Registration, now: Timestamp) {
        let key = (said.wallet, said.role);
        let registrations = &self.state.registrations;
        if registrations.len() >= REGISTRATIONS_MAX && !registrations.contains_key(&key) {
            for gone in self.evictable(now) {
                self.state.registrations.remove(&gone);
            }
        }
        let registered = Registered { said: said.clone(), since: now };
        self.state.registrations.insert(key, registered);
    }

    /// Expired registrations whose wallet has no signature in the state.
    fn evictable(&self, now: Timestamp) -> Vec<(Address, Role)> {
        let all = self.state.registrations.iter();
        let over = all.filter(|(_, known)| known.said.expires < now).map(|(key, _)| *key);
        let mut over: Vec<(Address, Role)> = over.collect();
        if over.is_empty() {
            return over;
        }
        let named: BTreeSet<Address> =
            self.state.tasks.values().flat_map(TaskState::named).collect();
        over.retain(|(wallet, _)| !named.contains(wallet));
        over
    }

    pub(super) fn check_registration_of(
        &self,
        wallet: Address,
        role: Role,
    ) -> Result<&Registration, Rejection> {
        let known = self.state.registrations.get(&(wallet, role)).map(|known| &known.said);
        known.ok_or_else(|| {
            let message = format!("{wallet} is not registered as a {role}: register it first");
            Rejection::new(ErrorCode::NotRegistered, message)
        })
    }

    pub(super) fn check_published(
        &self,
        spec: &TaskSpec,
        [model_bytes, update_bytes]: [u64; 2],
        now: Timestamp,
    ) -> Result<Verdict, Rejection> {
        self.check_market(spec.market)?;
        if self.state.tasks.contains_key(&spec.id()) {
            return Ok(Verdict::Repeat);
        }
        spec.check().map_err(|error| Rejection::new(ErrorCode::InvalidTask, error.to_string()))?;
        if spec.coordinator != self.coordinator {
            let message = format!(
                "coordinator = {}: this coordinator is {}",
                spec.coordinator, self.coordinator
            );
            return reject(ErrorCode::InvalidTask, message);
        }
        for (what, bytes) in [("model parameters", model_bytes), ("update", update_bytes)] {
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
        let open = self.state.tasks.values().filter(|task| !matches!(task.stage, Stage::Done));
        if open.count() >= TASKS_MAX {
            let message = format!("this coordinator runs at most {TASKS_MAX} tasks at once");
            return reject(ErrorCode::LimitReached, message);
        }
        Ok(Verdict::New)
    }

    pub(super) fn publish(
        &mut self,
        spec: &TaskSpec,
        [model_bytes, update_bytes]: [u64; 2],
        now: Timestamp,
    ) {
        let id = spec.id();
        let task = TaskState {
            id,
            spec: spec.clone(),
            model_bytes,
            update_bytes,
            sequence: 0,
            wanted: BTreeSet::from([spec.base_model]),
            holdout: None,
            enrolled: BTreeMap::new(),
            sitting_out: BTreeMap::new(),
            providers: BTreeSet::new(),
            stage: Stage::AwaitingBlobs,
            past: Vec::new(),
            whole: BTreeMap::new(),
            earlier: EarlierUpdates::default(),
            paid: [Amount::ZERO; 2],
            standings: None,
            exposed: BTreeSet::new(),
            authors: BTreeSet::new(),
            unsettled: BTreeMap::new(),
            finalised: BTreeSet::new(),
            unproven: BTreeSet::new(),
            orders: BTreeMap::new(),
            public: BTreeSet::new(),
            ending: false,
            refund: None,
        };
        self.state.now = self.state.now.max(now);
        self.state.tasks.insert(id, task);
    }

    pub(super) fn check_blob(&self, id: TaskId, digest: Digest) -> Result<Verdict, Rejection> {
        let task = self.task(id)?;
        if task.wanted.contains(&digest) {
            return Ok(Verdict::New);
        }
        if digest == task.spec.base_model {
            return Ok(Verdict::Repeat);
        }
        reject(ErrorCode::NotFound, format!("task {} is not waiting for blob {digest}", id.short()))
    }

    /// A task's commitment fixes its holdout, so a second upload is a duplicate.
    pub(super) fn check_holdout(&self, id: TaskId) -> Result<Verdict, Rejection> {
        let there = self.task(id)?.holdout.is_some();
        Ok(if there { Verdict::Repeat } else { Verdict::New })
    }

    pub(super) fn check_enrolled(
        &self,
        said: &EnrolRequest,
        bond: Amount,
        now: Timestamp,
    ) -> Result<Verdict, Rejection> {
        self.check_market(said.market)?;
        let task = self.task(said.task)?;
        self.check_registration_of(said.sender, Role::Participant)?;
        if now > said.expires {
            return expired("the enrolment", said.expires, now);
        }
        if task.is_over() {
            return reject(ErrorCode::TaskClosed, format!("task {} is over", said.task.short()));
        }
        let bond = task.bond_at_risk(said.sender, bond)?;
        match task.enrolled.get(&said.sender) {
            Some(known) if *known == bond && !task.is_forgotten(said.sender) => Ok(Verdict::Repeat),
            None if task.enrolled.len() >= ENROLLED_MAX => reject(
                ErrorCode::LimitReached,
                format!("a task takes at most {ENROLLED_MAX} participants"),
            ),
            _ => Ok(Verdict::New),
        }
    }
}

impl TaskState {
    /// Every account whose signature is in the state.
    fn named(&self) -> impl Iterator<Item = Address> + '_ {
        let records = self.running().into_iter().flat_map(|running| &running.records);
        let authors = records.map(|(_, record)| record.body.provider);
        let known = self.enrolled.keys().chain(&self.providers).chain(&self.authors);
        known.copied().chain(authors)
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
        self.wanted.remove(&digest);
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
        let complete = self.wanted.is_empty() && self.holdout.is_some();
        if complete && matches!(self.stage, Stage::AwaitingBlobs) {
            let target_until = now.saturating_add_ms(self.spec.rounds.enrol_ms);
            self.stage = Stage::Enrolling { target_until };
            self.open_if_ready(now);
        }
    }

    pub(super) fn enrol(&mut self, sender: Address, bond: Amount, now: Timestamp) {
        let left = bond.minus(self.pending_debits(sender)).unwrap_or(Amount::ZERO);
        self.enrolled.insert(sender, left);
        if self.is_forgotten(sender) {
            let next = self.current_round().0.saturating_add(u32::from(self.running().is_some()));
            let from = RoundNumber(next.saturating_add(SIT_OUT_ROUNDS));
            self.sitting_out.insert(sender, Some(from));
        }
        self.open_if_ready(now);
    }

    /// Whether `sender` was selected, did not deliver, and has not enrolled again since.
    pub(super) fn is_forgotten(&self, sender: Address) -> bool {
        self.sitting_out.get(&sender) == Some(&None)
    }
}

/// The latest time at which a round can open and still become final before the task expires. The
/// round's phases, the posting of its settlement and the challenge window must fit. The same sum is
/// the minimum time for which a bond stays locked.
pub(super) fn last_start(spec: &TaskSpec) -> Timestamp {
    Timestamp(spec.expires.0.saturating_sub(spec.unbond_ms_min()))
}

pub(super) fn expired<T>(what: &str, expires: Timestamp, now: Timestamp) -> Result<T, Rejection> {
    reject(ErrorCode::DeadlinePassed, format!("{what} expired at {expires}, and it is {now}"))
}
