//! Several tasks with common members: their completion in the order of arrival, and by the market's
//! sharing of participants.
//!
//! Members train for one task at a time. Rounds are drawn as in production, and take as long as their
//! slowest member; nothing is learned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use florin_protocol::{
    Address, RoundNumber, SharedTask, TaskId, blob_digest, draw_cohort, reserved_for_others,
};

use super::Measurement;
use super::trial::mean;
use crate::arguments::{BenchPay, BenchRounds};
use crate::statistics::median;

/// The name of these measurements for `--only`.
pub(super) const NAME: &str = "tasks";
/// The parts of the members that qualify for each task, and that its rounds ask. A member that
/// qualifies for a scarce task also qualifies for the others.
const TASKS: [(f64, f64); 4] = [(1.0, 0.2), (1.0, 0.2), (0.4, 0.15), (0.25, 0.15)];
/// Mean time of a training, and that of a round beside it, in milliseconds.
const TRAINING_MS: f64 = 60_000.0;
const SETTLING_MS: u64 = 10_000;
/// Standard deviation of the logarithm of a member's time.
const SPREAD: f64 = 1.0;

/// Simulates all seeds.
pub(super) fn run(seeds: &BenchPay, size: &BenchRounds) -> Vec<Measurement> {
    let all = seeds.first_seed..seeds.first_seed + seeds.tasks;
    let pairs: Vec<_> = all
        .map(|seed| {
            let market = SharedMarket::new(seed, size);
            (market.completion(Order::Arrival), market.completion(Order::Scarcity))
        })
        .collect();
    let ratio = |of: &dyn Fn(&[f64]) -> f64| {
        median(pairs.iter().map(|(arrival, shared)| of(arrival) / of(shared)))
    };
    let name = |what: &str| format!("{NAME}, {what}: arrival order over scarcest first");
    let scarcest = TASKS.len() - 1;
    vec![
        Measurement::at_least(
            name("mean completion"),
            ratio(&|times| mean(times.iter().copied())),
            "x",
            1.0,
        ),
        Measurement::plain(name("last completion"), ratio(&|times| largest(times)), "x"),
        Measurement::plain(name("the scarcest task"), ratio(&|times| times[scarcest]), "x"),
        Measurement::plain(name("the most abundant task"), ratio(&|times| times[0]), "x"),
    ]
}

fn largest(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// The order in which waiting tasks are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// The task that has waited longest first; no participant is left to another task.
    Arrival,
    /// The market's.
    Scarcity,
}

/// The tasks and members of one seed.
struct SharedMarket {
    seed: u64,
    rounds: u32,
    cohorts: Vec<usize>,
    tasks: Vec<TaskId>,
    qualified: Vec<BTreeSet<Address>>,
    training_ms: BTreeMap<Address, u64>,
}

/// A task during a simulation.
#[derive(Clone, Copy, Debug)]
struct TaskRun {
    done: u32,
    /// Since when it waits; `None` while a round runs, and at the end.
    waits_since: Option<u64>,
    /// The start of the running round.
    opened: u64,
    ended: u64,
}

/// The state of a simulation.
struct MarketRun {
    runs: Vec<TaskRun>,
    /// The members that train, each with its task.
    busy: BTreeMap<Address, usize>,
    events: BinaryHeap<Reverse<(u64, Freed)>>,
}

/// A moment at which members or tasks become free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Freed {
    Member(Address),
    Task(usize),
}

impl SharedMarket {
    fn new(seed: u64, size: &BenchRounds) -> Self {
        let mut numbers = SeededNumbers(seed);
        let address = |at: u32| {
            let mut bytes = [0; 20];
            bytes.copy_from_slice(&blob_digest(&at.to_le_bytes()).0[..20]);
            Address(bytes)
        };
        let members: Vec<Address> = (0..size.members).map(address).collect();
        let training_ms = members
            .iter()
            .map(|who| (*who, (TRAINING_MS * (SPREAD * numbers.normal()).exp()) as u64))
            .collect();
        let levels: Vec<f64> = members.iter().map(|_| numbers.uniform()).collect();
        let qualified = TASKS.map(|(part, _)| {
            let all = members.iter().zip(&levels).filter(|(_, level)| **level < part);
            all.map(|(who, _)| *who).collect()
        });
        let id = |at: usize| {
            TaskId(blob_digest(&[seed.to_le_bytes(), (at as u64).to_le_bytes()].concat()).0)
        };
        let count = |part: f64| (part * f64::from(size.members)) as usize;
        Self {
            seed,
            rounds: size.rounds,
            cohorts: TASKS.map(|(_, asked)| count(asked)).to_vec(),
            tasks: (0..TASKS.len()).map(id).collect(),
            qualified: qualified.to_vec(),
            training_ms,
        }
    }

    /// Virtual milliseconds until each task has all its rounds.
    fn completion(&self, order: Order) -> Vec<f64> {
        let waiting = TaskRun { done: 0, waits_since: Some(0), opened: 0, ended: 0 };
        let mut market = MarketRun {
            runs: vec![waiting; self.tasks.len()],
            busy: BTreeMap::new(),
            events: BinaryHeap::new(),
        };
        let mut now = 0;
        loop {
            self.open_rounds(order, now, &mut market);
            let Some(Reverse((at, freed))) = market.events.pop() else { break };
            now = at;
            match freed {
                Freed::Member(who) => {
                    market.busy.remove(&who);
                }
                Freed::Task(task) => {
                    let run = &mut market.runs[task];
                    run.done += 1;
                    run.ended = now;
                    run.waits_since = (run.done < self.rounds).then_some(now);
                }
            }
        }
        market.runs.iter().map(|run| run.ended as f64).collect()
    }

    /// Opens all rounds that have enough members.
    fn open_rounds(&self, order: Order, now: u64, market: &mut MarketRun) {
        let waits = |at: &usize| market.runs[*at].waits_since.is_some();
        let mut tried: Vec<usize> = (0..self.tasks.len()).filter(waits).collect();
        match order {
            Order::Arrival => {
                tried.sort_by_key(|at| (market.runs[*at].waits_since, self.tasks[*at]));
            }
            Order::Scarcity => tried.sort_by(|one, other| {
                self.shared(*one, now, market).by_scarcity(&self.shared(*other, now, market))
            }),
        }
        for at in tried {
            let opening = self.shared(at, now, market);
            if opening.free.len() < opening.needed {
                continue;
            }
            let needs = |other: &usize| *other != at && market.runs[*other].done < self.rounds;
            let others = (0..self.tasks.len()).filter(needs);
            let others: Vec<_> = others.map(|other| self.shared(other, now, market)).collect();
            let reserved = match order {
                Order::Arrival => BTreeMap::new(),
                Order::Scarcity => reserved_for_others(&opening, &others, &opening.free),
            };
            let left = opening.free.iter().copied().filter(|who| !reserved.contains_key(who));
            let seed = blob_digest(&[self.seed.to_le_bytes().as_slice(), &opening.task.0].concat());
            let round = RoundNumber(market.runs[at].done + 1);
            let mut slowest = 0;
            for who in draw_cohort(seed, round, left, opening.places) {
                let ms = self.training_ms[&who];
                slowest = slowest.max(ms);
                market.busy.insert(who, at);
                market.events.push(Reverse((now + ms, Freed::Member(who))));
            }
            let run = &mut market.runs[at];
            (run.waits_since, run.opened) = (None, now);
            market.events.push(Reverse((now + slowest + SETTLING_MS, Freed::Task(at))));
        }
    }

    fn shared(&self, at: usize, now: u64, market: &MarketRun) -> SharedTask {
        let (qualified, run) = (&self.qualified[at], market.runs[at]);
        let free = qualified.iter().filter(|who| !market.busy.contains_key(*who));
        let returning = market.busy.values().filter(|task| **task == at).count();
        SharedTask {
            task: self.tasks[at],
            needed: self.cohorts[at],
            places: self.cohorts[at],
            supply: qualified.len(),
            free: free.copied().collect(),
            returning,
            waited_ms: now - run.waits_since.unwrap_or(run.opened),
            round_ms: (TRAINING_MS * 10.0) as u64,
        }
    }
}

/// A stream of numbers (SplitMix64).
struct SeededNumbers(u64);

impl SeededNumbers {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A standard normal number, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (one, other) = (self.uniform().max(f64::MIN_POSITIVE), self.uniform());
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    }
}
