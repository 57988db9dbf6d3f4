//! What processes say to each other. Signatures are left out: the engine is told what a verified message says.

use florin_protocol::{
    Address, ClaimProof, Code, Commit, Digest, NodeSignature, Offer, Receipt, Rejection, Report,
    Role, Round, Signed, TaskView, UpdateHeader, WorkOrder, WorkRecord,
};

/// What stands where a signature would.
pub(super) const UNSIGNED: NodeSignature = NodeSignature([0; 64]);

/// A message as if it were signed.
pub(super) fn unsigned<T>(body: T) -> Signed<T> {
    Signed { body, signature: UNSIGNED }
}

/// A question to the coordinator.
#[derive(Clone, Debug)]
pub(super) enum Ask {
    /// How does the task stand?
    Look,
    /// Here is a task.
    Publish,
    /// Here is its first model.
    Model,
    /// Here are the rows that judge it.
    Holdout,
    /// This is me.
    Register(Role),
    /// I want to take part.
    Enrol,
    /// I promise this.
    Commit(Commit),
    /// This is what I promised.
    Upload(Box<UpdateHeader>, Vec<u8>),
    /// What did a round come to?
    Report(Round),
    /// What can this account claim?
    Proof(Address),
    /// Which bytes are these?
    Blob(Digest),
    /// Is there something to be computed?
    Work,
    /// I computed this.
    Record(Box<WorkRecord>),
}

impl Ask {
    /// Its name, as the trace has it.
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

/// The coordinator's answer.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// It is done.
    Done,
    /// To [`Ask::Look`].
    View(Box<TaskView>),
    /// To [`Ask::Upload`].
    Receipt(Receipt),
    /// To [`Ask::Report`], with the offer that the round began with.
    Report(Box<Report>, Box<Offer>),
    /// To [`Ask::Proof`].
    Proof(ClaimProof),
    /// To [`Ask::Blob`].
    Bytes(Vec<u8>),
    /// To [`Ask::Work`].
    Order(Option<Box<WorkOrder>>),
    /// To [`Ask::Record`]: so many units are paid.
    Verdict(u64),
    /// No.
    Refused(Rejection),
}

impl Reply {
    /// A refusal that only time is needed for: whoever asked asks the same again.
    #[must_use]
    pub(super) const fn is_passing(&self) -> bool {
        match self {
            Self::Refused(rejection) => matches!(
                rejection.code,
                Code::Internal | Code::StorageFull | Code::StorageUnavailable
            ),
            _ => false,
        }
    }
}

/// What a message carries.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// A question.
    Ask(Ask),
    /// An answer.
    Reply(Reply),
}
