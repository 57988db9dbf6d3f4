//! Benchmark of coalitions and paths on this machine:
//! `cargo run --release -p florin-learning --example coalitions`.
//!
//! On a busy machine, `-- own` measures the CPU time of the thread instead of wall-clock time;
//! everything runs on one thread.

use std::error::Error;
use std::time::Instant;

use florin_learning::timing::{self, SyntheticRound};
use florin_learning::{CoalitionMasks, Evaluator, ModelSpec};

/// Number of repetitions; the best one counts, since other load only adds time.
const REPEATS: usize = 5;

fn main() -> Result<(), Box<dyn Error>> {
    let mlp = ModelSpec::Mlp { inputs: 784, hidden: vec![64], classes: 10 };
    let (channels, height, width) = (1, 28, 28);
    let (filters, hidden, classes) = ([8, 16], 64, 10);
    let cnn = ModelSpec::Cnn { channels, height, width, filters, hidden, classes };
    coalitions(&SyntheticRound::generate(mlp.clone(), 10, 1_000, 1)?, 1_024)?;
    coalitions(&SyntheticRound::generate(cnn, 10, 1_000, 1)?, 16)?;
    let problem = SyntheticRound::generate(mlp, 10, 1_000, 1)?;
    for groups in [1, 16, 64] {
        path(&problem, 1_000, groups)?;
    }
    Ok(())
}

fn clock() -> impl FnMut() -> f64 {
    let start = Instant::now();
    let own = std::env::args().any(|argument| argument == "own");
    move || if own { processor_time() } else { start.elapsed().as_secs_f64() }
}

/// CPU time of this thread in seconds.
#[cfg(unix)]
fn processor_time() -> f64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

#[cfg(not(unix))]
fn processor_time() -> f64 {
    f64::NAN
}

/// Prints the time of `count` coalitions with each implementation on one core.
fn coalitions(problem: &SyntheticRound, count: usize) -> Result<(), Box<dyn Error>> {
    let masks = match count {
        1_024 => CoalitionMasks::all(10)?,
        count => timing::spread_masks(10, count)?,
    };
    let mut fast = f64::INFINITY;
    for _ in 0..REPEATS {
        fast = fast.min(timing::coalitions(problem, &masks, 1, &mut clock())?.seconds);
    }
    println!("{}: {count} coalitions of 1,000 rows, one core: {fast:.4} s", problem.model);
    #[cfg(feature = "torch")]
    {
        use florin_learning::torch::{Torch, TorchDevice};
        let mut torch = Torch::new(TorchDevice::Cpu, 1)?;
        let few = timing::spread_masks(10, count.min(64))?;
        let (mut singly, mut batched) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..REPEATS {
            let timed = timing::one_by_one(problem, &few, &mut torch, &mut clock())?;
            singly = singly.min(timed.seconds_per_coalition());
            batched = batched.min(
                timing::batched(problem, &few, &mut torch, &mut clock())?.seconds_per_coalition(),
            );
        }
        let (singly, batched) = (singly * count as f64, batched * count as f64);
        println!("  libtorch one by one: {singly:.4} s, {:.1} times that", singly / fast);
        println!("  libtorch in batches: {batched:.4} s, {:.1} times that", batched / fast);
    }
    Ok(())
}

/// Prints the time of the path values of `updates` updates and of a pass over the rows.
fn path(problem: &SyntheticRound, updates: usize, groups: usize) -> Result<(), Box<dyn Error>> {
    #[cfg(feature = "torch")]
    let mut engine = {
        use florin_learning::torch::{Torch, TorchDevice};
        Torch::new(TorchDevice::Cpu, 1)?
    };
    #[cfg(not(feature = "torch"))]
    let mut engine = florin_learning::Reference::new();
    let engine: &mut dyn Evaluator = &mut engine;
    println!("path of {updates} updates of {}, {groups} groups of rows:", problem.model);
    let mut timed = timing::path(problem, updates, groups, engine, 1, &mut clock())?;
    for _ in 1..REPEATS {
        let again = timing::path(problem, updates, groups, engine, 1, &mut clock())?;
        timed.validation = timed.validation.min(again.validation);
        timed.gradients = timed.gradients.min(again.gradients);
        timed.reading = timed.reading.min(again.reading);
        timed.values = timed.values.min(again.values);
    }
    println!(
        "  validation pass {:.4} s, gradients and losses {:.4} s; reading updates {:.4} s, \
         path values {:.4} s",
        timed.validation, timed.gradients, timed.reading, timed.values
    );
    Ok(())
}
