//! Messages between the processes. They are not signed: the engine receives them as verified.

use florin_protocol::{
    Address, ClaimProof, Commit, Digest, ErrorCode, NodeSignature, Offer, Rejection, Report, Role,
    RoundNumber, Signed, TaskView, UpdateHeader, UpdateReceipt, WorkOrder, WorkRecord,
};

/// Placeholder for a signature.
pub(super) const UNSIGNED: NodeSignature = NodeSignature([0; 64]);

/// Wraps a message without a real signature.
pub(super) fn unsigned<T>(body: T) -> Signed<T> {
    Signed { body, signature: UNSIGNED }
}

/// A request to the coordinator.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// The view of the task.
    Look,
    /// Publish the task.
    Publish,
    /// Upload the initial model.
    Model,
    /// Upload the holdout rows.
    Holdout,
    /// Register an account in this role.
    Register(Role),
    /// Enrol in the task.
    Enrol,
    /// Commit to an update.
    Commit(Commit),
    /// Upload the update of a commit.
    Upload(Box<UpdateHeader>, Vec<u8>),
    /// The report of a round.
    Report(RoundNumber),
    /// The claim proof of an account.
    Proof(Address),
    /// The bytes of a blob.
    Blob(Digest),
    /// An open work order.
    Work,
    /// Submit the record of a work order.
    Record(Box<WorkRecord>),
}

impl Ask {
    /// Its name in the trace.
    #[must_use]
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Publish => "publish",
            Self::Model => "model",
            Self::Holdout => "holdout",
            Self::Register(_) => "register",
            Self::Enrol => "enrol",
            Self::Commit(_) => "commit",
            Self::Upload(..) => "upload",
            Self::Report(_) => "report",
            Self::Proof(_) => "proof",
            Self::Blob(_) => "blob",
            Self::Work => "work",
            Self::Record(_) => "record",
        }
    }
}

/// A response of the coordinator.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// Success without a result.
    Done,
    /// Response to [`Ask::Look`].
    View(Box<TaskView>),
    /// Response to [`Ask::Upload`].
    Receipt(UpdateReceipt),
    /// Response to [`Ask::Report`], with the offer of the round.
    Report(Box<Report>, Box<Offer>),
    /// Response to [`Ask::Proof`].
    Proof(ClaimProof),
    /// Response to [`Ask::Blob`].
    Bytes(Vec<u8>),
    /// Response to [`Ask::Work`].
    Order(Option<Box<WorkOrder>>),
    /// Response to [`Ask::Record`]: the number of paid units.
    Verdict(u64),
    /// The request is refused.
    Refused(Rejection),
}

impl Reply {
    /// Whether it is a transient refusal: the client retries the same request.
    #[must_use]
    pub(super) const fn is_passing(&self) -> bool {
        match self {
            Self::Refused(rejection) => matches!(
                rejection.code,
                ErrorCode::Internal | ErrorCode::StorageFull | ErrorCode::StorageUnavailable
            ),
            _ => false,
        }
    }
}

/// The payload of a message.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A request.
    Ask(Ask),
    /// A response.
    Reply(Reply),
}
