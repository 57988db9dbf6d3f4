//! The processes of a pipeline's parts.

use serde::Serialize;

use super::schedule::pass_actions;
use super::{PartEvent, PipelineShape, Work, one_forward_one_backward};

/// The processes of a pipeline's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PartPlacement {
    /// Each part has a process of its own.
    #[default]
    Separate,
    /// Process 0 has the first and the last part, and with them all rows and labels; each other process
    /// has one part between them. It is the U shape of split learning (Vepakomma et al. 2018).
    EndsTogether,
}

impl PartPlacement {
    /// The parts of a pipeline on this number of processes.
    #[must_use]
    pub fn parts(self, processes: u32) -> u32 {
        match self {
            Self::Separate => processes,
            Self::EndsTogether => processes + 1,
        }
    }

    /// The process of a part, of a pipeline of `parts` parts.
    #[must_use]
    pub fn process(self, part: u32, parts: u32) -> u32 {
        match self {
            Self::EndsTogether if part + 1 == parts => 0,
            _ => part,
        }
    }

    /// The parts of a process, in their order.
    pub fn parts_of(self, process: u32, parts: u32) -> impl Iterator<Item = u32> {
        (0..parts).filter(move |&part| self.process(part, parts) == process)
    }

    /// The actions of a process in the order
    /// [`one_forward_one_backward`]. With both ends, process 0 merges the orders of its parts: after the
    /// first forward passes of part 0, each micro-batch has both passes of the last part, the next
    /// forward pass of part 0, and the own backward pass of part 0. So a gradient leaves the process
    /// as soon as it is computed.
    #[must_use]
    pub fn actions(self, process: u32, shape: PipelineShape) -> Vec<PartEvent> {
        let passes = match self {
            Self::EndsTogether if process == 0 => order_of_ends(shape),
            _ => one_forward_one_backward(process, shape)
                .into_iter()
                .map(|work| (process, work))
                .collect(),
        };
        let events = passes.into_iter().flat_map(|(part, work)| {
            pass_actions(part, shape, work).map(move |action| PartEvent { part, action })
        });
        events.collect()
    }

    /// Messages from one process to another that have not ended at most, such that no send waits. A
    /// message that arrives before an earlier one ends behind it.
    #[must_use]
    pub fn capacity(self, shape: PipelineShape) -> usize {
        let of_link = super::capacity_needed(shape);
        match self {
            Self::Separate => of_link,
            // On two processes both kinds of messages have one way.
            Self::EndsTogether => 2 * of_link,
        }
    }
}

/// The passes of the process with the first and the last part.
fn order_of_ends(shape: PipelineShape) -> Vec<(u32, Work)> {
    let last = shape.parts() - 1;
    let mut first = one_forward_one_backward(0, shape).into_iter().map(|work| (0, work)).peekable();
    let mut order = Vec::new();
    for micro_batch in 0..shape.micro_batches() {
        if micro_batch == 0 {
            let ahead = last.min(shape.micro_batches()) as usize;
            order.extend(first.by_ref().take(ahead));
        }
        order.extend([(last, Work::Forward(micro_batch)), (last, Work::Backward(micro_batch))]);
        for (part, work) in first.by_ref() {
            order.push((part, work));
            if work == Work::Backward(micro_batch) {
                break;
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::Work::{Backward, Forward};
    use super::*;
    use crate::pipeline::{PartAction, can_placed_deadlock};

    fn shapes() -> impl Iterator<Item = (u32, PipelineShape)> {
        (2..=4).flat_map(|processes| {
            let parts = PartPlacement::EndsTogether.parts(processes);
            (1..=6).map(move |own| (processes, PipelineShape::new(parts, own).unwrap()))
        })
    }

    fn passes(events: &[PartEvent]) -> Vec<(u32, Work)> {
        let work = |event: &PartEvent| match event.action {
            PartAction::Compute(work) => Some((event.part, work)),
            _ => None,
        };
        events.iter().filter_map(work).collect()
    }

    #[test]
    fn the_first_and_the_last_part_are_on_one_process() {
        let ends = PartPlacement::EndsTogether;
        assert_eq!(ends.parts(3), 4);
        assert!((0..4).map(|part| ends.process(part, 4)).eq([0, 1, 2, 0]));
        assert!(ends.parts_of(0, 4).eq([0, 3]) && ends.parts_of(2, 4).eq([2]));
        let separate = PartPlacement::Separate;
        assert!(separate.parts(3) == 3 && separate.parts_of(2, 3).eq([2]));
    }

    #[test]
    fn the_order_of_both_ends_merges_those_of_its_parts() {
        let events = PartPlacement::EndsTogether.actions(0, PipelineShape::new(3, 3).unwrap());
        let expected = [
            (0, Forward(0)),
            (0, Forward(1)),
            (2, Forward(0)),
            (2, Backward(0)),
            (0, Forward(2)),
            (0, Backward(0)),
            (2, Forward(1)),
            (2, Backward(1)),
            (0, Backward(1)),
            (2, Forward(2)),
            (2, Backward(2)),
            (0, Backward(2)),
        ];
        assert_eq!(passes(&events), expected);
        for (_, shape) in shapes() {
            let last = shape.parts() - 1;
            let all = passes(&PartPlacement::EndsTogether.actions(0, shape));
            for part in [0, last] {
                let own = all.iter().filter(|(at, _)| *at == part).map(|(_, work)| *work);
                assert!(own.eq(one_forward_one_backward(part, shape)), "{shape:?}");
            }
        }
    }

    #[test]
    fn processes_with_both_ends_never_deadlock() {
        for (processes, shape) in shapes() {
            let ends = PartPlacement::EndsTogether;
            let all: Vec<_> = (0..processes).map(|own| ends.actions(own, shape)).collect();
            for capacity in [ends.capacity(shape), usize::MAX] {
                assert_eq!(can_placed_deadlock(&all, capacity), Ok(None), "{shape:?} {capacity}");
            }
        }
    }

    /// Both passes of the last part before those of the first one: the process waits for an input
    /// that it has not made.
    #[test]
    fn another_order_of_both_ends_deadlocks() {
        for (processes, shape) in shapes() {
            let ends = PartPlacement::EndsTogether;
            let mut all: Vec<_> = (0..processes).map(|own| ends.actions(own, shape)).collect();
            all[0].sort_by_key(|event| event.part == 0);
            let found = can_placed_deadlock(&all, ends.capacity(shape)).unwrap();
            assert_eq!(found.unwrap().blocked.len(), processes as usize, "{shape:?}");
        }
    }
}
