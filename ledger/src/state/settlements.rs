//! Rules of settlements: the coordinator posts them, the arbiter may cancel them within their
//! challenge window, they become final after it, and accounts claim by Merkle proof.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    Address, Amount, Canonical, Digest, Report, RoundNumber, SettlementId, TaskId, Timestamp,
    merkle,
};

use crate::api::{Claim, ClaimOutcome, PendingSettlement, PostOutcome, Refusal, Settlement, Terms};
use crate::entry::{Account, Cause, Movement, Pool};
use crate::limits::PENDING_MAX;
use crate::state::ApplyError;
use crate::state::draft::{Draft, Effects, RowChange};
use crate::state::rules::require_sender;
use crate::state::splits;
use crate::state::tables::{SettlementStage, TaskRecord};
use crate::transaction::TransactionOutcome;

pub(super) fn post(
    draft: &Draft<'_>,
    from: Address,
    settlement: &Settlement,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let (task, payout) = (settlement.task, settlement.payout);
    let record = draft.task(task)?;
    require_sender(from, record.terms.coordinator, "task's coordinator")?;
    let same = match draft.stage(task, payout) {
        None => None,
        Some(SettlementStage::Pending(pending)) => Some(pending.settlement == *settlement),
        Some(SettlementStage::Final { settlement: digest, .. }) => {
            Some(*digest == settlement.digest())
        }
    };
    match same {
        Some(true) => {
            return Ok(Effects::from_outcome(TransactionOutcome::Posted(
                PostOutcome::AlreadyPosted,
            )));
        }
        Some(false) => return Err(Refusal::ConflictingSettlement(payout).into()),
        None => {}
    }
    if record.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    if record.pending.len() >= PENDING_MAX {
        let what = format!("{PENDING_MAX} settlements of the task are pending already");
        return Err(Refusal::LimitExceeded(what).into());
    }
    check_settlement(draft, record, settlement, now)?;
    check_covered(draft, record, settlement)?;
    let mut record = record.clone();
    record.pending.push(payout);
    record.last_post = Some(now);
    let final_at = now.saturating_add_ms(record.terms.challenge_ms);
    let pending = PendingSettlement { settlement: *settlement, final_at };
    Ok(Effects {
        writes: vec![
            RowChange::Settlement((task, payout), Some(SettlementStage::Pending(pending))),
            RowChange::Task(task, record),
        ],
        task: Some(task),
        ..Effects::from_outcome(TransactionOutcome::Posted(PostOutcome::Posted))
    })
}

/// The round, root and totals of the latest settlement, pending or final, which a new settlement
/// continues.
fn latest_settlement(
    draft: &Draft<'_>,
    record: &TaskRecord,
) -> (Option<RoundNumber>, Digest, Amount, Amount) {
    let last = record.pending.last().and_then(|payout| draft.stage(record.terms.task, *payout));
    match last {
        Some(SettlementStage::Pending(PendingSettlement { settlement: s, .. })) => {
            (Some(s.round), s.root, s.data_total, s.infrastructure_total)
        }
        _ => (record.round, record.root, record.data_paid, record.infrastructure_paid),
    }
}

/// Refuses a settlement that does not continue the latest one or violates the terms.
fn check_settlement(
    draft: &Draft<'_>,
    record: &TaskRecord,
    settlement: &Settlement,
    now: Timestamp,
) -> Result<(), Refusal> {
    let Settlement { round, root, data_total, infrastructure_total, .. } = settlement;
    let terms = &record.terms;
    let wrong = |reason: String| Err(Refusal::InvalidSettlement { round: *round, reason });
    if now > terms.expires {
        return wrong(format!("the task expired at {}; the ledger's time is {now}", terms.expires));
    }
    if *round < RoundNumber::FIRST || round.0 > terms.rounds {
        return wrong(format!(
            "the task has the rounds {} to {}",
            RoundNumber::FIRST,
            terms.rounds
        ));
    }
    if settlement.payout != Report::settlement_id(settlement.task, *round) {
        return wrong(format!("payout id {} does not belong to this round", settlement.payout));
    }
    let (last, standing, data, infrastructure) = latest_settlement(draft, record);
    if let Some(last) = last.filter(|last| round <= last) {
        return wrong(format!("round {last} is settled already: rounds must increase"));
    }
    if settlement.previous_root != standing {
        return wrong(format!(
            "it continues root {}, but the latest settlement has root {standing}",
            settlement.previous_root
        ));
    }
    let pools = [
        ("data", *data_total, data, terms.data),
        ("infrastructure", *infrastructure_total, infrastructure, terms.infrastructure),
    ];
    for (name, total, before, deposit) in pools {
        if total < before {
            return wrong(format!("the {name} total decreases from {before} FLN to {total} FLN"));
        }
        let limit = terms.spendable_after(*round, deposit);
        if total > limit {
            return wrong(format!(
                "the {name} total {total} FLN exceeds {limit} FLN, the part of the deposit of \
                 {deposit} FLN that may be paid up to this round of {}",
                terms.rounds
            ));
        }
    }
    if let Err(reason) = check_score_pay(terms, settlement) {
        return wrong(reason);
    }
    if *root == Digest::default() && !(data_total.is_zero() && infrastructure_total.is_zero()) {
        return wrong("totals above zero with an empty root: they could not be claimed".to_owned());
    }
    Ok(())
}

/// Refuses pay for scores that exceeds the improvement of the model, and other pay for data that
/// exceeds the floor.
fn check_score_pay(terms: &Terms, settlement: &Settlement) -> Result<(), String> {
    let Settlement { round, data_total, score_pay_total, improvement_total_nano, .. } = settlement;
    let Ok(floor) = data_total.minus(*score_pay_total) else {
        return Err(format!(
            "{score_pay_total} FLN for scores exceed the data total {data_total} FLN"
        ));
    };
    let covered = terms.score_pay_max(*improvement_total_nano);
    if *score_pay_total > covered {
        return Err(format!(
            "{score_pay_total} FLN for scores exceed {covered} FLN, the most that the improvement of \
             {improvement_total_nano} nano-nats covers"
        ));
    }
    let limit = terms.floor_max(*round);
    if floor > limit {
        return Err(format!(
            "{floor} FLN for data without improvement exceed {limit} FLN, the floor up to this round"
        ));
    }
    Ok(())
}

/// Refuses a settlement after which more pay is posted and not final than the coordinator's bond
/// covers. A bond whose return was requested covers nothing.
fn check_covered(
    draft: &Draft<'_>,
    record: &TaskRecord,
    settlement: &Settlement,
) -> Result<(), ApplyError> {
    let (task, coordinator) = (record.terms.task, record.terms.coordinator);
    if !record.terms.bond_covers_pay(coordinator) {
        return Ok(());
    }
    let posted = settlement.data_total.plus(settlement.infrastructure_total)?;
    let smallest = posted.minus(record.data_paid.plus(record.infrastructure_paid)?)?;
    let offered = match draft.bond_release(task, coordinator) {
        Some(_) => Amount::ZERO,
        None => draft.account_balance(Account::Bond(task, coordinator)),
    };
    if offered < smallest {
        return Err(Refusal::TooSmall { offered, smallest }.into());
    }
    Ok(())
}

pub(super) fn cancel(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    payout: SettlementId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    require_sender(from, record.terms.arbiter, "task's arbiter")?;
    let final_at = match draft.stage(task, payout) {
        None => {
            let what = format!("there is no settlement with payout id {payout}");
            return Err(Refusal::NotFound(what).into());
        }
        Some(SettlementStage::Final { final_at, .. }) => {
            return Err(Refusal::WindowClosed(*final_at).into());
        }
        Some(SettlementStage::Pending(pending)) => pending.final_at,
    };
    if now > final_at {
        return Err(Refusal::WindowClosed(final_at).into());
    }
    let mut record = record.clone();
    let first = record.pending.iter().position(|pending| *pending == payout).ok_or_else(|| {
        ApplyError::Inconsistent(format!(
            "settlement {payout} is pending but not listed in its task"
        ))
    })?;
    let gone = record.pending.split_off(first);
    record.cancelled = true;
    let mut writes: Vec<RowChange> =
        gone.into_iter().map(|payout| RowChange::Settlement((task, payout), None)).collect();
    writes.push(RowChange::Task(task, record));
    Ok(Effects { writes, task: Some(task), ..Effects::from_outcome(TransactionOutcome::Done) })
}

pub(super) fn finalize(
    draft: &Draft<'_>,
    task: TaskId,
    now: Timestamp,
) -> Result<Effects, ApplyError> {
    let mut record = draft.task(task)?.clone();
    let (mut effects, count) = finalize_due(draft, task, &mut record, now)?;
    effects.outcome = TransactionOutcome::Finalised(count);
    if count > 0 {
        effects.writes.push(RowChange::Task(task, record));
    }
    Ok(effects)
}

/// Finalises the settlements whose window is over, oldest first. Changes `record`; the caller must
/// write it.
pub(super) fn finalize_due(
    draft: &Draft<'_>,
    task: TaskId,
    record: &mut TaskRecord,
    now: Timestamp,
) -> Result<(Effects, u64), ApplyError> {
    let mut effects =
        Effects { task: Some(task), ..Effects::from_outcome(TransactionOutcome::Done) };
    let mut count = 0usize;
    for payout in &record.pending {
        let Some(SettlementStage::Pending(pending)) = draft.stage(task, *payout) else {
            return Err(ApplyError::Inconsistent(format!(
                "pending settlement {payout} is missing"
            )));
        };
        if now <= pending.final_at {
            break;
        }
        let PendingSettlement { settlement, final_at } = pending;
        let pools = [
            (Pool::Data, settlement.data_total.minus(record.data_paid)?),
            (
                Pool::Infrastructure,
                settlement.infrastructure_total.minus(record.infrastructure_paid)?,
            ),
        ];
        for (pool, amount) in pools {
            let (from, to) = (Account::Escrow(task, pool), Account::Owed(task));
            effects.movements.push(Movement { from, to, amount, cause: Cause::Settled });
        }
        record.data_paid = settlement.data_total;
        record.infrastructure_paid = settlement.infrastructure_total;
        record.root = settlement.root;
        record.round = Some(settlement.round);
        record.finalised = record.finalised.saturating_add(1);
        let stage = SettlementStage::Final { settlement: settlement.digest(), final_at: *final_at };
        effects.writes.push(RowChange::Settlement((task, *payout), Some(stage)));
        count = count.saturating_add(1);
    }
    effects.movements.retain(|movement| !movement.amount.is_zero());
    record.pending.drain(..count);
    Ok((effects, u64::try_from(count).unwrap_or(u64::MAX)))
}

pub(super) fn claim(draft: &Draft<'_>, claim: &Claim) -> Result<Effects, ApplyError> {
    let Claim { task, account, totals, proof } = claim;
    let record = draft.task(*task)?;
    if !merkle::verify(record.root, *account, *totals, proof) {
        return Err(Refusal::InvalidProof.into());
    }
    let due = claim_increase(draft, record, claim)?;
    if due.is_zero() {
        return Err(Refusal::NothingToClaim.into());
    }
    let bond = Account::Bond(*task, *account);
    // A debit that exceeds the bond is not owed later: the whole debit counts as taken.
    let taken = due.debited.min(draft.account_balance(bond));
    let mut movements = splits::payments(draft, claim, due.paid)?;
    let to = Account::Treasury;
    movements.push(Movement { from: bond, to, amount: taken, cause: Cause::Debited });
    movements.retain(|movement| !movement.amount.is_zero());
    let mut record = record.clone();
    record.claimed = record.claimed.plus(due.paid)?;
    Ok(Effects {
        movements,
        writes: vec![
            RowChange::Claimed((*task, *account), *totals),
            RowChange::Task(*task, record),
        ],
        outcome: TransactionOutcome::Claimed(ClaimOutcome { paid: due.paid, taken }),
        task: Some(*task),
    })
}

/// The increase of a proven leaf over the earlier claims. Refuses only if the coordinator signed an
/// invalid root.
fn claim_increase(
    draft: &Draft<'_>,
    record: &TaskRecord,
    claim: &Claim,
) -> Result<ClaimTotals, Refusal> {
    let Claim { task, account, totals, .. } = claim;
    let round = record.round.unwrap_or(RoundNumber(0));
    let wrong = |reason: String| Refusal::InvalidSettlement { round, reason };
    let before = draft.claimed(*task, *account);
    let more = |name: &str, total: Amount, before: Amount| {
        total.minus(before).map_err(|_| {
            let what = format!("under its root the total {name} of {account} decreases");
            wrong(format!("{what} from {before} FLN to {total} FLN"))
        })
    };
    let paid = more("paid", totals.paid, before.paid)?;
    let debited = more("debited", totals.debited, before.debited)?;
    // A product that overflows is no limit.
    let finalised = record.finalised;
    let most = record.terms.debit_max.mul_div_down(finalised.into(), 1).ok();
    if let Some(most) = most.filter(|most| totals.debited > *most) {
        let what = format!("its root debits {account} by {} FLN in total", totals.debited);
        let limit = format!("the limit after {finalised} final settlements is {most} FLN");
        return Err(wrong(format!("{what}; {limit}")));
    }
    if paid > draft.account_balance(Account::Owed(*task)) {
        return Err(wrong(format!("under its root the pay of {account} exceeds the owed amount")));
    }
    Ok(ClaimTotals { paid, debited })
}
