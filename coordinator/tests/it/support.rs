//! Fixtures: an engine with participants, an in-memory fake ledger, keys and messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};

use alloy_signer::SignerSync;
use alloy_signer_local::PrivateKeySigner;
use florin_coordinator::LedgerEndpoint;
use florin_engine::{Applied, Effect, Engine, Event};
use florin_learning::Dataset;
use florin_learning::data::canonical_bytes;
use florin_ledger::{
    BondState, Claim, ClaimOutcome, Ledger, LedgerError, MemberShare, Objection, PendingSettlement,
    PostOutcome, Refusal, Settlement, SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};
use florin_protocol::*;
use florin_work::CommittedHoldout;

/// An RPC handler of the embedded ledger that echoes the request.
pub(crate) fn echo() -> LedgerEndpoint {
    LedgerEndpoint::Embedded(Arc::new(|request: &[u8]| Ok(request.to_vec())))
}

pub(crate) fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

pub(crate) fn market() -> MarketId {
    MarketId { chain: ChainId(31_337), genesis: Digest([9; 32]) }
}

/// An account with a signing key.
pub(crate) struct SeededWallet(PrivateKeySigner);

impl SeededWallet {
    pub(crate) fn number(n: u8) -> Self {
        Self(PrivateKeySigner::from_slice(&[n; 32]).unwrap())
    }
}

impl WalletSigner for SeededWallet {
    fn address(&self) -> Address {
        Address(self.0.address().into_array())
    }
    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        let signature =
            self.0.sign_hash_sync(&hash.into()).map_err(|error| SignError(error.to_string()))?;
        Ok(WalletSignature(signature.as_bytes()))
    }
}

pub(crate) const COORDINATOR: u8 = 200;
pub(crate) const BUYER: u8 = 201;
pub(crate) const PROVIDER: u8 = 202;
pub(crate) const ARBITER: u8 = 203;

pub(crate) fn address(n: u8) -> Address {
    SeededWallet::number(n).address()
}

pub(crate) fn node(n: u8) -> NodeSigner {
    NodeSigner::from_seed(&[n; 32])
}

pub(crate) fn registration(n: u8, role: Role) -> Registration {
    Registration::sign(market(), &SeededWallet::number(n), &node(n), role, Timestamp(1_000_000))
        .unwrap()
}

/// A task of three rounds with four participants, at least two; ten seconds to train, five to
/// upload, seven to value.
pub(crate) fn spec() -> TaskSpec {
    let example = TaskSpec::example();
    TaskSpec {
        market: market(),
        buyer: address(BUYER),
        coordinator: address(COORDINATOR),
        arbiter: address(ARBITER),
        name: "digits".to_owned(),
        holdout: Holdout { root: all_rows().1, rows: 100, rows_per_round: 10 },
        training: Training { epochs: 1, ..example.training },
        rounds: RoundRules {
            count: 3,
            enrol_ms: 3_000,
            train_ms: 10_000,
            reveal_ms: 5_000,
            value_ms: 7_000,
            ..example.rounds
        },
        budget: Budget {
            data: fln("90"),
            bond_per_row: fln("0.01"),
            stake_min: fln("20"),
            unbond_ms: 82_001,
            ..example.budget
        },
        expires: Timestamp(900_000),
        ..example
    }
}

/// The bytes of a hundred synthetic rows, and their Merkle root.
pub(crate) fn all_rows() -> &'static (Vec<u8>, Digest) {
    static ROWS: OnceLock<(Vec<u8>, Digest)> = OnceLock::new();
    ROWS.get_or_init(|| {
        let features = (0..6_400).map(|i| i as f32 / 6_400.0).collect();
        let rows = Dataset::new(features, (0..100).map(|i| i % 10).collect(), 64, 10).unwrap();
        (canonical_bytes(&rows), CommittedHoldout::new(rows).root())
    })
}

pub(crate) const MODEL_BYTES: u64 = 2_800;

/// An engine, with the messages of its participants.
#[derive(Clone)]
pub(crate) struct EngineFixture {
    pub(crate) engine: Engine,
    pub(crate) spec: TaskSpec,
    pub(crate) id: TaskId,
    pub(crate) now: Timestamp,
    pub(crate) journal: Vec<(Timestamp, Event)>,
}

impl EngineFixture {
    pub(crate) fn new(spec: TaskSpec) -> Self {
        let id = spec.id();
        let engine = Engine::new(market(), address(COORDINATOR));
        Self { engine, spec, id, now: Timestamp(1_000), journal: Vec::new() }
    }

    /// Applies an event to the engine; records it if it would be journaled.
    pub(crate) fn apply(&mut self, event: Event) -> Result<Applied, Rejection> {
        let applied = self.engine.apply(&event, self.now)?;
        if applied.status == florin_engine::EventStatus::New {
            self.journal.push((self.now, event));
        }
        Ok(applied)
    }

    pub(crate) fn rejection_code(&mut self, event: Event) -> ErrorCode {
        let before = self.engine.state().clone();
        let rejection = self.apply(event).unwrap_err();
        assert_eq!(*self.engine.state(), before, "a rejection changed the state");
        assert!(!rejection.message.is_empty());
        rejection.code
    }

    /// A task with its blobs, and `n` registered participants that have not enrolled.
    pub(crate) fn with_published_task(n: u8) -> Self {
        Self::with_published_spec(spec(), n)
    }

    pub(crate) fn with_published_spec(spec: TaskSpec, n: u8) -> Self {
        let mut world = Self::new(spec);
        for i in 1..=n {
            world.apply(Event::Registered(registration(i, Role::Participant))).unwrap();
        }
        world.apply(Event::Registered(registration(PROVIDER, Role::Provider))).unwrap();
        let event = Event::TaskPublished {
            spec: world.spec.clone().into(),
            model_bytes: MODEL_BYTES,
            update_bytes: MODEL_BYTES,
        };
        world.apply(event).unwrap();
        let (task, digest) = (world.id, world.spec.base_model);
        world.apply(Event::BlobArrived { task, digest }).unwrap();
        let digest = blob_digest(&all_rows().0);
        world.apply(Event::HoldoutArrived { task, digest }).unwrap();
        world
    }

    pub(crate) fn enrol_event(&self, i: u8) -> Event {
        let (task, sender) = (self.id, address(i));
        let enrol = EnrolRequest::without_invitation(market(), task, sender, Timestamp(1_000_000));
        Event::Enrolled { enrol: node(i).sign(enrol), bond: fln("5") }
    }

    /// Round 1 is open for participants 1 to `n`.
    pub(crate) fn with_open_round(n: u8) -> Self {
        let mut world = Self::with_published_task(n);
        (1..=n).for_each(|i| {
            world.apply(world.enrol_event(i)).unwrap();
        });
        if n < 4 {
            world.now = world.now.saturating_add_ms(world.spec.rounds.enrol_ms);
            world.apply(Event::Tick).unwrap();
        }
        world
    }

    pub(crate) fn offer(&self) -> &Offer {
        &self.engine.state().tasks[&self.id].running().unwrap().offer
    }

    pub(crate) fn header(&self, i: u8) -> UpdateHeader {
        let offer = self.offer();
        UpdateHeader {
            scope: offer.scope,
            sender: address(i),
            offer: offer.digest(),
            base_model: offer.base_model,
            rows: 100,
            update: Digest([100 + i; 32]),
            bytes: MODEL_BYTES,
            salt: Digest([i; 32]),
            expires: Timestamp(1_000_000),
        }
    }

    pub(crate) fn commit(&self, i: u8) -> Commit {
        let header = self.header(i);
        let commitment = header.commitment();
        Commit { scope: header.scope, sender: header.sender, offer: header.offer, commitment }
    }

    pub(crate) fn commit_event(&self, i: u8) -> Event {
        Event::Committed { commit: node(i).sign(self.commit(i)), bond: fln("5") }
    }

    pub(crate) fn reveal_event(&self, i: u8) -> Event {
        Event::Revealed(node(i).sign(self.header(i)))
    }

    /// Commits are closed; no update has arrived.
    pub(crate) fn in_revealing(n: u8) -> Self {
        let mut world = Self::with_open_round(n);
        (1..=n).for_each(|i| {
            world.apply(world.commit_event(i)).unwrap();
        });
        world
    }

    /// All updates have arrived; the round is being valued.
    pub(crate) fn in_valuing(n: u8) -> Self {
        let mut world = Self::in_revealing(n);
        (1..=n).for_each(|i| {
            world.apply(world.reveal_event(i)).unwrap();
        });
        world.disclose();
        world
    }

    /// Discloses the round's rows, if they are not disclosed yet.
    pub(crate) fn disclose(&mut self) -> Vec<Effect> {
        let (task, scope) = (self.id, self.offer().scope);
        let shown = Digest([200 + scope.round.0 as u8; 32]);
        self.apply(Event::RowsDisclosed { task, round: scope.round, rows: shown }).unwrap().effects
    }

    pub(crate) fn order(&self) -> &WorkOrder {
        self.engine.state().tasks[&self.id].running().unwrap().work_order.as_ref().unwrap()
    }

    /// A result in which each participant's score is proportional to its position in the list.
    pub(crate) fn result(&self) -> WorkResult {
        let accounts = self.order().entries.iter().map(|entry| entry.sender);
        let scores: Vec<UpdateScore> = accounts
            .zip(1i64..)
            .map(|(account, i)| UpdateScore {
                account,
                score_nano: i * 10_000_000,
                error_nano: 1_000_000,
                excluded: false,
                preprocessing: florin_protocol::Preprocessing::default(),
            })
            .collect();
        let total_nano = scores.iter().map(|score| score.score_nano).sum();
        WorkResult {
            valuation: Valuation {
                loss_before_nano: 2_000_000_000,
                loss_after_nano: 2_000_000_000 - total_nano,
                total_nano,
                gap_nano: 0,
                model_loss_nano: 0,
                stages: Vec::new(),
                scores,
                units: 5,
                evidence: ValuationEvidence::default(),
            },
            baseline: None,
            metrics: ModelMetrics { rows: 10, ..ModelMetrics::default() },
            model: Digest([50 + self.order().scope.round.0 as u8; 32]),
        }
    }

    pub(crate) fn valued_event(&self) -> Event {
        let (task, round) = (self.id, self.order().scope.round);
        let result = self.result().into();
        Event::RoundValued { task, round, result, paid: None, wrong_records: Vec::new() }
    }

    pub(crate) fn record(&self) -> Signed<WorkRecord> {
        let order = self.order().digest();
        let provider = address(PROVIDER);
        node(PROVIDER).sign(WorkRecord { market: market(), order, provider, result: self.result() })
    }
}

/// An in-memory fake ledger. Flags make it unreachable or make it refuse.
#[derive(Default)]
pub(crate) struct FakeLedger {
    pub(crate) state: Mutex<FakeLedgerState>,
    /// The ledger's market, if it is not [`market`].
    pub(crate) market: Option<MarketId>,
}

#[derive(Default)]
pub(crate) struct FakeLedgerState {
    pub(crate) now: Timestamp,
    pub(crate) tasks: BTreeMap<TaskId, TaskState>,
    pub(crate) bonds: BTreeMap<Address, BondState>,
    pub(crate) stakes: BTreeMap<Address, StakeState>,
    pub(crate) final_settlements: Vec<Settlement>,
    /// The accepted claims, in order.
    pub(crate) claims: Vec<Claim>,
    /// The number of claims when the task was closed.
    pub(crate) claims_at_close: Option<usize>,
    /// Whether the ledger is unavailable for claims.
    pub(crate) refuses_claims: bool,
    pub(crate) posts: u32,
    pub(crate) is_unavailable: bool,
    pub(crate) accounts_without_balance: BTreeSet<Address>,
}

impl FakeLedger {
    pub(crate) fn open(&self, spec: &TaskSpec) {
        let state = TaskState {
            terms: Terms::from_spec(spec),
            data_locked: spec.budget.data,
            infrastructure_locked: spec.budget.infrastructure,
            data_paid: Amount::ZERO,
            infrastructure_paid: Amount::ZERO,
            refunded: Amount::ZERO,
            owed: Amount::ZERO,
            root: Digest::default(),
            round: None,
            pending: Vec::new(),
            closes_at: None,
            closed: false,
        };
        self.state.lock().unwrap().tasks.insert(spec.id(), state);
    }

    fn lock(&self) -> Result<std::sync::MutexGuard<'_, FakeLedgerState>, LedgerError> {
        let books = self.state.lock().unwrap();
        if books.is_unavailable { unavailable() } else { Ok(books) }
    }
}

fn unavailable<T>() -> Result<T, LedgerError> {
    Err(LedgerError::Unavailable("the fake ledger is unavailable".to_owned()))
}

impl Ledger for FakeLedger {
    fn market(&self) -> MarketId {
        self.market.unwrap_or_else(market)
    }
    fn now(&self) -> Result<Timestamp, LedgerError> {
        self.lock().map(|mut books| {
            books.now = books.now.saturating_add_ms(1);
            books.now
        })
    }
    fn balance(&self, account: Address) -> Result<Amount, LedgerError> {
        let poor = self.lock()?.accounts_without_balance.contains(&account);
        Ok(if poor { Amount::ZERO } else { fln("1") })
    }
    fn treasury(&self) -> Result<Amount, LedgerError> {
        unavailable()
    }
    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError> {
        self.lock().map(|books| books.tasks.get(&task).cloned())
    }
    fn bond_of(&self, _: TaskId, account: Address) -> Result<BondState, LedgerError> {
        self.lock().map(|books| books.bonds.get(&account).copied().unwrap_or_default())
    }
    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError> {
        self.lock().map(|books| books.stakes.get(&account).copied().unwrap_or_default())
    }
    fn is_pledged(&self, _: TaskId, provider: Address) -> Result<bool, LedgerError> {
        self.lock().map(|books| books.stakes.contains_key(&provider))
    }
    fn claimed_totals(
        &self,
        _: TaskId,
        account: Address,
    ) -> Result<merkle::ClaimTotals, LedgerError> {
        let books = self.lock()?;
        let own = books.claims.iter().rfind(|claim| claim.account == account);
        Ok(own.map(|claim| claim.totals).unwrap_or_default())
    }
    fn split_of(&self, _: TaskId, _: Address) -> Result<Vec<MemberShare>, LedgerError> {
        Ok(Vec::new())
    }
    fn settlement_status(
        &self,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<SettlementStatus, LedgerError> {
        let books = self.lock()?;
        if books.final_settlements.iter().any(|settlement| settlement.payout == payout) {
            return Ok(SettlementStatus::Final);
        }
        let pending = books.tasks.get(&task).into_iter().flat_map(|task| &task.pending);
        let known = pending.into_iter().any(|pending| pending.settlement.payout == payout);
        Ok(if known { SettlementStatus::Pending } else { SettlementStatus::Unknown })
    }
    fn transfer(&self, _: &dyn WalletSigner, _: Address, _: Amount) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn open_task(&self, _: &dyn WalletSigner, _: &Terms) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn set_split(
        &self,
        _: &dyn WalletSigner,
        _: TaskId,
        _: &[MemberShare],
    ) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn bond(&self, _: &dyn WalletSigner, _: TaskId, _: Amount) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn unbond(&self, _: &dyn WalletSigner, _: TaskId) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn withdraw_bond(&self, _: &dyn WalletSigner, _: TaskId) -> Result<Amount, LedgerError> {
        unavailable()
    }
    fn stake(&self, _: &dyn WalletSigner, _: Amount) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn pledge(&self, _: &dyn WalletSigner, _: TaskId) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn unstake(&self, _: &dyn WalletSigner) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn withdraw_stake(&self, _: &dyn WalletSigner) -> Result<Amount, LedgerError> {
        unavailable()
    }
    fn post(
        &self,
        by: &dyn WalletSigner,
        settlement: &Settlement,
    ) -> Result<PostOutcome, LedgerError> {
        let mut books = self.lock()?;
        let now = books.now;
        books.posts += 1;
        assert_eq!(by.address(), address(COORDINATOR));
        let known =
            books.final_settlements.iter().find(|known| known.payout == settlement.payout).copied();
        let finals = books.final_settlements.clone();
        let task = books.tasks.get_mut(&settlement.task).unwrap();
        let pending = task.pending.iter().map(|pending| pending.settlement);
        let known = known.or_else(|| pending.into_iter().find(|p| p.payout == settlement.payout));
        match known {
            Some(known) if known == *settlement => return Ok(PostOutcome::AlreadyPosted),
            Some(_) => return Err(Refusal::ConflictingSettlement(settlement.payout).into()),
            None if task.closed => return Err(Refusal::TaskClosed(settlement.task).into()),
            None => {}
        }
        let last = task.pending.last().map(|pending| pending.settlement.root);
        let standing = last.or_else(|| finals.last().map(|last| last.root)).unwrap_or_default();
        if settlement.previous_root != standing || now > task.terms.expires {
            let reason = "the previous root is wrong, or the task has expired".to_owned();
            return Err(Refusal::InvalidSettlement { round: settlement.round, reason }.into());
        }
        let final_at = now.saturating_add_ms(task.terms.challenge_ms);
        task.pending.push(PendingSettlement { settlement: *settlement, final_at });
        Ok(PostOutcome::Posted)
    }
    fn cancel(
        &self,
        _: &dyn WalletSigner,
        _: TaskId,
        _: SettlementId,
    ) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn finalize(&self, _: &dyn WalletSigner, task: TaskId) -> Result<u64, LedgerError> {
        let mut books = self.lock()?;
        let state = books.tasks.get_mut(&task).unwrap();
        let done: Vec<Settlement> = state.pending.drain(..).map(|p| p.settlement).collect();
        let count = done.len() as u64;
        books.final_settlements.extend(&done);
        if let (Some(last), Some(state)) = (done.last(), books.tasks.get_mut(&task)) {
            state.root = last.root;
        }
        Ok(count)
    }
    fn claim(&self, by: &dyn WalletSigner, claim: &Claim) -> Result<ClaimOutcome, LedgerError> {
        let before = self.claimed_totals(claim.task, claim.account)?;
        let mut books = self.lock()?;
        assert_eq!(by.address(), address(COORDINATOR));
        let root = books.final_settlements.last().map(|last| last.root).unwrap_or_default();
        if !merkle::verify(root, claim.account, claim.totals, &claim.proof) {
            return Err(Refusal::InvalidProof.into());
        }
        if before == claim.totals {
            return Err(Refusal::NothingToClaim.into());
        }
        if books.refuses_claims {
            return unavailable();
        }
        books.claims.push(claim.clone());
        Ok(ClaimOutcome {
            paid: claim.totals.paid.minus(before.paid).unwrap(),
            taken: claim.totals.debited.minus(before.debited).unwrap(),
        })
    }
    fn close(&self, _: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        let mut books = self.lock()?;
        let paid = books.final_settlements.last().map_or(Amount::ZERO, |last| last.data_total);
        let claims = books.claims.len();
        let state = books.tasks.get_mut(&task).unwrap();
        if state.closed {
            return Err(Refusal::TaskClosed(task).into());
        }
        state.closed = true;
        books.claims_at_close = Some(claims);
        let state = books.tasks.get_mut(&task).unwrap();
        state.refunded = state.terms.data.minus(paid).unwrap();
        Ok(state.refunded)
    }
    fn announce_close(&self, _: &dyn WalletSigner, _: TaskId) -> Result<TxId, LedgerError> {
        unavailable()
    }
    fn object(&self, _: &dyn WalletSigner, _: &Objection) -> Result<Amount, LedgerError> {
        unavailable()
    }
    fn slash(&self, _: &dyn WalletSigner, _: &Slash) -> Result<Amount, LedgerError> {
        unavailable()
    }
}
