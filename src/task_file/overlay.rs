//! Task files that differ from the template in some settings: those of the demonstration, the
//! benchmarks and the tests. A new setting with a value in the template changes none of them.

use toml::{Table, Value};

/// The annotated template, with placeholders.
const TEMPLATE: &str = include_str!("template.toml");

/// The placeholders for random numbers: the salt of the task, and the seed of its model.
const PLACEHOLDERS: [&str; 2] = ["@SALT@", "@SEED@"];

/// The annotated template that `florin task new` writes.
pub(crate) fn template(salt: u64, model_seed: u64) -> String {
    let [for_salt, for_seed] = PLACEHOLDERS;
    TEMPLATE.replace(for_salt, &salt.to_string()).replace(for_seed, &model_seed.to_string())
}

/// Sections that an overlay replaces as a whole: which keys they have depends on the kind of model
/// and on the source of the rows.
const WHOLE_SECTIONS: [&str; 2] = ["model", "holdout"];

/// The template with an overlay's settings in place of its own, as the text of a task file. The
/// salt is 0 and the seed of the model 1, unless the overlay sets them.
///
/// # Errors
/// If the overlay is not valid TOML. A key that no task file has is left to the parser of task
/// files.
pub fn overlay(settings: &str) -> Result<String, toml::de::Error> {
    let mut file: Table = toml::from_str(&template(0, 1))?;
    for (name, value) in toml::from_str::<Table>(settings)? {
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
