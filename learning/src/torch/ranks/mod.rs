//! The ranks of a training on c10d: rank 0 announces trainings, the others serve them.
//!
//! ```text
//! facts of every rank ─▶ rank 0 compares ─▶ verdict          (store)
//! training ─▶ parameters ─▶ speeds ─▶ assignment             (store, broadcast)
//! step:  sums of subtrees ─▶ rank 0 ─▶ parameters            (send, broadcast)
//! ```
//!
//! The elements of a sum travel while the backward pass computes others, by the plan of
//! [`reduction`](crate::reduction), and parameters travel while the forward pass uses those before them.

mod join;
mod reduce;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::c10d::{C10dError, C10dFailure, ProcessGroup, TcpStore, Transfer};
use super::graph::ServedRows;
use super::partial_sums::{PartialSums, ReadyElements};
use super::peers::{Arrival, CutCosts, FoundCut, Peers, ReceivedSum};
use super::{ENGINE, Torch};
use crate::data::Dataset;
use crate::engine::{InputError, TrainError};
use crate::model::ModelSpec;
use crate::ranks::{
    PipelinePlace, PipelineSettings, RankCard, RankError, RankErrorCode, RankJob, RankNews,
    RankNotify, RankPlace, RankSettings, RankSpeed, RankTraining, RowsShape, check_plan,
    data_fingerprint,
};
use crate::reduction::{
    self, BestReduction, ReadyStep, ReducedSums, ReductionAction, ReductionCosts, ReductionPlan,
    bucket_bytes,
};
use crate::select::{EngineKind, torch_engine};
use crate::virtual_workers::{Assignment, RankCost, TransferCost, assign};

/// The longest time of an audit, as a share of the limit of the ranks that wait for it.
const AUDIT_SHARE_MAX: f64 = 0.5;
/// The least time of a reduction, as a share of computing, that is worth the cost of overlap: single tensors
/// in place of all at once, and a thread.
const OVERLAP_SHARE_MIN: f64 = 0.05;
/// The time between two looks for an announcement.
const POLL: Duration = Duration::from_millis(200);
/// The longest wait of rank 0 for the others to have read its last announcement.
const GOODBYE: Duration = Duration::from_secs(5);

/// This process among the ranks of a training.
pub struct Ranks {
    settings: RankSettings,
    store: TcpStore,
    group: ProcessGroup,
    cards: Vec<RankCard>,
    notify: RankNotify,
    /// Announcements so far.
    jobs: u64,
    assignment: Assignment,
    is_assigned: bool,
    /// By rank; empty before the first measurement.
    speeds: Vec<RankSpeed>,
    reduction: ReductionPlan,
    bucket_bytes: u64,
    /// The place in a pipeline.
    pipeline: Option<PipelinePlace>,
    /// Sends to each rank that have not ended, in order.
    sends: BTreeMap<u32, VecDeque<Transfer>>,
    overlaps: bool,
    /// This rank's actions by the parts of a batch, for the plan.
    actions: BTreeMap<usize, Vec<ReductionAction>>,
    /// The nodes of each part, from the first training on.
    cut: Vec<Range<usize>>,
    /// Seconds for the addition of a byte, at rank 0.
    add_seconds_per_byte: f64,
    /// The shape of the rows that rank 0 alone has, at another rank.
    shape: Option<RowsShape>,
}

impl Ranks {
    /// The place of this process.
    #[must_use]
    pub fn place(&self) -> &RankPlace {
        &self.settings.place
    }

    /// Serves the trainings that rank 0 announces, with a graph and rows that are loaded here, unless rank 0
    /// alone has them, until it announces the end or `go_on` breaks, which is called again and again between
    /// them.
    ///
    /// # Errors
    /// [`TrainError`] if the engine is missing, if rank 0 is gone, or if a training fails here.
    pub fn serve(
        &mut self,
        kind: EngineKind,
        model: &ModelSpec,
        data: Option<&Dataset>,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let engine = torch_engine(kind, 1).map_err(|error| {
            RankError::new(RankErrorCode::Unsupported, format!("a rank needs libtorch: {error}"))
        })?;
        let engine = engine.on_gpu(self.settings.place.local);
        self.serve_on(&engine.with_memory(self.settings.memory.clone()), model, data, go_on)
    }

    fn serve_on(
        &mut self,
        engine: &Torch,
        model: &ModelSpec,
        data: Option<&Dataset>,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let ModelSpec::Graph(graph) = model else {
            return Err(InputError::VirtualWorkers { engine: ENGINE }.into());
        };
        let rows = ServedRows::new(self.shape, data)?;
        loop {
            let key = format!("job/{}", self.jobs);
            if !self.store.has(&key).map_err(|error| self.failed(Some(0), &error))? {
                if go_on().is_break() {
                    self.leave();
                    return Ok(());
                }
                std::thread::sleep(POLL);
                continue;
            }
            let limit = self.settings.limit;
            let job = self.store.get(&key, limit).map_err(|error| self.failed(Some(0), &error))?;
            self.jobs += 1;
            match parsed(&job)? {
                RankJob::Finish => {
                    self.leave();
                    return Ok(());
                }
                RankJob::Train(mut training) => {
                    training.how.execution.memory_bytes = self.settings.memory_bytes;
                    engine.serve_graph(graph, rows, &training, self)?;
                }
            }
        }
    }

    /// States that this rank has ended. Rank 0 does not wait long for it.
    fn leave(&self) {
        let _ = self.store.set(&format!("gone/{}", self.rank()), b"");
    }

    /// Announces the end of all work, by rank 0.
    fn finish(&mut self) -> Result<(), C10dError> {
        let job = serde_json::to_vec(&RankJob::Finish).unwrap_or_default();
        self.store.set(&format!("job/{}", self.jobs), &job)?;
        if self.settings.place.serves {
            // The store ends with this process.
            for rank in 1..self.settings.place.size {
                self.store.get(&format!("gone/{rank}"), GOODBYE)?;
            }
        }
        Ok(())
    }

    /// The failure of a call that waited for a rank, or for all.
    fn failed(&self, rank: Option<u32>, error: &C10dError) -> RankError {
        transfer_failed(self.settings.limit, rank, error)
    }

    fn get<T: DeserializeOwned>(&self, key: &str, rank: u32) -> Result<T, RankError> {
        let bytes = self.store.get(key, self.settings.limit);
        parsed(&bytes.map_err(|error| self.failed(Some(rank), &error))?)
    }

    fn set(&self, key: &str, value: &impl serde::Serialize) -> Result<(), RankError> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| RankError::new(RankErrorCode::Failed, error.to_string()))?;
        self.store.set(key, &bytes).map_err(|error| self.failed(Some(0), &error))
    }

    /// The assignment to ranks, or to pipelines, by measured speeds, or the pinned one.
    fn planned(&self, workers: u32, bytes: u64) -> Result<Assignment, RankError> {
        let invalid = |why: String| RankError::new(RankErrorCode::PlanInvalid, why);
        let group = self.pipeline.map_or(1, |place| place.processes as usize);
        if let Some(pinned) = &self.settings.pinned {
            return check_plan(pinned, self.settings.place.size / group as u32, workers);
        }
        if self.speeds.is_empty() {
            return Ok(Assignment::even(workers, self.settings.place.size / group as u32));
        }
        // The slowest rank of a pipeline decides.
        let cost = |speeds: &[RankSpeed]| RankCost {
            worker_seconds: speeds.iter().map(|speed| speed.worker_seconds).fold(0.0, f64::max),
            workers_max: workers,
        };
        let costs: Vec<RankCost> = self.speeds.chunks(group).map(cost).collect();
        let first = |row: Vec<TransferCost>| row.into_iter().step_by(group).collect();
        let links: Vec<Vec<TransferCost>> =
            self.links().into_iter().step_by(group).map(first).collect();
        assign(workers, &costs, &links, bytes).map_err(|error| invalid(error.to_string()))
    }

    /// The plan of the reduction that takes least, or the pinned one, and whether it overlaps with computing;
    /// with the seconds that it takes after the last backward pass.
    fn planned_reduction(
        &self,
        assignment: &Assignment,
        workers: u32,
        elements: u64,
    ) -> Result<(BestReduction, bool), RankError> {
        let none = vec![Vec::new(); assignment.ranges().len()];
        let apart = self.best_reduction(assignment, workers, elements, &none)?;
        let seconds = self.speeds.iter().zip(assignment.ranges());
        let seconds = seconds.map(|(speed, own)| own.len() as f64 * speed.worker_seconds);
        let computing = seconds.fold(0.0, f64::max);
        let is_worth = apart.seconds > OVERLAP_SHARE_MIN * computing;
        match self.settings.overlaps.unwrap_or(is_worth) {
            true => {
                let ready = self.ready_times(assignment);
                Ok((self.best_reduction(assignment, workers, elements, &ready)?, true))
            }
            false => Ok((apart, false)),
        }
    }

    /// The best or the pinned plan for elements that are there at these times.
    fn best_reduction(
        &self,
        assignment: &Assignment,
        workers: u32,
        elements: u64,
        ready: &[Vec<ReadyStep>],
    ) -> Result<BestReduction, RankError> {
        let backward = ready.iter().filter_map(|steps| steps.last()).map(|step| step.seconds);
        let backward = backward.fold(0.0, f64::max);
        let costs = ReductionCosts {
            links: &self.links(),
            add_seconds_per_byte: self.add_seconds_per_byte,
            ready,
        };
        let sums = ReducedSums { assignment, parts: workers as usize, elements };
        let found = match self.settings.reduction {
            Some(plan) => reduction::seconds(plan, sums, &costs)
                .map(|seconds| BestReduction { plan, seconds }),
            None => reduction::best(sums, &costs),
        };
        let found =
            found.map_err(|error| RankError::new(RankErrorCode::Failed, error.to_string()))?;
        Ok(BestReduction { seconds: (found.seconds - backward).max(0.0), ..found })
    }

    /// When the elements of each rank's last part are there, from the begin of the first last part on.
    fn ready_times(&self, assignment: &Assignment) -> Vec<Vec<ReadyStep>> {
        let ranges = assignment.ranges();
        let begins = self.speeds.iter().zip(ranges).map(|(speed, own)| {
            let others = own.len().saturating_sub(1) as f64;
            (!own.is_empty()).then_some(others * speed.worker_seconds)
        });
        let begins: Vec<Option<f64>> = begins.collect();
        let first = begins.iter().flatten().fold(f64::INFINITY, |a, &b| a.min(b));
        let of_rank = |rank: usize| {
            let Some(Some(begin)) = begins.get(rank) else { return Vec::new() };
            let steps = self.speeds[rank].ready.iter();
            steps.map(|step| ReadyStep { seconds: step.seconds + begin - first, ..*step }).collect()
        };
        (0..ranges.len()).map(of_rank).collect()
    }

    /// The least bytes of parameters that travel together: by the longest latency.
    fn planned_bucket_bytes(&self) -> u64 {
        let links = self.links();
        let links = links.iter().flatten().filter(|link| link.alpha > 0.0 || link.beta > 0.0);
        links.map(|&link| bucket_bytes(link)).max().unwrap_or(u64::MAX)
    }

    /// Agrees with all ranks on a plan, which rank 0 has made.
    fn use_plan(&mut self, plan: RankPlan, workers: u32) -> Result<(), RankError> {
        let RankPlan { ranges, reduction, bucket_bytes, overlaps } = plan;
        let failed = |why: String| RankError::new(RankErrorCode::Failed, why);
        let group = self.pipeline.map_or(1, |place| place.processes);
        if ranges.len() != (self.settings.place.size / group) as usize {
            return Err(failed("rank 0 has a plan for other ranks".to_owned()));
        }
        let assignment =
            Assignment::from_ranges(ranges, workers).map_err(|error| failed(error.to_string()))?;
        if (&assignment, reduction) != (&self.assignment, self.reduction) {
            self.actions.clear();
        }
        (self.assignment, self.reduction) = (assignment, reduction);
        (self.bucket_bytes, self.overlaps) = (bucket_bytes, overlaps);
        Ok(())
    }

    /// The links of all pairs: of ranks on one host the shorter one to rank 0 of the two, else the longer.
    fn links(&self) -> Vec<Vec<TransferCost>> {
        let to_first = |card: &RankCard| TransferCost { alpha: card.alpha, beta: card.beta };
        let link = |a: &RankCard, b: &RankCard| {
            let (own, other) = (to_first(a), to_first(b));
            match (a.rank, b.rank) {
                (0, _) => other,
                (_, 0) => own,
                _ if a.host == b.host => TransferCost {
                    alpha: own.alpha.min(other.alpha),
                    beta: own.beta.min(other.beta),
                },
                _ => TransferCost {
                    alpha: own.alpha.max(other.alpha),
                    beta: own.beta.max(other.beta),
                },
            }
        };
        self.cards.iter().map(|a| self.cards.iter().map(|b| link(a, b)).collect()).collect()
    }
}

/// The failure of a call that waited for a rank, or for all.
fn transfer_failed(limit: Duration, rank: Option<u32>, error: &C10dError) -> RankError {
    let C10dError { why, kind } = error;
    let rank = rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
    let seconds = limit.as_secs();
    match kind {
        C10dFailure::TimedOut => RankError::new(
            RankErrorCode::Stalled,
            format!(
                "{rank}, or a rank that it waits for, has not answered within {seconds} \
                 seconds ({why}): look at its log; --rank-timeout sets the limit"
            ),
        ),
        C10dFailure::Closed => RankError::new(
            RankErrorCode::Lost,
            format!(
                "{rank} is gone ({why}): look at the logs, and start all ranks again, or one process \
                 with the same --virtual-workers: a training of more than a minute continues from \
                 its stored state"
            ),
        ),
        C10dFailure::NoInterface | C10dFailure::Other => {
            RankError::new(RankErrorCode::Failed, format!("a transfer with {rank} failed: {why}"))
        }
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").field("place", &self.settings.place).finish_non_exhaustive()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if self.rank() == 0 {
            // Ranks that are gone do not read it.
            let _ = self.finish();
        }
    }
}

/// The plan of a training, by rank 0.
#[derive(Serialize, Deserialize)]
struct RankPlan {
    ranges: Vec<Range<u32>>,
    reduction: ReductionPlan,
    bucket_bytes: u64,
    overlaps: bool,
}

/// Numbers of rank 0 on their way.
struct BroadcastArrival {
    transfer: Transfer,
    /// The numbers, and their place on another device.
    host: Tensor,
    place: Option<Tensor>,
    /// The rank that this one waits for; rank 0 waits for all others.
    from: Option<u32>,
    limit: Duration,
}

impl Arrival for BroadcastArrival {
    fn wait(self: Box<Self>) -> Result<(), TrainError> {
        let Self { transfer, host, place, from, limit } = *self;
        transfer.wait(limit).map_err(|error| transfer_failed(limit, from, &error))?;
        if let (Some(mut place), Some(_)) = (place, from) {
            place.f_copy_(&host)?;
        }
        Ok(())
    }
}

impl Peers for Ranks {
    fn rank(&self) -> u32 {
        self.settings.place.rank
    }

    fn announce(&mut self, training: &RankTraining, data: &Dataset) -> Result<(), TrainError> {
        if Some(data_fingerprint(data).as_str()) != self.settings.rows.fingerprint() {
            let why = "the rows of this training are not those with which the ranks have started";
            return Err(RankError::new(RankErrorCode::Unsupported, why).into());
        }
        self.set(&format!("job/{}", self.jobs), &RankJob::Train(training.clone()))?;
        self.jobs += 1;
        Ok(())
    }

    fn needs_speeds(&self) -> bool {
        let is_cut = |pipeline: &PipelineSettings| pipeline.cut.is_some();
        let is_pinned =
            self.settings.pinned.is_some() && self.settings.pipeline.as_ref().is_none_or(is_cut);
        !is_pinned && self.speeds.is_empty()
    }

    fn assign(
        &mut self,
        speed: Option<RankSpeed>,
        workers: u32,
        elements: u64,
    ) -> Result<(), TrainError> {
        let (rank, size, job) = (self.rank(), self.settings.place.size, self.jobs);
        let key = format!("plan/{job}");
        if rank > 0 {
            if let Some(speed) = speed {
                self.set(&format!("speed/{job}/{rank}"), &speed)?;
            }
            let plan: RankPlan = self.get(&key, 0)?;
            return Ok(self.use_plan(plan, workers)?);
        }
        if let Some(own) = speed {
            let mut all = vec![own];
            for rank in 1..size {
                let stated: RankSpeed = self.get(&format!("speed/{job}/{rank}"), rank)?;
                all.push(stated.check(rank)?);
            }
            self.speeds = all;
        }
        let assignment = self.planned(workers, elements * size_of::<f32>() as u64)?;
        let (found, overlaps) = match self.pipeline {
            Some(_) => (BestReduction { plan: ReductionPlan::TREE, seconds: 0.0 }, true),
            None => self.planned_reduction(&assignment, workers, elements)?,
        };
        let ranges = assignment.ranges().to_vec();
        let (reduction, bucket_bytes) = (found.plan, self.planned_bucket_bytes());
        let plan = RankPlan { ranges: ranges.clone(), reduction, bucket_bytes, overlaps };
        self.set(&key, &plan)?;
        let is_new = (&assignment, reduction) != (&self.assignment, self.reduction);
        if self.pipeline.is_none() && (!self.is_assigned || is_new) {
            self.is_assigned = true;
            let worker_seconds = self.speeds.iter().map(|speed| speed.worker_seconds).collect();
            let reduction_seconds = found.seconds;
            (self.notify)(&RankNews::Assigned {
                ranges,
                worker_seconds,
                reduction,
                reduction_seconds,
                overlaps,
            });
        }
        Ok(self.use_plan(plan, workers)?)
    }

    fn own(&self, parts: usize) -> Range<usize> {
        self.assignment.own(self.pipeline.map_or(self.rank(), |place| place.replica), parts)
    }

    fn owner(&self, part: usize) -> u32 {
        self.assignment.owner(part)
    }

    fn can_audit(&self, parts: usize) -> bool {
        let seconds = self.speeds.first().map_or(0.0, |speed| speed.worker_seconds);
        seconds * parts as f64 <= AUDIT_SHARE_MAX * self.settings.limit.as_secs_f64()
    }

    fn overlaps(&self) -> bool {
        self.overlaps
    }

    fn bucket_bytes(&self) -> u64 {
        self.bucket_bytes
    }

    fn reduce(
        &mut self,
        sums: &mut PartialSums,
        parts: usize,
        ready: &ReadyElements,
        audit: Option<u64>,
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let (rank, elements) = (self.rank() as usize, sums.elements()? as u64);
        if !self.actions.contains_key(&parts) {
            let mut all = self.reduction.actions(&self.assignment, parts, elements);
            self.actions.insert(parts, all.swap_remove(rank));
        }
        let actions = self.actions.get(&parts).map_or(&[][..], Vec::as_slice);
        self.reduction(sums, actions, ready, audit).run(elements)
    }

    fn pipeline(&self) -> Option<PipelinePlace> {
        self.pipeline
    }

    fn cut_costs(&self) -> CutCosts {
        let settings = self.settings.pipeline.as_ref();
        if let Some(cut) = settings.and_then(|pipeline| pipeline.cut.clone()) {
            return CutCosts::Pinned(cut);
        }
        if !self.cut.is_empty() {
            return CutCosts::Known(self.cut.clone());
        }
        let parts = self.pipeline.map_or(1, |place| place.processes as usize);
        let links = self.links();
        let own = self.speeds.first().map_or(1.0, |speed| speed.worker_seconds);
        let slowest = |part: usize| {
            let ranks = self.speeds.iter().skip(part).step_by(parts);
            ranks.map(|speed| speed.worker_seconds / own).fold(f64::MIN_POSITIVE, f64::max)
        };
        // A rank of others could state a speed for which the first part is as short as possible.
        let is_private = self.pipeline.is_some_and(|place| place.is_private());
        let slowness = match self.speeds.is_empty() || is_private {
            true => vec![1.0; parts],
            false => (0..parts).map(slowest).collect(),
        };
        let links = (1..parts).map(|part| links[part - 1][part]).collect();
        CutCosts::Measured { slowness, links }
    }

    fn agree_on_cut(&mut self, found: Option<FoundCut>) -> Result<Vec<Range<usize>>, TrainError> {
        let key = format!("cut/{}", self.jobs);
        let Some(found) = found else {
            return Ok(self.get(&key, 0)?);
        };
        let FoundCut { nodes, stage_seconds, micro_batches } = found;
        self.set(&key, &nodes)?;
        let workers = self.assignment.ranges().to_vec();
        let own = self.assignment.own(0, micro_batches).len();
        let others = nodes.len().saturating_sub(1) as f64;
        let bubble = others / (own as f64 + others).max(1.0);
        if self.cut != nodes {
            self.cut = nodes.clone();
            let nodes = nodes.clone();
            let placement = self.pipeline.map(|place| place.placement).unwrap_or_default();
            let news = RankNews::Pipelined { nodes, placement, workers, stage_seconds, bubble };
            (self.notify)(&news);
        }
        Ok(nodes)
    }

    fn send(&mut self, tensor: &Tensor, to: u32, tag: u32, open: usize) -> Result<(), TrainError> {
        let sent =
            self.group.send(tensor, to, tag).map_err(|error| self.failed(Some(to), &error))?;
        let sends = self.sends.entry(to).or_default();
        sends.push_back(sent);
        while sends.len() > open {
            let Some(sent) = sends.pop_front() else { break };
            let limit = self.settings.limit;
            sent.wait(limit).map_err(|error| transfer_failed(limit, Some(to), &error))?;
        }
        Ok(())
    }

    fn receive(&mut self, tensor: &Tensor, from: u32, tag: u32) -> Result<(), TrainError> {
        let transfer = self.group.receive(tensor, from, tag);
        let ended = transfer.and_then(|transfer| transfer.wait(self.settings.limit));
        Ok(ended.map_err(|error| self.failed(Some(from), &error))?)
    }

    fn finish_sends(&mut self) -> Result<(), TrainError> {
        let limit = self.settings.limit;
        for (to, sends) in std::mem::take(&mut self.sends) {
            for sent in sends {
                sent.wait(limit).map_err(|error| transfer_failed(limit, Some(to), &error))?;
            }
        }
        Ok(())
    }

    fn broadcast(&mut self, tensor: &Tensor) -> Result<Box<dyn Arrival>, TrainError> {
        let host = tensor.f_to_device(Device::Cpu)?;
        let from = (self.rank() > 0).then_some(0);
        let limit = self.settings.limit;
        let transfer = self.group.broadcast(&host, 0, limit);
        let transfer = transfer.map_err(|error| self.failed(from, &error))?;
        // Unseen by a backward pass that has saved other numbers of the same memory.
        let place = (tensor.device() != Device::Cpu).then(|| tensor.f_data()).transpose()?;
        Ok(Box::new(BroadcastArrival { transfer, host, place, from, limit }))
    }
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RankError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = format!("a message among the ranks cannot be read: {error}");
        RankError::new(RankErrorCode::Failed, why)
    })
}

#[cfg(test)]
mod tests;
