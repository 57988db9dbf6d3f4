//! Counts the outcomes of operations: a random walk of refusals only proves little.

use std::collections::BTreeMap;
use std::fmt;

use super::model::ModelResult;
use super::operation::Operation;

/// The number of occurrences of each verb with each outcome.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

impl Coverage {
    pub fn record(&mut self, operation: &Operation, verdict: ModelResult) {
        let outcome = operation.outcome(verdict);
        *self.0.entry((operation.verb(), outcome)).or_default() += 1;
    }

    pub fn add(&mut self, other: &Self) {
        for (key, count) in &other.0 {
            *self.0.entry(*key).or_default() += count;
        }
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Fails unless each verb had each of these outcomes at least `times` times.
    pub fn assert_covered(&self, wanted: &[(&'static str, &[&'static str])], times: u64) {
        let each = wanted.iter().flat_map(|(verb, outcomes)| outcomes.iter().map(|o| (*verb, *o)));
        let rare = |key: &(&str, &str)| self.0.get(key).is_none_or(|count| *count < times);
        let rare: Vec<_> = each.filter(rare).collect();
        assert!(rare.is_empty(), "not {times} times: {rare:?}\n{self}");
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut last = "";
        for ((verb, outcome), count) in &self.0 {
            if *verb != last {
                write!(f, "{}{verb}:", if last.is_empty() { "" } else { "\n" })?;
                last = verb;
            }
            write!(f, " {outcome} {count},")?;
        }
        Ok(())
    }
}
