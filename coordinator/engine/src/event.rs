//! The input and output of the engine: events and effects.

use alloc::boxed::Box;
use alloc::vec::Vec;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Commit, Digest, EnrolRequest, ErrorCode, Registration, RoundNumber, Signed,
    TaskId, TaskSpec, UpdateHeader, WorkRecord, WorkResult,
};

/// One input of the engine. The caller has verified the signatures in it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Event {
    /// A wallet and a node key signed for each other.
    Registered(Registration),
    /// A task was published; its escrow is open on the ledger with the same terms.
    TaskPublished {
        /// The task.
        spec: Box<TaskSpec>,
        /// Exact length in bytes of one model of this task.
        model_bytes: u64,
        /// Exact length in bytes of one update of this task.
        update_bytes: u64,
    },
    /// A blob that a task is waiting for is stored, and its content fits the task.
    BlobArrived {
        /// The task.
        task: TaskId,
        /// The blob.
        digest: Digest,
    },
    /// A task's holdout is stored, and its rows match the commitment in the task.
    HoldoutArrived {
        /// The task.
        task: TaskId,
        /// The digest of all its rows. It is as secret as the rows.
        digest: Digest,
    },
    /// A participant enrolled in a task.
    Enrolled {
        /// The signed message.
        enrol: Signed<EnrolRequest>,
        /// The participant's bond at risk on the ledger now.
        bond: Amount,
    },
    /// A participant committed to an update.
    Committed {
        /// The signed message.
        commit: Signed<Commit>,
        /// The participant's bond at risk on the ledger now.
        bond: Amount,
    },
    /// An update is stored; its bytes match its header and fit the task.
    Revealed(Signed<UpdateHeader>),
    /// An upload was rejected because of its content.
    UploadRejected {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The sender.
        sender: Address,
        /// The reason.
        code: ErrorCode,
    },
    /// A pledged provider asked for a task's work, or received the open work order.
    ProviderReady {
        /// The task.
        task: TaskId,
        /// The provider.
        provider: Address,
    },
    /// A pledged provider submitted a work record for an order.
    WorkRecordReceived {
        /// The signed record.
        record: Signed<WorkRecord>,
        /// Whether it agrees with the coordinator's own result, if that exists already.
        agrees: Option<bool>,
    },
    /// Time has passed. Applies every deadline that is due, and changes nothing else.
    Tick,
    /// The rows drawn for a round are stored with their proofs, and are public.
    RowsDisclosed {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The digest of the disclosed rows.
        rows: Digest,
    },
    /// The coordinator has computed a round's work itself and compared the providers' records with
    /// its result.
    RoundValued {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The result.
        result: Box<WorkResult>,
        /// The record that is paid, by the digest of its body: the one whose transcript was accepted, or else
        /// the first one, that agrees with the result.
        paid: Option<Digest>,
        /// The records that disagree with the result.
        wrong_records: Vec<Digest>,
    },
    /// The updates cannot be aggregated or valued, or the holdout rows of the round cannot be
    /// disclosed.
    ValuationFailed {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The ledger contains the round's settlement.
    SettlementPosted {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The round's settlement is final, and so is every earlier one.
    SettlementFinal {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The round's settlement is no longer valid on the ledger, nor is any later one: the arbiter
    /// cancelled it, or the task was closed before the settlement was posted.
    SettlementCancelled {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The ledger will never accept the round's settlement.
    SettlementRejected {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// The buyer requested that no more rounds start.
    CloseRequested {
        /// The task.
        task: TaskId,
    },
    /// The task is closed on the ledger.
    TaskClosed {
        /// The task.
        task: TaskId,
        /// The refund to the buyer.
        refund: Amount,
    },
    /// Every debit of this final round and of all earlier rounds is proven on the ledger.
    DebitsProven {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// A reported round is archived in a blob: all of it that later events do not need.
    RoundArchived {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// The archive blob.
        digest: Digest,
    },
    /// The ledger has returned the coordinator's bond in a closed task, or there was none.
    BondReturned {
        /// The task.
        task: TaskId,
    },
}

/// An action that the host must carry out. The engine returns each effect once, when it becomes
/// pending; after a restart [`crate::Engine::pending_effects`] returns every effect that is
/// still pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Disclose the rows drawn for the round. The result is [`Event::RowsDisclosed`] or
    /// [`Event::ValuationFailed`].
    DiscloseRows {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Compute the round's work. The result is [`Event::RoundValued`] or [`Event::ValuationFailed`].
    ValueRound {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Post the round's settlement, which is in its report. The result is
    /// [`Event::SettlementPosted`], [`Event::SettlementRejected`] or, if an earlier settlement no
    /// longer exists, that settlement's [`Event::SettlementCancelled`].
    PostSettlement {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Follow the settlement through its challenge window. The result is [`Event::SettlementFinal`]
    /// or [`Event::SettlementCancelled`].
    FinalizeSettlement {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Close the task on the ledger. The result is [`Event::TaskClosed`].
    CloseTask {
        /// The task.
        task: TaskId,
    },
    /// Prove on the ledger the debits of all rounds up to this one, which is the last final round.
    /// The result is [`Event::DebitsProven`].
    ProveDebits {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Archive a reported round in a blob. The result is [`Event::RoundArchived`].
    ArchiveRound {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
    },
    /// Withdraw the coordinator's bond from a closed task. The result is [`Event::BondReturned`].
    ReturnBond {
        /// The task.
        task: TaskId,
    },
}

/// Whether an accepted event changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventStatus {
    /// It changes the state: journal it.
    New,
    /// It is a duplicate, or no deadline is due. The response is the same as the first time.
    Duplicate,
}

/// The result of applying an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whether the state changed.
    pub status: EventStatus,
    /// The effects that became pending.
    pub effects: Vec<Effect>,
    /// The tasks whose view changed.
    pub changed_tasks: Vec<TaskId>,
}

impl Applied {
    pub(super) const fn duplicate() -> Self {
        Self { status: EventStatus::Duplicate, effects: Vec::new(), changed_tasks: Vec::new() }
    }
}
