//! `--set key=value`: one change to a scenario's table.

use std::str::FromStr;

use toml::{Table, Value};

use super::ScenarioError;

/// A key and what it shall be. Keys are written with dots: `population.honest.count`.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    key: Vec<String>,
    value: Value,
}

impl FromStr for Change {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let wrong = || {
            let right = "write key=value, such as rounds=20 or population.honest.count=8";
            ScenarioError::Change(format!("{text:?} is no change: {right}"))
        };
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let key: Vec<String> = key.trim().split('.').map(|part| part.trim().to_owned()).collect();
        if key.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { key, value: value_of(value.trim()) })
    }
}

/// A TOML value; what is none is a text, so that `--set mechanism.rule=equal` needs no quotes.
fn value_of(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    let value = parsed.and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

impl Change {
    /// A change of one key to one value.
    #[must_use]
    pub fn new(key: &str, value: Value) -> Self {
        Self { key: key.split('.').map(str::to_owned).collect(), value }
    }

    /// The key, with dots.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.join(".")
    }

    /// Whether it changes this key, or one below it.
    pub(super) fn is_within(&self, key: &str) -> bool {
        self.key.first().is_some_and(|first| first == key)
    }

    /// The value, as TOML.
    #[must_use]
    pub fn value(&self) -> String {
        self.value.to_string()
    }

    /// As the command line says it.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}={}", self.key(), self.value())
    }

    /// Makes the change. Tables on the way are made where they are missing; what is wrong with the key or the value is
    /// found when the scenario is read.
    pub(super) fn apply(&self, table: &mut Table) -> Result<(), ScenarioError> {
        let Some((last, way)) = self.key.split_last() else {
            return Ok(());
        };
        let mut at = table;
        for part in way {
            let next = at.entry(part.clone()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(next) = next else {
                let why = format!("{}: {part} is no table but {next}", self.key());
                return Err(ScenarioError::Change(why));
            };
            at = next;
        }
        // A whole number stands for a decimal one where that is what the key takes.
        let value = match (at.get(last), &self.value) {
            (Some(Value::Float(_)), Value::Integer(whole)) => Value::Float(*whole as f64),
            _ => self.value.clone(),
        };
        at.insert(last.clone(), value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_toml_or_text() {
        for (text, value) in [
            ("a=1", Value::Integer(1)),
            ("a.b = 0.5", Value::Float(0.5)),
            ("a=[1, 2]", Value::Array(vec![Value::Integer(1), Value::Integer(2)])),
            ("a=equal", Value::String("equal".to_owned())),
            ("a=\"two words\"", Value::String("two words".to_owned())),
        ] {
            assert_eq!(text.parse::<Change>().unwrap().value, value, "{text}");
        }
        for text in ["", "a", "=1", "a..b=1"] {
            assert!(matches!(text.parse::<Change>(), Err(ScenarioError::Change(_))), "{text}");
        }
    }

    #[test]
    fn changes_reach_into_tables_and_stop_at_values() {
        let mut table: Table = "x = 1.5\n[a]\nb = 1".parse().unwrap();
        for change in ["a.b=2", "c.d=3", "x=2"] {
            change.parse::<Change>().unwrap().apply(&mut table).unwrap();
        }
        assert_eq!(table["a"]["b"], Value::Integer(2));
        assert_eq!(table["c"]["d"], Value::Integer(3));
        assert_eq!(table["x"], Value::Float(2.0));
        let wrong = "x.y=1".parse::<Change>().unwrap().apply(&mut table);
        assert!(wrong.unwrap_err().to_string().contains("x is no table"));
    }
}
