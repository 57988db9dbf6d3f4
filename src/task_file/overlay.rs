//! Task files that differ from the template in some settings: those of the demonstration, the
//! benchmarks and the tests. A new setting with a value in the template changes none of them.

use toml::{Table, Value};

/// The annotated template, with placeholders.
const TEMPLATE: &str = include_str!("template.toml");

/// The placeholder for the salt of the task, a random number.
const SALT_PLACEHOLDER: &str = "@SALT@";

/// The annotated template that `florin task new` writes.
pub(crate) fn template(salt: u64) -> String {
    TEMPLATE.replace(SALT_PLACEHOLDER, &salt.to_string())
}

/// Sections that an overlay replaces as a whole: which keys they have depends on the kind of model, on
/// the source of the rows, and on the kind of estimator.
const WHOLE_SECTIONS: [&str; 3] = ["model", "holdout", "estimator"];

/// The template with an overlay's settings in place of its own, as the text of a task file. The
/// salt is 0 unless the overlay sets it.
///
/// # Errors
/// If the overlay is not valid TOML. A key that no task file has is left to the parser of task
/// files.
pub fn overlay(settings: &str) -> Result<String, toml::de::Error> {
    let mut file: Table = toml::from_str(&template(0))?;
    let settings: Table = toml::from_str(settings)?;
    // A task has one of the two.
    for (given, other) in [("arbiter", "trust"), ("trust", "arbiter")] {
        if settings.contains_key(given) {
            file.remove(other);
        }
    }
    for (name, value) in settings {
        match (file.get_mut(&name), value) {
            (Some(Value::Table(section)), Value::Table(new))
                if !WHOLE_SECTIONS.contains(&name.as_str()) =>
            {
                section.extend(new);
            }
            (_, value) => drop(file.insert(name, value)),
        }
    }
    Ok(file.to_string())
}
