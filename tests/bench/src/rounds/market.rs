//! The simulated markets, and the rules that are compared in each.

use std::path::Path;

use anyhow::Context;
use florin_sim::random::{normal, stream};
use florin_sim::{GraphTask, Scenario};

use super::attacks::DEVIATING;
use super::read_scenario;
use crate::arguments::BenchRounds;

/// The members of a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MarketKind {
    /// Speeds and links from wide log-normal distributions.
    Speeds,
    /// Members that are online by day.
    Daily,
    /// Shards with few labels each.
    Skewed,
    /// The speeds of the first market, and a graph that PyTorch exported, on rows of three classes.
    Graph,
}

impl MarketKind {
    pub(super) const ALL: [Self; 4] = [Self::Speeds, Self::Daily, Self::Skewed, Self::Graph];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Speeds => "unequal speeds",
            Self::Daily => "daily availability",
            Self::Skewed => "skewed labels",
            Self::Graph => "graph",
        }
    }

    /// The graph of its task, if its model is one.
    pub(super) fn graph(self) -> anyhow::Result<Option<GraphTask>> {
        if self != Self::Graph {
            return Ok(None);
        }
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../learning/data/graphs"));
        Ok(Some(GraphTask::read(&path.join("mlp.pt2"), GRAPH_CLASSES)?))
    }

    pub(super) const fn rules(self) -> &'static [Rule] {
        use Rule::*;
        match self {
            Self::Speeds => &[Random, Fast, Oort, Tifl],
            Self::Daily => {
                &[Random, FairWork, Fast, RandomSpare, FairWorkSpare, FastSpare, Oort, Refl]
            }
            Self::Graph => &[Random, Fast, Performance, Oort],
            Self::Skewed => &[Random, Performance, FairAccuracy, Fast, Oort],
        }
    }
}

/// A rule of selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Random,
    Fast,
    FairWork,
    FairAccuracy,
    Performance,
    /// The same knobs with [`SPARE_PLACES`] and a predicted deadline.
    RandomSpare,
    FastSpare,
    FairWorkSpare,
    Oort,
    Tifl,
    Refl,
}

/// Places beyond the cohort, for members that are away.
const SPARE_PLACES: u32 = 120;

impl Rule {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Fast => "fast",
            Self::FairWork => "fair_work",
            Self::FairAccuracy => "fair_accuracy",
            Self::Performance => "performance",
            Self::RandomSpare => "random with spare places",
            Self::FastSpare => "fast with spare places",
            Self::FairWorkSpare => "fair_work with spare places",
            Self::Oort => "Oort",
            Self::Tifl => "TiFL",
            Self::Refl => "REFL",
        }
    }

    /// The same knob without [`SPARE_PLACES`].
    const fn with_six_places(self) -> Self {
        match self {
            Self::RandomSpare => Self::Random,
            Self::FastSpare => Self::Fast,
            Self::FairWorkSpare => Self::FairWork,
            other => other,
        }
    }

    /// The keys of a scenario's task.
    fn keys(self) -> String {
        let of_six = self.with_six_places();
        let selection = match of_six {
            Self::Random => String::new(),
            Self::Oort | Self::Tifl | Self::Refl => {
                format!("selector = \"{}\"\n", of_six.name().to_lowercase())
            }
            _ => format!("selection = {{ knob = \"{}\", explore = 0.1 }}\n", of_six.name()),
        };
        let (spare, deadline) = match of_six == self {
            true => (6, ""),
            false => (SPARE_PLACES, "deadline = { quantile = 0.9, slack = 1.5 }\n"),
        };
        format!("{selection}{deadline}over_selection = {spare}\n")
    }
}

/// The share of the members that deviate.
const DEVIATING_PART: u32 = 10;

/// The market of unequal speeds, or of skewed labels for a rule that balances classes, with a group of
/// members that can deviate.
pub(super) fn with_deviating(rule: Rule, size: &BenchRounds) -> anyhow::Result<Scenario> {
    let kind = match rule {
        Rule::Random | Rule::Performance | Rule::FairAccuracy => MarketKind::Skewed,
        _ => MarketKind::Speeds,
    };
    let mut scenario = scenario(kind, rule, size)?;
    let honest = scenario.population.get_mut("members").context("the group of all members")?;
    let mut group = honest.clone();
    group.count = honest.count / DEVIATING_PART;
    honest.count -= group.count;
    scenario.population.insert(DEVIATING.to_owned(), group);
    Ok(scenario)
}

/// Classes, features and rows of the graph's table.
const GRAPH_CLASSES: u32 = 3;
const GRAPH_FEATURES: usize = 8;
const TABLE_ROWS: u32 = 1_500;
/// Standard deviation of a feature within its class; those of the classes' means are 1.
const WITHIN_CLASS: f64 = 2.0;

/// Rows of three classes that overlap: normal distributions around random means.
fn table() -> String {
    let rng = &mut stream(1, "table of the graph", [0, 0]);
    let means: Vec<Vec<f64>> =
        (0..GRAPH_CLASSES).map(|_| (0..GRAPH_FEATURES).map(|_| normal(rng)).collect()).collect();
    let header: Vec<String> = (0..GRAPH_FEATURES).map(|at| format!("x{at}")).collect();
    let mut text = format!("{},class\n", header.join(","));
    for row in 0..TABLE_ROWS {
        let class = row % GRAPH_CLASSES;
        for mean in &means[class as usize] {
            text += &format!("{:.4},", mean + WITHIN_CLASS * normal(rng));
        }
        text += &format!("{class}\n");
    }
    text
}

/// The scenario of a market with a rule.
pub(super) fn scenario(
    kind: MarketKind,
    rule: Rule,
    size: &BenchRounds,
) -> anyhow::Result<Scenario> {
    let data = match kind {
        MarketKind::Graph => "table = { file = \"rows.csv\", label = \"class\" }",
        _ => "",
    };
    let skew = if kind == MarketKind::Skewed { "label_skew = 0.1" } else { "" };
    let online = match kind {
        MarketKind::Daily => {
            "online = { pattern = \"daily\", low = 0.05, high = 0.95, peak = 14, shift_hours = 12 }"
        }
        _ => "",
    };
    let spread = if kind == MarketKind::Skewed { 0.3 } else { 1.0 };
    let (members, rounds) = (size.members, size.rounds);
    let text = format!(
        r#"
name = "rounds"
question = "How fast, how fair and how good are rounds by this selection?"
rounds = {rounds}

[learning]
hidden = [32]
epochs = 2
batch = 16
learning_rate = 0.1
holdout_rows = {holdout}
holdout_rows_per_round = 64
test_rows = 300
feature_noise = 0.5
{data}

[task]
cohort = 20
cohort_min = 5
train_s = 1200
reveal_s = 300
baseline_epochs = 0
{keys}
[population.members]
count = {members}
rows = {rows}
{skew}
machine = {{ steps_per_second = 0.1, megabits_per_second = 0.1, spread = {spread} }}
{online}
"#,
        holdout = 64 * rounds,
        keys = rule.keys(),
        rows = if kind == MarketKind::Daily { "[40, 40]" } else { "[20, 60]" },
    );
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("rows.csv"), table())?;
    read_scenario(folder.path(), &text)
}
