//! A market of several tasks with common members, under virtual time: rounds are drawn and shared as in
//! production, and wait for their slowest member or the deadline. Nothing is learned.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use florin_protocol::{
    Address, RoundNumber, SharedTask, TaskId, blob_digest, draw_cohort, reserved_for_others,
};

use crate::arguments::BenchRounds;

/// The parts of the members that qualify for each task, and that its rounds ask. A member that
/// qualifies for a scarce task also qualifies for the others.
const TASKS: [(f64, f64); 4] = [(1.0, 0.2), (1.0, 0.2), (0.4, 0.15), (0.25, 0.15)];
/// Mean time of a training, that of a round beside it, and the deadline of a round's commits, in
/// milliseconds.
const TRAINING_MS: f64 = 60_000.0;
const SETTLING_MS: u64 = 10_000;
const DEADLINE_MS: u64 = 600_000;
/// Standard deviation of the logarithm of a member's time.
const SPREAD: f64 = 1.0;
/// The members divided by this number deviate.
const DEVIATING_PART: usize = 10;

/// The order in which waiting tasks are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The task that has waited longest first; no participant is left to another task.
    Arrival,
    /// The market's.
    Scarcity,
}

/// How the deviating members and a buyer behave. All others state that they work on one round at a
/// time, and do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// As the others.
    Honest,
    /// The members work for all tasks that ask them, one training after another: their statement
    /// holds for one task, or for one of several accounts.
    Several,
    /// The members qualify for all tasks, enrol again and again, and never commit; they state no
    /// limit.
    Silent,
    /// The same, and they state a limit in all tasks. Their addresses are the smallest, so that they
    /// are reserved first.
    SilentLimited,
    /// A buyer publishes a task that needs all members of the scarcest task and never opens a round,
    /// again and again.
    ShamTask,
}

impl Conduct {
    pub(super) const ATTACKS: [Self; 4] =
        [Self::Several, Self::Silent, Self::SilentLimited, Self::ShamTask];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Honest => "honest",
            Self::Several => "a limit of one stated, work for several tasks",
            Self::Silent => "silent members without a limit",
            Self::SilentLimited => "silent members that are reserved, beside those without a limit",
            Self::ShamTask => "a sham task of scarce members",
        }
    }

    const fn is_silent(self) -> bool {
        matches!(self, Self::Silent | Self::SilentLimited)
    }
}

/// The result of a simulation.
#[derive(Clone, Debug)]
pub(super) struct SharedOutcome {
    /// Virtual milliseconds until each task had all its rounds, the scarcest task last.
    pub(super) completed: Vec<f64>,
    /// Pay of the deviating members: 1 for each commit of a round that counts.
    pub(super) paid_to_deviating: f64,
    /// Their trainings.
    trained_by_deviating: f64,
}

impl SharedOutcome {
    /// Pay of a deviating member for each of its trainings.
    pub(super) fn pay_for_a_training(&self) -> f64 {
        self.paid_to_deviating / self.trained_by_deviating.max(1.0)
    }
}

/// The tasks and members of one seed.
pub(super) struct SharedMarket {
    seed: u64,
    rounds: u32,
    cohorts: Vec<usize>,
    tasks: Vec<TaskId>,
    qualified: Vec<BTreeSet<Address>>,
    training_ms: BTreeMap<Address, u64>,
    /// Those that deviate: the smallest addresses.
    deviating: BTreeSet<Address>,
}

/// A task during a simulation.
#[derive(Clone, Debug, Default)]
struct TaskRun {
    done: u32,
    /// Rounds that opened so far.
    opened: u32,
    /// Since when it waits; `None` while a round runs, and at the end.
    waits_since: Option<u64>,
    /// The start of the running round.
    since: u64,
    ended: u64,
    /// The commits of the running round.
    commits: Vec<Address>,
    /// The rounds from which members that did not commit are selected again.
    sitting_out: BTreeMap<Address, u32>,
}

/// The state of a simulation.
struct MarketRun {
    conduct: Conduct,
    runs: Vec<TaskRun>,
    /// The tasks for which members work.
    works_for: BTreeMap<Address, BTreeSet<usize>>,
    /// When the device of a member has no more trainings.
    device_free: BTreeMap<Address, u64>,
    events: BinaryHeap<Reverse<(u64, Freed)>>,
    paid_to_deviating: f64,
    trained_by_deviating: f64,
}

/// A moment at which a member is free for other tasks, or a round ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Freed {
    Member { account: Address, task: usize },
    Task(usize),
}

impl SharedMarket {
    pub(super) fn new(seed: u64, size: &BenchRounds) -> Self {
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
        let count = |part: f64| (part * f64::from(size.members)) as usize;
        let sorted: BTreeSet<Address> = members.iter().copied().collect();
        Self {
            seed,
            rounds: size.rounds,
            cohorts: TASKS.map(|(_, asked)| count(asked)).to_vec(),
            tasks: (0..TASKS.len()).map(|at| task_id(seed, at as u64)).collect(),
            qualified: qualified.to_vec(),
            training_ms,
            deviating: sorted.into_iter().take(members.len() / DEVIATING_PART).collect(),
        }
    }

    /// Simulates all rounds of all tasks.
    pub(super) fn outcome(&self, order: Order, conduct: Conduct) -> SharedOutcome {
        let waiting = TaskRun { waits_since: Some(0), ..TaskRun::default() };
        let mut market = MarketRun {
            conduct,
            runs: vec![waiting; self.tasks.len()],
            works_for: BTreeMap::new(),
            device_free: BTreeMap::new(),
            events: BinaryHeap::new(),
            paid_to_deviating: 0.0,
            trained_by_deviating: 0.0,
        };
        let mut now = 0;
        loop {
            self.open_rounds(order, now, &mut market);
            let Some(Reverse((at, freed))) = market.events.pop() else { break };
            now = at;
            match freed {
                Freed::Member { account, task } => {
                    market.works_for.entry(account).or_default().remove(&task);
                }
                Freed::Task(task) => self.end_round(task, now, &mut market),
            }
        }
        SharedOutcome {
            completed: market.runs.iter().map(|run| run.ended as f64).collect(),
            paid_to_deviating: market.paid_to_deviating,
            trained_by_deviating: market.trained_by_deviating,
        }
    }

    /// A round with the commits of half of its cohort counts.
    fn end_round(&self, task: usize, now: u64, market: &mut MarketRun) {
        let run = &mut market.runs[task];
        let commits = std::mem::take(&mut run.commits);
        if commits.len() * 2 >= self.cohorts[task] {
            run.done += 1;
            let deviating = commits.iter().filter(|account| self.deviating.contains(*account));
            market.paid_to_deviating += deviating.count() as f64;
        }
        run.ended = now;
        run.waits_since = (run.done < self.rounds).then_some(now);
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
            let mut opening = self.shared(at, now, market);
            if opening.free.len() < opening.needed {
                // Those that sit out take part where a round could not start without them.
                opening.free = self.free(at, market);
            }
            if opening.free.len() < opening.needed {
                continue;
            }
            let reserved = match order {
                Order::Arrival => BTreeMap::new(),
                Order::Scarcity => self.reserved(at, &opening, now, market),
            };
            let left = opening.free.iter().copied().filter(|who| !reserved.contains_key(who));
            let seed = blob_digest(&[self.seed.to_le_bytes().as_slice(), &opening.task.0].concat());
            let round = RoundNumber(market.runs[at].opened + 1);
            let cohort = draw_cohort(seed, round, left, opening.places);
            self.open_round(at, cohort, now, market);
        }
    }

    /// The members that an opening task leaves to others.
    fn reserved(
        &self,
        at: usize,
        opening: &SharedTask,
        now: u64,
        market: &MarketRun,
    ) -> BTreeMap<Address, TaskId> {
        let needs = |other: &usize| *other != at && market.runs[*other].done < self.rounds;
        let others = (0..self.tasks.len()).filter(needs);
        let mut others: Vec<_> = others.map(|other| self.shared(other, now, market)).collect();
        if market.conduct == Conduct::ShamTask {
            others.push(self.sham_task(now, market));
        }
        let is_limited = |account: &&Address| self.is_limited(**account, market.conduct);
        let contended = opening.free.iter().filter(is_limited).copied().collect();
        reserved_for_others(opening, &others, &contended)
    }

    fn open_round(&self, at: usize, cohort: Vec<Address>, now: u64, market: &mut MarketRun) {
        let deadline = now + DEADLINE_MS;
        let mut ends = now;
        let (number, mut commits, mut missing) =
            (market.runs[at].opened + 1, Vec::new(), Vec::new());
        for account in cohort {
            let begins = market.device_free.get(&account).copied().unwrap_or_default().max(now);
            let ready = begins + self.training_ms[&account];
            let is_silent = market.conduct.is_silent() && self.deviating.contains(&account);
            let commits_in_time = !is_silent && ready <= deadline;
            let until = if commits_in_time { ready } else { deadline };
            if !is_silent {
                market.device_free.insert(account, until.max(begins));
                let is_counted = self.deviating.contains(&account) && begins < deadline;
                market.trained_by_deviating += f64::from(u8::from(is_counted));
            }
            if commits_in_time {
                commits.push(account)
            } else {
                missing.push(account)
            }
            ends = ends.max(until);
            market.works_for.entry(account).or_default().insert(at);
            market.events.push(Reverse((until, Freed::Member { account, task: at })));
        }
        let run = &mut market.runs[at];
        run.sitting_out.retain(|account, _| !commits.contains(account));
        run.sitting_out.extend(missing.into_iter().map(|account| (account, number + 2)));
        (run.waits_since, run.since, run.opened, run.commits) = (None, now, number, commits);
        market.events.push(Reverse((ends + SETTLING_MS, Freed::Task(at))));
    }

    /// Whether the account's statement limits the rounds for which it is asked.
    fn is_limited(&self, account: Address, conduct: Conduct) -> bool {
        let is_unlimited = matches!(conduct, Conduct::Several | Conduct::Silent);
        !(is_unlimited && self.deviating.contains(&account))
    }

    /// The members that qualify for a task.
    fn qualifies(&self, at: usize, account: Address, conduct: Conduct) -> bool {
        let is_silent = conduct.is_silent() && self.deviating.contains(&account);
        is_silent || self.qualified[at].contains(&account)
    }

    /// The members that a task could ask now, with those that sit out.
    fn free(&self, at: usize, market: &MarketRun) -> BTreeSet<Address> {
        let nothing = BTreeSet::new();
        let is_free = |account: &&Address| {
            let works_for = market.works_for.get(*account).unwrap_or(&nothing);
            match self.is_limited(**account, market.conduct) {
                true => works_for.is_empty(),
                false => !works_for.contains(&at),
            }
        };
        let qualify = |account: &&Address| self.qualifies(at, **account, market.conduct);
        self.training_ms.keys().filter(qualify).filter(is_free).copied().collect()
    }

    fn shared(&self, at: usize, now: u64, market: &MarketRun) -> SharedTask {
        let run = &market.runs[at];
        let next = run.opened + 1;
        let sits_out =
            |account: &Address| run.sitting_out.get(account).is_some_and(|it| *it > next);
        let mut free = self.free(at, market);
        free.retain(|account| !sits_out(account));
        let qualify = |account: &&Address| self.qualifies(at, **account, market.conduct);
        let supply = self.training_ms.keys().filter(qualify).filter(|one| !sits_out(one)).count();
        let working = market.works_for.values().filter(|tasks| tasks.contains(&at));
        SharedTask {
            task: self.tasks[at],
            needed: self.cohorts[at],
            places: self.cohorts[at],
            supply,
            free,
            returning: working.count(),
            waited_ms: now - run.waits_since.unwrap_or(run.since),
            round_ms: DEADLINE_MS,
        }
    }

    /// A task that needs all members of the scarcest one. A new one replaces it after the time for
    /// which members are reserved.
    fn sham_task(&self, now: u64, market: &MarketRun) -> SharedTask {
        let scarcest = self.tasks.len() - 1;
        let supply = self.qualified[scarcest].len();
        SharedTask {
            task: task_id(self.seed, (self.tasks.len() as u64) + now / DEADLINE_MS),
            needed: supply,
            places: supply,
            supply,
            free: self.free(scarcest, market),
            returning: 0,
            waited_ms: now % DEADLINE_MS,
            round_ms: DEADLINE_MS,
        }
    }
}

fn task_id(seed: u64, number: u64) -> TaskId {
    TaskId(blob_digest(&[seed.to_le_bytes(), number.to_le_bytes()].concat()).0)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_members_earn_nothing_and_those_of_several_tasks_more() {
        for seed in 1..=3 {
            println!("seed {seed}");
            let market = SharedMarket::new(seed, &BenchRounds { members: 60, rounds: 8 });
            let paid = |conduct| market.outcome(Order::Scarcity, conduct).paid_to_deviating;
            let honest = paid(Conduct::Honest);
            assert!(honest > 0.0);
            assert_eq!(paid(Conduct::SilentLimited), 0.0);
            assert!(paid(Conduct::Several) > honest, "{}", paid(Conduct::Several));
            assert_eq!(paid(Conduct::Honest), honest, "the same seed, the same market");
        }
    }
}
