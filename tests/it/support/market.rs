//! A market with a few participants on a few digits. Keys, chain and task are derived from the
//! plan, so that two markets with the same plan give equal results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use florin::task_file::{half_year_date, overlay};
use florin_ledger::{Ledger, RemoteLedger, TaskState, TrustAnchors};
use florin_participant::{
    Client, ClientConfig, KeystoreStrength, ParticipantEvent, Secret, Wallet,
};
use florin_protocol::{
    Address, Amount, Report, RoundNumber, TaskId, TaskPhase, TaskView, Timestamp, WalletSigner,
    blob_digest,
};
use tempfile::TempDir;

use super::On;
use super::chain::{Gate, TestChain};
use super::process::{CommandOutput, Process, florin, until};

/// Initial balance of every account except the buyer, in florins.
const PURSE: &str = "50";
/// The bond that the rows of one participant require: nothing is left to add after a debit.
const BOND: &str = "6";
/// The stake of the provider: the task's minimum.
const STAKE: &str = "5";
/// Rows per participant.
const ROWS: usize = 120;
/// Path of the coordinator's self-signed certificate in the market's folder.
const CERTIFICATE: &str = "coordinator/tls/certificate.pem";
/// A timeout that no working process misses, even on a slow machine; every phase ends earlier, when
/// it is complete.
const LONG_PHASE_MS: u64 = 600_000;
/// Amounts large enough for every bond and debit.
const MONEY: &str = r#"data = "100"
infrastructure = "10"
per_nat_max = "500"
confidence_z = 3
bond_min = "2"
bond_per_row = "0.05"
debit_max = "0.5"
stake_min = "5"
per_unit = "0.1"
challenge = "100 ms"
unbond = "1 d"
"#;

/// The configuration of a test market.
#[derive(Debug, Clone)]
pub(crate) struct TestPlan {
    /// The ledger.
    pub(crate) on: On,
    /// Seed of keys, task and training.
    pub(crate) seed: u64,
    /// Number of rounds.
    pub(crate) rounds: u32,
    /// Names and experiments of the participants.
    pub(crate) participants: Vec<(&'static str, Option<&'static str>)>,
    /// Funded accounts without a process.
    pub(crate) others: Vec<&'static str>,
    /// Whether a provider evaluates the rounds.
    pub(crate) provider: bool,
    /// Upload deadline in milliseconds, after the commit phase.
    pub(crate) reveal_ms: u64,
    /// Commit deadline in milliseconds, including training.
    pub(crate) train_ms: u64,
    /// Whether the coordinator uses TLS with a self-signed certificate.
    pub(crate) tls: bool,
    /// Target number of updates; the commit phase ends when it is reached.
    pub(crate) target: usize,
    /// The section `[model]` of a graph; otherwise the model is softmax regression.
    pub(crate) graph: Option<String>,
    /// Arguments of all processes that have an engine, if the model is a trainer: those that accept
    /// its code, and those of its sandbox.
    pub(crate) trainers: Vec<String>,
    pub(crate) sandbox: Vec<String>,
    /// The update format, as in the task file.
    pub(crate) format: &'static str,
    /// The rule of selection, as in the task file.
    pub(crate) selection: &'static str,
    /// Confirmations that the coordinator requires on Ethereum; all others require one.
    pub(crate) confirmations: u64,
}

impl TestPlan {
    /// Three honest participants and a provider, for `rounds` rounds.
    pub(crate) fn honest(on: On, rounds: u32) -> Self {
        Self {
            on,
            seed: 1,
            rounds,
            participants: vec![("ann", None), ("ben", None), ("cy", None)],
            others: Vec::new(),
            provider: true,
            reveal_ms: LONG_PHASE_MS,
            train_ms: LONG_PHASE_MS,
            tls: false,
            target: 3,
            graph: None,
            trainers: Vec::new(),
            sandbox: Vec::new(),
            format: r#"{ kind = "f32" }"#,
            selection: r#"{ knob = "random" }"#,
            confirmations: 1,
        }
    }

    /// The engine of all processes: a graph runs on libtorch.
    fn engine(&self) -> &'static str {
        if self.graph.is_some() { "torch" } else { "reference" }
    }

    fn task_file(&self) -> String {
        let Self { seed, rounds, reveal_ms, train_ms, target, format, selection, .. } = self;
        let softmax = "kind = \"softmax\"\ninputs = 64\nclasses = 10\n";
        let model = self.graph.as_deref().unwrap_or(softmax);
        let now = std::time::UNIX_EPOCH.elapsed().expect("the clock is set");
        let expires = half_year_date(Timestamp(now.as_millis() as u64));
        let settings = format!(
            "name = \"Test\"\nsalt = {seed}\nexpires = \"{expires}\"\ntrust = \"coordinator\"\n\
             [model]\n{model}\
             [holdout]\nsource = \"digits\"\nrows = \"1497..1797\"\n\
             [training]\nepochs = 2\nbatch = 16\nlearning_rate = 0.1\n\
             [rounds]\ncount = {rounds}\ncohort_min = 1\ncohort_target = {target}\n\
             enrol = \"{LONG_PHASE_MS} ms\"\nvalue = \"{LONG_PHASE_MS} ms\"\n\
             train = \"{train_ms} ms\"\nreveal = \"{reveal_ms} ms\"\n\
             format = {format}\nselection = {selection}\ndelta_norm_max = 5\n[budget]\n{MONEY}"
        );
        overlay(&settings).unwrap()
    }
}

/// A running market. All its processes are stopped on drop.
pub(crate) struct TestMarket {
    pub(crate) plan: TestPlan,
    pub(crate) url: String,
    pub(crate) coordinator: Process,
    /// The chain, on Ethereum.
    pub(crate) chain: Option<TestChain>,
    /// The proxy between all processes and the chain.
    pub(crate) gate: Option<Gate>,
    /// Environment variables for the next start of the coordinator.
    pub(crate) environment: Vec<(String, String)>,
    accounts: BTreeMap<&'static str, Address>,
    /// Digests by which participants accept the models of tasks: asked for once, while the coordinator runs.
    accepted: Mutex<BTreeMap<TaskId, String>>,
    // Declared last, so that processes are stopped before their folder is removed.
    folder: TempDir,
}

impl TestMarket {
    /// Creates the wallets and starts the market.
    pub(crate) fn open(plan: TestPlan) -> Self {
        eprintln!("plan: {plan:?}"); // shown with a failed test, with the seed
        let folder = TempDir::with_prefix("florin-test-").expect("a temporary folder");
        let path = folder.path();
        std::fs::write(path.join("passphrase"), "test\n").unwrap();
        let mut names: Vec<&'static str> = vec!["buyer", "coordinator", "provider"];
        names.extend(plan.participants.iter().map(|(name, _)| *name));
        names.extend(&plan.others);
        let accounts: BTreeMap<&'static str, Address> = names
            .iter()
            .map(|name| (*name, make_wallet(path, plan.seed, name).address()))
            .collect();
        let purse = |name: &str| if name == "buyer" { "1000" } else { PURSE };
        // The coordinator deposits a bond under an account with the name "arbiter".
        let listed = accounts.get("arbiter").map(|arbiter| format!("arbiters = [\"{arbiter}\"]\n"));
        let mut settings = listed.unwrap_or_default();
        // A short probe has a second for messages on a busy machine, and no further one is drawn while a test runs.
        settings += "[listings]\nprobe_ms_min = 100\nprobe_every_ms = 86400000\n";
        if plan.on == On::Ethereum {
            settings += &format!("[ethereum]\nconfirmations = {}\n", plan.confirmations);
        }
        std::fs::write(path.join("settings.toml"), settings).unwrap();
        let task = plan.task_file();
        std::fs::write(path.join("task.toml"), task).unwrap();
        let (chain, gate) = match plan.on {
            On::Embedded => {
                let mut genesis = "created = \"2026-01-01\"\n[allocate]\n".to_owned();
                for (name, account) in &accounts {
                    genesis += &format!("{account} = \"{}\"\n", purse(name));
                }
                std::fs::write(path.join("genesis.toml"), genesis).unwrap();
                (None, None)
            }
            On::Ethereum => {
                let purses = accounts.iter().map(|(name, a)| (*a, purse(name).parse().unwrap()));
                let chain = TestChain::open(path, &purses.collect::<Vec<_>>());
                let gate = Gate::before(&chain.anvil.rpc);
                (Some(chain), Some(gate))
            }
        };
        let rpc = gate.as_ref().map(|gate| gate.url.as_str());
        let coordinator = start_coordinator(path, &plan, "127.0.0.1:0", rpc, &[]);
        let url = format!("{}{}", scheme(&plan), wait_for_address(path, &coordinator));
        let environment = Vec::new();
        let accepted = Mutex::default();
        Self { plan, url, coordinator, chain, gate, environment, accounts, accepted, folder }
    }

    /// The market's chain, on Ethereum.
    pub(crate) fn chain(&self) -> &TestChain {
        self.chain.as_ref().expect("the market is on Ethereum")
    }

    /// The market's folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The path of a file in the market's folder, as an argument.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder().join(name).display().to_string()
    }

    /// The account with this name.
    pub(crate) fn account(&self, name: &str) -> Address {
        self.accounts[name]
    }

    /// The wallet with this name.
    pub(crate) fn wallet(&self, name: &str) -> Wallet {
        let passphrase = Secret::from_file(&self.folder().join("passphrase")).unwrap();
        Wallet::open(&self.folder().join(format!("{name}.json")), &passphrase).unwrap()
    }

    fn signing(&self, name: &str) -> Vec<String> {
        vec![
            "--wallet".to_owned(),
            self.file(&format!("{name}.json")),
            "--passphrase-file".to_owned(),
            self.file("passphrase"),
        ]
    }

    fn at(&self) -> Vec<String> {
        self.at_url(&self.url)
    }

    fn at_url(&self, url: &str) -> Vec<String> {
        let mut at = vec!["--market".to_owned(), url.to_owned()];
        if self.plan.tls {
            at.extend(["--certificate".to_owned(), self.file(CERTIFICATE)]);
        }
        at
    }

    /// Runs a command with the market's URL.
    pub(crate) fn run_command(&self, arguments: &[&str]) -> CommandOutput {
        let mut call: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        call.extend(self.at());
        florin(&call)
    }

    /// Runs a command with the market's URL and this wallet.
    pub(crate) fn run_command_as(&self, name: &str, arguments: &[&str]) -> CommandOutput {
        let mut call: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        call.extend(self.at());
        call.extend(self.signing(name));
        florin(&call)
    }

    /// Starts a command with the market's URL and this wallet.
    pub(crate) fn start_as(&self, name: &str, arguments: &[&str]) -> Process {
        self.start_with(name, arguments, &[])
    }

    /// The same, with further variables of the environment.
    pub(crate) fn start_with(
        &self,
        name: &str,
        arguments: &[&str],
        environment: &[(String, String)],
    ) -> Process {
        let call = [words(arguments), self.at(), self.signing(name)].concat();
        Process::start_in(self.folder(), name, &call, environment)
    }

    /// Publishes the task as the buyer.
    pub(crate) fn publish(&self) -> TaskId {
        let file = self.file("task.toml");
        let mut call = vec!["task", "publish", "--json", &file];
        call.extend(self.plan.sandbox.iter().map(String::as_str));
        let output = self.run_command_as("buyer", &call);
        output.expect(0).json()["task"].as_str().unwrap().parse().unwrap()
    }

    /// Replaces texts in the task file.
    pub(crate) fn change_task(&self, changes: &[(&str, &str)]) {
        let mut text = std::fs::read_to_string(self.file("task.toml")).unwrap();
        for (old, new) in changes {
            assert!(text.contains(old), "{old} is not in {text}");
            text = text.replace(old, new);
        }
        std::fs::write(self.file("task.toml"), text).unwrap();
    }

    /// Makes the task's rounds buffered: every `k` updates make a version, and `concurrency` participants train at once.
    pub(crate) fn make_buffered(&self, k: usize, concurrency: usize, late_rounds: u32) {
        let mode = format!(
            "[rounds.mode]\nkind = \"buffered\"\nk = {k}\nconcurrency = {concurrency}\nstaleness = \
             \"inverse_root\"\nlate_rounds = {late_rounds}\n\n[rounds.selection]"
        );
        self.change_task(&[("[rounds.selection]", &mode)]);
    }

    /// Waits until this number of participants has enrolled.
    pub(crate) fn wait_for_enrolled(&self, task: TaskId, count: u32) {
        until(&format!("{count} enrolled"), || {
            self.client().task(task).ok().filter(|view| view.enrolled >= count)
        });
    }

    /// Starts a participant of the plan.
    pub(crate) fn participant(&self, task: TaskId, name: &str) -> Process {
        self.participant_through(&self.url, task, name)
    }

    /// As [`TestMarket::participant`], with another URL of the coordinator.
    pub(crate) fn participant_through(&self, url: &str, task: TaskId, name: &str) -> Process {
        Process::start(self.folder(), name, &self.participant_call(url, task, name))
    }

    /// Starts a participant of the plan that accepts this arbiter, and no other.
    pub(crate) fn participant_under(&self, arbiter: &str, task: TaskId, name: &str) -> Process {
        let mut call = self.participant_call(&self.url, task, name);
        call.retain(|word| word != "--trust-coordinator");
        call.extend(["--arbiter".to_owned(), arbiter.to_owned()]);
        Process::start(self.folder(), name, &call)
    }

    /// The arguments of a participant of the plan.
    pub(crate) fn participant_call(&self, url: &str, task: TaskId, name: &str) -> Vec<String> {
        let at = self.plan.participants.iter().position(|(n, _)| *n == name).unwrap();
        let rows = format!("{}..{}", at * ROWS, (at + 1) * ROWS);
        let engine = self.plan.engine();
        let mut call = words(&["participate", "--data", "digits", "--engine", engine]);
        if self.plan.graph.is_some() {
            call.extend(words(&["--accept-model", &self.accepted(task)]));
        }
        call.extend(words(&["--rows", &rows, "--task", &task.to_string()]));
        call.extend(words(&["--seed", &self.plan.seed.to_string()]));
        call.extend(words(&["--max-bond", BOND, "--trust-coordinator"]));
        if let Some(experiment) = self.plan.participants[at].1 {
            call.extend(words(&["--experiment", experiment]));
        }
        call.extend([&self.plan.trainers[..], &self.plan.sandbox].concat());
        call.extend(self.at_url(url));
        call.extend(self.signing(name));
        call
    }

    fn accepted(&self, task: TaskId) -> String {
        let ask = || self.client().task(task).unwrap().spec.consent_digest().to_string();
        self.accepted.lock().unwrap().entry(task).or_insert_with(ask).clone()
    }

    /// Starts the provider.
    pub(crate) fn provider(&self, task: TaskId) -> Process {
        self.provider_through(&self.url, task)
    }

    /// As [`TestMarket::provider`], with another URL of the coordinator.
    pub(crate) fn provider_through(&self, url: &str, task: TaskId) -> Process {
        Process::start(self.folder(), "provider", &self.provider_call(url, task))
    }

    /// The arguments of the provider.
    pub(crate) fn provider_call(&self, url: &str, task: TaskId) -> Vec<String> {
        let engine = self.plan.engine();
        let mut call = words(&["provide", "--engine", engine, "--task", &task.to_string()]);
        call.extend(words(&["--max-stake", STAKE, "--trust-coordinator"]));
        call.extend([&self.plan.trainers[..], &self.plan.sandbox].concat());
        call.extend(self.at_url(url));
        call.extend(self.signing("provider"));
        call
    }

    /// Starts all processes of the plan.
    pub(crate) fn start_all(&self, task: TaskId) -> Vec<Process> {
        let mut all = Vec::new();
        if self.plan.provider {
            let provider = self.provider(task);
            // The coordinator sends work orders only to a provider that has asked for work. A
            // pledge is not enough: until the provider's first request is answered, the coordinator
            // evaluates rounds itself without pay.
            let ready = || provider.log().contains(ParticipantEvent::READY_PREFIX).then_some(());
            until("the provider is ready", ready);
            all.push(provider);
        }
        all.extend(self.plan.participants.iter().map(|(name, _)| self.participant(task, name)));
        all
    }

    /// Publishes the task, runs all processes, and waits until all have succeeded.
    pub(crate) fn run(&self) -> TaskId {
        let task = self.publish();
        let mut all = self.start_all(task);
        all.iter_mut().for_each(Process::finish);
        assert_eq!(self.view(task).phase, TaskPhase::Done);
        task
    }

    /// Kills the coordinator and restarts it on the same port.
    pub(crate) fn restart_coordinator(&mut self) {
        self.coordinator.kill();
        self.start_coordinator_again();
    }

    /// Restarts the coordinator on the same port, after it was killed.
    pub(crate) fn start_coordinator_again(&mut self) {
        let _ = std::fs::remove_file(self.folder().join("address"));
        let address = self.address().to_owned();
        let rpc = self.gate.as_ref().map(|gate| gate.url.as_str());
        let (folder, plan) = (self.folder(), &self.plan);
        self.coordinator = start_coordinator(folder, plan, &address, rpc, &self.environment);
        assert_eq!(wait_for_address(self.folder(), &self.coordinator), address);
    }

    /// The coordinator's address, without the scheme.
    pub(crate) fn address(&self) -> &str {
        self.url.strip_prefix(scheme(&self.plan)).unwrap()
    }

    fn trust(&self) -> TrustAnchors {
        if !self.plan.tls {
            return TrustAnchors::from_system();
        }
        TrustAnchors::from_pem(&std::fs::read(self.folder().join(CERTIFICATE)).unwrap()).unwrap()
    }

    /// A client of the coordinator.
    pub(crate) fn client(&self) -> Client {
        let config = ClientConfig { trust: self.trust(), ..ClientConfig::new(&self.url) };
        Client::connect(&config).unwrap()
    }

    /// The ledger: as served by the coordinator, or the contracts themselves.
    pub(crate) fn ledger(&self) -> Box<dyn Ledger> {
        match &self.chain {
            None => Box::new(
                RemoteLedger::connect_with_trust_anchors(&self.url, &self.trust()).unwrap(),
            ),
            Some(chain) => Box::new(chain.ledger()),
        }
    }

    /// The current state of a task.
    pub(crate) fn view(&self, task: TaskId) -> TaskView {
        self.client().task(task).unwrap()
    }

    /// Waits for a phase of a round, or a later one.
    pub(crate) fn wait_for(&self, task: TaskId, round: u32, phase: TaskPhase) -> TaskView {
        until(&format!("{phase:?} of round {round}"), || {
            let view = self.client().task(task).ok()?;
            let late = (view.round.0, view.phase as u8) >= (round, phase as u8);
            (late || view.phase == TaskPhase::Done).then_some(view)
        })
    }

    /// A round's report.
    pub(crate) fn report(&self, task: TaskId, round: u32) -> Report {
        self.client().report(task, RoundNumber(round)).unwrap().body
    }

    /// The ledger's state of a task.
    pub(crate) fn books(&self, task: TaskId) -> TaskState {
        self.ledger().task(task).unwrap().expect("the task is on the ledger")
    }

    /// All balances by name: the free balance, and the bond in the task plus the stake.
    pub(crate) fn balances(&self, task: TaskId) -> BTreeMap<&'static str, (Amount, Amount)> {
        let ledger = self.ledger();
        let of = |account| {
            let bond = ledger.bond_of(task, account).unwrap().amount;
            let stake = ledger.stake_of(account).unwrap().amount;
            (ledger.balance(account).unwrap(), bond.plus(stake).unwrap())
        };
        self.accounts.iter().map(|(name, account)| (*name, of(*account))).collect()
    }
}

/// The model of a task: a convolutional graph on handwritten digits.
pub(crate) fn digits_graph() -> String {
    let folder = env!("CARGO_MANIFEST_DIR");
    format!(
        "kind = \"graph\"\nfile = \"{folder}/examples/images/digits.pt2\"\nbuffers = \"average\"\n"
    )
}

impl Drop for TestMarket {
    /// Prints the ends of all logs if the test fails.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let entries = std::fs::read_dir(self.folder()).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            if path.extension().is_some_and(|ending| ending == "log") {
                let log = std::fs::read_to_string(&path).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = &lines[lines.len().saturating_sub(25)..];
                eprintln!("--- {}\n{}", path.display(), last.join("\n"));
            }
        }
    }
}

/// Creates a wallet. Its key is derived from the plan and must not hold real tokens.
fn make_wallet(folder: &Path, seed: u64, name: &str) -> Wallet {
    let key =
        Secret::new(blob_digest(format!("florin test {seed}: {name}").as_bytes()).to_string());
    let passphrase = Secret::from_file(&folder.join("passphrase")).unwrap();
    let file: PathBuf = folder.join(format!("{name}.json"));
    Wallet::import_key(&file, &key, &passphrase, KeystoreStrength::Light).unwrap()
}

fn start_coordinator(
    folder: &Path,
    plan: &TestPlan,
    listen: &str,
    rpc: Option<&str>,
    environment: &[(String, String)],
) -> Process {
    let file = |name: &str| folder.join(name).display().to_string();
    let mut call = words(&["coordinate", "--engine", plan.engine(), "--listen", listen]);
    call.extend(["--data".to_owned(), file("coordinator")]);
    call.extend([&plan.trainers[..], &plan.sandbox].concat());
    match rpc {
        None => call.extend(["--genesis".to_owned(), file("genesis.toml")]),
        Some(rpc) => {
            call.extend(words(&["--ledger", "ethereum", "--rpc", rpc, "--deployment"]));
            call.push(file("deployment.toml"));
        }
    }
    call.extend(["--settings".to_owned(), file("settings.toml")]);
    call.extend(["--address-file".to_owned(), file("address")]);
    call.extend(["--wallet".to_owned(), file("coordinator.json")]);
    call.extend(["--passphrase-file".to_owned(), file("passphrase")]);
    if plan.tls {
        call.push("--tls-self-signed".to_owned());
    }
    // A test can see which rounds were valued by the transcript of a provider.
    let log = ("RUST_LOG".to_owned(), "warn,florin_coordinator::host::valuer=info".to_owned());
    let environment = [&[log], environment].concat();
    Process::start_in(folder, "coordinator", &call, &environment)
}

fn wait_for_address(folder: &Path, coordinator: &Process) -> String {
    let file = folder.join("address");
    let text = until(&format!("the coordinator's start: {}", coordinator.log()), || {
        std::fs::read_to_string(&file).ok()
    });
    text.trim().to_owned()
}

fn scheme(plan: &TestPlan) -> &'static str {
    if plan.tls { "https://" } else { "http://" }
}

pub(crate) fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
