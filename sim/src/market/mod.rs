//! A market in one process: the coordinator's engine, the ledger's rules and a virtual clock. No sockets, no files, and no
//! signatures: what a message says is what its sender means.

mod effects;
mod spec;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use florin_engine::{Engine, Event};
use florin_learning::Reference;
use florin_ledger::state::{ApplyError, State as Books, apply};
use florin_ledger::{Action, Outcome, Terms, Transaction};
use florin_protocol::limits::PUBLIC_STEPS_MAX;
use florin_protocol::{
    Address, Amount, Canonical, Commit, Digest, Enrol, NodeKey, NodeSignature, Offer, Phase,
    Registration, Rejection, Report, Role, Round, Signed, TaskId, TaskSpec, Tick, UpdateHeader,
    WalletSignature, blob_digest,
};
use florin_work::{Committed, WorkError, check_model, encode_update};

use crate::mechanism::Judge;
use crate::parallel::each;

pub use spec::{BUYER, COORDINATOR, ENROL_MS, POOL, account, fln, florins};

/// When the market opens.
const OPENED: Tick = Tick(1_000);
/// How long a registration holds, in milliseconds.
const YEAR_MS: u64 = 365 * 24 * 3_600 * 1_000;
/// What is never too late.
const NEVER: Tick = Tick(u64::MAX >> 1);
/// What stands where a signature would.
const UNSIGNED: NodeSignature = NodeSignature([0; 64]);
/// Letters of a message that an error shows.
const SHOWN: usize = 120;

/// Why a market came to a halt: a fault of the laboratory or of what it drives, never an answer to a member.
#[derive(Debug, thiserror::Error)]
pub enum MarketError {
    /// The engine refused something that it asked for.
    #[error("the engine refused {what}: {why} [SIM_ENGINE]")]
    Engine {
        /// What was said.
        what: String,
        /// Its answer.
        why: Rejection,
    },
    /// The ledger refused something that the market needs.
    #[error("the ledger refused {what}: {why} [SIM_LEDGER]")]
    Ledger {
        /// What was asked.
        what: &'static str,
        /// Its answer.
        why: ApplyError,
    },
    /// A round could not be worked on.
    #[error("the round could not be valued: {0} [SIM_WORK]")]
    Work(#[from] WorkError),
    /// Something is missing that must be there.
    #[error("{0} is missing [SIM_MISSING]")]
    Missing(&'static str),
}

/// One update on its way to the market.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Whose.
    pub account: Address,
    /// Rows that it declares.
    pub rows: u64,
    /// The update.
    pub delta: Vec<f32>,
    /// Milliseconds after the offer at which it is promised.
    pub commit_ms: u64,
    /// Milliseconds that its upload takes.
    pub upload_ms: u64,
}

/// An account that takes part.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Whose.
    pub account: Address,
    /// What it bonds.
    pub bond: Amount,
    /// What it has besides.
    pub extra: Amount,
}

impl Seat {
    /// All that it begins with.
    #[must_use]
    pub fn begins_with(&self) -> Amount {
        // The scenario's bounds keep all sums far from the end of 128 bits.
        self.bond.plus(self.extra).unwrap_or_default()
    }
}

/// What one round came to.
#[derive(Clone, Debug)]
pub struct RoundDone {
    /// The round's report.
    pub report: Report,
    /// What it did to the model; none where nothing changed.
    pub step: Option<Vec<f32>>,
}

/// What comes next in a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A round is open.
    Offer,
    /// Too few are ready for a round: who was silent has to enrol again.
    Short,
    /// There will be no round any more.
    Over,
}

/// The market.
pub struct Market {
    engine: Engine,
    books: Books,
    spec: TaskSpec,
    id: TaskId,
    holdout: Committed,
    judge: Judge,
    /// Models and updates by their digests, as long as they are needed.
    blobs: BTreeMap<Digest, Vec<u8>>,
    worker: Reference,
    seed: u64,
    now: Tick,
    /// Settlements that wait for their windows.
    windows: VecDeque<Round>,
    supply: Amount,
}

impl std::fmt::Debug for Market {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Market")
            .field("task", &self.id)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl Market {
    /// Opens a market with one task that begins with the model `base`, and enrols everybody.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn open(
        mut spec: TaskSpec,
        base: Vec<u8>,
        holdout: Committed,
        judge: Judge,
        seats: &[Seat],
    ) -> Result<Self, MarketError> {
        spec.base_model = blob_digest(&base);
        spec.holdout.root = holdout.root();
        let deposit = spec.budget.data.plus(spec.budget.infrastructure).unwrap_or_default();
        let mut money = vec![(BUYER, deposit)];
        money.extend(seats.iter().map(|seat| (seat.account, seat.begins_with())));
        let books = Books::begin(&money);
        let supply = books.supply().unwrap_or_default();
        let mut market = Self {
            engine: Engine::new(spec.market, COORDINATOR),
            books,
            id: spec.id(),
            seed: spec.salt,
            spec,
            holdout,
            judge,
            blobs: BTreeMap::new(),
            worker: Reference::new(),
            now: OPENED,
            windows: VecDeque::new(),
            supply,
        };
        market.publish(base)?;
        for seat in seats {
            market.take_seat(seat)?;
        }
        Ok(market)
    }

    fn publish(&mut self, base: Vec<u8>) -> Result<(), MarketError> {
        let (task, spec) = (self.id, Box::new(self.spec.clone()));
        self.pay("the task's escrow", BUYER, Action::OpenTask(Terms::of(&spec)))?;
        let model_bytes = florin_work::model_bytes(&spec);
        let update_bytes = florin_work::update_bytes(&spec);
        self.say(&Event::Published { spec, model_bytes, update_bytes })?;
        let digest = blob_digest(&base);
        self.blobs.insert(digest, base);
        self.say(&Event::BlobArrived { task, digest })?;
        self.say(&Event::HoldoutArrived { task, digest: self.spec.holdout.root })
    }

    fn take_seat(&mut self, seat: &Seat) -> Result<(), MarketError> {
        let (task, sender, market) = (self.id, seat.account, self.spec.market);
        self.pay("a bond", sender, Action::Bond { task, amount: seat.bond })?;
        self.say(&Event::Registered(Registration {
            market,
            wallet: sender,
            node_key: NodeKey(blob_digest(&sender.0).0),
            role: Role::Participant,
            expires: self.now.after_ms(YEAR_MS),
            wallet_signature: WalletSignature([0; 65]),
            node_signature: UNSIGNED,
        }))?;
        let enrolled = self.enrolment(sender);
        self.say(&enrolled)
    }

    /// Enrols an account again that sits out because it was silent; says whether it was taken, which it is not when too
    /// little is left of its bond.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn enrol_again(&mut self, sender: Address) -> Result<bool, MarketError> {
        let enrolled = self.enrolment(sender);
        self.try_to_say(&enrolled)
    }

    fn enrolment(&self, sender: Address) -> Event {
        let (task, market) = (self.id, self.spec.market);
        let bond = self.books.bond(task, sender).amount;
        Event::Enrolled { enrol: unsigned(Enrol { market, task, sender, expires: NEVER }), bond }
    }

    /// The offer that is open now, if there is one.
    #[must_use]
    pub fn offer(&self) -> Option<&Offer> {
        let task = self.engine.state().tasks.get(&self.id)?;
        let running = task.running().filter(|_| task.phase() == Phase::Committing)?;
        Some(&running.offer)
    }

    /// Lets virtual time pass until a round opens, or until only members who enrol could open one.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn next_offer(&mut self) -> Result<Next, MarketError> {
        while self.offer().is_none() {
            let phase = self.phase();
            let over = phase.is_none_or(|p| matches!(p, Phase::Closing | Phase::Done));
            match self.engine.next_deadline().filter(|_| !over) {
                None => return Ok(Next::Over),
                // Nothing but the task's last moment is due.
                Some(at) if phase == Some(Phase::Enrolling) && at > self.now.after_ms(ENROL_MS) => {
                    return Ok(Next::Short);
                }
                Some(at) => {
                    self.now = self.now.max(at);
                    self.say(&Event::Tick)?;
                }
            }
        }
        Ok(Next::Offer)
    }

    /// Lets virtual time pass while nothing is due.
    pub fn wait(&mut self, ms: u64) {
        self.now = self.now.after_ms(ms);
    }

    /// Florins of the budget for data that the buyer has back; nobody is paid for infrastructure.
    #[must_use]
    pub fn returned(&self) -> f64 {
        florins(self.balance(BUYER)) - florins(self.spec.budget.infrastructure)
    }

    fn phase(&self) -> Option<Phase> {
        self.engine.state().tasks.get(&self.id).map(|task| task.phase())
    }

    /// The numbers of the model that the open round begins with.
    ///
    /// # Errors
    /// [`MarketError::Missing`].
    pub fn base(&self) -> Result<Vec<f32>, MarketError> {
        let offer = self.offer().ok_or(MarketError::Missing("an open round"))?;
        self.model(offer.base_model)
    }

    /// The numbers of the newest model.
    ///
    /// # Errors
    /// [`MarketError::Missing`].
    pub fn last_model(&self) -> Result<Vec<f32>, MarketError> {
        let task = self.engine.state().tasks.get(&self.id);
        let last = task.and_then(|task| task.past.last()).map(|ended| ended.model);
        self.model(last.unwrap_or(self.spec.base_model))
    }

    fn model(&self, digest: Digest) -> Result<Vec<f32>, MarketError> {
        let bytes = self.blobs.get(&digest).ok_or(MarketError::Missing("a model"))?;
        check_model(&self.spec, bytes).map_err(|_| MarketError::Missing("a model that is one"))
    }

    /// Plays the open round with what arrives, in the order of virtual time, on so many threads, which change nothing but
    /// the time that it takes. What the engine refuses, because it is late
    /// or for any other reason, is not taken, as on any other day.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn round(
        &mut self,
        mut arrivals: Vec<Arrival>,
        threads: usize,
    ) -> Result<RoundDone, MarketError> {
        self.worker = Reference::on(threads);
        let before = self.base()?;
        let offer = self.offer().cloned().ok_or(MarketError::Missing("an open round"))?;
        let digest = offer.digest();
        arrivals.sort_by_key(|arrival| (arrival.commit_ms, arrival.account));
        // Who is too late is not waited for.
        arrivals.retain(|arrival| offer.opened.after_ms(arrival.commit_ms) <= offer.commit_by);
        let written = each(
            threads,
            arrivals,
            || (),
            |(), arrival| {
                let (commit_ms, upload_ms) = (arrival.commit_ms, arrival.upload_ms);
                let (header, bytes) = self.write(&offer, digest, arrival)?;
                Ok::<_, MarketError>((commit_ms, header, bytes, upload_ms))
            },
        );
        let mut promised = Vec::new();
        for written in written {
            let (commit_ms, header, bytes, upload_ms) = written?;
            self.now = self.now.max(offer.opened.after_ms(commit_ms));
            if self.commit(&header)? {
                promised.push((header, bytes, upload_ms));
            }
        }
        self.pass(Phase::Committing, offer.commit_by)?;
        let opened = self.now;
        promised.sort_by_key(|(header, _, upload_ms)| (*upload_ms, header.sender));
        for (header, bytes, upload_ms) in promised {
            let at = opened.after_ms(upload_ms);
            if at > offer.reveal_by || self.phase() != Some(Phase::Revealing) {
                break;
            }
            self.now = self.now.max(at);
            self.blobs.insert(header.update, bytes);
            self.try_to_say(&Event::Revealed(unsigned(header)))?;
        }
        self.pass(Phase::Revealing, offer.reveal_by)?;
        self.done(offer.scope.round, &before)
    }

    /// Lets time pass until a phase is over.
    fn pass(&mut self, phase: Phase, by: Tick) -> Result<(), MarketError> {
        if self.phase() == Some(phase) {
            self.now = self.now.max(by.after_ms(1));
            self.say(&Event::Tick)?;
        }
        Ok(())
    }

    fn done(&mut self, round: Round, before: &[f32]) -> Result<RoundDone, MarketError> {
        let task = self.engine.state().tasks.get(&self.id);
        let past = task.and_then(|task| task.past(round));
        let report = past.ok_or(MarketError::Missing("the round's report"))?.report.clone();
        let after = self.model(report.model)?;
        let step: Vec<f32> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let moved = step.iter().any(|value| *value != 0.0);
        self.forget();
        Ok(RoundDone { report, step: moved.then_some(step) })
    }

    /// Forgets models and updates that no order will name any more. By their digests, not one by one: an update of zeros
    /// has the bytes of a model of zeros.
    fn forget(&mut self) {
        let Some(task) = self.engine.state().tasks.get(&self.id) else { return };
        // The models that those rounds ended with, and the one that the first of them began with.
        let latest = task.past.iter().rev().take(PUBLIC_STEPS_MAX.saturating_add(2));
        let mut needed: BTreeSet<Digest> = latest.map(|ended| ended.model).collect();
        needed.insert(self.spec.base_model);
        // The next round's updates are held against these, however large they are.
        let shown = task.earlier.held_against(self.spec.rounds.protection, 0);
        needed.extend(shown.into_iter().map(|(_, update)| update));
        self.blobs.retain(|digest, _| needed.contains(digest));
    }

    fn write(
        &self,
        offer: &Offer,
        digest: Digest,
        arrival: Arrival,
    ) -> Result<(UpdateHeader, Vec<u8>), MarketError> {
        let encoded = encode_update(&self.spec, arrival.delta, None, self.seed)
            .map_err(|why| MarketError::Engine { what: "an update".to_owned(), why })?;
        let bytes = encoded.bytes;
        let header = UpdateHeader {
            scope: offer.scope,
            sender: arrival.account,
            offer: digest,
            base_model: offer.base_model,
            rows: arrival.rows,
            update: blob_digest(&bytes),
            bytes: bytes.len() as u64,
            salt: blob_digest(&arrival.account.0),
            expires: NEVER,
        };
        Ok((header, bytes))
    }

    fn commit(&mut self, header: &UpdateHeader) -> Result<bool, MarketError> {
        let bond = self.books.bond(self.id, header.sender).amount;
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        self.try_to_say(&Event::Committed { commit: unsigned(commit), bond })
    }

    /// Carries out a transaction that must work.
    fn pay(
        &mut self,
        what: &'static str,
        from: Address,
        action: Action,
    ) -> Result<Outcome, MarketError> {
        self.ask(from, action).map_err(|why| MarketError::Ledger { what, why })
    }

    fn ask(&mut self, from: Address, action: Action) -> Result<Outcome, ApplyError> {
        let nonce = self.books.nonce(from);
        let transaction = Transaction { market: self.spec.market, from, nonce, action };
        apply(&mut self.books, &transaction, self.now).map(|(_, outcome)| outcome)
    }

    /// Moves money between wallets, for mechanisms that pay beside the task.
    ///
    /// # Errors
    /// [`MarketError::Ledger`].
    pub fn transfer(
        &mut self,
        from: Address,
        to: Address,
        amount: Amount,
    ) -> Result<(), MarketError> {
        self.pay("a transfer", from, Action::Transfer { to, amount }).map(drop)
    }

    /// What an account has: wallet and bond.
    #[must_use]
    pub fn worth(&self, account: Address) -> Amount {
        let bond = self.books.bond(self.id, account).amount;
        self.balance(account).plus(bond).unwrap_or_default()
    }

    /// What a wallet holds.
    #[must_use]
    pub fn balance(&self, account: Address) -> Amount {
        self.books.balance(account)
    }

    /// Whether there is as much money as there was at the beginning.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.books.supply().is_ok_and(|supply| supply == self.supply)
    }

    /// Virtual time.
    #[must_use]
    pub const fn now(&self) -> Tick {
        self.now
    }

    /// The task.
    #[must_use]
    pub const fn spec(&self) -> &TaskSpec {
        &self.spec
    }
}

fn unsigned<T>(body: T) -> Signed<T> {
    Signed { body, signature: UNSIGNED }
}
