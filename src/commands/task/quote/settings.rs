//! Warnings about settings that need no simulation.

use florin_protocol::{Admission, TaskSpec, format_ms};
use florin_sim::quote::{HOLDOUT_ROWS_MIN, PayLimits};

use super::findings::Refusal;
use crate::show;

/// Fewest holdout rows of a task: with fewer, noise decides every score.
const ROWS_MIN: u32 = 20;
/// Shortest wait for participants without a warning.
const STALL_MS_MIN: u64 = 60_000;
/// Shortest time for training without a warning.
const TRAINING_MS_MIN: u64 = 1_000;
/// Part of the budget for scores, in percent, that scores should be able to earn.
const EARNED_PERCENT_MIN: u128 = 10;

/// A code and a sentence.
pub(in crate::commands::task) type Warning = (&'static str, String);

/// A holdout that is too small for any task.
pub(super) fn too_few_rows(spec: &TaskSpec) -> Option<Refusal> {
    let rows = spec.holdout.rows;
    (rows < ROWS_MIN).then(|| Refusal {
        code: "TOO_FEW_ROWS",
        key: "holdout.source",
        value: format!("{rows} rows"),
        expected: format!(
            "so few rows do not separate honest updates from noise. Use at least {ROWS_MIN} rows, \
             and {HOLDOUT_ROWS_MIN} for a quote"
        ),
    })
}

/// Doubtful settings of a task.
pub(in crate::commands::task) fn warnings(
    spec: &TaskSpec,
    limits: &PayLimits,
) -> anyhow::Result<Vec<Warning>> {
    let (budget, rounds) = (&spec.budget, &spec.rounds);
    let mut found = Vec::new();
    if spec.holdout.rows < HOLDOUT_ROWS_MIN {
        let sentence = format!(
            "The holdout has {} rows: the errors of scores are about as large as the scores. Use \
             more rows.",
            spec.holdout.rows
        );
        found.push(("FEW_ROWS", sentence));
    }
    if (1..STALL_MS_MIN).contains(&rounds.stall_ms) {
        let sentence = format!(
            "rounds.stall is {}: the task ends if it waits that long for participants. Use at \
             least {}.",
            format_ms(rounds.stall_ms),
            format_ms(STALL_MS_MIN)
        );
        found.push(("STALL_SHORT", sentence));
    }
    if rounds.train_ms < TRAINING_MS_MIN {
        let sentence = format!(
            "rounds.train is {}: a participant that trains longer loses the round. Use at least {}.",
            format_ms(rounds.train_ms),
            format_ms(TRAINING_MS_MIN)
        );
        found.push(("TRAINING_SHORT", sentence));
    }
    found.extend(few_members(spec).map(|sentence| ("FEW_MEMBERS", sentence)));
    if budget.bond_min > budget.data {
        let sentence = format!(
            "budget.bond_min is {} FLN, and all participants together earn at most {} FLN. Lower it.",
            show::fln(budget.bond_min),
            show::fln(budget.data)
        );
        found.push(("BOND_EXCEEDS_PAY", sentence));
    }
    let for_scores = budget.data.minus(limits.floor)?;
    if limits.score_pay < for_scores.mul_div_down(EARNED_PERCENT_MIN, 100)? {
        let sentence = format!(
            "budget.per_nat_max is {} FLN: all scores together earn at most {} of the {} FLN that \
             are for them. Raise it, or lower budget.data.",
            show::fln(budget.per_nat_max),
            show::fln(limits.score_pay),
            show::fln(for_scores)
        );
        found.push(("PRICE_LOW", sentence));
    }
    Ok(found)
}

/// An allow list with fewer accounts than updates that complete a round.
fn few_members(spec: &TaskSpec) -> Option<String> {
    let Admission::AllowList { accounts } = &spec.admission else { return None };
    let rounds = &spec.rounds;
    let listed = u32::try_from(accounts.len()).unwrap_or(u32::MAX);
    if listed >= rounds.cohort_target {
        return None;
    }
    let outcome = match listed < rounds.cohort_min {
        true => "no round can start".to_owned(),
        false => format!(
            "a round waits for all of them, up to the whole of rounds.train, {}",
            format_ms(rounds.train_ms)
        ),
    };
    let (target, least) = (rounds.cohort_target, rounds.cohort_min);
    Some(format!(
        "members.accounts lists fewer accounts ({listed}) than a round has updates ({target}, \
         cohort_target or mode.k; at least {least}): {outcome}. List more accounts, or lower the \
         numbers."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use florin_protocol::Amount;

    fn codes(change: impl FnOnce(&mut TaskSpec)) -> Vec<&'static str> {
        let mut spec = TaskSpec::example();
        spec.holdout.rows = 500;
        (spec.rounds.train_ms, spec.rounds.stall_ms) = (10_000, 0);
        change(&mut spec);
        let limits = PayLimits::new(&spec).unwrap();
        warnings(&spec, &limits).unwrap().into_iter().map(|(code, _)| code).collect()
    }

    #[test]
    fn each_doubtful_setting_has_its_warning_from_its_limit_on() {
        assert_eq!(codes(|_| ()), [""; 0]);
        assert_eq!(codes(|spec| spec.holdout.rows = 90), [""; 0]);
        assert_eq!(codes(|spec| spec.holdout.rows = 89), ["FEW_ROWS"]);
        assert_eq!(codes(|spec| spec.rounds.stall_ms = 60_000), [""; 0]);
        assert_eq!(codes(|spec| spec.rounds.stall_ms = 59_999), ["STALL_SHORT"]);
        assert_eq!(codes(|spec| spec.rounds.train_ms = 1_000), [""; 0]);
        assert_eq!(codes(|spec| spec.rounds.train_ms = 999), ["TRAINING_SHORT"]);
        assert_eq!(codes(|spec| spec.budget.bond_min = spec.budget.data), [""; 0]);
        let lists = |spec: &mut TaskSpec, count: u8| {
            let accounts = (1..=count).map(|n| florin_protocol::Address([n; 20])).collect();
            spec.admission = Admission::AllowList { accounts };
            (spec.rounds.cohort_min, spec.rounds.cohort_target) = (2, 10);
        };
        assert_eq!(codes(|spec| lists(spec, 9)), ["FEW_MEMBERS"]);
        assert_eq!(codes(|spec| lists(spec, 1)), ["FEW_MEMBERS"]);
        assert_eq!(codes(|spec| lists(spec, 10)), [""; 0]);
        let more = |spec: &mut TaskSpec| {
            spec.budget.bond_min = spec.budget.data.plus(Amount::from_units(1)).unwrap();
        };
        assert_eq!(codes(more), ["BOND_EXCEEDS_PAY"]);
        let cheap = |spec: &mut TaskSpec| spec.budget.per_nat_max = "0.001".parse().unwrap();
        assert_eq!(codes(cheap), ["PRICE_LOW"]);
    }

    #[test]
    fn a_holdout_of_fewer_than_twenty_rows_is_refused() {
        let mut spec = TaskSpec::example();
        spec.holdout.rows = 20;
        assert!(too_few_rows(&spec).is_none());
        spec.holdout.rows = 19;
        assert!(too_few_rows(&spec).is_some());
    }
}
