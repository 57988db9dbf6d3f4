//! Closes a round: builds its report from its inputs. The coordinator's engine and every auditor
//! call the same function; an honest report equals its result.

use std::collections::BTreeMap;

use crate::amount::{Amount, AmountError};
use crate::bytes::Canonical;
use crate::draw::round_seed;
use crate::id::{Address, Digest, RoundNumber};
use crate::message::{AbandonReason, MissingReason, Offer, RoundOutcome, RoundScope};
use crate::pay::{
    PayError, PayInputs, PayTotals, RoundBudget, RoundPay, ValuedRound, VerifiedWork, claim_tree,
    pay_round, round_pool,
};
use crate::report::{HoldoutSample, Report, RoundTimes, UpdateEntry};
use crate::task::TaskSpec;
use crate::time::Timestamp;
use crate::work_order::WorkResult;

/// The inputs of a round's report.
#[derive(Clone, Copy, Debug)]
pub struct ReportInputs<'a> {
    /// The task.
    pub spec: &'a TaskSpec,
    /// The round's offer.
    pub offer: &'a Offer,
    /// The report of the preceding round; `None` in round 1.
    pub previous_report: Option<&'a Report>,
    /// Every accepted commit: sender and commitment, ascending by sender.
    pub commits: &'a [(Address, Digest)],
    /// The accepted updates, ascending by sender.
    pub entries: &'a [UpdateEntry],
    /// When they arrived; the times of the offer replace those in it.
    pub times: &'a RoundTimes,
    /// Selected participants without an accepted update, and why.
    pub missing: &'a [(Address, MissingReason)],
    /// The holdout rows that evaluate the round, from [`crate::draw_rows`]; empty if there are too
    /// few updates.
    pub holdout_rows: &'a [u32],
    /// The result of the valuation, or why there is none.
    pub result: Result<&'a WorkResult, AbandonReason>,
    /// Verified work to pay.
    pub verified_work: &'a [VerifiedWork],
}

impl ReportInputs<'_> {
    /// Whether the report pays what earlier rounds withheld.
    fn is_last(&self) -> bool {
        self.result == Err(AbandonReason::TaskEnded)
            || self.offer.scope.round.0 >= self.spec.rounds.count
    }
}

impl TaskSpec {
    /// Rows that count for an update: the declared number, at most what the bond covers.
    #[must_use]
    pub fn rows_counted(&self, declared: u64, bond: Amount) -> u64 {
        let covered = bond
            .units()
            .checked_div(self.budget.bond_per_row.units())
            .and_then(|rows| u64::try_from(rows).ok())
            .unwrap_or(u64::MAX);
        declared.min(covered)
    }

    /// The most that a round may spend on data, given the report of the preceding round.
    ///
    /// # Errors
    /// [`AmountError`] if more than the deposit was paid.
    pub fn pool_for_round(
        &self,
        round: RoundNumber,
        before: Option<&Report>,
    ) -> Result<Amount, AmountError> {
        let paid = before.map_or(Amount::ZERO, |report| report.data_total);
        let gone = round.0.saturating_sub(1);
        Ok(round_pool(self.budget.data.minus(paid)?, self.rounds.count.saturating_sub(gone)))
    }

    /// The most that a round may spend on infrastructure, given the report of the preceding round:
    /// after round r at most r / rounds of the budget is spent.
    ///
    /// # Errors
    /// [`AmountError`] if more was paid.
    pub fn infrastructure_for_round(
        &self,
        round: RoundNumber,
        before: Option<&Report>,
    ) -> Result<Amount, AmountError> {
        let paid = before.map_or(Amount::ZERO, |report| report.infrastructure_total);
        let rounds = self.rounds.count.max(1);
        let part = round.0.min(rounds);
        self.budget.infrastructure.mul_div_down(part.into(), rounds.into())?.minus(paid)
    }

    /// Whether `updates` updates are enough for a round to be valued.
    #[must_use]
    pub fn has_quorum(&self, updates: usize) -> bool {
        usize::try_from(self.rounds.cohort_min).is_ok_and(|needed| updates >= needed)
    }
}

/// Computes the report of a round.
///
/// # Errors
/// [`PayError`] if the inputs are inconsistent; then nothing is settled.
pub fn close_round(closing: &ReportInputs<'_>) -> Result<Report, PayError> {
    let ReportInputs { spec, offer, previous_report: before, .. } = *closing;
    let totals = before.map_or_else(PayTotals::default, |report| PayTotals {
        accounts: report.account_totals.clone(),
        improvement_nano: report.improvement_total_nano,
        score_pay: report.score_pay_total,
    });
    let data_total = before.map_or(Amount::ZERO, |r| r.data_total);
    let infrastructure_total = before.map_or(Amount::ZERO, |r| r.infrastructure_total);
    let pool = spec.pool_for_round(offer.scope.round, before)?;
    let limits = RoundBudget {
        pool,
        floor: spec.round_floor()?.min(pool),
        infrastructure: spec.infrastructure_for_round(offer.scope.round, before)?,
    };
    let bonds: BTreeMap<Address, Amount> =
        closing.entries.iter().map(|entry| (entry.sender, entry.bond)).collect();
    let result = closing.result.ok();
    let round = result.map_or(ValuedRound::Abandoned, |r| ValuedRound::new(&r.valuation));
    let outcome = outcome(closing.result, &round);
    let paid: RoundPay = pay_round(&PayInputs {
        budget: &spec.budget,
        limits,
        is_last: closing.is_last(),
        before: &totals,
        round,
        bonds: &bonds,
        work: closing.verified_work,
    })?;
    let root = claim_tree(&paid.totals.accounts)?.root();
    let offer_digest = offer.digest();
    Ok(Report {
        version: Report::VERSION,
        scope: offer.scope,
        previous_report: offer.previous_report,
        offer: offer_digest,
        outcome,
        base_model: offer.base_model,
        model: match outcome {
            RoundOutcome::Settled => result.map_or(offer.base_model, |r| r.model),
            RoundOutcome::Void(_) | RoundOutcome::Abandoned(_) => offer.base_model,
        },
        holdout: HoldoutSample {
            seed: round_seed(offer.scope, closing.commits, closing.entries),
            rows: closing.holdout_rows.to_vec(),
        },
        commits: closing.commits.to_vec(),
        entries: closing.entries.to_vec(),
        times: closing.times.of_offer(offer),
        missing: closing.missing.to_vec(),
        valuation: result.map(|r| r.valuation.clone()),
        baseline: result.and_then(|r| r.baseline),
        metrics: result.map(|r| r.metrics),
        pool,
        improvement_total_nano: paid.totals.improvement_nano,
        score_pay_total: paid.totals.score_pay,
        data_total: data_total.plus(paid.data_spent)?,
        infrastructure_total: infrastructure_total.plus(paid.infrastructure_spent)?,
        lines: paid.lines,
        infrastructure: paid.infrastructure,
        final_lines: paid.final_lines,
        account_totals: paid.totals.accounts,
        previous_root: before.map(|report| report.root).unwrap_or_default(),
        root,
        settlement_id: Report::settlement_id(offer.scope.task, offer.scope.round),
    })
}

fn outcome(result: Result<&WorkResult, AbandonReason>, round: &ValuedRound<'_>) -> RoundOutcome {
    match (result, round) {
        (Err(reason), _) => RoundOutcome::Abandoned(reason),
        (Ok(_), ValuedRound::Void(reason, _)) => RoundOutcome::Void(*reason),
        (Ok(_), _) => RoundOutcome::Settled,
    }
}

impl RoundTimes {
    /// The same arrivals in the round of this offer.
    fn of_offer(&self, offer: &Offer) -> Self {
        Self { opened: offer.opened, commit_by: offer.commit_by, ..self.clone() }
    }
}

/// The report with which a task ends after `last` and before its last round: no participant was
/// asked, and it pays what was withheld. All times of its offer are `now`.
///
/// # Errors
/// As [`close_round`].
pub fn end_task(
    spec: &TaskSpec,
    last: &Report,
    now: Timestamp,
) -> Result<(Offer, Report), PayError> {
    let RoundScope { market, task, round } = last.scope;
    let round = RoundNumber(round.0.saturating_add(1));
    let offer = Offer {
        scope: RoundScope { market, task, round },
        base_model: last.model,
        previous_report: last.digest(),
        cohort: Vec::new(),
        reasons: Vec::new(),
        candidates: Digest::default(),
        opened: now,
        commit_by: now,
        reveal_by: now,
        pool: spec.pool_for_round(round, Some(last))?,
    };
    let report = close_round(&ReportInputs {
        spec,
        offer: &offer,
        previous_report: Some(last),
        commits: &[],
        entries: &[],
        times: &RoundTimes { commits_closed: now, ..RoundTimes::default() },
        missing: &[],
        holdout_rows: &[],
        result: Err(AbandonReason::TaskEnded),
        verified_work: &[],
    })?;
    Ok((offer, report))
}

#[cfg(test)]
#[path = "close_round_tests.rs"]
mod tests;
