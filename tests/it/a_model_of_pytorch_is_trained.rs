//! A model that PyTorch exported is the model of a task: participants train it, the provider values
//! the updates, an audit recomputes every round, and the trained model is written as PyTorch reads it.

use std::path::Path;

use florin_learning::DataSource;
use florin_learning::data::load;
use florin_learning::graph::read_archive;
use florin_protocol::ModelArchitecture;
use serde_json::Value;

use crate::support::{On, TestMarket, TestPlan, florin};

fn example(name: &str) -> String {
    format!("{}/examples/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The weights of an archive as bytes, by name.
fn weights(file: &Path) -> Vec<(String, Vec<u8>)> {
    let (graph, weights) = read_archive(file).unwrap();
    let names = graph.inputs.iter().filter_map(|input| input.role.name());
    let bytes = weights.tensors.into_iter().map(|tensor| tensor.bytes);
    names.map(str::to_owned).zip(bytes).collect()
}

#[test]
fn a_residual_network_is_trained_paid_and_audited() {
    let file = example("images/digits.pt2");
    let mut plan = TestPlan::honest(On::Embedded, 3);
    plan.graph = Some(format!("kind = \"graph\"\nfile = \"{file}\"\nbuffers = \"average\"\n"));
    let market = TestMarket::open(plan);
    // Enough steps for the running statistics: otherwise chance decides whether a member's loss rises.
    let steps =
        [("\nepochs = 2\n", "\nepochs = 5\n"), ("learning_rate = 0.1", "learning_rate = 0.03")];
    market.change_task(&steps);
    let task = market.run();
    let last = market.report(task, 3);
    let metrics = last.metrics.expect("the round was valued");
    assert!(metrics.loss_after_nano < 2_180_000_000, "the model must learn: {metrics:?}");
    let provider = market.account("provider");
    let earned = last.account_totals[&provider].infrastructure;
    assert!(!earned.is_zero(), "the provider agrees with the coordinator and is paid");
    let log = market.coordinator.log();
    let replays = log.matches("valued by the transcript of a provider").count();
    assert_eq!(replays, 3, "the coordinator replays each round, also by groups of rows: {log}");
    let id = task.to_string();
    assert!(last.baseline.is_some(), "a graph of known operators has a public baseline");
    market.run_command(&["audit", &id]).expect(0);
    // The plain-Rust engine recomputes the work of libtorch.
    market.run_command(&["audit", &id, "--engine", "reference"]).expect(0);
    let spotted = market.run_command(&["audit", &id, "--spot-check", "2", "--json"]).expect(0);
    assert!(!spotted.out.is_empty());
    let written = market.file("trained.pt2");
    let out = Path::new(&written);
    let command = ["task", "model", &id, "--out", &written];
    market.run_command(&command).refused(2, "MODEL_FILE_MISSING");
    let other = example("table/net.pt2");
    market
        .run_command(&[&command[..], &["--from", &other]].concat())
        .refused(2, "WRONG_MODEL_FILE");
    market.run_command(&[&command[..], &["--from", &file]].concat()).expect(0);
    let (before, after) = (weights(Path::new(&file)), weights(out));
    for ((name, before), (same, after)) in before.iter().zip(&after) {
        assert_eq!(name, same);
        let stays = name.contains("num_batches_tracked");
        assert_eq!(before == after, stays, "{name}");
    }
    predicts_digits(&market, &id);
    // The whole model, read again, is one that a task can start from.
    florin(&["model", "show", &written]).expect(0);
}

/// The predictions in the file have the accuracy that the command states.
fn predicts_digits(market: &TestMarket, task: &str) {
    const FROM: usize = 1_500;
    let file = market.file("predictions.csv");
    let rows = format!("{FROM}..1797");
    let command = ["predict", task, "--data", "digits", "--rows", &rows, "--out", &file, "--json"];
    let found: Value = market.run_command(&command).expect(0).json();
    let text = std::fs::read_to_string(&file).unwrap();
    let over_its_input = ["predict", task, "--data", "digits", "--out", &file];
    market.run_command(&over_its_input).refused(2, "FILE_EXISTS");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().starts_with("prediction,p(0),p(1),"), "{text}");
    let digits = load(&DataSource::Digits).unwrap();
    let labels = &digits.labels()[FROM..];
    let right = lines.clone().zip(labels).filter(|(line, label)| {
        let cells: Vec<&str> = line.split(',').collect();
        let sum: f64 = cells[1..].iter().map(|cell| cell.parse::<f64>().unwrap()).sum();
        assert!(cells.len() == 11 && (sum - 1.0).abs() < 1e-9, "{line}");
        cells[0] == label.to_string()
    });
    let accuracy = right.count() as f64 / labels.len() as f64;
    assert_eq!(lines.count(), labels.len());
    assert_eq!(found["rows"], labels.len());
    let metrics = &found["metrics"];
    assert!((metrics["accuracy"].as_f64().unwrap() - accuracy).abs() < 1e-12, "{metrics}");
    assert!(metrics["auroc"].as_f64().unwrap() > 0.5, "{metrics}");
    let shown = market.run_command(&command[..6]).expect(0).out;
    for part in ["balanced accuracy", "AUROC", "predicted otherwise"] {
        assert!(shown.contains(part), "no {part} in {shown}");
    }
    let table = format!("csv:{}#progression", example("table/diabetes.csv"));
    market.run_command(&["predict", task, "--data", &table]).refused(2, "DATA_MISMATCH");
    let beyond = ["predict", task, "--data", "digits", "--rows", "0..9999"];
    market.run_command(&beyond).refused(2, "INVALID_DATA");
}

/// A participant must accept the graph and its parameters by one digest.
#[test]
fn a_graph_is_not_trained_without_consent() {
    let file = example("images/digits.pt2");
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.graph = Some(format!("kind = \"graph\"\nfile = \"{file}\"\nbuffers = \"freeze\"\n"));
    let market = TestMarket::open(plan);
    let task = market.publish();
    let mut call = market.participant_call(&market.url, task, "ann");
    let at = call.iter().position(|word| word == "--accept-model").unwrap();
    let accepted = call.remove(at + 1);
    call.remove(at);
    let refused = florin(&call).refused(1, "MODEL_NOT_DERIVED");
    assert!(refused.err.contains(&accepted), "{}", refused.err);
    // Frozen weights of another digest are refused before a deposit, and those of the market fit.
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--weights".to_owned(), example("table/net.pt2")]);
    florin(&call).refused(2, "WRONG_WEIGHTS");
    let ModelArchitecture::Graph(graph) = market.view(task).spec.model else { panic!("a graph") };
    let frozen = graph.frozen.unwrap();
    let bytes = market.client().blob(frozen.digest, frozen.bytes).unwrap();
    let copy = market.file("frozen.safetensors");
    std::fs::write(&copy, bytes).unwrap();
    let model = market.file("model.safetensors");
    let id = task.to_string();
    let evaluate =
        ["task", "model", &id, "--out", &model, "--evaluate", "digits", "--weights", &copy];
    market.run_command(&evaluate).expect(0);
}

fn new_task(folder: &Path, arguments: &[&str]) -> crate::support::CommandOutput {
    let out = folder.join("task.toml").display().to_string();
    florin(&[&["task", "new", "--out", &out], arguments].concat())
}

#[test]
fn a_task_is_made_for_a_model_and_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let (net, table) = (example("table/net.pt2"), example("table/diabetes.csv"));
    let data = format!("csv:{table}#progression");
    let task = folder.path().join("task.toml").display().to_string();
    new_task(folder.path(), &["--model", &net, "--data", &data, "--loss", "squared"]).expect(0);
    let spec: Value = florin(&["task", "check", &task, "--json"]).expect(0).json();
    assert_eq!(spec["model"]["loss"]["kind"], "squared");
    assert_eq!(spec["model"]["inputs"], 10);
    assert_eq!(spec["model"]["targets"], 1);
    assert_eq!(spec["model"]["tensors"][0]["name"], "0.weight");
    assert_eq!(spec["data"]["classes"], 1);
    assert!(spec["data"]["encoding"]["target"]["offset"].is_string(), "{spec}");
    assert_eq!(spec["rounds"]["baseline_epochs"], 2);
    let simulated = &spec["quote"]["simulation"];
    let loss = |key: &str| simulated[key]["median"].as_f64().unwrap();
    assert!(loss("loss") < loss("loss_before"), "{simulated}");
    assert!(simulated["labels"].is_null(), "{simulated}");
    let text = florin(&["task", "check", &task]).expect(0).out;
    for part in
        ["10 features and 1 target", "per unit of loss", "--accept-model", "units of loss after"]
    {
        assert!(text.contains(part), "no {part} in {text}");
    }
}

/// A recurrent layer is none of the plain-Rust engine's operators.
#[test]
fn a_graph_without_a_public_baseline_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("tokens.csv");
    let row = |at: usize| {
        let token = |n: usize| ((at * 6 + n) * 2_654_435_761 / 128 % 5).to_string();
        let tokens: Vec<String> = (0..6).map(token).collect();
        format!("{},{}\n", tokens.join(","), at % 3)
    };
    let rows: String = (0..200).map(row).collect();
    std::fs::write(&table, format!("a,b,c,d,e,f,label\n{rows}")).unwrap();
    let gru = format!("{}/learning/data/graphs/gru.pt2", env!("CARGO_MANIFEST_DIR"));
    let data = format!("csv:{}#label", table.display());
    new_task(folder.path(), &["--model", &gru, "--data", &data]).expect(0);
    let file = folder.path().join("task.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("\nbaseline_epochs = 0\n"), "{text}");
    let text = text.replace("\nbaseline_epochs = 0\n", "\nbaseline_epochs = 2\n");
    std::fs::write(&file, text).unwrap();
    let check = ["task", "check", &file.display().to_string()];
    let refused = florin(&check).refused(2, "MODEL_FAILS");
    for part in ["rounds.baseline_epochs = 0", "the reference engine has no gru.input"] {
        assert!(refused.err.contains(part), "no {part} in {}", refused.err);
    }
}

#[test]
fn a_model_that_does_not_fit_is_refused_with_its_key() {
    let (net, table) = (example("table/net.pt2"), example("table/diabetes.csv"));
    let data = format!("csv:{table}#progression");
    let digits = example("images/digits.pt2");
    let text = format!("text:{}#64", example("text/psalms.txt"));
    let gpt = example("text/gpt.pt2");
    for (arguments, part) in [
        (vec!["--model", &net, "--data", "digits"], "with at least 2 classes"),
        (vec!["--model", &net, "--data", &data], "label column"),
        (vec!["--model", &digits, "--data", "digits"], "running_mean"),
        (
            vec!["--model", &net, "--data", &data, "--loss", "squared", "--trainable", "head.*"],
            "matches no parameter",
        ),
        (vec!["--model", &gpt, "--data", &text, "--loss", "binary"], "its loss 256 targets"),
        (vec!["--model", &table, "--data", &data, "--loss", "squared"], "is no .pt2 archive"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = new_task(folder.path(), &arguments);
        let all = format!("{}{}", output.out, output.err);
        assert!(all.contains(part), "no {part} in {all}");
        assert!(!folder.path().join("task.toml").exists());
        assert_ne!(output.code, 0);
    }
}
