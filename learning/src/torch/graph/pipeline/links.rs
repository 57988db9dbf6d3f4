//! The messages between the stages of a pipeline.

use crate::engine::TrainError;
use crate::pipeline::MessageKind;

/// The identity of a message between two stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::torch) struct MessageTag {
    pub(in crate::torch) kind: MessageKind,
    pub(in crate::torch) micro_batch: u32,
}

impl MessageTag {
    /// The number of the tag among those of a step: two for each micro-batch.
    pub(in crate::torch) fn number(self) -> u32 {
        2 * self.micro_batch + u32::from(self.kind == MessageKind::Gradient)
    }
}

/// The links of the stages of a process to their neighbours. A message is the bytes of
/// [`encode_message`](crate::pipeline::encode_message): a receiver that needs its length first can receive
/// the lead alone.
pub(in crate::torch) trait StageLinks {
    /// Sends a message from stage `from` to stage `to`; it does not wait until the message has arrived.
    fn send(
        &mut self,
        from: u32,
        to: u32,
        tag: MessageTag,
        message: Vec<u8>,
    ) -> Result<(), TrainError>;

    /// Waits for a message from stage `from` to stage `to`, of at most `bytes_max` bytes.
    fn receive(
        &mut self,
        from: u32,
        to: u32,
        tag: MessageTag,
        bytes_max: u64,
    ) -> Result<Vec<u8>, TrainError>;
}
