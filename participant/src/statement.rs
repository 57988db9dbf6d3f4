//! An account's statements and balances.

use std::ops::RangeInclusive;

use florin_ledger::{BondState, Ledger, LedgerError, StakeState};
use florin_protocol::{
    Address, Amount, AmountError, ErrorCode, MissingReason, Report, RoundNumber, RoundRules,
    Statement, TaskHistory, TaskId,
};

use crate::client::{Client, ClientError};

/// The explanation of a report alone, which does not have the task's rules, for a member without a commit.
const NO_COMMIT: &str =
    "No commit arrived before the deadline, so there is no pay. The bond is unchanged.";

/// One account's statements over rounds of a task, with their totals.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Statements {
    /// The task.
    pub task: TaskId,
    /// The account.
    pub account: Address,
    /// One for each reported round that mentions the account.
    pub lines: Vec<Statement>,
    /// Sum of the scores, in nano-nats, without excluded updates.
    pub score_nano: i128,
    /// Sum of the weights, in nano-nats.
    pub increment: u128,
    /// Pay for data in these rounds.
    pub payout: Amount,
    /// Pay for infrastructure in these rounds.
    pub infrastructure: Amount,
    /// Debits from the bond in these rounds.
    pub debit: Amount,
}

/// Writes a statement for people, in one line.
pub(crate) fn statement_line(
    f: &mut std::fmt::Formatter<'_>,
    statement: &Statement,
) -> std::fmt::Result {
    write!(f, "round {}: earned {} FLN", statement.round, statement.payout.short())?;
    if !statement.debit.is_zero() {
        write!(f, ", debited {} FLN", statement.debit.short())?;
    }
    write!(f, ". {}", statement.explanation)
}

/// The statement of `account` from `report`, behind a history of the rounds before it. To a member without a commit it
/// explains how the commits ended, and whether the update of a training that goes on can count in a later round.
#[must_use]
pub fn explained_statement(
    report: &Report,
    account: Address,
    rules: &RoundRules,
    history: &TaskHistory,
) -> Option<Statement> {
    let mut statement = Statement::from_report(report, account)?;
    let is_silent = report.missing.contains(&(account, MissingReason::NoCommit));
    let other = statement.explanation.strip_prefix(NO_COMMIT).map(str::to_owned);
    if let (true, Some(other)) = (is_silent, other) {
        statement.explanation = explain_no_commit(report, account, rules, history) + &other;
    }
    Some(statement)
}

fn explain_no_commit(
    report: &Report,
    account: Address,
    rules: &RoundRules,
    history: &TaskHistory,
) -> String {
    let (times, round) = (&report.times, report.scope.round.0);
    let mut why = match (times.commits_closed < times.commit_by, report.commits.len()) {
        (false, _) => "No commit arrived before the deadline, so ".to_owned(),
        (true, count) => {
            let commits = if count == 1 { "commit" } else { "commits" };
            format!("The round was complete with {count} {commits}, before the deadline, so ")
        }
    };
    let late = rules.staleness.rounds;
    if late == 0 || round >= rules.count {
        return why + "there is no pay. The bond is unchanged.";
    }
    why.push_str("this round pays nothing for the account. The bond is unchanged. ");
    let since = history.member(account).ongoing.map_or(round, |ongoing| ongoing.since.0);
    let last = since.saturating_add(late).min(rules.count);
    why.push_str(&match history.may_continue(rules.staleness, account, report.scope.round) {
        true => format!(
            "The update of the training that began in round {since} can still count, up to round {last}."
        ),
        false => format!(
            "The training that began in round {since} was too slow: its update counts no more. That is \
             a failure, after which the account may be left out of some rounds."
        ),
    });
    why
}

/// Errors of statements and balances.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    /// An error of the client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// An error of the ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A sum of amounts overflows: the reports are wrong.
    #[error("the sum of the reports' amounts is invalid: {0}")]
    Amount(#[from] AmountError),
}

impl StatementError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Client(error) => error.code(),
            Self::Ledger(error) => crate::ledger_code(error),
            Self::Amount(_) => "REPORT_INCONSISTENT",
        }
    }
}

/// The statements of `account` in the reported rounds of `rounds`; by default in all rounds.
///
/// # Errors
/// [`StatementError`].
pub fn statements(
    client: &Client,
    task: TaskId,
    account: Address,
    rounds: Option<RangeInclusive<u32>>,
) -> Result<Statements, StatementError> {
    let view = client.task(task)?;
    let reported = view.reported;
    let rounds = rounds.unwrap_or(1..=reported);
    let mut all = Statements {
        task,
        account,
        lines: Vec::new(),
        score_nano: 0,
        increment: 0,
        payout: Amount::ZERO,
        infrastructure: Amount::ZERO,
        debit: Amount::ZERO,
    };
    let rules = &view.spec.rounds;
    // A training may have begun before the first of these rounds.
    let first = if rules.staleness.admits_late() { &1 } else { rounds.start() };
    let mut history = TaskHistory::default();
    for round in *first.max(&1)..=*rounds.end().min(&reported) {
        let report = client.report(task, RoundNumber(round))?;
        let line = explained_statement(&report.body, account, rules, &history);
        history.add_round(rules.staleness, &report.body);
        if let Some(line) = line.filter(|_| rounds.contains(&round)) {
            let counted = report.body.score(account).filter(|score| !score.excluded);
            all.add(line, counted.map_or(0, |score| score.score_nano))?;
        }
    }
    Ok(all)
}

impl Statements {
    fn add(&mut self, line: Statement, score_nano: i64) -> Result<(), AmountError> {
        self.score_nano = self.score_nano.saturating_add(score_nano.into());
        self.increment = self.increment.saturating_add(line.increment);
        self.payout = self.payout.plus(line.payout)?;
        self.infrastructure = self.infrastructure.plus(line.infrastructure)?;
        self.debit = self.debit.plus(line.debit)?;
        self.lines.push(line);
        Ok(())
    }
}

/// The balance of an account in a market.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Balance {
    /// The account.
    pub account: Address,
    /// Amount in the wallet.
    pub wallet: Amount,
    /// Stake as a provider.
    pub stake: StakeState,
    /// Tasks in which the account has a bond, a pledge or pay.
    pub tasks: Vec<TaskBalance>,
}

/// The balance of an account in one task.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TaskBalance {
    /// The task.
    pub task: TaskId,
    /// Bond as a participant.
    pub bond: BondState,
    /// Whether the account's stake is pledged to the task.
    pub pledged: bool,
    /// Cumulative pay in final settlements; the claimed amount if there is no client.
    pub earned: Amount,
    /// Amount that is claimed already.
    pub claimed: Amount,
    /// Amount that can be claimed now.
    pub owed: Amount,
}

/// The balance of `account` in the given tasks, by default in all that the coordinator lists.
/// Without a client only the ledger is read, which does not record unclaimed pay.
///
/// # Errors
/// [`StatementError`].
pub fn balance(
    client: Option<&Client>,
    ledger: &dyn Ledger,
    account: Address,
    tasks: Option<&[TaskId]>,
) -> Result<Balance, StatementError> {
    let tasks: Vec<TaskId> = match (tasks, client) {
        (Some(tasks), _) => tasks.to_vec(),
        (None, Some(client)) => client.tasks()?.iter().map(|task| task.id).collect(),
        (None, None) => Vec::new(),
    };
    let mut lines = Vec::new();
    for task in tasks {
        let line = task_balance(client, ledger, account, task)?;
        let nothing = TaskBalance {
            task,
            bond: BondState::default(),
            pledged: false,
            earned: Amount::ZERO,
            claimed: Amount::ZERO,
            owed: Amount::ZERO,
        };
        if line != nothing {
            lines.push(line);
        }
    }
    Ok(Balance {
        account,
        wallet: ledger.balance(account)?,
        stake: ledger.stake_of(account)?,
        tasks: lines,
    })
}

fn task_balance(
    client: Option<&Client>,
    ledger: &dyn Ledger,
    account: Address,
    task: TaskId,
) -> Result<TaskBalance, StatementError> {
    let claimed = ledger.claimed_totals(task, account)?.paid;
    let proven = match client.map(|client| client.proof(task, account)) {
        Some(Ok(proof)) => proof.totals.paid,
        None => claimed,
        Some(Err(ClientError::Rejected(rejection)))
            if matches!(rejection.code, ErrorCode::NotYetPublic | ErrorCode::UnknownTask) =>
        {
            claimed
        }
        Some(Err(error)) => return Err(error.into()),
    };
    let earned = proven.max(claimed);
    Ok(TaskBalance {
        task,
        bond: ledger.bond_of(task, account)?,
        pledged: ledger.is_pledged(task, account)?,
        earned,
        claimed,
        owed: earned.minus(claimed)?,
    })
}

#[cfg(test)]
mod tests {
    use florin_protocol::{
        AbandonReason, Digest, Offer, ReportInputs, RoundOutcome, RoundScope, RoundTimes, TaskSpec,
        Timestamp, close_round,
    };

    use super::*;

    const SILENT: Address = Address([3; 20]);

    /// The report of a settled round in which one member has no commit; commits were due by 30.
    fn report(commits_closed: u64) -> Report {
        let spec = TaskSpec::example();
        let offer = Offer {
            scope: RoundScope { market: spec.market, task: spec.id(), round: RoundNumber::FIRST },
            base_model: spec.base_model,
            previous_report: Digest(spec.id().0),
            cohort: vec![SILENT],
            reasons: Vec::new(),
            candidates: Digest::default(),
            opened: Timestamp(0),
            commit_by: Timestamp(30),
            reveal_by: Timestamp(40),
            pool: Amount::ZERO,
        };
        let commits_closed = Timestamp(commits_closed);
        let times =
            RoundTimes { commit_by: Timestamp(30), commits_closed, ..RoundTimes::default() };
        let inputs = ReportInputs {
            spec: &spec,
            offer: &offer,
            previous_report: None,
            commits: &[
                (Address([1; 20]), Digest::default()),
                (Address([2; 20]), Digest::default()),
            ],
            entries: &[],
            times: &times,
            missing: &[(SILENT, MissingReason::NoCommit)],
            holdout_rows: &[],
            result: Err(AbandonReason::ValuationFailed),
            verified_work: &[],
        };
        Report { outcome: RoundOutcome::Settled, ..close_round(&inputs).unwrap() }
    }

    #[test]
    fn a_member_that_still_trains_reads_that_its_update_can_count_later() {
        let mut rules = TaskSpec::example().rounds;
        rules.count = 9;
        let mut why = |closed: u64, late: u32, count: u32| {
            (rules.staleness.rounds, rules.count) = (late, count);
            let history = TaskHistory::default();
            explained_statement(&report(closed), SILENT, &rules, &history).unwrap().explanation
        };
        assert_eq!(why(30, 0, 9), NO_COMMIT);
        let complete = "The round was complete with 2 commits, before the deadline, so ";
        assert_eq!(why(20, 0, 9), format!("{complete}there is no pay. The bond is unchanged."));
        for late in [why(20, 8, 9), why(30, 8, 9)] {
            assert!(late.contains("began in round 1 can still count, up to round 9"), "{late}");
            assert!(!late.contains("there is no pay"), "{late}");
        }
        assert!(why(20, 1, 9).contains("up to round 2"));
        assert!(why(20, 8, 4).contains("up to round 4"), "the task has no more");
        assert!(why(20, 8, 9).starts_with(complete));
        assert_eq!(why(30, 8, 1), NO_COMMIT, "no round follows");
    }

    #[test]
    fn a_member_whose_training_was_too_slow_reads_that_its_update_counts_no_more() {
        let mut rules = TaskSpec::example().rounds;
        (rules.count, rules.staleness.rounds) = (9, 2);
        let mut history = TaskHistory::default();
        let mut why = |round: u32| {
            let mut report = report(20);
            report.scope.round = RoundNumber(round);
            let found = explained_statement(&report, SILENT, &rules, &history).unwrap();
            history.add_round(rules.staleness, &report);
            found.explanation
        };
        for round in [3, 4] {
            assert!(why(round).contains("began in round 3 can still count, up to round 5"));
        }
        let last = why(5);
        assert!(
            last.contains("began in round 3 was too slow: its update counts no more"),
            "{last}"
        );
        // It was asked again.
        assert!(why(6).contains("began in round 6 can still count, up to round 8"));
    }

    #[test]
    fn other_explanations_are_those_of_the_report() {
        let mut rules = TaskSpec::example().rounds;
        (rules.count, rules.staleness.rounds) = (9, 8);
        let mut other = report(20);
        other.missing = vec![(SILENT, MissingReason::NoReveal)];
        assert_eq!(
            explained_statement(&other, SILENT, &rules, &TaskHistory::default()),
            Statement::from_report(&other, SILENT)
        );
        other.missing = Vec::new();
        assert_eq!(explained_statement(&other, SILENT, &rules, &TaskHistory::default()), None);
    }
}
