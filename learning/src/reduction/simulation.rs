//! A discrete-event simulation of the actions of all ranks.
//!
//! A rank has one outgoing and one incoming port, and both work at once. The sends of a rank follow
//! each other. A transfer occupies the outgoing port for `alpha + beta · bytes` seconds and, after
//! the latency, the incoming port of its receiver for `beta · bytes`; transfers to one rank are
//! served in the order of their arrival there, and the sender waits. So the latencies of different
//! senders overlap, and each further chunk costs its sender one more `alpha`. Additions follow each
//! other on the processor of the rank, during which its ports work.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use super::ROOT;
use super::actions::{PieceTransfer, ReductionAction};
use super::cost::ReductionCosts;

/// Simulated seconds until rank 0 has made its last action, or none if that takes more than `limit`
/// seconds.
pub(super) fn simulate(
    programs: &[Vec<ReductionAction>],
    costs: &ReductionCosts,
    limit: f64,
) -> Option<f64> {
    let ranks = programs.iter().map(|program| SimulatedRank::new(program)).collect();
    let events = BinaryHeap::new();
    let mut simulation =
        ReductionSimulation { costs, ranks, arrivals: Vec::new(), events, posted: 0 };
    for rank in 0..programs.len() {
        simulation.advance(rank);
    }
    while let Some(Reverse(event)) = simulation.events.pop() {
        if event.seconds > limit {
            return None;
        }
        simulation.handle(event);
    }
    let root = simulation.ranks.get(ROOT as usize)?;
    (root.program.is_empty() && root.clock <= limit).then_some(root.clock)
}

/// A transfer on its way.
#[derive(Clone, Copy)]
struct PieceMessage {
    from: usize,
    to: usize,
    tag: usize,
    bytes: u64,
}

/// A message has passed the latency, or has arrived.
#[derive(Clone, Copy)]
struct MessageEvent {
    seconds: f64,
    /// The number of the event: of two at one time the earlier one is first.
    number: u64,
    message: PieceMessage,
    has_arrived: bool,
}

impl Ord for MessageEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        self.seconds.total_cmp(&other.seconds).then(self.number.cmp(&other.number))
    }
}

impl PartialOrd for MessageEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for MessageEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for MessageEvent {}

struct SimulatedRank<'a> {
    /// The open actions.
    program: &'a [ReductionAction],
    /// The end of the last action.
    clock: f64,
    /// Messages that wait for the outgoing port, with the times of their sends.
    outgoing: VecDeque<(f64, PieceMessage)>,
    /// Whether a message occupies the outgoing port.
    is_sending: bool,
    /// The end of the last transfer into this rank.
    incoming_end: f64,
}

impl<'a> SimulatedRank<'a> {
    fn new(program: &'a [ReductionAction]) -> Self {
        let outgoing = VecDeque::new();
        Self { program, clock: 0.0, outgoing, is_sending: false, incoming_end: 0.0 }
    }
}

struct ReductionSimulation<'a> {
    costs: &'a ReductionCosts<'a>,
    ranks: Vec<SimulatedRank<'a>>,
    /// When each message arrived, by tag.
    arrivals: Vec<Option<f64>>,
    events: BinaryHeap<Reverse<MessageEvent>>,
    /// Events so far.
    posted: u64,
}

impl ReductionSimulation<'_> {
    fn post(&mut self, seconds: f64, message: PieceMessage, has_arrived: bool) {
        self.posted += 1;
        self.events.push(Reverse(MessageEvent {
            seconds,
            number: self.posted,
            message,
            has_arrived,
        }));
    }

    fn handle(&mut self, event: MessageEvent) {
        let MessageEvent { seconds, message, has_arrived, .. } = event;
        if !has_arrived {
            let receiver = &mut self.ranks[message.to];
            let link = self.costs.links[message.from][message.to];
            let end = seconds.max(receiver.incoming_end) + link.beta * message.bytes as f64;
            receiver.incoming_end = end;
            return self.post(end, message, true);
        }
        if self.arrivals.len() <= message.tag {
            self.arrivals.resize(message.tag + 1, None);
        }
        self.arrivals[message.tag] = Some(seconds);
        self.ranks[message.from].is_sending = false;
        self.send_next(message.from, seconds);
        self.advance(message.to);
    }

    /// Gives the outgoing port its next message, if it is free since `free` and there is one.
    fn send_next(&mut self, rank: usize, free: f64) {
        let sender = &mut self.ranks[rank];
        if sender.is_sending {
            return;
        }
        let Some((sent, message)) = sender.outgoing.pop_front() else { return };
        sender.is_sending = true;
        let alpha = self.costs.links[message.from][message.to].alpha;
        self.post(sent.max(free) + alpha, message, false);
    }

    /// Makes the actions of a rank up to one that waits for a message.
    fn advance(&mut self, rank: usize) {
        while let Some((action, rest)) = self.ranks[rank].program.split_first() {
            let addition = self.costs.add_seconds_per_byte * action.bytes() as f64;
            let mut clock = self.ranks[rank].clock.max(self.costs.ready(rank, action.elements()));
            match action {
                ReductionAction::Merge { .. } => clock += addition,
                ReductionAction::Send(piece) => self.send(rank, clock, piece, action.bytes()),
                ReductionAction::ReceiveAdd(piece) | ReductionAction::Receive(piece) => {
                    let arrival = self.arrivals.get(piece.tag as usize).copied().flatten();
                    let Some(arrival) = arrival else { return };
                    clock = clock.max(arrival);
                    if action.is_addition() {
                        clock += addition;
                    }
                }
            }
            let rank = &mut self.ranks[rank];
            (rank.clock, rank.program) = (clock, rest);
        }
    }

    fn send(&mut self, rank: usize, clock: f64, piece: &PieceTransfer, bytes: u64) {
        let (to, tag) = (piece.peer as usize, piece.tag as usize);
        self.ranks[rank].outgoing.push_back((clock, PieceMessage { from: rank, to, tag, bytes }));
        self.send_next(rank, clock);
    }
}
