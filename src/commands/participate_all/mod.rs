//! `florin participate --all`: takes part in the tasks that a policy selects.

mod file;
mod sources;

use std::path::Path;
use std::sync::Mutex;

use anyhow::Context;
use florin_learning::Engine;
use florin_participant::policy::{
    DryRun, ManyConfig, ManyContext, ManyEvent, ManySummary, Obstacle, TaskDecision,
    TaskPrediction, TaskVerdict, examine_market, participate_in_many,
};
use florin_participant::{ParticipantEvent, Shutdown};
use florin_protocol::{Amount, TaskId, TaskSpec};
use serde_json::{Value, json};

use self::file::ReadPolicy;
use super::event_printer::EventPrinter;
use super::participate;
use super::ranks;
use crate::cli::Participate;
use crate::commands::wallet;
use crate::failure::{self, Exit, Failure};
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, JsonEvent, NOTE, TextTable};

pub(super) fn run(arguments: &Participate, policy: &Path) -> anyhow::Result<Exit> {
    if ranks::place()?.is_some() {
        let message = "--all trains on one process: start it without torchrun, srun or mpirun, or \
                       take part in one task by --task";
        return Err(Failure::input("RANKS_UNSUPPORTED", message).into());
    }
    let read = file::read(policy)?;
    sources::check(policy, &read.sources)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let shutdown = participate::stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let market = market.with_weights(&arguments.weights);
    let ledger = || match arguments.dry_run {
        true => market.ledger(),
        false => market.signing_ledger(&wallet, &arguments.wallet),
    };
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let ReadPolicy { policy, sources, accepted } = read;
    let mut participant = participate::config(arguments, TaskId::default(), None);
    participant.accepted_models.extend(accepted);
    participant.privacy = participate::privacy(&arguments.noise)?;
    let accepted = participant.accepted_models.clone();
    let folder = participant.folder.clone();
    let rows = |spec: &TaskSpec, place: usize| {
        let source = sources.get(place).context("a rule has its rows");
        let load = |source| sources::load_rows(source, spec, &folder, &market);
        source.and_then(load).map_err(|error| obstacle(&error))
    };
    let engine = |spec: &TaskSpec| -> Result<Box<dyn Engine>, Obstacle> {
        participate::engine(arguments, spec, (&accepted, None)).map_err(|error| obstacle(&error))
    };
    let context = ManyContext {
        wallet: &wallet,
        client: market.client(),
        ledger: &*ledger,
        rows: &rows,
        engine: &engine,
    };
    let config = ManyConfig { participant, policy };
    if arguments.dry_run {
        let found = examine_market(&config, &context, &shutdown)?;
        return print_dry_run(arguments, &found);
    }
    take_part(&config, &context, &shutdown, &printer)
}

fn take_part(
    config: &ManyConfig,
    context: &ManyContext<'_>,
    shutdown: &Shutdown,
    printer: &EventPrinter,
) -> anyhow::Result<Exit> {
    // Events come from several threads, and an event may have several lines.
    let output = Mutex::new(ClientOutput { printer, reviews: 0 });
    let on_event = |event: &ManyEvent<'_>| {
        output.lock().unwrap_or_else(std::sync::PoisonError::into_inner).print(event);
    };
    let summary = participate_in_many(config, context, shutdown, &on_event)?;
    print_summary(&summary, printer)
}

fn obstacle(error: &anyhow::Error) -> Obstacle {
    Obstacle { code: failure::classify(error).0, why: failure::in_one_line(error) }
}

/// The output of a running client.
struct ClientOutput<'a> {
    printer: &'a EventPrinter,
    reviews: u64,
}

impl ClientOutput<'_> {
    fn print(&mut self, event: &ManyEvent<'_>) {
        match (event, self.printer.is_json()) {
            (ManyEvent::OfTask(task, event), true) => {
                self.printer.print_json(&with_task(*task, event));
            }
            (ManyEvent::OfTask(task, event), false) => {
                self.printer.for_task(*task).print(event);
            }
            (ManyEvent::Reviewed(decisions), true) => {
                let tasks: Vec<Value> = decisions.iter().map(decision_json).collect();
                let fields = json!({ "tasks": tasks });
                self.printer.print_json(&JsonEvent { event: "reviewed", fields });
            }
            (ManyEvent::Reviewed(decisions), false) => self.print_review(decisions),
            (ManyEvent::NotReviewed(error), true) => {
                let fields = json!({ "code": error.code(), "message": error.to_string() });
                self.printer.print_json(&JsonEvent { event: "not_reviewed", fields });
            }
            (ManyEvent::NotReviewed(error), false) => {
                let text = format!("the tasks cannot be reviewed now: {error}");
                self.printer.print_text(&text, NOTE);
            }
            (ManyEvent::Failed(task, why), true) => {
                let fields =
                    json!({ "task": task, "code": why.code(), "message": why.to_string() });
                self.printer.print_json(&JsonEvent { event: "task_failed", fields });
            }
            (ManyEvent::Failed(task, why), false) => {
                let text = format!("the participation ended: {why} [{}]", why.code());
                self.printer.for_task(*task).print_text(&text, NOTE);
            }
        }
    }

    /// The whole table once, and later the changes only.
    fn print_review(&mut self, decisions: &[TaskDecision]) {
        self.reviews += 1;
        if self.reviews == 1 {
            return print_table(decisions);
        }
        for one in decisions {
            let change = match one.verdict {
                TaskVerdict::Join => "joined: it is predicted to pay",
                TaskVerdict::Leave => "left: it is predicted to pay",
                TaskVerdict::Stay | TaskVerdict::Settling | TaskVerdict::Refused(_) => continue,
            };
            let per_hour = one.prediction.map_or_else(String::new, |found| {
                format!(" {:.3} FLN for an hour of training", found.per_hour)
            });
            let text = format!("{} {change}{per_hour}", one.name);
            self.printer.for_task(one.task).print_text(&text, anstyle::Style::new());
        }
    }
}

/// An event of an agent, with its task.
fn with_task(task: TaskId, event: &ParticipantEvent) -> Value {
    let mut value = serde_json::to_value(event).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        fields.insert("task".to_owned(), json!(task));
    }
    value
}

fn print_dry_run(arguments: &Participate, found: &DryRun) -> anyhow::Result<Exit> {
    if arguments.json.json {
        let tasks: Vec<Value> = found.decisions.iter().map(decision_json).collect();
        show::json(&json!({ "bond_left": show::units(found.bond_left), "tasks": tasks }))?;
        return Ok(Exit::Done);
    }
    if found.decisions.is_empty() {
        show::hint("The market has no tasks.");
    } else {
        print_table(&found.decisions);
    }
    Ok(Exit::Done)
}

fn decision_json(one: &TaskDecision) -> Value {
    let refused = match &one.verdict {
        TaskVerdict::Refused(why) => Some(why),
        _ => None,
    };
    json!({
        "task": one.task,
        "name": one.name,
        "decision": one.verdict.name(),
        "code": refused.map(|why| why.code()),
        "reason": refused.map(ToString::to_string),
        "data": one.data,
        "prediction": one.prediction.as_ref().map(prediction_json),
        "bond": one.bond.map(show::units),
    })
}

/// A prediction, with its amounts in base units like all others.
fn prediction_json(found: &TaskPrediction) -> Value {
    json!({
        "pay": predicted_units(found.pay),
        "per_hour": predicted_units(found.per_hour),
        "seconds": found.seconds,
        "chance": found.chance,
        "rounds_known": found.rounds_known,
    })
}

/// Base units of a florin.
const UNITS_PER_FLORIN: f64 = 1e18;

/// A predicted amount in base units, as text; a loss has a sign, and a number that is not finite is left out.
fn predicted_units(florins: f64) -> Option<String> {
    // A prediction has fewer digits than a float.
    florins.is_finite().then(|| format!("{}", (florins * UNITS_PER_FLORIN) as i128))
}

fn print_table(decisions: &[TaskDecision]) {
    let mut table = TextTable::new(&[
        "task",
        "name",
        "decision",
        ">FLN an hour",
        ">FLN a round",
        ">training",
        ">asked",
        ">bond, FLN",
        "reason",
    ]);
    for one in decisions {
        let figure = |text: &dyn Fn(&TaskPrediction) -> String| {
            one.prediction.as_ref().map_or_else(String::new, text)
        };
        let reason = match &one.verdict {
            TaskVerdict::Refused(why) => format!("{why} [{}]", why.code()),
            _ => one.data.as_ref().map_or_else(String::new, |data| format!("with {data}")),
        };
        table.row([
            one.task.short().into(),
            one.name.as_str().into(),
            one.verdict.name().into(),
            figure(&|found| format!("{:.3}", found.per_hour)).into(),
            figure(&|found| format!("{:.4}", found.pay)).into(),
            figure(&|found| format!("{:.2} s", found.seconds)).into(),
            figure(&|found| format!("{:.0} %", 100.0 * found.chance)).into(),
            one.bond.map_or_else(String::new, show::fln).into(),
            reason.into(),
        ]);
    }
    table.print();
}

fn print_summary(outcome: &ManySummary, printer: &EventPrinter) -> anyhow::Result<Exit> {
    let claimed: Amount = outcome.claimed;
    if printer.is_json() {
        let fields = json!({
            "account": outcome.account,
            "tasks": outcome.tasks,
            "withdrawn": show::units(claimed),
            "alarms": outcome.alarms,
        });
        printer.print_json(&JsonEvent { event: "summary", fields });
    } else {
        anstream::println!();
        show::facts(&[
            ("account", outcome.account.to_string()),
            ("tasks", outcome.tasks.to_string()),
            ("withdrawn now", format!("{} FLN", show::fln(claimed))),
            ("alarms", outcome.alarms.to_string()),
        ]);
    }
    Ok(if outcome.alarms > 0 { Exit::Negative } else { Exit::Done })
}
