//! The policy file of `florin participate --all`: TOML, in which an unknown key is an error.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;

use florin_learning::DataSource;
use florin_participant::policy::{
    DataRule, ModelFamily, ModelRules, Policy, REVIEW_MS, SchemaRule, TASKS_AT_ONCE_MAX, TaskRules,
};
use florin_protocol::{Address, Amount, Digest, TaskId};
use serde::Deserialize;

use crate::failure::Failure;
use crate::small_file::SmallFile;
use crate::task_file::{parse_ms, parse_rows, relative_to};
use crate::toml_words::in_words;

/// The file.
const FILE: SmallFile = SmallFile { kind: "a policy", code: "INVALID_POLICY", bytes_max: 1 << 20 };
/// Most sets of rows, and most entries of a list.
const LIST_MAX: usize = 1_000;
/// Largest model, unless the file has another limit, in MiB.
const MODEL_MIB: u64 = 256;
/// Largest limit on a model, in MiB.
const MODEL_MIB_MAX: u64 = 1 << 20;
/// Tasks at the same time, unless the file has another number.
const TASKS: usize = 4;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    bond_max: Amount,
    pay_per_hour_min: Amount,
    tasks_max: Option<usize>,
    hours: Option<String>,
    review: Option<String>,
    #[serde(default)]
    models: ModelsTable,
    data: Vec<DataTable>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelsTable {
    kinds: Option<Vec<String>>,
    mib_max: Option<u64>,
    #[serde(default)]
    accept: Vec<Digest>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataTable {
    source: String,
    rows: Option<String>,
    name: Option<String>,
    #[serde(default)]
    tasks: Vec<TaskId>,
    #[serde(default)]
    names: Vec<String>,
    #[serde(default)]
    buyers: Vec<Address>,
    #[serde(default)]
    schemas: Vec<String>,
    #[serde(default)]
    any: bool,
}

/// The rows of a rule.
#[derive(Debug, Clone)]
pub(super) struct PolicySource {
    pub(super) source: DataSource,
    pub(super) rows: Option<Range<usize>>,
}

/// A policy, with the files that it names.
#[derive(Debug)]
pub(super) struct ReadPolicy {
    pub(super) policy: Policy,
    /// The rows of each rule, in the same order.
    pub(super) sources: Vec<PolicySource>,
    /// The models that are accepted by their digest.
    pub(super) accepted: Vec<Digest>,
}

/// Reads a policy file.
///
/// # Errors
/// [`Failure`] with code `INVALID_POLICY`.
pub(super) fn read(path: &Path) -> anyhow::Result<ReadPolicy> {
    let shown = path.display();
    let text = FILE.read(path)?;
    let invalid = |why: String| Failure::input("INVALID_POLICY", format!("{shown}: {why}"));
    let folder = path.parent().unwrap_or(Path::new(""));
    Ok(from_text(&text, folder).map_err(invalid)?)
}

fn from_text(text: &str, folder: &Path) -> Result<ReadPolicy, String> {
    let file: PolicyFile =
        toml::from_str(text).map_err(|error| in_words(error.to_string().trim()))?;
    let tasks_max = file.tasks_max.unwrap_or(TASKS);
    if !(1..=TASKS_AT_ONCE_MAX).contains(&tasks_max) {
        return Err(format!("tasks_max = {tasks_max}: use 1 to {TASKS_AT_ONCE_MAX} tasks"));
    }
    if file.data.is_empty() || file.data.len() > LIST_MAX {
        return Err(format!("[[data]]: name 1 to {LIST_MAX} sets of rows"));
    }
    let review_ms = match &file.review {
        None => REVIEW_MS,
        Some(text) => parse_ms(text).map_err(|why| format!("review: {why}"))?,
    };
    if review_ms == 0 {
        return Err("review = \"0 s\": use a time such as \"10 min\"".to_owned());
    }
    let (mut data, mut sources) = (Vec::new(), Vec::new());
    for (place, table) in file.data.into_iter().enumerate() {
        let (rule, source) = data_rule(table, folder)
            .map_err(|why| format!("[[data]] number {}: {why}", place + 1))?;
        data.push(rule);
        sources.push(source);
    }
    let policy = Policy {
        data,
        bond_max: file.bond_max,
        pay_per_hour_min: file.pay_per_hour_min,
        models: model_rules(&file.models)?,
        tasks_max,
        hours: file.hours.as_deref().map(str::parse).transpose()?,
        review_ms,
    };
    Ok(ReadPolicy { policy, sources, accepted: file.models.accept })
}

fn data_rule(table: DataTable, folder: &Path) -> Result<(DataRule, PolicySource), String> {
    let source: DataSource = table.source.parse().map_err(|error| format!("source: {error}"))?;
    let rows = table.rows.as_deref().map(parse_rows).transpose();
    let rows = rows.map_err(|why| format!("rows: {why}"))?;
    let longest = [table.tasks.len(), table.names.len(), table.buyers.len(), table.schemas.len()];
    if longest.into_iter().any(|length| length > LIST_MAX) {
        return Err(format!("a list has at most {LIST_MAX} entries"));
    }
    let schemas = table.schemas.iter().map(|text| schema(text)).collect::<Result<_, _>>()?;
    let tasks = TaskRules {
        ids: table.tasks,
        names: table.names,
        buyers: table.buyers,
        schemas,
        any: table.any,
    };
    if tasks.is_empty() != tasks.any {
        let why = "name the tasks that may use these rows (tasks, names, buyers or schemas), or \
                   write any = true without such a list";
        return Err(why.to_owned());
    }
    let name = table.name.unwrap_or(table.source);
    Ok((DataRule { name, tasks }, PolicySource { source: relative_to(folder, source), rows }))
}

/// Features and classes as text: `64x10`.
fn schema(text: &str) -> Result<SchemaRule, String> {
    let parsed = text.split_once('x').and_then(|(width, classes)| {
        Some(SchemaRule { width: width.parse().ok()?, classes: classes.parse().ok()? })
    });
    parsed
        .ok_or_else(|| format!("schemas: {text:?}: write features and classes, such as \"64x10\""))
}

fn model_rules(table: &ModelsTable) -> Result<ModelRules, String> {
    let mib = table.mib_max.unwrap_or(MODEL_MIB);
    if !(1..=MODEL_MIB_MAX).contains(&mib) {
        return Err(format!("models.mib_max = {mib}: use 1 to {MODEL_MIB_MAX}"));
    }
    let kinds = match &table.kinds {
        None => ModelFamily::ALL.into_iter().collect(),
        Some(names) => names.iter().map(|name| family(name)).collect::<Result<BTreeSet<_>, _>>()?,
    };
    Ok(ModelRules { kinds, bytes_max: mib << 20 })
}

fn family(name: &str) -> Result<ModelFamily, String> {
    ModelFamily::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let all: Vec<&str> = ModelFamily::ALL.iter().map(|kind| kind.name()).collect();
        format!("models.kinds: {name:?}: use {}", all.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use florin_participant::policy::DailyHours;

    use super::*;

    const SHORT: &str = "bond_max = \"20\"\npay_per_hour_min = \"0.5\"\n\
                         [[data]]\nsource = \"csv:scans.csv#digit\"\nany = true\n";

    fn parsed(text: &str) -> Result<ReadPolicy, String> {
        from_text(text, Path::new("folder"))
    }

    #[test]
    fn a_policy_has_defaults_and_files_beside_it() {
        let read = parsed(SHORT).unwrap();
        assert_eq!((read.policy.tasks_max, read.policy.review_ms), (4, 600_000));
        assert_eq!(read.policy.models.bytes_max, 256 << 20);
        assert_eq!(read.sources[0].source.to_string(), "csv:folder/scans.csv#digit");
        assert!(read.policy.data[0].tasks.any);
        let long = "bond_max = \"20\"\npay_per_hour_min = \"0\"\ntasks_max = 2\nhours = \"22..6\"\n\
                    review = \"90 s\"\n[models]\nkinds = [\"softmax\", \"cnn\"]\nmib_max = 8\n\
                    [[data]]\nsource = \"digits\"\nrows = \"0..500\"\nname = \"own\"\n\
                    schemas = [\"64x10\"]\nnames = [\"Digits*\"]\n";
        let read = parsed(long).unwrap();
        assert_eq!(read.policy.hours, Some(DailyHours { from: 22, to: 6 }));
        assert_eq!((read.policy.review_ms, read.policy.models.kinds.len()), (90_000, 2));
        let rule = &read.policy.data[0];
        assert_eq!(rule.tasks.schemas, [SchemaRule { width: 64, classes: 10 }]);
        assert_eq!((rule.name.as_str(), read.sources[0].rows.clone()), ("own", Some(0..500)));
    }

    #[test]
    fn a_mistake_is_named() {
        let data = "any = true";
        for (old, new, part) in [
            (data, "", "name the tasks"),
            (data, "any = true\nnames = [\"a\"]", "any = true without"),
            (data, "any = true\nrows = \"5..1\"", "rows"),
            (data, "schemas = [\"64\"]", "64x10"),
            (data, "colour = 1", "colour"),
            ("\"20\"", "\"many\"", "bond_max"),
            ("bond_max", "tasks_max = 17\nbond_max", "1 to 16"),
            ("bond_max", "tasks_max = 0\nbond_max", "1 to 16"),
            ("bond_max", "hours = \"25..3\"\nbond_max", "22..6"),
            ("bond_max", "review = \"0 s\"\nbond_max", "10 min"),
            ("bond_max", "models.kinds = [\"rnn\"]\nbond_max", "use softmax, mlp"),
            ("bond_max", "models.mib_max = 0\nbond_max", "mib_max"),
            ("csv:", "table:", "source"),
        ] {
            let text = SHORT.replacen(old, new, 1);
            let why = parsed(&text).unwrap_err();
            assert!(why.contains(part), "{part:?} is not in {why:?}");
        }
    }
}
