//! Rules of splits: an account divides its pay in a task once, before it takes part, and its claims
//! pay the members.

use florin_protocol::{Address, Amount, TaskId};

use crate::api::{Claim, MemberShare, Refusal};
use crate::entry::{Account, Cause, Movement};
use crate::split::{check_split, member_payments};
use crate::state::ApplyError;
use crate::state::draft::{Draft, Effects, RowChange};
use crate::transaction::TransactionOutcome;

pub(super) fn set_split(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    members: &[MemberShare],
) -> Result<Effects, ApplyError> {
    if draft.task(task)?.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    check_split(members)?;
    let mut effects = Effects::from_outcome(TransactionOutcome::Done);
    let held = draft.split(task, from);
    if held == members {
        return Ok(effects);
    }
    if !held.is_empty() {
        return Err(Refusal::SplitFixed { task, account: from }.into());
    }
    // Before the first claim, so that a member's total follows from the account's claimed total.
    let bonded = !draft.account_balance(Account::Bond(task, from)).is_zero();
    if bonded || !draft.claimed(task, from).is_zero() {
        return Err(Refusal::SplitTooLate { task, account: from }.into());
    }
    effects.writes.push(RowChange::Split((task, from), members.to_vec()));
    Ok(effects)
}

/// The payments of a claim whose pay increases by `paid`: to the account, or to the members of its
/// split, which receive the same sum. Amounts may be zero.
pub(super) fn payments(
    draft: &Draft<'_>,
    claim: &Claim,
    paid: Amount,
) -> Result<Vec<Movement>, ApplyError> {
    let Claim { task, account, totals, .. } = claim;
    let pay = |to: Address, amount: Amount| {
        let (from, to) = (Account::Owed(*task), Account::Wallet(to));
        Movement { from, to, amount, cause: Cause::Claimed }
    };
    let members = draft.split(*task, *account);
    if members.is_empty() {
        return Ok(vec![pay(*account, paid)]);
    }
    let before = draft.claimed(*task, *account).paid;
    let amounts = member_payments(members, before, totals.paid)?;
    let sum = Amount::total(amounts.iter().copied())?;
    if sum != paid {
        return Err(ApplyError::Inconsistent(format!(
            "the members of {account} would receive {sum} FLN of its {paid} FLN in task {task}"
        )));
    }
    Ok(members.iter().zip(amounts).map(|(each, amount)| pay(each.member, amount)).collect())
}
