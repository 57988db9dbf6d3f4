//! Deterministic simulation testing of a whole market: tasks under virtual time with lost messages,
//! crashing processes and failing disks, all drawn from a seed, and an auditor that checks every
//! result independently.
//!
//! The following parts are real: the coordinator's commit batches
//! ([`florin_coordinator::host::Core`]: engine, journal, snapshots, the order of fsync, response
//! and effect), its ledger jobs, the ledger's rules and the client side of its protocol, a
//! participant's decisions and its financial transactions, training, valuation and pay. The
//! network, the disk, the clocks, and the small processes around the real parts are simulated.
//!
//! Until a time drawn from the seed, the faults of its [`Weather`] occur. Then everything heals,
//! and all work in progress must complete. [`Violation`]s are the auditor's findings. One seed
//! gives the same [`Trace`] on any machine and any number of threads.

mod auditor;
mod bugs;
mod buyer;
mod client;
mod coordinator;
mod disk;
mod ledger;
mod member;
mod message;
mod network;
mod provider;
mod storm;
mod task;
mod trace;
mod weather;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};

use florin_protocol::{Digest, blob_digest};

pub use auditor::Violation;
pub use bugs::Bug;
pub use task::CastError;
pub use trace::Trace;
pub use weather::Weather;

use buyer::Buyer;
use coordinator::Coordinator;
use member::Member;
use message::Body;
use network::Node;
use provider::Provider;
use task::Cast;
use world::{What, World};

/// Default number of rounds of a task.
pub const ROUNDS: u32 = 3;
/// Time limit after healing, in virtual milliseconds: the longest task and some retries.
const PATIENCE_MS: u64 = 1_300_000;
/// Maximum number of events of a seed: ten times the longest observed.
const EVENTS_MAX: u64 = 400_000;

/// Parameters of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Number of rounds of each seed's task.
    pub rounds: u32,
    /// The planted bug, if any.
    pub bug: Option<Bug>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { rounds: ROUNDS, bug: None }
    }
}

/// The outcome of one seed.
#[derive(Clone, Debug)]
pub struct Played {
    /// The seed.
    pub seed: u64,
    /// The injected faults.
    pub weather: Weather,
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
    pub trace: Trace,
}

impl Played {
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
/// [`CastError`] if the task cannot be created.
pub fn play(seed: u64, rules: Rules) -> Result<Played, CastError> {
    let cast = Cast::of(seed, rules.rounds)?;
    let mut stage = Stage::set(seed, cast, rules.bug);
    stage.run();
    stage.finish();
    Ok(stage.played(seed))
}

/// Simulates many seeds on up to `threads` threads and calls `watch` with the number of finished
/// seeds. The results are in the order of the seeds; those without a violation have no trace.
///
/// # Errors
/// [`CastError`].
pub fn play_all(
    seeds: std::ops::Range<u64>,
    rules: Rules,
    threads: usize,
    watch: &(dyn Fn(usize) + Sync),
) -> Result<Vec<(Played, Digest)>, CastError> {
    let done = AtomicUsize::new(0);
    let one = |(): &mut (), seed: u64| {
        let played = play(seed, rules).map(|mut played| {
            let digest = played.digest();
            if played.violations.is_empty() {
                played.trace = Trace::default();
            }
            (played, digest)
        });
        watch(done.fetch_add(1, Ordering::Relaxed) + 1);
        played
    };
    florin_sim::parallel::each(threads, seeds.collect(), || (), one).into_iter().collect()
}

/// All processes of a simulation.
struct Stage {
    world: World,
    coordinator: Coordinator,
    buyer: Buyer,
    provider: Option<Provider>,
    members: Vec<Member>,
    heals_at: u64,
    weather: Weather,
    events: u64,
}

impl Stage {
    fn set(seed: u64, cast: Cast, bug: Option<Bug>) -> Self {
        let weather = storm::of(seed, bug);
        let rows = cast.rows.clone();
        let provider = cast.provider.then(Provider::new);
        let mut world = World::new(seed, cast, weather.clone(), bug);
        let mut coordinator = Coordinator::new(seed, &world);
        coordinator.machine().set_faults(weather.disk);
        let mut members: Vec<Member> =
            rows.into_iter().enumerate().map(|(n, rows)| Member::new(n, rows)).collect();
        let mut buyer = Buyer::new();
        let mut provider = provider;
        storm::plan(&mut world, members.len());
        coordinator.start(&mut world, 0);
        buyer.begin(&mut world);
        members.iter_mut().for_each(|member| member.begin(&mut world));
        if let Some(provider) = &mut provider {
            provider.begin(&mut world);
        }
        let heals_at = weather.heals_at;
        Self { world, coordinator, buyer, provider, members, heals_at, weather, events: 0 }
    }

    /// Processes events until all processes are finished, a violation is found, or a limit is
    /// reached.
    fn run(&mut self) {
        while self.world.auditor.violations().is_empty() && !self.is_finished() {
            if self.world.now > self.heals_at + PATIENCE_MS || self.events > EVENTS_MAX {
                break;
            }
            let Some(what) = self.world.next() else { break };
            self.events += 1;
            self.happens(what);
            self.world.audit_ledger();
        }
    }

    /// If the coordinator crashed after the last response that another process needs, the
    /// simulation waits for its restart.
    fn is_finished(&self) -> bool {
        self.coordinator.core().is_some()
            && self.members.iter().all(Member::is_finished)
            && self.provider.as_ref().is_none_or(Provider::is_finished)
    }

    fn happens(&mut self, what: What) {
        let world = &mut self.world;
        match what {
            What::Arrives { from, to, id, body } => self.arrives(from, to, id, body),
            What::Turn { life } => self.coordinator.turn(world, life),
            What::Job { life, slot } => self.coordinator.job(world, life, slot),
            What::Wakes { node, ticket } => match node {
                Node::Coordinator => {}
                Node::Buyer => self.buyer.wakes(world, ticket),
                Node::Provider => {
                    if let Some(provider) = &mut self.provider {
                        provider.wakes(world, ticket);
                    }
                }
                Node::Member(n) => self.members[n].wakes(world, ticket),
            },
            What::Starts { node, life } => match node {
                Node::Coordinator => self.coordinator.start(world, life),
                Node::Buyer => {}
                Node::Provider => {
                    if let Some(provider) = &mut self.provider {
                        provider.start(world, life);
                    }
                }
                Node::Member(n) => self.members[n].start(world, life),
            },
            What::Late(transaction) => world.bank().arrives_late(&transaction),
            What::Weather(change) => {
                storm::change(world, self.coordinator.machine(), change);
            }
        }
    }

    fn arrives(&mut self, from: Node, to: Node, id: u64, body: Body) {
        let world = &mut self.world;
        match (to, body) {
            (Node::Coordinator, Body::Ask(ask)) => {
                if !matches!(ask, message::Ask::Look | message::Ask::Work) {
                    world.tell(from, format_args!("{} {id} arrives", ask.name()));
                }
                self.coordinator.hear(world, from, id, ask);
            }
            (Node::Buyer, Body::Reply(reply)) => self.buyer.hear(world, id, reply),
            (Node::Provider, Body::Reply(reply)) => {
                if let Some(provider) = &mut self.provider {
                    provider.hear(world, id, reply);
                }
            }
            (Node::Member(n), Body::Reply(reply)) => self.members[n].hear(world, id, reply),
            // No other process sends requests or receives responses.
            _ => {}
        }
    }

    /// Runs the auditor's final checks.
    fn finish(&mut self) {
        if !self.world.auditor.violations().is_empty() {
            return;
        }
        let all = self.coordinator.all_rounds(&mut self.world);
        let members = self.members.iter().enumerate().filter(|(_, member)| !member.is_finished());
        let mut unfinished: Vec<Node> = members.map(|(n, _)| Node::Member(n)).collect();
        if self.provider.as_ref().is_some_and(|provider| !provider.is_finished()) {
            unfinished.push(Node::Provider);
        }
        self.world.auditor.finish(&all, &unfinished);
        self.coordinator.replay_whole(&mut self.world);
    }

    fn played(self, seed: u64) -> Played {
        let auditor = &self.world.auditor;
        Played {
            seed,
            weather: self.weather,
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
