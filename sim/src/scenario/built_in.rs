//! Scenarios that are compiled into the program, each with one question.

/// A built-in scenario.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInScenario {
    /// Its name.
    pub name: &'static str,
    /// Its text, as in a scenario file.
    pub text: &'static str,
}

macro_rules! built_ins {
    ($($name:literal),* $(,)?) => {
        &[$(BuiltInScenario { name: $name, text: include_str!(concat!("built_in/", $name, ".toml")) }),*]
    };
}

const BUILT_INS: &[BuiltInScenario] = built_ins![
    "honest",
    "sybil",
    "copying",
    "free-riders",
    "noise",
    "label-flippers",
    "row-inflation",
    "equal-pay",
    "leaving",
    "tokenised",
    "million",
    "thousand",
    "attacks",
];

/// All built-in scenarios.
#[must_use]
pub const fn built_ins() -> &'static [BuiltInScenario] {
    BUILT_INS
}

/// The built-in scenario with this name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltInScenario> {
    BUILT_INS.iter().find(|scenario| scenario.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scenario;

    #[test]
    fn every_built_in_scenario_round_trips_and_has_a_question() {
        for built_in in built_ins() {
            let scenario = Scenario::read(built_in.text, &[]);
            let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", built_in.name));
            assert_eq!(scenario.name, built_in.name);
            assert!(scenario.question.ends_with('?'), "{}", built_in.name);
            assert_eq!(Scenario::read(&scenario.to_toml(), &[]).unwrap(), scenario);
        }
    }
}
