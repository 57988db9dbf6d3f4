//! `--set key=value`: changes one value of a scenario.

use std::str::FromStr;

use toml::{Table, Value};

use super::ScenarioError;

/// A dotted key and its new value, for example `population.honest.count=8`.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingOverride {
    key: Vec<String>,
    value: Value,
}

impl FromStr for SettingOverride {
    type Err = ScenarioError;

    fn from_str(text: &str) -> Result<Self, ScenarioError> {
        let wrong = || {
            let right = "write key=value, such as rounds=20 or population.honest.count=8";
            ScenarioError::Change(format!("{text:?} is not a change: {right}"))
        };
        let (key, value) = text.split_once('=').ok_or_else(wrong)?;
        let key: Vec<String> = key.trim().split('.').map(|part| part.trim().to_owned()).collect();
        if key.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { key, value: parse_value(value.trim()) })
    }
}

/// Parses a TOML value; other text becomes a string, so that `--set mechanism.rule=equal` needs no
/// quotes.
fn parse_value(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>().ok();
    let value = parsed.and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| Value::String(text.to_owned()))
}

impl SettingOverride {
    /// Sets `key` to `value`.
    #[must_use]
    pub fn new(key: &str, value: Value) -> Self {
        Self { key: key.split('.').map(str::to_owned).collect(), value }
    }

    /// The dotted key.
    #[must_use]
    pub fn key(&self) -> String {
        self.key.join(".")
    }

    /// Whether the first part of its key is `key`.
    pub(super) fn is_under(&self, key: &str) -> bool {
        self.key.first().is_some_and(|first| first == key)
    }

    /// The value as TOML.
    #[must_use]
    pub fn value(&self) -> String {
        self.value.to_string()
    }

    /// The change in command-line syntax.
    #[must_use]
    pub fn to_argument(&self) -> String {
        format!("{}={}", self.key(), self.value())
    }

    /// Applies the change and creates missing tables. An invalid key or value is detected when the
    /// scenario is read.
    pub(crate) fn apply(&self, table: &mut Table) -> Result<(), ScenarioError> {
        let Some((last, way)) = self.key.split_last() else {
            return Ok(());
        };
        let mut at = table;
        for part in way {
            let next = at.entry(part.clone()).or_insert_with(|| Value::Table(Table::new()));
            let Value::Table(next) = next else {
                let why = format!("{}: {part} is not a table but {next}", self.key());
                return Err(ScenarioError::Change(why));
            };
            at = next;
        }
        // An integer is converted to a float where the key has a float.
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
            assert_eq!(text.parse::<SettingOverride>().unwrap().value, value, "{text}");
        }
        for text in ["", "a", "=1", "a..b=1"] {
            assert!(
                matches!(text.parse::<SettingOverride>(), Err(ScenarioError::Change(_))),
                "{text}"
            );
        }
    }

    #[test]
    fn changes_reach_into_tables_and_stop_at_values() {
        let mut table: Table = "x = 1.5\n[a]\nb = 1".parse().unwrap();
        for change in ["a.b=2", "c.d=3", "x=2"] {
            change.parse::<SettingOverride>().unwrap().apply(&mut table).unwrap();
        }
        assert_eq!(table["a"]["b"], Value::Integer(2));
        assert_eq!(table["c"]["d"], Value::Integer(3));
        assert_eq!(table["x"], Value::Float(2.0));
        let wrong = "x.y=1".parse::<SettingOverride>().unwrap().apply(&mut table);
        assert!(wrong.unwrap_err().to_string().contains("x is not a table"));
    }
}
