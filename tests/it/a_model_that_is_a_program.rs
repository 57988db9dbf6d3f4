//! A trainer is the model of a task: every party runs the program of the buyer, coalitions value the
//! updates, and an audit recomputes every round.

use std::path::Path;
use std::time::Duration;

use florin_learning::trainer::{Isolation, TrainerCode, TrainerHost};
use florin_protocol::{ModelArchitecture, ScoreEstimator};

use crate::support::{CommandOutput, On, Process, TestMarket, TestPlan, florin, words};

fn example() -> String {
    format!("{}/examples/trainer", env!("CARGO_MANIFEST_DIR"))
}

/// The arguments of a process without a sandbox, where none can be created.
fn sandbox_arguments() -> Vec<String> {
    let host = TrainerHost {
        accepted: Vec::new(),
        binds: Vec::new(),
        secrets: Vec::new(),
        scratch: std::env::temp_dir(),
        limit: Duration::from_secs(600),
        isolation: Isolation::Sandbox,
    };
    match host.check_sandbox() {
        Ok(()) => Vec::new(),
        Err(error) => {
            eprintln!("without a sandbox: {error}");
            words(&["--unsandboxed"])
        }
    }
}

/// Zeros for softmax regression of the digits, as a safetensors file.
fn initial(file: &Path) {
    let header = "{\"layer0.bias\":{\"dtype\":\"F32\",\"shape\":[10],\"data_offsets\":[0,40]},\
                  \"layer0.weight\":{\"dtype\":\"F32\",\"shape\":[10,64],\"data_offsets\":[40,2600]}}";
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 2_600]);
    std::fs::write(file, bytes).unwrap();
}

struct ProgramMarket {
    market: TestMarket,
    /// The digest of the code.
    digest: String,
    /// The arguments of every party that runs it.
    host: Vec<String>,
    folder: tempfile::TempDir,
}

impl ProgramMarket {
    fn open(rounds: u32, has_gradient: bool, is_accepted: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        initial(&folder.path().join("zeros.safetensors"));
        let code = TrainerCode::read(Path::new(&example())).unwrap();
        let digest = florin_protocol::Digest(code.digest()).to_string();
        let accept = words(&["--accept-trainer", &digest]);
        let mut plan = TestPlan::honest(On::Embedded, rounds);
        plan.participants.push(("di", Some("noise")));
        plan.target = 4;
        let estimator = match has_gradient {
            true => "",
            false => "[estimator]\nkind = \"coalitions\"\n",
        };
        plan.graph = Some(format!(
            "kind = \"trainer\"\ncode = \"{}\"\ninitial = \"{}/zeros.safetensors\"\ninputs = 64\n\
             classes = 10\ngradient = {has_gradient}\n{estimator}",
            example(),
            folder.path().display()
        ));
        plan.trainers = if is_accepted { accept.clone() } else { Vec::new() };
        plan.sandbox = sandbox_arguments();
        let host = [accept, plan.sandbox.clone()].concat();
        let market = TestMarket::open(plan);
        market.change_task(&[("baseline_epochs = 2", "baseline_epochs = 0")]);
        Self { market, digest, host, folder }
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let host = self.host.iter().map(String::as_str);
        self.market.run_command(&arguments.iter().copied().chain(host).collect::<Vec<_>>())
    }
}

#[test]
fn a_program_is_trained_valued_by_coalitions_paid_and_audited() {
    let scene = ProgramMarket::open(3, false, true);
    let market = &scene.market;
    let task = market.run();
    let id = task.to_string();
    let report = market.report(task, 3);
    let stages = &report.valuation.as_ref().expect("the round was valued").stages;
    assert!(stages.iter().all(|stage| stage.estimator == ScoreEstimator::Shapley), "{stages:?}");
    assert!(stages.iter().all(|stage| stage.gap_nano.abs() < 10), "no gap: {stages:?}");
    let paid = |name: &str| report.account_totals[&market.account(name)];
    for honest in ["ann", "ben", "cy"] {
        assert!(!paid(honest).data.is_zero(), "{honest}");
    }
    assert!(paid("di").data.is_zero(), "noise earns nothing");
    assert!(!paid("provider").infrastructure.is_zero(), "the provider agrees and is paid");
    let metrics = report.metrics.unwrap();
    assert!(metrics.correct_after > metrics.rows / 2, "the model learns: {metrics:?}");
    scene.run(&["audit", &id]).expect(0);
    scene.run(&["audit", &id, "--spot-check", "2"]).expect(0);
    market.run_command(&["audit", &id]).refused(2, "TRAINER_NOT_ACCEPTED");
    // Anyone can read the code, and predictions need a graph.
    let out = scene.folder.path().join("code").display().to_string();
    let read = market.run_command(&["task", "code", &id, "--out", &out, "--json"]).expect(0).json();
    assert_eq!(read["code"], scene.digest.as_str());
    assert_eq!(TrainerCode::read(Path::new(&out)), TrainerCode::read(Path::new(&example())));
    market.run_command(&["task", "code", &id, "--out", &out]).refused(2, "FILE_EXISTS");
    let model = market.file("model.safetensors");
    let measured = ["task", "model", &id, "--out", &model, "--evaluate", "digits", "--json"];
    let measured = scene.run(&measured).expect(0).json();
    assert!(measured["correct"].as_u64().unwrap() > 1_200, "{measured}");
    market.run_command(&["task", "model", &id, "--out", &model]).refused(2, "FILE_EXISTS");
    market.run_command(&["predict", &id, "--data", "digits"]).refused(2, "PREDICT_UNSUPPORTED");
}

#[test]
fn a_program_with_gradients_is_valued_along_the_path() {
    let scene = ProgramMarket::open(1, true, true);
    let task = scene.market.run();
    let report = scene.market.report(task, 1);
    let stages = &report.valuation.as_ref().expect("the round was valued").stages;
    assert!(stages.iter().all(|stage| stage.estimator == ScoreEstimator::Path(3)), "{stages:?}");
    let paid = |name: &str| report.account_totals[&scene.market.account(name)].data;
    assert!(!paid("ann").is_zero() && paid("di").is_zero());
    scene.run(&["audit", &task.to_string()]).expect(0);
}

#[test]
fn a_program_that_the_operator_has_not_accepted_is_refused_before_any_payment() {
    let scene = ProgramMarket::open(1, false, false);
    let market = &scene.market;
    let file = market.file("task.toml");
    let publish = ["task", "publish", &file];
    let refused = market.run_command_as("buyer", &publish).refused(1, "TRAINER_NOT_ACCEPTED");
    assert!(refused.err.contains(&scene.digest), "{}", refused.err);
    let balance = market.ledger().balance(market.account("buyer")).unwrap();
    assert_eq!(balance, "1000".parse().unwrap(), "nothing is locked");
}

/// All files of the folder with the code are published.
#[test]
fn a_folder_with_private_files_is_refused() {
    let scene = ProgramMarket::open(1, false, true);
    let folder = scene.folder.path();
    std::fs::copy(format!("{}/trainer", example()), folder.join("trainer")).unwrap();
    let code = format!("code = \"{}\"", example());
    let shared = format!("code = \"{}\"", folder.display());
    scene.market.change_task(&[(&code, &shared)]);
    let refused = florin(&["task", "check", &scene.market.file("task.toml")]);
    let refused = refused.refused(2, "INVALID_TASK");
    assert!(refused.err.contains("all its files are published"), "{}", refused.err);
}

#[test]
fn nobody_runs_a_program_without_consent() {
    let scene = ProgramMarket::open(1, false, true);
    let market = &scene.market;
    let task = market.publish();
    let view = market.view(task);
    let ModelArchitecture::Graph(graph) = &view.spec.model else { panic!("a trainer") };
    assert_eq!(graph.graph.digest.to_string(), scene.digest);
    let call = market.participant_call(&market.url, task, "ann");
    let without: Vec<String> = call
        .iter()
        .filter(|word| {
            **word != "--accept-model" && **word != view.spec.consent_digest().to_string()
        })
        .cloned()
        .collect();
    let refused = florin(&without).refused(1, "TRAINER_NOT_ACCEPTED");
    assert!(refused.err.contains("florin task code"), "{}", refused.err);
    let noisy = [&call[..], &words(&["--clip", "1", "--noise", "1"])].concat();
    florin(&noisy).refused(2, "NOISE_UNSUPPORTED");
    let bond = market.ledger().bond_of(task, market.account("ann")).unwrap();
    assert!(bond.amount.is_zero(), "nothing was deposited");
    // A provider that does not accept the code does no work, and the round goes on without it.
    let mut provider = market.provider_call(&market.url, task);
    provider.retain(|word| *word != "--accept-trainer" && *word != scene.digest);
    let mut provider = Process::start(market.folder(), "provider", &provider);
    let mut all: Vec<Process> =
        ["ann", "ben", "cy", "di"].iter().map(|name| market.participant(task, name)).collect();
    all.iter_mut().for_each(Process::finish);
    let report = market.report(task, 1);
    assert!(report.infrastructure.is_empty(), "{:?}", report.infrastructure);
    assert!(provider.log().contains("accept-trainer"), "{}", provider.log());
    provider.kill();
}
