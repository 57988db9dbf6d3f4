//! The ledger's process: the ledger's own rules behind a line on which requests and answers get lost, come late or come
//! twice. Everybody reaches it by the product's own client half, which asks for a transaction's fate before it gives up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_ledger::rpc::{Request, Response, look};
use florin_ledger::state::{ApplyError, State, apply};
use florin_ledger::{
    Channel, Fate, LedgerError, Outcome, SignedTransaction, Transaction, TxId, submit_over,
};
use florin_protocol::{Address, Market, SignError, Signer, Tick, WalletSignature};
use rand_chacha::ChaCha8Rng;

use super::network::Node;
use florin_sim::draw::below;

/// What a caller says whose request was heard and whose answer was not.
pub(super) const ANSWER_LOST: &str = "the answer was lost";

/// An account whose signature nobody checks here: what is sent is what its owner means.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsigned(pub Address);

impl Signer for Unsigned {
    fn address(&self) -> Address {
        self.0
    }

    fn sign_typed(&self, _: [u8; 32]) -> Result<WalletSignature, SignError> {
        Ok(WalletSignature([0; 65]))
    }
}

/// A transaction that was carried out and changed something.
#[derive(Clone, Debug)]
pub(super) struct Done {
    /// The transaction.
    pub transaction: Transaction,
    /// What it came to.
    pub outcome: Outcome,
    /// By the ledger's clock.
    pub at: Tick,
}

/// How the line to the ledger fails, in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineFaults {
    /// Requests that are lost.
    pub unheard: u64,
    /// Answers that are lost.
    pub unanswered: u64,
    /// Transactions that come later than their sender waits.
    pub late: u64,
    /// Transactions that come twice.
    pub twice: u64,
}

/// The ledger's process.
#[derive(Debug)]
pub(super) struct Bank {
    state: State,
    market: Market,
    now: Tick,
    recent: BTreeMap<TxId, Outcome>,
    /// What was carried out, in its order: everybody may read it.
    pub log: Vec<Done>,
    /// Transactions on their way that nobody waits for any more.
    pub late: Vec<Transaction>,
    faults: LineFaults,
    /// Who cannot reach it.
    cut: BTreeSet<Node>,
    away: bool,
    /// Requests after which the one who asks dies in the middle of its next step.
    dies_in: Option<(Node, u64)>,
    died: bool,
    rng: ChaCha8Rng,
    /// Grows with everything that could have changed its state.
    pub version: u64,
    /// Planted: the state before the last transactions, to which a restart goes back.
    forgets: Option<State>,
}

impl Bank {
    /// A ledger with this money.
    #[must_use]
    pub(super) fn new(market: Market, state: State, rng: ChaCha8Rng) -> Self {
        Self {
            state,
            market,
            now: Tick(0),
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

    /// What it knows.
    #[must_use]
    pub(super) const fn state(&self) -> &State {
        &self.state
    }

    /// Moves its clock, which never goes backwards.
    pub(super) fn set_clock(&mut self, now: Tick) {
        self.now = self.now.max(now);
    }

    /// Its clock.
    #[must_use]
    pub(super) const fn now(&self) -> Tick {
        self.now
    }

    /// How its line fails from now on.
    pub(super) const fn set_faults(&mut self, faults: LineFaults) {
        self.faults = faults;
    }

    /// Who cannot reach it from now on.
    pub(super) fn set_cut(&mut self, cut: BTreeSet<Node>) {
        self.cut = cut;
    }

    /// Takes it away, or brings it back.
    pub(super) const fn set_away(&mut self, away: bool) {
        self.away = away;
    }

    /// Whoever asks dies after so many more requests.
    pub(super) const fn kill_in(&mut self, node: Node, requests: u64) {
        self.dies_in = Some((node, requests));
    }

    /// Nobody dies by asking, and whether somebody did.
    pub(super) const fn spare(&mut self) -> bool {
        let died = self.died;
        (self.dies_in, self.died) = (None, false);
        died
    }

    /// Planted: from now on a restart forgets what comes next.
    pub(super) fn plant_forgetting(&mut self) {
        self.forgets = Some(self.state.clone());
    }

    /// Planted: the restart.
    pub(super) fn forget(&mut self) {
        if let Some(before) = self.forgets.take() {
            self.state = before;
            self.version += 1;
        }
    }

    /// A transaction that was on its way arrives.
    pub(super) fn arrives_late(&mut self, transaction: &Transaction) {
        // Nobody waits for the answer, whatever it is.
        let _ = self.carry_out(transaction);
    }

    fn carry_out(&mut self, transaction: &Transaction) -> Result<Outcome, LedgerError> {
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
            Err(ApplyError::Broken(what)) => Err(LedgerError::Corrupt(what)),
        }
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && below(&mut self.rng, 1_000) < thousandths
    }

    /// Whether somebody's request gets through.
    fn hears(&mut self, from: Node) -> Result<(), LedgerError> {
        let lost = |what: &str| Err(LedgerError::Unavailable(what.to_owned()));
        if let Some((node, left)) = self.dies_in
            && node == from
        {
            if left == 0 {
                self.died = true;
                return lost("the one who asks is dead");
            }
            self.dies_in = Some((node, left - 1));
        }
        if self.away || self.cut.contains(&from) {
            return lost("nobody answers");
        }
        if self.chance(self.faults.unheard) {
            return lost("the request was lost");
        }
        Ok(())
    }

    fn answer(&mut self, from: Node, request: Request) -> Result<Response, LedgerError> {
        self.hears(from)?;
        let answer = match request {
            Request::Submit(signed) => Response::Outcome(self.submit(&signed.transaction)?),
            Request::Fate { from, nonce, id } => Response::Fate(match self.recent.get(&id) {
                Some(outcome) => Fate::CarriedOut(*outcome),
                None if self.state.nonce(from) <= nonce => Fate::NotYet,
                None => Fate::Unknown,
            }),
            Request::Market => Response::Market(self.market),
            other => look(&self.state, self.now, &other)
                .ok_or_else(|| LedgerError::Unavailable("it knows no blocks".to_owned()))?,
        };
        if self.chance(self.faults.unanswered) {
            return Err(LedgerError::Unavailable(ANSWER_LOST.to_owned()));
        }
        Ok(answer)
    }

    fn submit(&mut self, transaction: &Transaction) -> Result<Outcome, LedgerError> {
        if self.chance(self.faults.late) {
            self.late.push(transaction.clone());
            return Err(LedgerError::Unavailable("it takes longer than anybody waits".to_owned()));
        }
        let outcome = self.carry_out(transaction)?;
        if self.chance(self.faults.twice) {
            self.arrives_late(transaction);
        }
        Ok(outcome)
    }
}

/// One process' way to the ledger.
#[derive(Clone, Debug)]
pub(super) struct Way {
    bank: Arc<Mutex<Bank>>,
    from: Node,
}

impl Way {
    /// Of this process.
    #[must_use]
    pub(super) const fn new(bank: Arc<Mutex<Bank>>, from: Node) -> Self {
        Self { bank, from }
    }

    fn lock(&self) -> MutexGuard<'_, Bank> {
        // One thread plays one seed: nobody else can have left it in the middle of something.
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel for Way {
    fn market(&self) -> Market {
        self.lock().market
    }

    fn ask(&self, request: Request) -> Result<Response, LedgerError> {
        self.lock().answer(self.from, request)
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError> {
        submit_over(&|request| self.ask(request), transaction)
    }
}
