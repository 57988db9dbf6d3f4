//! The task file: parses and checks the buyer's file, and builds the task specification from it.
//!
//! An invalid file is refused with the line, the key, its value and the expected value. Keys have
//! the names that the protocol's own checks use; durations are written without `_ms`, as `"90 s"`.

mod data_section;
mod duration;
mod file;
mod graph_section;
mod image_section;
mod locate;
mod named_rows;
mod new_task;
pub(crate) mod order;
mod overlay;
mod relative;
mod rows;
mod rows_for_task;
mod rows_per_round;
mod token_section;
mod trainer_section;

use std::path::Path;

use florin_learning::data::canonical_bytes;
use florin_learning::graph::GraphModel;
use florin_learning::{Dataset, Table};
use florin_protocol::limits::TASK_MS_MAX;
use florin_protocol::{
    Address, DataSchema, Digest, Holdout, MarketId, ModelArchitecture, Rejection, SPEC_VERSION,
    SpecError, TaskSpec, Timestamp, blob_digest, format_ms,
};

pub use duration::half_year_date;
pub(crate) use duration::{civil, parse_date, parse_moment, parse_ms};
pub(crate) use graph_section::{BuffersName, LossName};
pub(crate) use image_section::ImageArgument;
pub(crate) use named_rows::schema_mismatch;
pub(crate) use new_task::ignored_because;
pub use new_task::{FittedTask, task_for_data};
pub(crate) use new_task::{NewGraph, task_for_graph, task_for_trainer};
pub use overlay::overlay;
pub(crate) use overlay::template;
pub(crate) use relative::relative_to;
pub(crate) use rows::{parse_rows, select_rows};
pub(crate) use rows_for_task::encode_for_task;
pub use rows_for_task::{BlobReader, EncodingTask, load_for_task};
pub(crate) use token_section::{NewTokens, read_tokenizer};
pub(crate) use trainer_section::NewTrainer;

use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::toml_words::in_words;
use file::{HiddenUnits, ModelKind, ModelSection, TaskFile, Trust};
use graph_section::{GraphFile, read_graph};
use named_rows::{NamedRows, RowFiles};
use token_section::TokenizerFile;
use trainer_section::read_trainer;

/// Maximum size of a task file, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The market and the accounts of a task, which its file does not contain.
#[derive(Debug, Clone, Copy)]
pub struct Parties {
    /// The market in which the task is published.
    pub market: MarketId,
    /// The account that pays.
    pub buyer: Address,
    /// The account that runs the rounds.
    pub coordinator: Address,
    /// The time of publication.
    pub now: Timestamp,
}

/// A valid task file, with the blobs that it refers to.
#[derive(Debug)]
pub struct PreparedTask {
    /// The task specification.
    pub spec: TaskSpec,
    /// The initial parameters, as safetensors.
    pub base_model: Vec<u8>,
    /// The canonical bytes of the holdout rows.
    pub holdout: Vec<u8>,
    /// The blobs of a graph, with their digests.
    pub blobs: Vec<(Digest, Vec<u8>)>,
    /// Whether the file omits `holdout.rows_per_round`; the rounds then share all rows equally.
    pub is_per_round_derived: bool,
    /// Whether the file brings the initial parameters, instead of those that the task implies.
    pub is_model_brought: bool,
}

impl PreparedTask {
    /// The graph of a task from the blobs of this one; `None` if its model is another one.
    ///
    /// # Errors
    /// A [`Rejection`] if the blobs do not fit, or if the graph has no public baseline and the task asks
    /// for one.
    pub(crate) fn load_graph(&self, spec: &TaskSpec) -> Result<Option<GraphModel>, Rejection> {
        florin_work::load_graph(spec, |digest, _| Ok(self.blob(digest)))
    }

    /// The bytes of a blob; none for an unknown digest.
    pub(crate) fn blob(&self, digest: Digest) -> Vec<u8> {
        let found = self.blobs.iter().find(|(own, _)| *own == digest);
        found.map(|(_, bytes)| bytes.clone()).unwrap_or_default()
    }
}

/// Reads a task file and the data it refers to.
///
/// # Errors
/// [`Failure`] with code `INVALID_TASK`: the first mistake, with its line, key, value and the expected
/// value.
pub fn read(path: &Path, parties: &Parties) -> anyhow::Result<PreparedTask> {
    let file = SmallFile { kind: "a task file", code: "INVALID_TASK", bytes_max: FILE_BYTES_MAX };
    let text = file.read(path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    from_text(&text, folder, parties).map_err(|problem| problem.at(path, &text).into())
}

/// Refuses a task file with a code for a key whose value is not allowed, with the key's line.
pub(crate) fn refuse(
    path: &Path,
    code: &'static str,
    key: &str,
    value: &str,
    expected: &str,
) -> Failure {
    // A pipe has no text any more.
    let text = path.is_file().then(|| std::fs::read_to_string(path).unwrap_or_default());
    let text = text.unwrap_or_default();
    Failure::input(code, TaskFileError::key(key, value, expected).message(path, &text))
}

/// A mistake in a task file.
#[derive(Debug)]
enum TaskFileError {
    /// Invalid TOML, an unknown or missing key, or a value of the wrong type.
    Toml(Box<toml::de::Error>),
    /// A value that is not allowed.
    Key { key: String, value: String, expected: String },
}

impl TaskFileError {
    fn key(key: &str, value: impl Into<String>, right: impl Into<String>) -> Self {
        Self::Key { key: key.to_owned(), value: value.into(), expected: right.into() }
    }

    fn at(self, path: &Path, text: &str) -> Failure {
        Failure::input("INVALID_TASK", self.message(path, text))
    }

    fn message(self, path: &Path, text: &str) -> String {
        let file = path.display();
        match self {
            Self::Toml(error) => {
                let place = error.span().map(|span| locate::line_at(text, span.start));
                let place = place.map_or(String::new(), |line| format!(", line {line}"));
                let key = error.span().and_then(|span| locate::key_at(text, span.start));
                let key = key.map_or(String::new(), |key| format!(" {key}:"));
                format!("{file}{place}:{key} {}", in_words(error.message()))
            }
            Self::Key { key, value, expected: right } => {
                let place = locate::line_of(text, &key);
                let place = place.map_or(String::new(), |line| format!(", line {line}"));
                format!("{file}{place}: {key} = {value}: {right}")
            }
        }
    }
}

impl From<toml::de::Error> for TaskFileError {
    fn from(error: toml::de::Error) -> Self {
        Self::Toml(Box::new(error))
    }
}

impl From<SpecError> for TaskFileError {
    /// The protocol reports milliseconds; the file has durations, under keys without `_ms`.
    fn from(error: SpecError) -> Self {
        let as_written = |text: &str| text.replace("_ms", "");
        match error.key.strip_suffix("_ms") {
            Some(key) => {
                let value =
                    error.value.parse().map_or(error.value, |ms| format!("{:?}", format_ms(ms)));
                Self::key(key, value, as_written(&error.expected))
            }
            None => Self::key(error.key, error.value, as_written(&error.expected)),
        }
    }
}

/// Builds the task from a file's text without reading the data it refers to: no holdout and no
/// model yet.
///
/// # Errors
/// As [`read`].
pub fn parse_spec(text: &str, parties: &Parties) -> Result<TaskSpec, Failure> {
    let spec = toml::from_str(text)
        .map_err(TaskFileError::from)
        .and_then(|file| build_spec(&file, parties, None))
        .map(|built| built.spec);
    spec.map_err(|problem| problem.at(Path::new("task.toml"), text))
}

fn from_text(text: &str, folder: &Path, parties: &Parties) -> Result<PreparedTask, TaskFileError> {
    from_text_with_table(text, folder, parties, None)
}

/// As [`from_text`], with the table of the holdout's source, if the caller has loaded it.
fn from_text_with_table(
    text: &str,
    folder: &Path,
    parties: &Parties,
    table: Option<Table>,
) -> Result<PreparedTask, TaskFileError> {
    let file: TaskFile = toml::from_str(text)?;
    let BuiltSpec { mut spec, graph, tokenizer } = build_spec(&file, parties, Some(folder))?;
    let source = RowFiles { folder, tokenizer: tokenizer.as_ref(), table };
    let named = NamedRows {
        section: "holdout",
        source: &file.holdout.source,
        rows: file.holdout.rows.as_deref(),
        data: &file.data,
    };
    let rows = named.read(source, &mut spec.data)?;
    let holdout = canonical_bytes(&rows);
    spec.holdout = commit_holdout(rows, file.holdout.rows_per_round, spec.rounds.count)?;
    // Everything but the digest of the base model is known here: check before building a model that
    // may be impossibly large.
    spec.check()?;
    let initial = file.model.initial.as_ref().filter(|_| file.model.kind != ModelKind::Trainer);
    let base_model = match (initial, &graph) {
        (Some(path), _) => read_initial_model(&spec, folder, path)?,
        (None, Some(graph)) => florin_work::encode_parameters(&spec, &graph.initial),
        (None, None) => florin_work::derived_model(&spec).map_err(|error| {
            TaskFileError::key("model", format!("{:?}", spec.model), error.to_string())
        })?,
    };
    spec.base_model = blob_digest(&base_model);
    let shared = file.holdout.rows_per_round.is_none();
    Ok(PreparedTask {
        spec,
        base_model,
        holdout,
        is_per_round_derived: shared,
        is_model_brought: file.model.initial.is_some() || graph.is_some(),
        blobs: graph
            .map(|graph| graph.blobs)
            .into_iter()
            .flatten()
            .chain(tokenizer.map(TokenizerFile::into_blob))
            .collect(),
    })
}

/// A task without its holdout and its initial model, and the files that its blobs come from.
struct BuiltSpec {
    spec: TaskSpec,
    graph: Option<GraphFile>,
    tokenizer: Option<TokenizerFile>,
}

/// The task's arbiter. A task whose coordinator decides alone must say so.
fn arbiter(file: &TaskFile, parties: &Parties) -> Result<Address, TaskFileError> {
    let either = "write the address of an account that watches the coordinator (arbiter = \
        \"0x…\"), or trust = \"coordinator\" if no account does, not both";
    match (file.arbiter, file.trust) {
        (None, Some(Trust::Coordinator)) => Ok(parties.coordinator),
        (Some(account), None) if account == parties.coordinator => {
            let right = "is the coordinator: write trust = \"coordinator\" instead, so that \
                participants see that one account decides";
            Err(TaskFileError::key("arbiter", account.to_string(), right))
        }
        (Some(account), None) => Ok(account),
        (Some(account), Some(_)) => Err(TaskFileError::key("arbiter", account.to_string(), either)),
        (None, None) => Err(TaskFileError::key("trust", "(missing)", either)),
    }
}

/// Builds the task, and reads the model's file if it is a graph. `folder` is that of the task file;
/// `None` if no file may be read.
fn build_spec(
    file: &TaskFile,
    parties: &Parties,
    folder: Option<&Path>,
) -> Result<BuiltSpec, TaskFileError> {
    let expires = duration::parse_moment(&file.expires, parties.now)
        .map_err(|right| TaskFileError::key("expires", format!("{:?}", file.expires), right))?;
    if expires <= parties.now {
        let right = "must be in the future";
        return Err(TaskFileError::key("expires", format!("{:?}", file.expires), right));
    }
    if expires > parties.now.saturating_add_ms(TASK_MS_MAX) {
        let right = "must be at most 366 days from now: no ledger opens a longer task";
        return Err(TaskFileError::key("expires", format!("{:?}", file.expires), right));
    }
    let graph = match file.model.kind {
        ModelKind::Graph => Some(read_graph(&file.model, folder)?),
        ModelKind::Trainer => Some(read_trainer(&file.model, &file.holdout.source, folder)?),
        _ => None,
    };
    file.data.check_keys()?;
    let tokens = file.data.tokens.as_ref().map(|tokens| tokens.read(folder));
    let tokenizer = tokens.transpose()?;
    let encoding = match &tokenizer {
        Some(tokenizer) => Some(tokenizer.row_encoding()),
        None => file.data.complete_encoding()?,
    };
    let spec = TaskSpec {
        version: SPEC_VERSION,
        market: parties.market,
        buyer: parties.buyer,
        coordinator: parties.coordinator,
        arbiter: arbiter(file, parties)?,
        name: file.name.clone(),
        salt: file.salt,
        model: model(&file.model, graph.as_ref())?,
        base_model: Default::default(),
        data: DataSchema { width: file.data.width, classes: file.data.classes, encoding },
        holdout: Holdout { root: Default::default(), rows: 0, rows_per_round: 0 },
        training: file.training.settings()?,
        rounds: file.rounds.rules()?,
        estimator: file.estimator.estimator()?,
        budget: file.budget.budget(),
        admission: file.members.admission()?,
        expires,
    };
    Ok(BuiltSpec { spec, graph, tokenizer })
}

fn model(
    section: &ModelSection,
    graph: Option<&GraphFile>,
) -> Result<ModelArchitecture, TaskFileError> {
    let kind = section.kind;
    let (is_graph, is_trainer) = (kind == ModelKind::Graph, kind == ModelKind::Trainer);
    let is_dense = matches!(kind, ModelKind::Softmax | ModelKind::Mlp);
    // The classes of a trainer follow from its loss.
    let has_classes = !is_graph && (!is_trainer || section.classes.is_some());
    let has_hidden = matches!(kind, ModelKind::Mlp | ModelKind::Cnn);
    let given = [
        ("model.inputs", section.inputs.is_some(), is_dense || is_trainer),
        ("model.hidden", section.hidden.is_some(), has_hidden),
        ("model.classes", section.classes.is_some(), has_classes),
        ("model.file", section.file.is_some(), is_graph),
        ("model.code", section.code.is_some(), is_trainer),
        ("model.channels", section.channels.is_some(), kind == ModelKind::Cnn),
        ("model.height", section.height.is_some(), kind == ModelKind::Cnn),
        ("model.width", section.width.is_some(), kind == ModelKind::Cnn),
        ("model.filters", section.filters.is_some(), kind == ModelKind::Cnn),
    ];
    let name = format!("{kind:?}").to_lowercase();
    for (key, is_there, belongs) in given {
        if is_there && !belongs {
            return Err(TaskFileError::key(
                key,
                "…",
                format!("a model of kind {name:?} has no such key: remove it"),
            ));
        }
        if belongs && !is_there {
            return Err(TaskFileError::key(
                key,
                "nothing",
                format!("a model of kind {name:?} requires this key"),
            ));
        }
    }
    check_graph_keys(section, &name)?;
    if let Some(graph) = graph {
        return Ok(ModelArchitecture::Graph(graph.declared.clone()));
    }
    let classes = section.classes.unwrap_or_default();
    let inputs = section.inputs.unwrap_or_default();
    match (kind, &section.hidden) {
        (ModelKind::Softmax, _) => Ok(ModelArchitecture::Softmax { inputs, classes }),
        (ModelKind::Mlp, Some(HiddenUnits::One(units))) => {
            Ok(ModelArchitecture::Mlp { inputs, hidden: vec![*units], classes })
        }
        (ModelKind::Mlp, Some(HiddenUnits::Many(hidden))) => {
            Ok(ModelArchitecture::Mlp { inputs, hidden: hidden.clone(), classes })
        }
        (ModelKind::Cnn, Some(HiddenUnits::One(hidden))) => Ok(ModelArchitecture::Cnn {
            channels: section.channels.unwrap_or_default(),
            height: section.height.unwrap_or_default(),
            width: section.width.unwrap_or_default(),
            filters: section.filters.unwrap_or_default(),
            hidden: *hidden,
            classes,
        }),
        (_, other) => {
            let right = format!("a model of kind {name:?} has one hidden layer: write one number");
            Err(TaskFileError::key("model.hidden", format!("{other:?}"), right))
        }
    }
}

/// Refuses the keys of graphs and trainers with another kind of model.
fn check_graph_keys(section: &ModelSection, name: &str) -> Result<(), TaskFileError> {
    let [is_graph, is_trainer] =
        [ModelKind::Graph, ModelKind::Trainer].map(|kind| section.kind == kind);
    let given = [
        ("model.trainable", section.trainable.is_some(), is_graph),
        ("model.buffers", section.buffers.is_some(), is_graph),
        ("model.loss", section.loss.is_some(), is_graph || is_trainer),
        ("model.label_smoothing", section.label_smoothing.is_some(), is_graph),
        ("model.loss_bound", section.loss_bound.is_some(), is_graph || is_trainer),
        ("model.huber_delta", section.huber_delta.is_some(), is_graph),
        ("model.targets", section.targets.is_some(), is_graph || is_trainer),
        ("model.gradient", section.gradient.is_some(), is_trainer),
    ];
    if let Some((key, ..)) = given.iter().find(|(_, is_there, belongs)| *is_there && !belongs) {
        let right = format!("a model of kind {name:?} has no such key: remove it");
        return Err(TaskFileError::key(key, "…", right));
    }
    Ok(())
}

/// Reads initial parameters that the buyer brings, such as the model of an earlier task.
fn read_initial_model(
    spec: &TaskSpec,
    folder: &Path,
    path: &Path,
) -> Result<Vec<u8>, TaskFileError> {
    let key = |right: String| TaskFileError::key("model.initial", format!("{path:?}"), right);
    let (place, size) = (folder.join(path), florin_work::model_bytes(spec));
    let found = std::fs::metadata(&place)
        .map_err(|error| key(format!("cannot read {}: {error}", place.display())))?;
    if !found.is_file() || found.len() != size {
        return Err(key(format!(
            "must be a file of {size} bytes with the parameters of [model]: \
             `florin task model` writes such a file"
        )));
    }
    let bytes = std::fs::read(&place)
        .map_err(|error| key(format!("cannot read {}: {error}", place.display())))?;
    florin_work::inspect_model(spec, &bytes).map_err(|rejection| key(rejection.message))?;
    Ok(bytes)
}

/// The holdout commitment. If the file does not set the rows per round, the rounds share all rows
/// equally.
fn commit_holdout(
    rows: Dataset,
    rows_per_round: Option<u32>,
    rounds: u32,
) -> Result<Holdout, TaskFileError> {
    let there = rows.rows();
    let count = u32::try_from(there).map_err(|_| {
        TaskFileError::key(
            "holdout.rows",
            there.to_string(),
            "a holdout may have at most 16777216 rows",
        )
    })?;
    let shared = count.checked_div(rounds).unwrap_or_default();
    if rows_per_round.is_none() && rounds > 0 && shared < 2 && count >= 2 {
        let right = format!(
            "{rounds} rounds need at least 2 rows each, and each row is used in only one round: \
             use at least {} rows, or at most {} rounds",
            u64::from(rounds) * 2,
            count / 2
        );
        return Err(TaskFileError::key("holdout.rows", count.to_string(), right));
    }
    let root = florin_work::CommittedHoldout::new(rows).root();
    Ok(Holdout { root, rows: count, rows_per_round: rows_per_round.unwrap_or(shared) })
}

#[cfg(test)]
mod tests;
