//! What the engine is told, and what it asks for.

use alloc::boxed::Box;
use alloc::vec::Vec;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Code, Commit, Digest, Enrol, Registration, Round, Signed, TaskId, TaskSpec,
    UpdateHeader, WorkRecord, WorkResult,
};

/// One thing the engine is told. Signatures have been verified by whoever says it.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Event {
    /// A wallet and a node key vouched for each other.
    Registered(Registration),
    /// A task whose escrow is open on the ledger with the same terms.
    Published {
        /// The task.
        spec: Box<TaskSpec>,
        /// Exact length in bytes of one model of this task.
        model_bytes: u64,
        /// Exact length in bytes of one update of this task.
        update_bytes: u64,
    },
    /// A blob a task waited for is stored, and its content fits the task.
    BlobArrived {
        /// The task.
        task: TaskId,
        /// The blob.
        digest: Digest,
    },
    /// A task's holdout is stored, and its rows are those that the task committed to.
    HoldoutArrived {
        /// The task.
        task: TaskId,
        /// The digest of all its rows: as secret as they are.
        digest: Digest,
    },
    /// A participant wants to be asked.
    Enrolled {
        /// What it signed.
        enrol: Signed<Enrol>,
        /// What it has at risk on the ledger now.
        bond: Amount,
    },
    /// A participant promised an update.
    Committed {
        /// What it signed.
        commit: Signed<Commit>,
        /// What it has at risk on the ledger now.
        bond: Amount,
    },
    /// An update is stored, and its bytes are what its header says and fit the task.
    Revealed(Signed<UpdateHeader>),
    /// An upload was refused for what its bytes were.
    Refused {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// Whose.
        sender: Address,
        /// Why.
        code: Code,
    },
    /// A pledged provider asked for a task's work, or was given the open order.
    ProviderReady {
        /// The task.
        task: TaskId,
        /// Who.
        provider: Address,
    },
    /// A pledged provider claims to have done an order.
    WorkRecorded {
        /// What it signed.
        record: Signed<WorkRecord>,
        /// Whether it agrees with the coordinator's own result, where there is one already.
        agrees: Option<bool>,
    },
    /// Time passed. Changes what is due, nothing else.
    Tick,
    /// The rows drawn for a round are stored with their proofs, for everybody to read.
    Disclosed {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// The digest of their bytes.
        shown: Digest,
    },
    /// The coordinator's own computation of a round's work, and what it says about the providers' records.
    Valued {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// What came out.
        result: Box<WorkResult>,
        /// The first record that agrees with it, by the digest of its body: it is paid.
        paid: Option<Digest>,
        /// Records that do not.
        wrong: Vec<Digest>,
    },
    /// The updates combine to nothing that could be valued, or the rows that should judge them cannot be shown.
    ValuationFailed {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// The ledger has the round's settlement.
    SettlementPosted {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// The round's settlement is final, and so is every earlier one.
    SettlementFinal {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// The round's settlement does not stand on the ledger any more, and neither does any later one: the arbiter
    /// cancelled it, or the task was closed before the ledger had it.
    SettlementCancelled {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// The ledger will never take the round's settlement.
    SettlementRefused {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// The buyer wants no more rounds.
    CloseRequested {
        /// The task.
        task: TaskId,
    },
    /// The task is closed on the ledger.
    Closed {
        /// The task.
        task: TaskId,
        /// What went back to the buyer.
        refund: Amount,
    },
    /// Every debit of this final round and of all before it is proven on the ledger.
    DebitsProven {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// What nothing that is to come needs of a round with a report is in a blob.
    Kept {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
        /// The blob.
        digest: Digest,
    },
}

/// Something the host should see to. Each is asked for once, when it becomes wanted; after a restart
/// [`crate::Engine::outstanding`] names those still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Show the rows drawn for the round; answer with [`Event::Disclosed`] or [`Event::ValuationFailed`].
    Disclose {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// Compute the round's work; answer with [`Event::Valued`] or [`Event::ValuationFailed`].
    Value {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// Post the round's settlement, which is in its report; answer with [`Event::SettlementPosted`],
    /// [`Event::SettlementRefused`] or, where an earlier one is gone, its [`Event::SettlementCancelled`].
    Post {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// See the settlement through its challenge window; answer with [`Event::SettlementFinal`] or
    /// [`Event::SettlementCancelled`].
    Finalize {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// Close the task on the ledger; answer with [`Event::Closed`].
    Close {
        /// The task.
        task: TaskId,
    },
    /// Prove on the ledger what the rounds up to this one, the last final, debited; answer with
    /// [`Event::DebitsProven`].
    Prove {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
    /// Keep a round with a report as a blob; answer with [`Event::Kept`].
    Keep {
        /// The task.
        task: TaskId,
        /// The round.
        round: Round,
    },
}

/// Whether an accepted event changes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It does: journal it.
    New,
    /// It was said before, or nothing is due: the answer is the same as the first time.
    Repeat,
}

/// What taking an event came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Whether it changed anything.
    pub verdict: Verdict,
    /// What became wanted by it.
    pub effects: Vec<Effect>,
    /// Tasks whose view changed.
    pub changed: Vec<TaskId>,
}

impl Applied {
    pub(super) const fn repeat() -> Self {
        Self { verdict: Verdict::Repeat, effects: Vec::new(), changed: Vec::new() }
    }
}
