//! The quote of a task: the pay that a participant can expect and the bond that it risks.

use std::fmt;

use florin_protocol::{Address, Amount, AmountError, Report, RoundNumber, TaskSpec, format_ms};

use super::joining::required_bond;
use crate::arbiter::{ArbiterPolicy, arbiter_acceptable};
use crate::event_json;
use crate::round_terms::RoundTerms;

/// The pay that a task offers one participant, and the bond that it can take, as of the next round.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ParticipationQuote {
    /// Rounds without a report.
    pub rounds_left: u32,
    /// The next round's pool: the most that it can pay for data.
    #[serde(serialize_with = "event_json::amount")]
    pub pool: Amount,
    /// The pool in equal parts for `cohort_target` updates: only a good model earns it.
    #[serde(serialize_with = "event_json::amount")]
    pub equal_share: Amount,
    /// The floor of a round in equal parts for `cohort_target` updates. It does not depend on how
    /// much the model improves, and `--min-pay` is compared with it.
    #[serde(serialize_with = "event_json::amount")]
    pub floor_share: Amount,
    /// Highest price of one nat of improvement.
    #[serde(serialize_with = "event_json::amount")]
    pub per_nat_max: Amount,
    /// Number of rows that the participant trains on.
    pub rows: u64,
    /// Number of rows that the bond covers.
    pub rows_covered: u64,
    /// The bond to deposit.
    #[serde(serialize_with = "event_json::amount")]
    pub bond: Amount,
    /// The most that debits can take from the bond in one round.
    #[serde(serialize_with = "event_json::amount")]
    pub debit_max: Amount,
    /// The most that debits can take in all rounds left, with every top-up of the bond.
    #[serde(serialize_with = "event_json::amount")]
    pub debits_max: Amount,
    /// The most that the arbiter can slash: the task's minimum bond, in all rounds together.
    #[serde(serialize_with = "event_json::amount")]
    pub slashes_max: Amount,
    /// The account that can cancel settlements and slash the bond.
    pub arbiter: Address,
    /// Whether the arbiter is the coordinator.
    pub is_arbiter_coordinator: bool,
    /// Whether the participant's policy accepts the arbiter.
    pub is_arbiter_accepted: bool,
    /// How long the bond stays locked after a participant that leaves requests it back, in
    /// milliseconds.
    pub unbond_ms: u64,
    /// After the task's end, the bond comes back when two challenge windows have passed since the
    /// last settlement. This is their sum, in milliseconds.
    pub returned_after_ms: u64,
    /// The rules of the rounds.
    pub terms: RoundTerms,
}

impl ParticipationQuote {
    /// The quote for `rows` rows, after the last report. `limit` is the most that the participant
    /// deposits in total.
    ///
    /// # Errors
    /// [`AmountError`] on overflow.
    pub fn new(
        spec: &TaskSpec,
        last: Option<&Report>,
        rows: u64,
        limit: Option<Amount>,
        arbiters: &ArbiterPolicy,
    ) -> Result<Self, AmountError> {
        let reported = last.map_or(0, |report| report.scope.round.0);
        let rounds_left = spec.rounds.count.saturating_sub(reported);
        let pool = spec.pool_for_round(RoundNumber(reported.saturating_add(1)), last)?;
        let members = spec.rounds.cohort_target.max(1);
        let share = |amount: Amount| amount.mul_div_down(1, members.into());
        let bond = required_bond(spec, rows, limit);
        let budget = &spec.budget;
        let all_rounds = budget.debit_max.mul_div_down(rounds_left.into(), 1)?;
        Ok(Self {
            rounds_left,
            pool,
            equal_share: share(pool)?,
            floor_share: share(spec.round_floor()?.min(pool))?,
            per_nat_max: budget.per_nat_max,
            rows,
            rows_covered: spec.rows_counted(rows, bond),
            bond,
            debit_max: budget.debit_max,
            debits_max: all_rounds.min(limit.unwrap_or(bond)),
            slashes_max: budget.bond_min.min(bond),
            arbiter: spec.arbiter,
            is_arbiter_coordinator: spec.arbiter == spec.coordinator,
            is_arbiter_accepted: arbiter_acceptable(arbiters, spec),
            unbond_ms: budget.unbond_ms,
            returned_after_ms: budget.challenge_ms.saturating_mul(2),
            terms: RoundTerms::from(&spec.rounds),
        })
    }
}

impl fmt::Display for ParticipationQuote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rounds_left, pool, equal_share, floor_share, per_nat_max, .. } = self;
        let Self { rows, rows_covered, bond, debit_max, debits_max, slashes_max, .. } = self;
        write!(
            f,
            "offer: {rounds_left} rounds left; the next one pays at most {} FLN, {} FLN each at an \
             equal split, of which {} FLN as floor; at most {} FLN per nat. Risk: a bond of {} FLN \
             for {rows_covered} of {rows} rows; debits take at most {} FLN per round, {} FLN in \
             total, and slashes by the arbiter {} at most {} FLN. The bond comes back {} after the task's last settlement, or {} after you leave. Here {}; \
             {}; selection is {}; commits are due {}",
            pool.short(),
            equal_share.short(),
            floor_share.short(),
            per_nat_max.short(),
            bond.short(),
            debit_max.short(),
            debits_max.short(),
            self.arbiter_text(),
            slashes_max.short(),
            format_ms(self.returned_after_ms),
            format_ms(self.unbond_ms),
            self.terms.end(),
            self.terms.lateness(),
            self.terms.selected(),
            self.terms.deadline()
        )
    }
}

impl ParticipationQuote {
    /// The arbiter, and whether it is the coordinator.
    #[must_use]
    pub fn arbiter_text(&self) -> String {
        let role = if self.is_arbiter_coordinator { " (the coordinator)" } else { "" };
        format!("{}{role}", self.arbiter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, fln};

    #[test]
    fn a_quote_names_the_floor_the_pool_and_the_risk() {
        let mut spec = testing::spec();
        spec.rounds.cohort_target = 4;
        spec.budget.floor_share = florin_protocol::Micro(200_000);
        spec.budget.challenge_ms = 10;
        // 30 FLN in three rounds; 40 rows at 0.05 FLN; debits of at most 1 FLN.
        let quote_for = |limit| {
            ParticipationQuote::new(&spec, None, 40, limit, &ArbiterPolicy::default()).unwrap()
        };
        let quote = quote_for(None);
        assert_eq!(
            quote,
            ParticipationQuote {
                rounds_left: 3,
                pool: fln("10"),
                equal_share: fln("2.5"),
                floor_share: fln("0.5"),
                per_nat_max: fln("20"),
                rows: 40,
                rows_covered: 40,
                bond: fln("2"),
                debit_max: fln("1"),
                debits_max: fln("2"),
                slashes_max: fln("1"),
                arbiter: spec.arbiter,
                is_arbiter_coordinator: false,
                is_arbiter_accepted: false,
                unbond_ms: 240_000,
                returned_after_ms: 20,
                terms: RoundTerms::from(&spec.rounds),
            }
        );
        let text = quote.to_string();
        assert!(text.contains("0.5 FLN as floor") && text.contains("4 min after you leave"));
        assert!(text.contains("Here a round ends with 4 updates; "), "{text}");
        let small = quote_for(Some(fln("1")));
        assert_eq!((small.bond, small.rows_covered, small.debits_max), (fln("1"), 20, fln("1")));
        let large = quote_for(Some(fln("9")));
        assert_eq!((large.bond, large.debits_max), (fln("2"), fln("3")));
        spec.rounds.staleness.rounds = 8;
        spec.rounds.over_selection = 8;
        let buffered = ParticipationQuote::new(&spec, None, 40, None, &ArbiterPolicy::default());
        let text = buffered.unwrap().to_string();
        assert!(
            text.contains("4 updates, and up to 12 participants") && text.contains("8 rounds late"),
            "{text}"
        );
    }
}
