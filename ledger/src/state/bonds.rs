//! Rules of bonds and stakes: deposit, return and slashing.

use florin_protocol::{Address, Amount, TaskId, Timestamp};

use crate::api::{Refusal, Slash};
use crate::entry::{Account, Cause, Movement};
use crate::limits::PLEDGES_MAX;
use crate::state::ApplyError;
use crate::state::draft::{Draft, Effects, RowChange};
use crate::state::rules::{require_balance, require_nonzero, require_sender};
use crate::state::tables::{StakeRecord, TaskRecord};
use crate::transaction::TransactionOutcome;

pub(super) fn bond(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    amount: Amount,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    if record.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    require_balance(draft, from, amount)?;
    let account = Account::Bond(task, from);
    let offered = draft.account_balance(account).plus(amount)?;
    // The minimum is that of participants: the coordinator deposits as much as its posts need.
    let is_cover = record.terms.bond_covers_pay(from);
    let smallest = if is_cover { Amount::ZERO } else { record.terms.bond_min };
    if offered < smallest {
        return Err(Refusal::TooSmall { offered, smallest }.into());
    }
    let mut effects =
        Effects { task: Some(task), ..Effects::from_outcome(TransactionOutcome::Done) };
    if !amount.is_zero() {
        let from = Account::Wallet(from);
        effects.movements.push(Movement { from, to: account, amount, cause: Cause::Bonded });
    }
    if draft.bond_release(task, from).is_some() {
        effects.writes.push(RowChange::Bond((task, from), None));
    }
    Ok(effects)
}

pub(super) fn unbond(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    if draft.account_balance(Account::Bond(task, from)).is_zero() {
        return Err(Refusal::NotFound(format!("{from} has no bond in task {task}")).into());
    }
    let mut effects = Effects::from_outcome(TransactionOutcome::Done);
    // A repeated request does not change the moment.
    if draft.bond_release(task, from).is_none() {
        let release = now.saturating_add_ms(record.terms.unbond_ms);
        effects.writes.push(RowChange::Bond((task, from), Some(release)));
    }
    Ok(effects)
}

pub(super) fn withdraw_bond(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    let account = Account::Bond(task, from);
    let amount = draft.account_balance(account);
    if amount.is_zero() {
        return Err(Refusal::NotFound(format!("{from} has no bond in task {task}")).into());
    }
    let release = draft.bond_release(task, from);
    if record.terms.bond_covers_pay(from) && !record.closed {
        let what = format!("task {task} is open: its coordinator's bond returns after the close");
        return Err(Refusal::NotFound(what).into());
    }
    if release.is_none() && !record.closed {
        let what = format!("the return of {from}'s bond was not requested: unbond first");
        return Err(Refusal::NotFound(what).into());
    }
    match withdrawable_at(record, release) {
        Some(at) if now < at => return Err(Refusal::TooEarly { at, now }.into()),
        _ => {}
    }
    let to = Account::Wallet(from);
    Ok(Effects {
        movements: vec![Movement { from: account, to, amount, cause: Cause::BondReturned }],
        writes: vec![RowChange::Bond((task, from), None)],
        outcome: TransactionOutcome::Moved(amount),
        task: Some(task),
    })
}

/// The moment from which a bond can be withdrawn; `None` for at once. It limits the bond's owner
/// and the accounts that prove a debit alike: every settlement that affects the bond was posted
/// before `release`, is final one window later, and can be proven for at least one more window. A
/// later post has no effect; otherwise a coordinator could hold bonds for ever.
fn withdrawable_at(record: &TaskRecord, release: Option<Timestamp>) -> Option<Timestamp> {
    let proven =
        |post: Timestamp| post.saturating_add_ms(record.terms.challenge_ms.saturating_mul(2));
    match release {
        Some(release) if !record.closed => {
            let proven = record.last_post.map(|post| proven(post.min(release)));
            Some(proven.map_or(release, |proven| proven.max(release)))
        }
        _ => record.last_post.map(proven),
    }
}

pub(super) fn stake(
    draft: &Draft<'_>,
    from: Address,
    amount: Amount,
) -> Result<Effects, ApplyError> {
    require_nonzero(amount, "stake")?;
    require_balance(draft, from, amount)?;
    let pledges = draft.pledges(from).cloned().unwrap_or_default();
    Ok(Effects {
        movements: vec![Movement {
            from: Account::Wallet(from),
            to: Account::Stake(from),
            amount,
            cause: Cause::Staked,
        }],
        writes: vec![RowChange::Stake(from, Some(StakeRecord { release: None, ..pledges }))],
        ..Effects::from_outcome(TransactionOutcome::Done)
    })
}

pub(super) fn pledge(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    if record.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    let mut pledges = draft.pledges(from).cloned().unwrap_or_default();
    if pledges.slashed.contains_key(&task) {
        return Ok(Effects::from_outcome(TransactionOutcome::Done));
    }
    // Applies even if the task requires no stake: pledges of nothing would be rows that cost
    // nothing.
    let smallest = record.terms.stake_min.max(Amount::from_units(1));
    let offered = draft.account_balance(Account::Stake(from));
    if offered < smallest {
        return Err(Refusal::TooSmall { offered, smallest }.into());
    }
    // Closed tasks no longer restrict the stake: their pledges are removed.
    pledges.slashed.retain(|task, _| draft.task(*task).is_ok_and(|record| !record.closed));
    if pledges.slashed.len() >= PLEDGES_MAX {
        let what = format!("a stake can be pledged to at most {PLEDGES_MAX} open tasks at a time");
        return Err(Refusal::LimitExceeded(what).into());
    }
    pledges.slashed.insert(task, Amount::ZERO);
    // The new task's arbiter must be able to slash the stake: a pending unstaking is cancelled.
    pledges.release = None;
    let writes = vec![RowChange::Stake(from, Some(pledges))];
    Ok(Effects { writes, ..Effects::from_outcome(TransactionOutcome::Done) })
}

fn no_stake(owner: Address) -> Refusal {
    Refusal::NotFound(format!("{owner} has no stake"))
}

pub(super) fn unstake(
    draft: &Draft<'_>,
    from: Address,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    if draft.account_balance(Account::Stake(from)).is_zero() {
        return Err(no_stake(from).into());
    }
    let mut pledges = draft.pledges(from).cloned().unwrap_or_default();
    let mut effects = Effects::from_outcome(TransactionOutcome::Done);
    if pledges.release.is_none() {
        let open = pledges.slashed.keys().filter_map(|task| draft.task(*task).ok());
        let delays = open.filter(|record| !record.closed).map(|record| record.terms.unbond_ms);
        pledges.release = Some(now.saturating_add_ms(delays.max().unwrap_or_default()));
        effects.writes.push(RowChange::Stake(from, Some(pledges)));
    }
    Ok(effects)
}

pub(super) fn withdraw_stake(
    draft: &Draft<'_>,
    from: Address,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let account = Account::Stake(from);
    let amount = draft.account_balance(account);
    if amount.is_zero() {
        return Err(no_stake(from).into());
    }
    let release = draft.pledges(from).and_then(|pledges| pledges.release).ok_or_else(|| {
        Refusal::NotFound(format!("the return of {from}'s stake was not requested: unstake first"))
    })?;
    if now < release {
        return Err(Refusal::TooEarly { at: release, now }.into());
    }
    let to = Account::Wallet(from);
    Ok(Effects {
        movements: vec![Movement { from: account, to, amount, cause: Cause::StakeReturned }],
        // Nothing is left to pledge: a provider that stakes again must pledge again.
        writes: vec![RowChange::Stake(from, None)],
        ..Effects::from_outcome(TransactionOutcome::Moved(amount))
    })
}

pub(super) fn slash(
    draft: &Draft<'_>,
    from: Address,
    slash: &Slash,
) -> Result<Effects, ApplyError> {
    let (task, account) = (slash.task, slash.account);
    let record = draft.task(task)?;
    require_sender(from, record.terms.arbiter, "task's arbiter")?;
    // The close ends the risk of slashes, except for the coordinator: its bond stands for the pay
    // that it posted until it is withdrawn.
    let is_cover = !slash.stake && record.terms.bond_covers_pay(account);
    if record.closed && !is_cover {
        return Err(Refusal::TaskClosed(task).into());
    }
    require_nonzero(slash.amount, "slash")?;
    let mut effects =
        Effects { task: Some(task), ..Effects::from_outcome(TransactionOutcome::Done) };
    let (source, amount) = if slash.stake {
        let missing =
            || Refusal::NotFound(format!("{account} has no stake pledged to task {task}"));
        let mut pledges = draft.pledges(account).cloned().ok_or_else(missing)?;
        let before = *pledges.slashed.get(&task).ok_or_else(missing)?;
        let source = Account::Stake(account);
        let room = record.terms.stake_min.minus(before)?;
        let amount = slash.amount.min(draft.account_balance(source)).min(room);
        let after = before.plus(amount)?;
        if after == record.terms.stake_min {
            // The pledge is used up: to continue, the provider must pledge again, with a sufficient
            // stake.
            pledges.slashed.remove(&task);
        } else {
            pledges.slashed.insert(task, after);
        }
        effects.writes.push(RowChange::Stake(account, Some(pledges)));
        (source, amount)
    } else {
        let source = Account::Bond(task, account);
        let amount = slash.amount.min(draft.account_balance(source));
        if is_cover {
            (source, amount)
        } else {
            // All slashes of an account in a task together: a bond that returned and was deposited
            // again has no new limit.
            let before = draft.slashed_bond(task, account);
            let amount = amount.min(record.terms.bond_min.minus(before)?);
            effects.writes.push(RowChange::Slashed((task, account), before.plus(amount)?));
            (source, amount)
        }
    };
    if amount.is_zero() {
        let what = format!("nothing is left to slash from {account} in task {task}");
        return Err(Refusal::NotFound(what).into());
    }
    let to = Account::Treasury;
    effects.movements.push(Movement { from: source, to, amount, cause: Cause::Slashed });
    effects.outcome = TransactionOutcome::Moved(amount);
    Ok(effects)
}
