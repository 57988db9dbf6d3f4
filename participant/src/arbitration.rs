//! The two powers of an arbiter on the ledger: cancel settlements, and slash deposits.

use florin_ledger::{
    Ledger, LedgerError, PendingSettlement, Refusal, SettlementStatus, Slash, TaskState, Terms,
    TxId,
};
use florin_protocol::{Address, Amount, Report, RoundNumber, SettlementId, TaskId, WalletSigner};

/// Why an arbiter's action is not possible. Nothing changed.
#[derive(Debug, thiserror::Error)]
pub enum ArbitrationError {
    /// Another account is the task's arbiter.
    #[error("the arbiter of task {task} is {arbiter}, not {account}: use its wallet")]
    NotArbiter {
        /// The task.
        task: TaskId,
        /// The task's arbiter.
        arbiter: Address,
        /// The account that asked.
        account: Address,
    },
    /// No settlement of this round or a later one is pending.
    #[error(
        "no settlement of round {round} or a later one of task {task} is pending: it was not \
         posted yet, or it is cancelled already"
    )]
    NothingPending {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The settlement can no longer be cancelled.
    #[error("the challenge window of round {round} of task {task} is over{}", describe_next(*next))]
    WindowClosed {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The first later round whose settlement can be cancelled.
        next: Option<RoundNumber>,
    },
    /// The account has no deposit that this arbiter can take.
    #[error(
        "{account} has no {} in task {task} that can still be slashed",
        deposit_name(*stake)
    )]
    NothingToSlash {
        /// The task.
        task: TaskId,
        /// The account.
        account: Address,
        /// True for a pledged stake, false for a bond.
        stake: bool,
    },
    /// The ledger.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl ArbitrationError {
    /// The stable error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NotArbiter { .. } => "NOT_ARBITER",
            Self::NothingPending { .. } => "NOTHING_PENDING",
            Self::WindowClosed { .. } => "WINDOW_CLOSED",
            Self::NothingToSlash { .. } => "NOTHING_TO_SLASH",
            Self::Ledger(error) => crate::ledger_code(error),
        }
    }
}

/// The settlements that [`cancel_settlement`] would cancel: those of `round` and of all later
/// rounds, the earliest first; at least one.
///
/// # Errors
/// [`ArbitrationError`].
pub fn cancellable_settlements(
    ledger: &dyn Ledger,
    arbiter: Address,
    task: TaskId,
    round: RoundNumber,
) -> Result<Vec<PendingSettlement>, ArbitrationError> {
    let state = task_of_arbiter(ledger, arbiter, task)?;
    let mut later = state.pending;
    later.retain(|pending| pending.settlement.round >= round);
    let now = ledger.now()?;
    let Some(first) = later.first() else {
        return Err(match is_final(ledger, task, round)? {
            true => ArbitrationError::WindowClosed { task, round, next: None },
            false => ArbitrationError::NothingPending { task, round },
        });
    };
    if now > first.final_at {
        let open = later.iter().find(|pending| now <= pending.final_at);
        let next = open.map(|pending| pending.settlement.round);
        let round = first.settlement.round;
        return Err(ArbitrationError::WindowClosed { task, round, next });
    }
    Ok(later)
}

/// Cancels a pending settlement, and all later ones of its task. `by` must be the task's arbiter.
///
/// # Errors
/// [`ArbitrationError`]. After [`LedgerError::Unavailable`] the settlement may be cancelled or not:
/// read the ledger again.
pub fn cancel_settlement(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    settlement: SettlementOfRound,
) -> Result<TxId, ArbitrationError> {
    let SettlementOfRound { task, round, .. } = settlement;
    let refused = match ledger.cancel(by, task, settlement.id) {
        Ok(transaction) => return Ok(transaction),
        Err(error) => error,
    };
    Err(match refused {
        LedgerError::Refused(Refusal::NotFound(_)) => {
            ArbitrationError::NothingPending { task, round }
        }
        LedgerError::Refused(Refusal::WindowClosed(_)) => {
            ArbitrationError::WindowClosed { task, round, next: None }
        }
        error => error.into(),
    })
}

/// Names a settlement on the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettlementOfRound {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The id of the settlement.
    pub id: SettlementId,
}

impl From<&PendingSettlement> for SettlementOfRound {
    fn from(pending: &PendingSettlement) -> Self {
        let settlement = &pending.settlement;
        Self { task: settlement.task, round: settlement.round, id: settlement.payout }
    }
}

/// The most that [`slash_deposit`] can take of the deposit; not zero. Less may be left, because the
/// ledger does not show how much was slashed already.
///
/// # Errors
/// [`ArbitrationError`].
pub fn slashable_deposit(
    ledger: &dyn Ledger,
    arbiter: Address,
    slash: &Slash,
) -> Result<Amount, ArbitrationError> {
    let &Slash { task, account, stake, .. } = slash;
    let state = task_of_arbiter(ledger, arbiter, task)?;
    let Terms { coordinator, arbiter, .. } = state.terms;
    // The bond of a coordinator stands for what it posted, until it is withdrawn.
    let outlives_close = !stake && account == coordinator && coordinator != arbiter;
    if state.closed && !outlives_close {
        return Err(LedgerError::from(Refusal::TaskClosed(task)).into());
    }
    let deposit = match stake {
        false if outlives_close => ledger.bond_of(task, account)?.amount,
        false => ledger.bond_of(task, account)?.amount.min(state.terms.bond_min),
        true if ledger.is_pledged(task, account)? => {
            ledger.stake_of(account)?.amount.min(state.terms.stake_min)
        }
        true => Amount::ZERO,
    };
    match deposit.is_zero() {
        true => Err(ArbitrationError::NothingToSlash { task, account, stake }),
        false => Ok(deposit),
    }
}

/// Moves part of a bond or of a pledged stake to the treasury, at most the amount that is left.
/// Returns the amount taken. `by` must be the task's arbiter.
///
/// # Errors
/// [`ArbitrationError`].
pub fn slash_deposit(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    slash: &Slash,
) -> Result<Amount, ArbitrationError> {
    let &Slash { task, account, stake, .. } = slash;
    ledger.slash(by, slash).map_err(|error| match error {
        LedgerError::Refused(Refusal::NotFound(_)) => {
            ArbitrationError::NothingToSlash { task, account, stake }
        }
        error => error.into(),
    })
}

/// The state of a task whose arbiter is `account`.
pub(crate) fn task_of_arbiter(
    ledger: &dyn Ledger,
    account: Address,
    task: TaskId,
) -> Result<TaskState, ArbitrationError> {
    let unknown = || LedgerError::from(Refusal::UnknownTask(task));
    let state = ledger.task(task)?.ok_or_else(unknown)?;
    let arbiter = state.terms.arbiter;
    match arbiter == account {
        true => Ok(state),
        false => Err(ArbitrationError::NotArbiter { task, arbiter, account }),
    }
}

fn describe_next(next: Option<RoundNumber>) -> String {
    next.map_or_else(String::new, |next| {
        format!(": the first round that can still be cancelled is {next} (--round {next})")
    })
}

const fn deposit_name(stake: bool) -> &'static str {
    if stake { "pledged stake" } else { "bond" }
}

fn is_final(ledger: &dyn Ledger, task: TaskId, round: RoundNumber) -> Result<bool, LedgerError> {
    let status = ledger.settlement_status(task, Report::settlement_id(task, round))?;
    Ok(status == SettlementStatus::Final)
}
