//! Past rounds, as the coordinator's server reads them: from the engine's memory or from their
//! archive blobs.

use florin_coordinator::host::archive;
use florin_engine::state::{FinalTotals, ReportedRound};
use florin_engine::{Engine, ProofTree, RoundLocation};
use florin_protocol::{
    Address, Amount, ClaimProof, Digest, ErrorCode, Rejection, RoundNumber, RoundScope, TaskId,
    UpdateId, UpdateReceipt,
};

use crate::bugs::Bug;
use crate::disk::SimDisk;

/// Base units per millionth of a florin.
const MICRO_UNITS: u128 = 1_000_000_000_000;

/// A round with its report.
pub(super) fn past_round(
    (engine, machine): (&Engine, &SimDisk),
    task: TaskId,
    round: RoundNumber,
) -> Result<ReportedRound, Rejection> {
    match engine.reported_round(task, round)? {
        RoundLocation::InMemory(past) => Ok(past.clone()),
        RoundLocation::Archived(digest) => read_archived(machine, digest),
    }
}

fn read_archived(machine: &SimDisk, digest: Digest) -> Result<ReportedRound, Rejection> {
    let bytes = machine.get_blob(digest).map_err(|error| error.to_string());
    let past = bytes.and_then(|bytes| archive::from_bytes(&bytes));
    past.map_err(|why| {
        Rejection::new(ErrorCode::Internal, format!("round in blob {digest}: {why}"))
    })
}

/// The receipt of an accepted update of any round.
pub(super) fn receipt(
    (engine, machine): (&Engine, &SimDisk),
    scope: RoundScope,
    sender: Address,
    update: UpdateId,
) -> Result<Option<UpdateReceipt>, Rejection> {
    match engine.archive_blob(scope.task, scope.round) {
        Some(digest) => {
            read_archived(machine, digest).map(|past| past.receipt(scope, sender, update))
        }
        None => Ok(engine.receipt(scope, sender, update)),
    }
}

/// The verdict on a record of a work order of any round.
pub(super) fn verdict(
    (engine, machine): (&Engine, &SimDisk),
    order: Digest,
    record: Digest,
) -> Result<Option<Result<u64, Rejection>>, Rejection> {
    let digest =
        engine.find_order(order).and_then(|(task, round)| engine.archive_blob(task, round));
    match digest {
        Some(digest) => read_archived(machine, digest).map(|past| past.record_outcome(record)),
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
        standings
            .accounts
            .values_mut()
            .for_each(|standing| standing.data = round_up(standing.data));
        let tree = florin_protocol::claim_tree(&standings.accounts);
        standings.root = tree.map(|tree| tree.root()).unwrap_or_default();
    }
    ProofTree::from_final_totals(&standings).map(|tree| tree.proof(account))
}

/// Planted bug: rounds an amount up to a millionth.
pub(super) fn round_up(amount: Amount) -> Amount {
    Amount::from_units(amount.units().next_multiple_of(MICRO_UNITS))
}
