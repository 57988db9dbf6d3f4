//! Training of graphs by virtual workers: the gradient of a batch as a tree of the gradients of its
//! parts, which one process computes or several.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use rand_chacha::rand_core::Rng;
use tch::{Kind, TchError, Tensor};

use super::net::GraphNet;
use super::step_memory::StepMemory;
use crate::engine::{BackendError, TrainError};
use crate::rng::{Purpose, rng};
use crate::torch::batches::Rows;
use crate::torch::descent::Batch;
use crate::torch::peers::{Peers, TAIL};
use crate::virtual_workers::{Merge, merges, merges_after};

/// The gradient of a subtree, flat, and its views by tensor. Its tail has the summed loss.
struct PartialSum {
    flat: Tensor,
    slots: Vec<Tensor>,
}

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
    sums: BTreeMap<usize, PartialSum>,
    free: Vec<PartialSum>,
    pub(super) scale: f64,
    memory: StepMemory<'a>,
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
        let params = params.shallow_clone();
        let (sums, free) = (BTreeMap::new(), Vec::new());
        let buffers = Vec::new();
        let mut new =
            Self { net, workers, seed, params, views, buffers, sums, free, scale: 1.0, memory };
        new.remember_buffers()?;
        Ok(new)
    }

    /// The rows of each part of a batch. A model of batch statistics has two rows in a part, at least.
    pub(super) fn parts(&self, size: usize) -> Vec<Range<usize>> {
        self.net.parts(size, self.workers)
    }

    /// The parameters have changed.
    pub(super) fn remember_buffers(&mut self) -> Result<(), BackendError> {
        let buffers = self.net.buffers_of(&self.views);
        self.buffers = buffers.map(Tensor::f_detach_copy).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Computes the own parts of a batch, and the sums of the tree that other processes do not have.
    /// The total is left at rank 0, which has worker 0. Returns a copy of the received sum at the part
    /// `copied`.
    pub(super) fn compute(
        &mut self,
        batch: &Batch,
        peers: Option<&mut (dyn Peers + '_)>,
        copied: Option<usize>,
    ) -> Result<Option<Tensor>, TrainError> {
        let parts = self.parts(batch.rows.len());
        let own = peers.as_deref().map_or(0..parts.len(), |peers| peers.own(parts.len()));
        self.compute_parts(batch, &parts, &own)?;
        let Some(peers) = peers else { return Ok(None) };
        let (rank, mut copy) = (peers.rank(), None);
        for merge in merges(parts.len()) {
            let (into, from) = (peers.owner(merge.into), peers.owner(merge.from));
            match (into == rank, from == rank) {
                (true, true) => self.merge(merge)?,
                (true, false) => {
                    let sum = self.sums.get(&merge.into).ok_or_else(lost_sum)?;
                    let copies = copied == Some(merge.from);
                    copy = peers.add_received(&sum.flat, from, merge.from, copies)?.or(copy);
                }
                (false, true) => {
                    let sum = self.sums.remove(&merge.from).ok_or_else(lost_sum)?;
                    peers.send(&sum.flat, into, merge.from)?;
                    self.free.push(sum);
                }
                (false, false) => {}
            }
        }
        peers.finish_sends()?;
        Ok(copy)
    }

    /// The total of a batch and its summed loss, at rank 0; it is valid until [`recycle`](Self::recycle).
    pub(super) fn total(&mut self) -> Result<(Tensor, f64), TrainError> {
        let sum = self.sums.get(&0).ok_or_else(lost_sum)?;
        let length = sum.flat.size1()?;
        let tail = Vec::<f32>::try_from(sum.flat.f_narrow(0, length - TAIL, TAIL)?)?;
        let loss = f64::from(tail[0]) + f64::from(tail[1]);
        Ok((sum.flat.shallow_clone(), loss))
    }

    /// The subtree at a part, as a process that owns these parts computes it: for comparison with what
    /// another one has sent.
    pub(super) fn recompute(
        &mut self,
        batch: &Batch,
        subtree: Range<usize>,
    ) -> Result<Tensor, TrainError> {
        let parts = self.parts(batch.rows.len());
        let end = subtree.end.min(parts.len());
        let own = subtree.start..end;
        self.compute_parts(batch, &parts, &own)?;
        for merge in merges(parts.len()) {
            if own.contains(&merge.into) && own.contains(&merge.from) {
                self.merge(merge)?;
            }
        }
        let sum = self.sums.remove(&own.start).ok_or_else(lost_sum)?;
        let copy = sum.flat.f_detach_copy()?;
        self.free.push(sum);
        Ok(copy)
    }

    /// Forgets the sums of a step.
    pub(super) fn recycle(&mut self) {
        self.free.extend(std::mem::take(&mut self.sums).into_values());
    }

    /// Seconds for the gradient of one worker's part of a full batch.
    pub(super) fn measure(&mut self, batch: &Batch) -> Result<f64, TrainError> {
        let parts = self.parts(batch.rows.len());
        let mut seconds = f64::INFINITY;
        for _ in 0..MEASUREMENTS {
            let start = Instant::now();
            self.compute_parts(batch, &parts, &(0..1))?;
            self.recycle();
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        Ok(seconds.max(f64::MIN_POSITIVE))
    }

    fn compute_parts(
        &mut self,
        batch: &Batch,
        parts: &[Range<usize>],
        own: &Range<usize>,
    ) -> Result<(), TrainError> {
        let seeds = worker_seeds(self.seed, batch.step, parts.len());
        for part in own.clone() {
            let range = &parts[part];
            let rows = batch.rows.part(range.start, range.len())?;
            let sum = self.part(&rows, batch.rows.len(), seeds[part])?;
            self.sums.insert(part, sum);
            for merge in merges_after(part, own, parts.len()) {
                self.merge(merge)?;
            }
        }
        Ok(())
    }

    /// The gradient of one part: of the mean loss of the whole batch.
    fn part(&mut self, rows: &Rows, size: usize, seed: u64) -> Result<PartialSum, TrainError> {
        let sum = self.take_free()?;
        let share = self.scale / size as f64;
        // Dropout and stochastic depth draw from seeds of the worker.
        let (net, views, seed) = (self.net, &self.views, Some(seed));
        let losses = self.memory.seeded_gradient(net, views, rows, share, &sum.slots, seed);
        let losses = losses.map_err(BackendError::from)?;
        // Buffers travel as the weighted mean of those that the parts have made.
        let weight = rows.len() as f64 / size as f64;
        let changed = self.net.buffers_of(&self.views).zip(self.net.buffers_of(&sum.slots));
        for ((view, slot), before) in changed.zip(&self.buffers) {
            slot.shallow_clone().f_copy_(&view.f_mul_scalar(weight * self.scale)?)?;
            view.shallow_clone().f_copy_(before)?;
        }
        let loss = f64::try_from(losses.f_sum(Kind::Double)?)?;
        let length = sum.flat.size1()?;
        sum.flat.f_narrow(0, length - TAIL, TAIL)?.f_copy_(&loss_tail(loss)?)?;
        Ok(sum)
    }

    fn take_free(&mut self) -> Result<PartialSum, BackendError> {
        if let Some(sum) = self.free.pop() {
            return Ok(sum);
        }
        let flat = self.params.f_zeros_like()?;
        let slots = self.net.aligned_views(&flat)?;
        Ok(PartialSum { flat, slots })
    }

    /// Makes an addition whose two sums are here; none if it was made before.
    fn merge(&mut self, merge: Merge) -> Result<(), TrainError> {
        let Some(right) = self.sums.remove(&merge.from) else { return Ok(()) };
        let left = self.sums.get(&merge.into).ok_or_else(lost_sum)?;
        let _ = left.flat.shallow_clone().f_add_(&right.flat)?;
        self.free.push(right);
        Ok(())
    }
}

/// The seeds of the workers in a step.
pub(super) fn worker_seeds(seed: u64, step: u64, workers: usize) -> Vec<u64> {
    let mut seeds = rng(seed, Purpose::VirtualWorkers, step as u32);
    (0..workers).map(|_| seeds.next_u64()).collect()
}

/// The numbers behind a gradient: a summed loss in two numbers of 32 bits.
pub(super) fn loss_tail(loss: f64) -> Result<Tensor, TchError> {
    let mut tail = [0.0_f32; TAIL as usize];
    (tail[0], tail[1]) = (loss as f32, (loss - f64::from(loss as f32)) as f32);
    Tensor::f_from_slice(&tail)
}

/// Runs of a part whose least time is its speed.
const MEASUREMENTS: u32 = 3;

fn lost_sum() -> BackendError {
    let why = "a sum of the tree is missing".to_owned();
    BackendError { engine: crate::torch::ENGINE, why }
}
