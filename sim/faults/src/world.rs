//! The shared state of a simulation: virtual time, event queue, network, ledger, clocks, trace and
//! auditor.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Arguments;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_ledger::Transaction;
use florin_ledger::state::LedgerState as Books;
use florin_protocol::Timestamp;
use rand_chacha::ChaCha8Rng;

use super::auditor::Auditor;
use super::bugs::Bug;
use super::ledger::{Bank, LineFaults, Way};
use super::message::Body;
use super::network::{Network, Node};
use super::task::{Cast, OPENED};
use super::trace::Trace;
use super::weather::Weather;
use florin_sim::draw::{below, stream};

/// A scheduled change of the faults.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// A partition separates some processes from the rest.
    Part(Vec<Node>),
    /// The partition ends.
    Join,
    /// Stalls a process's messages until the given time.
    Clog(Node, u64),
    /// The coordinator's disk becomes full, or has space again.
    Full(bool),
    /// A ledger outage begins or ends.
    Away(bool),
    /// The coordinator's clock jumps by this many milliseconds.
    Jump(i64),
    /// Planted bug: the ledger will lose the following transactions.
    Forget,
    /// Everything heals.
    Heal,
}

/// A simulated event.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A message arrives.
    Arrives { from: Node, to: Node, id: u64, body: Body },
    /// The coordinator commits a batch.
    Turn { life: u64 },
    /// The coordinator continues a job.
    Job { life: u64, slot: u64 },
    /// A process's timer fires.
    Wakes { node: Node, ticket: u64 },
    /// A process restarts.
    Starts { node: Node, life: u64 },
    /// A transaction arrives after its sender's timeout.
    Late(Box<Transaction>),
    /// A scheduled change of the faults.
    Weather(Change),
}

#[derive(Debug)]
struct Due {
    at: u64,
    sequence: u64,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// The shared state of all processes.
#[derive(Debug)]
pub(super) struct World {
    /// Virtual time in milliseconds.
    pub now: u64,
    /// The task and its participants.
    pub cast: Arc<Cast>,
    /// The current fault parameters.
    pub weather: Weather,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// The connections between the processes.
    pub network: Network,
    /// Random generator for crashes and delays of processes.
    pub fate: ChaCha8Rng,
    /// The auditor.
    pub auditor: Auditor,
    /// The event log.
    pub trace: Trace,
    bank: Arc<Mutex<Bank>>,
    lines: ChaCha8Rng,
    queue: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    clocks: BTreeMap<Node, i64>,
    bank_clock: i64,
}

impl World {
    /// The state before the first event.
    #[must_use]
    pub(super) fn new(seed: u64, cast: Cast, weather: Weather, bug: Option<Bug>) -> Self {
        let cast = Arc::new(cast);
        let money = cast.money();
        let bank = Bank::new(
            cast.spec.market,
            Books::from_genesis(&money),
            stream(seed, "ledger", [0, 0]),
        );
        let mut clocks = BTreeMap::new();
        let rng = &mut stream(seed, "clocks", [0, 0]);
        let mut off = || {
            let skew = weather.skew;
            i64::try_from(below(rng, 2 * skew + 1)).unwrap_or(0) - i64::try_from(skew).unwrap_or(0)
        };
        let members = (0..cast.rows.len()).map(Node::Member);
        for node in [Node::Coordinator, Node::Buyer, Node::Provider].into_iter().chain(members) {
            clocks.insert(node, off());
        }
        let bank_clock = off();
        let mut world = Self {
            now: 0,
            auditor: Auditor::new(Arc::clone(&cast), &money),
            cast,
            weather,
            bug,
            network: Network::default(),
            fate: stream(seed, "fate", [0, 0]),
            trace: Trace::default(),
            bank: Arc::new(Mutex::new(bank)),
            lines: stream(seed, "lines", [0, 0]),
            queue: BinaryHeap::new(),
            sequence: 0,
            clocks,
            bank_clock,
        };
        world.set_ledger_line();
        world
    }

    /// Schedules an event after a delay.
    pub(super) fn after(&mut self, delay: u64, what: What) {
        let (at, sequence) = (self.now + delay, self.sequence);
        self.sequence += 1;
        self.queue.push(Reverse(Due { at, sequence, what }));
    }

    /// Removes the next event from the queue and advances virtual time to it.
    pub(super) fn next(&mut self) -> Option<What> {
        let Reverse(due) = self.queue.pop()?;
        self.now = self.now.max(due.at);
        let at = self.ledger_clock();
        self.bank().set_clock(at);
        Some(due.what)
    }

    /// Sends a message, which arrives once, twice or never.
    pub(super) fn send(&mut self, from: Node, to: Node, id: u64, body: &Body) {
        let arrivals = self.network.send(self.now, (from, to), &self.weather, &mut self.lines);
        for at in arrivals {
            let what = What::Arrives { from, to, id, body: body.clone() };
            self.after(at.saturating_sub(self.now), what);
        }
    }

    /// The time on a process's clock.
    #[must_use]
    pub(super) fn clock(&self, node: Node) -> Timestamp {
        let off = self.clocks.get(&node).copied().unwrap_or_default();
        Timestamp((OPENED + self.now).saturating_add_signed(off))
    }

    fn ledger_clock(&self) -> Timestamp {
        Timestamp((OPENED + self.now).saturating_add_signed(self.bank_clock))
    }

    /// Moves a process's clock within the maximum clock offset.
    pub(super) fn jump(&mut self, node: Node, by: i64) {
        let most = i64::try_from(self.weather.skew.max(1_000)).unwrap_or(i64::MAX);
        if let Some(off) = self.clocks.get_mut(&node) {
            *off = (*off + by).clamp(-most, most);
        }
    }

    /// The ledger.
    pub(super) fn bank(&self) -> MutexGuard<'_, Bank> {
        // One thread simulates one seed, so a poisoned lock leaves no inconsistent state.
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process's connection to the ledger.
    #[must_use]
    pub(super) fn way(&self, node: Node) -> Way {
        Way::new(Arc::clone(&self.bank), node)
    }

    /// Whether the ledger has closed the task.
    pub(super) fn is_closed(&self) -> bool {
        let task = self.bank().state().task(self.cast.spec.id());
        task.is_some_and(|task| task.closed)
    }

    /// Applies the current faults to the connections to the ledger.
    pub(super) fn set_ledger_line(&mut self) {
        let weather = &self.weather;
        let faults = LineFaults {
            unheard: weather.ledger_unheard,
            unanswered: weather.ledger_unanswered,
            late: weather.ledger_late,
            twice: weather.duplicates / 4,
        };
        let apart = self.network.apart().clone();
        let mut bank = self.bank();
        bank.set_faults(faults);
        bank.set_cut(apart);
    }

    /// Schedules the arrival of delayed transactions.
    pub(super) fn send_late(&mut self) {
        let late = std::mem::take(&mut self.bank().late);
        for transaction in late {
            let delay = 50 + below(&mut self.lines, 6_000);
            self.after(delay, What::Late(Box::new(transaction)));
        }
    }

    /// The auditor processes new ledger transactions and compares its own books with the ledger's.
    pub(super) fn audit_ledger(&mut self) {
        let bank = self.bank.lock().unwrap_or_else(PoisonError::into_inner);
        self.auditor.ledger(&bank);
    }

    /// Appends a line to the trace.
    pub(super) fn tell(&mut self, who: Node, what: Arguments<'_>) {
        self.trace.tell(self.now, &who.to_string(), what);
    }

    /// True with a probability of `thousandths` / 1,000.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && below(&mut self.fate, 1_000) < thousandths
    }

    /// A random time below `below_ms` milliseconds.
    pub(super) fn some(&mut self, below_ms: u64) -> u64 {
        below(&mut self.fate, below_ms.max(1))
    }
}
