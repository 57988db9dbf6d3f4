//! The predicted pay of a task: from the tokens that the ledger holds and has paid, from the reports
//! of its final rounds, and from the time of a training on this device.
//!
//! A new task pays a prior share of its pool; every final round counts against it. So a large pool
//! that never pays loses its rank within a few rounds. Predictions are floats: no money follows from
//! them.

use florin_protocol::{Address, Amount, Report, RoundNumber, TaskSpec};
use serde::Serialize;

/// The share of its pool that a round of a task without history pays.
const PRIOR_SHARE: f64 = 0.25;
/// The share of `debit_max` that an update costs in a task without history.
const PRIOR_DEBIT: f64 = 0.01;
/// Rounds for which the prior counts.
const PRIOR_ROUNDS: f64 = 2.0;
/// The cost of a locked bond for an hour, as a share: about nine percent a year.
const BOND_COST_PER_HOUR: f64 = 1e-5;
const UNITS_PER_FLN: f64 = 1e18;
const SECONDS_PER_HOUR: f64 = 3_600.0;
/// The least time of a training, so that a time that was not measured divides nothing.
const SECONDS_MIN: f64 = 1e-3;

pub(super) fn florins(amount: Amount) -> f64 {
    amount.units() as f64 / UNITS_PER_FLN
}

/// The pay of a task's final rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct PayRecord {
    /// Number of rounds.
    pub rounds: u32,
    /// Sum over the rounds of the share of the pool that was paid to participants other than buyer
    /// and coordinator.
    pub paid_shares: f64,
    /// Number of updates.
    pub updates: u64,
    /// Sum of the rows of the updates that counted.
    pub rows: u64,
    /// Sum of the debits, in florins.
    pub debits: f64,
    /// Number of rounds with an update of this account.
    pub own_rounds: u32,
    /// Number of rounds that asked it and have no update of it; 0 where late updates count.
    pub in_vain: u32,
    /// Paid to it, less its debits, in florins.
    pub own_net: f64,
}

impl PayRecord {
    /// The record of reports up to the last final round. `ledger_paid` is the total that the ledger
    /// has finalised for data: reports that state more count only in that proportion.
    #[must_use]
    pub fn from_reports(
        reports: &[Report],
        (spec, me): (&TaskSpec, Address),
        last_final: Option<RoundNumber>,
        ledger_paid: Amount,
    ) -> Self {
        let Some(last) = last_final else { return Self::default() };
        let reports = || reports.iter().filter(|report| report.scope.round <= last);
        let lines = |report: &Report| {
            let all = report.lines.iter().chain(&report.final_lines);
            all.map(|line| (line.account, florins(line.payout), florins(line.debit)))
                .collect::<Vec<(Address, f64, f64)>>()
        };
        let stated: f64 = reports().flat_map(lines).map(|(_, paid, _)| paid).sum();
        let honest = if stated > 0.0 { (florins(ledger_paid) / stated).min(1.0) } else { 1.0 };
        let mut record = Self::default();
        for report in reports() {
            let pool = florins(report.pool).max(f64::MIN_POSITIVE);
            let own = report.entries.iter().any(|entry| entry.sender == me);
            record.rounds += 1;
            record.own_rounds += u32::from(own);
            let admits_late = spec.rounds.staleness.admits_late();
            let in_vain = !admits_late && report.missing.iter().any(|(account, _)| *account == me);
            record.in_vain += u32::from(in_vain);
            record.updates += report.entries.len() as u64;
            let rows = report.entries.iter().map(|entry| entry.rows_counted);
            record.rows = rows.fold(record.rows, u64::saturating_add);
            for (account, paid, debit) in lines(report) {
                record.debits += debit;
                if account == me {
                    record.own_net += paid * honest - debit;
                }
                if account != spec.buyer && account != spec.coordinator {
                    record.paid_shares += (paid * honest / pool).min(1.0);
                }
            }
        }
        record
    }
}

/// The terms of a task for one participant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskTerms {
    /// The next round's pool, at most what the ledger holds, in florins.
    pub pool: f64,
    /// The share of the budget that pays a floor.
    pub floor_share: f64,
    /// Target number of updates of a round.
    pub cohort: u32,
    /// Participants that a round asks.
    pub places: u32,
    /// Enrolled participants, without this one.
    pub others: u32,
    /// This participant's rows that its bond covers.
    pub rows: u64,
    /// Its bond, in florins.
    pub bond: f64,
    /// Largest debit of a round, in florins.
    pub debit_max: f64,
    /// Longest time of a round, in seconds.
    pub round_seconds: f64,
}

/// The prediction for a task.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TaskPrediction {
    /// Florins of a round that asks this participant, less debits.
    pub pay: f64,
    /// Seconds of a training on this device.
    pub seconds: f64,
    /// The chance of being asked in a round.
    pub chance: f64,
    /// Florins for an hour of training, less debits and the cost of the bond.
    pub per_hour: f64,
    /// Final rounds on which it rests.
    pub rounds_known: u32,
}

/// Predicts pay and time.
#[must_use]
pub fn predict(terms: &TaskTerms, record: &PayRecord, seconds: f64) -> TaskPrediction {
    let known = f64::from(record.rounds);
    let prior = PRIOR_SHARE.max(terms.floor_share);
    let share = (PRIOR_ROUNDS * prior + record.paid_shares) / (PRIOR_ROUNDS + known);
    let updates = record.updates as f64;
    let debit =
        (PRIOR_ROUNDS * PRIOR_DEBIT * terms.debit_max + record.debits) / (PRIOR_ROUNDS + updates);
    let mean_rows =
        if record.updates > 0 { record.rows as f64 / updates } else { terms.rows as f64 };
    let others_rows = mean_rows * f64::from(terms.cohort.saturating_sub(1));
    let rows = terms.rows as f64;
    let part = if rows > 0.0 { rows / (rows + others_rows) } else { 0.0 };
    let of_all = terms.pool * share * part - debit;
    // Its own rounds show how much its rows are worth to this task.
    let own = f64::from(record.own_rounds);
    let of_update = (PRIOR_ROUNDS * of_all + record.own_net) / (PRIOR_ROUNDS + own);
    // A round that has enough updates of others pays its training nothing.
    let delivered = PRIOR_ROUNDS + own;
    let pay = of_update * delivered / (delivered + f64::from(record.in_vain));
    let enrolled = f64::from(terms.others) + 1.0;
    let chance = (f64::from(terms.places) / enrolled).min(1.0);
    let seconds = seconds.max(SECONDS_MIN);
    let bond_cost = terms.bond * BOND_COST_PER_HOUR * terms.round_seconds / SECONDS_PER_HOUR;
    let per_second = if chance > 0.0 { pay - bond_cost / chance } else { 0.0 } / seconds;
    let rounds_known = record.rounds;
    TaskPrediction { pay, seconds, chance, per_hour: per_second * SECONDS_PER_HOUR, rounds_known }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms() -> TaskTerms {
        TaskTerms {
            pool: 10.0,
            floor_share: 0.0,
            cohort: 4,
            places: 4,
            others: 3,
            rows: 100,
            bond: 0.0,
            debit_max: 0.0,
            round_seconds: 3_600.0,
        }
    }

    fn paid(rounds: u32, share: f64) -> PayRecord {
        let paid_shares = f64::from(rounds) * share;
        let updates = u64::from(rounds) * 4;
        PayRecord { rounds, paid_shares, updates, rows: updates * 100, ..PayRecord::default() }
    }

    #[test]
    fn a_new_task_counts_with_a_quarter_of_its_pool_and_a_floor_with_all_of_it() {
        let prediction = predict(&terms(), &PayRecord::default(), 36.0);
        assert_eq!((prediction.pay, prediction.chance), (0.625, 1.0));
        assert_eq!(prediction.per_hour, 62.5);
        let floor = TaskTerms { floor_share: 1.0, ..terms() };
        assert_eq!(predict(&floor, &PayRecord::default(), 36.0).pay, 2.5);
    }

    #[test]
    fn a_pool_that_never_pays_falls_below_a_small_one_that_does() {
        let absurd = TaskTerms { pool: 1_000.0, ..terms() };
        let pays = |terms: &TaskTerms, rounds, share| predict(terms, &paid(rounds, share), 1.0).pay;
        assert!(pays(&absurd, 0, 0.0) > pays(&terms(), 8, 1.0), "by its locked pool alone");
        let after: Vec<f64> = (0..200).map(|rounds| pays(&absurd, rounds, 0.0)).collect();
        assert!(after.is_sorted_by(|one, next| one > next));
        assert!(after[199] < pays(&terms(), 8, 1.0));
    }

    #[test]
    fn own_rounds_outweigh_those_of_others() {
        let others = paid(8, 0.8);
        let worthless = PayRecord { own_rounds: 8, own_net: -0.8, ..others };
        let (before, after) = (predict(&terms(), &others, 1.0), predict(&terms(), &worthless, 1.0));
        assert!(before.pay > 1.5 && after.pay < 0.3, "{before:?} {after:?}");
    }

    /// With spare places a round asks more than it pays.
    #[test]
    fn trainings_in_vain_lower_the_pay() {
        let delivered = PayRecord { own_rounds: 6, own_net: 6.0, ..paid(8, 0.8) };
        let half = PayRecord { in_vain: 8, ..delivered };
        let (all, half) = (predict(&terms(), &delivered, 1.0), predict(&terms(), &half, 1.0));
        assert_eq!(half.pay, all.pay / 2.0);
    }

    #[test]
    fn pay_falls_with_debits_bond_and_time_and_rises_with_rows() {
        let plain = predict(&terms(), &paid(4, 0.5), 10.0);
        let with = |terms: TaskTerms, record: PayRecord, seconds| {
            predict(&terms, &record, seconds).per_hour
        };
        let debited = PayRecord { debits: 8.0, ..paid(4, 0.5) };
        let crowd = TaskTerms { others: 399, bond: 1_000.0, ..terms() };
        let bonded = TaskTerms { bond: 1_000.0, ..terms() };
        assert!(with(terms(), debited, 10.0) < plain.per_hour);
        assert!(with(terms(), paid(4, 0.5), 20.0) < plain.per_hour);
        assert!(with(bonded, paid(4, 0.5), 10.0) < plain.per_hour);
        assert!(with(crowd, paid(4, 0.5), 10.0) < with(bonded, paid(4, 0.5), 10.0), "diluted");
        assert!(with(TaskTerms { rows: 300, ..terms() }, paid(4, 0.5), 10.0) > plain.per_hour);
        assert_eq!(predict(&TaskTerms { rows: 0, ..terms() }, &paid(4, 0.5), 10.0).pay, 0.0);
    }
}
