//! An independent implementation of the pay rule, in plain arithmetic on base units: the expected
//! payments of a round, given its scores.

use std::collections::BTreeMap;

use florin_protocol::RoundOutcome::{Abandoned, Settled};
use florin_protocol::{
    AbandonReason, Address, Amount, Digest, PayLine, Report, TaskSpec, UpdateScore, merkle,
};

type BaseUnits = u128;

/// Nano-nats per nat, and millionths per one.
const NANO: BaseUnits = 1_000_000_000;
/// Standard errors beyond which the floor looks no further, in millionths.
const FLOOR_Z_MICRO: u64 = 2_000_000;
const MICRO: BaseUnits = 1_000_000;

/// The totals of an account over the rounds.
#[derive(Clone, Copy, Debug, Default)]
struct AccountSums {
    scored: i128,
    variance: BaseUnits,
    counted: BaseUnits,
    data: BaseUnits,
    infrastructure: BaseUnits,
    debited: BaseUnits,
}

/// A round as its scores and figures judge it.
struct JudgedRound<'a> {
    scores: &'a [UpdateScore],
    is_resolved: bool,
    /// Whether the round pays no score: it is void or abandoned.
    is_void: bool,
    /// Whether the round is void for no other reason than that the model did not improve.
    has_converged: bool,
    /// Improvement of the model, in nano-nats.
    improvement: BaseUnits,
}

impl<'a> JudgedRound<'a> {
    fn new(report: &'a Report) -> Self {
        let Some(valuation) = &report.valuation else {
            return Self {
                scores: &[],
                is_resolved: true,
                is_void: true,
                has_converged: false,
                improvement: 0,
            };
        };
        let is_resolved = valuation.stages.iter().all(|stage| {
            let gap = i128::from(stage.gap_nano).abs();
            gap <= 100_000 || 50 * gap <= i128::from(stage.total_nano).abs()
        });
        let weight = |excluded: bool| -> BaseUnits {
            let own = valuation.scores.iter().filter(|score| score.excluded == excluded);
            own.map(|score| BaseUnits::from(score.preprocessing.weight)).sum()
        };
        let gained = i128::from(valuation.loss_before_nano) - i128::from(valuation.model_loss_nano);
        let gained = gained.min(valuation.total_nano.into());
        let stays = weight(false) > 0 && weight(true) <= weight(false);
        let is_void = !is_resolved || !stays || gained <= 0;
        let improvement = if is_void { 0 } else { gained.unsigned_abs() };
        let has_converged = is_resolved && stays && gained <= 0;
        Self { scores: &valuation.scores, is_resolved, is_void, has_converged, improvement }
    }
}

/// The expected totals of all reports so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpectedPay {
    sums: BTreeMap<Address, AccountSums>,
    /// Improvement of the model so far, in nano-nats.
    improvement: BaseUnits,
    score_pay: BaseUnits,
    data: BaseUnits,
    infrastructure: BaseUnits,
    root: Digest,
    /// Number of rounds so far.
    pub rounds: u32,
}

/// The expected totals in a round's report and settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpectedTotals {
    /// Paid for data so far.
    pub data: BaseUnits,
    /// Paid for infrastructure so far.
    pub infrastructure: BaseUnits,
    /// The root before the round.
    pub before: Digest,
    /// The root after the round.
    pub root: Digest,
}

fn same<T: Copy + PartialEq + std::fmt::Debug>(
    what: &str,
    ours: T,
    theirs: T,
) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what} is {theirs:?}, expected {ours:?}")) }
}

impl ExpectedPay {
    /// Processes the next round's report and compares every amount in it with the expected one.
    ///
    /// # Errors
    /// A description of the first amount that differs.
    pub(super) fn process_report(
        &mut self,
        spec: &TaskSpec,
        report: &Report,
    ) -> Result<ExpectedTotals, String> {
        let left = spec.budget.data.units() - self.data;
        let pool = left / u128::from((spec.rounds.count - self.rounds).max(1));
        same("the pool", pool, report.pool.units())?;
        self.rounds += 1;
        let round = JudgedRound::new(report);
        same("an outcome without improvement", round.is_void, report.outcome != Settled)?;
        self.improvement += round.improvement;
        let is_last = self.rounds >= spec.rounds.count
            || report.outcome == Abandoned(AbandonReason::TaskEnded);
        self.add_scores(&round);
        let lines: Vec<&PayLine> = report.lines.iter().chain(&report.final_lines).collect();
        let increments: Vec<BaseUnits> =
            lines.iter().map(|line| self.increment(spec, &round, line.account, is_last)).collect();
        let absent = |who: &&Address| !lines.iter().any(|line| line.account == **who);
        let mut absent = self.sums.keys().filter(absent);
        let forgotten =
            absent.find(|who| is_last && self.increment(spec, &round, **who, is_last) > 0);
        same("an account that the last round forgets", None, forgotten.copied())?;

        let total: BaseUnits = increments.iter().sum();
        let per_nat = spec.budget.per_nat_max.units();
        let price = |nano: BaseUnits| per_nat * nano / NANO;
        let share = BaseUnits::from(spec.budget.floor_share.0);
        let rounds = BaseUnits::from(spec.rounds.count);
        let floor = (spec.budget.data.units() * share / (MICRO * rounds)).min(pool);
        let covered = price(self.improvement).saturating_sub(self.score_pay);
        let spent = price(total).min(pool - floor).min(covered);
        let floors = split(floor, &self.floor_weights(spec, &round));
        let parts = split(spent, &increments);
        for (at, (line, part)) in lines.iter().zip(parts).enumerate() {
            let who = line.account;
            let own_floor = floors.get(at).copied().unwrap_or(0);
            same(&format!("the floor of {who}"), own_floor, line.floor.units())?;
            same(&format!("the pay of {who}"), part + own_floor, line.payout.units())?;
            let sum = self.sums.entry(who).or_default();
            sum.data += part + own_floor;
            sum.counted += if spent > 0 { increments[at] } else { 0 };
            let score = round.scores.get(at).filter(|score| score.excluded && !round.is_void);
            let mut debit = 0;
            if let Some(score) = score {
                let bond = report.entries.iter().find(|entry| entry.sender == who);
                let bond = bond.map(|entry| entry.bond.units()).unwrap_or_default();
                let harm = BaseUnits::from(score.score_nano.unsigned_abs());
                let due = if spent > 0 { spent * harm / total } else { price(harm) };
                let due = due.min((pool - floor) * harm / round.improvement);
                debit = due.min(spec.budget.debit_max.units()).min(bond);
                sum.debited += debit;
                if let Some(settled) = (harm * debit).checked_div(due) {
                    sum.counted = sum.counted.saturating_sub(settled);
                }
            }
            same(&format!("the debit of {who}"), debit, line.debit.units())?;
        }
        self.score_pay += spent;
        self.data += spent + floors.iter().sum::<BaseUnits>();
        same("the score pay", self.score_pay, report.score_pay_total.units())?;
        let improved = BaseUnits::from(report.improvement_total_nano);
        same("the improvement", self.improvement, improved)?;
        self.check_totals(spec, report)
    }

    /// Compares the totals and the roots after the round.
    fn check_totals(&mut self, spec: &TaskSpec, report: &Report) -> Result<ExpectedTotals, String> {
        let before = self.root;
        self.process_work(spec, report)?;
        self.root = self.tree();
        let totals = ExpectedTotals {
            data: self.data,
            infrastructure: self.infrastructure,
            before,
            root: self.root,
        };
        let reported = ExpectedTotals {
            data: report.data_total.units(),
            infrastructure: report.infrastructure_total.units(),
            before: report.previous_root,
            root: report.root,
        };
        same("totals and roots", totals, reported)?;
        Ok(totals)
    }

    fn add_scores(&mut self, round: &JudgedRound<'_>) {
        for score in round.scores {
            let sum = self.sums.entry(score.account).or_default();
            if round.is_resolved {
                let error = BaseUnits::from(score.error_nano);
                sum.scored += i128::from(score.score_nano);
                sum.variance += error * error;
            }
        }
    }

    /// The payable score of an account.
    fn payable(&self, spec: &TaskSpec, account: Address) -> BaseUnits {
        self.payable_at(spec.budget.confidence_z.0, account)
    }

    fn payable_at(&self, z_micro: u64, account: Address) -> BaseUnits {
        let sum = self.sums.get(&account).copied().unwrap_or_default();
        let floor = sum.variance.isqrt();
        let root = floor + BaseUnits::from(floor * floor < sum.variance);
        let withheld = (root * BaseUnits::from(z_micro)).div_ceil(MICRO);
        BaseUnits::try_from(sum.scored).unwrap_or(0).saturating_sub(withheld)
    }

    fn increment(
        &self,
        spec: &TaskSpec,
        round: &JudgedRound<'_>,
        account: Address,
        is_last: bool,
    ) -> BaseUnits {
        let sum = self.sums.get(&account).copied().unwrap_or_default();
        let payable = self.payable(spec, account);
        let excluded = round.scores.iter().any(|score| score.account == account && score.excluded);
        match is_last {
            true if payable > 0 => sum.scored.unsigned_abs().saturating_sub(sum.counted),
            false if !excluded && !round.is_void => payable.saturating_sub(sum.counted),
            _ => 0,
        }
    }

    /// The weights by which the round's scores share the floor.
    fn floor_weights(&self, spec: &TaskSpec, round: &JudgedRound<'_>) -> Vec<BaseUnits> {
        let weight = |score: &UpdateScore| BaseUnits::from(score.preprocessing.weight);
        let mut positive: Vec<BaseUnits> =
            round.scores.iter().map(weight).filter(|weight| *weight > 0).collect();
        positive.sort_unstable_by(|a, b| b.cmp(a));
        let median = positive.get(positive.len() / 2).copied().unwrap_or(0);
        let z = spec.budget.confidence_z.0.min(FLOOR_Z_MICRO);
        let good = |score: &UpdateScore| {
            let payable = self.payable_at(z, score.account) > 0;
            payable && !score.excluded && weight(score) > 0
        };
        let any_good = round.scores.iter().any(good);
        let qualifies = |score: &UpdateScore| match round.is_void && !round.has_converged {
            false if any_good => good(score),
            _ => round.is_void || !score.excluded,
        };
        let of = |score: &UpdateScore| match qualifies(score) {
            true => weight(score).min(median),
            false => 0,
        };
        round.scores.iter().map(of).collect()
    }

    fn process_work(&mut self, spec: &TaskSpec, report: &Report) -> Result<(), String> {
        if report.infrastructure.len() > 1 {
            return Err("the work of the round is paid more than once".to_owned());
        }
        for line in &report.infrastructure {
            let units = report.valuation.as_ref().map(|valuation| valuation.units);
            same("the units of work", units.unwrap_or_default(), line.units)?;
            let rounds = BaseUnits::from(spec.rounds.count);
            let part = BaseUnits::from(self.rounds).min(rounds);
            let left = spec.budget.infrastructure.units() * part / rounds - self.infrastructure;
            let pay = (spec.budget.per_unit.units() * BaseUnits::from(line.units)).min(left);
            same("the pay of work", pay, line.amount.units())?;
            self.infrastructure += pay;
            self.sums.entry(line.provider).or_default().infrastructure += pay;
        }
        Ok(())
    }

    fn tree(&self) -> Digest {
        let totals = self.sums.keys().map(|who| (*who, self.totals(*who)));
        let leaves = totals.filter(|(_, [paid, debited])| *paid != 0 || *debited != 0);
        let leaves = leaves.map(|(who, [paid, debited])| {
            let totals = merkle::ClaimTotals {
                paid: Amount::from_units(paid),
                debited: Amount::from_units(debited),
            };
            (who, totals)
        });
        merkle::ClaimTree::new(leaves).root()
    }

    /// The expected paid and debited totals of an account.
    #[must_use]
    pub(super) fn totals(&self, account: Address) -> [BaseUnits; 2] {
        let sum = self.sums.get(&account).copied().unwrap_or_default();
        [sum.data + sum.infrastructure, sum.debited]
    }

    /// All accounts in any report.
    pub(super) fn accounts(&self) -> impl Iterator<Item = Address> + '_ {
        self.sums.keys().copied()
    }
}

/// The largest remainder method, one unit at a time.
fn split(pool: BaseUnits, weights: &[BaseUnits]) -> Vec<BaseUnits> {
    let total: BaseUnits = weights.iter().sum();
    if total == 0 {
        return vec![0; weights.len()];
    }
    let mut parts: Vec<BaseUnits> = weights.iter().map(|weight| pool * weight / total).collect();
    let mut rests: Vec<BaseUnits> = weights.iter().map(|weight| pool * weight % total).collect();
    for _ in 0..pool - parts.iter().sum::<BaseUnits>() {
        let largest = rests.iter().max().copied().unwrap_or_default();
        let at = rests.iter().position(|rest| *rest == largest).unwrap_or_default();
        parts[at] += 1;
        rests[at] = 0;
    }
    parts
}
