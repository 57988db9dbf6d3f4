//! `florin-bench soak`: a market in which a process is killed every minute. Every role has its own
//! process. At the end the benchmark checks that memory grew only by the stored data, that the
//! balances are consistent, and that an auditor can recompute the rounds.

mod memory;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use florin_participant::{Client, ClientConfig};
use florin_protocol::{TaskId, TaskPhase};

use super::Measurement;
use super::server::market::BenchMarket;
use crate::arguments::BenchSoak;
use florin::show;
use memory::{MemoryHistory, MemorySample};

/// Frequent snapshots, so that the benchmark covers them.
const SETTINGS: &str = "[journal]\nsnapshot_events = 2000\n";
/// Rows of the digits, split among the participants.
const ROWS: usize = 1_797;
/// Interval of the checks of the processes.
const POLL: Duration = Duration::from_millis(200);
/// Interval of the samples of the coordinator's memory.
const LOOK: Duration = Duration::from_secs(5);
/// Timeout for the end of a task after its buyer has closed it.
const LAST: Duration = Duration::from_secs(600);
/// Maximum memory at the end, in MiB.
const MEMORY_MIB: f64 = 512.0;
/// Maximum growth per round in KiB: the digests of its blobs in the state and in the store, and the
/// overhead of the allocator.
const ROUND_KIB: f64 = 20.0;

/// The process to kill, in this order. In the second half of the time the coordinator is not
/// killed, so that a memory leak becomes visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Participant,
    Provider,
    Coordinator,
}

const TURNS: [Victim; 3] = [Victim::Participant, Victim::Provider, Victim::Coordinator];

/// A market under test.
struct Soak {
    market: BenchMarket,
    names: Vec<String>,
    tasks: Vec<TaskId>,
    /// Number of reported rounds of all tasks.
    rounds: u32,
    kills: [u32; TURNS.len()],
    turns: usize,
    /// Processes that exited with an error without being killed.
    failed: Vec<String>,
    memory: MemoryHistory,
    begun: Instant,
}

pub(super) fn run(arguments: &BenchSoak) -> anyhow::Result<Vec<Measurement>> {
    let length = Duration::from_secs(u64::from(arguments.minutes) * 60);
    let every = Duration::from_secs(u64::from(arguments.kill_every));
    let mut soak = Soak::open(arguments.participants)?;
    let mut killed = Instant::now();
    while soak.begun.elapsed() < length {
        soak.keep_working()?;
        if killed.elapsed() >= every {
            killed = Instant::now();
            soak.kill_next(soak.begun.elapsed() < length / 2)?;
        }
        std::thread::sleep(POLL);
    }
    soak.end()?;
    let mut rows = soak.figures(arguments.participants);
    rows.extend(soak.audit()?);
    Ok(rows)
}

impl Soak {
    fn open(participants: u32) -> anyhow::Result<Self> {
        let names: Vec<String> = (0..participants).map(|n| format!("participant-{n}")).collect();
        let named: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut market = BenchMarket::open_with(0, &named, SETTINGS)?;
        market.start_provider()?;
        Ok(Self {
            market,
            names,
            tasks: Vec::new(),
            rounds: 0,
            kills: [0; TURNS.len()],
            turns: 0,
            failed: Vec::new(),
            memory: MemoryHistory::default(),
            begun: Instant::now(),
        })
    }

    /// Samples memory, tasks and processes; publishes the next task when all participants have
    /// completed the last one.
    fn keep_working(&mut self) -> anyhow::Result<()> {
        self.sample_memory(LOOK)?;
        for (name, well) in self.market.take_exited()? {
            if !well || name == "provider" {
                let log = self.market.log(&name);
                let last: Vec<&str> = log.lines().rev().take(3).collect();
                self.failed.push(format!("{name}: {}", last.join(" / ")));
            }
        }
        if self.market.is_idle() {
            let task = self.publish()?;
            self.tasks.push(task);
            for at in 0..self.names.len() {
                self.start(at)?;
            }
        }
        Ok(())
    }

    fn publish(&self) -> anyhow::Result<TaskId> {
        let text = include_str!("task.toml")
            .replace("@SALT@", &self.tasks.len().to_string())
            .replace("@COHORT@", &self.names.len().to_string());
        self.market.publish_task(&text)
    }

    /// Starts a participant of the current task.
    fn start(&mut self, at: usize) -> anyhow::Result<()> {
        let task = *self.tasks.last().context("a task is published before a participant starts")?;
        let name = self.names.get(at).context("every participant has a name")?.clone();
        let share = |at: usize| ROWS.saturating_mul(at) / self.names.len().max(1);
        let rows = share(at)..share(at.saturating_add(1));
        self.market.start_participant(&name, task, rows)
    }

    /// Kills the next process in turn, and starts it again.
    fn kill_next(&mut self, include_coordinator: bool) -> anyhow::Result<()> {
        if !include_coordinator && TURNS.get(self.turns % TURNS.len()) == Some(&Victim::Coordinator)
        {
            self.turns = self.turns.saturating_add(1);
        }
        let turn = self.turns;
        self.turns = turn.saturating_add(1);
        let place = turn % TURNS.len();
        let victim = TURNS.get(place).copied().context("every turn has a victim")?;
        let there = match victim {
            Victim::Coordinator => {
                self.sample_memory(Duration::ZERO)?;
                self.market.restart_coordinator()?;
                self.memory.restarted();
                true
            }
            Victim::Provider => {
                let there = self.market.kill("provider")?;
                self.market.start_provider()?;
                there
            }
            Victim::Participant => {
                let at = turn / TURNS.len() % self.names.len().max(1);
                let name = self.names.get(at).context("every participant has a name")?.clone();
                let there = self.market.kill(&name)?;
                if there {
                    self.start(at)?;
                }
                there
            }
        };
        if let Some(count) = self.kills.get_mut(place).filter(|_| there) {
            *count = count.saturating_add(1);
        }
        Ok(())
    }

    fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::connect(&ClientConfig::new(&self.market.url))?)
    }

    /// Counts the rounds and samples the coordinator's memory, if the last sample is older than
    /// `after`.
    fn sample_memory(&mut self, after: Duration) -> anyhow::Result<()> {
        if self.memory.last().is_some_and(|last| self.begun.elapsed() < last + after) {
            return Ok(());
        }
        let client = self.client()?;
        let mut rounds = 0u32;
        for task in &self.tasks {
            rounds = rounds.saturating_add(client.task(*task)?.reported);
        }
        self.rounds = rounds;
        let mib = self.market.usage()?.resident_mib;
        self.memory.add(MemorySample { at: self.begun.elapsed(), rounds, mib });
        Ok(())
    }

    /// Closes the last task, and waits until all participants have completed it.
    fn end(&mut self) -> anyhow::Result<()> {
        self.sample_memory(Duration::ZERO)?;
        if let Some(task) = self.tasks.last() {
            let task = task.to_string();
            let arguments = ["task", "close", &task, "--market", &self.market.url];
            let (_, closed) = self.market.call(&arguments, Some("buyer"))?;
            ensure!(closed, "task {task} cannot be closed:\n{}", self.market.log("commands"));
        }
        let begun = Instant::now();
        while begun.elapsed() < LAST && !self.market.is_idle() {
            for (name, well) in self.market.take_exited()? {
                if !well {
                    self.failed.push(name);
                }
            }
            std::thread::sleep(POLL);
        }
        ensure!(self.market.is_idle(), "participants did not exit within {} s", LAST.as_secs());
        let client = self.client()?;
        for task in &self.tasks {
            let phase = client.task(*task)?.phase;
            ensure!(phase == TaskPhase::Done, "task {task} is not done, but in phase {phase:?}");
        }
        self.rounds = self.tasks.iter().try_fold(0u32, |sum, task| {
            anyhow::Ok(sum.saturating_add(client.task(*task)?.reported))
        })?;
        Ok(())
    }

    fn figures(&self, participants: u32) -> Vec<Measurement> {
        let minutes = self.begun.elapsed().as_secs_f64() / 60.0;
        let name = format!("{participants} participants, a provider, a coordinator, for");
        let mut rows = vec![
            Measurement::plain(name, minutes, "min"),
            Measurement::at_least("  rounds reported", f64::from(self.rounds), "", 1.0),
            Measurement::plain("  tasks", count(self.tasks.len()), ""),
        ];
        for (victim, kills) in TURNS.iter().zip(self.kills) {
            let name = format!("  {victim:?} killed and restarted").to_lowercase();
            rows.push(Measurement::plain(name, f64::from(kills), "times"));
        }
        rows.push(Measurement::at_most("processes that failed", count(self.failed.len()), "", 0.0));
        for who in &self.failed {
            anstream::eprintln!("{}failed: {who}{:#}", show::BAD, show::BAD);
        }
        for share in [10, 50, 100] {
            let name = format!("coordinator's resident memory after {share} % of the time");
            rows.push(Measurement::plain(name, self.memory.at(share), "MiB"));
        }
        rows.push(Measurement::below("  maximum", self.memory.highest(), "MiB", MEMORY_MIB));
        let grows = self.memory.growth_kib();
        rows.push(Measurement::at_most("  growth per round", grows, "KiB", ROUND_KIB));
        if let Some(state) = state_kib(&self.market.path("market"), &self.memory) {
            rows.push(Measurement::plain("  state on disk, per round", state, "KiB"));
        }
        rows
    }

    /// Reads everything back and recomputes all rounds.
    fn audit(&mut self) -> anyhow::Result<Vec<Measurement>> {
        let (mut recomputed, mut mismatches) = (0u64, 0usize);
        for task in &self.tasks {
            let task = task.to_string();
            let url = self.market.url.as_str();
            let arguments = ["audit", &task, "--market", url, "--engine", "reference", "--json"];
            let (output, _) = self.market.call(&arguments, None)?;
            let found: serde_json::Value = serde_json::from_str(&output)
                .with_context(|| format!("audit of {task}:\n{}", self.market.log("commands")))?;
            recomputed += found.get("rounds").and_then(serde_json::Value::as_u64).unwrap_or(0);
            let list = found.get("mismatches").and_then(serde_json::Value::as_array);
            mismatches += list.map_or(1, Vec::len);
        }
        self.market.stop_coordinator()?;
        let data = self.market.path("market").display().to_string();
        let (ledger_output, in_order) =
            self.market.call(&["ledger", "verify", "--data", &data], None)?;
        let check = ["coordinate", "--check", "--data", &data];
        let (found, whole) = self.market.call(&check, Some("coordinator"))?;
        for (text, _) in
            [(ledger_output, in_order), (found, whole)].iter().filter(|(_, good)| !good)
        {
            anstream::eprintln!("{text}{}", self.market.log("commands"));
        }
        let faults = |good: bool| if good { 0.0 } else { 1.0 };
        let (all, again) = (f64::from(self.rounds), u32::try_from(recomputed)?);
        Ok(vec![
            Measurement::at_least("rounds recomputed by an auditor", f64::from(again), "", all),
            Measurement::at_most("  mismatches found", count(mismatches), "", 0.0),
            Measurement::at_most("faults found by `ledger verify`", faults(in_order), "", 0.0),
            Measurement::at_most("faults found by `coordinate --check`", faults(whole), "", 0.0),
        ])
    }
}

fn count(things: usize) -> f64 {
    f64::from(u32::try_from(things).unwrap_or(u32::MAX))
}

/// The size of the newest snapshot per round, in KiB.
fn state_kib(data: &Path, memory: &MemoryHistory) -> Option<f64> {
    let entries = std::fs::read_dir(data).ok()?.flatten();
    let snapshots = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let found = entry.metadata().ok()?;
        let since = found.modified().ok()?.elapsed().ok()?;
        name.starts_with("snapshot-").then_some((since, found.len()))
    });
    let (since, bytes) = snapshots.min()?;
    let rounds = memory.rounds_before(since)?;
    Some(f64::from(u32::try_from(bytes / 1_024).ok()?) / f64::from(rounds))
}
