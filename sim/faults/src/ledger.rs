//! The ledger's process: the ledger's own rules behind connections that lose, delay and duplicate
//! requests and responses. All processes use the production client protocol, which queries the fate
//! of a transaction before it gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_ledger::rpc::{LedgerRequest, LedgerResponse, query_state};
use florin_ledger::state::{ApplyError, LedgerState, apply};
use florin_ledger::{
    Action, LedgerError, LedgerTransport, SignedTransaction, Transaction, TransactionOutcome,
    TransactionStatus, TxId, submit_remote,
};
use florin_protocol::{Address, MarketId, SignError, Timestamp, WalletSignature, WalletSigner};
use rand_chacha::ChaCha8Rng;

use super::network::ProcessId;
use florin_sim::random::uniform_below;

/// The error of a caller whose request was executed and whose response was lost.
pub(super) const RESPONSE_LOST: &str = "the answer was lost";

/// An account whose signatures are not checked; every message counts as genuine.
#[derive(Clone, Copy, Debug)]
pub(super) struct DummySigner(pub Address);

impl WalletSigner for DummySigner {
    fn address(&self) -> Address {
        self.0
    }

    fn sign_typed_data(&self, _: [u8; 32]) -> Result<WalletSignature, SignError> {
        Ok(WalletSignature([0; 65]))
    }
}

/// An executed transaction that changed the state.
#[derive(Clone, Debug)]
pub(super) struct ExecutedTransaction {
    /// The transaction.
    pub transaction: Transaction,
    /// Its outcome.
    pub outcome: TransactionOutcome,
    /// Time by the ledger's clock.
    pub at: Timestamp,
}

/// Faults of the connection to the ledger, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFaults {
    /// Lost requests.
    pub request_loss: u64,
    /// Lost responses.
    pub response_loss: u64,
    /// Transactions that arrive after their sender's timeout.
    pub late: u64,
    /// Duplicated transactions.
    pub duplicates: u64,
}

/// The simulated ledger.
#[derive(Debug)]
pub(super) struct SimLedger {
    state: LedgerState,
    market: MarketId,
    now: Timestamp,
    outcomes: BTreeMap<TxId, TransactionOutcome>,
    /// The executed transactions in order; public.
    pub log: Vec<ExecutedTransaction>,
    /// Delayed transactions, whose senders have timed out.
    pub late: Vec<Transaction>,
    faults: LinkFaults,
    /// Processes that cannot reach the ledger.
    unreachable_from: BTreeSet<ProcessId>,
    is_down: bool,
    /// The process that crashes while it uses the ledger, and after how many further requests.
    crash_caller_after: Option<(ProcessId, u64)>,
    caller_crashed: bool,
    rng: ChaCha8Rng,
    /// Incremented by every operation that can change the state.
    pub version: u64,
    /// Planted bug: the state before the last transactions, to which a restart reverts.
    restart_state: Option<LedgerState>,
    /// Planted bug: withdrawals of bonds are executed as if their delays were over.
    ignores_bond_delays: bool,
}

impl SimLedger {
    /// A ledger with this state.
    #[must_use]
    pub(super) fn new(market: MarketId, state: LedgerState, rng: ChaCha8Rng) -> Self {
        Self {
            state,
            market,
            now: Timestamp(0),
            outcomes: BTreeMap::new(),
            log: Vec::new(),
            late: Vec::new(),
            faults: LinkFaults::default(),
            unreachable_from: BTreeSet::new(),
            is_down: false,
            crash_caller_after: None,
            caller_crashed: false,
            rng,
            version: 0,
            restart_state: None,
            ignores_bond_delays: false,
        }
    }

    /// The state of the ledger.
    #[must_use]
    pub(super) const fn state(&self) -> &LedgerState {
        &self.state
    }

    /// Advances its clock, which never goes backwards.
    pub(super) fn set_clock(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
    }

    /// The time on its clock.
    #[must_use]
    pub(super) const fn now(&self) -> Timestamp {
        self.now
    }

    /// Sets the faults of its connections.
    pub(super) const fn set_faults(&mut self, faults: LinkFaults) {
        self.faults = faults;
    }

    /// Sets the processes that cannot reach it.
    pub(super) fn set_unreachable_from(&mut self, cut: BTreeSet<ProcessId>) {
        self.unreachable_from = cut;
    }

    /// Begins or ends an outage.
    pub(super) const fn set_down(&mut self, away: bool) {
        self.is_down = away;
    }

    /// The process crashes after this many further requests.
    pub(super) const fn crash_caller_after(&mut self, node: ProcessId, requests: u64) {
        self.crash_caller_after = Some((node, requests));
    }

    /// Cancels the scheduled crash; returns whether the process crashed.
    pub(super) const fn take_caller_crash(&mut self) -> bool {
        let died = self.caller_crashed;
        (self.crash_caller_after, self.caller_crashed) = (None, false);
        died
    }

    /// Planted bug: the next restart reverts to the current state.
    pub(super) fn plant_transaction_loss(&mut self) {
        self.restart_state = Some(self.state.clone());
    }

    /// Planted bug: the restart.
    pub(super) fn revert_planted(&mut self) {
        if let Some(before) = self.restart_state.take() {
            self.state = before;
            self.version += 1;
        }
    }

    /// Planted bug: bonds are returned early from now on.
    pub(super) const fn plant_early_withdrawals(&mut self) {
        self.ignores_bond_delays = true;
    }

    /// A delayed transaction arrives.
    pub(super) fn deliver_late(&mut self, transaction: &Transaction) {
        // The sender has timed out, so the result is dropped.
        let _ = self.execute(transaction);
    }

    fn execute(&mut self, transaction: &Transaction) -> Result<TransactionOutcome, LedgerError> {
        self.version += 1;
        let before = self.state.nonce(transaction.from);
        let early =
            self.ignores_bond_delays && matches!(transaction.action, Action::WithdrawBond { .. });
        let now = if early { Timestamp::MAX } else { self.now };
        match apply(&mut self.state, transaction, now) {
            Ok((_, outcome)) => {
                self.outcomes.insert(transaction.id(), outcome);
                if self.state.nonce(transaction.from) != before {
                    let transaction = transaction.clone();
                    self.log.push(ExecutedTransaction { transaction, outcome, at: self.now });
                }
                Ok(outcome)
            }
            Err(ApplyError::Refused(refusal)) => Err(refusal.into()),
            Err(ApplyError::Inconsistent(what)) => Err(LedgerError::Corrupt(what)),
        }
    }

    fn random_bool(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && uniform_below(&mut self.rng, 1_000) < thousandths
    }

    /// Whether a request reaches the ledger.
    fn receive(&mut self, from: ProcessId) -> Result<(), LedgerError> {
        let lost = |what: &str| Err(LedgerError::Unavailable(what.to_owned()));
        if let Some((node, left)) = self.crash_caller_after
            && node == from
        {
            if left == 0 {
                self.caller_crashed = true;
                return lost("the caller has crashed");
            }
            self.crash_caller_after = Some((node, left - 1));
        }
        if self.is_down || self.unreachable_from.contains(&from) {
            return lost("no response");
        }
        if self.random_bool(self.faults.request_loss) {
            return lost("the request was lost");
        }
        Ok(())
    }

    fn answer(
        &mut self,
        from: ProcessId,
        request: LedgerRequest,
    ) -> Result<LedgerResponse, LedgerError> {
        self.receive(from)?;
        let answer = match request {
            LedgerRequest::Submit(signed) => {
                LedgerResponse::Outcome(self.submit(&signed.transaction)?)
            }
            LedgerRequest::TransactionStatus { from, nonce, id } => {
                LedgerResponse::TransactionStatus(match self.outcomes.get(&id) {
                    Some(outcome) => TransactionStatus::Executed(*outcome),
                    None if self.state.nonce(from) <= nonce => TransactionStatus::NotExecuted,
                    None => TransactionStatus::Unknown,
                })
            }
            LedgerRequest::Market => LedgerResponse::Market(self.market),
            other => query_state(&self.state, self.now, &other).ok_or_else(|| {
                LedgerError::Unavailable("the simulated ledger has no blocks".to_owned())
            })?,
        };
        if self.random_bool(self.faults.response_loss) {
            return Err(LedgerError::Unavailable(RESPONSE_LOST.to_owned()));
        }
        Ok(answer)
    }

    fn submit(&mut self, transaction: &Transaction) -> Result<TransactionOutcome, LedgerError> {
        if self.random_bool(self.faults.late) {
            self.late.push(transaction.clone());
            return Err(LedgerError::Unavailable("the transaction is delayed".to_owned()));
        }
        let outcome = self.execute(transaction)?;
        if self.random_bool(self.faults.duplicates) {
            self.deliver_late(transaction);
        }
        Ok(outcome)
    }
}

/// A process's connection to the ledger.
#[derive(Clone, Debug)]
pub(super) struct LedgerLink {
    bank: Arc<Mutex<SimLedger>>,
    from: ProcessId,
}

impl LedgerLink {
    /// The connection of this process.
    #[must_use]
    pub(super) const fn new(bank: Arc<Mutex<SimLedger>>, from: ProcessId) -> Self {
        Self { bank, from }
    }

    fn lock(&self) -> MutexGuard<'_, SimLedger> {
        // One thread simulates one seed, so a poisoned lock leaves no inconsistent state.
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerTransport for LedgerLink {
    fn market(&self) -> MarketId {
        self.lock().market
    }

    fn request(&self, request: LedgerRequest) -> Result<LedgerResponse, LedgerError> {
        self.lock().answer(self.from, request)
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<TransactionOutcome, LedgerError> {
        submit_remote(&|request| self.request(request), transaction)
    }
}
