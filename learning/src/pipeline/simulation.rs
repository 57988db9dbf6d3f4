//! A discrete-event simulation of a step of pipelines.
//!
//! A part computes one pass at a time, in its order, as soon as the input of the pass has arrived.
//! Sends do not wait. The link across a cut carries one message at a time, in either direction, in
//! the order in which the messages are sent: as in [`cut()`](super::cut()), the transfers across a
//! cut are a stage. After its last backward pass, a part adds its gradients to those of the same
//! part in the other replicas. Not modelled: differences between replicas, all-reduces that overlap
//! with passes, and the optimizer.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use thiserror::Error;

use super::{Order, PipelineShape, Work};
use crate::virtual_workers::TransferCost;

/// Replicas of a pipeline, at most.
const REPLICAS_MAX: u32 = 1 << 20;
/// Parts times micro-batches of a step, at most.
const MICRO_BATCHES_OF_PARTS_MAX: u64 = 1 << 24;

/// The cost of a part.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartCost {
    /// Seconds of its forward pass over a micro-batch.
    pub forward_seconds: f64,
    /// Seconds of its backward pass over a micro-batch.
    pub backward_seconds: f64,
    /// Bytes of its gradients, which are those of its parameters.
    pub parameter_bytes: u64,
}

/// A step of equal pipelines.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedStep<'a> {
    /// The parts of each pipeline.
    pub parts: &'a [PartCost],
    /// Seconds of the transfer of a micro-batch from each part but the last to the next. The
    /// gradients take as many back.
    pub transfer_seconds: &'a [f64],
    /// Micro-batches of each pipeline.
    pub micro_batches: u32,
    /// The order of each part.
    pub order: Order,
    /// Pipelines.
    pub replicas: u32,
    /// The link between the replicas of a part.
    pub all_reduce: TransferCost,
}

/// The simulated time of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepTime {
    /// Seconds of the step, with the all-reduces.
    pub seconds: f64,
    /// Seconds that each part computes.
    pub busy: Vec<f64>,
    /// The share of the parts' time in which they do not compute, from the begin of the step to the
    /// last pass of any part, without the all-reduces.
    pub bubble: f64,
}

/// A step cannot be simulated.
#[derive(Debug, Clone, Error, PartialEq)]
pub enum StepError {
    /// A number is missing or out of bounds.
    #[error("{why}")]
    Invalid {
        /// The reason.
        why: String,
    },
    /// A pass waits for an input that no part computes, or that is computed after the pass.
    #[error("part {part} waits for an input of its pass {pass} without end")]
    Stalled {
        /// The part.
        part: usize,
        /// The place of the pass in the order of the part.
        pass: usize,
    },
}

/// Seconds of an all-reduce of `bytes` bytes over `replicas` ranks in a ring, each of which sends
/// `2 (R − 1)` pieces of `bytes / R` bytes (Patarasuk and Yuan, JPDC 2009).
#[must_use]
pub fn ring_all_reduce_seconds(replicas: u32, bytes: u64, link: TransferCost) -> f64 {
    let replicas = f64::from(replicas.max(1));
    let pieces = 2.0 * (replicas - 1.0);
    pieces * link.alpha + pieces / replicas * bytes as f64 * link.beta
}

/// Simulates a step.
///
/// # Errors
/// [`StepError`] if a number is out of bounds, or if the order of a part can never be executed.
pub fn step_time(step: &SimulatedStep<'_>) -> Result<StepTime, StepError> {
    let shape = check(step)?;
    let mut run = SimulationRun::new(step, shape);
    run.execute();
    let (mut pipeline_seconds, mut seconds) = (0.0_f64, 0.0_f64);
    for (part, (own, cost)) in run.parts.iter().zip(step.parts).enumerate() {
        if own.done < own.order.len() {
            return Err(StepError::Stalled { part, pass: own.done });
        }
        pipeline_seconds = pipeline_seconds.max(own.end_seconds);
        let sum = ring_all_reduce_seconds(step.replicas, cost.parameter_bytes, step.all_reduce);
        seconds = seconds.max(own.end_seconds + sum);
    }
    let busy: Vec<f64> = run.parts.iter().map(|own| own.busy_seconds).collect();
    let all = f64::from(shape.parts()) * pipeline_seconds;
    let bubble = if all > 0.0 { 1.0 - busy.iter().sum::<f64>() / all } else { 0.0 };
    Ok(StepTime { seconds, busy, bubble })
}

/// The throughput of all ranks, parts times replicas, relative to one rank that computes all parts
/// one after another. Each replica has the micro-batches of the step, so that the batch grows with
/// the replicas (weak scaling). A perfect step has the number of ranks.
///
/// # Errors
/// As [`step_time`], and [`StepError::Invalid`] if the step takes no time.
pub fn scaling(step: &SimulatedStep<'_>) -> Result<f64, StepError> {
    let seconds = step_time(step)?.seconds;
    if seconds <= 0.0 {
        return Err(invalid("the throughput of a step of 0 seconds is not defined"));
    }
    let passes = step.parts.iter().map(|own| own.forward_seconds + own.backward_seconds);
    let alone_seconds = passes.sum::<f64>() * f64::from(step.micro_batches);
    Ok(f64::from(step.replicas) * alone_seconds / seconds)
}

fn invalid(why: &str) -> StepError {
    StepError::Invalid { why: why.to_owned() }
}

fn check(step: &SimulatedStep<'_>) -> Result<PipelineShape, StepError> {
    let parts = u32::try_from(step.parts.len()).unwrap_or(u32::MAX);
    let shape = PipelineShape::new(parts, step.micro_batches);
    let shape = shape.map_err(|error| invalid(&error.to_string()))?;
    if u64::from(parts) * u64::from(step.micro_batches) > MICRO_BATCHES_OF_PARTS_MAX {
        return Err(invalid(&format!(
            "the parts of a step have {MICRO_BATCHES_OF_PARTS_MAX} micro-batches together at most"
        )));
    }
    if step.transfer_seconds.len() + 1 != step.parts.len() {
        return Err(invalid("there must be a transfer between each two consecutive parts"));
    }
    if step.replicas == 0 || step.replicas > REPLICAS_MAX {
        return Err(invalid(&format!("a step has 1 to {REPLICAS_MAX} replicas")));
    }
    let passes = step.parts.iter().flat_map(|own| [own.forward_seconds, own.backward_seconds]);
    let links = step.transfer_seconds.iter().copied();
    let link = [step.all_reduce.alpha, step.all_reduce.beta];
    // The longest step is finite, too.
    let is_time = |seconds: f64| (0.0..f64::MAX.sqrt()).contains(&seconds);
    if !passes.chain(links).chain(link).all(is_time) {
        return Err(invalid("the seconds of a step must be at least 0 and below 1e154"));
    }
    Ok(shape)
}

/// The state of a part.
struct PartState {
    order: Vec<Work>,
    /// Passes that have ended.
    done: usize,
    is_busy: bool,
    /// The micro-batches whose activations and gradients have arrived.
    has_activation: Vec<bool>,
    has_gradient: Vec<bool>,
    busy_seconds: f64,
    end_seconds: f64,
}

/// The state of a link: the messages that wait for it or are on their way, named by the work that
/// needs them. The first one is on its way.
type LinkState = VecDeque<Work>;

/// An event: a pass of a part ends, or a message of a link arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum SimulatedEvent {
    Transfer(usize),
    Pass(usize),
}

/// A simulation.
struct SimulationRun<'a> {
    step: &'a SimulatedStep<'a>,
    parts: Vec<PartState>,
    links: Vec<LinkState>,
    /// Events to come, with the bits of their seconds (which have the order of the seconds, from 0
    /// on) and their number.
    events: BinaryHeap<Reverse<(u64, u64, SimulatedEvent)>>,
    scheduled: u64,
}

impl<'a> SimulationRun<'a> {
    fn new(step: &'a SimulatedStep<'a>, shape: PipelineShape) -> Self {
        let last = shape.parts() - 1;
        let of_part = |part: u32| PartState {
            order: (step.order)(part, shape),
            done: 0,
            is_busy: false,
            has_activation: vec![part == 0; shape.micro_batches() as usize],
            has_gradient: vec![false; shape.micro_batches() as usize],
            busy_seconds: 0.0,
            end_seconds: 0.0,
        };
        Self {
            step,
            parts: (0..=last).map(of_part).collect(),
            links: vec![LinkState::new(); step.transfer_seconds.len()],
            events: BinaryHeap::new(),
            scheduled: 0,
        }
    }

    fn execute(&mut self) {
        for part in 0..self.parts.len() {
            self.begin_pass(part, 0.0);
        }
        while let Some(Reverse((bits, _, ended))) = self.events.pop() {
            let now = f64::from_bits(bits);
            match ended {
                SimulatedEvent::Pass(part) => self.end_pass(part, now),
                SimulatedEvent::Transfer(link) => self.end_transfer(link, now),
            }
        }
    }

    fn schedule(&mut self, seconds: f64, ended: SimulatedEvent) {
        self.events.push(Reverse((seconds.to_bits(), self.scheduled, ended)));
        self.scheduled += 1;
    }

    /// Begins the next pass of a part if the part is free and the input is there.
    fn begin_pass(&mut self, part: usize, now: f64) {
        let (own, cost) = (&mut self.parts[part], &self.step.parts[part]);
        let Some(&work) = own.order.get(own.done).filter(|_| !own.is_busy) else { return };
        let (inputs, micro_batch, seconds) = match work {
            Work::Forward(micro_batch) => (&own.has_activation, micro_batch, cost.forward_seconds),
            Work::Backward(micro_batch) => (&own.has_gradient, micro_batch, cost.backward_seconds),
        };
        if inputs.get(micro_batch as usize) == Some(&true) {
            own.is_busy = true;
            own.busy_seconds += seconds;
            self.schedule(now + seconds, SimulatedEvent::Pass(part));
        }
    }

    fn end_pass(&mut self, part: usize, now: f64) {
        let own = &mut self.parts[part];
        let work = own.order[own.done];
        (own.is_busy, own.done, own.end_seconds) = (false, own.done + 1, now);
        match work {
            Work::Forward(_) if part < self.links.len() => self.send(part, work, now),
            // The loss of the last part is the input of its backward pass.
            Work::Forward(micro_batch) => own.has_gradient[micro_batch as usize] = true,
            Work::Backward(_) if part > 0 => self.send(part - 1, work, now),
            Work::Backward(_) => {}
        }
        self.begin_pass(part, now);
    }

    /// Queues a message, the input of `work` in the part at the other end of a link.
    fn send(&mut self, link: usize, work: Work, now: f64) {
        self.links[link].push_back(work);
        if self.links[link].len() == 1 {
            self.schedule(now + self.step.transfer_seconds[link], SimulatedEvent::Transfer(link));
        }
    }

    fn end_transfer(&mut self, link: usize, now: f64) {
        let Some(work) = self.links[link].pop_front() else { return };
        if !self.links[link].is_empty() {
            self.schedule(now + self.step.transfer_seconds[link], SimulatedEvent::Transfer(link));
        }
        let receiver = match work {
            Work::Forward(_) => link + 1,
            Work::Backward(_) => link,
        };
        let own = &mut self.parts[receiver];
        match work {
            Work::Forward(micro_batch) => own.has_activation[micro_batch as usize] = true,
            Work::Backward(micro_batch) => own.has_gradient[micro_batch as usize] = true,
        }
        self.begin_pass(receiver, now);
    }
}

#[cfg(test)]
#[path = "simulation_tests.rs"]
mod tests;
