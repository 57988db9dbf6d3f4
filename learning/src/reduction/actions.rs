//! The actions of each rank: a plan, expanded for an assignment and a length.
//!
//! A rank has a flat vector for each of its largest blocks, a *slot*, which has the number of the
//! block's first part. A piece of a block's sum is at one rank, in one slot. An addition takes two
//! pieces of the same elements, and a [`ReductionRule`] chooses the place of the result.

use std::ops::Range;

use super::plan::{ReductionPlan, ReductionRule};
use super::{ELEMENT_BYTES, ROOT};
use crate::virtual_workers::{Assignment, Merge, merges};

/// A piece of a sum that travels from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceTransfer {
    /// The other rank.
    pub peer: u32,
    /// The vector of this rank that has the elements, or receives them: the number of a part. A
    /// receiver without this vector makes a new one of the whole length.
    pub slot: usize,
    /// The parts whose sum travels.
    pub block: Range<usize>,
    /// The elements that travel.
    pub elements: Range<u64>,
    /// The number of the transfer, the same at both ranks and unique in the reduction. A rank
    /// receives the transfers of another one in the order of its sends, so an ordered channel needs
    /// no tags.
    pub tag: u32,
}

/// An action of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReductionAction {
    /// Sends a piece without waiting. The piece is not written before its receiver has it.
    Send(PieceTransfer),
    /// Waits for a piece and adds it to the elements of the slot. Addition is commutative: the sum
    /// has the same bits on both sides of a merge, unless both operands are NaN.
    ReceiveAdd(PieceTransfer),
    /// Waits for a piece and writes it to the slot.
    Receive(PieceTransfer),
    /// Adds the elements of one own slot to those of another.
    Merge {
        /// The slots.
        slots: Merge,
        /// The elements.
        elements: Range<u64>,
    },
}

impl ReductionAction {
    /// The elements that the action reads or writes.
    #[must_use]
    pub fn elements(&self) -> &Range<u64> {
        match self {
            Self::Merge { elements, .. } => elements,
            Self::Send(piece) | Self::ReceiveAdd(piece) | Self::Receive(piece) => &piece.elements,
        }
    }

    /// Bytes of the elements.
    pub(super) fn bytes(&self) -> u64 {
        (self.elements().end - self.elements().start).saturating_mul(ELEMENT_BYTES)
    }

    /// Whether the action adds.
    pub(super) fn is_addition(&self) -> bool {
        matches!(self, Self::ReceiveAdd(_) | Self::Merge { .. })
    }
}

impl ReductionPlan {
    /// The actions of each rank for the sums of `parts` parts with `elements` elements. Before them
    /// each rank has made the additions of the subtrees whose parts are all its own
    /// ([`merges_after`](crate::virtual_workers::merges_after)); after them the total is at rank 0,
    /// in slot 0, and other slots have no defined content. The chunks follow each other from the
    /// last elements to the first, as the backward pass finishes them.
    ///
    /// No rank waits forever: the actions of all ranks are restrictions of one order of steps in
    /// which all sends of a step precede its receives, a send needs results of earlier steps only,
    /// and a receive needs a send of its own step, so the earliest open action can always be done.
    ///
    /// A vector without elements has no actions. Parts without an owner count as parts of rank 0,
    /// as in [`Assignment::owner`].
    #[must_use]
    pub fn actions(
        self,
        assignment: &Assignment,
        parts: usize,
        elements: u64,
    ) -> Vec<Vec<ReductionAction>> {
        let owners: Vec<u32> = (0..parts).map(|part| assignment.owner(part)).collect();
        let mut expansion = PlanExpansion { plan: self, owners: &owners, tags: 0 };
        let chunks = u64::from(self.chunks());
        let start = |chunk: u64| elements / chunks * chunk + (elements % chunks).min(chunk);
        let ranges = (0..chunks).rev().map(|chunk| start(chunk)..start(chunk + 1));
        let stages: Vec<_> = ranges.map(|chunk| expansion.chunk(chunk)).collect();
        pipeline(stages, assignment.ranges().len())
    }
}

/// The levels that have additions between ranks, in ascending order.
pub(super) fn shared_levels(assignment: &Assignment, parts: usize) -> Vec<u32> {
    let shared = merges(parts).filter(|merge| {
        let end = (2 * merge.from - merge.into).min(parts);
        assignment.owner(merge.into) != assignment.owner(end - 1)
    });
    let mut levels: Vec<u32> = shared.map(level).collect();
    levels.dedup();
    levels
}

/// The level of an addition: the logarithm of its distance.
fn level(merge: Merge) -> u32 {
    (merge.from - merge.into).ilog2()
}

/// One stage of a chunk: a level of the tree, or a step of the return to rank 0. Each action has
/// its rank.
#[derive(Default)]
struct ChunkStage {
    sends: Vec<(u32, ReductionAction)>,
    others: Vec<(u32, ReductionAction)>,
}

/// Interleaves the stages of all chunks: stage `s` of chunk `c` is in step `c + s`, so that a rank
/// has sent the next chunk before it waits for the next stage of this one.
fn pipeline(mut chunks: Vec<Vec<ChunkStage>>, ranks: usize) -> Vec<Vec<ReductionAction>> {
    let mut programs = vec![Vec::new(); ranks];
    let depth = chunks.iter().map(Vec::len).max().unwrap_or(0);
    for step in 0..chunks.len() + depth {
        let first = (step + 1).saturating_sub(depth);
        let mut stages: Vec<ChunkStage> = Vec::new();
        for (chunk, stages_of) in chunks.iter_mut().enumerate().take(step + 1).skip(first) {
            stages.extend(stages_of.get_mut(step - chunk).map(std::mem::take));
        }
        let (sends, others): (Vec<_>, Vec<_>) =
            stages.into_iter().map(|stage| (stage.sends, stage.others)).unzip();
        for (rank, action) in sends.into_iter().chain(others).flatten() {
            programs[rank as usize].push(action);
        }
    }
    programs
}

/// A rank, and one of its slots.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PieceHolder {
    rank: u32,
    slot: usize,
}

/// The elements of a chunk in order, without gaps; each run of them has its holder.
type PiecePlaces = Vec<(Range<u64>, PieceHolder)>;

/// Elements that two lists have at one holder each.
struct PieceRun {
    elements: Range<u64>,
    left: PieceHolder,
    right: PieceHolder,
}

/// The runs of two lists of places. All of them are dyadic intervals of their chunk, so the sum of
/// a block of `2^l` parts has at most `2^l` of them.
fn overlay(
    left: &[(Range<u64>, PieceHolder)],
    right: &[(Range<u64>, PieceHolder)],
) -> Vec<PieceRun> {
    let (mut at_left, mut at_right) = (0, 0);
    let mut runs = Vec::new();
    while let (Some((elements, left)), Some((others, right))) =
        (left.get(at_left), right.get(at_right))
    {
        let end = elements.end.min(others.end);
        let common = elements.start.max(others.start)..end;
        runs.push(PieceRun { elements: common, left: *left, right: *right });
        at_left += usize::from(elements.end == end);
        at_right += usize::from(others.end == end);
    }
    runs
}

/// Joins neighbouring runs of the same holders, so that they travel in one message.
fn joined(runs: Vec<PieceRun>) -> Vec<PieceRun> {
    let mut joined: Vec<PieceRun> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if (last.left, last.right) == (run.left, run.right) => {
                last.elements.end = run.elements.end;
            }
            _ => joined.push(run),
        }
    }
    joined
}

impl ReductionRule {
    /// The places of the sum of a run, for block `into` and the block to its right.
    fn places(self, run: &PieceRun, into: usize) -> PiecePlaces {
        let PieceRun { elements, left, right } = run;
        let whole = |holder| vec![(elements.clone(), holder)];
        match self {
            _ if left.rank == right.rank => whole(*left),
            ReductionRule::Tree => whole(*left),
            ReductionRule::Root if left.rank == ROOT => whole(*left),
            // The total is in slot 0, also where rank 0 has the other sum in a further slot.
            ReductionRule::Root => whole(PieceHolder { rank: ROOT, slot: into }),
            ReductionRule::Halving if right.rank == ROOT => {
                whole(PieceHolder { rank: ROOT, slot: into })
            }
            ReductionRule::Halving => {
                let middle = elements.start + (elements.end - elements.start).div_ceil(2);
                let halves = [(elements.start..middle, *left), (middle..elements.end, *right)];
                halves.into_iter().filter(|(half, _)| !half.is_empty()).collect()
            }
        }
    }
}

/// The expansion of the chunks of a plan.
struct PlanExpansion<'a> {
    plan: ReductionPlan,
    /// The rank of each part.
    owners: &'a [u32],
    /// Transfers so far.
    tags: u32,
}

impl PlanExpansion<'_> {
    /// The stages of a chunk: one for each level, then the steps of the return.
    fn chunk(&mut self, chunk: Range<u64>) -> Vec<ChunkStage> {
        let parts = self.owners.len();
        let place =
            |(slot, &rank): (usize, &u32)| vec![(chunk.clone(), PieceHolder { rank, slot })];
        let mut places: Vec<PiecePlaces> = self.owners.iter().enumerate().map(place).collect();
        let mut stages: Vec<ChunkStage> = Vec::new();
        let mut history = Vec::new();
        for merge in merges(parts) {
            let block = merge.into..(2 * merge.from - merge.into).min(parts);
            if chunk.is_empty() || self.owners[block.start] == self.owners[block.end - 1] {
                continue;
            }
            let at = level(merge) as usize;
            stages.resize_with(stages.len().max(at + 1), ChunkStage::default);
            let from = std::mem::take(&mut places[merge.from]);
            let runs = overlay(&places[merge.into], &from);
            let sum = self.addition(merge, block.end, runs, &mut stages[at]);
            let before = std::mem::replace(&mut places[merge.into], sum);
            if merge.into == 0 {
                history.push(before);
            }
        }
        if let Some(total) = places.into_iter().next() {
            stages.extend(self.return_to_root(total, history));
        }
        stages
    }

    /// The actions of an addition, and the places of its sum. The block at `merge.from` ends at
    /// `end`.
    fn addition(
        &mut self,
        merge: Merge,
        end: usize,
        runs: Vec<PieceRun>,
        stage: &mut ChunkStage,
    ) -> PiecePlaces {
        let rule = self.plan.rules().at(level(merge));
        let (left, right) = (merge.into..merge.from, merge.from..end);
        let mut sum = PiecePlaces::new();
        for run in runs {
            let (a, b) = (run.left, run.right);
            for (elements, to) in rule.places(&run, merge.into) {
                sum.push((elements.clone(), to));
                if a.rank != to.rank {
                    let action = if b == to {
                        ReductionAction::ReceiveAdd
                    } else {
                        ReductionAction::Receive
                    };
                    self.transfer(stage, [a, to], left.clone(), elements.clone(), action);
                }
                if b.rank != to.rank {
                    let add = ReductionAction::ReceiveAdd;
                    self.transfer(stage, [b, to], right.clone(), elements, add);
                } else if b != to {
                    let slots = Merge { into: to.slot, from: b.slot };
                    stage.others.push((to.rank, ReductionAction::Merge { slots, elements }));
                }
            }
        }
        sum
    }

    /// The steps that take back the moves of block 0, the last one first, until all elements are at
    /// rank 0. `history` has the places of the block before each of its additions.
    fn return_to_root(
        &mut self,
        mut total: PiecePlaces,
        history: Vec<PiecePlaces>,
    ) -> Vec<ChunkStage> {
        let all = 0..self.owners.len();
        let mut stages = Vec::new();
        for before in history.into_iter().rev() {
            let mut stage = ChunkStage::default();
            let runs = joined(overlay(&total, &before));
            total = PiecePlaces::new();
            for PieceRun { elements, left: now, right: before } in runs {
                if now.rank == ROOT || now == before {
                    total.push((elements, now));
                    continue;
                }
                total.push((elements.clone(), before));
                self.transfer(
                    &mut stage,
                    [now, before],
                    all.clone(),
                    elements,
                    ReductionAction::Receive,
                );
            }
            stages.push(stage);
        }
        stages
    }

    /// A transfer between two holders; `action` is the receiver's.
    fn transfer(
        &mut self,
        stage: &mut ChunkStage,
        [from, to]: [PieceHolder; 2],
        block: Range<usize>,
        elements: Range<u64>,
        action: fn(PieceTransfer) -> ReductionAction,
    ) {
        let tag = self.tags;
        self.tags += 1;
        let sent = PieceTransfer { peer: to.rank, slot: from.slot, block, elements, tag };
        let received = PieceTransfer { peer: from.rank, slot: to.slot, ..sent.clone() };
        stage.sends.push((from.rank, ReductionAction::Send(sent)));
        stage.others.push((to.rank, action(received)));
    }
}
