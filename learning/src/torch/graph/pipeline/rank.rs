//! A rank of a pipeline: its stage in every step, the sums of all pipelines, and the total at rank 0.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::super::micro_batches::MicroBatches;
use super::super::net::GraphNet;
use super::cost::{CutRanks, pipeline_cut};
use super::fault;
use super::links::{MessageTag, StageLinks};
use super::stage::{StagePlan, segments};
use super::step::{StageStep, owned_ranges};
use crate::engine::{BackendError, TrainError};
use crate::pipeline::{
    LEAD_BYTES, PartAction, PinnedCut, PipelineShape, message_length, messages,
    one_forward_one_backward,
};
use crate::ranks::{PipelinePlace, RankError, RankErrorCode};
use crate::torch::batches::Rows;
use crate::torch::partial_sums::{PartialSums, elements_of};
use crate::torch::peers::{CutCosts, FoundCut, Peers, ReceivedSum};
use crate::virtual_workers::merges;

/// The first tag of the sums of two pipelines, and of the parts of the total: behind those of messages.
const SUM_TAGS: u32 = 1 << 20;
const TOTAL_TAGS: u32 = 1 << 21;

/// The stage of a rank, with the elements of each part.
pub(in crate::torch) struct RankPipeline<'n> {
    step: StageStep<'n>,
    place: PipelinePlace,
    /// The elements that each part writes.
    owned: Vec<Vec<Range<usize>>>,
}

impl<'n> RankPipeline<'n> {
    /// Agrees with all ranks on the cut, which rank 0 finds on the rows of one worker's part. `params` are
    /// aligned and have a tail; a full batch has `micro_batches` parts.
    ///
    /// # Errors
    /// [`RankErrorCode::PlanInvalid`] if the graph cannot be cut so, [`TrainError`] of the engine.
    pub(in crate::torch) fn agree(
        net: &'n GraphNet<'n>,
        params: &Tensor,
        rows: &Rows,
        micro_batches: usize,
        peers: &mut dyn Peers,
    ) -> Result<Option<Self>, TrainError> {
        let Some(place) = peers.pipeline() else { return Ok(None) };
        let found = match peers.rank() {
            0 => Some(find_cut(net, params, rows, place.parts, peers.cut_costs())?),
            _ => None,
        };
        let found =
            found.map(|(nodes, stage_seconds)| FoundCut { nodes, stage_seconds, micro_batches });
        let nodes = peers.agree_on_cut(found)?;
        let plan = StagePlan::new(net, nodes).map_err(|error| invalid(&error))?;
        if plan.parts() != place.parts {
            return Err(fault("rank 0 has cut the graph into another number of parts").into());
        }
        let owned = (0..place.parts).map(|part| owned_ranges(net, &plan, part, params));
        let owned = owned.collect::<Result<_, _>>()?;
        let step = StageStep::new(net, &plan, place.part, params)?;
        Ok(Some(Self { step, place, owned }))
    }

    /// Computes the stage of a batch, and the sums of all pipelines. The total is left at rank 0, at part 0
    /// of `sums`. Returns a received sum that `audit` draws, at rank 0.
    pub(in crate::torch) fn compute(
        &mut self,
        batches: &MicroBatches<'_>,
        peers: &mut dyn Peers,
        sums: &mut PartialSums,
        audit: Option<u64>,
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let PipelinePlace { part, parts, replica, .. } = self.place;
        let own = batches.own();
        if !own.is_empty() {
            let shape = PipelineShape::new(parts, own.len() as u32);
            let shape = shape.map_err(|error| fault(error.to_string()))?;
            let first_rank = replica * parts;
            // No schedule of a pipeline needs more messages on their way over a link.
            let open = LINK_TRANSFERS * parts.min(own.len() as u32) as usize;
            let mut links = RankLinks { peers: &mut *peers, first_rank, open };
            for action in messages(part, shape, one_forward_one_backward) {
                self.step.act(of_batch(action, own.start as u32), batches, &mut links)?;
            }
        }
        for merge in merges(batches.len()) {
            let (into, from) = (peers.owner(merge.into), peers.owner(merge.from));
            let tag = SUM_TAGS + merge.from as u32;
            match (into == replica, from == replica) {
                (true, true) => self.step.merge(merge)?,
                (true, false) => {
                    let packed = self.receive(part, from * parts + part, tag, peers)?;
                    let sum = self.step.sum(merge.into)?;
                    unpack(
                        &packed,
                        &self.owned[part as usize],
                        |mut place, piece| {
                            place.f_add_(&piece.f_to_device(place.device())?).map(|_| ())
                        },
                        sum,
                    )?;
                }
                (false, true) => {
                    let packed = self.pack(merge.from)?;
                    peers.send(&packed, into * parts + part, tag, usize::MAX)?;
                    self.step.forget(merge.from);
                }
                (false, false) => {}
            }
        }
        let received = match peers.owner(0) == replica {
            true => self.total(peers, sums, (batches.len(), audit))?,
            false => None,
        };
        peers.finish_sends()?;
        self.step.forget(0);
        Ok(received)
    }

    /// Brings the parts of the total to rank 0.
    fn total(
        &mut self,
        peers: &mut dyn Peers,
        sums: &mut PartialSums,
        (count, audit): (usize, Option<u64>),
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let PipelinePlace { part, parts, replicas, .. } = self.place;
        if part > 0 {
            let packed = self.pack(0)?;
            peers.send(&packed, 0, TOTAL_TAGS + part, usize::MAX)?;
            return Ok(None);
        }
        let total = sums.at(0)?.flat.shallow_clone();
        let own = self.step.sum(0)?;
        for range in &self.owned[0] {
            elements_of(&total, range)?.f_copy_(&elements_of(own, range)?)?;
        }
        // With other pipelines, rank 0 has received sums of its own part, too.
        let least = u32::from(replicas == 1);
        let audit = audit.filter(|_| peers.can_audit(count));
        let drawn = audit.map(|draw| least + (draw % u64::from(parts - least)) as u32);
        let mut audited = None;
        if drawn == Some(0) {
            let piece = |range: &Range<usize>| {
                Ok((range.start as u64, elements_of(&total, range)?.f_detach_copy()?))
            };
            let pieces = self.owned[0].iter().map(piece).collect::<Result<_, TchError>>()?;
            audited = Some(ReceivedSum { from: parts, parts: 0..count, pieces });
        }
        for other in 1..parts {
            // The first pipeline has ranks 0 to P − 1.
            let packed = self.receive(other, other, TOTAL_TAGS + other, peers)?;
            let ranges = &self.owned[other as usize];
            let mut pieces = Vec::new();
            unpack(
                &packed,
                ranges,
                |mut place, piece| {
                    pieces.push(piece.shallow_clone());
                    place.f_copy_(&piece)
                },
                &total,
            )?;
            if drawn == Some(other) {
                let starts = ranges.iter().map(|range| range.start as u64);
                let pieces = starts.zip(pieces).collect();
                audited = Some(ReceivedSum { from: other, parts: 0..count, pieces });
            }
        }
        Ok(audited)
    }

    /// The own elements of a sum, one range behind the other, on the CPU.
    fn pack(&self, at: usize) -> Result<Tensor, TrainError> {
        let sum = self.step.sum(at)?;
        let ranges = &self.owned[self.place.part as usize];
        let pieces = ranges.iter().map(|range| elements_of(sum, range));
        let pieces = pieces.collect::<Result<Vec<Tensor>, TchError>>()?;
        if pieces.is_empty() {
            return Ok(Tensor::f_zeros(0, (Kind::Float, Device::Cpu))?);
        }
        Ok(Tensor::f_cat(&pieces, 0)?.f_to_device(Device::Cpu)?)
    }

    /// The elements of a part, from a rank.
    fn receive(
        &self,
        part: u32,
        from: u32,
        tag: u32,
        peers: &mut dyn Peers,
    ) -> Result<Tensor, TrainError> {
        let length: usize = self.owned[part as usize].iter().map(Range::len).sum();
        let packed = Tensor::f_empty(length as i64, (Kind::Float, Device::Cpu))?;
        peers.receive(&packed, from, tag)?;
        Ok(packed)
    }
}

/// The parts of a total that is packed range behind range, each with its place in a flat tensor.
fn unpack(
    packed: &Tensor,
    ranges: &[Range<usize>],
    mut use_piece: impl FnMut(Tensor, Tensor) -> Result<(), TchError>,
    flat: &Tensor,
) -> Result<(), TchError> {
    let mut from = 0;
    for range in ranges {
        let length = range.len() as i64;
        use_piece(elements_of(flat, range)?, packed.f_narrow(0, from, length)?)?;
        from += length;
    }
    Ok(())
}

/// An action on the micro-batches of a pipeline as one on those of the batch.
fn of_batch(action: PartAction, first: u32) -> PartAction {
    match action {
        PartAction::Receive { from, kind, micro_batch } => {
            PartAction::Receive { from, kind, micro_batch: micro_batch + first }
        }
        PartAction::Send { to, kind, micro_batch } => {
            PartAction::Send { to, kind, micro_batch: micro_batch + first }
        }
        PartAction::Compute(work) => PartAction::Compute(work.behind(first)),
    }
}

fn invalid(error: &BackendError) -> RankError {
    let why = format!("{}: state another --rank-cut or --rank-pipeline", error.why);
    RankError::new(RankErrorCode::PlanInvalid, why)
}

/// Checks that a graph has a cut into parts, before it is trained.
///
/// # Errors
/// [`RankErrorCode::PlanInvalid`].
pub(in crate::torch) fn check_cut(
    net: &GraphNet<'_>,
    parts: u32,
    costs: &CutCosts,
) -> Result<(), RankError> {
    let segments = segments(net);
    let can_cut = segments.can_cut();
    if let CutCosts::Pinned(cut) = costs {
        stated_ranges(cut, can_cut, parts)?;
    }
    let most = 1 + can_cut.iter().filter(|can| **can).count();
    if most < parts as usize {
        let why = format!("the graph has at most {most} parts: state a smaller --rank-pipeline");
        return Err(RankError::new(RankErrorCode::PlanInvalid, why));
    }
    Ok(())
}

/// The nodes of each part of a stated cut.
fn stated_ranges(
    cut: &PinnedCut,
    can_cut: &[bool],
    parts: u32,
) -> Result<Vec<Range<usize>>, RankError> {
    let ranges = cut.ranges(can_cut, parts as usize);
    ranges.map_err(|error| RankError::new(RankErrorCode::PlanInvalid, error.to_string()))
}

/// The stated nodes of each part, or those of the fastest pipeline.
fn find_cut(
    net: &GraphNet<'_>,
    params: &Tensor,
    rows: &Rows,
    parts: u32,
    costs: CutCosts,
) -> Result<(Vec<Range<usize>>, Option<f64>), TrainError> {
    match costs {
        CutCosts::Pinned(cut) => Ok((stated_ranges(&cut, segments(net).can_cut(), parts)?, None)),
        CutCosts::Known(nodes) => Ok((nodes, None)),
        CutCosts::Measured { slowness, links } => {
            let views = net.aligned_views(params)?;
            let ranks = CutRanks { slowness: &slowness, links: &links, memory: None };
            let found = pipeline_cut(net, &views, rows, &ranks)?;
            Ok((found.ranges, Some(found.stage_seconds)))
        }
    }
}

/// Transfers of a message: its lead and its rest.
const LINK_TRANSFERS: usize = 2;

/// The links of a rank to its neighbours.
struct RankLinks<'p> {
    peers: &'p mut dyn Peers,
    /// The rank of the first part.
    first_rank: u32,
    /// Sends on their way to a rank.
    open: usize,
}

impl StageLinks for RankLinks<'_> {
    fn send(&mut self, to: u32, tag: MessageTag, message: Vec<u8>) -> Result<(), TrainError> {
        let (to, tag) = (self.first_rank + to, LINK_TRANSFERS as u32 * tag.number());
        let (lead, rest) = message.split_at(LEAD_BYTES.min(message.len()));
        for (number, bytes) in (0..).zip([lead, rest]) {
            self.peers.send(&Tensor::f_from_slice(bytes)?, to, tag + number, self.open)?;
        }
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: MessageTag) -> Result<Vec<u8>, TrainError> {
        let (from, tag) = (self.first_rank + from, LINK_TRANSFERS as u32 * tag.number());
        let buffer = |length: u64| Tensor::f_empty(length as i64, (Kind::Uint8, Device::Cpu));
        let lead = buffer(LEAD_BYTES as u64)?;
        self.peers.receive(&lead, from, tag)?;
        let mut message = Vec::<u8>::try_from(lead)?;
        let lead = <&[u8; LEAD_BYTES]>::try_from(message.as_slice());
        let length = lead.map_err(|_| fault("the lead of a message is too short"))?;
        let length = message_length(length).map_err(BackendError::from)?;
        let rest = buffer(length.saturating_sub(LEAD_BYTES as u64))?;
        self.peers.receive(&rest, from, tag + 1)?;
        message.extend(Vec::<u8>::try_from(rest)?);
        Ok(message)
    }
}
