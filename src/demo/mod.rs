//! `florin demo`: a complete market on this machine. Each role is a process of this program: the
//! coordinator with its ledger, the buyer, eight participants, the provider and the auditor. They
//! communicate only over the loopback interface.

mod children;
mod compute;
#[cfg(feature = "ethereum")]
mod ethereum;
#[cfg(not(feature = "ethereum"))]
#[path = "without_ethereum.rs"]
mod ethereum;
mod html;
mod outcome;
pub mod plan;
mod progress;
pub mod setup;
mod table;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use florin_learning::DataSource;
use florin_learning::data::load;
use florin_ledger::Ledger;
use florin_participant::{ParticipantEvent, required_bond};
use florin_protocol::{Amount, Report, RoundNumber, TaskId, TaskPhase, TaskSpec};
use serde_json::Value;

use crate::cli::{Demo, EngineArg, LedgerKind, MarketArg, NodeArg, TrustArg};
use crate::compose;
use crate::evaluation::evaluate;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;
use children::Children;
use ethereum::{DemoChain, OnChain};
use outcome::{DemoOutcome, ModelResult, ParticipantResult};
use progress::DemoProgress;
use setup::{DemoFolder, DemoSetup};

/// Timeout of a process that should be fast.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Timeout between two changes of the task's state.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
/// Long-poll timeout; also the longest delay of an interrupt.
const LOOK_MS: u64 = 250;

/// Runs the demonstration.
pub(crate) fn run(arguments: &Demo) -> anyhow::Result<Exit> {
    if arguments.compute {
        return compute::run(arguments);
    }
    for file in [Some(&arguments.out), arguments.json.as_ref()].into_iter().flatten() {
        writable(file)?;
    }
    children::catch_interrupts()?;
    let begun = Instant::now();
    let folder = DemoFolder::create(arguments.keep.as_deref())?;
    let progress = DemoProgress::new(arguments.rounds);
    progress.step("Preparing shards, wallets and the task");
    let stage =
        DemoSetup::create(folder.path(), arguments.seed, arguments.rounds, arguments.format)?;
    let children = Children::new(stage.logs())?;
    let mut play = DemoContext {
        stage,
        children,
        progress,
        engine: arguments.engine,
        url: String::new(),
        chain: None,
    };
    let result = play.run_market(arguments);
    play.progress.finish();
    play.children.stop(Duration::from_secs(2));
    // A terminal sends Ctrl-C to the children too, so any step may have failed before this process
    // saw the signal.
    children::check_interrupted()?;
    let mut outcome = result?;
    outcome.seconds = begun.elapsed().as_secs_f64();
    finish(arguments, &outcome)
}

/// Checks at the start that a file can be written at the end. Leaves no file behind, so that a
/// demonstration that ends early leaves no empty report.
pub(crate) fn writable(file: &Path) -> anyhow::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    let opened = match options.append(true).create_new(true).open(file) {
        Ok(_) => std::fs::remove_file(file),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            options.create_new(false).open(file).map(drop)
        }
        Err(error) => Err(error),
    };
    opened.with_context(|| file.display().to_string())
}

/// Prints the result and writes the report files.
fn finish(arguments: &Demo, outcome: &DemoOutcome) -> anyhow::Result<Exit> {
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| path.display().to_string())
    };
    // Write the files first, so that they exist even if the reader of standard output closes the
    // pipe.
    write(&arguments.out, html::page(outcome)?)?;
    if let Some(file) = &arguments.json {
        write(file, format!("{:#}\n", outcome.to_json()?))?;
    }
    table::print(outcome)?;
    let shown = std::path::absolute(&arguments.out).unwrap_or_else(|_| arguments.out.clone());
    anstream::println!("\n{}Report{:#}   {}", show::HEAD, show::HEAD, shown.display());
    anstream::println!("{}Time{:#}     {:.1} s", show::HEAD, show::HEAD, outcome.seconds);
    let chain = outcome.on_chain.as_ref().is_none_or(|on_chain| on_chain.is_clean());
    let clean = outcome.audit.1.is_empty() && outcome.balances()? && chain;
    Ok(if clean { Exit::Done } else { Exit::Negative })
}

/// The context of a running demonstration.
struct DemoContext {
    stage: DemoSetup,
    children: Children,
    progress: DemoProgress,
    engine: EngineArg,
    url: String,
    /// The Ethereum chain; `None` with an embedded ledger.
    chain: Option<DemoChain>,
}

impl DemoContext {
    fn run_market(&mut self, arguments: &Demo) -> anyhow::Result<DemoOutcome> {
        if arguments.ledger == LedgerKind::Ethereum {
            self.progress.step("Starting anvil, deploying the contracts, funding the accounts");
            self.chain = Some(DemoChain::open(&mut self.children, &self.stage, &arguments.anvil)?);
        }
        self.open_market()?;
        let task = self.publish()?;
        let market = MarketConnection::connect(&self.arg())?;
        self.start_processes(&market.task(task)?.spec, arguments.seed)?;
        let reports = self.follow_rounds(&market, task, arguments.rounds)?;
        self.progress.step("Claiming");
        for at in 0..self.stage.participants.len() {
            let name = self.stage.participants[at].name;
            self.wait_for_exit(name)?;
        }
        self.wait_for_exit("provider")?;
        self.progress.step("Auditing");
        let audit = self.audit(task)?;
        let on_chain = match &self.chain {
            None => None,
            Some(chain) => {
                self.progress.step(
                    "Verifying the contracts, and replaying all payments on an embedded ledger",
                );
                let look = (&self.stage, &mut self.children);
                Some(OnChain::collect(chain, look, task, &reports)?)
            }
        };
        let outcome = self.outcome(&market, task, arguments, reports, audit)?;
        Ok(DemoOutcome { on_chain, ..outcome })
    }

    fn engine(&self) -> [String; 2] {
        ["--engine".to_owned(), self.engine.engine.to_string()]
    }

    fn open_market(&mut self) -> anyhow::Result<()> {
        self.progress.step("Opening the market");
        let stage = &self.stage;
        let address = stage.path("address");
        let mut call = words(&["coordinate", "--listen", "127.0.0.1:0"]);
        call.extend(["--data".to_owned(), stage.path("coordinator")]);
        match &self.chain {
            None => call.extend(["--genesis".to_owned(), stage.path("genesis.toml")]),
            Some(chain) => {
                call.extend(words(&["--ledger", "ethereum", "--rpc", chain.rpc(), "--deployment"]));
                call.push(stage.path("deployment.toml"));
            }
        }
        call.extend(["--address-file".to_owned(), address.clone()]);
        call.extend(stage.signing("coordinator"));
        call.extend(self.engine());
        self.children.start("coordinator", &call)?;
        let at = self.children.wait_for_file("coordinator", Path::new(&address), PATIENCE)?;
        self.url = format!("http://{at}");
        Ok(())
    }

    fn arg(&self) -> MarketArg {
        MarketArg { market: self.url.clone(), trust: TrustArg::default(), node: NodeArg::default() }
    }

    fn market(&self) -> [String; 2] {
        ["--market".to_owned(), self.url.clone()]
    }

    fn publish(&mut self) -> anyhow::Result<TaskId> {
        self.progress.step("Publishing the task and locking its budget");
        let mut call = words(&["task", "publish", "--json"]);
        call.push(self.stage.path("task.toml"));
        call.extend(self.market());
        call.extend(self.stage.signing("buyer"));
        let answer = run_json(&mut self.children, "buyer", &call)?;
        let id = answer["task"].as_str().context("`task publish` returned no task")?;
        Ok(id.parse()?)
    }

    fn start_processes(&mut self, spec: &TaskSpec, seed: u64) -> anyhow::Result<()> {
        let task = spec.id();
        self.progress.step("Starting the provider and eight participants");
        // The demonstration has one operator, who is coordinator and arbiter.
        let mut call = words(&["provide", "--task", &task.to_string(), "--trust-coordinator"]);
        call.extend(["--max-stake".to_owned(), spec.budget.stake_min.to_string()]);
        call.extend(self.market());
        call.extend(self.stage.signing("provider"));
        call.extend(self.engine());
        self.children.start("provider", &call)?;
        // Wait for the provider before any participant can train: a round without a provider pays
        // no infrastructure, and the payouts would not be reproducible.
        self.children.wait_for_line("provider", ParticipantEvent::READY_PREFIX, PATIENCE)?;
        for actor in &self.stage.participants {
            let mut call = words(&["participate", "--task", &task.to_string()]);
            call.push("--trust-coordinator".to_owned());
            call.extend(self.market());
            call.extend(self.stage.signing(actor.name));
            call.extend(["--shard".to_owned(), self.stage.path(&format!("{}.florin", actor.name))]);
            call.extend(["--seed".to_owned(), seed.to_string()]);
            // No bond is topped up, so that the result shows every debit.
            let bond = required_bond(spec, actor.rows, None);
            call.extend(["--max-bond".to_owned(), bond.to_string()]);
            call.extend(self.engine());
            if let Some(experiment) = actor.behaviour.experiment() {
                call.extend(words(&["--experiment", experiment]));
            }
            self.children.start(actor.name, &call)?;
        }
        Ok(())
    }

    /// Follows the task to its end through the public interface.
    fn follow_rounds(
        &mut self,
        market: &MarketConnection,
        task: TaskId,
        rounds: u32,
    ) -> anyhow::Result<Vec<Report>> {
        let mut reports: Vec<Report> = Vec::new();
        let mut view = market.task(task)?;
        let mut changed = Instant::now();
        loop {
            self.progress.phase(&view);
            while reports.len() < view.reported as usize {
                let round = RoundNumber(u32::try_from(reports.len())? + 1);
                let report = market.report(task, round)?.body;
                self.progress.round(&report)?;
                reports.push(report);
            }
            if view.phase == TaskPhase::Done {
                break;
            }
            self.children.check()?;
            let next = market.task_after(task, view.sequence, LOOK_MS)?;
            if next.sequence != view.sequence {
                changed = Instant::now();
            }
            view = next;
            if changed.elapsed() > STALL_TIMEOUT {
                let message = format!(
                    "nothing has changed for {} s in round {} of {rounds}; the coordinator's log \
                     ends with:\n{}",
                    STALL_TIMEOUT.as_secs(),
                    view.round,
                    self.children.log_tail("coordinator")
                );
                return Err(Failure::fault("STALLED", message).into());
            }
        }
        Ok(reports)
    }

    /// Waits for a child that exits by itself after its last claim.
    fn wait_for_exit(&mut self, name: &str) -> anyhow::Result<()> {
        let status = self.children.wait_for(name, PATIENCE)?;
        if status.success() {
            return Ok(());
        }
        let message = format!("{name} failed ({status}):\n{}", self.children.log_tail(name));
        Err(Failure::fault("CHILD_FAILED", message).into())
    }

    /// Runs an auditor in a separate process; it recomputes every round from public data.
    fn audit(&mut self, task: TaskId) -> anyhow::Result<(u32, Vec<String>)> {
        let mut call = words(&["audit", "--json", &task.to_string()]);
        call.extend(self.market());
        call.extend(self.engine());
        let answer = run_json(&mut self.children, "auditor", &call)?;
        let rounds = answer["rounds"].as_u64().context("`audit` returned no number of rounds")?;
        let mismatches =
            answer["mismatches"].as_array().context("`audit` returned no list of mismatches")?;
        let lines = mismatches.iter().map(|line| {
            format!(
                "round {}: {}: reported {}, recomputed {}",
                line["round"],
                line["line"].as_str().unwrap_or_default(),
                line["reported"].as_str().unwrap_or_default(),
                line["recomputed"].as_str().unwrap_or_default()
            )
        });
        Ok((u32::try_from(rounds)?, lines.collect()))
    }

    fn outcome(
        &self,
        market: &MarketConnection,
        task: TaskId,
        arguments: &Demo,
        reports: Vec<Report>,
        audit: (u32, Vec<String>),
    ) -> anyhow::Result<DemoOutcome> {
        let ledger = market.ledger()?;
        let books = ledger.task(task)?.context("the ledger has no such task")?;
        let mut earners = Vec::with_capacity(self.stage.participants.len());
        for actor in &self.stage.participants {
            let earned = ledger.claimed_totals(task, actor.account)?.paid;
            let who = (actor.name, actor.behaviour);
            earners.push(ParticipantResult::from_reports(
                who,
                actor.account,
                actor.rows,
                earned,
                &reports,
            )?);
        }
        Ok(DemoOutcome {
            seed: arguments.seed,
            task,
            rounds: arguments.rounds,
            provider: self.provider(&*ledger, task, &reports)?,
            treasury: ledger.treasury()?,
            model: self.model(market, task, arguments.engine)?,
            earners,
            reports,
            books,
            audit,
            on_chain: None,
            seconds: 0.0,
        })
    }

    fn provider(
        &self,
        ledger: &dyn Ledger,
        task: TaskId,
        reports: &[Report],
    ) -> anyhow::Result<(u64, Amount)> {
        let units = reports.iter().flat_map(|report| &report.infrastructure).map(|i| i.units).sum();
        Ok((units, ledger.claimed_totals(task, self.stage.provider)?.paid))
    }

    /// The initial and the final model, and their correct predictions of the test rows.
    fn model(
        &self,
        market: &MarketConnection,
        task: TaskId,
        engine: EngineArg,
    ) -> anyhow::Result<ModelResult> {
        let view = market.task(task)?;
        let data = load(&DataSource::Florin { file: self.stage.path("test.florin").into() })?;
        let mut engine = compose::engine(engine)?;
        let mut correct = |digest| {
            let bytes = market.blob(digest, florin_work::model_bytes(&view.spec))?;
            evaluate(&view.spec, None, &bytes, &data, &mut *engine)
        };
        let (before, after) = (correct(view.spec.base_model)?, correct(view.model)?);
        Ok(ModelResult {
            initial: view.spec.base_model,
            trained: view.model,
            rows: after.rows,
            correct_before: before.correct,
            correct_after: after.correct,
        })
    }
}

/// Runs a process until it exits and parses the JSON it prints. Exit code 1 (a negative result)
/// also has JSON.
pub(crate) fn run_json(
    children: &mut Children,
    name: &str,
    call: &[String],
) -> anyhow::Result<Value> {
    let (status, text) = children.call(name, call, PATIENCE)?;
    match status.code() {
        Some(0 | 1) if !text.trim().is_empty() => Ok(serde_json::from_str(&text)?),
        _ => {
            let message = format!("{name} failed ({status}):\n{}", children.log_tail(name));
            Err(Failure::fault("CHILD_FAILED", message).into())
        }
    }
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::writable;

    #[test]
    fn the_check_of_an_output_file_leaves_no_file_and_keeps_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("report.html");
        writable(&file).unwrap();
        assert!(!file.exists());
        std::fs::write(&file, "earlier").unwrap();
        writable(&file).unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "earlier");
        assert!(writable(&folder.path().join("missing/report.html")).is_err());
        assert!(writable(folder.path()).is_err(), "a folder is no file");
    }
}
