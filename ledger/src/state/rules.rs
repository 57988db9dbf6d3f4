//! Dispatch of an action to its rule, and the checks that several rules share.

use florin_protocol::{Address, Amount, ChainId, Timestamp};

use crate::action::Action;
use crate::api::Refusal;
use crate::entry::{Account, Cause, Movement};
use crate::state::draft::{Draft, Effects};
use crate::state::{ApplyError, bonds, settlements, splits, tasks};
use crate::transaction::TransactionOutcome;

/// No private key is known for this address, and common ERC-20 implementations refuse transfers to
/// it.
pub(super) const ZERO_ADDRESS: Address = Address([0; 20]);

/// Computes the effects of an action, or refuses it. Changes nothing.
pub(super) fn decide(
    draft: &Draft<'_>,
    from: Address,
    action: &Action,
    (chain, now): (ChainId, Timestamp),
) -> Result<Effects, ApplyError> {
    match action {
        Action::Transfer { to, amount } => transfer(draft, from, *to, *amount),
        Action::OpenTask(terms) => tasks::open(draft, from, terms, now),
        Action::Bond { task, amount } => bonds::bond(draft, from, *task, *amount),
        Action::Unbond { task } => bonds::unbond(draft, from, *task, now),
        Action::WithdrawBond { task } => bonds::withdraw_bond(draft, from, *task, now),
        Action::Stake { amount } => bonds::stake(draft, from, *amount),
        Action::Pledge { task } => bonds::pledge(draft, from, *task),
        Action::Unstake => bonds::unstake(draft, from, now),
        Action::WithdrawStake => bonds::withdraw_stake(draft, from, now),
        Action::Post(settlement) => settlements::post(draft, from, settlement, now),
        Action::Cancel { task, payout } => settlements::cancel(draft, from, *task, *payout, now),
        Action::Finalize { task } => settlements::finalize(draft, *task, now),
        Action::Claim(claim) => settlements::claim(draft, claim),
        Action::Close { task } => tasks::close(draft, from, *task, now),
        Action::Slash(slash) => bonds::slash(draft, from, slash),
        Action::AnnounceClose { task } => tasks::announce_close(draft, from, *task, now),
        Action::Object(objection) => tasks::object(draft, objection, chain),
        Action::SetSplit { task, members } => splits::set_split(draft, from, *task, members),
    }
}

fn transfer(
    draft: &Draft<'_>,
    from: Address,
    to: Address,
    amount: Amount,
) -> Result<Effects, ApplyError> {
    if from == to {
        let what = format!("{from} cannot transfer to itself: name another account");
        return Err(Refusal::InvalidArgument(what).into());
    }
    require_nonzero(amount, "transfer")?;
    require_balance(draft, from, amount)?;
    if to == ZERO_ADDRESS {
        let what = "tokens sent to the zero address are lost: name another account";
        return Err(Refusal::InvalidArgument(what.to_owned()).into());
    }
    let (from, to) = (Account::Wallet(from), Account::Wallet(to));
    let movement = Movement { from, to, amount, cause: Cause::Transferred };
    Ok(Effects { movements: vec![movement], ..Effects::from_outcome(TransactionOutcome::Done) })
}

/// Refuses an amount of zero.
pub(super) fn require_nonzero(amount: Amount, what: &str) -> Result<(), Refusal> {
    if amount.is_zero() {
        return Err(Refusal::InvalidArgument(format!(
            "a {what} of 0 FLN: name an amount above zero"
        )));
    }
    Ok(())
}

/// Refuses an amount above the wallet's balance.
pub(super) fn require_balance(
    draft: &Draft<'_>,
    account: Address,
    needed: Amount,
) -> Result<(), Refusal> {
    let available = draft.account_balance(Account::Wallet(account));
    if available < needed {
        return Err(Refusal::Insufficient { account, available, needed });
    }
    Ok(())
}

/// Refuses every sender but one.
pub(super) fn require_sender(sender: Address, allowed: Address, role: &str) -> Result<(), Refusal> {
    if sender != allowed {
        return Err(Refusal::Unauthorized { sender, allowed: format!("the {role} {allowed}") });
    }
    Ok(())
}
