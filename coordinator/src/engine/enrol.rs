//! Before the rounds: who is who, which tasks there are, and who takes part.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::limits::{BLOB_BYTES_MAX, ENROLLED_MAX};
use florin_protocol::{
    Address, Amount, Code, Digest, Enrol, Registration, Rejection, Role, TaskId, TaskSpec, Tick,
};

use super::event::Verdict;
use super::state::{Stage, TaskState};
use super::{Engine, REGISTRATIONS_MAX, TASKS_MAX, reject};

impl Engine {
    /// A wallet may replace its node key by a registration that expires later than the one it replaces; so an old one
    /// that is played again changes nothing.
    pub(super) fn check_registered(
        &self,
        said: &Registration,
        now: Tick,
    ) -> Result<Verdict, Rejection> {
        self.check_market(said.market)?;
        let key = (said.wallet, said.role);
        match self.state.registrations.get(&key) {
            Some(known) if known == said => Ok(Verdict::Repeat),
            _ if now > said.expires => expired("the registration", said.expires, now),
            Some(known) if said.expires <= known.expires => reject(
                Code::Conflicting,
                format!(
                    "{} is registered as {} until {}: a new registration must expire later",
                    said.wallet, said.role, known.expires
                ),
            ),
            None if self.state.registrations.len() >= REGISTRATIONS_MAX => reject(
                Code::LimitReached,
                format!("this market remembers at most {REGISTRATIONS_MAX} registrations"),
            ),
            _ => Ok(Verdict::New),
        }
    }

    pub(super) fn register(&mut self, said: &Registration) {
        self.state.registrations.insert((said.wallet, said.role), said.clone());
    }

    pub(super) fn check_registration_of(
        &self,
        wallet: Address,
        role: Role,
    ) -> Result<&Registration, Rejection> {
        self.state.registrations.get(&(wallet, role)).ok_or_else(|| {
            let message = format!("{wallet} is not registered as a {role}: register it first");
            Rejection::new(Code::NotRegistered, message)
        })
    }

    pub(super) fn check_published(
        &self,
        spec: &TaskSpec,
        model_bytes: u64,
        now: Tick,
    ) -> Result<Verdict, Rejection> {
        self.check_market(spec.market)?;
        if self.state.tasks.contains_key(&spec.id()) {
            return Ok(Verdict::Repeat);
        }
        spec.check().map_err(|error| Rejection::new(Code::BadTask, error.to_string()))?;
        if spec.coordinator != self.coordinator {
            let message = format!(
                "coordinator = {}: this coordinator is {}",
                spec.coordinator, self.coordinator
            );
            return reject(Code::BadTask, message);
        }
        if !(1..=BLOB_BYTES_MAX).contains(&model_bytes) {
            let message = format!(
                "model: its parameters take {model_bytes} bytes; the limit is {BLOB_BYTES_MAX}"
            );
            return reject(Code::BadTask, message);
        }
        if now > last_start(spec) {
            let message = format!(
                "expires = {}: it must be later than one round, its settlement and the challenge \
                 window take ({} ms), and it is {now}",
                spec.expires,
                spec.unbond_ms_min()
            );
            return reject(Code::BadTask, message);
        }
        if self.state.tasks.len() >= TASKS_MAX {
            let message = format!("this coordinator remembers at most {TASKS_MAX} tasks");
            return reject(Code::LimitReached, message);
        }
        self.check_holdout_is_its_own(spec)?;
        Ok(Verdict::New)
    }

    /// Two buyers with one holdout: the second could end its task early to have the first one's rows published. And a
    /// holdout is hidden while its task lasts: nobody may hide somebody's model, update or published rows by it.
    fn check_holdout_is_its_own(&self, spec: &TaskSpec) -> Result<(), Rejection> {
        let digest = spec.holdout.digest;
        let public = |task: &TaskState| {
            task.spec.base_model == digest
                || task.public.contains(&digest)
                || task.running().is_some_and(|running| running.names(digest))
        };
        if digest == spec.base_model || self.state.tasks.values().any(public) {
            let message = "holdout.digest: these bytes are a model, an update or rows that are \
                           public already: judge by rows that nobody has seen";
            return reject(Code::Conflicting, message);
        }
        let taken = self.state.tasks.values().any(|task| {
            !task.is_over()
                && task.spec.holdout.digest == spec.holdout.digest
                && task.spec.buyer != spec.buyer
        });
        if taken {
            let message = "holdout.digest: another buyer's open task is judged by the same rows";
            return reject(Code::Conflicting, message);
        }
        Ok(())
    }

    pub(super) fn publish(&mut self, spec: &TaskSpec, model_bytes: u64, now: Tick) {
        let id = spec.id();
        let task = TaskState {
            id,
            spec: spec.clone(),
            model_bytes,
            sequence: 0,
            wanted: BTreeSet::from([spec.base_model, spec.holdout.digest]),
            enrolled: BTreeMap::new(),
            providers: BTreeSet::new(),
            stage: Stage::AwaitingBlobs,
            past: Vec::new(),
            unsettled: BTreeMap::new(),
            finalised: BTreeSet::new(),
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
        if digest == task.spec.base_model || digest == task.spec.holdout.digest {
            return Ok(Verdict::Repeat);
        }
        reject(Code::NotFound, format!("task {} does not want blob {digest}", id.short()))
    }

    pub(super) fn check_enrolled(
        &self,
        said: &Enrol,
        bond: Amount,
        now: Tick,
    ) -> Result<Verdict, Rejection> {
        self.check_market(said.market)?;
        let task = self.task(said.task)?;
        self.check_registration_of(said.sender, Role::Participant)?;
        if now > said.expires {
            return expired("the wish to take part", said.expires, now);
        }
        if task.is_over() {
            return reject(Code::TaskClosed, format!("task {} is over", said.task.short()));
        }
        let bond = task.bond_at_risk(said.sender, bond)?;
        match task.enrolled.get(&said.sender) {
            Some(known) if *known == bond => Ok(Verdict::Repeat),
            None if task.enrolled.len() >= ENROLLED_MAX => reject(
                Code::LimitReached,
                format!("a task takes at most {ENROLLED_MAX} participants"),
            ),
            _ => Ok(Verdict::New),
        }
    }
}

impl TaskState {
    /// What `account` has at risk beyond debits that are not final yet, if that is enough.
    pub(super) fn bond_at_risk(&self, account: Address, bond: Amount) -> Result<Amount, Rejection> {
        let smallest = self.spec.budget.bond_min;
        let left = bond.minus(self.pending_debits(account)).unwrap_or(Amount::ZERO);
        if left >= smallest {
            return Ok(left);
        }
        let message = format!(
            "the bond of {account} is {left} FLN and must be at least {smallest} FLN: bond more (a \
             bond that was asked back does not count)"
        );
        reject(Code::BondTooSmall, message)
    }

    pub(super) fn blob_arrived(&mut self, digest: Digest, now: Tick) {
        self.wanted.remove(&digest);
        if digest == self.spec.base_model {
            self.public.insert(digest);
        }
        if self.wanted.is_empty() && matches!(self.stage, Stage::AwaitingBlobs) {
            let target_until = now.after_ms(self.spec.rounds.enrol_ms);
            self.stage = Stage::Enrolling { target_until };
            self.open_if_ready(now);
        }
    }

    pub(super) fn enrol(&mut self, sender: Address, bond: Amount, now: Tick) {
        let left = bond.minus(self.pending_debits(sender)).unwrap_or(Amount::ZERO);
        self.enrolled.insert(sender, left);
        self.open_if_ready(now);
    }
}

/// The last moment at which a round can open and still be final before the task expires: its phases, the way of its
/// settlement to the ledger and the challenge window must fit, as they must into the time for which a bond is held.
pub(super) fn last_start(spec: &TaskSpec) -> Tick {
    Tick(spec.expires.0.saturating_sub(spec.unbond_ms_min()))
}

pub(super) fn expired<T>(what: &str, expires: Tick, now: Tick) -> Result<T, Rejection> {
    reject(Code::DeadlinePassed, format!("{what} expired at {expires}, and it is {now}"))
}
