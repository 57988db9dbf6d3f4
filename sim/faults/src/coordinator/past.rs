//! Past rounds, as the coordinator's server reads them: from the engine's memory or from their
//! archive blobs.

use florin_coordinator::host::archive;
use florin_engine::state::{FinalTotals, ReportedRound};
use florin_engine::{Engine, ProofTree, RoundLocation};
use florin_protocol::{
    Address, ClaimProof, Digest, ErrorCode, Rejection, RoundNumber, RoundScope, TaskId, UpdateId,
    UpdateReceipt,
};

use super::answers::up;
use crate::bugs::Bug;
use crate::disk::Machine;

/// A round with its report.
pub(super) fn past(
    (engine, machine): (&Engine, &Machine),
    task: TaskId,
    round: RoundNumber,
) -> Result<ReportedRound, Rejection> {
    match engine.reported_round(task, round)? {
        RoundLocation::InMemory(past) => Ok(past.clone()),
        RoundLocation::Archived(digest) => kept(machine, digest),
    }
}

fn kept(machine: &Machine, digest: Digest) -> Result<ReportedRound, Rejection> {
    let bytes = machine.get(digest).map_err(|error| error.to_string());
    let past = bytes.and_then(|bytes| archive::from_bytes(&bytes));
    past.map_err(|why| {
        Rejection::new(ErrorCode::Internal, format!("round in blob {digest}: {why}"))
    })
}

/// The receipt of an accepted update of any round.
pub(super) fn receipt(
    (engine, machine): (&Engine, &Machine),
    scope: RoundScope,
    sender: Address,
    update: UpdateId,
) -> Result<Option<UpdateReceipt>, Rejection> {
    match engine.archive_blob(scope.task, scope.round) {
        Some(digest) => kept(machine, digest).map(|past| past.receipt(scope, sender, update)),
        None => Ok(engine.receipt(scope, sender, update)),
    }
}

/// The verdict on a record of a work order of any round.
pub(super) fn verdict(
    (engine, machine): (&Engine, &Machine),
    order: Digest,
    record: Digest,
) -> Result<Option<Result<u64, Rejection>>, Rejection> {
    let digest =
        engine.find_order(order).and_then(|(task, round)| engine.archive_blob(task, round));
    match digest {
        Some(digest) => kept(machine, digest).map(|past| past.record_outcome(record)),
        None => Ok(engine.record_outcome(order, record)),
    }
}

/// The claim proof of an account. Planted bug: every payout is rounded up.
pub(super) fn proof(
    engine: &Engine,
    task: TaskId,
    account: Address,
    bug: Option<Bug>,
) -> Result<ClaimProof, Rejection> {
    let mut standings: FinalTotals = engine.final_totals(task)?.clone();
    if bug == Some(Bug::PayoutRounding) {
        standings.accounts.values_mut().for_each(|standing| standing.data = up(standing.data));
        let tree = florin_protocol::claim_tree(&standings.accounts);
        standings.root = tree.map(|tree| tree.root()).unwrap_or_default();
    }
    ProofTree::from_final_totals(&standings).map(|tree| tree.proof(account))
}
