//! A task file that fits a data source: `florin task new --data`.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use florin_learning::DataSource;
use florin_learning::data::{
    Cells, FeatureEncoder, FitError, IgnoredReason, ImageShape, RowEncoder, ScaleKind, Table,
    TableFeatures, TableProfile, Treatment, default_scale, fit, fit_class_names, fit_features,
    fit_images, fit_target, load_table, load_tokens,
};
use florin_learning::graph::read_archive;
use florin_protocol::{ColumnKind, FeatureEncoding, NumberEncoding, RowEncoding};

use super::graph_section::ALL_PARAMETERS;
use super::image_section::{image_key, image_of_graph};
use super::overlay::template;
use super::rows_per_round::{rounds_for, rows_per_round};
use super::token_section::{NewTokens, TokenizerFile, length_of_graph};
use super::trainer_section::NewTrainer;
use super::{BuffersName, LossName, Parties, from_text_with_table, relative_to};
use crate::failure::Failure;

/// Limits of the units of the hidden layer: the next power of two above the width, within them.
const HIDDEN_UNITS: (usize, usize) = (16, 64);
/// Fewest rows of a holdout for a model with a hidden layer. Participants are assumed to have about
/// as many rows; with fewer rows softmax regression generalises better.
const PERCEPTRON_ROWS_MIN: usize = 1_000;
/// Passes over a participant's rows in a round, for fewer rows and for more. Chosen with seeds 1 to
/// 20 of the tables "as it is" of `cargo xtask bench pay`, as are the batch and the step size.
const EPOCHS: (u32, u32) = (20, 3);
/// Rows per step, for fewer rows and for more.
const BATCH: (u32, u32) = (8, 32);
/// Step size and momentum. Momentum makes up for the few rounds of a task.
const LEARNING_RATE: &str = "0.05";
const MOMENTUM: &str = "0.9";
/// Step size of a graph: its rows are usually few for its size, and its loss may be a square.
pub(super) const GRAPH_LEARNING_RATE: &str = "0.01";
/// Passes of the public baseline of a graph.
const BASELINE_EPOCHS: u32 = 2;
/// Longest name of a task, in characters.
const NAME_CHARS_MAX: usize = 60;

/// A task file whose holdout is a data source, and notes for its buyer.
#[derive(Debug)]
pub struct FittedTask {
    /// The file's text.
    pub text: String,
    /// Sentences about columns that the task ignores.
    pub notes: Vec<String>,
}

/// The graph of a new task.
#[derive(Debug)]
pub(crate) struct NewGraph<'a> {
    /// A file of `torch.export.save`.
    pub(crate) file: &'a Path,
    /// Its loss.
    pub(crate) loss: LossName,
    /// The largest loss of a row, if the buyer states one.
    pub(crate) loss_bound: Option<f64>,
    /// The patterns of the parameters that are trained; empty for all.
    pub(crate) trainable: &'a [String],
    /// Its running statistics.
    pub(crate) buffers: BuffersName,
    /// The images that a row becomes; `None` for those of the graph's input.
    pub(crate) image: Option<ImageShape>,
    /// The tokens that a row has, if it has tokens of a text.
    pub(crate) tokens: Option<NewTokens<'a>>,
}

/// The shape of a task's rows.
pub(super) struct RowShape {
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) classes: usize,
    /// The keys of the encoding, for `[data]`.
    pub(super) encoding: String,
    pub(super) notes: Vec<String>,
}

/// Writes the task that fits a source: all of its rows are the holdout. `folder` is the folder of
/// the file, to which the file names in it are relative. `image` is the shape of a row that is an
/// image.
///
/// # Errors
/// `INVALID_DATA` if no task fits the source; every task that is returned passes `florin task check`.
pub fn task_for_data(
    source: &DataSource,
    image: Option<ImageShape>,
    folder: &Path,
    salt: u64,
    parties: &Parties,
) -> anyhow::Result<FittedTask> {
    let table = load_table(source)?;
    let shape = match image {
        Some(image) => shape_of_images(source, &table, image)?,
        None => shape(source, &table)?,
    };
    let written = relative_to(&absolute_unless_here(folder)?, source.clone());
    let text = text(&shape, &written.to_string(), salt);
    if let Err(problem) = from_text_with_table(&text, folder, parties, Some(table)) {
        let failure = problem.at(Path::new("the task"), &text);
        return Err(Failure::input("INVALID_DATA", format!("{source}: {failure}")).into());
    }
    Ok(FittedTask { text, notes: shape.notes })
}

/// As [`task_for_data`], for a model of the buyer's.
///
/// # Errors
/// `INVALID_DATA` if source and model do not fit, `INVALID_MODEL` if the file has no model.
pub(crate) fn task_for_graph(
    graph: &NewGraph<'_>,
    source: &DataSource,
    folder: &Path,
    salt: u64,
    parties: &Parties,
) -> anyhow::Result<FittedTask> {
    let (shape, table) = shape_for_graph(graph, source, folder)?;
    written_for_graph(graph, source, folder, salt, parties, shape, table)
}

/// The shape of the rows of a source for a graph, and their table.
pub(super) fn shape_for_graph(
    graph: &NewGraph<'_>,
    source: &DataSource,
    folder: &Path,
) -> anyhow::Result<(RowShape, Table)> {
    if let Some(tokens) = graph.tokens {
        return shape_of_tokens(graph, tokens, source, folder);
    }
    let table = load_table(source)?;
    let are_images = graph.image.is_some() || matches!(table.features(), TableFeatures::Images(_));
    let shape = match graph.loss {
        LossName::CrossEntropy if are_images => {
            shape_of_images(source, &table, graph_image(graph)?)?
        }
        _ if are_images => {
            let message =
                format!("{source}: the label of an image is a class: --loss cross_entropy");
            return Err(Failure::input("INVALID_DATA", message).into());
        }
        LossName::Squared | LossName::Absolute | LossName::Huber => {
            shape_with_number(source, &table)?
        }
        LossName::TokenCrossEntropy | LossName::Output | LossName::Binary => shape_as_is(&table),
        LossName::CrossEntropy => shape(source, &table)?,
    };
    Ok((shape, table))
}

/// As [`task_for_data`], for a trainer of the buyer's.
///
/// # Errors
/// As [`task_for_graph`].
pub(crate) fn task_for_trainer(
    trainer: &NewTrainer<'_>,
    source: &DataSource,
    folder: &Path,
    salt: u64,
    parties: &Parties,
) -> anyhow::Result<FittedTask> {
    let table = load_table(source)?;
    let has_classes = trainer.loss == LossName::CrossEntropy;
    let shape = match (has_classes, table.labels()) {
        (true, _) => shape(source, &table)?,
        (false, Cells::Numbers(numbers)) if !numbers.is_empty() => {
            shape_with_number(source, &table)?
        }
        _ => shape_as_is(&table),
    };
    let here = absolute_unless_here(folder)?;
    let written = relative_to(&here, source.clone());
    let targets = usize::from(!has_classes && !shape.encoding.starts_with("accept"));
    let in_folder = |path: &Path| quoted(&here.join(path).display().to_string());
    let mut section = vec![
        "[model]".to_owned(),
        "# A program of yours that trains and computes losses: docs/trainer.md.".to_owned(),
        "kind = \"trainer\"".to_owned(),
        format!("code = {}", in_folder(trainer.code)),
        "# Its initial parameters, by name.".to_owned(),
        format!("initial = {}", in_folder(trainer.initial)),
        "# Whether it has the verb gradient. If not, coalitions value the updates.".to_owned(),
        format!("gradient = {}", trainer.has_gradient),
        "# \"cross_entropy\" for rows with classes, \"output\" for any other loss.".to_owned(),
        format!("loss = {}", quoted(&name_of(&trainer.loss))),
        format!("inputs = {}", shape.width - targets),
    ];
    section.extend(has_classes.then(|| format!("classes = {}", shape.classes)));
    section.extend((targets > 0).then(|| format!("targets = {targets}")));
    section.extend(trainer.loss_bound.map(|bound| format!("loss_bound = {bound}")));
    let text = text(&shape, &written.to_string(), salt);
    let text = with_value(&text, "rounds", "baseline_epochs", "0");
    let text = with_section(&text, "[model]\n", "[data]\n", &section);
    let text = match trainer.has_gradient {
        true => text,
        false => {
            let estimator = [
                "[estimator]".to_owned(),
                "# Shapley values by the losses of coalitions: of all in a round of up to 8 updates, of"
                    .to_owned(),
                "# those of random orders in a larger one, of at most 64.".to_owned(),
                "kind = \"coalitions\"".to_owned(),
            ];
            with_section(&text, "[estimator]\n", "[budget]\n", &estimator)
        }
    };
    if let Err(problem) = from_text_with_table(&text, folder, parties, Some(table)) {
        let failure = problem.at(Path::new("the task"), &text);
        let message = format!("{} with {source}: {failure}", trainer.code.display());
        return Err(Failure::input("INVALID_MODEL", message).into());
    }
    Ok(FittedTask { text, notes: shape.notes })
}

/// A task file with other lines from one section's line to that of another.
pub(super) fn with_section(text: &str, from: &str, to: &str, lines: &[String]) -> String {
    let bounds = text.find(from).zip(text.find(to));
    let Some((start, end)) = bounds else { return text.to_owned() };
    format!("{}{}\n\n{}", &text[..start], lines.join("\n"), &text[end..])
}

/// As [`shape_for_graph`], for rows of tokens.
fn shape_of_tokens(
    graph: &NewGraph<'_>,
    tokens: NewTokens<'_>,
    source: &DataSource,
    folder: &Path,
) -> anyhow::Result<(RowShape, Table)> {
    let invalid = |why: String| Failure::input("INVALID_MODEL", why);
    let length = match tokens.length {
        Some(length) => length,
        None => {
            let (found, _) = read_archive(graph.file)
                .map_err(|error| invalid(format!("{}: {error}", graph.file.display())))?;
            length_of_graph(&found, graph.file).map_err(invalid)?
        }
    };
    let file = TokenizerFile::read(tokens.tokenizer, length, tokens.end_of_text)
        .map_err(|why| Failure::input("INVALID_TOKENIZER", why))?;
    let table = load_tokens(source, &file.tokenizer, file.encoder())?;
    let encoding = tokens.keys(&absolute_unless_here(folder)?, length);
    Ok((RowShape { encoding, ..shape_as_is(&table) }, table))
}

/// The text of a task with a graph, after a check.
fn written_for_graph(
    graph: &NewGraph<'_>,
    source: &DataSource,
    folder: &Path,
    salt: u64,
    parties: &Parties,
    shape: RowShape,
    table: Table,
) -> anyhow::Result<FittedTask> {
    let here = absolute_unless_here(folder)?;
    let written = relative_to(&here, source.clone());
    let text = text(&shape, &written.to_string(), salt);
    let text = with_graph(&text, graph, &here);
    let ready = from_text_with_table(&text, folder, parties, Some(table)).map_err(|problem| {
        let failure = problem.at(Path::new("the task"), &text);
        let message = format!("{} with {source}: {failure}", graph.file.display());
        Failure::input("INVALID_MODEL", message)
    })?;
    // A graph of operators that the plain-Rust engine has, and of little work, has a public baseline.
    let mut spec = ready.spec.clone();
    spec.rounds.baseline_epochs = BASELINE_EPOCHS;
    let epochs = if ready.load_graph(&spec).is_ok() { BASELINE_EPOCHS } else { 0 };
    let text = with_value(&text, "rounds", "baseline_epochs", &epochs.to_string());
    Ok(FittedTask { text, notes: shape.notes })
}

/// A task file whose section `[model]` is a graph. `here` is the folder of the model's file.
fn with_graph(text: &str, graph: &NewGraph<'_>, here: &Path) -> String {
    let section = graph_lines(graph, here);
    let text = with_value(text, "rounds", "baseline_epochs", "0");
    let text = with_value(&text, "training", "learning_rate", GRAPH_LEARNING_RATE);
    with_section(&text, "[model]\n", "[data]\n", &section)
}

/// The section `[model]` of a graph. `here` is the folder of the model's file.
pub(super) fn graph_lines(graph: &NewGraph<'_>, here: &Path) -> Vec<String> {
    let mut section = vec![
        "[model]".to_owned(),
        "# A model of PyTorch, as torch.export.save writes it: docs/models.md.".to_owned(),
        "kind = \"graph\"".to_owned(),
        format!("file = {}", quoted(&here.join(graph.file).display().to_string())),
        "# The loss: \"cross_entropy\", \"token_cross_entropy\", \"binary\", \"squared\", \"absolute\","
            .to_owned(),
        "# \"huber\" or \"output\".".to_owned(),
        format!("loss = {}", quoted(&name_of(&graph.loss))),
        "# Running statistics: \"average\", \"freeze\" or \"refuse\".".to_owned(),
        format!("buffers = {}", quoted(&name_of(&graph.buffers))),
        "# Only parameters whose name fits are trained, sent and paid.".to_owned(),
    ];
    let all = [ALL_PARAMETERS.to_owned()];
    let trainable = if graph.trainable.is_empty() { &all } else { graph.trainable };
    section.push(format!("trainable = {}", list(trainable)));
    section.extend(graph.loss_bound.map(|bound| format!("loss_bound = {bound}")));
    section
}

/// The working directory, if the task file is in another folder: file names in it would otherwise be
/// relative to that folder. Empty if it is in this one.
pub(super) fn absolute_unless_here(folder: &Path) -> anyhow::Result<std::path::PathBuf> {
    if folder == Path::new("") || folder == Path::new(".") {
        return Ok(std::path::PathBuf::new());
    }
    std::env::current_dir().context("the working directory")
}

fn shape(source: &DataSource, table: &Table) -> anyhow::Result<RowShape> {
    let rows = table.rows();
    let refused = |why: String| Failure::input("INVALID_DATA", format!("{source}: {why}"));
    let kind = default_scale(table);
    let profile = TableProfile::new(table);
    let encoder = fit(table, &profile, kind).map_err(|error| refused(error.to_string()))?;
    let (width, classes) = (encoder.width(), encoder.classes);
    if let DataSource::Florin { .. } = source {
        return Ok(RowShape { rows, width, classes, encoding: String::new(), notes: Vec::new() });
    }
    let encoding =
        florin_work::row_encoding(&encoder).map_err(|error| refused(error.to_string()))?;
    let notes = ignored_columns(&profile);
    Ok(RowShape { rows, width, classes, encoding: encoding_keys(kind, &encoding), notes })
}

/// The images that a graph takes.
fn graph_image(graph: &NewGraph<'_>) -> anyhow::Result<ImageShape> {
    if let Some(image) = graph.image {
        return Ok(image);
    }
    let invalid = |why: String| Failure::input("INVALID_MODEL", why);
    let (found, _) = read_archive(graph.file)
        .map_err(|error| invalid(format!("{}: {error}", graph.file.display())))?;
    Ok(image_of_graph(&found, graph.file).map_err(invalid)?)
}

/// The shape of rows that are images. Their shorter side becomes that of the model, so that nothing
/// is distorted.
fn shape_of_images(
    source: &DataSource,
    table: &Table,
    image: ImageShape,
) -> anyhow::Result<RowShape> {
    let refused = |error: FitError| Failure::input("INVALID_DATA", format!("{source}: {error}"));
    let kind = default_scale(table);
    let (class_names, classes) = fit_class_names(table).map_err(refused)?;
    let resize = Some(image.height.max(image.width));
    let images = fit_images(table, image, resize, kind).map_err(refused)?;
    let features = FeatureEncoder::Images(images);
    let encoder = RowEncoder { classes, class_names, features, target: None };
    let encoding = florin_work::row_encoding(&encoder)?;
    let (rows, width, encoding) = (table.rows(), encoder.width(), encoding_keys(kind, &encoding));
    Ok(RowShape { rows, width, classes, encoding, notes: Vec::new() })
}

/// The name of a value of an argument.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The shape of rows that are used as they are, without labels: tokens, or features and targets.
fn shape_as_is(table: &Table) -> RowShape {
    let encoding = "accept_unscaled = true".to_owned();
    RowShape { rows: table.rows(), width: table.columns(), classes: 1, encoding, notes: Vec::new() }
}

/// The shape of rows whose label is a number.
fn shape_with_number(source: &DataSource, table: &Table) -> anyhow::Result<RowShape> {
    let refused = |why: String| Failure::input("INVALID_DATA", format!("{source}: {why}"));
    let kind = default_scale(table);
    let profile = TableProfile::new(table);
    let fitted = |error: FitError| refused(error.to_string());
    let features = fit_features(table, &profile, kind).map_err(fitted)?;
    let target = fit_target(table, ScaleKind::Standard).map_err(fitted)?;
    let encoder =
        RowEncoder { classes: 1, class_names: Vec::new(), features, target: Some(target) };
    let encoding =
        florin_work::row_encoding(&encoder).map_err(|error| refused(error.to_string()))?;
    let notes = ignored_columns(&profile);
    let (rows, width) = (table.rows(), encoder.width());
    Ok(RowShape { rows, width, classes: 1, encoding: encoding_keys(kind, &encoding), notes })
}

/// A sentence for each column that the task ignores.
fn ignored_columns(profile: &TableProfile) -> Vec<String> {
    let ignored = profile.columns.iter().filter_map(|column| match &column.treatment {
        Treatment::Ignored(reason) => {
            Some(format!("Column {:?} is ignored: {}.", column.name, ignored_because(reason)))
        }
        Treatment::Scaled | Treatment::OneHot => None,
    });
    ignored.collect()
}

/// The reason why a column has no features, as a clause.
pub(crate) fn ignored_because(reason: &IgnoredReason) -> String {
    match reason {
        IgnoredReason::Constant => "all rows have one value".to_owned(),
        IgnoredReason::Duplicate(other) => format!("it equals column {other:?}"),
        IgnoredReason::RowNumber => "it numbers the rows".to_owned(),
        IgnoredReason::ManyTexts => "its texts are names, not categories".to_owned(),
    }
}

fn text(shape: &RowShape, source: &str, salt: u64) -> String {
    let (width, classes) = (shape.width.to_string(), shape.classes.to_string());
    let rows = u32::try_from(shape.rows).unwrap_or(u32::MAX);
    let classes_counted = u32::try_from(shape.classes).unwrap_or(u32::MAX);
    let rounds = rounds_for(rows, classes_counted);
    let per_round = rows_per_round(rows, classes_counted, rounds);
    let hidden = shape.width.next_power_of_two().clamp(HIDDEN_UNITS.0, HIDDEN_UNITS.1);
    let name = task_name(source);
    let is_small = shape.rows < PERCEPTRON_ROWS_MIN;
    let of_size = |(small, large): (u32, u32)| if is_small { small } else { large }.to_string();
    let kind = if is_small { "softmax" } else { "mlp" };
    let settings = [
        ("", "name", quoted(&name)),
        ("model", "kind", quoted(kind)),
        ("model", "inputs", width.clone()),
        ("model", "hidden", format!("[{hidden}]")),
        ("model", "classes", classes.clone()),
        ("data", "width", width),
        ("data", "classes", format!("{classes}\n{}", shape.encoding).trim_end().to_owned()),
        ("holdout", "source", quoted(source)),
        ("holdout", "rows", quoted(&format!("0..{rows}"))),
        ("holdout", "rows_per_round", per_round.to_string()),
        ("training", "epochs", of_size(EPOCHS)),
        ("training", "batch", of_size(BATCH)),
        ("training", "learning_rate", LEARNING_RATE.to_owned()),
        ("training", "momentum", MOMENTUM.to_owned()),
        ("rounds", "count", rounds.to_string()),
    ];
    let file = template(salt);
    let file = settings
        .iter()
        .fold(file, |file, (section, key, value)| with_value(&file, section, key, value));
    // Softmax regression has no hidden layer; its line remains as a comment.
    if is_small { file.replacen("\nhidden = ", "\n# hidden = ", 1) } else { file }
}

/// The name of a task: of `csv:folder/wine.csv#target`, it is "wine: target".
fn task_name(source: &str) -> String {
    let last = source.rsplit(['/', ':']).next().unwrap_or(source);
    let name = match last.split_once('#') {
        Some((file, label)) => {
            let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
            format!("{stem}: {label}")
        }
        None => last.to_owned(),
    };
    name.chars().filter(|c| !c.is_control()).take(NAME_CHARS_MAX).collect()
}

/// A text as a TOML string.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// A task file with another value of one key. Comments remain.
pub(super) fn with_value(file: &str, section: &str, key: &str, value: &str) -> String {
    let mut here = String::new();
    let line = |line: &str| {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.clone_into(&mut here);
        }
        let is_key = line.split_once(" = ").is_some_and(|(name, _)| name == key);
        if is_key && here == section { format!("{key} = {value}\n") } else { format!("{line}\n") }
    };
    file.lines().map(line).collect()
}

/// The keys of an encoding, as lines of `[data]`.
fn encoding_keys(kind: ScaleKind, encoding: &RowEncoding) -> String {
    let mut lines = vec![format!("scale = {:?}", kind.name())];
    if !encoding.class_names.is_empty() {
        lines.push(format!("class_names = {}", list(&encoding.class_names)));
    }
    match &encoding.features {
        FeatureEncoding::Uniform(number) => lines.extend(number_keys(number)),
        FeatureEncoding::Columns(columns) => {
            lines.push("columns = [".to_owned());
            for column in columns {
                let keys = match &column.kind {
                    ColumnKind::Numeric { number, missing_indicator } => {
                        let mut keys = number_keys(number);
                        if *missing_indicator {
                            keys.push("missing_indicator = true".to_owned());
                        }
                        keys.join(", ")
                    }
                    ColumnKind::Categorical { categories } => {
                        format!("categories = {}", list(categories))
                    }
                    ColumnKind::Ignored => "ignored = true".to_owned(),
                };
                lines.push(format!("  {{ name = {}, {keys} }},", quoted(&column.name)));
            }
            lines.push("]".to_owned());
        }
        FeatureEncoding::Images(images) => lines.push(image_key(images)),
        // A task of tokens has its keys from its own arguments.
        FeatureEncoding::Tokens(_) => {}
    }
    if let Some(target) = &encoding.target {
        lines.push(format!("target = {{ {} }}", number_keys(target).join(", ")));
    }
    lines.join("\n")
}

fn number_keys(number: &NumberEncoding) -> Vec<String> {
    let mut keys =
        vec![format!("offset = {}", number.offset), format!("factor = {}", number.factor)];
    keys.extend(number.fill.map(|fill| format!("fill = {fill}")));
    keys
}

pub(super) fn list(texts: &[String]) -> String {
    let quoted: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}
