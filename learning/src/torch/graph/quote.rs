//! The quote of a training: its steps on this device, before it starts.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use tch::{Kind, Tensor};

use super::generator;
use super::net::{GraphNet, program};
use super::pipeline::rank::check_cut;
use super::step_memory::{predicted_bytes, predicted_memory};
use crate::data::Dataset;
use crate::engine::{BackendError, TrainError, TrainingQuote};
use crate::graph::{GraphModel, NotObserved};
use crate::memory::MemoryQuote;
use crate::torch::Torch;
use crate::torch::batches::Rows;
use crate::torch::tape::{NoRestore, Tape};
use crate::training::Training;

/// Gradients of a part of a batch: the first ones have work of their own.
const MEASUREMENTS: usize = 3;

impl Torch {
    /// Predicts the bytes of the tensors of a step on `rows` rows at once, beside parameters, rows and the
    /// optimizer's state, from steps on a few rows of a sample; `None` if they depend on the numbers.
    pub(crate) fn graph_step_bytes(
        &self,
        model: &GraphModel,
        sample: &Dataset,
        rows: u32,
    ) -> Result<Option<u64>, TrainError> {
        let free = self.free_memory().unwrap_or(u64::MAX);
        self.recorded_step(model, sample, |net, views, sample| {
            predicted_bytes(net, views, sample, rows, free)
        })
    }

    /// As [`Self::graph_step_bytes`], with plans for smaller memories.
    pub(crate) fn graph_step_memory(
        &self,
        model: &GraphModel,
        sample: &Dataset,
        rows: u32,
    ) -> Result<Option<MemoryQuote>, TrainError> {
        let free = self.free_memory().unwrap_or(u64::MAX);
        self.recorded_step(model, sample, |net, views, sample| {
            predicted_memory(net, views, sample, rows, free)
        })
    }

    /// A prediction from steps at parameters of zero.
    fn recorded_step<T>(
        &self,
        model: &GraphModel,
        sample: &Dataset,
        predict: impl FnOnce(&GraphNet<'_>, &[Tensor], &Rows) -> Result<T, BackendError>,
    ) -> Result<T, TrainError> {
        self.set_threads();
        let _generator = generator();
        let net = GraphNet::new(model, program(model)?, self.device, Kind::Float)?;
        let length = net.aligned_length() as i64;
        let views = net.aligned_views(&Tensor::f_zeros(length, (Kind::Float, self.device))?)?;
        let sample = self.graph_rows(sample, 0..sample.rows())?;
        Ok(predict(&net, &views, &sample)?)
    }

    /// Measures gradients at parameters of zero; nothing of the training is changed.
    pub(in crate::torch) fn quote_graph(
        &self,
        model: &GraphModel,
        data: &Dataset,
        how: &Training,
    ) -> Result<TrainingQuote, TrainError> {
        let _generator = generator();
        if how.execution.virtual_workers.is_some() {
            crate::torch::threads::set_threads(1);
        }
        let net = GraphNet::new(model, program(model)?, self.device, Kind::Float)?
            .with_precision(how.execution.precision);
        let options = (Kind::Float, self.device);
        let length = net.aligned_length() as i64;
        let views = net.aligned_views(&Tensor::f_zeros(length, options)?)?;
        let slots = net.aligned_views(&Tensor::f_zeros(length, options)?)?;
        let batch = net.largest_batch(data.rows(), how);
        let largest = batch.iter().map(Range::len).max().unwrap_or(0);
        let pipeline = self.peers.as_deref().and_then(|peers| Some((peers.pipeline()?, peers)));
        let mut memory = match pipeline {
            // Each rank has a part of the graph.
            Some((place, peers)) => {
                check_cut(&net, &place, &peers.cut_costs())?;
                self.whole_graph_rows(&net, data.rows(), how)
            }
            // A training has its start, the gradient and the optimizer's tensors before its first step.
            None => {
                let reserved = 1 + how.state_tensors() + how.passing_tensors();
                self.admit_steps(&net, &views, data, how, reserved)?
            }
        };
        let rows = self.graph_rows(data, 0..largest.min(memory.rows_max))?;
        let (mut seconds, mut most, mut bytes) = (f64::INFINITY, 0.0_f64, 0);
        for turn in 0..MEASUREMENTS {
            let tape = Tape::new(self.device, false, Arc::new(NoRestore))?;
            let recording = tape.record(false)?;
            let start = Instant::now();
            let found = memory.gradient(&net, &views, &rows, 1.0, &slots, &mut NotObserved);
            // A GPU has computed the losses when they are here.
            let losses = found.map_err(BackendError::from)?.f_sum(Kind::Double)?;
            let _sum = f64::try_from(losses)?;
            let own = start.elapsed().as_secs_f64();
            seconds = seconds.min(own);
            if turn > 0 {
                most = most.max(own);
            }
            drop(recording);
            bytes = memory.planned_bytes(rows.len()).unwrap_or_else(|| tape.peak());
        }
        let of_part = largest.div_ceil(rows.len().max(1));
        if pipeline.is_some() {
            // The first part has results of as many micro-batches as there are parts.
            bytes = bytes.saturating_mul(of_part as u64);
        }
        let times = (batch.len() * of_part) as f64;
        Ok(TrainingQuote {
            steps: how.steps(data.rows()),
            step_seconds: seconds * times,
            step_seconds_most: most * times,
            step_bytes: bytes,
        })
    }
}
