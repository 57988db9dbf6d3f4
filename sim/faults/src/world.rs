//! What all processes of a seed share: virtual time, the queue of what happens next, network, ledger, clocks, trace and
//! auditor.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Arguments;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_ledger::Transaction;
use florin_ledger::state::State as Books;
use florin_protocol::Tick;
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

/// A change of the weather.
#[derive(Clone, Debug)]
pub(super) enum Change {
    /// Some processes are cut off from the rest.
    Part(Vec<Node>),
    /// They are not any more.
    Join,
    /// A process' messages wait until then.
    Clog(Node, u64),
    /// The coordinator's disk is full, or has room again.
    Full(bool),
    /// The ledger is away, or back.
    Away(bool),
    /// The coordinator's clock jumps by so much.
    Jump(i64),
    /// Planted: the ledger will forget what comes next.
    Forget,
    /// Everything heals.
    Heal,
}

/// Something that happens.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A message arrives.
    Arrives { from: Node, to: Node, id: u64, body: Body },
    /// The coordinator takes a turn.
    Turn { life: u64 },
    /// The coordinator goes on with a job.
    Job { life: u64, slot: u64 },
    /// A process looks what there is to do.
    Wakes { node: Node, ticket: u64 },
    /// A process is started again.
    Starts { node: Node, life: u64 },
    /// A transaction arrives that nobody waits for any more.
    Late(Box<Transaction>),
    /// The weather changes.
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

/// What all processes share.
#[derive(Debug)]
pub(super) struct World {
    /// Virtual milliseconds.
    pub now: u64,
    /// Who and what it is about.
    pub cast: Arc<Cast>,
    /// What goes wrong now.
    pub weather: Weather,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// The lines between processes.
    pub network: Network,
    /// Decides what becomes of processes.
    pub fate: ChaCha8Rng,
    /// Watches.
    pub auditor: Auditor,
    /// Remembers.
    pub trace: Trace,
    bank: Arc<Mutex<Bank>>,
    lines: ChaCha8Rng,
    queue: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    clocks: BTreeMap<Node, i64>,
    bank_clock: i64,
}

impl World {
    /// Before anything happened.
    #[must_use]
    pub(super) fn new(seed: u64, cast: Cast, weather: Weather, bug: Option<Bug>) -> Self {
        let cast = Arc::new(cast);
        let money = cast.money();
        let bank =
            Bank::new(cast.spec.market, Books::begin(&money), stream(seed, "ledger", [0, 0]));
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

    /// Lets something happen later.
    pub(super) fn after(&mut self, delay: u64, what: What) {
        let (at, sequence) = (self.now + delay, self.sequence);
        self.sequence += 1;
        self.queue.push(Reverse(Due { at, sequence, what }));
    }

    /// What happens next; time has passed until then.
    pub(super) fn next(&mut self) -> Option<What> {
        let Reverse(due) = self.queue.pop()?;
        self.now = self.now.max(due.at);
        let at = self.ledger_clock();
        self.bank().set_clock(at);
        Some(due.what)
    }

    /// Sends a message: it arrives once, twice or never.
    pub(super) fn send(&mut self, from: Node, to: Node, id: u64, body: &Body) {
        let arrivals = self.network.send(self.now, (from, to), &self.weather, &mut self.lines);
        for at in arrivals {
            let what = What::Arrives { from, to, id, body: body.clone() };
            self.after(at.saturating_sub(self.now), what);
        }
    }

    /// What a process' clock shows.
    #[must_use]
    pub(super) fn clock(&self, node: Node) -> Tick {
        let off = self.clocks.get(&node).copied().unwrap_or_default();
        Tick((OPENED + self.now).saturating_add_signed(off))
    }

    fn ledger_clock(&self) -> Tick {
        Tick((OPENED + self.now).saturating_add_signed(self.bank_clock))
    }

    /// Moves a process' clock, and keeps it within what clocks are off by.
    pub(super) fn jump(&mut self, node: Node, by: i64) {
        let most = i64::try_from(self.weather.skew.max(1_000)).unwrap_or(i64::MAX);
        if let Some(off) = self.clocks.get_mut(&node) {
            *off = (*off + by).clamp(-most, most);
        }
    }

    /// The ledger.
    pub(super) fn bank(&self) -> MutexGuard<'_, Bank> {
        // One thread plays one seed: nobody else can have left it in the middle of something.
        self.bank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process' way to the ledger.
    #[must_use]
    pub(super) fn way(&self, node: Node) -> Way {
        Way::new(Arc::clone(&self.bank), node)
    }

    /// Whether the ledger has closed the task.
    pub(super) fn is_closed(&self) -> bool {
        let task = self.bank().state().task(self.cast.spec.id());
        task.is_some_and(|task| task.closed)
    }

    /// Makes the line to the ledger as good as the weather.
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

    /// Transactions on their way arrive some time later.
    pub(super) fn send_late(&mut self) {
        let late = std::mem::take(&mut self.bank().late);
        for transaction in late {
            let delay = 50 + below(&mut self.lines, 6_000);
            self.after(delay, What::Late(Box::new(transaction)));
        }
    }

    /// The auditor reads what the ledger did since, and holds its own books against the ledger's.
    pub(super) fn audit_ledger(&mut self) {
        let bank = self.bank.lock().unwrap_or_else(PoisonError::into_inner);
        self.auditor.ledger(&bank);
    }

    /// Writes down what happened.
    pub(super) fn tell(&mut self, who: Node, what: Arguments<'_>) {
        self.trace.tell(self.now, &who.to_string(), what);
    }

    /// Whether something of so many thousandths happens.
    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && below(&mut self.fate, 1_000) < thousandths
    }

    /// A time below so many milliseconds.
    pub(super) fn some(&mut self, below_ms: u64) -> u64 {
        below(&mut self.fate, below_ms.max(1))
    }
}
