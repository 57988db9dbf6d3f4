//! An independent implementation of the pay rule, in plain arithmetic on base units: the expected
//! payments of a round, given its scores.

use std::collections::BTreeMap;

use florin_protocol::{Address, Amount, Digest, Report, TaskSpec, merkle};

type BaseUnits = u128;

/// Nano-nats per nat, and millionths per one.
const NANO: BaseUnits = 1_000_000_000;
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

/// The expected totals of all reports so far.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpectedPay {
    sums: BTreeMap<Address, AccountSums>,
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
        let before = self.root;
        let left = spec.budget.data.units() - self.data;
        let pool = left / u128::from((spec.rounds.count - self.rounds).max(1));
        same("the pool", pool, report.pool.units())?;
        self.rounds += 1;
        let weights = self.weights(spec, report);
        let total: BaseUnits = weights.iter().sum();
        let price = |amount: BaseUnits| spec.budget.per_nat_max.units() * amount / NANO;
        let spent = price(total).min(pool);
        let parts = split(spent, &weights);
        let scores = report.valuation.iter().flat_map(|valuation| &valuation.scores);
        for ((score, line), part) in scores.zip(&report.lines).zip(parts) {
            let who = score.account;
            same("a line's account", who, line.account)?;
            same(&format!("the pay of {who}"), part, line.payout.units())?;
            let bond = report.entries.iter().find(|entry| entry.sender == who);
            let bond = bond.map(|entry| entry.bond.units()).unwrap_or_default();
            let sum = self.sums.entry(who).or_default();
            sum.data += part;
            let mut debit = 0;
            if score.excluded {
                let harm = BaseUnits::from(score.score_nano.unsigned_abs());
                let due = (spent * harm).checked_div(total).unwrap_or_else(|| price(harm));
                debit = due.min(spec.budget.debit_max.units()).min(bond);
                sum.debited += debit;
                if let Some(settled) = (harm * debit).checked_div(due) {
                    sum.counted = sum.counted.saturating_sub(settled);
                }
            }
            same(&format!("the debit of {who}"), debit, line.debit.units())?;
        }
        self.data += spent;
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

    fn weights(&mut self, spec: &TaskSpec, report: &Report) -> Vec<BaseUnits> {
        let Some(valuation) = &report.valuation else { return Vec::new() };
        let mut weights = Vec::new();
        for score in &valuation.scores {
            let sum = self.sums.entry(score.account).or_default();
            let error = BaseUnits::from(score.error_nano);
            sum.scored += i128::from(score.score_nano);
            sum.variance += error * error;
            let idle = score.score_nano == 0 && score.error_nano == 0;
            if score.excluded || idle || valuation.total_nano <= 0 {
                weights.push(0);
                continue;
            }
            let floor = sum.variance.isqrt();
            let root = floor + BaseUnits::from(floor * floor < sum.variance);
            let withheld = (root * BaseUnits::from(spec.budget.confidence_z.0)).div_ceil(MICRO);
            let payable = BaseUnits::try_from(sum.scored).unwrap_or(0).saturating_sub(withheld);
            let weight = payable.saturating_sub(sum.counted);
            sum.counted = sum.counted.max(payable);
            weights.push(weight);
        }
        weights
    }

    fn process_work(&mut self, spec: &TaskSpec, report: &Report) -> Result<(), String> {
        if report.infrastructure.len() > 1 {
            return Err("the work of the round is paid more than once".to_owned());
        }
        for line in &report.infrastructure {
            let units = report.valuation.as_ref().map(|valuation| valuation.units);
            same("the units of work", units.unwrap_or_default(), line.units)?;
            let left = spec.budget.infrastructure.units() - self.infrastructure;
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
