//! The ledger's process: the ledger's own rules behind connections that lose, delay and duplicate
//! requests and responses. All processes use the production client protocol, which queries the fate
//! of a transaction before it gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_ledger::rpc::{LedgerRequest, LedgerResponse, query_state};
use florin_ledger::state::{ApplyError, LedgerState, apply};
use florin_ledger::{
    LedgerError, LedgerTransport, SignedTransaction, Transaction, TransactionOutcome,
    TransactionStatus, TxId, submit_remote,
};
use florin_protocol::{Address, MarketId, SignError, Timestamp, WalletSignature, WalletSigner};
use rand_chacha::ChaCha8Rng;

use super::network::Node;
use florin_sim::draw::below;

/// The error of a caller whose request was executed and whose response was lost.
pub(super) const ANSWER_LOST: &str = "the answer was lost";

/// An account whose signatures are not checked; every message counts as genuine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsigned(pub Address);

impl WalletSigner for Unsigned {
    fn address(&self) -> Address {
        self.0
    }

    fn sign_typed_data(&self, _: [u8; 32]) -> Result<WalletSignature, SignError> {
        Ok(WalletSignature([0; 65]))
    }
}

/// An executed transaction that changed the state.
#[derive(Clone, Debug)]
pub(super) struct Done {
    /// The transaction.
    pub transaction: Transaction,
    /// Its outcome.
    pub outcome: TransactionOutcome,
    /// Time by the ledger's clock.
    pub at: Timestamp,
}

/// Faults of the connection to the ledger, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineFaults {
    /// Lost requests.
    pub unheard: u64,
    /// Lost responses.
    pub unanswered: u64,
    /// Transactions that arrive after their sender's timeout.
    pub late: u64,
    /// Duplicated transactions.
    pub twice: u64,
}

/// The simulated ledger.
#[derive(Debug)]
pub(super) struct Bank {
    state: LedgerState,
    market: MarketId,
    now: Timestamp,
    recent: BTreeMap<TxId, TransactionOutcome>,
    /// The executed transactions in order; public.
    pub log: Vec<Done>,
    /// Delayed transactions, whose senders have timed out.
    pub late: Vec<Transaction>,
    faults: LineFaults,
    /// Processes that cannot reach the ledger.
    cut: BTreeSet<Node>,
    away: bool,
    /// The process that crashes while it uses the ledger, and after how many further requests.
    dies_in: Option<(Node, u64)>,
    died: bool,
    rng: ChaCha8Rng,
    /// Incremented by every operation that can change the state.
    pub version: u64,
    /// Planted bug: the state before the last transactions, to which a restart reverts.
    forgets: Option<LedgerState>,
}

impl Bank {
    /// A ledger with this state.
    #[must_use]
    pub(super) fn new(market: MarketId, state: LedgerState, rng: ChaCha8Rng) -> Self {
        Self {
            state,
            market,
            now: Timestamp(0),
            recent: BTreeMap::new(),
            log: Vec::new(),
            late: Vec::new(),
            faults: LineFaults::default(),
            cut: BTreeSet::new(),
            away: false,
            dies_in: None,
            died: false,
            rng,
            version: 0,
            forgets: None,
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
    pub(super) const fn set_faults(&mut self, faults: LineFaults) {
        self.faults = faults;
    }

    /// Sets the processes that cannot reach it.
    pub(super) fn set_cut(&mut self, cut: BTreeSet<Node>) {
        self.cut = cut;
    }

    /// Begins or ends an outage.
    pub(super) const fn set_away(&mut self, away: bool) {
        self.away = away;
    }

    /// The process crashes after this many further requests.
    pub(super) const fn kill_in(&mut self, node: Node, requests: u64) {
        self.dies_in = Some((node, requests));
    }

    /// Cancels the scheduled crash; returns whether the process crashed.
    pub(super) const fn spare(&mut self) -> bool {
        let died = self.died;
        (self.dies_in, self.died) = (None, false);
        died
    }

    /// Planted bug: the next restart reverts to the current state.
    pub(super) fn plant_forgetting(&mut self) {
        self.forgets = Some(self.state.clone());
    }

    /// Planted bug: the restart.
    pub(super) fn forget(&mut self) {
        if let Some(before) = self.forgets.take() {
            self.state = before;
            self.version += 1;
        }
    }

    /// A delayed transaction arrives.
    pub(super) fn arrives_late(&mut self, transaction: &Transaction) {
        // The sender has timed out, so the result is dropped.
        let _ = self.carry_out(transaction);
    }

    fn carry_out(&mut self, transaction: &Transaction) -> Result<TransactionOutcome, LedgerError> {
        self.version += 1;
        let before = self.state.nonce(transaction.from);
        match apply(&mut self.state, transaction, self.now) {
            Ok((_, outcome)) => {
                self.recent.insert(transaction.id(), outcome);
                if self.state.nonce(transaction.from) != before {
                    let transaction = transaction.clone();
                    self.log.push(Done { transaction, outcome, at: self.now });
                }
                Ok(outcome)
            }
            Err(ApplyError::Refused(refusal)) => Err(refusal.into()),
            Err(ApplyError::Inconsistent(what)) => Err(LedgerError::Corrupt(what)),
        }
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && below(&mut self.rng, 1_000) < thousandths
    }

    /// Whether a request reaches the ledger.
    fn hears(&mut self, from: Node) -> Result<(), LedgerError> {
        let lost = |what: &str| Err(LedgerError::Unavailable(what.to_owned()));
        if let Some((node, left)) = self.dies_in
            && node == from
        {
            if left == 0 {
                self.died = true;
                return lost("the caller has crashed");
            }
            self.dies_in = Some((node, left - 1));
        }
        if self.away || self.cut.contains(&from) {
            return lost("no response");
        }
        if self.chance(self.faults.unheard) {
            return lost("the request was lost");
        }
        Ok(())
    }

    fn answer(
        &mut self,
        from: Node,
        request: LedgerRequest,
    ) -> Result<LedgerResponse, LedgerError> {
        self.hears(from)?;
        let answer = match request {
            LedgerRequest::Submit(signed) => {
                LedgerResponse::Outcome(self.submit(&signed.transaction)?)
            }
            LedgerRequest::TransactionStatus { from, nonce, id } => {
                LedgerResponse::TransactionStatus(match self.recent.get(&id) {
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
        if self.chance(self.faults.unanswered) {
            return Err(LedgerError::Unavailable(ANSWER_LOST.to_owned()));
        }
        Ok(answer)
    }

    fn submit(&mut self, transaction: &Transaction) -> Result<TransactionOutcome, LedgerError> {
        if self.chance(self.faults.late) {
            self.late.push(transaction.clone());
            return Err(LedgerError::Unavailable("the transaction is delayed".to_owned()));
        }
        let outcome = self.carry_out(transaction)?;
        if self.chance(self.faults.twice) {
            self.arrives_late(transaction);
        }
        Ok(outcome)
    }
}

/// A process's connection to the ledger.
#[derive(Clone, Debug)]
pub(super) struct Way {
    bank: Arc<Mutex<Bank>>,
    from: Node,
}

impl Way {
    /// The connection of this process.
    #[must_use]
    pub(super) const fn new(bank: Arc<Mutex<Bank>>, from: Node) -> Self {
        Self { bank, from }
    }

    fn lock(&self) -> MutexGuard<'_, Bank> {
        // One thread simulates one seed, so a poisoned lock leaves no inconsistent state.
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LedgerTransport for Way {
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
