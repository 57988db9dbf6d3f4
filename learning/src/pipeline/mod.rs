//! Pipelines: a neural net on several ranks, each with consecutive nodes of its graph.
//!
//! [`cut()`] divides the graph into parts. The micro-batches of a batch flow through the parts in
//! the order of [`one_forward_one_backward`] (PipeDream: Narayanan et al., SOSP 2019) or of
//! [`gpipe`] (Huang et al., NeurIPS 2019). A value that crosses a cut travels to the next part
//! only, which relays it if a later part reads it; its gradient travels back the same way. Replicas
//! of the pipeline add their gradients (HyPar-Flow: Awan et al., ISC 2020). A [`PartPlacement`] may give
//! both ends to one process. [`can_deadlock`] checks the messages of such a schedule, and [`step_time`] predicts the seconds of a step. [`encode_message`] and
//! [`decode_message`] are the bytes of the messages. The module plans: it computes no gradient and sends no
//! message.

mod cut;
mod deadlock;
mod message;
mod pinned;
mod placement;
mod schedule;
mod simulation;

pub use cut::{
    Cut, CutError, CutProblem, FirstPart, MemoryLimits, NODES_MAX, NodeCost, cut,
    cut_with_first_part,
};
pub use deadlock::{
    CheckError, Deadlock, PartEvent, STATES_MAX, can_deadlock, can_placed_deadlock, capacity_needed,
};
pub use message::{
    FormElements, LEAD_BYTES, MESSAGE_ALIGNMENT, MESSAGE_BYTES_MAX, MESSAGE_VALUES_MAX,
    MessageError, PipelineTensor, PipelineValue, TensorForm, decode_message, encode_message,
    message_length,
};
pub use pinned::{PinnedCut, PinnedCutError};
pub use placement::PartPlacement;
pub use schedule::{
    MICRO_BATCHES_MAX, MessageKind, Order, PARTS_MAX, PartAction, PipelineShape, ShapeError, Work,
    gpipe, messages, one_forward_one_backward,
};
pub use simulation::{
    PartCost, SimulatedStep, StepError, StepTime, ring_all_reduce_seconds, scaling, step_time,
};
