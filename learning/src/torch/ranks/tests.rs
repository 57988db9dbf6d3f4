//! Ranks as processes: this test binary starts itself as each of them.

use std::net::TcpListener;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::checkpoint::CheckpointSettings;
use crate::engine::{TrainedModel, Trainer};
use crate::graph::BufferPolicy;
use crate::memory::MemorySettings;
use crate::pipeline::PartPlacement;
use crate::ranks::{RankFacts, RankPlace, RankRows};
use crate::torch::TorchDevice;
use crate::torch::graph::tests::{ALL, GraphTask, go_on, is_random, models};
use crate::training::{Betas, Execution, Optimizer, Training};

/// The test that a started process runs; without its variable it does nothing.
const RANK_PROCESS: &str = "torch::ranks::tests::rank_process";
/// The variable with what a started process does, as JSON.
const SCENARIO: &str = "FLORIN_RANK_SCENARIO";
const ROWS: usize = 40;

/// The work of the ranks of a test.
#[derive(Debug, Clone, Default, serde::Serialize, serde::Deserialize)]
struct RankScenario {
    model: String,
    workers: u32,
    epochs: u32,
    adam: bool,
    /// The ranges of workers by rank; by speed if empty.
    pinned: Vec<Range<u32>>,
    /// By measured links if there is none.
    reduction: Option<ReductionPlan>,
    /// Parts of the graph, and where it is cut; none for whole graphs.
    parts: u32,
    cut: Option<String>,
    /// Whether rank 0 alone has the rows.
    private: bool,
    /// Whether numbers travel while others are computed; by measured links if there is none.
    overlaps: Option<bool>,
    /// Seconds of the limit.
    limit: u64,
    /// A rank that behaves differently, and how.
    fault: Option<(u32, Fault)>,
    /// The file of the state, written after each step.
    checkpoint: Option<PathBuf>,
    /// Rank 0 exits in this step.
    exit_at: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
enum Fault {
    /// Has another seed.
    OtherSeed,
    /// States the right rows and trains on others.
    OtherRows,
    /// Ends without a word before the steps.
    Exits,
    /// Stops to answer before the steps.
    Stalls,
    /// Names an interface that is not there.
    Interface,
    /// Is never started.
    Absent,
    /// Has the rows, and computes one part, where rank 0 has them alone.
    HasRows,
}

impl RankScenario {
    fn new(model: &str, workers: u32) -> Self {
        let (model, overlaps) = (model.to_owned(), Some(true));
        Self { model, workers, epochs: 2, overlaps, limit: 60, ..Self::default() }
    }

    fn task(&self) -> GraphTask {
        let buffers = match self.model.as_str() {
            "resnet" => BufferPolicy::Average,
            _ => BufferPolicy::Freeze,
        };
        let mut task = GraphTask::load(&self.model, ALL, buffers);
        let own = task.rows.rows();
        let rows: Vec<usize> = (0..ROWS).map(|row| row * 7 % own).collect();
        task.rows = task.rows.subset(&rows).unwrap();
        task
    }

    fn training(&self) -> Training {
        let execution = Execution { virtual_workers: Some(self.workers), ..Execution::default() };
        let how = Training { momentum: 0.5, execution, ..Training::sgd(self.epochs, 12, 0.01) };
        let adam = Optimizer::AdamW(Betas { beta1: 0.9, beta2: 0.99 });
        if self.adam { Training { momentum: 0.0, optimizer: adam, ..how } } else { how }
    }

    fn pipeline(&self) -> Option<PipelineSettings> {
        let cut = self.cut.as_ref().map(|cut| cut.parse().unwrap());
        let placement = match self.private {
            true => PartPlacement::EndsTogether,
            false => PartPlacement::Separate,
        };
        let processes = self.parts;
        (processes > 0).then_some(PipelineSettings { processes, placement, cut })
    }

    /// The rows of a rank, and its pipeline.
    fn rows(
        &self,
        rank: u32,
        fault: Option<Fault>,
        data: &Dataset,
    ) -> (RankRows, Option<PipelineSettings>) {
        match (self.private, rank) {
            (true, _) if fault == Some(Fault::HasRows) => (RankRows::shared(data), None),
            (true, 0) => (RankRows::own(data), self.pipeline()),
            (true, _) => (RankRows::Absent, self.pipeline()),
            (false, _) => (RankRows::shared(data), self.pipeline()),
        }
    }

    fn engine(&self) -> Torch {
        let engine = Torch::new(TorchDevice::Cpu, 1).unwrap();
        match self.checkpoint.clone() {
            Some(file) => engine.with_checkpoints(CheckpointSettings {
                file,
                every: Duration::ZERO,
                notify: std::sync::Arc::new(|news: &_| println!("{news}")),
            }),
            None => engine,
        }
    }

    /// The result of one process, and the first step that it took.
    fn alone(&self) -> (TrainedModel, u64) {
        let task = self.task();
        let mut first = 0;
        let mut progress = |step: crate::engine::TrainingStep| {
            first = if first == 0 { step.step } else { first };
            if self.exit_at == Some(step.step) { ControlFlow::Break(()) } else { go_on(step) }
        };
        let mut engine = self.engine();
        let trained =
            engine.train(&task.model, &task.start, &task.rows, &self.training(), 7, &mut progress);
        match trained {
            Err(TrainError::Stopped { .. }) => {
                (TrainedModel { params: vec![], steps: 0, mean_loss: 0.0 }, first)
            }
            trained => (trained.unwrap(), first),
        }
    }

    /// Starts a rank of a group at a port.
    fn start(&self, rank: u32, size: u32, port: u16) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", RANK_PROCESS, "--nocapture"])
            .env(SCENARIO, serde_json::to_string(self).unwrap())
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", size.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Runs all ranks, and returns what each of them printed.
    fn run(&self, size: u32) -> Vec<String> {
        let port = free_port();
        let is_started = |rank: &u32| self.fault != Some((*rank, Fault::Absent));
        let ranks: Vec<Child> =
            (0..size).filter(is_started).map(|rank| self.start(rank, size, port)).collect();
        ranks.into_iter().map(|rank| text(&rank.wait_with_output().unwrap())).collect()
    }
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn digest(trained: &TrainedModel) -> String {
    let bytes: Vec<u8> = trained.params.iter().flat_map(|number| number.to_le_bytes()).collect();
    format!("{} {:x}", blake3::hash(&bytes), trained.mean_loss.to_bits())
}

/// A rank of a scenario: prints its digest, or its error.
#[test]
fn rank_process() {
    let Ok(scenario) = std::env::var(SCENARIO) else { return };
    let scenario: RankScenario = serde_json::from_str(&scenario).unwrap();
    let place = RankPlace::from_environment(|name| std::env::var(name).ok()).unwrap().unwrap();
    let rank = place.rank;
    let fault = scenario.fault.filter(|&(own, _)| own == rank).map(|(_, fault)| fault);
    let task = scenario.task();
    let seed = if fault == Some(Fault::OtherSeed) { 8 } else { 7 };
    let facts: RankFacts = [("seed".to_owned(), seed.to_string())].into();
    let (rows, pipeline) = scenario.rows(rank, fault, &task.rows);
    let interface = if fault == Some(Fault::Interface) { "florin9" } else { "lo" };
    let settings = RankSettings {
        place,
        device: "CPU".to_owned(),
        interface: Some(interface.to_owned()),
        limit: Duration::from_secs(scenario.limit),
        pinned: Some(scenario.pinned.clone()).filter(|pinned| !pinned.is_empty()),
        reduction: scenario.reduction,
        overlaps: scenario.overlaps,
        pipeline,
        rows,
        memory: MemorySettings::default(),
        memory_bytes: None,
    };
    let notify = Box::new(|news: &RankNews| println!("{news}"));
    let mut ranks = match Ranks::join(settings, &facts, notify) {
        Ok(ranks) => ranks,
        Err(error) => return println!("error {}: {error}", error.code),
    };
    let mut engine = scenario.engine();
    let error = if rank == 0 {
        engine = engine.with_ranks(ranks);
        let mut progress = |step: crate::engine::TrainingStep| {
            if scenario.exit_at == Some(step.step) {
                std::process::abort();
            }
            go_on(step)
        };
        let (how, seed) = (scenario.training(), 7);
        match engine.train(&task.model, &task.start, &task.rows, &how, seed, &mut progress) {
            Ok(trained) => return println!("digest {}", digest(&trained)),
            Err(error) => error,
        }
    } else {
        match fault {
            Some(Fault::Exits) => std::process::abort(),
            Some(Fault::Stalls) => std::thread::sleep(Duration::from_secs(scenario.limit + 20)),
            _ => {}
        }
        let rows = match fault {
            _ if scenario.private => None,
            Some(Fault::OtherRows) => {
                let backwards: Vec<usize> = (0..ROWS).rev().collect();
                Some(task.rows.subset(&backwards).unwrap())
            }
            _ => Some(task.rows),
        };
        let mut go_on = || ControlFlow::Continue(());
        match ranks.serve_on(&engine, &task.model, rows.as_ref(), &mut go_on) {
            Ok(()) => return println!("served"),
            Err(error) => error,
        }
    };
    match error {
        TrainError::Ranks(error) => println!("error {}: {error}", error.code),
        error => println!("error {error}"),
    }
}

fn line<'a>(output: &'a str, begins: &str) -> &'a str {
    let found = output.lines().find_map(|line| line.split_once(begins));
    found.unwrap_or_else(|| panic!("no line with {begins:?} in\n{output}")).1
}

#[test]
fn a_group_of_processes_sums_along_the_tree() {
    // Batch statistics; attention with a parameter that is used twice; dropout.
    for (model, adam) in [("resnet", false), ("gpt", true), ("vit", false), ("mlp", true)] {
        let scenario = RankScenario { adam, ..RankScenario::new(model, 8) };
        let expected = digest(&scenario.alone().0);
        let sizes: &[u32] = if model == "gpt" { &[2, 4, 8] } else { &[2, 3] };
        for &size in sizes {
            let outputs = scenario.run(size);
            assert_eq!(line(&outputs[0], "digest "), expected, "{model} on {size} processes");
            assert!(outputs[1..].iter().all(|output| output.contains("served")), "{outputs:?}");
        }
    }
}

#[test]
fn neither_the_assignment_of_workers_nor_the_reduction_changes_a_bit() {
    let mut scenario = RankScenario::new("mlp", 7);
    let expected = digest(&scenario.alone().0);
    for pinned in [vec![0..1, 4..7, 1..4], vec![0..5, 5..5, 5..7], vec![0..7, 7..7, 7..7]] {
        scenario.pinned = pinned;
        assert_eq!(line(&scenario.run(3)[0], "digest "), expected, "{:?}", scenario.pinned);
    }
    scenario.pinned.clear();
    for overlaps in [None, Some(false)] {
        scenario.overlaps = overlaps;
        assert_eq!(line(&scenario.run(2)[0], "digest "), expected, "{overlaps:?}");
    }
    scenario.overlaps = Some(true);
    scenario.pinned = vec![0..2, 4..7, 2..4];
    for plan in [
        "chunks=1,inner=root,levels=0,outer=root",
        "chunks=5,inner=tree,levels=0,outer=tree",
        "chunks=3,inner=halving,levels=0,outer=halving",
        "chunks=2,inner=halving,levels=2,outer=root",
    ] {
        scenario.reduction = Some(plan.parse().unwrap());
        let output = &scenario.run(3)[0];
        assert_eq!(line(output, "digest "), expected, "{plan}");
        assert!(output.contains(&format!("reduction {plan}: ")), "{output}");
    }
    scenario.pinned = vec![0..3, 3..7];
    let refused = scenario.run(3);
    assert_eq!(line(&refused[0], "error ").split(':').next(), Some("RANK_PLAN_INVALID"));
}

#[test]
fn pipelines_compute_the_bits_of_one_process() {
    // Ranks, and parts of the graph.
    let table: [(&str, &[(u32, u32)]); 4] = [
        ("resnet", &[(2, 2), (4, 2), (3, 3)]),
        ("gpt", &[(4, 4), (6, 2)]),
        ("vit", &[(3, 3)]),
        ("mlp", &[(2, 2)]),
    ];
    for (model, shapes) in table {
        let mut scenario = RankScenario { adam: model == "gpt", ..RankScenario::new(model, 5) };
        let expected = digest(&scenario.alone().0);
        for &(size, parts) in shapes {
            scenario.parts = parts;
            let outputs = scenario.run(size);
            assert_eq!(line(&outputs[0], "digest "), expected, "{model}: {size} in {parts}");
            assert!(outputs[1..].iter().all(|output| output.contains("served")), "{outputs:?}");
            let shown = format!(" of {parts} parts, cut=");
            assert!(outputs[0].contains(&shown), "{}", outputs[0]);
        }
    }
}

#[test]
fn private_pipelines_compute_the_bits_of_one_process() {
    // Ranks, of which the first has the rows and two parts of the graph.
    let table: [(&str, &[u32]); 4] =
        [("resnet", &[2, 3]), ("gpt", &[2, 3]), ("vit", &[2]), ("mlp", &[2])];
    for (model, sizes) in table {
        // Of the 24 steps of 6 epochs one is audited.
        let epochs = if model == "resnet" { 6 } else { 2 };
        let adam = model == "gpt";
        let mut scenario =
            RankScenario { adam, epochs, private: true, ..RankScenario::new(model, 5) };
        let expected = digest(&scenario.alone().0);
        for &size in sizes {
            scenario.parts = size;
            let outputs = scenario.run(size);
            assert_eq!(line(&outputs[0], "digest "), expected, "{model}: {size}");
            assert!(outputs[1..].iter().all(|output| output.contains("served")), "{outputs:?}");
            let shown = format!("1 pipeline of {} parts, cut=", size + 1);
            assert!(outputs[0].contains(&shown), "{}", outputs[0]);
        }
    }
}

#[test]
fn a_private_training_continues_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let whole = RankScenario { private: true, parts: 2, ..RankScenario::new("resnet", 4) };
    let expected = digest(&whole.alone().0);
    let stopped = RankScenario { checkpoint: state(folder.path()), exit_at: Some(3), ..whole };
    let killed = stopped.run(2);
    assert!(!killed[0].contains("digest"), "{}", killed[0]);
    let output = &RankScenario { exit_at: None, ..stopped }.run(2)[0];
    assert_eq!(line(output, "digest "), expected);
    assert!(output.contains("continues after step 2 of"), "{output}");
}

#[test]
fn a_private_pipeline_is_refused_where_it_is_none() {
    let private = |parts, cut: Option<&str>| RankScenario {
        parts,
        private: true,
        cut: cut.map(str::to_owned),
        pinned: std::iter::once(0..4).collect(),
        limit: 10,
        ..RankScenario::new("gpt", 4)
    };
    // Two pipelines; a cut with a part too few; one that would send the tokens.
    for (scenario, size) in
        [(private(2, None), 4), (private(2, Some("cut=2")), 2), (private(2, Some("cut=1,26")), 2)]
    {
        let output = &scenario.run(size)[0];
        let code = line(output, "error ").split(':').next().unwrap();
        assert_eq!(code, "RANK_PLAN_INVALID", "{output}");
    }
    // One rank has rows.
    let scenario = RankScenario { fault: Some((1, Fault::HasRows)), ..private(2, None) };
    let outputs = scenario.run(2);
    let error = line(&outputs[0], "error ");
    assert!(error.starts_with("RANKS_DISAGREE: "), "{error}");
    assert!(error.contains("about --rank-private: rank 1 has no, rank 0 has yes"), "{error}");
}

#[test]
fn a_stated_cut_is_used_or_refused() {
    let whole = RankScenario::new("mlp", 4);
    let expected = digest(&whole.alone().0);
    let stated = |cut: &str, parts| RankScenario {
        parts,
        cut: Some(cut.to_owned()),
        pinned: vec![0..1, 1..4],
        ..whole.clone()
    };
    let output = &stated("cut=2", 2).run(4)[0];
    assert_eq!(line(output, "digest "), expected, "{output}");
    assert!(output.contains("2 pipelines of 2 parts, cut=2: "), "{output}");
    for (cut, parts, size) in [("cut=2", 3, 3), ("cut=2,99", 3, 6), ("cut=2", 2, 3)] {
        let output = &stated(cut, parts).run(size)[0];
        assert!(line(output, "error ").starts_with("RANK_PLAN_INVALID: "), "{output}");
    }
}

#[test]
fn a_part_that_computes_on_other_rows_is_found() {
    let scenario = RankScenario {
        epochs: 6,
        parts: 2,
        fault: Some((1, Fault::OtherRows)),
        ..RankScenario::new("mlp", 4)
    };
    let first = &scenario.run(2)[0];
    assert!(line(first, "error ").starts_with("RANK_DIFFERS: "), "{first}");
    // By measured speeds the pipeline or the rank with the fault may have no worker.
    let scenario = RankScenario { pinned: vec![0..2, 2..4], ..scenario };
    let other = RankScenario { fault: Some((2, Fault::OtherRows)), ..scenario.clone() };
    let first = &other.run(4)[0];
    assert!(line(first, "error ").starts_with("RANK_DIFFERS: "), "{first}");
    let halving = "chunks=2,inner=halving,levels=0,outer=halving".parse().unwrap();
    let scenario = RankScenario { parts: 0, reduction: Some(halving), ..scenario };
    let first = &scenario.run(2)[0];
    assert!(line(first, "error ").starts_with("RANK_DIFFERS: "), "{first}");
}

#[test]
fn one_worker_trains_as_a_process_without_workers() {
    // Models that draw no random numbers: workers have seeds of their own.
    for model in models().iter().filter(|model| !is_random(model)) {
        let scenario = RankScenario::new(model, 1);
        let task = scenario.task();
        let how = Training { execution: Execution::default(), ..scenario.training() };
        let mut engine = scenario.engine();
        let plain =
            engine.train(&task.model, &task.start, &task.rows, &how, 7, &mut go_on).unwrap();
        let (by_one, _) = scenario.alone();
        assert!(plain.params == by_one.params, "{model}");
        assert!((plain.mean_loss - by_one.mean_loss).abs() < 1e-6);
    }
    let by = |workers| RankScenario::new("resnet", workers).alone().0.params;
    assert!(by(1) != by(8), "the tree has another rounding");
}

fn state(folder: &Path) -> Option<PathBuf> {
    Some(folder.join("training.safetensors"))
}

#[test]
fn a_stopped_training_continues_to_the_same_bits() {
    for (model, adam) in [("resnet", false), ("vit", true)] {
        let folder = tempfile::tempdir().unwrap();
        let whole = RankScenario { adam, ..RankScenario::new(model, 4) };
        let expected = digest(&whole.alone().0);
        let stopped =
            RankScenario { checkpoint: state(folder.path()), exit_at: Some(3), ..whole.clone() };
        stopped.alone();
        assert!(state(folder.path()).unwrap().exists());
        let continued = RankScenario { exit_at: None, ..stopped.clone() };
        let (trained, first) = continued.alone();
        assert_eq!((digest(&trained), first), (expected.clone(), 4), "{model}");
        assert!(!state(folder.path()).unwrap().exists(), "the file ends with the training");
        // At the end of an epoch, whose losses must not count twice.
        let stopped = RankScenario { exit_at: Some(4), ..stopped };
        stopped.alone();
        assert_eq!((digest(&continued.alone().0)), expected, "{model} after an epoch");
        // A process that is killed within a step, continued by other processes.
        let stopped = RankScenario { exit_at: Some(3), ..stopped };
        let killed = stopped.run(2);
        assert!(!killed[0].contains("digest"), "{}", killed[0]);
        let output = &continued.run(3)[0];
        assert_eq!(line(output, "digest "), expected, "{model}");
        assert!(output.contains("continues after step 2 of"), "{output}");
    }
}

#[test]
fn ranks_that_fail_end_the_training_with_a_code() {
    let table = [
        (Fault::OtherSeed, "RANKS_DISAGREE", "about seed: rank 1 has 8, rank 0 has 7"),
        (Fault::OtherRows, "RANK_DIFFERS", "rank 1"),
        (Fault::Exits, "RANK_LOST", "is gone"),
        (Fault::Stalls, "RANK_STALLED", "has not answered within 5 seconds"),
        (Fault::Interface, "RANK_MISSING", "rank 1 of 2 has not joined within 5 seconds"),
        (Fault::Absent, "RANK_MISSING", "rank 1 of 2 has not joined within 5 seconds"),
    ];
    for (fault, code, message) in table {
        // Long enough that a check of the gradients is certain.
        let scenario = RankScenario {
            epochs: 6,
            // By measured speeds a slow rank may have no worker, and nothing to fail with.
            pinned: vec![0..2, 2..4],
            limit: 5,
            fault: Some((1, fault)),
            ..RankScenario::new("mlp", 4)
        };
        let start = Instant::now();
        let port = free_port();
        let mut ranks: Vec<Child> = match fault {
            Fault::Absent => vec![scenario.start(0, 2, port)],
            _ => (0..2).map(|rank| scenario.start(rank, 2, port)).collect(),
        };
        let first = text(&ranks.remove(0).wait_with_output().unwrap());
        let seconds = start.elapsed().as_secs();
        for mut rank in ranks {
            if fault == Fault::Interface {
                let own = text(&rank.wait_with_output().unwrap());
                assert!(own.contains("INTERFACE_MISSING"), "{own}");
            } else {
                let _ = rank.kill();
                rank.wait().unwrap();
            }
        }
        let error = line(&first, "error ");
        assert!(error.starts_with(code) && error.contains(message), "{fault:?}: {first}");
        assert!(!first.contains("digest") && seconds < 30, "{fault:?}: {seconds} s");
    }
}

#[test]
fn a_missing_rank_is_named_to_all() {
    let scenario =
        RankScenario { limit: 4, fault: Some((2, Fault::Absent)), ..RankScenario::new("mlp", 4) };
    for output in scenario.run(3) {
        let error = line(&output, "error ");
        assert!(error.starts_with("RANK_MISSING: rank 2 of 3 has not joined"), "{output}");
    }
}

#[test]
fn a_number_of_a_running_start_is_refused() {
    let port = free_port();
    let scenario = RankScenario { limit: 6, ..RankScenario::new("mlp", 4) };
    let stalls = RankScenario { fault: Some((1, Fault::Stalls)), ..scenario.clone() };
    let first = stalls.start(0, 2, port);
    let mut other = stalls.start(1, 2, port);
    std::thread::sleep(Duration::from_secs(2));
    let second = text(&scenario.start(1, 2, port).wait_with_output().unwrap());
    let error = line(&second, "error ");
    assert!(error.starts_with("RANK_ENVIRONMENT_INVALID: there is a rank 1 at"), "{second}");
    let first = text(&first.wait_with_output().unwrap());
    assert!(line(&first, "error ").starts_with("RANK_STALLED"), "{first}");
    other.kill().unwrap();
    other.wait().unwrap();
}
