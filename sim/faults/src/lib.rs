//! Deterministic simulation testing of a whole market: tasks under virtual time with lost messages,
//! crashing processes and failing disks, all drawn from a seed, and an auditor that checks every
//! result independently.
//!
//! The following parts are real: the coordinator's commit batches
//! ([`florin_coordinator::host::JournaledEngine`]: engine, journal, snapshots, the order of fsync,
//! response and effect), its ledger jobs, the ledger's rules and the client side of its protocol, a
//! participant's decisions and its financial transactions, training, valuation and pay. The
//! network, the disk, the clocks, and the small processes around the real parts are simulated.
//!
//! Until a time drawn from the seed, the faults of its [`FaultConfig`] occur. Then everything heals,
//! and all work in progress must complete. [`Violation`]s are the auditor's findings. One seed
//! gives the same [`EventLog`] on any machine and any number of threads.

mod auditor;
mod bugs;
mod buyer;
mod client;
mod context;
mod coordinator;
mod disk;
mod fault_config;
mod fault_schedule;
mod ledger;
mod member;
mod message;
mod network;
mod provider;
mod setup;
mod trace;

use std::sync::atomic::{AtomicUsize, Ordering};

use florin_coordinator::host::JournaledEngine;
use florin_learning::parallel_map;
use florin_protocol::{Digest, blob_digest};

pub use auditor::Violation;
pub use bugs::Bug;
pub use fault_config::FaultConfig;
pub use setup::SetupError;
pub use trace::EventLog;

use buyer::Buyer;
use context::{SimContext, SimEvent};
use coordinator::SimCoordinator;
use member::Member;
use message::Body;
use network::ProcessId;
use provider::Provider;
use setup::MarketSetup;

/// Default number of rounds of a task.
pub const ROUNDS: u32 = 3;
/// Time limit after healing, in virtual milliseconds: the longest task and some retries.
const HEALING_TIMEOUT_MS: u64 = 1_300_000;
/// Maximum number of events of a seed: ten times the longest observed.
const EVENTS_MAX: u64 = 400_000;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultOptions {
    /// Number of rounds of each seed's task.
    pub rounds: u32,
    /// The planted bug, if any.
    pub bug: Option<Bug>,
}

impl Default for FaultOptions {
    fn default() -> Self {
        Self { rounds: ROUNDS, bug: None }
    }
}

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct FaultOutcome {
    /// The seed.
    pub seed: u64,
    /// The injected faults.
    pub faults: FaultConfig,
    /// Violations of the auditor's rules; the simulation stops after the first.
    pub violations: Vec<Violation>,
    /// Number of rounds with a report.
    pub rounds: u32,
    /// Number of settled rounds.
    pub settled: u32,
    /// Number of issued receipts.
    pub receipts: u32,
    /// Number of crashes of the coordinator.
    pub crashes: u64,
    /// Number of events.
    pub events: u64,
    /// Duration in virtual milliseconds.
    pub took_ms: u64,
    /// The event log.
    pub trace: EventLog,
}

impl FaultOutcome {
    /// The digest of the event log and the violations.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let found = format!("{:?}", self.violations);
        blob_digest(format!("{} {found} {}", self.trace.digest(), self.events).as_bytes())
    }
}

/// Simulates one seed.
///
/// # Errors
/// [`SetupError`] if the task cannot be created.
pub fn simulate(seed: u64, rules: FaultOptions) -> Result<FaultOutcome, SetupError> {
    let cast = MarketSetup::draw(seed, rules.rounds)?;
    let mut stage = FaultSimulation::new(seed, cast, rules.bug);
    stage.run();
    stage.final_checks();
    Ok(stage.into_outcome(seed))
}

/// Simulates many seeds on up to `threads` threads and calls `watch` with the number of finished
/// seeds. The results are in the order of the seeds; those without a violation have no trace.
///
/// # Errors
/// [`SetupError`].
pub fn simulate_all(
    seeds: std::ops::Range<u64>,
    rules: FaultOptions,
    threads: usize,
    watch: &(dyn Fn(usize) + Sync),
) -> Result<Vec<(FaultOutcome, Digest)>, SetupError> {
    let done = AtomicUsize::new(0);
    let one = |seed: u64| {
        let played = simulate(seed, rules).map(|mut played| {
            let digest = played.digest();
            if played.violations.is_empty() {
                played.trace = EventLog::default();
            }
            (played, digest)
        });
        watch(done.fetch_add(1, Ordering::Relaxed) + 1);
        played
    };
    parallel_map(threads, seeds.collect(), one).into_iter().collect()
}

/// All processes of a simulation.
struct FaultSimulation {
    world: SimContext,
    coordinator: SimCoordinator,
    buyer: Buyer,
    provider: Option<Provider>,
    members: Vec<Member>,
    heals_at: u64,
    faults: FaultConfig,
    events: u64,
}

impl FaultSimulation {
    fn new(seed: u64, cast: MarketSetup, bug: Option<Bug>) -> Self {
        let faults = fault_schedule::fault_config(seed, bug);
        let rows = cast.rows.clone();
        let provider = cast.provider.then(Provider::new);
        let mut world = SimContext::new(seed, cast, faults.clone(), bug);
        let mut coordinator = SimCoordinator::new(seed, &world);
        coordinator.disk().set_faults(faults.disk);
        let mut members: Vec<Member> =
            rows.into_iter().enumerate().map(|(n, rows)| Member::new(n, rows)).collect();
        let mut buyer = Buyer::new();
        let mut provider = provider;
        fault_schedule::schedule_faults(&mut world, members.len());
        coordinator.start(&mut world, 0);
        buyer.schedule_first_step(&mut world);
        members.iter_mut().for_each(|member| member.schedule_first_step(&mut world));
        if let Some(provider) = &mut provider {
            provider.schedule_first_step(&mut world);
        }
        let heals_at = faults.heals_at;
        Self { world, coordinator, buyer, provider, members, heals_at, faults, events: 0 }
    }

    /// Processes events until all processes are finished, a violation is found, or a limit is
    /// reached.
    fn run(&mut self) {
        while self.world.auditor.violations().is_empty() && !self.is_finished() {
            if self.world.now > self.heals_at + HEALING_TIMEOUT_MS || self.events > EVENTS_MAX {
                break;
            }
            let Some(what) = self.world.next_event() else { break };
            self.events += 1;
            self.handle(what);
            self.world.audit_ledger();
        }
    }

    /// If the coordinator crashed after the last response that another process needs, the
    /// simulation waits for its restart, and until it has its bond back.
    fn is_finished(&self) -> bool {
        let has_bond_back = |core: &JournaledEngine| {
            core.engine().state().tasks.values().all(|task| !task.awaits_bond)
        };
        self.coordinator.core().is_some_and(has_bond_back)
            && self.members.iter().all(Member::is_finished)
            && self.provider.as_ref().is_none_or(Provider::is_finished)
    }

    fn handle(&mut self, what: SimEvent) {
        let world = &mut self.world;
        match what {
            SimEvent::Message { from, to, id, body } => self.deliver(from, to, id, body),
            SimEvent::CommitBatch { life } => self.coordinator.commit_batch(world, life),
            SimEvent::Job { life, slot } => self.coordinator.job(world, life, slot),
            SimEvent::Timer { node, ticket } => match node {
                ProcessId::Coordinator => {}
                ProcessId::Buyer => self.buyer.on_timer(world, ticket),
                ProcessId::Provider => {
                    if let Some(provider) = &mut self.provider {
                        provider.on_timer(world, ticket);
                    }
                }
                ProcessId::Member(n) => self.members[n].on_timer(world, ticket),
            },
            SimEvent::Restart { node, life } => match node {
                ProcessId::Coordinator => self.coordinator.start(world, life),
                ProcessId::Buyer => {}
                ProcessId::Provider => {
                    if let Some(provider) = &mut self.provider {
                        provider.start(world, life);
                    }
                }
                ProcessId::Member(n) => self.members[n].start(world, life),
            },
            SimEvent::LateTransaction(transaction) => world.ledger().deliver_late(&transaction),
            SimEvent::Fault(change) => {
                fault_schedule::apply_change(world, self.coordinator.disk(), change);
            }
        }
    }

    fn deliver(&mut self, from: ProcessId, to: ProcessId, id: u64, body: Body) {
        let world = &mut self.world;
        match (to, body) {
            (ProcessId::Coordinator, Body::Request(ask)) => {
                if !matches!(
                    ask,
                    message::CoordinatorRequest::View | message::CoordinatorRequest::OpenOrder
                ) {
                    world.log(from, format_args!("{} {id} arrives", ask.name()));
                }
                self.coordinator.on_request(world, from, id, ask);
            }
            (ProcessId::Buyer, Body::Reply(reply)) => self.buyer.on_reply(world, id, reply),
            (ProcessId::Provider, Body::Reply(reply)) => {
                if let Some(provider) = &mut self.provider {
                    provider.on_reply(world, id, reply);
                }
            }
            (ProcessId::Member(n), Body::Reply(reply)) => {
                self.members[n].on_reply(world, id, reply)
            }
            // No other process sends requests or receives responses.
            _ => {}
        }
    }

    /// Runs the auditor's final checks.
    fn final_checks(&mut self) {
        if !self.world.auditor.violations().is_empty() {
            return;
        }
        let all = self.coordinator.all_rounds(&mut self.world);
        let members = self.members.iter().enumerate().filter(|(_, member)| !member.is_finished());
        let mut unfinished: Vec<ProcessId> = members.map(|(n, _)| ProcessId::Member(n)).collect();
        if self.provider.as_ref().is_some_and(|provider| !provider.is_finished()) {
            unfinished.push(ProcessId::Provider);
        }
        self.world.auditor.final_checks(&all, &unfinished);
        self.coordinator.check_full_replay(&mut self.world);
    }

    fn into_outcome(self, seed: u64) -> FaultOutcome {
        let auditor = &self.world.auditor;
        FaultOutcome {
            seed,
            faults: self.faults,
            violations: auditor.violations().to_vec(),
            rounds: auditor.rounds(),
            settled: auditor.settlements(),
            receipts: auditor.receipts(),
            crashes: self.coordinator.crashes,
            events: self.events,
            took_ms: self.world.now,
            trace: self.world.trace,
        }
    }
}
