//! A market in one process: the coordinator's engine, the ledger's rules and a virtual clock. There
//! are no sockets, no files and no signatures; every message counts as genuine.

mod effects;
mod spec;
mod timeline;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use florin_engine::state::TaskStage;
use florin_engine::{Engine, Event, REGISTRATION_MS_MAX};
use florin_learning::graph::GraphModel;
use florin_learning::{Reference, parallel_map};
use florin_ledger::state::{ApplyError, LedgerState as Books, apply};
use florin_ledger::{Action, Terms, Transaction, TransactionOutcome};
use florin_protocol::limits::{GLOBAL_DELTAS_MAX, TASK_MS_MAX};
use florin_protocol::{
    Address, Amount, Candidates, Canonical, Commit, Digest, EnrolRequest, NodeKey, NodeSignature,
    Offer, Registration, Rejection, Report, Role, RoundNumber, SelectionReason, Signed, TaskId,
    TaskPhase, TaskSpec, Timestamp, UpdateHeader, WalletSignature, blob_digest,
};
use florin_work::{CommittedHoldout, WorkError, decode_model, encode_update};

use crate::mechanism::RoundScorer;

pub use spec::{BUYER, COORDINATOR, ENROL_MS, POOL, account, amount_to_florins, florins_to_amount};
pub use timeline::{RoundTimeline, SpareCommit};

/// Virtual time at which the market opens.
const OPENED: Timestamp = Timestamp(1_000);
/// An expiry that never passes.
const NEVER: Timestamp = Timestamp(u64::MAX >> 1);
/// Placeholder for a signature.
const DUMMY_SIGNATURE: NodeSignature = NodeSignature([0; 64]);
/// Maximum number of characters of an event in an error message.
const SHOWN: usize = 120;

/// Why a market failed: a fault of the laboratory or of the code that it drives, never a refusal of
/// a member's message.
#[derive(Debug, thiserror::Error)]
pub enum MarketError {
    /// The engine refused an event that it must accept.
    #[error("the engine refused {what}: {why} [SIM_ENGINE]")]
    Engine {
        /// The event.
        what: String,
        /// The engine's answer.
        why: Rejection,
    },
    /// The ledger refused a transaction that the market needs.
    #[error("the ledger refused {what}: {why} [SIM_LEDGER]")]
    Ledger {
        /// The transaction.
        what: &'static str,
        /// The ledger's answer.
        why: ApplyError,
    },
    /// A round cannot be valued.
    #[error("the round cannot be valued: {0} [SIM_WORK]")]
    Work(#[from] WorkError),
    /// An object is missing that must exist.
    #[error("{0} is missing [SIM_MISSING]")]
    Missing(&'static str),
}

/// One update on its way to the market.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The sender.
    pub account: Address,
    /// Number of rows that the sender declares.
    pub rows: u64,
    /// The update.
    pub delta: Vec<f32>,
    /// Milliseconds after the offer at which the sender commits to the update.
    pub commit_ms: u64,
    /// Duration of the upload in milliseconds.
    pub upload_ms: u64,
    /// The model that it was trained from, if that is not the round's base model.
    pub base_model: Option<Digest>,
    /// The offer of the round in which its training began, if that was an earlier one.
    pub begun: Option<Timestamp>,
}

/// An account of a participant.
#[derive(Clone, Debug)]
pub struct ParticipantAccount {
    /// Its address.
    pub account: Address,
    /// Its bond.
    pub bond: Amount,
    /// Its initial balance in addition to the bond.
    pub extra: Amount,
    /// Its signed prediction of the time from an offer to its commit, in milliseconds; 0 for none.
    pub quote_ms: u64,
}

impl ParticipantAccount {
    /// Its initial balance, including the bond.
    #[must_use]
    pub fn initial_balance(&self) -> Amount {
        // The bounds of a scenario keep all sums far below 2^128.
        self.bond.plus(self.extra).unwrap_or_default()
    }
}

/// The result of one round.
#[derive(Clone, Debug)]
pub struct RoundResult {
    /// The round's report.
    pub report: Report,
    /// The change of the model; `None` if the model did not change.
    pub step: Option<Vec<f32>>,
    /// The times of its messages.
    pub timeline: RoundTimeline,
}

/// The next step of a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRound {
    /// A round is open.
    Open,
    /// Too few participants are available: those that were silent must enrol again.
    TooFewParticipants,
    /// No further round will open.
    Ended,
}

/// A simulated market with one task.
pub struct SimulatedMarket {
    engine: Engine,
    ledger: Books,
    spec: TaskSpec,
    id: TaskId,
    holdout: CommittedHoldout,
    scorer: RoundScorer,
    /// Models and updates by digest, for as long as they are needed.
    blobs: BTreeMap<Digest, Vec<u8>>,
    worker: Reference,
    /// The loaded graph, if the task's model is one.
    graph: Option<GraphModel>,
    seed: u64,
    now: Timestamp,
    /// The participants' quotes.
    quotes: BTreeMap<Address, u64>,
    /// Rounds whose settlements are in their challenge windows.
    pending_rounds: VecDeque<RoundNumber>,
    supply: Amount,
}

impl std::fmt::Debug for SimulatedMarket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Market")
            .field("task", &self.id)
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

impl SimulatedMarket {
    /// Opens a market with one task whose initial model is `base`, and enrols all `seats`.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn open(
        mut spec: TaskSpec,
        base: Vec<u8>,
        holdout: CommittedHoldout,
        judge: RoundScorer,
        seats: &[ParticipantAccount],
    ) -> Result<Self, MarketError> {
        spec.base_model = blob_digest(&base);
        spec.holdout.root = holdout.root();
        let deposit = spec.budget.data.plus(spec.budget.infrastructure).unwrap_or_default();
        let mut money = vec![(BUYER, deposit)];
        money.extend(seats.iter().map(|seat| (seat.account, seat.initial_balance())));
        let books = Books::from_genesis(&money);
        let supply = books.supply().unwrap_or_default();
        let mut market = Self {
            engine: Engine::new(spec.market, COORDINATOR),
            ledger: books,
            id: spec.id(),
            seed: spec.salt,
            spec,
            holdout,
            scorer: judge,
            blobs: BTreeMap::new(),
            worker: Reference::new(),
            graph: None,
            now: OPENED,
            quotes: BTreeMap::new(),
            pending_rounds: VecDeque::new(),
            supply,
        };
        market.publish(base)?;
        for seat in seats {
            market.enrol_account(seat)?;
        }
        Ok(market)
    }

    /// The same with the loaded graph of the task's model.
    #[must_use]
    pub fn with_graph(self, graph: Option<GraphModel>) -> Self {
        Self { graph, ..self }
    }

    fn publish(&mut self, base: Vec<u8>) -> Result<(), MarketError> {
        let (task, spec) = (self.id, Box::new(self.spec.clone()));
        // No arbiter acts in a simulation, so that the coordinator deposits no bond; and the task
        // lasts as long as the ledger allows. The specification, from whose digest all draws follow,
        // stays the scenario's.
        let expires = self.now.saturating_add_ms(TASK_MS_MAX);
        let terms = Terms { arbiter: COORDINATOR, expires, ..Terms::from_spec(&spec) };
        self.execute("the task's escrow", BUYER, Action::OpenTask(terms))?;
        let model_bytes = florin_work::model_bytes(&spec);
        let update_bytes = florin_work::update_bytes(&spec);
        self.apply(&Event::TaskPublished { spec, model_bytes, update_bytes })?;
        let digest = blob_digest(&base);
        self.blobs.insert(digest, base);
        // A graph and a tokenizer have blobs of their own.
        for digest in self.spec.blobs().collect::<Vec<_>>() {
            self.apply(&Event::BlobArrived { task, digest })?;
        }
        self.apply(&Event::HoldoutArrived { task, digest: self.spec.holdout.root })
    }

    fn enrol_account(&mut self, seat: &ParticipantAccount) -> Result<(), MarketError> {
        let (task, sender, market) = (self.id, seat.account, self.spec.market);
        self.execute("a bond", sender, Action::Bond { task, amount: seat.bond })?;
        self.apply(&Event::Registered(Registration {
            market,
            wallet: sender,
            node_key: NodeKey(blob_digest(&sender.0).0),
            role: Role::Participant,
            expires: self.now.saturating_add_ms(REGISTRATION_MS_MAX),
            wallet_signature: WalletSignature([0; 65]),
            node_signature: DUMMY_SIGNATURE,
        }))?;
        self.quotes.insert(sender, seat.quote_ms);
        let enrolled = self.enrol_event(sender);
        self.apply(&enrolled)
    }

    /// Enrols an account again after it was silent. Returns `false` if the engine refuses the
    /// enrolment, for example because too little is left of the bond.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn re_enrol(&mut self, sender: Address) -> Result<bool, MarketError> {
        let enrolled = self.enrol_event(sender);
        self.try_apply(&enrolled)
    }

    fn enrol_event(&self, sender: Address) -> Event {
        let (task, market) = (self.id, self.spec.market);
        let bond = self.ledger.bond(task, sender).amount;
        Event::Enrolled {
            enrol: unsigned(EnrolRequest {
                quote_ms: self.quotes.get(&sender).copied().unwrap_or_default(),
                ..EnrolRequest::without_invitation(market, task, sender, NEVER)
            }),
            bond,
        }
    }

    /// The open offer, if there is one.
    #[must_use]
    pub fn offer(&self) -> Option<&Offer> {
        let task = self.engine.state().tasks.get(&self.id)?;
        let running = task.running().filter(|_| task.phase() == TaskPhase::Committing)?;
        Some(&running.offer)
    }

    /// Whether the account may still deliver the update of its training in the next round.
    #[must_use]
    pub fn training_goes_on(&self, account: Address) -> bool {
        let task = self.engine.state().tasks.get(&self.id);
        task.is_some_and(|task| task.history.member(account).ongoing.is_some())
    }

    /// The candidates of the open offer's cohort.
    #[must_use]
    pub fn candidates(&self) -> Option<Candidates> {
        let task = self.engine.state().tasks.get(&self.id)?;
        task.running().map(|running| running.candidates.clone())
    }

    /// Replaces the open offer's cohort, for comparisons with another selection. A real coordinator
    /// could not: its auditors recompute the cohort.
    pub fn replace_cohort(&mut self, cohort: Vec<Address>) {
        let reason = |account: &Address| match self.training_goes_on(*account) {
            true => SelectionReason::Continues,
            false => SelectionReason::Drawn,
        };
        let reasons = cohort.iter().map(reason).collect();
        let mut state = self.engine.state().clone();
        let stage = state.tasks.get_mut(&self.id).map(|task| &mut task.stage);
        if let Some(TaskStage::Committing(running)) = stage {
            running.offer.reasons = reasons;
            running.offer.cohort = cohort;
            running.offer_digest = running.offer.digest();
        }
        self.engine = Engine::from_state(self.spec.market, COORDINATOR, state);
    }

    /// Advances virtual time until a round opens, or until a round could open only after new
    /// enrolments.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn next_offer(&mut self) -> Result<NextRound, MarketError> {
        while self.offer().is_none() {
            let phase = self.phase();
            let over = phase.is_none_or(|p| matches!(p, TaskPhase::Closing | TaskPhase::Done));
            match self.engine.next_deadline().filter(|_| !over) {
                None => return Ok(NextRound::Ended),
                // Only the expiry of the task is due.
                Some(at)
                    if phase == Some(TaskPhase::Enrolling)
                        && at > self.now.saturating_add_ms(ENROL_MS) =>
                {
                    return Ok(NextRound::TooFewParticipants);
                }
                Some(at) => {
                    self.now = self.now.max(at);
                    self.apply(&Event::Tick)?;
                }
            }
        }
        Ok(NextRound::Open)
    }

    /// Advances virtual time while nothing is due.
    pub fn advance(&mut self, ms: u64) {
        self.now = self.now.saturating_add_ms(ms);
    }

    /// Unspent florins of the budget for data that the buyer received back. The simulation pays
    /// nothing for infrastructure.
    #[must_use]
    pub fn refunded_budget(&self) -> f64 {
        amount_to_florins(self.balance(BUYER)) - amount_to_florins(self.spec.budget.infrastructure)
    }

    fn phase(&self) -> Option<TaskPhase> {
        self.engine.state().tasks.get(&self.id).map(|task| task.phase())
    }

    /// The parameters of the open round's base model.
    ///
    /// # Errors
    /// [`MarketError::Missing`].
    pub fn base_model(&self) -> Result<Vec<f32>, MarketError> {
        let offer = self.offer().ok_or(MarketError::Missing("an open round"))?;
        self.model(offer.base_model)
    }

    /// The parameters of the newest model.
    ///
    /// # Errors
    /// [`MarketError::Missing`].
    pub fn newest_model(&self) -> Result<Vec<f32>, MarketError> {
        let task = self.engine.state().tasks.get(&self.id);
        let last = task.and_then(|task| task.rounds.last()).map(|ended| ended.model);
        self.model(last.unwrap_or(self.spec.base_model))
    }

    fn model(&self, digest: Digest) -> Result<Vec<f32>, MarketError> {
        let bytes = self.blobs.get(&digest).ok_or(MarketError::Missing("a model"))?;
        decode_model(&self.spec, bytes).map_err(|_| MarketError::Missing("a valid model"))
    }

    /// Runs the open round with the given updates, in the order of virtual time. The engine's
    /// refusals, for example of late messages, drop the message, as in production. The number of
    /// threads changes only the run time.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn run_round(
        &mut self,
        mut arrivals: Vec<Arrival>,
        threads: usize,
    ) -> Result<RoundResult, MarketError> {
        self.worker = Reference::with_threads(threads);
        let before = self.base_model()?;
        let offer = self.offer().cloned().ok_or(MarketError::Missing("an open round"))?;
        let digest = offer.digest();
        let mut timeline = RoundTimeline::new(&offer, &self.spec.rounds);
        arrivals.sort_by_key(|arrival| (arrival.commit_ms, arrival.account));
        timeline.expect(&arrivals);
        // The round does not wait for a commit after the deadline.
        arrivals
            .retain(|arrival| offer.opened.saturating_add_ms(arrival.commit_ms) <= offer.commit_by);
        let written = parallel_map(threads, arrivals, |arrival| {
            let (commit_ms, upload_ms) = (arrival.commit_ms, arrival.upload_ms);
            let (header, bytes) = self.encode_arrival(&offer, digest, arrival)?;
            Ok::<_, MarketError>((commit_ms, header, bytes, upload_ms))
        });
        let mut promised = Vec::new();
        for written in written {
            let (commit_ms, header, bytes, upload_ms) = written?;
            // The round does not wait for a commit after its last one either.
            if self.phase() != Some(TaskPhase::Committing) {
                break;
            }
            self.now = self.now.max(offer.opened.saturating_add_ms(commit_ms));
            timeline.spares.remove(&header.sender);
            if self.commit(&header)? {
                timeline.commits.push((header.sender, self.now));
                promised.push((header, bytes, upload_ms));
            }
        }
        self.end_phase(TaskPhase::Committing, offer.commit_by)?;
        let opened = self.now;
        timeline.commits_closed = opened;
        promised.sort_by_key(|(header, _, upload_ms)| (*upload_ms, header.sender));
        for (header, bytes, upload_ms) in promised {
            let at = opened.saturating_add_ms(upload_ms);
            if at > offer.reveal_by || self.phase() != Some(TaskPhase::Revealing) {
                break;
            }
            self.now = self.now.max(at);
            self.blobs.insert(header.update, bytes);
            let sender = header.sender;
            if self.try_apply(&Event::Revealed(unsigned(header)))? {
                timeline.updates.push((sender, self.now));
            }
        }
        self.end_phase(TaskPhase::Revealing, offer.reveal_by)?;
        timeline.updates_closed = self.now;
        self.round_result(&before, timeline)
    }

    /// Advances time until the phase is over.
    fn end_phase(&mut self, phase: TaskPhase, by: Timestamp) -> Result<(), MarketError> {
        if self.phase() == Some(phase) {
            self.now = self.now.max(by.saturating_add_ms(1));
            self.apply(&Event::Tick)?;
        }
        Ok(())
    }

    fn round_result(
        &mut self,
        before: &[f32],
        timeline: RoundTimeline,
    ) -> Result<RoundResult, MarketError> {
        let round = RoundNumber(timeline.round);
        let task = self.engine.state().tasks.get(&self.id);
        let past = task.and_then(|task| task.reported_round(round));
        let report = past.ok_or(MarketError::Missing("the round's report"))?.report.clone();
        let after = self.model(report.model)?;
        let step: Vec<f32> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let moved = step.iter().any(|value| *value != 0.0);
        self.drop_unneeded_blobs();
        Ok(RoundResult { report, step: moved.then_some(step), timeline })
    }

    /// Drops models and updates that no further order will reference. The set of needed blobs is
    /// built by digest because an update of zeros has the same bytes as a model of zeros.
    fn drop_unneeded_blobs(&mut self) {
        let Some(task) = self.engine.state().tasks.get(&self.id) else { return };
        // The models at the end of the latest rounds, and the base model of the first of them.
        let latest = task.rounds.iter().rev().take(GLOBAL_DELTAS_MAX.saturating_add(2));
        let mut needed: BTreeSet<Digest> = latest.map(|ended| ended.model).collect();
        needed.insert(self.spec.base_model);
        // The next round's updates are compared with these, of any size.
        let shown = task.earlier.reference_updates(self.spec.rounds.preprocessing, 0);
        needed.extend(shown.into_iter().map(|(_, update)| update));
        needed.extend(task.earlier_rows());
        self.blobs.retain(|digest, _| needed.contains(digest));
    }

    fn encode_arrival(
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
            base_model: arrival.base_model.unwrap_or(offer.base_model),
            rows: arrival.rows,
            update: blob_digest(&bytes),
            bytes: bytes.len() as u64,
            salt: blob_digest(&arrival.account.0),
            expires: NEVER,
        };
        Ok((header, bytes))
    }

    fn commit(&mut self, header: &UpdateHeader) -> Result<bool, MarketError> {
        let bond = self.ledger.bond(self.id, header.sender).amount;
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        self.try_apply(&Event::Committed { commit: unsigned(commit), bond })
    }

    /// Executes a transaction that must succeed.
    fn execute(
        &mut self,
        what: &'static str,
        from: Address,
        action: Action,
    ) -> Result<TransactionOutcome, MarketError> {
        self.try_execute(from, action).map_err(|why| MarketError::Ledger { what, why })
    }

    fn try_execute(
        &mut self,
        from: Address,
        action: Action,
    ) -> Result<TransactionOutcome, ApplyError> {
        let nonce = self.ledger.nonce(from);
        let transaction = Transaction { market: self.spec.market, from, nonce, action };
        apply(&mut self.ledger, &transaction, self.now).map(|(_, outcome)| outcome)
    }

    /// Transfers money between wallets, for mechanisms that pay outside the task.
    ///
    /// # Errors
    /// [`MarketError::Ledger`].
    pub fn transfer(
        &mut self,
        from: Address,
        to: Address,
        amount: Amount,
    ) -> Result<(), MarketError> {
        self.execute("a transfer", from, Action::Transfer { to, amount }).map(drop)
    }

    /// Total of an account's wallet and bond.
    #[must_use]
    pub fn total_balance(&self, account: Address) -> Amount {
        let bond = self.ledger.bond(self.id, account).amount;
        self.balance(account).plus(bond).unwrap_or_default()
    }

    /// Balance of a wallet.
    #[must_use]
    pub fn balance(&self, account: Address) -> Amount {
        self.ledger.balance(account)
    }

    /// Whether the total of all accounts still equals the initial supply.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.ledger.supply().is_ok_and(|supply| supply == self.supply)
    }

    /// The virtual time.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// The task specification.
    #[must_use]
    pub const fn spec(&self) -> &TaskSpec {
        &self.spec
    }
}

fn unsigned<T>(body: T) -> Signed<T> {
    Signed { body, signature: DUMMY_SIGNATURE }
}
