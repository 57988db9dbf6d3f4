//! The coordinator's bond on the ledger: it covers the pay that is posted and not final, in a task
//! whose arbiter is another account. The ledger's state alone decides how much is deposited and
//! withdrawn, so that a crash repeats nothing.

use std::time::Duration;

use florin_engine::Event;
use florin_ledger::{BondState, Ledger, LedgerError, Refusal, Settlement, TaskState};
use florin_protocol::{Amount, AmountError, RoundNumber, TaskId, WalletSigner};

use super::settler::{JobProgress, REFUSED_RETRY_PAUSE, done};

/// The code in the log of a settlement that waits for tokens in the coordinator's wallet.
pub(super) const BOND_NOT_COVERED: &str = "BOND_NOT_COVERED";

/// A deposit into the bond of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deposit {
    /// The amount that the settlement lacks.
    least: Amount,
    /// The amount that covers later settlements too, if the wallet has it.
    most: Amount,
}

/// The deposit that a settlement needs. On top of its own pay that is not final it covers one
/// round's part of the budget for each pending settlement and one more, so that a task with many
/// settlements in their windows needs few deposits; at most all pay that is not final in the end.
fn deposit(
    state: &TaskState,
    bond: BondState,
    settlement: &Settlement,
) -> Result<Deposit, AmountError> {
    let terms = &state.terms;
    let paid = state.data_paid.plus(state.infrastructure_paid)?;
    let posted = settlement.data_total.plus(settlement.infrastructure_total)?;
    let needed = posted.minus(paid)?;
    let left = terms.data.plus(terms.infrastructure)?.minus(paid)?;
    let of_first_round = |pool| terms.spendable_after(RoundNumber::FIRST, pool);
    let per_round = of_first_round(terms.data).plus(of_first_round(terms.infrastructure))?;
    let rounds = (state.pending.len() as u128).saturating_add(1);
    let most = needed.plus(per_round.mul_div_down(rounds, 1)?)?.min(left);
    // A deposit also cancels a request for the bond's return, so that all of it counts again.
    let lacking = |target: Amount| target.minus(bond.amount).unwrap_or_default();
    Ok(Deposit { least: lacking(needed), most: lacking(most) })
}

/// Deposits what the coordinator's bond lacks to cover a settlement that the ledger has refused.
pub(super) fn deposit_for(
    settlement: &Settlement,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    let (task, round) = (settlement.task, settlement.round);
    let account = wallet.address();
    let Some(state) = ledger.task(task)? else {
        return Err(Refusal::UnknownTask(task).into());
    };
    let bond = ledger.bond_of(task, account)?;
    let wanted = deposit(&state, bond, settlement)
        .map_err(|error| LedgerError::Corrupt(format!("the totals of task {task}: {error}")))?;
    let balance = ledger.balance(account)?;
    if balance < wanted.least {
        tracing::error!(
            %task, %round, %account, %balance, lacking = %wanted.least, code = BOND_NOT_COVERED,
            "the settlement waits: the coordinator's bond must cover the pay that is posted and not \
             final, and its wallet has too little; transfer the lacking FLN to the account"
        );
        return Ok(JobProgress::Wait(REFUSED_RETRY_PAUSE));
    }
    let amount = wanted.most.min(balance);
    ledger.bond(wallet, task, amount)?;
    tracing::info!(%task, %round, %amount, "deposited a bond that covers the settlement");
    Ok(JobProgress::Wait(Duration::ZERO))
}

/// Withdraws the coordinator's bond from a closed task once the ledger returns it.
pub(super) fn withdraw(
    task: TaskId,
    ledger: &dyn Ledger,
    wallet: &dyn WalletSigner,
) -> Result<JobProgress, LedgerError> {
    let returned = || Ok(done(Event::BondReturned { task }));
    if ledger.bond_of(task, wallet.address())?.amount.is_zero() {
        return returned();
    }
    match ledger.withdraw_bond(wallet, task) {
        Ok(amount) => {
            tracing::info!(%task, %amount, "the ledger has returned the coordinator's bond");
            returned()
        }
        Err(LedgerError::Refused(Refusal::TooEarly { at, now })) => {
            let left = Duration::from_millis(at.ms_since(now).saturating_add(1));
            Ok(JobProgress::Wait(left.min(REFUSED_RETRY_PAUSE)))
        }
        Err(error) => Err(error),
    }
}
