//! A market for benchmarks: a coordinator in its own process, so that its processor time can be
//! measured separately.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use florin_learning::data::{load, save};
use florin_learning::{DataSource, SplitPart, split};
use florin_ledger::conformance::TestSigner;
use florin_participant::{KeystoreStrength, Secret, Wallet};
use florin_protocol::{Address, NodeSigner, TaskId, WalletSigner, blob_digest};

use florin::task_file;

/// Timeout of a start.
const PATIENCE: Duration = Duration::from_secs(120);
/// Fraction of the rows for the holdout.
const HOLDOUT: f64 = 0.42;
/// Passphrase of the processes; their wallets exist only during the benchmark.
const PASSPHRASE: &str = "passphrase";
/// The most that a participant deposits as bond: more than any number of rows requires.
const MAX_BOND: &str = "1000";
/// The most that the provider deposits as stake: more than any task requires.
const MAX_STAKE: &str = "1000";

/// A simulated participant.
pub(crate) struct BenchParticipant {
    pub(crate) wallet: TestSigner,
    pub(crate) node: NodeSigner,
}

/// The market's folder and processes.
pub(crate) struct BenchMarket {
    folder: tempfile::TempDir,
    coordinator: Option<Child>,
    children: Vec<(String, Child)>,
    pub(crate) url: String,
    pub(crate) actors: Vec<BenchParticipant>,
    /// The folder of the processes' traces.
    traces: Option<PathBuf>,
}

/// Processor time and memory of a process, as reported by the system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    /// Peak resident memory, in MiB.
    pub(crate) peak_mib: f64,
    /// Current anonymous resident memory (without mapped files), in MiB.
    pub(crate) own_mib: f64,
    /// Current resident memory, in MiB.
    pub(crate) resident_mib: f64,
}

impl BenchMarket {
    /// Starts a coordinator with `actors` funded accounts.
    pub(super) fn open(actors: u64) -> anyhow::Result<Self> {
        let settings = "connections_max = 4096\nconnections_per_address_max = 4096\n";
        Self::open_with(actors, &[], settings)
    }

    /// As [`BenchMarket::open`], with wallet files for these names and with other settings.
    pub(crate) fn open_with(actors: u64, named: &[&str], settings: &str) -> anyhow::Result<Self> {
        Self::open_traced(actors, named, settings, None)
    }

    /// As [`BenchMarket::open_with`]; all processes write traces into the folder, if there is one.
    pub(crate) fn open_traced(
        actors: u64,
        named: &[&str],
        settings: &str,
        traces: Option<PathBuf>,
    ) -> anyhow::Result<Self> {
        // Use the working folder: a temporary folder may be in memory, where nothing is durable.
        let folder = tempfile::Builder::new().prefix("florin-bench-").tempdir_in(".").context(
            "the working folder must be writable, because the server is measured on its disk",
        )?;
        let path = folder.path();
        std::fs::write(path.join(PASSPHRASE), "benchmark\n")?;
        let [buyer, provider] = ["buyer", "provider"].map(|name| wallet(path, name));
        wallet(path, "coordinator")?;
        let mut genesis = String::from("chain = 31337\n\n[allocate]\n");
        let _ = writeln!(genesis, "{} = \"1000000\"\n{} = \"1000\"", buyer?, provider?);
        for name in named {
            let _ = writeln!(genesis, "{} = \"1000\"", wallet(path, name)?);
        }
        let mut people = Vec::new();
        for number in 0..actors {
            let wallet = TestSigner::new(number)?;
            let seed = *wallet.address().0.first_chunk::<8>().context("an address has 20 bytes")?;
            let node = NodeSigner::from_seed(&blob_digest(&seed).0);
            let _ = writeln!(genesis, "{} = \"1000\"", wallet.address());
            people.push(BenchParticipant { wallet, node });
        }
        std::fs::write(path.join("genesis.toml"), genesis)?;
        let digits = load(&DataSource::Digits)?;
        let cut = split(digits.rows(), 1, &[SplitPart::Fraction(HOLDOUT), SplitPart::Rest])?;
        let rows = cut.first().context("a split has its parts")?;
        save(&digits.subset(rows)?, &path.join("holdout.florin"))?;
        let mut market = Self {
            folder,
            coordinator: None,
            children: Vec::new(),
            url: String::new(),
            actors: people,
            traces,
        };
        std::fs::write(market.path("settings.toml"), settings)?;
        market.start_coordinator("127.0.0.1:0")?;
        Ok(market)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, name: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(program()?);
        let log = self.path(&format!("{name}.log"));
        // Append to the log of an earlier process of the same name.
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        if let Some(traces) = &self.traces {
            command.env("FLORIN_TRACE", traces);
        }
        command.env("NO_COLOR", "1").stderr(log).stdin(Stdio::piped()).stdout(Stdio::null());
        Ok(command)
    }

    fn signing(&self, command: &mut Command, name: &str) {
        command.arg("--wallet").arg(self.path(&format!("{name}.json")));
        command.arg("--passphrase-file").arg(self.path(PASSPHRASE));
    }

    /// Kills the coordinator (SIGKILL) and starts it again on the same port.
    pub(crate) fn restart_coordinator(&mut self) -> anyhow::Result<()> {
        self.stop_coordinator()?;
        let listen = self.url.trim_start_matches("http://").to_owned();
        self.start_coordinator(&listen)
    }

    /// Kills the coordinator; its data folder is unlocked then.
    pub(crate) fn stop_coordinator(&mut self) -> anyhow::Result<()> {
        if let Some(coordinator) = &mut self.coordinator {
            coordinator.kill()?;
            coordinator.wait()?;
        }
        Ok(())
    }

    fn start_coordinator(&mut self, listen: &str) -> anyhow::Result<()> {
        let address = self.path("address");
        match std::fs::remove_file(&address) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let settings = self.path("settings.toml");
        let mut command = self.command("coordinator")?;
        command.args(["coordinate", "--listen", listen, "--exit-with-parent"]);
        command.args(["--engine", "reference"]);
        command.arg("--data").arg(self.path("market")).arg("--settings").arg(settings);
        command.arg("--genesis").arg(self.path("genesis.toml"));
        command.arg("--address-file").arg(&address);
        self.signing(&mut command, "coordinator");
        let coordinator = self.coordinator.insert(command.spawn()?);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && coordinator.try_wait()?.is_none() {
            if let Ok(text) = std::fs::read_to_string(&address) {
                self.url = format!("http://{}", text.trim());
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("the coordinator did not start:\n{}", self.log("coordinator"))
    }

    /// Starts a provider for every task.
    pub(crate) fn start_provider(&mut self) -> anyhow::Result<()> {
        let mut command = self.command("provider")?;
        command.args(["provide", "--exit-with-parent", "--engine", "reference"]);
        command.args(["--max-stake", MAX_STAKE, "--trust-coordinator"]);
        command.args(["--market", &self.url]);
        self.signing(&mut command, "provider");
        self.children.push(("provider".to_owned(), command.spawn()?));
        Ok(())
    }

    /// Starts a participant that trains on these rows of the digits.
    pub(crate) fn start_participant(
        &mut self,
        name: &str,
        task: TaskId,
        rows: Range<usize>,
    ) -> anyhow::Result<()> {
        let mut command = self.command(name)?;
        command.args(["participate", "--exit-with-parent", "--engine", "reference"]);
        command.args(["--data", "digits", "--rows", &format!("{}..{}", rows.start, rows.end)]);
        command.args(["--task", &task.to_string(), "--market", &self.url]);
        command.args(["--max-bond", MAX_BOND, "--trust-coordinator"]);
        self.signing(&mut command, name);
        self.children.push((name.to_owned(), command.spawn()?));
        Ok(())
    }

    /// Kills another process (SIGKILL); returns whether it was running.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<bool> {
        let Some(at) = self.children.iter().position(|(known, _)| known == name) else {
            return Ok(false);
        };
        let (_, mut child) = self.children.swap_remove(at);
        child.kill()?;
        child.wait()?;
        Ok(true)
    }

    /// Whether only the coordinator and the provider are running.
    pub(crate) fn is_idle(&self) -> bool {
        self.children.iter().all(|(name, _)| name == "provider")
    }

    /// The processes that exited since the last call, and whether they succeeded.
    pub(crate) fn take_exited(&mut self) -> anyhow::Result<Vec<(String, bool)>> {
        let mut ended = Vec::new();
        let mut running = Vec::new();
        for (name, mut child) in std::mem::take(&mut self.children) {
            match child.try_wait()? {
                Some(status) => ended.push((name, status.success())),
                None => running.push((name, child)),
            }
        }
        self.children = running;
        Ok(ended)
    }

    /// Runs a command until it exits, with a wallet if one is named; returns its output and whether
    /// it succeeded.
    pub(crate) fn call(
        &self,
        arguments: &[&str],
        signer: Option<&str>,
    ) -> anyhow::Result<(String, bool)> {
        let mut command = self.command("commands")?;
        command.args(arguments);
        if let Some(name) = signer {
            self.signing(&mut command, name);
        }
        let output = command.stdout(Stdio::piped()).stdin(Stdio::null()).output()?;
        Ok((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.success()))
    }

    /// Publishes a task for all participants, with a model of 40 KB.
    pub(super) fn publish(&self, salt: u64) -> anyhow::Result<TaskId> {
        self.publish_model(salt, &[128])
    }

    /// As [`BenchMarket::publish`], with these hidden layers.
    pub(crate) fn publish_model(&self, salt: u64, hidden: &[u32]) -> anyhow::Result<TaskId> {
        let text = include_str!("task.toml")
            .replace("@SALT@", &salt.to_string())
            .replace("@HIDDEN@", &format!("{hidden:?}"))
            .replace("@COHORT@", &self.actors.len().to_string());
        self.publish_task(&text)
    }

    /// Publishes a task that differs from the template in these settings.
    pub(crate) fn publish_task(&self, settings: &str) -> anyhow::Result<TaskId> {
        let text = task_file::overlay(settings)?;
        let file = self.path("task.toml");
        std::fs::write(&file, text)?;
        let mut command = self.command("buyer")?;
        command.args(["task", "publish", "--json", "--market", &self.url]).arg(file);
        self.signing(&mut command, "buyer");
        let output = command.stdout(Stdio::piped()).output()?;
        if !output.status.success() {
            bail!("the task was not published:\n{}", self.log("buyer"));
        }
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let id = answer.get("task").and_then(serde_json::Value::as_str);
        Ok(id.context("`task publish` returned no task")?.parse()?)
    }

    /// The log of a process.
    pub(crate) fn log(&self, name: &str) -> String {
        let log = self.path(&format!("{name}.log"));
        std::fs::read_to_string(log).unwrap_or_else(|error| error.to_string())
    }

    /// Resets the peak memory of the coordinator; returns whether the system supports it.
    pub(crate) fn reset_peak(&self) -> bool {
        let id = self.coordinator.as_ref().map_or(0, Child::id);
        std::fs::write(format!("/proc/{id}/clear_refs"), "5").is_ok()
    }

    /// The usage of the coordinator so far.
    pub(crate) fn usage(&self) -> anyhow::Result<Usage> {
        let id = self.coordinator.as_ref().context("the coordinator runs")?.id();
        usage(id).context("processor time of another process needs /proc")
    }
}

impl Drop for BenchMarket {
    fn drop(&mut self) {
        let others = self.children.iter_mut().map(|(_, child)| child);
        for child in others.chain(&mut self.coordinator) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The program `florin` beside this one.
fn program() -> anyhow::Result<PathBuf> {
    let name = format!("florin{}", std::env::consts::EXE_SUFFIX);
    let program = std::env::current_exe()?.with_file_name(name);
    ensure!(
        program.exists(),
        "there is no program {}: `cargo xtask bench` builds it beside this one",
        program.display()
    );
    Ok(program)
}

fn wallet(folder: &Path, name: &str) -> anyhow::Result<Address> {
    let passphrase = Secret::from_file(&folder.join(PASSPHRASE))?;
    let key = Secret::new(blob_digest(format!("florin benchmark: {name}").as_bytes()).to_string());
    let file = folder.join(format!("{name}.json"));
    Ok(Wallet::import_key(&file, &key, &passphrase, KeystoreStrength::Light)?.address())
}

fn usage(process: u32) -> Option<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The process name may contain any character; the fields after it are numbers. utime and stime
    // are fields 14 and 15.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mib = |name: &str| -> Option<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1_024.0)
    };
    let cpu = Duration::from_millis(ticks * 1_000 / per_second);
    let (peak_mib, own_mib) = (mib("VmHWM:")?, mib("RssAnon:")?);
    Some(Usage { cpu, peak_mib, own_mib, resident_mib: mib("VmRSS:")? })
}
