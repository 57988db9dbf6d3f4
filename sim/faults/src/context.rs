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
use super::fault_config::FaultConfig;
use super::ledger::{LedgerLink, LinkFaults, SimLedger};
use super::message::Body;
use super::network::{Network, ProcessId};
use super::setup::{MarketSetup, OPENED};
use super::trace::EventLog;
use florin_sim::random::{stream, uniform_below};

/// A scheduled change of the faults.
#[derive(Clone, Debug)]
pub(super) enum FaultChange {
    /// A partition separates some processes from the rest.
    StartPartition(Vec<ProcessId>),
    /// The partition ends.
    EndPartition,
    /// Stalls a process's messages until the given time.
    Stall(ProcessId, u64),
    /// The coordinator's disk becomes full, or has space again.
    DiskFull(bool),
    /// A ledger outage begins or ends.
    LedgerOutage(bool),
    /// The coordinator's clock jumps by this many milliseconds.
    ClockJump(i64),
    /// Planted bug: the ledger will lose the following transactions.
    PlantLedgerLoss,
    /// Everything heals.
    Heal,
}

/// A simulated event.
#[derive(Clone, Debug)]
pub(super) enum SimEvent {
    /// A message arrives.
    Message { from: ProcessId, to: ProcessId, id: u64, body: Body },
    /// The coordinator commits a batch.
    CommitBatch { life: u64 },
    /// The coordinator continues a job.
    Job { life: u64, slot: u64 },
    /// A process's timer fires.
    Timer { node: ProcessId, ticket: u64 },
    /// A process restarts.
    Restart { node: ProcessId, life: u64 },
    /// A transaction arrives after its sender's timeout.
    LateTransaction(Box<Transaction>),
    /// A scheduled change of the faults.
    Fault(FaultChange),
}

#[derive(Debug)]
struct ScheduledEvent {
    at: u64,
    sequence: u64,
    what: SimEvent,
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for ScheduledEvent {}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// The shared state of all processes.
#[derive(Debug)]
pub(super) struct SimContext {
    /// Virtual time in milliseconds.
    pub now: u64,
    /// The task and its participants.
    pub setup: Arc<MarketSetup>,
    /// The current fault parameters.
    pub faults: FaultConfig,
    /// The planted bug.
    pub bug: Option<Bug>,
    /// The connections between the processes.
    pub network: Network,
    /// Random generator for crashes and delays of processes.
    pub process_rng: ChaCha8Rng,
    /// The auditor.
    pub auditor: Auditor,
    /// The event log.
    pub trace: EventLog,
    ledger: Arc<Mutex<SimLedger>>,
    network_rng: ChaCha8Rng,
    queue: BinaryHeap<Reverse<ScheduledEvent>>,
    sequence: u64,
    clock_offsets: BTreeMap<ProcessId, i64>,
    ledger_clock_offset: i64,
}

impl SimContext {
    /// The state before the first event.
    #[must_use]
    pub(super) fn new(seed: u64, cast: MarketSetup, faults: FaultConfig, bug: Option<Bug>) -> Self {
        let cast = Arc::new(cast);
        let money = cast.money();
        let mut bank = SimLedger::new(
            cast.spec.market,
            Books::from_genesis(&money),
            stream(seed, "ledger", [0, 0]),
        );
        if bug == Some(Bug::BondReturnedEarly) {
            bank.plant_early_withdrawals();
        }
        let mut clocks = BTreeMap::new();
        let rng = &mut stream(seed, "clocks", [0, 0]);
        let mut off = || {
            let skew = faults.skew;
            i64::try_from(uniform_below(rng, 2 * skew + 1)).unwrap_or(0)
                - i64::try_from(skew).unwrap_or(0)
        };
        let members = (0..cast.rows.len()).map(ProcessId::Member);
        for node in [ProcessId::Coordinator, ProcessId::Buyer, ProcessId::Provider]
            .into_iter()
            .chain(members)
        {
            clocks.insert(node, off());
        }
        let bank_clock = off();
        let mut world = Self {
            now: 0,
            auditor: Auditor::new(Arc::clone(&cast), &money),
            setup: cast,
            faults,
            bug,
            network: Network::default(),
            process_rng: stream(seed, "fate", [0, 0]),
            trace: EventLog::default(),
            ledger: Arc::new(Mutex::new(bank)),
            network_rng: stream(seed, "lines", [0, 0]),
            queue: BinaryHeap::new(),
            sequence: 0,
            clock_offsets: clocks,
            ledger_clock_offset: bank_clock,
        };
        world.apply_ledger_faults();
        world
    }

    /// Schedules an event after a delay.
    pub(super) fn schedule(&mut self, delay: u64, what: SimEvent) {
        let (at, sequence) = (self.now + delay, self.sequence);
        self.sequence += 1;
        self.queue.push(Reverse(ScheduledEvent { at, sequence, what }));
    }

    /// Removes the next event from the queue and advances virtual time to it.
    pub(super) fn next_event(&mut self) -> Option<SimEvent> {
        let Reverse(due) = self.queue.pop()?;
        self.now = self.now.max(due.at);
        let at = self.ledger_clock();
        self.ledger().set_clock(at);
        Some(due.what)
    }

    /// Sends a message, which arrives once, twice or never.
    pub(super) fn send(&mut self, from: ProcessId, to: ProcessId, id: u64, body: &Body) {
        let arrivals = self.network.send(self.now, (from, to), &self.faults, &mut self.network_rng);
        for at in arrivals {
            let what = SimEvent::Message { from, to, id, body: body.clone() };
            self.schedule(at.saturating_sub(self.now), what);
        }
    }

    /// The time on a process's clock.
    #[must_use]
    pub(super) fn clock(&self, node: ProcessId) -> Timestamp {
        let off = self.clock_offsets.get(&node).copied().unwrap_or_default();
        Timestamp((OPENED + self.now).saturating_add_signed(off))
    }

    fn ledger_clock(&self) -> Timestamp {
        Timestamp((OPENED + self.now).saturating_add_signed(self.ledger_clock_offset))
    }

    /// Moves a process's clock within the maximum clock offset.
    pub(super) fn move_clock(&mut self, node: ProcessId, by: i64) {
        let most = i64::try_from(self.faults.skew.max(1_000)).unwrap_or(i64::MAX);
        if let Some(off) = self.clock_offsets.get_mut(&node) {
            *off = (*off + by).clamp(-most, most);
        }
    }

    /// The ledger.
    pub(super) fn ledger(&self) -> MutexGuard<'_, SimLedger> {
        // One thread simulates one seed, so a poisoned lock leaves no inconsistent state.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process's connection to the ledger.
    #[must_use]
    pub(super) fn ledger_link(&self, node: ProcessId) -> LedgerLink {
        LedgerLink::new(Arc::clone(&self.ledger), node)
    }

    /// Whether the ledger has closed the task.
    pub(super) fn is_closed(&self) -> bool {
        let task = self.ledger().state().task(self.setup.spec.id());
        task.is_some_and(|task| task.closed)
    }

    /// Applies the current faults to the connections to the ledger.
    pub(super) fn apply_ledger_faults(&mut self) {
        let faults = &self.faults;
        let faults = LinkFaults {
            request_loss: faults.ledger_request_loss,
            response_loss: faults.ledger_response_loss,
            late: faults.ledger_late,
            duplicates: faults.duplicates / 4,
        };
        let apart = self.network.partition().clone();
        let mut bank = self.ledger();
        bank.set_faults(faults);
        bank.set_unreachable_from(apart);
    }

    /// Schedules the arrival of delayed transactions.
    pub(super) fn schedule_late_transactions(&mut self) {
        let late = std::mem::take(&mut self.ledger().late);
        for transaction in late {
            let delay = 50 + uniform_below(&mut self.network_rng, 6_000);
            self.schedule(delay, SimEvent::LateTransaction(Box::new(transaction)));
        }
    }

    /// The auditor processes new ledger transactions and compares its own books with the ledger's.
    pub(super) fn audit_ledger(&mut self) {
        let bank = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        self.auditor.check_ledger(&bank);
    }

    /// Appends a line to the trace.
    pub(super) fn log(&mut self, who: ProcessId, what: Arguments<'_>) {
        self.trace.log(self.now, &who.to_string(), what);
    }

    /// True with a probability of `thousandths` / 1,000.
    pub(super) fn random_bool(&mut self, thousandths: u64) -> bool {
        thousandths > 0 && uniform_below(&mut self.process_rng, 1_000) < thousandths
    }

    /// A random time below `below_ms` milliseconds.
    pub(super) fn random_ms(&mut self, below_ms: u64) -> u64 {
        uniform_below(&mut self.process_rng, below_ms.max(1))
    }
}
