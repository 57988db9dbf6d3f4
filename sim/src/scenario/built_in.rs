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
    "devices",
    "fast-rounds",
    "buffered-rounds",
    "lying-quotes",
    "hoarding",
    "racing",
    "tokenised",
    "million",
    "thousand",
    "attacks",
    "protections",
    "compute-market",
    "compute-fakes",
    "compute-collusion",
    "compute-grinding",
    "compute-known-beacon",
    "compute-replays",
    "compute-leaving",
    "compute-vanishing",
    "compute-closed-bids",
    "compute-overbooking",
    "compute-sybil",
    "compute-bids",
    "compute-inflated-cards",
    "compute-sold-twice",
    "compute-relays",
    "compute-washing",
    "compute-shills",
    "compute-disputes",
    "compute-lazy-auditors",
    "compute-copying-auditors",
    "compute-accusers",
    "compute-silent-auditors",
    "compute-withheld-draws",
    "compute-two-streams",
    "compute-few-bidders",
    "compute-undrawn-fakes",
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

/// The built-in scenario whose name is most like this one: at most a third of the letters differ.
fn nearest(name: &str) -> Option<&'static str> {
    let of = |scenario: &BuiltInScenario| {
        let letters = scenario.name.chars().count().max(name.chars().count());
        let edits = strsim::osa_distance(scenario.name, name);
        (edits * 3 <= letters).then_some((edits, scenario.name))
    };
    BUILT_INS.iter().filter_map(of).min_by_key(|(edits, _)| *edits).map(|(_, name)| name)
}

/// A question that suggests the nearest built-in name; empty if none is near.
pub(super) fn suggestion(name: &str) -> String {
    nearest(name).map_or_else(String::new, |near| format!(", did you mean {near}?"))
}

/// The names of all built-in scenarios.
pub(super) fn names() -> String {
    BUILT_INS.iter().map(|scenario| scenario.name).collect::<Vec<&str>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::scenario::{AnyScenario, ScenarioError};

    #[test]
    fn every_built_in_scenario_round_trips_and_has_a_question() {
        for built_in in built_ins() {
            let read = |text: &str| AnyScenario::read_in(Path::new("."), text, &[]);
            let scenario = read(built_in.text);
            let scenario = scenario.unwrap_or_else(|error| panic!("{}: {error}", built_in.name));
            assert_eq!(scenario.name(), built_in.name);
            assert!(scenario.question().ends_with('?'), "{}", built_in.name);
            assert_eq!(read(&scenario.to_toml()).unwrap(), scenario, "{}", built_in.name);
        }
    }

    #[test]
    fn an_unknown_name_suggests_the_nearest_and_lists_all() {
        for (name, near) in [
            ("attaks", Some("attacks")),
            ("sybill", Some("sybil")),
            ("freeriders", Some("free-riders")),
            ("hoenst", Some("honest")),
            ("x", None),
            ("a-market-of-my-own", None),
        ] {
            assert_eq!(nearest(name), near, "{name}");
            let message = ScenarioError::Unknown { name: name.to_owned() }.to_string();
            assert_eq!(message.contains("did you mean"), near.is_some(), "{message}");
            assert!(
                built_ins().iter().all(|scenario| message.contains(scenario.name)),
                "{message}"
            );
        }
    }
}
