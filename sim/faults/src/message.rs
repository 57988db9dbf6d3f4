//! Messages between the processes. They are not signed: the engine receives them as verified.

use florin_protocol::{
    Address, ClaimProof, Commit, Digest, ErrorCode, NodeSignature, Offer, Rejection, Report, Role,
    RoundNumber, Signed, TaskView, UpdateHeader, UpdateReceipt, WorkOrder, WorkRecord,
};

/// Placeholder for a signature.
pub(super) const DUMMY_SIGNATURE: NodeSignature = NodeSignature([0; 64]);

/// Wraps a message without a real signature.
pub(super) fn unsigned<T>(body: T) -> Signed<T> {
    Signed { body, signature: DUMMY_SIGNATURE }
}

/// A request to the coordinator.
#[derive(Clone, Debug)]
pub(super) enum CoordinatorRequest {
    /// The view of the task.
    View,
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
    OpenOrder,
    /// Submit the record of a work order.
    Record(Box<WorkRecord>),
}

impl CoordinatorRequest {
    /// Its name in the trace.
    #[must_use]
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::View => "view",
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
            Self::OpenOrder => "open_order",
            Self::Record(_) => "record",
        }
    }
}

/// A response of the coordinator.
#[derive(Clone, Debug)]
pub(super) enum CoordinatorReply {
    /// Success without a result.
    Done,
    /// Response to [`CoordinatorRequest::View`].
    View(Box<TaskView>),
    /// Response to [`CoordinatorRequest::Upload`].
    Receipt(UpdateReceipt),
    /// Response to [`CoordinatorRequest::Report`], with the offer of the round.
    Report(Box<Report>, Box<Offer>),
    /// Response to [`CoordinatorRequest::Proof`].
    Proof(ClaimProof),
    /// Response to [`CoordinatorRequest::Blob`].
    Bytes(Vec<u8>),
    /// Response to [`CoordinatorRequest::OpenOrder`].
    Order(Option<Box<WorkOrder>>),
    /// Response to [`CoordinatorRequest::Record`]: the number of paid units.
    Verdict(u64),
    /// The request is refused.
    Refused(Rejection),
}

impl CoordinatorReply {
    /// Whether it is a transient refusal: the client retries the same request.
    #[must_use]
    pub(super) const fn is_transient(&self) -> bool {
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
    Request(CoordinatorRequest),
    /// A response.
    Reply(CoordinatorReply),
}
