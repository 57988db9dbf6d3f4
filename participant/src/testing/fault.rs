//! Faults that a test can inject into the fake coordinator.

use florin_protocol::{ErrorCode, Rejection, Role};

use super::coordinator::FakeCoordinator;
use super::response::reject;

/// An injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Receipts are signed with another key.
    ForgedReceipt,
    /// Receipts are signed with another wallet for the ledger.
    ForgedWalletSignature,
    /// Receipts are for another update.
    OtherReceipt,
    /// The report omits an update that has a receipt.
    LostUpdate,
    /// The report pays more than the scores imply.
    WrongPayout,
    /// The report states a better score, and pays for it.
    WrongScore,
    /// Offers have a smaller pool than the task has left for the round.
    SmallPool,
    /// The report declares more rows than the sender's header.
    MoreRows,
    /// Claim proofs belong to the report before the last one.
    OldProof,
    /// The second offer has another base model.
    WrongBase,
    /// The model after a round is not the aggregate of its updates; reports are otherwise
    /// consistent.
    TrapModel,
    /// Blobs have a flipped byte.
    WrongBytes,
    /// Every request is rejected with status 507 (storage full).
    Unavailable,
    /// Long polls for work are closed without a response.
    CutLongPolls,
    /// Settlements are not posted.
    NeverPosted,
    /// Settlements are posted with another report's digest.
    OtherReport,
    /// Settlements are posted with another root.
    OtherTotals,
    /// A settlement is posted for a round that does not exist.
    NoReport,
    /// The paid record has another result than the report.
    OtherResult,
    /// The work of round 1 is paid again in every round.
    SameRecord,
    /// A disclosed row differs from the committed one.
    ForgedRow,
    /// Rounds after the first use the first round's holdout rows.
    SameRows,
    /// The report states another seed, with the rows that it draws.
    OtherSeed,
    /// The rows are not disclosed.
    HiddenRows,
    /// The work is paid to wallet 6, which never pledged a stake.
    UnpledgedProvider,
    /// No misbehaviour: the second round is abandoned.
    AbandonedRound,
    /// No misbehaviour: the first two enrolments arrive before the coordinator's node has the bond.
    LaggingNode,
    /// No misbehaviour: a registration gives way to others before the first enrolment, commit,
    /// update, request for work and work record.
    FullMarket,
    /// No misbehaviour: the coordinator takes work records without transcripts.
    NoTranscripts,
    /// No misbehaviour: the coordinator's clock jumps ahead by an hour.
    ClockAhead,
}

impl FakeCoordinator {
    pub(super) fn has_fault(&self, lie: Fault) -> bool {
        self.faults.contains(&lie)
    }

    /// Evicts the registrations of a request's role, once for each kind of request.
    pub(super) fn evict_before(&mut self, parts: &[&str]) -> Result<(), Rejection> {
        let role = match parts {
            ["tasks", ..] => Role::Participant,
            ["work", ..] => Role::Provider,
            _ => return Ok(()),
        };
        if !self.has_fault(Fault::FullMarket) {
            return Ok(());
        }
        let request = parts.last().copied().unwrap_or_default();
        if self.evicted_before.insert(request.to_owned()) {
            self.registrations.retain(|(_, known), _| *known != role);
        }
        match self.registrations.keys().any(|(_, known)| *known == role) {
            true => Ok(()),
            false => reject(ErrorCode::NotRegistered),
        }
    }
}
