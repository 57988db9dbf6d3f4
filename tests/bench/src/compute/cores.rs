//! Real trainings on the cores of this machine: a core is a device, and one node has all of them.
//!
//! An order trains a small model with the plain engine. A step is a step of gradient descent on each of
//! four shards, and the mean of the four models; `n` cores share the shards, which changes no
//! bit. The time of a step on each count is measured first. Both policies then serve the same
//! arrivals, one after the other, in real time.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use anyhow::Context;
use florin_learning::data::load;
use florin_learning::{
    DataSource, Dataset, ModelSpec, Reference, Trainer, Training, cores, parallel_map,
};
use florin_random::{below, chacha20, uniform};
use florin_scheduler::{
    AllotmentChange, ClusterState, DeviceKind, DeviceNode, OrderId, PackingTable, SchedulePolicy,
    StepProfile, TrainingOrder, Trigger, decide,
};

use super::MARBLE;
use crate::Measurement;
use crate::arguments::BenchPay;
use crate::statistics::median;

const CORE: DeviceKind = DeviceKind(0);
/// Most cores that the benchmark uses.
const CORES_MAX: usize = 4;
/// Parts of a step.
const SHARDS: usize = 4;
/// Orders of a run, and seconds of each on one core before a factor of 0.5 to 1.5.
const ORDERS: u64 = 12;
const ORDER_SECONDS: f64 = 0.5;
/// Seeds of a load, at most: each takes seconds of real time.
const SEEDS_MAX: u64 = 3;
/// Steps whose median is a profile's time, after a first one that does not count.
const PROFILE_STEPS: usize = 40;
/// Arriving work in percent of the work that all cores do with one order each.
const LOADS: [(&str, f64); 2] = [("medium load", 47.0), ("heavy load", 116.0)];
const LEARNING_RATE: f64 = 0.1;
const NANO: f64 = 1e9;
const STREAM: u64 = 83;

/// Models whose steps gain unequally from a second core: rows of a shard, and hidden units.
const JOBS: [(&str, u32, &[usize]); 3] = [
    ("8 rows, softmax", 8, &[]),
    ("128 rows, 128 units", 128, &[128]),
    ("400 rows, 512 units", 400, &[512]),
];

/// A training that can be stepped.
struct CoreJob {
    model: ModelSpec,
    how: Training,
    shards: Vec<Dataset>,
    profile: StepProfile,
}

/// An order that arrives in a run.
struct CoreOrder {
    at: Duration,
    job: usize,
    steps: u64,
}

/// The parts of a running order that two threads share.
#[derive(Default)]
struct CoreProgress {
    cores: AtomicU32,
    steps_left: AtomicU64,
}

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let count = cores().min(CORES_MAX);
    if count < 2 {
        anstream::eprintln!("compute: one core is one device, so no policy has a choice: skipped");
        return Ok(vec![Measurement::plain("cores: real orders are skipped, cores", 1.0, "")]);
    }
    if count == 2 {
        anstream::eprintln!(
            "compute: two cores are one node with two devices: no placement, and only the choice \
             between one and two cores"
        );
    }
    let (jobs, mut rows) = measured_jobs(count)?;
    for (load, percent) in LOADS {
        let (mut whole, mut marble) = (Vec::new(), Vec::new());
        for seed in seeds.first_seed..seeds.first_seed + seeds.tasks.min(SEEDS_MAX) {
            let orders = draw(&jobs, count, percent, seed);
            whole.push(mean_seconds(&jobs, &orders, count, &SchedulePolicy::Exclusive)?);
            marble.push(mean_seconds(&jobs, &orders, count, &SchedulePolicy::Marble(MARBLE))?);
        }
        let name = |what: &str| format!("{count} cores, {load}, {what}");
        let pairs = whole.iter().zip(&marble);
        let beyond = median(pairs.map(|(whole, marble)| 100.0 * (marble / whole - 1.0)));
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        rows.push(Measurement::plain(name("whole node: mean completion"), mean(&whole), "s"));
        rows.push(Measurement::plain(name("marble: mean completion"), mean(&marble), "s"));
        let of = name("marble: mean completion beyond whole nodes, median of the seeds");
        rows.push(Measurement::below(of, beyond, "%", 0.0));
    }
    Ok(rows)
}

/// The jobs with their measured profiles on 1 to `count` cores.
fn measured_jobs(count: usize) -> anyhow::Result<(Vec<CoreJob>, Vec<Measurement>)> {
    let data = load(&DataSource::Digits)?;
    let (mut jobs, mut rows) = (Vec::new(), Vec::new());
    for (name, shard_rows, hidden) in JOBS {
        let (inputs, classes) = (64, 10);
        let model = match hidden {
            [] => ModelSpec::Softmax { inputs, classes },
            _ => ModelSpec::Mlp { inputs, hidden: hidden.to_vec(), classes },
        };
        let length = shard_rows as usize;
        let shards = (0..SHARDS).map(|at| data.slice(at * length..(at + 1) * length));
        let shards = shards.collect::<Result<Vec<Dataset>, _>>()?;
        let how = Training::sgd(1, shard_rows, LEARNING_RATE);
        let profile = StepProfile::new(&[Some(1)])?;
        let mut job = CoreJob { model, how, shards, profile };
        let times: Vec<f64> =
            (1..=count).map(|cores| job.step_seconds(cores)).collect::<anyhow::Result<_>>()?;
        for (cores, seconds) in (1..).zip(&times) {
            let name = format!("step of {name} on {cores} cores");
            rows.push(Measurement::plain(name, seconds * 1e3, "ms"));
        }
        let nano: Vec<Option<u64>> =
            times.iter().map(|seconds| Some((seconds * NANO).ceil() as u64)).collect();
        job.profile = StepProfile::new(&nano)?;
        jobs.push(job);
    }
    Ok((jobs, rows))
}

impl CoreJob {
    fn start(&self) -> Vec<f32> {
        self.model.init(1).into_vec()
    }

    /// One step: a step of each shard, on up to `cores` threads, and their mean.
    fn step(&self, params: &mut [f32], cores: usize) -> anyhow::Result<()> {
        let trained = parallel_map(cores, self.shards.iter().collect(), |shard| {
            let go_on = &mut |_| ControlFlow::Continue(());
            Reference::new().train(&self.model, params, shard, &self.how, 1, go_on)
        });
        let trained = trained.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (at, param) in params.iter_mut().enumerate() {
            let sum: f32 = trained.iter().map(|of| of.params[at]).sum();
            *param = sum / SHARDS as f32;
        }
        Ok(())
    }

    /// The median time of a step.
    fn step_seconds(&self, cores: usize) -> anyhow::Result<f64> {
        let mut params = self.start();
        let mut times = Vec::new();
        for _ in 0..=PROFILE_STEPS {
            let begun = Instant::now();
            self.step(&mut params, cores)?;
            times.push(begun.elapsed().as_secs_f64());
        }
        Ok(median(times.into_iter().skip(1)))
    }
}

fn draw(jobs: &[CoreJob], count: usize, percent: f64, seed: u64) -> Vec<CoreOrder> {
    let mut rng = chacha20(seed, STREAM);
    let interval = ORDER_SECONDS * 100.0 / (percent * count as f64);
    let mut seconds = 0.0;
    let one = |_| {
        seconds -= (1.0 - uniform(&mut rng)).ln() * interval;
        let job = below(&mut rng, jobs.len() as u64) as usize;
        let work = ORDER_SECONDS * (0.5 + uniform(&mut rng)) * NANO;
        let steps = (work / jobs[job].profile.step_nano(1) as f64).ceil() as u64;
        CoreOrder { at: Duration::from_secs_f64(seconds), job, steps }
    };
    (0..ORDERS).map(one).collect()
}

/// Runs all orders; the mean time from arrival to completion.
fn mean_seconds(
    jobs: &[CoreJob],
    orders: &[CoreOrder],
    count: usize,
    policy: &SchedulePolicy,
) -> anyhow::Result<f64> {
    let node = DeviceNode { kind: CORE, devices: count as u32, memory_bytes: 0 };
    let mut state = ClusterState::new(vec![node], PackingTable::default(), 0)?;
    let progress: Vec<CoreProgress> = orders.iter().map(|_| CoreProgress::default()).collect();
    let (sender, finished) = mpsc::channel();
    let begun = Instant::now();
    let mut sum = Duration::ZERO;
    thread::scope(|scope| {
        let (mut arrived, mut done) = (0, 0);
        while done < orders.len() {
            let next = orders.get(arrived).map(|order| order.at.saturating_sub(begun.elapsed()));
            let event = match next {
                Some(wait) => finished.recv_timeout(wait),
                None => finished.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(result) => {
                    let at: usize = result?;
                    state.finish(OrderId(at as u64));
                    sum += begun.elapsed().saturating_sub(orders[at].at);
                    done += 1;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let CoreOrder { job, steps, .. } = orders[arrived];
                    let profiles = BTreeMap::from([(CORE, jobs[job].profile.clone())]);
                    state.submit(TrainingOrder::new(OrderId(arrived as u64), profiles, steps)?)?;
                    progress[arrived].steps_left.store(steps, Ordering::Relaxed);
                    arrived += 1;
                }
                Err(RecvTimeoutError::Disconnected) => anyhow::bail!("all senders are gone"),
            }
            for (order, progress) in (0..).zip(&progress) {
                state.report(OrderId(order), progress.steps_left.load(Ordering::Relaxed));
            }
            let decision = decide(&state, policy, Trigger::Change);
            state.apply(&decision)?;
            for change in decision.changes {
                act(scope, change, jobs, orders, &progress, &sender)?;
            }
        }
        anyhow::Ok(())
    })?;
    Ok(sum.as_secs_f64() / orders.len() as f64)
}

/// Starts the thread of an order, or changes its number of cores from the next step on.
fn act<'scope, 'a: 'scope>(
    scope: &'scope Scope<'scope, 'a>,
    change: AllotmentChange,
    jobs: &'a [CoreJob],
    orders: &'a [CoreOrder],
    progress: &'a [CoreProgress],
    sender: &mpsc::Sender<anyhow::Result<usize>>,
) -> anyhow::Result<()> {
    let at = usize::try_from(change.order().0)?;
    let (is_start, allotment) = match change {
        AllotmentChange::Start { allotment, .. } => (true, allotment),
        AllotmentChange::Rescale { allotment, .. } => (false, allotment),
        AllotmentChange::Preempt { .. } => anyhow::bail!("no policy here preempts"),
    };
    progress[at].cores.store(allotment.devices.len(), Ordering::Relaxed);
    if is_start {
        let (job, progress) = (&jobs[orders[at].job], &progress[at]);
        let sender = sender.clone();
        scope.spawn(move || {
            let result = train(job, progress).map(|()| at);
            // The receiver is gone only after another order has failed.
            sender.send(result).ok();
        });
    }
    Ok(())
}

fn train(job: &CoreJob, progress: &CoreProgress) -> anyhow::Result<()> {
    let mut params = job.start();
    while progress.steps_left.load(Ordering::Relaxed) > 0 {
        // Cores that slow the order stay idle, as its profile assumes.
        let cores = job.profile.useful_within(progress.cores.load(Ordering::Relaxed));
        job.step(&mut params, cores as usize).context("a step of a real order")?;
        progress.steps_left.fetch_sub(1, Ordering::Relaxed);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_cores_changes_no_bit() {
        let data = load(&DataSource::Digits).unwrap();
        let shards = (0..SHARDS).map(|at| data.slice(at * 8..(at + 1) * 8).unwrap()).collect();
        let model = ModelSpec::Mlp { inputs: 64, hidden: vec![8], classes: 10 };
        let profile = StepProfile::new(&[Some(1)]).unwrap();
        let job = CoreJob { model, how: Training::sgd(1, 8, LEARNING_RATE), shards, profile };
        let after = |cores| {
            let mut params = job.start();
            for _ in 0..3 {
                job.step(&mut params, cores).unwrap();
            }
            params
        };
        assert_eq!(after(1), after(3));
        assert_ne!(after(1), job.start());
    }
}
