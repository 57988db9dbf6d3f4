//! Settlements: posted by the coordinator, cancelled by the arbiter within their window, final after it, claimed by
//! proof.

use std::collections::BTreeMap;

use florin_protocol::{
    Address, Amount, Canonical, Digest, PayoutId, Report, Round, TaskId, Tick, merkle,
};

use crate::api::{Claim, PendingSettlement, Posted, Refusal, Settlement};
use crate::entry::{Account, Cause, Movement, Pool};
use crate::limits::{DEBITS_MAX, PENDING_MAX};
use crate::state::ApplyError;
use crate::state::draft::{Draft, Effects, Write};
use crate::state::rules::only;
use crate::state::tables::{Stage, TaskRecord};
use crate::transaction::Outcome;

pub(super) fn post(
    draft: &Draft<'_>,
    from: Address,
    settlement: &Settlement,
    now: Tick,
) -> Result<Effects, ApplyError> {
    let (task, payout) = (settlement.task, settlement.payout);
    let record = draft.task(task)?;
    only(from, record.terms.coordinator, "task's coordinator")?;
    let same = match draft.stage(task, payout) {
        None => None,
        Some(Stage::Pending(pending)) => Some(pending.settlement == *settlement),
        Some(Stage::Final { settlement: digest, .. }) => Some(*digest == settlement.digest()),
    };
    match same {
        Some(true) => return Ok(Effects::nothing(Outcome::Posted(Posted::Already))),
        Some(false) => return Err(Refusal::ConflictingSettlement(payout).into()),
        None => {}
    }
    if record.closed {
        return Err(Refusal::TaskClosed(task).into());
    }
    if record.pending.len() >= PENDING_MAX {
        let what = format!("{PENDING_MAX} settlements of the task wait for their windows already");
        return Err(Refusal::Limit(what).into());
    }
    check_settlement(draft, record, settlement, now)?;
    let mut record = record.clone();
    record.pending.push(payout);
    let final_at = now.after_ms(record.terms.challenge_ms);
    let pending = PendingSettlement { settlement: settlement.clone(), final_at };
    Ok(Effects {
        writes: vec![
            Write::Settlement((task, payout), Some(Stage::Pending(pending))),
            Write::Task(task, record),
        ],
        task: Some(task),
        ..Effects::nothing(Outcome::Posted(Posted::New))
    })
}

/// What a settlement continues: the last one that stands, pending or final.
fn before(draft: &Draft<'_>, record: &TaskRecord) -> (Option<Round>, Digest, Amount, Amount) {
    let last = record.pending.last().and_then(|payout| draft.stage(record.terms.task, *payout));
    match last {
        Some(Stage::Pending(PendingSettlement { settlement: s, .. })) => {
            (Some(s.round), s.root, s.data_total, s.infrastructure_total)
        }
        _ => (record.round, record.root, record.data_paid, record.infrastructure_paid),
    }
}

fn check_settlement(
    draft: &Draft<'_>,
    record: &TaskRecord,
    settlement: &Settlement,
    now: Tick,
) -> Result<(), Refusal> {
    let Settlement { round, root, data_total, infrastructure_total, debits, .. } = settlement;
    let terms = &record.terms;
    let wrong = |what: String| Err(Refusal::BadSettlement { round: *round, what });
    if now > terms.expires {
        return wrong(format!("the task expired at {}, and it is {now}", terms.expires));
    }
    if *round < Round::FIRST {
        return wrong(format!("rounds begin with {}", Round::FIRST));
    }
    if settlement.payout != Report::payout_id(settlement.task, *round) {
        return wrong(format!("payout id {} is not this round's", settlement.payout));
    }
    let (last, standing, data, infrastructure) = before(draft, record);
    if let Some(last) = last.filter(|last| round <= last) {
        return wrong(format!("round {last} is settled already: rounds must ascend"));
    }
    if settlement.previous_root != standing {
        return wrong(format!(
            "it continues root {}, but the last settlement that stands has root {standing}",
            settlement.previous_root
        ));
    }
    let pools = [
        ("data", *data_total, data, terms.data),
        ("infrastructure", *infrastructure_total, infrastructure, terms.infrastructure),
    ];
    for (name, total, before, deposit) in pools {
        if total < before {
            return wrong(format!("the {name} total shrinks from {before} FLN to {total} FLN"));
        }
        if total > deposit {
            return wrong(format!(
                "the {name} total {total} FLN exceeds the deposit {deposit} FLN"
            ));
        }
    }
    if *root == Digest::default() && !(data_total.is_zero() && infrastructure_total.is_zero()) {
        return wrong("totals above zero under an empty root: nobody could claim them".to_owned());
    }
    if debits.len() > DEBITS_MAX {
        let what = format!("{} debits in one settlement; at most {DEBITS_MAX}", debits.len());
        return Err(Refusal::Limit(what));
    }
    if !debits.iter().is_sorted_by(|(a, _), (b, _)| a < b) {
        return wrong("debits must ascend by account, each account once".to_owned());
    }
    let limit = terms.debit_max;
    if let Some((account, debit)) = debits.iter().find(|(_, debit)| *debit > limit) {
        return wrong(format!("the debit of {debit} FLN from {account} exceeds {limit} FLN"));
    }
    Ok(())
}

pub(super) fn cancel(
    draft: &Draft<'_>,
    from: Address,
    task: TaskId,
    payout: PayoutId,
    now: Tick,
) -> Result<Effects, ApplyError> {
    let record = draft.task(task)?;
    only(from, record.terms.arbiter, "task's arbiter")?;
    let final_at = match draft.stage(task, payout) {
        None => {
            let what = format!("no settlement stands under payout id {payout}");
            return Err(Refusal::Missing(what).into());
        }
        Some(Stage::Final { final_at, .. }) => return Err(Refusal::WindowClosed(*final_at).into()),
        Some(Stage::Pending(pending)) => pending.final_at,
    };
    if now > final_at {
        return Err(Refusal::WindowClosed(final_at).into());
    }
    let mut record = record.clone();
    let first = record.pending.iter().position(|pending| *pending == payout).ok_or_else(|| {
        ApplyError::Broken(format!("settlement {payout} is pending but its task does not know it"))
    })?;
    let gone = record.pending.split_off(first);
    let mut writes: Vec<Write> =
        gone.into_iter().map(|payout| Write::Settlement((task, payout), None)).collect();
    writes.push(Write::Task(task, record));
    Ok(Effects { writes, task: Some(task), ..Effects::nothing(Outcome::Done) })
}

pub(super) fn finalize(draft: &Draft<'_>, task: TaskId, now: Tick) -> Result<Effects, ApplyError> {
    let mut record = draft.task(task)?.clone();
    let (mut effects, count) = settle_due(draft, task, &mut record, now)?;
    effects.outcome = Outcome::Finalised(count);
    if count > 0 {
        effects.writes.push(Write::Task(task, record));
    }
    Ok(effects)
}

/// Makes final what is due, oldest first. Changes `record` and leaves writing it to the caller.
pub(super) fn settle_due(
    draft: &Draft<'_>,
    task: TaskId,
    record: &mut TaskRecord,
    now: Tick,
) -> Result<(Effects, u64), ApplyError> {
    let mut effects = Effects { task: Some(task), ..Effects::nothing(Outcome::Done) };
    // What earlier settlements of this same call leave of each bond.
    let mut bonds: BTreeMap<Address, Amount> = BTreeMap::new();
    let mut count = 0usize;
    for payout in &record.pending {
        let Some(Stage::Pending(pending)) = draft.stage(task, *payout) else {
            return Err(ApplyError::Broken(format!("pending settlement {payout} is missing")));
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
        for (account, debit) in &settlement.debits {
            let from = Account::Bond(task, *account);
            let left = bonds.entry(*account).or_insert_with(|| draft.held(from));
            // The bond may have shrunk since the settlement was posted: what is left bounds the debit.
            let amount = (*debit).min(*left);
            *left = left.minus(amount)?;
            let to = Account::Treasury;
            effects.movements.push(Movement { from, to, amount, cause: Cause::Debited });
        }
        record.data_paid = settlement.data_total;
        record.infrastructure_paid = settlement.infrastructure_total;
        record.root = settlement.root;
        record.round = Some(settlement.round);
        let stage = Stage::Final { settlement: settlement.digest(), final_at: *final_at };
        effects.writes.push(Write::Settlement((task, *payout), Some(stage)));
        count = count.saturating_add(1);
    }
    effects.movements.retain(|movement| !movement.amount.is_zero());
    record.pending.drain(..count);
    Ok((effects, u64::try_from(count).unwrap_or(u64::MAX)))
}

pub(super) fn claim(draft: &Draft<'_>, claim: &Claim) -> Result<Effects, ApplyError> {
    let Claim { task, account, total, proof } = claim;
    let record = draft.task(*task)?;
    if !merkle::verify(record.root, *account, *total, proof) {
        return Err(Refusal::BadProof.into());
    }
    let before = draft.claimed(*task, *account);
    let amount = match total.minus(before) {
        Ok(amount) if !amount.is_zero() => amount,
        _ => return Err(Refusal::NothingToClaim.into()),
    };
    if amount > draft.held(Account::Owed(*task)) {
        // Only a coordinator that signed a root above its own totals gets here.
        let round = record.round.unwrap_or(Round(0));
        let what = format!("its root promises {account} more than the task still owes to anybody");
        return Err(Refusal::BadSettlement { round, what }.into());
    }
    let mut record = record.clone();
    record.claimed = record.claimed.plus(amount)?;
    Ok(Effects {
        movements: vec![Movement {
            from: Account::Owed(*task),
            to: Account::Wallet(*account),
            amount,
            cause: Cause::Claimed,
        }],
        writes: vec![Write::Claimed((*task, *account), *total), Write::Task(*task, record)],
        outcome: Outcome::Moved(amount),
        task: Some(*task),
    })
}
