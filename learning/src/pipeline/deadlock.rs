//! A model checker for the messages of a pipeline.
//!
//! Each part executes its actions in their order. A channel leads from each part to each other one.
//! It is a queue: a receive waits until the message in front is its own. Where a process has several
//! parts, a channel leads from each process to each other one, and a receive takes its message by
//! micro-batch and kind, as the transfers of ranks do. The checker visits all states that any interleaving reaches, breadth first (explicit-state model checking: Clarke,
//! Grumberg and Peled, Model Checking, 1999). A state is the number of actions that each part has
//! executed; the messages in the channels follow from it.

use std::collections::{HashMap, HashSet};

use thiserror::Error;

use super::{MessageKind, PARTS_MAX, PartAction, PipelineShape};

/// States of a check, at most.
pub const STATES_MAX: usize = 1 << 20;

/// An action of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartEvent {
    /// The part.
    pub part: u32,
    /// Its action.
    pub action: PartAction,
}

/// A state in which no part can go on, though not all have ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deadlock {
    /// The executed actions, in an order that leads to the state. No other one is shorter.
    pub trace: Vec<PartEvent>,
    /// The action that each part waits for, except for parts that have ended.
    pub blocked: Vec<PartEvent>,
}

/// A check has no answer.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum CheckError {
    /// An action names the part itself, or one that does not exist.
    #[error("part {part} has a message with part {other} of {parts}")]
    NoSuchPart {
        /// The part with the action.
        part: usize,
        /// The part that the action names.
        other: u32,
        /// Parts.
        parts: usize,
    },
    /// There are too many parts.
    #[error("a check has at most {PARTS_MAX} parts, not {parts}")]
    TooManyParts {
        /// Parts.
        parts: usize,
    },
    /// The parts have too many states.
    #[error("the parts have more than {STATES_MAX} states")]
    TooManyStates,
}

/// Searches for a deadlock of parts with these actions, in all interleavings. A channel holds at
/// most `channel_capacity` messages, and a send waits for room; with a capacity of 0, it waits
/// until the receiver executes the receive (rendezvous).
///
/// # Errors
/// [`CheckError`] if an action names a part that does not exist, or if there are too many states.
pub fn can_deadlock(
    parts: &[Vec<PartAction>],
    channel_capacity: usize,
) -> Result<Option<Deadlock>, CheckError> {
    let of_part = |(part, actions): (u32, &Vec<PartAction>)| {
        actions.iter().map(|&action| PartEvent { part, action }).collect()
    };
    let processes: Vec<Vec<PartEvent>> = (0..).zip(parts).map(of_part).collect();
    System::new(&processes, Matching::InOrder)?.explore(channel_capacity, &mut |_| {})
}

/// As [`can_deadlock`] for processes with one or several parts each. A receive takes a message of its
/// micro-batch and kind from the sending process. A channel is full with `channel_capacity` messages from
/// the earliest one on that has not arrived.
///
/// # Errors
/// [`CheckError`] if an action names a part that no other process has, or if there are too many states.
pub fn can_placed_deadlock(
    processes: &[Vec<PartEvent>],
    channel_capacity: usize,
) -> Result<Option<Deadlock>, CheckError> {
    System::new(processes, Matching::ByTag)?.explore(channel_capacity, &mut |_| {})
}

/// The messages that a channel can hold at most in the order
/// [`one_forward_one_backward`](super::one_forward_one_backward): with this capacity, no send
/// waits. The micro-batch of such a message is in flight in the earlier of the two parts, which has
/// ended its forward pass and has not begun its backward pass. Part `p` of `P` has at most `P − p`
/// micro-batches in flight.
#[must_use]
pub fn capacity_needed(shape: PipelineShape) -> usize {
    if shape.parts() == 1 { 0 } else { shape.parts().min(shape.micro_batches()) as usize }
}

/// The identity of a message in its channel.
type Tag = (MessageKind, u32);

/// The message that a receive takes.
#[derive(Clone, Copy, PartialEq)]
enum Matching {
    /// The one in front.
    InOrder,
    /// The one with its tag.
    ByTag,
}

/// The messages from one process to another.
#[derive(Default)]
struct Channel {
    /// The messages, in the order of their sends.
    tags: Vec<Tag>,
    /// Messages sent, by the number of actions that the sender has executed.
    sent: Vec<usize>,
    /// Messages received in front of the first one that is not, by the number of actions that the
    /// receiver has executed.
    received: Vec<usize>,
    sender: usize,
    receiver: usize,
}

impl Channel {
    fn fill(&self, counters: &[u32]) -> usize {
        let sent = self.sent[counters[self.sender] as usize];
        sent - self.received[counters[self.receiver] as usize]
    }

    /// Whether a receive can take a message.
    fn has(&self, tag: Tag, counters: &[u32], matching: Matching) -> bool {
        let (sent, received) = (
            self.sent[counters[self.sender] as usize],
            self.received[counters[self.receiver] as usize],
        );
        match matching {
            Matching::InOrder => self.tags[received..sent].first() == Some(&tag),
            Matching::ByTag => self.tags[received..sent].contains(&tag),
        }
    }
}

/// An action, with the number of its channel.
#[derive(Clone, Copy, PartialEq)]
enum Move {
    Receive(usize, Tag),
    Compute,
    Send(usize, Tag),
}

struct System<'a> {
    processes: &'a [Vec<PartEvent>],
    matching: Matching,
    moves: Vec<Vec<Move>>,
    channels: Vec<Channel>,
}

impl<'a> System<'a> {
    fn new(processes: &'a [Vec<PartEvent>], matching: Matching) -> Result<Self, CheckError> {
        if processes.len() > PARTS_MAX as usize {
            return Err(CheckError::TooManyParts { parts: processes.len() });
        }
        let places = (0..).zip(processes);
        let places = places.flat_map(|(at, events)| events.iter().map(move |own| (own.part, at)));
        let mut place_of: HashMap<u32, usize> = places.collect();
        if matching == Matching::InOrder {
            // A part may have no action.
            place_of = (0..).zip(0..processes.len()).collect();
        }
        let mut system = Self { processes, matching, moves: Vec::new(), channels: Vec::new() };
        let mut numbers = HashMap::new();
        for (process, events) in processes.iter().enumerate() {
            let mut moves = Vec::with_capacity(events.len());
            for &PartEvent { part, action } in events {
                let (other, tag, is_send) = match action {
                    PartAction::Compute(_) => {
                        moves.push(Move::Compute);
                        continue;
                    }
                    PartAction::Receive { from, kind, micro_batch } => {
                        (from, (kind, micro_batch), false)
                    }
                    PartAction::Send { to, kind, micro_batch } => (to, (kind, micro_batch), true),
                };
                let Some(place) = place_of.get(&other).copied().filter(|&own| own != process)
                else {
                    let parts = place_of.len();
                    return Err(CheckError::NoSuchPart { part: part as usize, other, parts });
                };
                let (sender, receiver) = if is_send { (process, place) } else { (place, process) };
                let number = *numbers.entry((sender, receiver)).or_insert_with(|| {
                    system.channels.push(Channel { sender, receiver, ..Default::default() });
                    system.channels.len() - 1
                });
                moves.push(match is_send {
                    true => Move::Send(number, tag),
                    false => Move::Receive(number, tag),
                });
            }
            system.moves.push(moves);
        }
        system.count_messages();
        Ok(system)
    }

    /// Fills the tables of the channels.
    fn count_messages(&mut self) {
        for (number, channel) in self.channels.iter_mut().enumerate() {
            channel.sent.push(0);
            for &own in &self.moves[channel.sender] {
                if let Move::Send(to, tag) = own
                    && to == number
                {
                    channel.tags.push(tag);
                }
                channel.sent.push(channel.tags.len());
            }
            let mut received = 0;
            let mut has_arrived = HashSet::new();
            channel.received.push(0);
            for own in &self.moves[channel.receiver] {
                if let Move::Receive(from, tag) = *own
                    && from == number
                {
                    has_arrived.insert(tag);
                    match self.matching {
                        Matching::InOrder => received += 1,
                        Matching::ByTag => {
                            let open = &channel.tags[received..];
                            let ended = open.iter().take_while(|tag| has_arrived.contains(tag));
                            received += ended.count();
                        }
                    }
                }
                channel.received.push(received);
            }
        }
    }

    /// Visits all states, and calls `look` with the counters of each, until one is a deadlock.
    fn explore(
        &self,
        capacity: usize,
        look: &mut dyn FnMut(&[u32]),
    ) -> Result<Option<Deadlock>, CheckError> {
        let start = vec![0_u32; self.processes.len()];
        let mut seen = HashSet::from([start.clone()]);
        // Each state, with the number of the one that led to it.
        let mut states = vec![(start, 0)];
        let mut at = 0;
        while at < states.len() {
            look(&states[at].0);
            let mut next = Vec::new();
            for process in 0..self.processes.len() {
                next.extend(self.after(process, &states[at].0, capacity));
            }
            let has_ended = |(&done, moves): (&u32, &Vec<Move>)| done as usize == moves.len();
            if next.is_empty() && !states[at].0.iter().zip(&self.moves).all(has_ended) {
                return Ok(Some(self.deadlock(&states, at)));
            }
            for state in next {
                if seen.insert(state.clone()) {
                    if states.len() == STATES_MAX {
                        return Err(CheckError::TooManyStates);
                    }
                    states.push((state, at));
                }
            }
            at += 1;
        }
        Ok(None)
    }

    fn next_move(&self, part: usize, counters: &[u32]) -> Option<Move> {
        self.moves[part].get(counters[part] as usize).copied()
    }

    /// The state after the next action of a part, if it can be executed. A rendezvous is an action
    /// of the sender here.
    fn after(&self, part: usize, counters: &[u32], capacity: usize) -> Option<Vec<u32>> {
        let mut next = counters.to_vec();
        match self.next_move(part, counters)? {
            Move::Compute => {}
            Move::Receive(from, tag) => {
                if !self.channels[from].has(tag, counters, self.matching) {
                    return None;
                }
            }
            Move::Send(to, tag) if capacity == 0 => {
                let receiver = self.channels[to].receiver;
                let other = self.next_move(receiver, counters)?;
                if other != Move::Receive(to, tag) {
                    return None;
                }
                next[receiver] += 1;
            }
            Move::Send(to, _) => {
                if self.channels[to].fill(counters) >= capacity {
                    return None;
                }
            }
        }
        next[part] += 1;
        Some(next)
    }

    /// Describes a state, from the states that led to it.
    fn deadlock(&self, states: &[(Vec<u32>, usize)], last: usize) -> Deadlock {
        let event = |process: usize, counters: &[u32]| {
            self.processes[process].get(counters[process] as usize).copied()
        };
        let mut trace = Vec::new();
        let mut at = last;
        while at > 0 {
            let (after, from) = (&states[at].0, states[at].1);
            let before = &states[from].0;
            let moved = (0..self.processes.len()).filter(|&part| before[part] < after[part]);
            let mut events: Vec<PartEvent> = moved.filter_map(|part| event(part, before)).collect();
            // The trace is built from its end: the receive of a rendezvous follows its send.
            events.sort_by_key(|event| matches!(event.action, PartAction::Send { .. }));
            trace.extend(events);
            at = from;
        }
        trace.reverse();
        let counters = &states[last].0;
        let blocked = (0..self.processes.len()).filter_map(|part| event(part, counters)).collect();
        Deadlock { trace, blocked }
    }
}

#[cfg(test)]
#[path = "deadlock_tests.rs"]
mod tests;
