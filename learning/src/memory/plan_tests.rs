//! Plans of random chains, compared with searches of all choices and with a run over the events.

use super::trace_tests::{ChainStep, Random, trace_of};
use super::*;

/// Rows of the planned steps. The recordings have 2 and 4.
const ROWS: u32 = 7;
const SEEDS: u64 = 1_500;
const RATES: MemoryRates = MemoryRates { write: 2e3, read: 1e3, fresh: f64::INFINITY };

/// A step with its trace, and ways to compute its buffers again.
struct PlanCase {
    seed: u64,
    step: ChainStep,
    trace: MemoryTrace,
    ways: Vec<Recompute>,
}

impl PlanCase {
    /// A random chain with at most `most` buffers.
    fn random(seed: u64, most: u64) -> Self {
        let mut random = Random(seed);
        let layers = random.chain(most);
        let (step, trace) = (ChainStep::new(&layers, ROWS), trace_of(&layers));
        let buffers = trace.buffers().len() as u64;
        let mut case = Self { seed, step, trace, ways: Vec::new() };
        for buffer in 0..buffers as usize {
            let mut inputs: Vec<usize> =
                (0..random.below(3)).map(|_| random.below(buffers) as usize).collect();
            inputs.sort_unstable();
            inputs.dedup();
            inputs.retain(|&input| input != buffer);
            let seconds = random.below(100) as f64 * 1e-3;
            if random.chance(80) {
                case.ways.push(Recompute { buffer, seconds, inputs });
            }
        }
        case
    }

    fn peak(&self) -> u64 {
        self.step.timeline().into_iter().max().unwrap()
    }

    fn bytes(&self, buffer: usize) -> u64 {
        self.trace.buffer_bytes(buffer, ROWS)
    }

    fn admit(&self, limit: u64) -> Admission {
        admit(&self.trace, ROWS, (0, limit), RATES, &self.ways)
    }

    /// The plan within a limit, if there is one.
    fn plan(&self, limit: u64) -> Option<MemoryPlan> {
        match self.admit(limit) {
            Admission::FitsByPlan(plan) => Some(*plan),
            Admission::Fits { .. } | Admission::TooLarge { .. } => None,
        }
    }

    /// Limits below the peak.
    fn limits(&self) -> impl Iterator<Item = u64> + use<> {
        let peak = self.peak();
        (1..16).map(move |part| peak * part / 16)
    }

    /// All rules of offloaded buffers among those that can leave, for few buffers.
    fn choices(&self, movable: Vec<usize>) -> impl Iterator<Item = Vec<SavedRule>> + use<> {
        let count = self.trace.buffers().len();
        assert!(movable.len() <= 10, "seed {}", self.seed);
        (0..1_usize << movable.len()).map(move |choice| {
            let mut rules = vec![SavedRule::Retain; count];
            let chosen = movable.iter().enumerate().filter(|(at, _)| choice >> at & 1 == 1);
            chosen.for_each(|(_, &buffer)| rules[buffer] = SavedRule::Offload);
            rules
        })
    }

    fn movable(&self) -> Vec<usize> {
        let gap = |one: usize| &self.trace.buffers()[one].gap;
        (0..self.trace.buffers().len()).filter(|&one| !gap(one).is_empty()).collect()
    }

    fn way(&self, buffer: usize) -> &Recompute {
        self.ways.iter().find(|way| way.buffer == buffer).unwrap()
    }

    fn sum(&self, rules: &[SavedRule], rule: SavedRule) -> u64 {
        (0..rules.len()).filter(|&one| rules[one] == rule).map(|one| self.bytes(one)).sum()
    }

    fn largest(&self, rules: &[SavedRule]) -> u64 {
        let leaves = |one: &usize| rules[*one] != SavedRule::Retain;
        (0..rules.len()).filter(leaves).map(|one| self.bytes(one)).max().unwrap_or(0)
    }

    fn seconds(&self, rules: &[SavedRule]) -> f64 {
        let moved = self.sum(rules, SavedRule::Offload) as f64;
        let (forward, backward) = self.trace.seconds(ROWS);
        let again = (0..rules.len()).filter(|&one| rules[one] == SavedRule::Recompute);
        let again: f64 = again.map(|one| self.way(one).seconds).sum();
        forward.max(moved / RATES.write) + backward.max(moved / RATES.read) + again
    }

    fn run(&self, rules: &[SavedRule]) -> PlannedRun {
        let count = rules.len();
        let mut readers = vec![0; count];
        let again = (0..count).filter(|&one| rules[one] == SavedRule::Recompute);
        for way in again.map(|one| self.way(one)) {
            way.inputs.iter().for_each(|&input| readers[input] += 1);
        }
        let is_there = vec![false; count];
        let mut run = PlannedRun { live: 0, peak: 0, is_there, readers, needed: Vec::new() };
        for (at, event) in self.step.events.iter().enumerate() {
            self.take(at, *event, rules, &mut run);
            run.peak = run.peak.max(run.live);
            for (one, buffer) in self.trace.buffers().iter().enumerate() {
                if at > buffer.end && run.readers[one] == 0 {
                    self.set(one, false, &mut run);
                }
            }
        }
        run
    }

    fn take(&self, at: usize, event: TapeEvent, rules: &[SavedRule], run: &mut PlannedRun) {
        let buffers = self.trace.buffers();
        for (one, buffer) in buffers.iter().enumerate() {
            if buffer.gap.start == at && !buffer.gap.is_empty() && rules[one] != SavedRule::Retain {
                self.set(one, false, run);
            }
        }
        let own = buffers.iter().position(|buffer| buffer.allocation == event.number);
        match (event.kind, own) {
            (TapeEventKind::Allocate, Some(one)) => self.set(one, true, run),
            (TapeEventKind::Allocate, None) => run.live += event.bytes as u64,
            (TapeEventKind::Free, Some(one)) if run.readers[one] == 0 => self.set(one, false, run),
            (TapeEventKind::Free, None) => {
                let is_it = |other: &&TapeEvent| {
                    other.kind == TapeEventKind::Allocate && other.number == event.number
                };
                run.live -= self.step.events.iter().find(is_it).unwrap().bytes as u64;
            }
            (TapeEventKind::Use, _) => {
                let used = buffers.iter().position(|buffer| buffer.saved.contains(&event.number));
                used.into_iter().for_each(|one| self.need(one, rules, run));
            }
            _ => {}
        }
    }

    /// A buffer is read. One that is computed again reads its inputs.
    fn need(&self, buffer: usize, rules: &[SavedRule], run: &mut PlannedRun) {
        if run.is_there[buffer] {
            return;
        }
        if rules[buffer] == SavedRule::Recompute {
            for &input in &self.way(buffer).inputs {
                assert_ne!(rules[input], SavedRule::Recompute, "seed {}", self.seed);
                self.need(input, rules, run);
                run.readers[input] -= 1;
            }
        } else {
            run.needed.push(buffer);
        }
        self.set(buffer, true, run);
    }

    fn set(&self, buffer: usize, is_there: bool, run: &mut PlannedRun) {
        match (run.is_there[buffer], is_there) {
            (false, true) => run.live += self.bytes(buffer),
            (true, false) => run.live -= self.bytes(buffer),
            _ => {}
        }
        run.is_there[buffer] = is_there;
    }
}

/// The memory of a step that runs by rules.
struct PlannedRun {
    live: u64,
    peak: u64,
    is_there: Vec<bool>,
    /// Recomputations that will read each buffer.
    readers: Vec<usize>,
    /// The offloaded buffers in the order of their first need.
    needed: Vec<usize>,
}

fn rules(plan: &MemoryPlan) -> Vec<SavedRule> {
    plan.buffers.iter().map(|buffer| buffer.rule).collect()
}

#[test]
fn a_step_fits_at_its_peak_and_not_one_byte_below() {
    for seed in 0..SEEDS {
        let case = PlanCase::random(seed, 9);
        let peak = case.peak();
        assert_eq!(case.admit(peak), Admission::Fits { peak }, "seed {seed}");
        let below = case.admit(peak - 1);
        assert!(!matches!(below, Admission::Fits { .. }), "seed {seed}");
        let with = |limit| admit(&case.trace, ROWS, (50, limit), RATES, &case.ways);
        assert_eq!(with(peak + 50), Admission::Fits { peak: peak + 50 }, "seed {seed}");
        let nothing = Admission::TooLarge { needed: 50 + least(&case), fixed: 50 };
        assert_eq!(with(49), nothing, "seed {seed}");
    }
}

/// The least bytes of a step by any choice of buffers that leave, with a window for the largest.
fn least(case: &PlanCase) -> u64 {
    let choices = case.choices(case.movable());
    choices.map(|rules| case.run(&rules).peak + case.largest(&rules)).min().unwrap()
}

#[test]
fn a_step_is_admitted_if_and_only_if_some_choice_of_buffers_fits() {
    for seed in 0..SEEDS {
        let case = PlanCase::random(seed, 9);
        let least = least(&case);
        for limit in case.limits().chain([least, least.saturating_sub(1)]) {
            let found = case.admit(limit);
            let is_right = match found {
                Admission::TooLarge { needed, .. } => limit < least && needed == least,
                _ => limit >= least,
            };
            assert!(is_right, "seed {seed}, limit {limit}, least {least}: {found:?}");
        }
    }
}

#[test]
fn a_larger_limit_admits_each_step_of_a_smaller_one() {
    // A first version failed for the last two seeds.
    for seed in (0..SEEDS / 15).chain([724, 3_368]) {
        let case = PlanCase::random(seed, 24);
        let is_admitted = |limit| !matches!(case.admit(limit), Admission::TooLarge { .. });
        let limits: Vec<bool> = (0..=case.peak()).map(is_admitted).collect();
        assert!(limits.is_sorted(), "seed {seed}");
    }
}

#[test]
fn a_run_by_a_plan_stays_within_its_peak_and_that_within_the_limit() {
    let mut plans = [0, 0];
    for seed in 0..SEEDS {
        let case = PlanCase::random(seed, 40);
        for limit in case.limits() {
            let Some(plan) = case.plan(limit) else { continue };
            let twice = [&*case.ways, &case.ways].concat();
            let again = admit(&case.trace, ROWS, (0, limit), RATES, &twice);
            assert_eq!(again, Admission::FitsByPlan(Box::new(plan.clone())), "seed {seed}");
            let rules = rules(&plan);
            let run = case.run(&rules);
            let context = format!("seed {seed}, limit {limit}: {plan:?}");
            assert!(plan.peak <= limit && run.peak + plan.window == plan.peak, "{context}");
            assert!(case.largest(&rules) <= plan.window, "{context}");
            assert_eq!(run.needed, plan.returns, "{context}");
            let (forward, backward) = case.trace.seconds(ROWS);
            let seconds = plan.slow_down * (forward + backward);
            assert!((seconds - case.seconds(&rules)).abs() < 1e-9, "{context}");
            assert_described(&case, &plan);
            plans[usize::from(rules.contains(&SavedRule::Recompute))] += 1;
        }
    }
    assert!(plans.iter().all(|&count| count > 100), "{plans:?}");
}

/// A plan's fields are those of the trace.
fn assert_described(case: &PlanCase, plan: &MemoryPlan) {
    for (one, (own, planned)) in case.trace.buffers().iter().zip(&plan.buffers).enumerate() {
        let last_saved = own.saved[own.saved.len() - 1];
        assert_eq!((planned.last_saved, planned.uses), (last_saved, own.uses));
        assert_eq!(planned.bytes, case.bytes(one));
        assert!(own.saved.iter().all(|&saved| plan.buffer_of[saved] == Some(one)));
    }
    let saved: usize = case.trace.buffers().iter().map(|buffer| buffer.saved.len()).sum();
    assert_eq!(plan.buffer_of.len(), case.trace.saved());
    assert_eq!(plan.buffer_of.iter().flatten().count(), saved);
    for rule in [SavedRule::Retain, SavedRule::Offload, SavedRule::Recompute] {
        assert_eq!(plan.bytes(rule), case.sum(&rules(plan), rule));
    }
}

#[test]
fn evicted_bytes_are_near_the_least_of_all_choices() {
    let (mut worst, mut sum, mut count) = (1.0_f64, 0.0, 0.0);
    for seed in 0..SEEDS {
        let mut case = PlanCase::random(seed, 9);
        case.ways.clear();
        for limit in case.limits() {
            let Some(plan) = case.plan(limit) else { continue };
            let fits = |rules: &Vec<SavedRule>| {
                case.largest(rules) <= plan.window && case.run(rules).peak + plan.window <= limit
            };
            let choices = case.choices(case.movable()).filter(fits);
            let least = choices.map(|rules| case.sum(&rules, SavedRule::Offload)).min().unwrap();
            let ratio = plan.bytes(SavedRule::Offload) as f64 / least as f64;
            (worst, sum, count) = (worst.max(ratio), sum + ratio, count + 1.0);
        }
    }
    let mean = sum / count;
    assert!(worst < 1.7 && mean < 1.08, "{worst}, {mean} of {count} plans");
}

#[test]
fn recomputation_is_near_the_best_of_all_choices() {
    let (mut worst, mut sum, mut count) = (1.0_f64, 0.0, 0.0);
    for seed in 0..SEEDS {
        let mut case = PlanCase::random(seed, 8);
        let ways = std::mem::take(&mut case.ways);
        for limit in case.limits() {
            case.ways.clear();
            let Some(offloads) = case.plan(limit) else { continue };
            case.ways.clone_from(&ways);
            let plan = case.plan(limit).unwrap();
            let best = best_seconds(&case, &rules(&offloads), limit - plan.window);
            let (found, plain) = (case.seconds(&rules(&plan)), case.seconds(&rules(&offloads)));
            let is_same = plan.bytes(SavedRule::Recompute) == 0;
            assert!(is_same || found < plain, "seed {seed}, limit {limit}: it saves no time");
            let ratio = found / best;
            (worst, sum, count) = (worst.max(ratio), sum + ratio, count + 1.0);
        }
    }
    let mean = sum / count;
    assert!(worst < 1.08 && mean < 1.001, "{worst}, {mean} of {count} plans");
}

/// The least seconds with some offloaded buffers computed again.
fn best_seconds(case: &PlanCase, offloads: &[SavedRule], limit: u64) -> f64 {
    let has_way = |one: &usize| case.ways.iter().any(|way| way.buffer == *one);
    let can = |one: &usize| {
        offloads[*one] == SavedRule::Offload && case.trace.buffers()[*one].uses > 0 && has_way(one)
    };
    let candidates: Vec<usize> = (0..offloads.len()).filter(can).collect();
    let choices = case.choices(candidates).map(|chosen| {
        let again = |one: usize| chosen[one] == SavedRule::Offload;
        let rule = |one| if again(one) { SavedRule::Recompute } else { offloads[one] };
        (0..offloads.len()).map(rule).collect::<Vec<_>>()
    });
    let is_valid = |rules: &Vec<SavedRule>| {
        let is_again = |one: &usize| rules[*one] == SavedRule::Recompute;
        let again: Vec<usize> = (0..rules.len()).filter(is_again).collect();
        let is_gone =
            |one: &usize| rules[*one] != SavedRule::Retain && case.trace.buffers()[*one].uses == 0;
        let is_missing = |one: &usize| is_again(one) || is_gone(one);
        let has_inputs = |&one: &usize| !case.way(one).inputs.iter().any(is_missing);
        again.iter().all(has_inputs) && case.run(rules).peak <= limit
    };
    choices.filter(is_valid).map(|rules| case.seconds(&rules)).fold(f64::MAX, f64::min)
}

#[test]
fn a_quote_has_a_time_for_each_memory_down_to_the_least() {
    let mut planned = 0;
    for seed in 0..SEEDS / 10 {
        let case = PlanCase::random(seed, 12);
        let quote = quote_memory(&case.trace, ROWS, RATES, &case.ways);
        assert_eq!(quote.bytes, case.peak(), "seed {seed}");
        let mut above = quote.bytes;
        for plan in &quote.plans {
            assert!(plan.bytes < above && plan.slow_down >= 1.0, "seed {seed}: {quote:?}");
            let admitted = case.plan(plan.bytes).unwrap();
            assert_eq!(plan.slow_down, admitted.slow_down, "seed {seed}");
            above = plan.bytes;
        }
        if let Admission::TooLarge { needed, .. } = case.admit(case.peak() / 16)
            && needed < case.peak()
        {
            let least = quote.plans.last().map(|plan| plan.bytes);
            assert_eq!(least, Some(needed), "seed {seed}");
            planned += 1;
        }
    }
    assert!(planned > 20, "{planned} cases have a least memory");
}
