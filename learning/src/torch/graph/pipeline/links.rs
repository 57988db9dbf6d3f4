//! The messages between the stages of a pipeline.

use std::collections::BTreeMap;

use super::fault;
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

/// The links of a stage to its neighbours. A message is the bytes of
/// [`encode_message`](crate::pipeline::encode_message): a receiver that needs its length first can receive
/// the lead alone.
pub(in crate::torch) trait StageLinks {
    /// Sends a message; it does not wait until the message has arrived.
    fn send(&mut self, to: u32, tag: MessageTag, message: Vec<u8>) -> Result<(), TrainError>;

    /// Waits for a message.
    fn receive(&mut self, from: u32, tag: MessageTag) -> Result<Vec<u8>, TrainError>;
}

/// The messages on their way between stages of one process.
#[derive(Debug, Default)]
pub(in crate::torch) struct LocalLinks {
    /// The stage whose links these are now.
    pub(super) part: u32,
    messages: BTreeMap<(u32, u32, MessageTag), Vec<u8>>,
    /// Bytes sent so far.
    pub(super) sent_bytes: u64,
}

impl LocalLinks {
    /// Whether a message for the stage has arrived.
    pub(super) fn has(&self, from: u32, tag: MessageTag) -> bool {
        self.messages.contains_key(&(from, self.part, tag))
    }

    /// Whether no message is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

impl StageLinks for LocalLinks {
    fn send(&mut self, to: u32, tag: MessageTag, message: Vec<u8>) -> Result<(), TrainError> {
        self.sent_bytes += message.len() as u64;
        match self.messages.insert((self.part, to, tag), message) {
            None => Ok(()),
            Some(_) => Err(fault("a message of a pipeline is sent twice").into()),
        }
    }

    fn receive(&mut self, from: u32, tag: MessageTag) -> Result<Vec<u8>, TrainError> {
        let found = self.messages.remove(&(from, self.part, tag));
        Ok(found.ok_or_else(|| fault("a message of a pipeline is missing"))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_arrives_once_at_its_stage() {
        let tag = MessageTag { kind: MessageKind::Gradient, micro_batch: 3 };
        let other = MessageTag { kind: MessageKind::Activation, ..tag };
        assert_eq!((tag.number(), other.number()), (7, 6));
        let mut links = LocalLinks { part: 1, ..LocalLinks::default() };
        links.send(0, tag, vec![1, 2]).unwrap();
        assert!(links.send(0, tag, vec![1, 2]).is_err());
        links.part = 0;
        assert!(links.has(1, tag) && !links.has(1, other) && !links.has(2, tag));
        assert!(links.receive(1, other).is_err());
        assert_eq!(links.receive(1, tag).unwrap(), [1, 2]);
        assert!(links.receive(1, tag).is_err());
        assert_eq!(links.sent_bytes, 4);
    }
}
