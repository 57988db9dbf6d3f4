//! Statement: the part of a report that concerns one account, with the reason in plain text.

use serde::{Deserialize, Serialize};

use crate::amount::Amount;
use crate::id::{Address, RoundNumber};
use crate::message::{AbandonReason, MissingReason, RoundOutcome, VoidReason};
use crate::micro::Micro;
use crate::pay::{PayLine, PayReason};
use crate::report::{
    DuplicateMatch, DuplicateSource, Preprocessing, Report, ScoreEstimator, UpdateScore,
};

/// One account's view of one round: its amounts and the reason for them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statement {
    /// The round.
    pub round: RoundNumber,
    /// The account.
    pub account: Address,
    /// The score φ in nano-nats; absent if no update of this account was valued.
    pub score_nano: Option<i64>,
    /// Its standard error in nano-nats.
    pub error_nano: Option<u64>,
    /// The increase of the payable score in this round, in nano-nats.
    #[serde(with = "crate::report::decimal_text")]
    pub increment: u128,
    /// Amount owed for data.
    pub payout: Amount,
    /// The floor in it.
    pub floor: Amount,
    /// Amount owed for infrastructure.
    pub infrastructure: Amount,
    /// Amount debited from the bond.
    pub debit: Amount,
    /// The reason, in plain text.
    pub explanation: String,
}

impl Statement {
    /// The statement of `account` from `report`; `None` if the report does not mention the account.
    #[must_use]
    pub fn from_report(report: &Report, account: Address) -> Option<Self> {
        let line = report.line(account);
        let score = report.score(account);
        let infrastructure = report.infrastructure.iter().filter(|i| i.provider == account);
        let work = Amount::total(infrastructure.clone().map(|i| i.amount)).ok()?;
        let units = infrastructure.fold(0u64, |sum, i| sum.saturating_add(i.units));
        let missing = report.missing.iter().find(|(who, _)| *who == account).map(|(_, why)| *why);
        let entered = report.entries.iter().any(|entry| entry.sender == account);
        if !entered && missing.is_none() && units == 0 && line.is_none() {
            return None;
        }
        let mut why = match (&report.outcome, line, missing) {
            (RoundOutcome::Abandoned(reason), None, _) => explain_abandoned(*reason),
            (_, Some(line), _) if score.is_none() => explain_final(line),
            (_, Some(line), _) => explain_reason(report, line, score),
            (_, None, Some(missing)) => explain_missing(missing),
            (_, None, None) => String::new(),
        };
        if units > 0 {
            if !why.is_empty() {
                why.push(' ');
            }
            why.push_str(&format!("{units} units of verified work earned {} FLN.", work.short()));
        }
        Some(Self {
            round: report.scope.round,
            account,
            score_nano: score.map(|s| s.score_nano),
            error_nano: score.map(|s| s.error_nano),
            increment: line.map_or(0, |l| l.increment),
            floor: line.map_or(Amount::ZERO, |l| l.floor),
            payout: line.map_or(Amount::ZERO, |l| l.payout),
            infrastructure: work,
            debit: line.map_or(Amount::ZERO, |l| l.debit),
            explanation: why,
        })
    }
}

fn explain_abandoned(reason: AbandonReason) -> String {
    match reason {
        AbandonReason::TooFewUpdates { got, needed } => format!(
            "The round was abandoned: it had {got} updates and needs at least {needed}. No bond \
             was debited; the pool rolls over."
        ),
        AbandonReason::ValuationFailed => "The round was abandoned: its updates could not be \
             valued. No bond was debited; the pool rolls over."
            .to_owned(),
        AbandonReason::TaskEnded => {
            "The task ended before this round: no participant was asked.".to_owned()
        }
    }
}

/// The explanation of a line of the last round for an account without an update in it.
fn explain_final(line: &PayLine) -> String {
    format!(
        "The task has ended. The sum of all scores is statistically significant, so that {} nats, \
         which were withheld, earned {} FLN.",
        nats(line.increment.try_into().unwrap_or(i128::MAX)),
        line.payout.short()
    )
}

/// Mentions an estimator that the gap rules or the cross-check chose, and why.
fn explain_estimator(report: &Report) -> String {
    let Some(valuation) = &report.valuation else { return String::new() };
    let scores = match valuation.stages.last().map(|stage| stage.estimator) {
        Some(ScoreEstimator::Shapley) => "are exact Shapley values",
        Some(ScoreEstimator::Permutations(_)) => "come from random orders of the updates",
        Some(ScoreEstimator::Path(_)) | None => return String::new(),
    };
    // One stage, and one more after an exclusion; only a second valuation has others.
    let due = if valuation.scores.iter().any(|score| score.excluded) { 2 } else { 1 };
    let why = match valuation.stages.len() > due {
        true => "the cross-check contradicted those of a quadrature along the path",
        false => "a quadrature along the path left more than 2 % of the improvement unexplained",
    };
    format!(" The scores {scores}: {why}.")
}

/// Why a round pays no scores.
fn explain_void(report: &Report) -> &'static str {
    match report.outcome {
        RoundOutcome::Void(VoidReason::Unresolved) => {
            "the scores do not explain the improvement of the round, so none of them counts"
        }
        RoundOutcome::Void(VoidReason::NoUpdateRemains) => "no update of the round remained",
        RoundOutcome::Void(VoidReason::MajorityExcluded) => {
            "harmful updates had more than half of the round's weight"
        }
        RoundOutcome::Void(VoidReason::NoImprovement) => "the round did not improve the model",
        RoundOutcome::Settled | RoundOutcome::Abandoned(_) => {
            "all pay that the model's improvement so far covers is spent"
        }
    }
}

fn explain_harm_in_void_round(report: &Report, figures: &str) -> String {
    format!(
        "The update significantly raised the validation loss ({figures}), but {}: there is no \
         debit, and no pay for the score.",
        explain_void(report)
    )
}

fn explain_missing(missing: MissingReason) -> String {
    match missing {
        MissingReason::NoCommit => "No commit arrived before the deadline, so there is no pay. \
             The bond is unchanged."
            .to_owned(),
        MissingReason::NoReveal => {
            "An update was committed but not uploaded before the deadline, so \
             there is no pay. The bond is unchanged."
                .to_owned()
        }
        MissingReason::Rejected(code) => {
            format!("The update was rejected [{code}] and changed nothing.")
        }
    }
}

fn explain_reason(report: &Report, line: &PayLine, score: Option<&UpdateScore>) -> String {
    let treatment = score.map(|s| s.preprocessing).unwrap_or_default();
    let is_excluded = score.is_some_and(|s| s.excluded);
    let (score, error) = score.map_or((0, 0), |s| (s.score_nano, s.error_nano));
    let figures = format!("{} ± {} nats", nats(score.into()), nats(error.into()));
    let mut why = match line.reason {
        PayReason::Paid => format!(
            "The score of the update is {figures}. The payable part of all scores so far grew by \
             {} nats since the last payment{} and earned {} FLN.",
            nats(line.increment.try_into().unwrap_or(i128::MAX)),
            match i128::try_from(line.increment).is_ok_and(|grown| grown > score.into()) {
                true => {
                    ", by more than the score because fewer nats are withheld (after the last \
                     round none of a significant sum),"
                }
                false => "",
            },
            line.payout.minus(line.floor).unwrap_or_default().short()
        ),
        PayReason::Withheld if was_paid(report, line) => format!(
            "The score of the update is {figures}. The payable part of all scores so far did not \
             grow: the rest is withheld. A later round pays it if the score is confirmed; after the \
             last round it returns to the buyer."
        ),
        PayReason::Withheld => format!(
            "The score of the update is {figures}. Over all rounds so far this is not \
             statistically significant: the pay is withheld. A later round pays it if the score is \
             confirmed; after the last round it returns to the buyer."
        ),
        PayReason::Idle if treatment.duplicate_of.is_some() => String::new(),
        PayReason::Idle => {
            "The update did not change the model: its score is exactly zero.".to_owned()
        }
        PayReason::NotHelpful if is_excluded => explain_harm_in_void_round(report, &figures),
        PayReason::NotHelpful => format!(
            "The updates so far did not improve the model (this one: {figures}). There is no pay \
             for the score. The harm is not statistically significant, so there is no debit."
        ),
        PayReason::CarriedOver => format!(
            "The score of the update is {figures}, but {}: this round pays no scores. The \
             payable part is carried over to the next round that does.",
            explain_void(report)
        ),
        PayReason::Excluded => format!(
            "The update significantly raised the validation loss ({figures}): it was not merged \
             into the model, and {} FLN are debited from the bond once the settlement is final.",
            line.debit.short()
        ),
    };
    if !line.floor.is_zero() {
        why.push_str(&format!(" The floor of the round paid {} FLN.", line.floor.short()));
    }
    why.push_str(&explain_preprocessing(treatment));
    why.push_str(&explain_estimator(report));
    let capped = report
        .entries
        .iter()
        .find(|entry| entry.sender == line.account && entry.rows_counted < entry.rows_declared);
    if let Some(entry) = capped {
        why.push_str(&format!(
            " The bond of {} FLN covers {} of the {} declared rows; only those count.",
            entry.bond.short(),
            entry.rows_counted,
            entry.rows_declared
        ));
    }
    why
}

/// Whether the account of a line has been paid for data in any round so far.
fn was_paid(report: &Report, line: &PayLine) -> bool {
    report.account_totals.get(&line.account).is_some_and(|totals| !totals.data.is_zero())
}

/// Preprocessing of an update where it changed its pay, in sentences.
fn explain_preprocessing(treatment: Preprocessing) -> String {
    match treatment.duplicate_of {
        Some(DuplicateMatch { source: DuplicateSource::SameRound(sender), cosine }) => format!(
            "The update is a near-duplicate of the update of {sender}, which was committed earlier \
             (cosine {cosine}): it was rejected, and its score is zero. Only the earliest commit \
             is paid."
        ),
        Some(DuplicateMatch { source: DuplicateSource::GlobalDeltas, cosine }) => format!(
            "The update is a near-duplicate of the global model deltas of earlier rounds (cosine \
             {cosine}), which are public: it was rejected, and its score is zero."
        ),
        Some(DuplicateMatch { source: DuplicateSource::EarlierRound(sender), cosine }) => format!(
            "The update is a near-duplicate of an update that {sender} sent in an earlier round \
             (cosine {cosine}), which is public: it was rejected, and its score is zero."
        ),
        None if treatment.norm_factor < Micro::ONE => format!(
            " The norm of the update was above the cohort's median: the update was scaled to {} of \
             its norm before the valuation.",
            treatment.norm_factor
        ),
        None if treatment.norm_factor > Micro::ONE => format!(
            " The norm of the update was below the cohort's median: the update was scaled to {} of \
             its norm before the valuation. A larger update would not have earned more.",
            treatment.norm_factor
        ),
        None => String::new(),
    }
}

/// Nano-nats as a signed decimal number of nats with six places, rounded towards zero.
#[must_use]
pub fn nats(nano: i128) -> String {
    let micro = nano.unsigned_abs().checked_div(1_000).unwrap_or_default();
    let whole = micro.checked_div(1_000_000).unwrap_or_default();
    let part = micro.checked_rem(1_000_000).unwrap_or_default();
    let sign = if nano < 0 && micro > 0 { "-" } else { "" };
    format!("{sign}{whole}.{part:06}")
}

#[cfg(test)]
mod tests {
    use super::{explain_preprocessing, nats};
    use crate::id::Address;
    use crate::micro::Micro;
    use crate::report::{DuplicateMatch, DuplicateSource, Preprocessing};

    #[test]
    fn a_statement_reports_preprocessing_with_its_numbers() {
        let set_aside = |of| {
            let repeats = Some(DuplicateMatch { source: of, cosine: Micro(987_654) });
            explain_preprocessing(Preprocessing {
                duplicate_of: repeats,
                ..Preprocessing::default()
            })
        };
        let copy = set_aside(DuplicateSource::SameRound(Address([7; 20])));
        let sender = Address([7; 20]).to_string();
        assert!(copy.contains(&sender) && copy.contains("cosine 0.987654"), "{copy}");
        assert!(copy.contains("earliest commit is paid"), "{copy}");
        let replay = set_aside(DuplicateSource::GlobalDeltas);
        assert!(replay.contains("global model deltas") && replay.contains("0.987654"), "{replay}");
        let last = set_aside(DuplicateSource::EarlierRound(Address([7; 20])));
        assert!(last.contains(&sender) && last.contains("in an earlier round"), "{last}");
        let clipped = explain_preprocessing(Preprocessing {
            norm_factor: Micro(432_000),
            ..Preprocessing::default()
        });
        assert!(clipped.contains("scaled to 0.432 of"), "{clipped}");
        let longer = explain_preprocessing(Preprocessing {
            norm_factor: Micro(1_250_000),
            ..Preprocessing::default()
        });
        assert!(longer.contains("scaled to 1.25 of"), "{longer}");
        assert_eq!(explain_preprocessing(Preprocessing::default()), "");
    }

    #[test]
    fn nats_are_formatted_with_their_sign() {
        for (nano, text) in
            [(0, "0.000000"), (-1, "0.000000"), (-1_500, "-0.000001"), (2_123_456_789, "2.123456")]
        {
            assert_eq!(nats(nano), text);
        }
    }
}
