//! Rules of tasks: opening a task locks its budget, closing it refunds the rest.

use florin_protocol::limits::{PHASE_MS_MAX, TASK_MS_MAX};
use florin_protocol::{
    Address, ChainId, DATA_PER_ROUND_MIN, Digest, Micro, RoundNumber, TaskId, Timestamp,
    verify_wallet,
};

use crate::api::{Objection, Refusal, Terms};
use crate::entry::{Account, Cause, Movement, Pool};
use crate::state::ApplyError;
use crate::state::draft::{Draft, Effects, RowChange};
use crate::state::rules::{ZERO_ADDRESS, require_balance, require_sender};
use crate::state::settlements::finalize_due;
use crate::state::tables::TaskRecord;
use crate::transaction::TransactionOutcome;

pub(super) fn open(
    draft: &Draft<'_>,
    from: Address,
    terms: &Terms,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    require_sender(from, terms.buyer, "buyer")?;
    let task = terms.task;
    if draft.task(task).is_ok() {
        return Err(Refusal::TaskExists(task).into());
    }
    check_terms(terms, now)?;
    let deposit = terms.data.plus(terms.infrastructure).map_err(|_| {
        Refusal::LimitExceeded("the sum of the two pools exceeds the largest amount".to_owned())
    })?;
    require_balance(draft, from, deposit)?;
    let pools = [(Pool::Data, terms.data), (Pool::Infrastructure, terms.infrastructure)];
    let movements =
        pools.into_iter().filter(|(_, amount)| !amount.is_zero()).map(|(pool, amount)| Movement {
            from: Account::Wallet(from),
            to: Account::Escrow(task, pool),
            amount,
            cause: Cause::Deposited,
        });
    let record = TaskRecord {
        terms: terms.clone(),
        data_paid: florin_protocol::Amount::ZERO,
        infrastructure_paid: florin_protocol::Amount::ZERO,
        refunded: florin_protocol::Amount::ZERO,
        claimed: florin_protocol::Amount::ZERO,
        root: Digest::default(),
        round: None,
        finalised: 0,
        pending: Vec::new(),
        last_post: None,
        cancelled: false,
        closes_at: None,
        closed: false,
    };
    Ok(Effects {
        movements: movements.collect(),
        writes: vec![RowChange::Task(task, record)],
        outcome: TransactionOutcome::Done,
        task: Some(task),
    })
}

/// Refuses terms that are invalid in themselves, or that last too long.
fn check_terms(terms: &Terms, now: Timestamp) -> Result<(), Refusal> {
    let invalid = [
        (
            terms.arbiter == terms.buyer,
            "the buyer is the arbiter: it could cancel every settlement",
        ),
        (terms.arbiter == ZERO_ADDRESS, "the arbiter is the zero address: name an account"),
        (terms.rounds == 0, "rounds = 0: a task has at least one round"),
        (
            terms.challenge_ms == 0,
            "challenge_ms = 0: without a challenge window no settlement could be cancelled",
        ),
        (terms.floor_share > Micro::ONE, "floor_share: the maximum is 1"),
    ];
    if let Some((_, what)) = invalid.into_iter().find(|(is_wrong, _)| *is_wrong) {
        return Err(Refusal::InvalidArgument(what.to_owned()));
    }
    // A smaller pool would not pay for one round, and would make tasks a cheap means of filling the
    // chain.
    if terms.data < DATA_PER_ROUND_MIN {
        return Err(Refusal::TooSmall { offered: terms.data, smallest: DATA_PER_ROUND_MIN });
    }
    for (name, ms) in [("challenge_ms", terms.challenge_ms), ("unbond_ms", terms.unbond_ms)] {
        if ms > PHASE_MS_MAX {
            let what = format!("{name} = {ms}: the maximum is {PHASE_MS_MAX} ms (30 days)");
            return Err(Refusal::LimitExceeded(what));
        }
    }
    let latest = now.saturating_add_ms(TASK_MS_MAX);
    if terms.expires > latest {
        let what =
            format!("expires = {}: the latest is {latest}, 366 days from now", terms.expires);
        return Err(Refusal::LimitExceeded(what));
    }
    Ok(())
}

pub(super) fn close(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    if record.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    let mut settled = record.clone();
    let (mut effects, _) = finalize_due(draft, task, &mut settled, now)?;
    if !settled.pending.is_empty() {
        let waiting = u64::try_from(settled.pending.len()).unwrap_or(u64::MAX);
        return Err(Refusal::SettlementsPending(waiting).into());
    }
    let at = closable_at(&settled, from);
    if now < at {
        return Err(Refusal::TooEarly { at, now }.into());
    }
    let mut record = settled;
    let left = [
        (Pool::Data, record.terms.data.minus(record.data_paid)?),
        (Pool::Infrastructure, record.terms.infrastructure.minus(record.infrastructure_paid)?),
    ];
    for (pool, amount) in left {
        record.refunded = record.refunded.plus(amount)?;
        if !amount.is_zero() {
            effects.movements.push(Movement {
                from: Account::Escrow(task, pool),
                to: Account::Wallet(record.terms.buyer),
                amount,
                cause: Cause::Refunded,
            });
        }
    }
    record.closed = true;
    effects.outcome = TransactionOutcome::Moved(record.refunded);
    effects.writes.push(RowChange::Task(task, record));
    Ok(effects)
}

/// The moment from which an account may close a task.
fn closable_at(record: &TaskRecord, from: Address) -> Timestamp {
    let terms = &record.terms;
    let last_is_final = record.round.is_some_and(|round| round.0 >= terms.rounds);
    let needs_no_announcement =
        last_is_final || record.cancelled || terms.arbiter == terms.coordinator;
    if from == terms.coordinator && needs_no_announcement {
        return Timestamp::default();
    }
    let expired = terms.expires.saturating_add_ms(1);
    record.announced_close().map_or(expired, |at| at.min(expired))
}

pub(super) fn announce_close(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    require_sender(from, record.terms.coordinator, "task's coordinator")?;
    require_settled(record)?;
    let mut effects = Effects::from_outcome(TransactionOutcome::Done);
    if record.announced_close().is_none() {
        let mut record = record.clone();
        record.closes_at = Some(now.saturating_add_ms(record.terms.challenge_ms));
        effects.writes.push(RowChange::Task(task, record));
    }
    Ok(effects)
}

pub(super) fn object(
    draft: &Draft<'_>,
    objection: &Objection,
    chain: ChainId,
) -> Result<Effects, ApplyError> {
    let Objection { receipt, signature } = objection;
    let task = receipt.task;
    let record = draft.task(task)?;
    require_settled(record)?;
    if record.announced_close().is_none() {
        return Err(Refusal::NotFound(format!("no close of task {task} is announced")).into());
    }
    let settled = record.round.unwrap_or(RoundNumber(0));
    if receipt.round <= settled {
        let what = format!("round {} is settled: the last final one is {settled}", receipt.round);
        return Err(Refusal::InvalidArgument(what).into());
    }
    let coordinator = record.terms.coordinator;
    verify_wallet(receipt.signing_hash(chain), signature, coordinator)
        .map_err(|_| Refusal::InvalidSignature)?;
    let mut record = record.clone();
    record.closes_at = None;
    let bond = Account::Bond(task, coordinator);
    let amount = draft.account_balance(bond);
    let mut effects = Effects::from_outcome(TransactionOutcome::Moved(amount));
    effects.task = Some(task);
    if !amount.is_zero() {
        let (to, cause) = (Account::Treasury, Cause::Slashed);
        effects.movements.push(Movement { from: bond, to, amount, cause });
    }
    effects.writes.push(RowChange::Task(task, record));
    Ok(effects)
}

/// Refuses a closed task, and one with a settlement that is not final.
fn require_settled(record: &TaskRecord) -> Result<(), Refusal> {
    if record.closed {
        return Err(Refusal::TaskClosed(record.terms.task));
    }
    match record.pending.len() {
        0 => Ok(()),
        waiting => Err(Refusal::SettlementsPending(u64::try_from(waiting).unwrap_or(u64::MAX))),
    }
}
