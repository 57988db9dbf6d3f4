//! The reduction of a step: the actions of this rank, on c10d.
//!
//! Receives begin ahead of their turn, so that numbers travel while others are added or computed.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tch::{Device, Kind, TchError, Tensor};

use super::{Ranks, transfer_failed};
use crate::engine::TrainError;
use crate::reduction::{PieceTransfer, ReductionAction};
use crate::torch::c10d::{ProcessGroup, Transfer};
use crate::torch::partial_sums::{PartialSums, ReadyElements};
use crate::torch::peers::{Peers, ReceivedSum};

/// The additions of a rank in a step.
pub(super) struct RankReduction<'r> {
    group: &'r ProcessGroup,
    limit: Duration,
    /// The longest wait for own elements is that of the computation.
    ready: &'r ReadyElements,
    sums: &'r mut PartialSums,
    actions: &'r [ReductionAction],
    /// The actions whose receives have begun are those before this one.
    begun: usize,
    /// Receives that have begun, in order, with their buffers.
    arriving: VecDeque<(Tensor, Transfer)>,
    /// Their elements; at most those of one sum, or one receive.
    arriving_elements: u64,
    sends: Vec<(u32, Transfer)>,
    /// Buffers of ended receives.
    free: Vec<Tensor>,
    received: Option<ReceivedSum>,
}

/// The sum that an audit draws from the receives of a rank: the rank that sends it, and its parts.
fn drawn(actions: &[ReductionAction], draw: u64) -> Option<(u32, Range<usize>)> {
    let mut sums: Vec<(u32, Range<usize>)> = Vec::new();
    for piece in actions.iter().filter_map(incoming) {
        let sum = (piece.peer, piece.block.clone());
        if !sums.contains(&sum) {
            sums.push(sum);
        }
    }
    let at = draw.checked_rem(sums.len() as u64)?;
    Some(sums.swap_remove(at as usize))
}

/// The piece that an action waits for.
fn incoming(action: &ReductionAction) -> Option<&PieceTransfer> {
    match action {
        ReductionAction::ReceiveAdd(piece) | ReductionAction::Receive(piece) => Some(piece),
        ReductionAction::Send(_) | ReductionAction::Merge { .. } => None,
    }
}

/// Some elements of a flat tensor.
fn elements_of(flat: &Tensor, elements: &Range<u64>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, elements.start as i64, (elements.end - elements.start) as i64)
}

impl Ranks {
    /// The actions of this rank in `sums` of `parts` parts; with `audit`, one received sum is copied.
    pub(super) fn reduction<'r>(
        &'r self,
        sums: &'r mut PartialSums,
        actions: &'r [ReductionAction],
        ready: &'r ReadyElements,
        audit: Option<u64>,
    ) -> RankReduction<'r> {
        let received = audit.and_then(|draw| drawn(actions, draw));
        let received = received.filter(|(_, parts)| self.can_audit(parts.len()));
        RankReduction {
            group: &self.group,
            limit: self.settings.limit,
            ready,
            sums,
            actions,
            begun: 0,
            arriving: VecDeque::new(),
            arriving_elements: 0,
            sends: Vec::new(),
            free: Vec::new(),
            received: received.map(|(from, parts)| ReceivedSum { from, parts, pieces: Vec::new() }),
        }
    }
}

impl RankReduction<'_> {
    /// Makes all actions, and waits until everything is sent.
    pub(super) fn run(mut self, elements: u64) -> Result<Option<ReceivedSum>, TrainError> {
        for (at, action) in self.actions.iter().enumerate() {
            self.begin_receives(at, elements)?;
            if !self.ready.wait(action.elements().start) {
                // The computation has failed, and states why.
                return Ok(None);
            }
            match action {
                ReductionAction::Send(piece) => self.send(piece)?,
                ReductionAction::Merge { slots, elements } => {
                    let from = elements_of(&self.sums.at(slots.from)?.flat, elements)?;
                    let mut into = elements_of(&self.sums.at(slots.into)?.flat, elements)?;
                    let _ = into.f_add_(&from)?;
                }
                ReductionAction::ReceiveAdd(piece) => self.receive(piece, true)?,
                ReductionAction::Receive(piece) => self.receive(piece, false)?,
            }
        }
        for (to, sent) in self.sends {
            sent.wait(self.limit).map_err(|error| transfer_failed(self.limit, Some(to), &error))?;
        }
        Ok(self.received)
    }

    fn send(&mut self, piece: &PieceTransfer) -> Result<(), TrainError> {
        let own = elements_of(&self.sums.at(piece.slot)?.flat, &piece.elements)?;
        let sent = self.group.send(&own.f_to_device(Device::Cpu)?, piece.peer, piece.tag);
        let failed = |error| transfer_failed(self.limit, Some(piece.peer), &error);
        self.sends.push((piece.peer, sent.map_err(failed)?));
        Ok(())
    }

    /// Begins the receives that follow, from action `at` on, as far as there is room for them.
    fn begin_receives(&mut self, at: usize, room: u64) -> Result<(), TrainError> {
        self.begun = self.begun.max(at);
        while let Some(action) = self.actions.get(self.begun) {
            if let Some(piece) = incoming(action) {
                let length = piece.elements.end - piece.elements.start;
                if !self.arriving.is_empty() && self.arriving_elements + length > room {
                    break;
                }
                let buffer = self.buffer(length as i64)?;
                let transfer = self.group.receive(&buffer, piece.peer, piece.tag);
                let failed = |error| transfer_failed(self.limit, Some(piece.peer), &error);
                self.arriving.push_back((buffer, transfer.map_err(failed)?));
                self.arriving_elements += length;
            }
            self.begun += 1;
        }
        Ok(())
    }

    fn buffer(&mut self, length: i64) -> Result<Tensor, TchError> {
        let fits = |buffer: &Tensor| buffer.size1().is_ok_and(|own| own >= length);
        match self.free.iter().position(fits) {
            Some(at) => self.free.swap_remove(at).f_narrow(0, 0, length),
            None => Tensor::f_empty(length, (Kind::Float, Device::Cpu)),
        }
    }

    fn receive(&mut self, piece: &PieceTransfer, adds: bool) -> Result<(), TrainError> {
        let Some((buffer, transfer)) = self.arriving.pop_front() else { return Ok(()) };
        let ended = transfer.wait(self.limit);
        ended.map_err(|error| transfer_failed(self.limit, Some(piece.peer), &error))?;
        let mut own = elements_of(&self.sums.at(piece.slot)?.flat, &piece.elements)?;
        match adds {
            true => {
                let _ = own.f_add_(&buffer.f_to_device(own.device())?)?;
            }
            false => own.f_copy_(&buffer)?,
        }
        self.arriving_elements -= piece.elements.end - piece.elements.start;
        match &mut self.received {
            Some(sum) if (sum.from, &sum.parts) == (piece.peer, &piece.block) => {
                sum.pieces.push((piece.elements.start, buffer));
            }
            _ => self.free.push(buffer),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduction::{LevelRules, ReductionPlan, ReductionRule};
    use crate::virtual_workers::Assignment;

    #[test]
    fn an_audit_draws_each_received_sum_with_all_its_pieces() {
        let assignment = Assignment::even(4, 4);
        let plan = ReductionPlan::new(3, LevelRules::uniform(ReductionRule::Tree)).unwrap();
        let actions = &plan.actions(&assignment, 4, 30)[0];
        let draw = |at| drawn(actions, at).unwrap();
        assert_eq!([draw(0), draw(1), draw(2)], [(1, 1..2), (2, 2..4), (1, 1..2)]);
        let pieces = actions.iter().filter_map(incoming);
        let covered: u64 = pieces
            .filter(|piece| (piece.peer, piece.block.clone()) == draw(1))
            .map(|piece| piece.elements.end - piece.elements.start)
            .sum();
        assert_eq!(covered, 30);
        assert_eq!(drawn(&[], 5), None);
    }
}
