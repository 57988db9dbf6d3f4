//! The predicted rounds of `florin trace show --without` and `--deadline`.

use serde_json::{Value, json};

use super::show::{ms, percent};
use crate::show::{self, Cell};
use crate::trace::analysis::replay::{NotPredicted, PredictedRound};
use crate::trace::analysis::round::TracedRound;

/// A round that is predicted, or the reason why not.
pub(super) type Prediction = Result<PredictedRound, NotPredicted>;

/// The columns of a prediction.
pub(super) const TITLES: [&str; 3] = [">predicted ms", ">change", "updates that remain"];

/// The cells of a prediction in the table of rounds.
pub(super) fn cells(round: &TracedRound, prediction: &Prediction) -> [Cell; 3] {
    let predicted = match prediction {
        Ok(predicted) => predicted,
        Err(NotPredicted::LateUpdates) => return ["".into(), "".into(), "not predicted".into()],
    };
    let at_least = if predicted.is_lower_bound { "≥ " } else { "" };
    let (remain, all) = (predicted.members.len(), round.update_arrivals().len());
    let time = format!("{at_least}{}", ms(predicted.duration));
    if predicted.is_abandoned {
        let remain = format!("{remain} of {all}: abandoned, {} needed", round.least.max(1));
        return [time.into(), "".into(), remain.into()];
    }
    let change = percent(predicted.duration - round.duration(), round.duration());
    [time.into(), format!("{at_least}{change}").into(), format!("{remain} of {all}").into()]
}

/// Prints the limits of the predictions.
pub(super) fn print_notes(all: &[&Prediction]) {
    let has = |is: fn(&PredictedRound) -> bool| all.iter().any(|one| one.as_ref().is_ok_and(is));
    if has(|predicted| predicted.is_lower_bound) {
        show::hint(
            "≥: at least. The trace has no time for the commit of a member that replaces another \
             one, or for a valuation of so few updates.",
        );
    }
    if has(|predicted| predicted.is_abandoned) {
        show::hint(
            "abandoned: fewer updates than the task's least remain. The round has no valuation, and \
             its time is the time until it is given up.",
        );
    }
    if all.iter().any(|one| one.is_err()) {
        show::hint(
            "not predicted: trainings in the round began in an earlier one, whose duration changes \
             as well.",
        );
    }
}

/// The members that remain, by their numbers.
pub(super) fn remaining(predicted: &PredictedRound, members: &[&str]) -> String {
    let number = |member: &String| members.iter().position(|other| other == member);
    let mut numbers: Vec<usize> = predicted.members.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let numbers: Vec<String> = numbers.iter().map(|number| (number + 1).to_string()).collect();
    let outcome = if predicted.is_abandoned { "abandoned" } else { "valued" };
    match numbers.len() {
        0 => format!("{outcome}, no member remains"),
        1 => format!("{outcome}, member {} remains", numbers[0]),
        _ => format!("{outcome}, members {} remain", numbers.join(", ")),
    }
}

/// A prediction for machines.
pub(super) fn to_json(round: &TracedRound, prediction: &Prediction) -> Value {
    match prediction {
        Ok(predicted) => json!({
            "ns": predicted.duration,
            "bound": if predicted.is_lower_bound { "at-least" } else { "estimate" },
            "members": predicted.members,
            "updates": predicted.members.len(),
            "updates_measured": round.update_arrivals().len(),
            "updates_needed": round.least.max(1),
            "abandoned": predicted.is_abandoned,
        }),
        Err(NotPredicted::LateUpdates) => json!({ "refused": "late-updates" }),
    }
}
