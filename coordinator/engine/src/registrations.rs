//! Registrations: the node key of each wallet in each role, and which of them give way when the
//! market has as many as it stores.
//!
//! A wallet costs nothing, so a registration alone is worth nothing to the market: at the limit a
//! new one always finds room, and those that nothing backs give way, the oldest first. An account
//! whose deposit in an open task is locked on the ledger keeps its registration. To keep others
//! out, an attacker has to lock that deposit once for each place.

use alloc::format;
use alloc::vec::Vec;

use florin_protocol::{
    Address, Amount, ErrorCode, Registration, Rejection, Role, TaskId, Timestamp,
};

use super::event::{Event, EventStatus};
use super::rejection::{expired, reject};
use super::state::{DepositReading, RegistrationEntry, TaskStage};
use super::{
    Engine, REGISTRATION_DEPOSIT_MIN, REGISTRATION_MS_MAX, REGISTRATIONS_EVICTED_AT_ONCE,
    REGISTRATIONS_MAX,
};

/// A wallet in a role: the key of a registration.
type WalletInRole = (Address, Role);

/// The backing of a registration, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Backing {
    /// The account takes part in no open task.
    Idle,
    /// It takes part in an open task, but its deposit there is too small, or was read so long ago
    /// that the account may have taken it back.
    Small,
    /// Its deposit in an open task is locked on the ledger.
    Locked,
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
            let message = format!(
                "expires = {}: at most seven days from now, {latest}",
                registration.expires
            );
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
            None if self.has_room() || self.has_evictable(now) => Ok(EventStatus::New),
            None => reject(
                ErrorCode::LimitReached,
                format!(
                    "all {REGISTRATIONS_MAX} places for registrations belong to accounts with at \
                     least {REGISTRATION_DEPOSIT_MIN} FLN of bond or stake in an open task: \
                     register again when a task has ended"
                ),
            ),
        }
    }

    pub(super) fn register(&mut self, registration: &Registration, now: Timestamp) {
        let key = (registration.wallet, registration.role);
        if let Some(known) = self.state.registrations.get_mut(&key) {
            known.registration = registration.clone();
            known.since = now;
            return;
        }
        if !self.has_room() {
            self.evict(now);
        }
        let entry = RegistrationEntry {
            registration: registration.clone(),
            since: now,
            has_signed: false,
            deposit: None,
        };
        self.state.registrations.insert(key, entry);
    }

    /// Whether the account is enrolled in an open task.
    #[must_use]
    pub fn takes_part(&self, account: Address) -> bool {
        let mut open =
            self.state.tasks.values().filter(|task| !matches!(task.stage, TaskStage::Done));
        open.any(|task| task.enrolled.contains_key(&account))
    }

    /// Whether another registration fits without an eviction. Registrations that verify a signature
    /// in a report do not count: each took an accepted update or record.
    fn has_room(&self) -> bool {
        let stored = u64::try_from(self.state.registrations.len()).unwrap_or(u64::MAX);
        let counted = stored.saturating_sub(self.state.signed_registrations);
        usize::try_from(counted).is_ok_and(|counted| counted < REGISTRATIONS_MAX)
    }

    fn has_evictable(&self, now: Timestamp) -> bool {
        self.state.registrations.values().any(|entry| self.is_evictable(entry, now))
    }

    fn is_evictable(&self, entry: &RegistrationEntry, now: Timestamp) -> bool {
        !entry.has_signed && self.backing(entry, now) < Backing::Locked
    }

    /// Removes registrations that nothing backs, the oldest first; only if there is none, those of
    /// participants and providers with a small deposit. Several at once: the search is then rare.
    fn evict(&mut self, now: Timestamp) {
        let all = self.state.registrations.iter();
        let mut evictable: Vec<(Backing, Timestamp, WalletInRole)> = all
            .filter(|(_, entry)| self.is_evictable(entry, now))
            .map(|(key, entry)| (self.backing(entry, now), entry.since, *key))
            .collect();
        evictable.sort_unstable();
        let Some((least, _, _)) = evictable.first().copied() else {
            return;
        };
        let gone = evictable.iter().take_while(|(backing, _, _)| *backing == least);
        for (_, _, key) in gone.take(REGISTRATIONS_EVICTED_AT_ONCE) {
            self.state.registrations.remove(key);
        }
    }

    fn backing(&self, entry: &RegistrationEntry, now: Timestamp) -> Backing {
        entry.deposit.map_or(Backing::Idle, |reading| self.backing_of(reading, now))
    }

    fn backing_of(&self, reading: DepositReading, now: Timestamp) -> Backing {
        let task = self.state.tasks.get(&reading.task);
        if task.is_none_or(|task| matches!(task.stage, TaskStage::Done)) {
            return Backing::Idle;
        }
        let is_locked = reading.amount >= REGISTRATION_DEPOSIT_MIN && now < reading.locked_until;
        if is_locked { Backing::Locked } else { Backing::Small }
    }

    /// A deposit that the host has just read from the ledger without a requested withdrawal: it
    /// stays locked for the task's `unbond_ms`, unless the task is closed.
    fn reading(&self, task: TaskId, amount: Amount, now: Timestamp) -> DepositReading {
        let delay = self.state.tasks.get(&task).map_or(0, |task| task.spec.budget.unbond_ms);
        DepositReading { task, amount, locked_until: now.saturating_add_ms(delay) }
    }

    /// Whether a deposit, read now, is worth a record in the journal: it backs the registration,
    /// and nothing did, or half of the earlier lock is over.
    pub(super) fn renews_deposit(
        &self,
        key: WalletInRole,
        task: TaskId,
        amount: Amount,
        now: Timestamp,
    ) -> bool {
        let Some(entry) = self.state.registrations.get(&key) else {
            return false;
        };
        let reading = self.reading(task, amount, now);
        let (known, read) = (self.backing(entry, now), self.backing_of(reading, now));
        let half_over = entry.deposit.is_none_or(|known| {
            let left = known.locked_until.ms_since(now);
            left < reading.locked_until.ms_since(known.locked_until)
        });
        read > known || read == Backing::Locked && known == read && half_over
    }

    /// Records a deposit, unless a better one is known.
    fn record_deposit(&mut self, key: WalletInRole, reading: DepositReading, now: Timestamp) {
        let read = (self.backing_of(reading, now), reading.locked_until);
        let Some(entry) = self.state.registrations.get(&key) else {
            return;
        };
        let until = entry.deposit.map_or(Timestamp(0), |known| known.locked_until);
        if (self.backing(entry, now), until) > read {
            return;
        }
        if let Some(entry) = self.state.registrations.get_mut(&key) {
            entry.deposit = Some(reading);
        }
    }

    /// Records what an accepted event shows of its sender: a deposit that backs its registration,
    /// or a signature that others verify with it.
    pub(super) fn note_sender(&mut self, event: &Event, now: Timestamp) {
        let deposit = match event {
            Event::Enrolled { enrol, bond } => Some((enrol.body.task, enrol.body.sender, *bond)),
            Event::Committed { commit, bond } => {
                Some((commit.body.scope.task, commit.body.sender, *bond))
            }
            _ => None,
        };
        if let Some((task, sender, bond)) = deposit {
            let reading = self.reading(task, bond, now);
            self.record_deposit((sender, Role::Participant), reading, now);
        }
        match event {
            Event::ProviderReady { task, provider } => {
                let reading = self.reading(*task, self.stake_of_task(*task), now);
                self.record_deposit((*provider, Role::Provider), reading, now);
            }
            Event::Revealed(header) => self.mark_signed((header.body.sender, Role::Participant)),
            Event::WorkRecordReceived { record, .. } => {
                self.mark_signed((record.body.provider, Role::Provider));
            }
            _ => {}
        }
    }

    /// The stake that the host requires of a provider before it sends [`Event::ProviderReady`].
    pub(super) fn stake_of_task(&self, task: TaskId) -> Amount {
        self.state.tasks.get(&task).map_or(Amount::ZERO, |task| task.spec.budget.stake_min)
    }

    /// Keeps a registration for good: audits verify a signature with it.
    fn mark_signed(&mut self, key: WalletInRole) {
        if let Some(entry) =
            self.state.registrations.get_mut(&key).filter(|known| !known.has_signed)
        {
            entry.has_signed = true;
            self.state.signed_registrations = self.state.signed_registrations.saturating_add(1);
        }
    }

    pub(super) fn require_registration(
        &self,
        wallet: Address,
        role: Role,
    ) -> Result<&Registration, Rejection> {
        let known = self.state.registrations.get(&(wallet, role)).map(|known| &known.registration);
        known.ok_or_else(|| {
            let message = format!(
                "{wallet} is not registered as a {role}: register it first, and again if the \
                 registration gave way to others"
            );
            Rejection::new(ErrorCode::NotRegistered, message)
        })
    }
}
