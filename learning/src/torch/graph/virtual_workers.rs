//! Training of graphs by virtual workers: the gradient of a batch as a tree of the gradients of its
//! parts, which one process computes or several.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tch::{Kind, TchError, Tensor};

use super::micro_batches::{MicroBatch, MicroBatches};
use super::net::{GradientSink, GradientStream, GraphFailure, GraphNet};
use super::parameters::{ParameterGate, TravellingParameters};
use super::pipeline::rank::RankPipeline;
use super::step_memory::StepMemory;
use crate::engine::{BackendError, TrainError};
use crate::graph::{BothObservers, SeededDraws};
use crate::ranks::RankSpeed;
use crate::reduction::ReadyStep;
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::partial_sums::{EndOfElements, PartialSum, PartialSums, ReadyElements};
use crate::torch::peers::{Peers, ReceivedSum, TAIL};
use crate::virtual_workers::{Merge, merges, merges_after};

/// The gradients of the parts of batches, and their tree.
pub(super) struct VirtualGradients<'a> {
    net: &'a GraphNet<'a>,
    /// Virtual workers.
    workers: u32,
    seed: u64,
    /// The parameters, aligned, with a tail; and their views.
    params: Tensor,
    views: Vec<Tensor>,
    /// The buffers before the step: a part changes those of the views.
    buffers: Vec<Tensor>,
    /// The first element of each tensor in a sum.
    starts: Arc<[u64]>,
    sums: PartialSums,
    travelling: TravellingParameters,
    pub(super) scale: f64,
    memory: StepMemory<'a>,
    /// The stage of this process, if ranks compute parts of the graph.
    pipeline: Option<RankPipeline<'a>>,
}

impl<'a> VirtualGradients<'a> {
    /// For parameters that are aligned and have a tail.
    pub(super) fn new(
        net: &'a GraphNet<'a>,
        workers: u32,
        seed: u64,
        params: &Tensor,
        memory: StepMemory<'a>,
    ) -> Result<Self, BackendError> {
        let views = net.aligned_views(params)?;
        let ranges = net.aligned_ranges().into_iter();
        let starts = ranges.map(|range| range.start as u64).collect();
        let mut new = Self {
            net,
            workers,
            seed,
            params: params.shallow_clone(),
            views,
            buffers: Vec::new(),
            starts,
            sums: PartialSums::new(params),
            travelling: TravellingParameters::new(net, u64::MAX, |_| true),
            scale: 1.0,
            memory,
            pipeline: None,
        };
        new.remember_buffers()?;
        Ok(new)
    }

    fn parts<'b>(&self, batch: &'b Batch) -> MicroBatches<'b> {
        MicroBatches::new(self.net, batch, self.workers, self.seed, self.scale)
    }

    /// The parameters have changed.
    pub(super) fn remember_buffers(&mut self) -> Result<(), BackendError> {
        let buffers = self.net.buffers_of(&self.views);
        self.buffers = buffers.map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Uses what the ranks have agreed on for batches of the size of `batch`, and agrees on the cut of the
    /// graph if each of them computes a part. With rows of rank 0 alone, the parameters of the other ranks
    /// travel only now.
    pub(super) fn use_plan(
        &mut self,
        batch: &Batch,
        peers: &mut dyn Peers,
    ) -> Result<(), TrainError> {
        let parts = self.parts(batch);
        let rows = self.measured_rows(&parts.get(0)?)?;
        self.pipeline = RankPipeline::agree(self.net, &self.params, &rows, parts.len(), peers)?;
        let shared = self.pipeline.as_ref().and_then(RankPipeline::shared);
        let is_shared = |tensor: usize| shared.is_none_or(|shared| shared[tensor]);
        self.travelling = TravellingParameters::new(self.net, peers.bucket_bytes(), is_shared);
        if shared.is_some() {
            self.share(peers)?;
            self.end_sharing()?;
            self.remember_buffers()?;
        }
        Ok(())
    }

    /// The rows of a part on which a measurement runs the whole graph.
    fn measured_rows(&self, part: &MicroBatch) -> Result<Rows, TchError> {
        part.rows.part(0, part.rows.len().min(self.memory.rows_max))
    }

    /// Begins to give the parameters of rank 0, with their tail, to all ranks.
    pub(super) fn share(&mut self, peers: &mut dyn Peers) -> Result<(), TrainError> {
        let is_private = peers.pipeline().is_some_and(|place| place.is_private());
        if is_private && self.pipeline.is_none() {
            // Which of them may travel follows from the cut.
            self.travelling = TravellingParameters::new(self.net, u64::MAX, |_| false);
        }
        self.travelling.share(&self.params, peers)
    }

    /// Waits until all parameters are where they belong.
    pub(super) fn end_sharing(&mut self) -> Result<(), TrainError> {
        self.travelling.wait_for_all()
    }

    /// Computes the own parts of a batch, and the sums of the tree that other processes do not have.
    /// Elements of the last part travel while its backward pass computes others. The total is left at
    /// rank 0, which has worker 0. Returns a received sum that `audit` draws.
    pub(super) fn compute(
        &mut self,
        batch: &Batch,
        peers: Option<&mut (dyn Peers + '_)>,
        audit: Option<u64>,
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let parts = self.parts(batch);
        let count = parts.len();
        let Some(peers) = peers else {
            self.compute_parts(&parts, 0..count)?;
            return Ok(None);
        };
        let own = peers.own(count);
        let parts = parts.with_own(own.clone());
        if let Some(pipeline) = &mut self.pipeline {
            self.travelling.wait_for_all()?;
            // The audit runs the whole graph.
            let audit = audit.filter(|_| parts.rows_max() <= self.memory.rows_max);
            return pipeline.compute(&parts, peers, &mut self.sums, audit);
        }
        let ready = ReadyElements::none_of(self.params.size1()? as u64);
        let received = if own.is_empty() || !peers.overlaps() {
            self.travelling.wait_for_all()?;
            self.compute_parts(&parts, own)?;
            ready.set(0);
            peers.reduce(&mut self.sums, count, &ready, audit)?
        } else {
            self.compute_parts(&parts, own.start..own.end - 1)?;
            self.compute_last(&parts, &ready, |sums| peers.reduce(sums, count, &ready, audit))?
        };
        self.travelling.wait_for_all()?;
        Ok(received)
    }

    /// Computes the last own part, while another thread reduces.
    fn compute_last(
        &mut self,
        parts: &MicroBatches<'_>,
        ready: &ReadyElements,
        reduce: impl FnOnce(&mut PartialSums) -> Result<Option<ReceivedSum>, TrainError> + Send,
    ) -> Result<Option<ReceivedSum>, TrainError> {
        let own = parts.own();
        let last = parts.get(own.end - 1)?;
        let mut on_ready = |first: u64| ready.set(first);
        let merged = merges_after(own.end - 1, &own, parts.len());
        let mut sink = self.sink(&last, &merged, &mut on_ready)?;
        let Self { net, views, sums, travelling, memory, .. } = self;
        let received = std::thread::scope(|scope| {
            let reduces = scope.spawn(|| {
                // As the thread that computes: an addition must not take the other cores.
                crate::torch::threads::set_threads(1);
                reduce(sums)
            });
            let end = EndOfElements(ready);
            let step = PartStep { net, views, part: &last, streams: true };
            let computed = step.run(memory, travelling, &mut sink);
            if computed.is_ok() {
                ready.set(0);
            }
            drop(end);
            let received = reduces.join().map_err(|_| panicked())?;
            computed.and(received)
        })?;
        for merge in merged {
            self.sums.forget(merge.from);
        }
        Ok(received)
    }

    /// The total of a batch and its summed loss, at rank 0; it is valid until [`recycle`](Self::recycle).
    pub(super) fn total(&mut self) -> Result<(Tensor, f64), TrainError> {
        let sum = self.sums.get(0)?;
        Ok((sum.flat.shallow_clone(), summed_loss(&sum.tail()?)?))
    }

    /// The sum of a subtree's parts, as a process that owns them computes it: for comparison with what
    /// another one has sent.
    pub(super) fn recompute(
        &mut self,
        batch: &Batch,
        subtree: Range<usize>,
    ) -> Result<Tensor, TrainError> {
        let parts = self.parts(batch).with_own(subtree.clone());
        let new = PartialSums::new(&self.params);
        let sums = std::mem::replace(&mut self.sums, new);
        let computed = self.compute_parts(&parts, subtree.clone());
        let mut again = std::mem::replace(&mut self.sums, sums);
        computed?;
        let all = again.all();
        for merge in merges(parts.len()) {
            if subtree.contains(&merge.into) && subtree.contains(&merge.from) {
                again.merge(merge, &all)?;
            }
        }
        Ok(again.get(subtree.start)?.flat.shallow_clone())
    }

    /// Forgets the sums of a step.
    pub(super) fn recycle(&mut self) {
        self.sums.forget_all();
    }

    /// The speed of this process, for the gradient of one worker's part of a full batch.
    pub(super) fn measure(&mut self, batch: &Batch) -> Result<RankSpeed, TrainError> {
        let part = self.parts(batch).get(0)?;
        let part = MicroBatch { rows: self.measured_rows(&part)?, ..part };
        let mut speed = RankSpeed { worker_seconds: f64::INFINITY, ready: Vec::new() };
        for _ in 0..MEASUREMENTS {
            let start = Instant::now();
            let mut times = Vec::new();
            let mut on_ready = |first: u64| times.push((first, Instant::now()));
            let mut sink = self.sink(&part, &[], &mut on_ready)?;
            let Self { net, views, travelling, memory, .. } = self;
            let step = PartStep { net, views, part: &part, streams: true };
            step.run(memory, travelling, &mut sink)?;
            self.recycle();
            let seconds = start.elapsed().as_secs_f64().max(f64::MIN_POSITIVE);
            if seconds < speed.worker_seconds {
                speed = RankSpeed { worker_seconds: seconds, ready: ready_steps(&times, start) };
            }
        }
        Ok(speed)
    }

    /// Computes some of the own parts, and the sums of subtrees that are all its own.
    fn compute_parts(
        &mut self,
        parts: &MicroBatches<'_>,
        some: Range<usize>,
    ) -> Result<(), TrainError> {
        let (own, all) = (parts.own(), self.sums.all());
        for number in some {
            let part = parts.get(number)?;
            let mut nothing = |_: u64| {};
            let mut sink = self.sink(&part, &[], &mut nothing)?;
            let Self { net, views, travelling, memory, .. } = self;
            let step = PartStep { net, views, part: &part, streams: false };
            step.run(memory, travelling, &mut sink)?;
            for merge in merges_after(number, &own, parts.len()) {
                self.sums.merge(merge, &all)?;
            }
        }
        Ok(())
    }

    /// The receiver of a part's gradient, which also makes additions of the tree that the part ends.
    fn sink<'s>(
        &mut self,
        part: &MicroBatch,
        merges: &[Merge],
        on_ready: &'s mut (dyn FnMut(u64) + Send),
    ) -> Result<PartSink<'s>, TrainError> {
        let (number, views) = (part.number as usize, |flat: &_| self.net.aligned_views(flat));
        let sum = self.sums.with_views(number, views)?.handle();
        let of = |part: usize| self.sums.get(part).map(PartialSum::handle);
        let merges = merges.iter().map(|merge| Ok([of(merge.into)?, of(merge.from)?]));
        let merges = merges.collect::<Result<Vec<_>, BackendError>>()?;
        let pairs = self.net.buffers_of(&self.views).zip(self.net.buffers_of(&sum.views));
        let buffers = pairs.zip(&self.buffers).map(|((view, slot), before)| {
            [view.shallow_clone(), slot.shallow_clone(), before.shallow_clone()]
        });
        let (buffers, starts) = (buffers.collect(), Arc::clone(&self.starts));
        let (is_done, first_done) = (vec![false; starts.len()], starts.len());
        let weight = part.weight;
        Ok(PartSink { sum, merges, buffers, weight, starts, is_done, first_done, on_ready })
    }
}

/// The computation of one part.
struct PartStep<'p> {
    net: &'p GraphNet<'p>,
    views: &'p [Tensor],
    part: &'p MicroBatch,
    /// Whether the sink has each tensor as soon as it is there, and not all together.
    streams: bool,
}

impl PartStep<'_> {
    fn run(
        &self,
        memory: &mut StepMemory<'_>,
        travelling: &mut TravellingParameters,
        sink: &mut PartSink<'_>,
    ) -> Result<(), TrainError> {
        let Self { net, views, part, streams } = *self;
        let MicroBatch { rows, worker_seed, share, .. } = part;
        let mut draws = SeededDraws { worker_seed: *worker_seed, draws: &net.draws };
        let mut gate = ParameterGate(travelling);
        let mut observer = BothObservers(&mut draws, &mut gate);
        let slots = sink.sum.handle().views;
        let found = if streams {
            let stream = GradientStream { observer: &mut observer, sink };
            memory.streamed_gradient(net, views, rows, *share, &slots, stream).map(|_| ())
        } else {
            let losses = memory.gradient(net, views, rows, *share, &slots, &mut observer);
            losses.and_then(|losses| Ok(sink.forward_done(&losses)?))
        };
        found.map_err(|failure| failed(travelling, failure))
    }
}

/// The failure of a run, or of an arrival that ended it.
fn failed(travelling: &mut TravellingParameters, failure: GraphFailure) -> TrainError {
    travelling.take_failure().unwrap_or_else(|| BackendError::from(failure).into())
}

/// Receives the gradient of a part.
struct PartSink<'s> {
    sum: PartialSum,
    /// The sums that are added as the part ends, the second one to the first one.
    merges: Vec<[PartialSum; 2]>,
    /// Each buffer in the parameters, in the sum, and before the step.
    buffers: Vec<[Tensor; 3]>,
    /// The share of the part, scaled.
    weight: f64,
    /// The first element of each tensor.
    starts: Arc<[u64]>,
    is_done: Vec<bool>,
    /// The first tensor from which on all are done.
    first_done: usize,
    /// Receives the first element from which on all are there.
    on_ready: &'s mut (dyn FnMut(u64) + Send),
}

impl GradientSink for PartSink<'_> {
    fn forward_done(&mut self, losses: &Tensor) -> Result<(), TchError> {
        // Buffers travel as the weighted mean of those that the parts have made.
        for [view, slot, before] in &self.buffers {
            slot.shallow_clone().f_copy_(&view.f_mul_scalar(self.weight)?)?;
            // Unseen by the backward pass, which has saved parameters of the same memory.
            view.f_data()?.f_copy_(before)?;
        }
        let loss = f64::try_from(losses.f_sum(Kind::Double)?)?;
        self.sum.tail()?.f_copy_(&loss_tail(loss)?)?;
        for [into, from] in &self.merges {
            let _ = into.tail()?.f_add_(&from.tail()?)?;
        }
        Ok(())
    }

    fn tensor_done(&mut self, tensor: usize) -> Result<(), TchError> {
        for [into, from] in &self.merges {
            let _ = into.views[tensor].shallow_clone().f_add_(&from.views[tensor])?;
        }
        self.is_done[tensor] = true;
        let before = self.first_done;
        while self.first_done > 0 && self.is_done[self.first_done - 1] {
            self.first_done -= 1;
        }
        if self.first_done < before {
            let first = if self.first_done == 0 { 0 } else { self.starts[self.first_done] };
            (self.on_ready)(first);
        }
        Ok(())
    }
}

/// The steps of a backward pass, in seconds from the begin of the part; of many, some.
fn ready_steps(times: &[(u64, Instant)], begin: Instant) -> Vec<ReadyStep> {
    let Some(&last) = times.last() else { return Vec::new() };
    let stride = times.len().div_ceil(READY_STEPS_MAX);
    let mut before = u64::MAX;
    let some = times.iter().step_by(stride).filter(|&&(first, _)| {
        // Tensors without elements begin where the next one does.
        let is_new = first > last.0 && first < before;
        before = before.min(first);
        is_new
    });
    let steps = some.chain([&last]).map(|&(first_element, at)| ReadyStep {
        first_element,
        seconds: (at - begin).as_secs_f64(),
    });
    steps.collect()
}

/// The numbers behind a gradient: a summed loss in two numbers of 32 bits.
pub(super) fn loss_tail(loss: f64) -> Result<Tensor, TchError> {
    let mut tail = [0.0_f32; TAIL as usize];
    (tail[0], tail[1]) = (loss as f32, (loss - f64::from(loss as f32)) as f32);
    Tensor::f_from_slice(&tail)
}

/// The summed loss in those numbers.
pub(super) fn summed_loss(tail: &Tensor) -> Result<f64, TchError> {
    let tail = Vec::<f32>::try_from(tail)?;
    Ok(f64::from(tail[0]) + f64::from(tail[1]))
}

/// Runs of a part whose least time is its speed.
const MEASUREMENTS: u32 = 3;
/// Most steps of a backward pass in a measurement.
const READY_STEPS_MAX: usize = 64;

fn panicked() -> BackendError {
    let why = "the thread of the reduction has panicked".to_owned();
    BackendError { engine: crate::torch::ENGINE, why }
}
