//! A rank of a pipeline: its stage in every step, the sums of all pipelines, and the total at rank 0.

use std::ops::Range;

use tch::{Device, Kind, TchError, Tensor};

use super::super::micro_batches::MicroBatches;
use super::super::net::GraphNet;
use super::cost::{CutRanks, pipeline_cut, private_cut};
use super::fault;
use super::links::{MessageTag, StageLinks};
use super::stage::{StagePlan, owner_ends, segments};
use super::step::{ProcessStages, owned_ranges};
use crate::engine::{BackendError, TrainError};
use crate::graph::EndsError;
use crate::pipeline::{
    LEAD_BYTES, PartAction, PartEvent, PinnedCut, PipelineShape, message_length,
};
use crate::ranks::{PipelinePlace, RankError, RankErrorCode};
use crate::torch::batches::Rows;
use crate::torch::partial_sums::{PartialSums, elements_of};
use crate::torch::peers::{CutCosts, FoundCut, Peers, ReceivedSum};
use crate::virtual_workers::merges;

/// The first tag of the sums of two pipelines, and of the parts of the total: behind those of messages.
const SUM_TAGS: u32 = 1 << 20;
const TOTAL_TAGS: u32 = 1 << 21;

/// The stages of a rank, with the elements of each part.
pub(in crate::torch) struct RankPipeline<'n> {
    stages: ProcessStages<'n>,
    place: PipelinePlace,
    /// The elements that each part writes.
    owned: Vec<Vec<Range<usize>>>,
    /// Whether each travelling tensor travels to the other ranks; `None` if all do.
    shared: Option<Vec<bool>>,
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
            0 => Some(find_cut(net, params, rows, &place, peers.cut_costs())?),
            _ => None,
        };
        let found =
            found.map(|(nodes, stage_seconds)| FoundCut { nodes, stage_seconds, micro_batches });
        let nodes = peers.agree_on_cut(found)?;
        let plan = StagePlan::new(net, nodes, place.placement).map_err(|error| invalid(&error))?;
        if plan.parts() != place.parts() {
            return Err(fault("rank 0 has cut the graph into another number of parts").into());
        }
        let owned = (0..place.parts()).map(|part| owned_ranges(net, &plan, part, params));
        let owned = owned.collect::<Result<_, _>>()?;
        let stages = ProcessStages::new(net, &plan, place.process, params)?;
        Ok(Some(Self { stages, place, owned, shared: plan.shared(net) }))
    }

    /// Whether each travelling tensor travels to the other ranks; `None` if all do.
    pub(in crate::torch) fn shared(&self) -> Option<&[bool]> {
        self.shared.as_deref()
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
        let PipelinePlace { process, processes, placement, replica, .. } = self.place;
        let own = batches.own();
        if !own.is_empty() {
            let shape = PipelineShape::new(self.place.parts(), own.len() as u32);
            let shape = shape.map_err(|error| fault(error.to_string()))?;
            // No schedule of a pipeline needs more messages on their way over a link.
            let open = LINK_TRANSFERS * placement.capacity(shape);
            let mut links = RankLinks { peers: &mut *peers, place: self.place, open };
            for event in placement.actions(process, shape) {
                self.stages.act(of_batch(event, own.start as u32), batches, &mut links)?;
            }
        }
        for merge in merges(batches.len()) {
            let (into, from) = (peers.owner(merge.into), peers.owner(merge.from));
            let tag = SUM_TAGS + merge.from as u32;
            for stage in self.stages.all() {
                let owned = &self.owned[stage.part() as usize];
                match (into == replica, from == replica) {
                    (true, true) => stage.merge(merge)?,
                    (true, false) => {
                        let packed = receive(owned, from * processes + process, tag, peers)?;
                        let sum = stage.sum(merge.into)?;
                        unpack(
                            &packed,
                            owned,
                            |mut place, piece| {
                                place.f_add_(&piece.f_to_device(place.device())?).map(|_| ())
                            },
                            sum,
                        )?;
                    }
                    (false, true) => {
                        let packed = pack(stage.sum(merge.from)?, owned)?;
                        peers.send(&packed, into * processes + process, tag, usize::MAX)?;
                        stage.forget(merge.from);
                    }
                    (false, false) => {}
                }
            }
        }
        let received = match peers.owner(0) == replica {
            true => self.total(peers, sums, (batches.len(), audit))?,
            false => None,
        };
        peers.finish_sends()?;
        for stage in self.stages.all() {
            stage.forget(0);
        }
        Ok(received)
    }

    /// Brings the parts of the total to rank 0.
    fn total(
        &mut self,
        peers: &mut dyn Peers,
        sums: &mut PartialSums,
        (count, audit): (usize, Option<u64>),
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let PipelinePlace { process, processes, placement, replicas, .. } = self.place;
        let parts = self.place.parts();
        if process > 0 {
            for stage in self.stages.all() {
                let packed = pack(stage.sum(0)?, &self.owned[stage.part() as usize])?;
                peers.send(&packed, 0, TOTAL_TAGS + stage.part(), usize::MAX)?;
            }
            return Ok(None);
        }
        let total = sums.at(0)?.flat.shallow_clone();
        for stage in self.stages.all() {
            for range in &self.owned[stage.part() as usize] {
                elements_of(&total, range)?.f_copy_(&elements_of(stage.sum(0)?, range)?)?;
            }
        }
        let others = (0..parts).filter(|&part| placement.process(part, parts) > 0);
        let others: Vec<u32> = others.collect();
        // With other pipelines, rank 0 has received sums of its own part, too.
        let drawable: Vec<u32> =
            (0..u32::from(replicas > 1)).chain(others.iter().copied()).collect();
        let audit = audit.filter(|_| peers.can_audit(count));
        let drawn = audit.map(|draw| drawable[(draw % drawable.len() as u64) as usize]);
        let mut audited = None;
        if drawn == Some(0) {
            let piece = |range: &Range<usize>| {
                Ok((range.start as u64, elements_of(&total, range)?.f_detach_copy()?))
            };
            let pieces = self.owned[0].iter().map(piece).collect::<Result<_, TchError>>()?;
            audited = Some(ReceivedSum { from: processes, parts: 0..count, pieces });
        }
        for other in others {
            // The first pipeline has ranks from 0 on.
            let (ranges, from) = (&self.owned[other as usize], placement.process(other, parts));
            let packed = receive(ranges, from, TOTAL_TAGS + other, peers)?;
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
                audited = Some(ReceivedSum { from, parts: 0..count, pieces });
            }
        }
        Ok(audited)
    }
}

/// Some elements of a sum, one range behind the other, on the CPU.
fn pack(sum: &Tensor, ranges: &[Range<usize>]) -> Result<Tensor, TrainError> {
    let pieces = ranges.iter().map(|range| elements_of(sum, range));
    let pieces = pieces.collect::<Result<Vec<Tensor>, TchError>>()?;
    if pieces.is_empty() {
        return Ok(Tensor::f_zeros(0, (Kind::Float, Device::Cpu))?);
    }
    Ok(Tensor::f_cat(&pieces, 0)?.f_to_device(Device::Cpu)?)
}

/// The elements of some ranges, from a rank.
fn receive(
    ranges: &[Range<usize>],
    from: u32,
    tag: u32,
    peers: &mut dyn Peers,
) -> Result<Tensor, TrainError> {
    let length: usize = ranges.iter().map(Range::len).sum();
    let packed = Tensor::f_empty(length as i64, (Kind::Float, Device::Cpu))?;
    peers.receive(&packed, from, tag)?;
    Ok(packed)
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
fn of_batch(event: PartEvent, first: u32) -> PartEvent {
    let action = match event.action {
        PartAction::Receive { from, kind, micro_batch } => {
            PartAction::Receive { from, kind, micro_batch: micro_batch + first }
        }
        PartAction::Send { to, kind, micro_batch } => {
            PartAction::Send { to, kind, micro_batch: micro_batch + first }
        }
        PartAction::Compute(work) => PartAction::Compute(work.behind(first)),
    };
    PartEvent { action, ..event }
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
    place: &PipelinePlace,
    costs: &CutCosts,
) -> Result<(), RankError> {
    let segments = segments(net);
    let (can_cut, parts) = (segments.can_cut(), place.parts());
    if let CutCosts::Pinned(cut) = costs {
        let ranges = stated_ranges(cut, can_cut, parts)?;
        if place.is_private() {
            owner_ends(net).check(&ranges).map_err(|error| ends_invalid(&error))?;
        }
        return Ok(());
    }
    let most = 1 + can_cut.iter().filter(|can| **can).count();
    if most < parts as usize {
        let why = format!("the graph has at most {most} parts: state a smaller --rank-pipeline");
        return Err(RankError::new(RankErrorCode::PlanInvalid, why));
    }
    if place.is_private() {
        owner_ends(net).last_part(parts as usize).map_err(|error| ends_invalid(&error))?;
    }
    Ok(())
}

fn ends_invalid(error: &EndsError) -> RankError {
    RankError::new(RankErrorCode::PlanInvalid, format!("--rank-private: {error}"))
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
    place: &PipelinePlace,
    costs: CutCosts,
) -> Result<(Vec<Range<usize>>, Option<f64>), TrainError> {
    match costs {
        CutCosts::Pinned(cut) => {
            Ok((stated_ranges(&cut, segments(net).can_cut(), place.parts())?, None))
        }
        CutCosts::Known(nodes) => Ok((nodes, None)),
        CutCosts::Measured { slowness, links } => {
            let views = net.aligned_views(params)?;
            let ranks = CutRanks { slowness: &slowness, links: &links, memory: None };
            let found = match place.is_private() {
                true => {
                    let ends = owner_ends(net);
                    let last = ends
                        .last_part(place.parts() as usize)
                        .map_err(|error| ends_invalid(&error))?;
                    private_cut(net, &views, rows, &ranks, (&ends.first_cuts(last), last))?
                }
                false => pipeline_cut(net, &views, rows, &ranks)?,
            };
            Ok((found.ranges, Some(found.stage_seconds)))
        }
    }
}

/// Transfers of a message: its lead and its rest.
const LINK_TRANSFERS: usize = 2;

/// The links of a rank to its neighbours.
struct RankLinks<'p> {
    peers: &'p mut dyn Peers,
    /// The place of this rank.
    place: PipelinePlace,
    /// Sends on their way to a rank.
    open: usize,
}

impl RankLinks<'_> {
    /// The rank of a part.
    fn rank(&self, part: u32) -> u32 {
        let PipelinePlace { processes, placement, replica, .. } = self.place;
        replica * processes + placement.process(part, self.place.parts())
    }
}

impl StageLinks for RankLinks<'_> {
    fn send(
        &mut self,
        _: u32,
        to: u32,
        tag: MessageTag,
        message: Vec<u8>,
    ) -> Result<(), TrainError> {
        let (to, tag) = (self.rank(to), LINK_TRANSFERS as u32 * tag.number());
        let (lead, rest) = message.split_at(LEAD_BYTES.min(message.len()));
        for (number, bytes) in (0..).zip([lead, rest]) {
            self.peers.send(&Tensor::f_from_slice(bytes)?, to, tag + number, self.open)?;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        from: u32,
        _: u32,
        tag: MessageTag,
        bytes_max: u64,
    ) -> Result<Vec<u8>, TrainError> {
        let (from, tag) = (self.rank(from), LINK_TRANSFERS as u32 * tag.number());
        let buffer = |length: u64| Tensor::f_empty(length as i64, (Kind::Uint8, Device::Cpu));
        let lead = buffer(LEAD_BYTES as u64)?;
        self.peers.receive(&lead, from, tag)?;
        let mut message = Vec::<u8>::try_from(lead)?;
        let lead = <&[u8; LEAD_BYTES]>::try_from(message.as_slice());
        let length = lead.map_err(|_| fault("the lead of a message is too short"))?;
        let differs = |why: String| {
            let why = format!("rank {from} has sent a message that is not one of the graph: {why}");
            RankError::new(RankErrorCode::Differs, why)
        };
        let length = message_length(length).map_err(|error| differs(error.to_string()))?;
        if length > bytes_max {
            let why = format!("it states {length} bytes, and {bytes_max} are possible");
            return Err(differs(why).into());
        }
        let rest = buffer(length.saturating_sub(LEAD_BYTES as u64))?;
        self.peers.receive(&rest, from, tag + 1)?;
        message.extend(Vec::<u8>::try_from(rest)?);
        Ok(message)
    }
}
