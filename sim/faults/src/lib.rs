//! Faults: whole tasks under virtual time, in which messages get lost, processes die and disks fail, by the seed; and an
//! auditor that believes nobody.
//!
//! What is real: the coordinator's turns ([`florin_coordinator::host::Core`]: engine, journal, snapshots, the order of
//! fsync, answer and effect), its jobs on the ledger, the ledger's rules and the client half of its line, a participant's
//! decisions and its dealings with money, training, valuation and pay. What is imitated: the network, the disk, the
//! clocks, and the small processes in which the real parts live.
//!
//! Until a moment of the seed everything goes wrong that its [`Weather`] says; then all heals, and what was begun must come
//! to its end: [`Violation`]s are what the auditor saw that cannot be. The same seed gives the same [`Trace`], on any
//! machine and any number of threads.

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

/// Rounds of a task, unless said otherwise.
pub const ROUNDS: u32 = 3;
/// How long everything has after healing, in virtual milliseconds: the longest task and some retries.
const PATIENCE_MS: u64 = 1_300_000;
/// Events after which a seed is given up: ten times what the longest needs.
const EVENTS_MAX: u64 = 400_000;

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Rounds of each seed's task.
    pub rounds: u32,
    /// A bug to be found.
    pub bug: Option<Bug>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { rounds: ROUNDS, bug: None }
    }
}

/// What one seed came to.
#[derive(Clone, Debug)]
pub struct Played {
    /// The seed.
    pub seed: u64,
    /// What went wrong, as planned.
    pub weather: Weather,
    /// What went wrong that must not; nothing is played on after the first.
    pub violations: Vec<Violation>,
    /// Rounds with a report.
    pub rounds: u32,
    /// Of them settled.
    pub settled: u32,
    /// Receipts that were given.
    pub receipts: u32,
    /// Lives that the coordinator lost.
    pub crashes: u64,
    /// Events.
    pub events: u64,
    /// Virtual milliseconds.
    pub took_ms: u64,
    /// Everything that happened.
    pub trace: Trace,
}

impl Played {
    /// The digest of everything that happened and what came of it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let found = format!("{:?}", self.violations);
        blob_digest(format!("{} {found} {}", self.trace.digest(), self.events).as_bytes())
    }
}

/// Plays one seed.
///
/// # Errors
/// [`CastError`] where there is nothing to play.
pub fn play(seed: u64, rules: Rules) -> Result<Played, CastError> {
    let cast = Cast::of(seed, rules.rounds)?;
    let mut stage = Stage::set(seed, cast, rules.bug);
    stage.run();
    stage.finish();
    Ok(stage.played(seed))
}

/// Plays many seeds on so many threads and hands each to `seen` in no order; what comes back is in the order of seeds,
/// without traces where nothing was found.
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

/// All processes of a seed.
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

    /// One event after the other, until everybody is done, something is found, or nobody has patience any more.
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

    /// A coordinator that died behind the last answer that anybody waited for has its time to start again.
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
            // Nobody else asks or answers.
            _ => {}
        }
    }

    /// What the auditor asks for at the end.
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
