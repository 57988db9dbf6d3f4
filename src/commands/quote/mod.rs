//! `florin quote`: time, memory and bytes of training a model, before anything starts.

mod energy;
mod memory;
mod scaling;
mod task_step;
mod together;

use std::fs::File;
use std::path::Path;

use anyhow::Context;
use florin_learning::energy::EnergyMeter;
use florin_learning::graph::{
    BufferPolicy, Graph, GraphError, InputRole, read_archive_from, travelling_inputs,
};
use florin_learning::step_cost::{CardError, DeviceCard, StepSeconds, StepWork, measure};
use serde_json::json;

use crate::cli::Quote;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::show::{self, TextTable};
use crate::small_file::SmallFile;

/// Longest card, in bytes.
const CARD_BYTES_MAX: u64 = 64 << 10;
/// Copies of the parameters in a training, beside the state of the optimizer: start, current and gradient.
const PARAMETER_COPIES: u64 = 3;
const SECONDS_PER_HOUR: f64 = 3_600.0;

pub(super) fn run(arguments: &Quote) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let source = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    let (graph, weights) = read_archive_from(source).map_err(|error| refused(&error))?;
    let all = ["*".to_owned()];
    let patterns = if arguments.trainable.is_empty() { &all } else { &*arguments.trainable };
    let travels = travelling_inputs(&graph, patterns, BufferPolicy::Average);
    let travels = travels.map_err(|error| refused(&error))?;
    let trains = |at: usize| travels[at];
    let sizes = graph.free_sizes(arguments.batch.into());
    let how = arguments.training();
    let how = how.map_err(|error| Failure::input("INVALID_QUOTE", error.to_string()))?;
    let work = StepWork::of(&graph, &sizes, trains).map_err(|error| refused(&error))?;
    let work = work.with_optimizer(&how);
    let cards = cards(arguments)?;
    let mut quotes = Vec::new();
    for (name, card) in &cards {
        quotes.push((
            name.as_str(),
            card,
            card.predict(&work).map_err(|error| no_card(name, &error))?,
        ));
    }
    let steps = arguments
        .rows
        .map(|rows| rows.div_ceil(arguments.batch.into()) * u64::from(arguments.epochs));
    let update = update_bytes(&graph, &travels);
    let memory = memory::bytes(arguments, &graph, &weights, patterns);
    let bytes = QuoteBytes {
        update,
        // The optimizer's own tensors come after those of the gradient.
        step: memory.map(|bytes| bytes.max(how.passing_tensors() * update)),
        parameters: PARAMETER_COPIES * update,
        optimizer: how.state_tensors() * update,
    };
    let all = arguments
        .together
        .map(|workers| together::quote(&how, (&graph, &travels), &cards, arguments, workers));
    let all = all.transpose()?;
    let scaling = arguments.measured.as_deref().map(|file| scaling::quote(arguments, file));
    let scaling = scaling.transpose()?;
    if let Some(path) = &arguments.save_step {
        let model = (&graph, &weights, patterns);
        let step = task_step::quote(arguments, model, (&travels, update), &cards)?;
        task_step::write(&step, path)?;
    }
    if arguments.json.json {
        print_json(arguments, &quotes, bytes, steps, (all.as_ref(), scaling.as_ref()))?;
    } else {
        print_text(arguments, &quotes, bytes, steps);
        if let Some(all) = &all {
            together::print(&cards, all);
        }
        if let Some(scaling) = &scaling {
            scaling::print(scaling);
        }
    }
    Ok(Exit::Done)
}

/// Bytes of a training.
#[derive(Debug, Clone, Copy)]
struct QuoteBytes {
    /// Of an update.
    update: u64,
    /// Of the tensors of a step at once.
    step: Option<u64>,
    /// Of the parameters, their start and their gradient.
    parameters: u64,
    /// Of the optimizer's state.
    optimizer: u64,
}

type DeviceQuote<'a> = (&'a str, &'a DeviceCard, StepSeconds);

/// Bytes of an update in f32.
fn update_bytes(graph: &Graph, travels: &[bool]) -> u64 {
    let travelling = graph.inputs.iter().zip(travels).filter(|(_, travels)| **travels);
    let elements = travelling.filter_map(|(input, _)| {
        (input.role != InputRole::User)
            .then_some(input.tensor.fixed_sizes()?.iter().product::<u64>())
    });
    elements.sum::<u64>() * size_of::<f32>() as u64
}

/// The cards of the devices, with their names; this device is measured if there are none.
fn cards(arguments: &Quote) -> anyhow::Result<Vec<(String, DeviceCard)>> {
    if !arguments.devices.is_empty() {
        let read = |file: &std::path::PathBuf| Ok((file.display().to_string(), read_card(file)?));
        return arguments.devices.iter().map(read).collect();
    }
    let mut engine = compose::engine(arguments.engine)?;
    let progress = Progress::start("measuring this device");
    let mut news = |done: usize, all: usize| {
        progress.step(format!("measuring this device: {done} of {all} steps"));
    };
    let threads = arguments.engine.threads.into();
    let mut meter = EnergyMeter::for_engine(engine.name()).ok();
    let card = measure(&mut *engine, threads, meter.as_mut(), &mut news)
        .map_err(|error| no_card("this device", &error))?;
    drop(progress);
    if let Some(file) = &arguments.save_card {
        let text = serde_json::to_string_pretty(&card)? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(vec![("this device".to_owned(), card)])
}

fn read_card(file: &Path) -> anyhow::Result<DeviceCard> {
    let name = file.display();
    let invalid = |why: String| {
        let message =
            format!("{name} is not the card of a device ({why}): write one by --save-card");
        Failure::input("INVALID_CARD", message)
    };
    let kind = "the card of a device";
    let text = SmallFile { kind, code: "INVALID_CARD", bytes_max: CARD_BYTES_MAX }.read(file)?;
    Ok(serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?)
}

fn no_card(name: &str, error: &CardError) -> anyhow::Error {
    match error {
        CardError::Invalid { .. } => {
            Failure::input("INVALID_CARD", format!("{name}: {error}")).into()
        }
        error => Failure::negative("MEASUREMENT_FAILED", format!("{name}: {error}")).into(),
    }
}

fn refused(error: &GraphError) -> anyhow::Error {
    Failure::negative(error.code(), error.to_string()).into()
}

fn print_json(
    arguments: &Quote,
    quotes: &[DeviceQuote<'_>],
    bytes: QuoteBytes,
    steps: Option<u64>,
    (together, scaling): (Option<&together::QuotedTogether>, Option<&scaling::ScalingQuote>),
) -> anyhow::Result<()> {
    let devices: Vec<_> = quotes
        .iter()
        .map(|(name, card, step)| {
            let round = steps.map(|steps| steps as f64 * step.seconds);
            json!({
                "device": name,
                "engine": card.engine,
                "threads": card.threads,
                "step_seconds": step,
                "card_error": card.error,
                "round_seconds": round,
                "round_cost": cost(arguments, round),
                "energy": energy::json(card, step.seconds, round),
            })
        })
        .collect();
    show::json(&json!({
        "batch": arguments.batch,
        "steps": steps,
        "devices": devices,
        "update_bytes": bytes.update,
        "step_tensor_bytes": bytes.step,
        "parameter_bytes": bytes.parameters,
        "optimizer_bytes": bytes.optimizer,
        "together": together.map(together::json),
        "scaling": scaling.map(scaling::json),
    }))?;
    Ok(())
}

/// The cost of a round in FLN, as text.
fn cost(arguments: &Quote, round: Option<f64>) -> Option<String> {
    let hours = round? / SECONDS_PER_HOUR;
    let price = arguments.price?.to_string().parse::<f64>().ok()?;
    Some(format!("{:.6}", price * hours))
}

fn print_text(
    arguments: &Quote,
    quotes: &[DeviceQuote<'_>],
    bytes: QuoteBytes,
    steps: Option<u64>,
) {
    let mut columns = vec!["device", ">threads", ">ms a step", ">from", ">to"];
    columns.extend(steps.map(|_| ">round"));
    columns.extend(arguments.price.map(|_| ">FLN a round"));
    let mut table = TextTable::new(&columns);
    for (name, card, step) in quotes {
        let ms = |seconds: f64| format!("{:.2}", 1e3 * seconds);
        let round = steps.map(|steps| steps as f64 * step.seconds);
        let mut cells = vec![
            (*name).into(),
            card.threads.to_string().into(),
            ms(step.seconds).into(),
            ms(step.least).into(),
            ms(step.most).into(),
        ];
        cells.extend(round.map(|seconds| format!("{seconds:.1} s").into()));
        cells.extend(cost(arguments, round).map(Into::into));
        table.row(cells);
    }
    table.print();
    anstream::println!();
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let step = bytes.step.map_or_else(|| "unknown".to_owned(), mib);
    let mut facts = vec![
        ("tensors of a step at once", step),
        ("parameters, start, gradient", mib(bytes.parameters)),
        ("state of the optimizer", mib(bytes.optimizer)),
        ("update", mib(bytes.update)),
    ];
    let energy: Vec<String> =
        quotes.iter().map(|quote| energy::text(quote, arguments, steps)).collect();
    facts.extend(energy.into_iter().map(|text| ("energy", text)));
    facts.extend(steps.map(|steps| ("steps of a round", show::thousands(&steps.to_string()))));
    show::facts(&facts);
}
