//! The policy: which rows may go to which tasks, and the limits of the client.

use std::collections::BTreeSet;
use std::str::FromStr;

use florin_protocol::{
    Address, Amount, Digest, GraphForm, ModelArchitecture, TaskId, TaskSpec, Timestamp,
};

use super::refusal::TaskRefusal;

const MS_PER_HOUR: u64 = 3_600_000;
const HOURS_PER_DAY: u64 = 24;

/// The rules of a client for all tasks of a market.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The sets of rows.
    pub data: Vec<DataRule>,
    /// The most that may be deposited as bond or lost by debits, in all tasks of the data folder
    /// together.
    pub bond_max: Amount,
    /// The least predicted pay for an hour of the device's training.
    pub pay_per_hour_min: Amount,
    /// Which models may be trained.
    pub models: ModelRules,
    /// Most tasks at the same time.
    pub tasks_max: usize,
    /// The hours in which tasks are joined and trainings begin; `None` for all.
    pub hours: Option<DailyHours>,
    /// Time between two reviews without a reported round, in milliseconds.
    pub review_ms: u64,
}

/// A set of rows, and the tasks that it may be used for.
#[derive(Clone, Debug)]
pub struct DataRule {
    /// Its name, for messages.
    pub name: String,
    /// The tasks.
    pub tasks: TaskRules,
}

/// Which tasks may use rows: those that fit every list that is not empty.
#[derive(Clone, Debug, Default)]
pub struct TaskRules {
    /// Tasks by id.
    pub ids: Vec<TaskId>,
    /// Patterns of names; `*` stands for any text. A buyer chooses the name of its task.
    pub names: Vec<String>,
    /// Buyers.
    pub buyers: Vec<Address>,
    /// Schemas of rows.
    pub schemas: Vec<SchemaRule>,
    /// Whether all tasks may use the rows, if every list is empty; otherwise none may.
    pub any: bool,
}

/// Features and classes of a task's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaRule {
    /// Features of a row.
    pub width: u32,
    /// Number of classes.
    pub classes: u32,
}

impl TaskRules {
    /// Whether no list has an entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
            && self.names.is_empty()
            && self.buyers.is_empty()
            && self.schemas.is_empty()
    }

    /// Whether the rows may be used for this task.
    #[must_use]
    pub fn allow(&self, spec: &TaskSpec) -> bool {
        if self.is_empty() {
            return self.any;
        }
        let schema = SchemaRule { width: spec.data.width, classes: spec.data.classes };
        (self.ids.is_empty() || self.ids.contains(&spec.id()))
            && (self.names.is_empty() || self.names.iter().any(|name| fits(name, &spec.name)))
            && (self.buyers.is_empty() || self.buyers.contains(&spec.buyer))
            && (self.schemas.is_empty() || self.schemas.contains(&schema))
    }
}

/// Whether a text fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// A kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ModelFamily {
    /// Softmax regression.
    Softmax,
    /// Fully connected layers.
    Mlp,
    /// Convolutions.
    Cnn,
    /// A graph of operators.
    Graph,
    /// A program.
    Trainer,
}

impl ModelFamily {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Softmax, Self::Mlp, Self::Cnn, Self::Graph, Self::Trainer];

    /// Its name in task files and policies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Softmax => "softmax",
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Graph => "graph",
            Self::Trainer => "trainer",
        }
    }

    /// The kind of a model.
    #[must_use]
    pub const fn of_model(model: &ModelArchitecture) -> Self {
        match model {
            ModelArchitecture::Softmax { .. } => Self::Softmax,
            ModelArchitecture::Mlp { .. } => Self::Mlp,
            ModelArchitecture::Cnn { .. } => Self::Cnn,
            ModelArchitecture::Graph(graph) => match graph.form {
                GraphForm::Operators => Self::Graph,
                GraphForm::Trainer { .. } => Self::Trainer,
            },
        }
    }
}

/// Which models may be trained. A model whose parameters the buyer chose, and a program, also need
/// consent by its digest ([`ParticipantConfig::accepted_models`](crate::ParticipantConfig)).
#[derive(Clone, Debug)]
pub struct ModelRules {
    /// The kinds.
    pub kinds: BTreeSet<ModelFamily>,
    /// Largest model with all its files, in bytes.
    pub bytes_max: u64,
}

impl ModelRules {
    /// Checks a task's model: its kind, its size, and consent to parameters or code of the buyer's.
    ///
    /// # Errors
    /// The reason against it.
    pub(super) fn check(&self, spec: &TaskSpec, accepted: &[Digest]) -> Result<(), TaskRefusal> {
        let kind = ModelFamily::of_model(&spec.model);
        if !self.kinds.contains(&kind) {
            return Err(TaskRefusal::ModelKind { kind: kind.name() });
        }
        let files = match &spec.model {
            ModelArchitecture::Graph(graph) => {
                graph.blobs().fold(0_u64, |sum, blob| sum.saturating_add(blob.bytes))
            }
            _ => 0,
        };
        let bytes = florin_work::model_bytes(spec).saturating_add(files);
        if bytes > self.bytes_max {
            return Err(TaskRefusal::ModelTooLarge { bytes, limit: self.bytes_max });
        }
        let model = spec.consent_digest();
        match kind {
            _ if accepted.contains(&model) => Ok(()),
            ModelFamily::Trainer => Err(TaskRefusal::TrainerNotAccepted { model }),
            ModelFamily::Graph => Err(TaskRefusal::ModelNotAccepted { model }),
            _ => {
                let derived = florin_work::derived_model(spec)
                    .map_err(|error| TaskRefusal::Invalid { why: error.to_string() })?;
                match florin_protocol::blob_digest(&derived) == model {
                    true => Ok(()),
                    false => Err(TaskRefusal::ModelNotAccepted { model }),
                }
            }
        }
    }
}

/// Whole hours of each day, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DailyHours {
    /// The first hour, from 0 to 23.
    pub from: u8,
    /// The hour that ends them, from 0 to 24; before `from` for hours over midnight.
    pub to: u8,
}

impl FromStr for DailyHours {
    type Err = String;

    /// Reads hours such as `22..6`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once("..").and_then(|(from, to)| {
            let hours = Self { from: from.trim().parse().ok()?, to: to.trim().parse().ok()? };
            (hours.from < 24 && hours.to <= 24).then_some(hours)
        });
        parsed.ok_or_else(|| format!("hours = {text:?}: write hours in UTC, such as \"22..6\""))
    }
}

impl DailyHours {
    /// Whether a moment is within the hours. Two equal hours are a whole day.
    #[must_use]
    pub fn contain(self, at: Timestamp) -> bool {
        let hour = (at.0 / MS_PER_HOUR) % HOURS_PER_DAY;
        let (from, to) = (u64::from(self.from), u64::from(self.to));
        match from < to {
            true => (from..to).contains(&hour),
            false => hour >= from || hour < to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn rows_go_only_to_tasks_that_fit_every_list() {
        let spec = testing::spec();
        let schema = SchemaRule { width: 4, classes: 3 };
        let none = TaskRules::default;
        let table = [
            (none(), false),
            (TaskRules { any: true, ..none() }, true),
            (TaskRules { ids: vec![spec.id()], ..none() }, true),
            (TaskRules { ids: vec![TaskId([9; 32])], any: true, ..none() }, false),
            (TaskRules { names: vec!["clu*".to_owned()], ..none() }, true),
            (TaskRules { names: vec!["other".to_owned()], any: true, ..none() }, false),
            (TaskRules { buyers: vec![spec.buyer], ..none() }, true),
            (TaskRules { buyers: vec![spec.coordinator], ..none() }, false),
            (TaskRules { schemas: vec![schema], ..none() }, true),
            (TaskRules { schemas: vec![SchemaRule { classes: 2, ..schema }], ..none() }, false),
            (TaskRules { schemas: vec![schema], buyers: vec![spec.arbiter], ..none() }, false),
        ];
        for (rules, allowed) in table {
            assert_eq!(rules.allow(&spec), allowed, "{rules:?}");
        }
    }

    #[test]
    fn a_star_of_a_pattern_stands_for_any_text() {
        let table = [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("abc", "abc", true),
            ("abc", "abcd", false),
            ("a*c", "ac", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("*b*", "abc", true),
            ("a*b*a", "aba", true),
            ("ab*ba", "aba", false),
            ("*é", "caf\u{e9}", true),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_model_is_refused_by_kind_by_size_and_without_consent() {
        let spec = testing::spec();
        let kinds = |kinds: &[ModelFamily]| kinds.iter().copied().collect::<BTreeSet<_>>();
        let rules = ModelRules { kinds: kinds(&ModelFamily::ALL), bytes_max: 1 << 20 };
        let code = |rules: &ModelRules, spec: &TaskSpec, accepted: &[Digest]| {
            rules.check(spec, accepted).map_err(|refusal| refusal.code().to_owned())
        };
        let chosen = TaskSpec { base_model: Digest([9; 32]), ..spec.clone() };
        let refused = Err("MODEL_NOT_DERIVED".to_owned());
        assert_eq!(code(&rules, &chosen, &[]), refused);
        assert_eq!(code(&rules, &chosen, &[chosen.consent_digest()]), Ok(()));
        let small = ModelRules { bytes_max: 10, ..rules.clone() };
        assert_eq!(code(&small, &spec, &[]), Err("MODEL_TOO_LARGE".to_owned()));
        let others = ModelRules { kinds: kinds(&[ModelFamily::Cnn]), ..rules };
        assert_eq!(code(&others, &spec, &[]), Err("MODEL_KIND_NOT_ALLOWED".to_owned()));
    }

    #[test]
    fn hours_of_a_day_may_pass_midnight() {
        let at = |hour: u64| Timestamp(hour * MS_PER_HOUR + 59 * 60_000);
        let night = DailyHours { from: 22, to: 6 };
        let inside: Vec<u64> = (0..48).filter(|hour| night.contain(at(*hour))).collect();
        assert_eq!(inside, [0, 1, 2, 3, 4, 5, 22, 23, 24, 25, 26, 27, 28, 29, 46, 47]);
        let day = DailyHours { from: 8, to: 24 };
        assert!(day.contain(at(23)) && !day.contain(at(0)) && !day.contain(at(7)));
        assert!((0..24).all(|hour| DailyHours { from: 5, to: 5 }.contain(at(hour))));
    }
}
