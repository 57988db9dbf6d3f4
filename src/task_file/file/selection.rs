//! The keys `rounds.selection`, `rounds.deadline` and `rounds.mode` of a task file.

use florin_protocol::limits::COHORT_MAX;
use florin_protocol::{
    DeadlineRule, Micro, STALENESS_ROUNDS_MAX, Selection, SelectionKnob, StalenessRule,
    StalenessWeight,
};
use toml::{Table, Value};

use super::{Decimal, TaskFileError};

/// Characters of a value in an error.
const SHOWN_MAX: usize = 40;

/// The share of places that explore, unless the file names one.
const EXPLORE: Micro = Micro(100_000);
/// The slack of a predicted deadline, unless the file names one.
const SLACK: Micro = Micro(1_500_000);
/// The most rounds by which an update may be late, unless the file names them.
const LATE_ROUNDS: u32 = 1;
const LATE_ROUNDS_BUFFERED: u32 = 8;
/// How many participants train at the same time for each update of a version, unless the file names
/// their number.
const CONCURRENCY_FACTOR: u32 = 3;

/// The keys of one of the three tables, each with its place in the file.
struct Keys<'a> {
    /// The table's key.
    name: &'static str,
    table: &'a Table,
}

impl<'a> Keys<'a> {
    /// The table of a key, which has no others than `known`.
    fn new(
        name: &'static str,
        value: &'a Value,
        (known, example): (&[&str], &str),
    ) -> Result<Self, TaskFileError> {
        let Value::Table(table) = value else {
            return Err(TaskFileError::key(
                name,
                shown(value),
                format!("write a table, such as {example}"),
            ));
        };
        let keys = Self { name, table };
        match table.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            None => Ok(keys),
            Some((key, value)) => {
                let right = format!("there is no such key; use {}", known.join(", "));
                Err(keys.wrong(key, shown(value), right))
            }
        }
    }

    fn wrong(&self, key: &str, value: String, right: impl Into<String>) -> TaskFileError {
        TaskFileError::key(&format!("{}.{key}", self.name), value, right)
    }

    /// One of the names of a key; `None` without the key.
    fn choice<T: Copy>(
        &self,
        key: &str,
        names: &[(&'static str, T)],
    ) -> Result<Option<T>, TaskFileError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let found = names.iter().find(|(name, _)| value.as_str() == Some(name));
        found.map(|(_, choice)| Some(*choice)).ok_or_else(|| {
            let all: Vec<String> = names.iter().map(|(name, _)| format!("{name:?}")).collect();
            self.wrong(key, shown(value), format!("use {}", all.join(", ")))
        })
    }

    /// A choice that the table must have.
    fn required<T: Copy>(
        &self,
        key: &str,
        names: &[(&'static str, T)],
    ) -> Result<T, TaskFileError> {
        self.choice(key, names)?.ok_or_else(|| {
            let all: Vec<String> = names.iter().map(|(name, _)| format!("{name:?}")).collect();
            self.wrong(key, "nothing".to_owned(), format!("use {}", all.join(", ")))
        })
    }

    /// A whole number.
    fn whole(&self, key: &str, right: &str) -> Result<Option<u32>, TaskFileError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let number = value.as_integer().and_then(|number| u32::try_from(number).ok());
        number.map(Some).ok_or_else(|| self.wrong(key, shown(value), right))
    }

    /// A decimal number.
    fn decimal(&self, key: &str, right: &str) -> Result<Option<Micro>, TaskFileError> {
        let Some(value) = self.table.get(key) else { return Ok(None) };
        let number = value.clone().try_into::<Decimal>();
        number.map(|number| Some(number.0)).map_err(|_| self.wrong(key, shown(value), right))
    }
}

/// A value as the file has it, shortened.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::Float(number) => format!("{number:?}"),
        value => value.to_string(),
    };
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// `selection = { knob = "fast", explore = 0.1 }`
pub(super) fn selection(value: &Value) -> Result<Selection, TaskFileError> {
    let known = (&["knob", "explore"][..], "{ knob = \"fast\" }");
    let keys = Keys::new("rounds.selection", value, known)?;
    let knob = keys.required("knob", &SelectionKnob::ALL.map(|knob| (knob.name(), knob)))?;
    let right = "a share of the places from 0 to 1 with at most six decimals, such as 0.1";
    let explore = keys.decimal("explore", right)?;
    let is_random = knob == SelectionKnob::Random;
    if let Some(explore) = explore.filter(|explore| is_random && *explore != Micro::ZERO) {
        let right =
            "no key: \"random\" draws all places alike; remove explore, or choose another knob";
        return Err(keys.wrong("explore", explore.to_string(), right));
    }
    let default = if is_random { Micro::ZERO } else { EXPLORE };
    Ok(Selection { knob, explore: explore.unwrap_or(default) })
}

/// `deadline = { quantile = 0.9, slack = 1.5 }`
pub(super) fn deadline(value: &Value) -> Result<DeadlineRule, TaskFileError> {
    let known = (&["quantile", "slack"][..], "{ quantile = 0.9, slack = 1.5 }");
    let keys = Keys::new("rounds.deadline", value, known)?;
    let right = "a number from 0 to 1 with at most six decimals: 0.9 waits for nine of ten";
    let quantile = keys.decimal("quantile", right)?;
    let quantile = quantile.ok_or_else(|| keys.wrong("quantile", "nothing".to_owned(), right))?;
    let right = "a factor from 1 to 100 with at most six decimals, such as 1.5";
    let slack = keys.decimal("slack", right)?.unwrap_or(SLACK);
    Ok(DeadlineRule::Predicted { quantile, slack })
}

/// `mode = { kind = "buffered", k = 10, concurrency = 30, staleness = "inverse_root" }`
#[derive(Debug, Clone, Copy)]
pub(super) enum RoundKind {
    Synchronous {
        staleness: Option<StalenessWeight>,
        late_rounds: Option<u32>,
    },
    Buffered {
        k: Option<u32>,
        concurrency: Option<u32>,
        staleness: Option<StalenessWeight>,
        late_rounds: Option<u32>,
    },
}

impl RoundKind {
    /// The mode of a file without the key.
    pub(super) const DEFAULT: Self = Self::Synchronous { staleness: None, late_rounds: None };

    /// The mode of the key's value.
    pub(super) fn from_value(value: &Value) -> Result<Self, TaskFileError> {
        let known = ["kind", "k", "concurrency", "staleness", "late_rounds"];
        let example = "{ kind = \"buffered\", k = 10 }";
        let keys = Keys::new("rounds.mode", value, (&known, example))?;
        let is_buffered = keys.required("kind", &[("synchronous", false), ("buffered", true)])?;
        let weights = StalenessWeight::ALL.map(|weight| (weight.name(), weight));
        let staleness = keys.choice("staleness", &weights)?;
        let right = format!("a whole number of rounds from 1 to {STALENESS_ROUNDS_MAX}");
        let late_rounds = keys.whole("late_rounds", &right)?;
        let right = format!("a whole number of participants from 1 to {COHORT_MAX}");
        let (k, concurrency) = (keys.whole("k", &right)?, keys.whole("concurrency", &right)?);
        if is_buffered {
            return Ok(Self::Buffered { k, concurrency, staleness, late_rounds });
        }
        for (key, number) in [("k", k), ("concurrency", concurrency)] {
            if let Some(number) = number {
                let right = "only the kind \"buffered\" has this key: remove it";
                return Err(keys.wrong(key, number.to_string(), right));
            }
        }
        Ok(Self::Synchronous { staleness, late_rounds })
    }
}

/// The numbers of participants of a round, and how late updates count.
pub(super) struct RoundMode {
    pub(super) target: u32,
    pub(super) over_selection: u32,
    pub(super) staleness: StalenessRule,
}

impl RoundKind {
    /// The rules of the mode, given `cohort_min`, `cohort_target` and `over_selection`.
    pub(super) fn rules(
        self,
        (least, target, written): (u32, u32, u32),
    ) -> Result<RoundMode, TaskFileError> {
        match self {
            Self::Synchronous { staleness, late_rounds } => {
                let rounds = match (staleness, late_rounds) {
                    (None, None) => 0,
                    (_, rounds) => rounds.unwrap_or(LATE_ROUNDS),
                };
                if staleness.is_some() && rounds == 0 {
                    let right = "at least 1, or leave out staleness: no late update counts";
                    return Err(TaskFileError::key("rounds.mode.late_rounds", "0", right));
                }
                let staleness = staleness_rule(rounds, staleness)?;
                Ok(RoundMode { target, over_selection: written, staleness })
            }
            Self::Buffered { k, concurrency, staleness, late_rounds } => {
                let target = check_k(k, target)?;
                if target < least {
                    let right = format!("at least rounds.cohort_min = {least}");
                    return Err(TaskFileError::key("rounds.mode.k", target.to_string(), right));
                }
                let concurrency = concurrency.unwrap_or(target.saturating_mul(CONCURRENCY_FACTOR));
                let Some(over_selection) = concurrency.checked_sub(target) else {
                    let right = format!(
                        "at least the {target} updates of a version: the number of participants that \
                         train at the same time"
                    );
                    let value = concurrency.to_string();
                    return Err(TaskFileError::key("rounds.mode.concurrency", value, right));
                };
                if concurrency > COHORT_MAX {
                    let right = format!("at most {COHORT_MAX} participants");
                    let value = concurrency.to_string();
                    return Err(TaskFileError::key("rounds.mode.concurrency", value, right));
                }
                if ![0, over_selection].contains(&written) {
                    let right = format!(
                        "with the mode \"buffered\" rounds.mode.concurrency = {concurrency} has this \
                         number, {over_selection} more than k: remove over_selection"
                    );
                    let (key, value) = ("rounds.over_selection", written.to_string());
                    return Err(TaskFileError::key(key, value, right));
                }
                let rounds = late_rounds.unwrap_or(LATE_ROUNDS_BUFFERED);
                if rounds == 0 {
                    let right = "at least 1: a buffered round goes on without slow participants";
                    return Err(TaskFileError::key("rounds.mode.late_rounds", "0", right));
                }
                let staleness = staleness_rule(rounds, staleness)?;
                Ok(RoundMode { target, over_selection, staleness })
            }
        }
    }
}

/// The number of updates of a version, which the file may name by two keys.
fn check_k(k: Option<u32>, target: u32) -> Result<u32, TaskFileError> {
    match k {
        Some(k) if k != target => {
            let right = format!(
                "rounds.cohort_target = {target} is also the number of updates of a version: write the \
                 same number there, or leave out k"
            );
            Err(TaskFileError::key("rounds.mode.k", k.to_string(), right))
        }
        _ => Ok(target),
    }
}

fn staleness_rule(
    rounds: u32,
    weight: Option<StalenessWeight>,
) -> Result<StalenessRule, TaskFileError> {
    if rounds > STALENESS_ROUNDS_MAX {
        let right = format!("at most {STALENESS_ROUNDS_MAX} rounds");
        return Err(TaskFileError::key("rounds.mode.late_rounds", rounds.to_string(), right));
    }
    Ok(StalenessRule { rounds, weight: weight.unwrap_or_default() })
}
