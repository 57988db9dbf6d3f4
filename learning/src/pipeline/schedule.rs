//! The order in which a part computes its micro-batches, and the messages that belong to it.

use thiserror::Error;

/// Parts of a pipeline, at most.
pub const PARTS_MAX: u32 = 1_024;
/// Micro-batches of a step, at most.
pub const MICRO_BATCHES_MAX: u32 = 1 << 16;

/// The size of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelineShape {
    parts: u32,
    micro_batches: u32,
}

/// A pipeline has no part or no micro-batch, or too many.
#[derive(Debug, Clone, Copy, Error, PartialEq, Eq)]
#[error(
    "a pipeline has 1 to {PARTS_MAX} parts and 1 to {MICRO_BATCHES_MAX} micro-batches, not {parts} \
     and {micro_batches}"
)]
pub struct ShapeError {
    /// Parts.
    pub parts: u32,
    /// Micro-batches.
    pub micro_batches: u32,
}

impl PipelineShape {
    /// A pipeline of `parts` parts, and `micro_batches` micro-batches for each step.
    ///
    /// # Errors
    /// [`ShapeError`] if one of them is 0 or exceeds its limit.
    pub fn new(parts: u32, micro_batches: u32) -> Result<Self, ShapeError> {
        let is_valid =
            (1..=PARTS_MAX).contains(&parts) && (1..=MICRO_BATCHES_MAX).contains(&micro_batches);
        if is_valid {
            Ok(Self { parts, micro_batches })
        } else {
            Err(ShapeError { parts, micro_batches })
        }
    }

    /// Parts.
    #[must_use]
    pub fn parts(self) -> u32 {
        self.parts
    }

    /// Micro-batches of a step.
    #[must_use]
    pub fn micro_batches(self) -> u32 {
        self.micro_batches
    }
}

/// A pass of a part over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    /// The forward pass of a micro-batch.
    Forward(u32),
    /// The backward pass of a micro-batch.
    Backward(u32),
}

impl Work {
    /// The same pass over the micro-batch this many behind.
    #[must_use]
    pub fn behind(self, micro_batches: u32) -> Self {
        match self {
            Self::Forward(own) => Self::Forward(own + micro_batches),
            Self::Backward(own) => Self::Backward(own + micro_batches),
        }
    }
}

/// The order of a part: [`one_forward_one_backward`] or [`gpipe`]. Its first argument is the part.
pub type Order = fn(u32, PipelineShape) -> Vec<Work>;

/// The values that a message has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// The values that are live across a cut.
    Activation,
    /// Their gradients.
    Gradient,
}

/// An action of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PartAction {
    /// The part waits for a message.
    Receive {
        /// The part that sends it.
        from: u32,
        /// Its values.
        kind: MessageKind,
        /// Its micro-batch.
        micro_batch: u32,
    },
    /// The part computes.
    Compute(Work),
    /// The part sends a message.
    Send {
        /// The part that receives it.
        to: u32,
        /// Its values.
        kind: MessageKind,
        /// Its micro-batch.
        micro_batch: u32,
    },
}

/// The order 1F1B of PipeDream (Narayanan et al., SOSP 2019), without interleaving and with one
/// update for each step: part `p` of `P` begins with `P − 1 − p` forward passes, alternates forward
/// and backward passes, and ends with the backward passes that are left. At most `P − p`
/// micro-batches are in flight. A part beyond the last has no work.
#[must_use]
pub fn one_forward_one_backward(part: u32, shape: PipelineShape) -> Vec<Work> {
    let following = shape.parts.checked_sub(part).and_then(|parts| parts.checked_sub(1));
    let Some(later) = following else { return Vec::new() };
    let ahead = later.min(shape.micro_batches);
    let mut order: Vec<Work> = (0..ahead).map(Work::Forward).collect();
    for micro_batch in ahead..shape.micro_batches {
        order.extend([Work::Forward(micro_batch), Work::Backward(micro_batch - ahead)]);
    }
    order.extend((shape.micro_batches - ahead..shape.micro_batches).map(Work::Backward));
    order
}

/// The order of GPipe (Huang et al., NeurIPS 2019): all forward passes, and then all backward
/// passes, which begin with micro-batch 0 here, so that gradients are added in the order of
/// [`one_forward_one_backward`]. A part beyond the last has no work.
#[must_use]
pub fn gpipe(part: u32, shape: PipelineShape) -> Vec<Work> {
    if part >= shape.parts {
        return Vec::new();
    }
    let all = 0..shape.micro_batches;
    all.clone().map(Work::Forward).chain(all.map(Work::Backward)).collect()
}

/// The actions of a part: it receives the input of each pass from a neighbour directly before the
/// pass, and sends the output directly after it. The first part has its micro-batches, and the last
/// one its losses, without messages.
#[must_use]
pub fn messages(part: u32, shape: PipelineShape, order: Order) -> Vec<PartAction> {
    let passes = order(part, shape).into_iter();
    passes.flat_map(|work| pass_actions(part, shape, work)).collect()
}

/// A pass of a part, with the receive in front of it and the send behind it.
pub(super) fn pass_actions(
    part: u32,
    shape: PipelineShape,
    work: Work,
) -> impl Iterator<Item = PartAction> {
    let earlier = part.checked_sub(1);
    let later = part.checked_add(1).filter(|&later| later < shape.parts);
    let (from, to, kind, micro_batch) = match work {
        Work::Forward(micro_batch) => (earlier, later, MessageKind::Activation, micro_batch),
        Work::Backward(micro_batch) => (later, earlier, MessageKind::Gradient, micro_batch),
    };
    let receive = from.map(|from| PartAction::Receive { from, kind, micro_batch });
    let send = to.map(|to| PartAction::Send { to, kind, micro_batch });
    receive.into_iter().chain([PartAction::Compute(work)]).chain(send)
}

#[cfg(test)]
mod tests {
    use super::Work::{Backward, Forward};
    use super::*;

    fn shape(parts: u32, micro_batches: u32) -> PipelineShape {
        PipelineShape::new(parts, micro_batches).unwrap()
    }

    #[test]
    fn one_forward_one_backward_is_that_of_the_paper() {
        let order = |part| one_forward_one_backward(part, shape(3, 4));
        let first = [
            Forward(0),
            Forward(1),
            Forward(2),
            Backward(0),
            Forward(3),
            Backward(1),
            Backward(2),
            Backward(3),
        ];
        assert_eq!(order(0), first);
        let last: Vec<Work> = (0..4).flat_map(|own| [Forward(own), Backward(own)]).collect();
        assert_eq!(order(2), last);
        assert_eq!(order(3), []);
        assert_eq!(one_forward_one_backward(0, shape(4, 1)), [Forward(0), Backward(0)]);
    }

    #[test]
    fn each_part_ends_its_passes_in_the_order_of_the_micro_batches() {
        for parts in 1..=8 {
            for micro_batches in 1..=12 {
                for part in 0..parts {
                    for order in [one_forward_one_backward, gpipe] {
                        let order = order(part, shape(parts, micro_batches));
                        let forward = |work: &Work| match *work {
                            Forward(own) => Some(own),
                            Backward(_) => None,
                        };
                        let backward = |work: &Work| match *work {
                            Forward(_) => None,
                            Backward(own) => Some(own),
                        };
                        assert!(order.iter().filter_map(forward).eq(0..micro_batches));
                        assert!(order.iter().filter_map(backward).eq(0..micro_batches));
                    }
                }
            }
        }
    }

    #[test]
    fn a_part_has_as_many_micro_batches_in_flight_as_parts_follow_and_itself() {
        for parts in 1..=8 {
            for micro_batches in 1..=12 {
                for part in 0..parts {
                    let (mut in_flight, mut most) = (0_u32, 0);
                    for work in one_forward_one_backward(part, shape(parts, micro_batches)) {
                        match work {
                            Forward(_) => in_flight += 1,
                            Backward(_) => in_flight -= 1,
                        }
                        most = most.max(in_flight);
                    }
                    assert_eq!(most, (parts - part).min(micro_batches));
                }
            }
        }
    }

    #[test]
    fn messages_surround_the_passes() {
        use MessageKind::{Activation, Gradient};
        use PartAction::{Compute, Receive, Send};
        let expected = [
            Receive { from: 0, kind: Activation, micro_batch: 0 },
            Compute(Forward(0)),
            Send { to: 2, kind: Activation, micro_batch: 0 },
            Receive { from: 2, kind: Gradient, micro_batch: 0 },
            Compute(Backward(0)),
            Send { to: 0, kind: Gradient, micro_batch: 0 },
        ];
        assert_eq!(messages(1, shape(3, 1), one_forward_one_backward), expected);
        let alone = [Compute(Forward(0)), Compute(Backward(0))];
        assert_eq!(messages(0, shape(1, 1), gpipe), alone);
    }

    #[test]
    fn each_message_has_one_sender_and_one_receiver() {
        for (parts, micro_batches) in [(1, 3), (2, 1), (4, 6), (5, 3)] {
            for order in [one_forward_one_backward, gpipe] {
                let (mut sent, mut received) = (Vec::new(), Vec::new());
                for part in 0..parts {
                    for action in messages(part, shape(parts, micro_batches), order) {
                        match action {
                            PartAction::Send { to, kind, micro_batch } => {
                                sent.push((part, to, kind, micro_batch));
                            }
                            PartAction::Receive { from, kind, micro_batch } => {
                                received.push((from, part, kind, micro_batch));
                            }
                            PartAction::Compute(_) => {}
                        }
                    }
                }
                sent.sort_unstable();
                received.sort_unstable();
                assert_eq!(sent, received);
                assert_eq!(sent.len() as u32, 2 * (parts - 1) * micro_batches);
            }
        }
    }

    #[test]
    fn wrong_shapes_are_refused() {
        for (parts, micro_batches) in
            [(0, 1), (1, 0), (PARTS_MAX + 1, 1), (1, MICRO_BATCHES_MAX + 1)]
        {
            let refused = PipelineShape::new(parts, micro_batches);
            assert_eq!(refused, Err(ShapeError { parts, micro_batches }));
        }
        assert!(PipelineShape::new(PARTS_MAX, MICRO_BATCHES_MAX).is_ok());
    }
}
