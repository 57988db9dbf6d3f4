//! An account's statements and balances.

use std::ops::RangeInclusive;

use florin_ledger::{BondState, Ledger, LedgerError, StakeState};
use florin_protocol::{Address, Amount, AmountError, ErrorCode, RoundNumber, Statement, TaskId};

use crate::client::{Client, ClientError};

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
    let reported = client.task(task)?.reported;
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
    for round in *rounds.start().max(&1)..=*rounds.end().min(&reported) {
        let report = client.report(task, RoundNumber(round))?;
        if let Some(line) = Statement::from_report(&report.body, account) {
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
