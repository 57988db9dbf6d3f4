//! A training of a graph at a rank that serves rank 0: its parts of each batch, without the steps.

use tch::{Device, Kind, Tensor};

use super::generator;
use super::net::{GraphNet, program};
use super::virtual_training::first_batch;
use super::virtual_workers::VirtualGradients;
use crate::data::Dataset;
use crate::engine::TrainError;
use crate::graph::GraphModel;
use crate::ranks::{RankError, RankErrorCode, RankTraining, RowsShape};
use crate::torch::Torch;
use crate::torch::batches::{BatchRows, Rows, with_batches};
use crate::torch::descent::{Batch, BatchPlaces, Steps};
use crate::torch::peers::{Control, Peers, TAIL};
use crate::torch::side_stream::{RepeatableConvolutions, gpu_of};
use crate::training::Training;

/// The rows of a rank that serves.
#[derive(Debug, Clone, Copy)]
pub(in crate::torch) enum ServedRows<'a> {
    /// Those of all ranks.
    Shared(&'a Dataset),
    /// Rows of this shape, which rank 0 alone has: here are zeros, which no result depends on.
    Absent(RowsShape),
}

impl<'a> ServedRows<'a> {
    /// The shape that rank 0 has given, or the rows that are here.
    ///
    /// # Errors
    /// [`RankErrorCode::Unsupported`] without both.
    pub(in crate::torch) fn new(
        shape: Option<RowsShape>,
        data: Option<&'a Dataset>,
    ) -> Result<Self, RankError> {
        match (shape, data) {
            (Some(shape), _) => Ok(Self::Absent(shape)),
            (None, Some(data)) => Ok(Self::Shared(data)),
            (None, None) => {
                let why = "this rank has no rows, and rank 0 does not have them alone";
                Err(RankError::new(RankErrorCode::Unsupported, why))
            }
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Shared(data) => data.rows(),
            Self::Absent(shape) => shape.rows,
        }
    }

    /// Rows of the size of a batch, for a measurement.
    fn first_batch(&self, torch: &Torch, how: &Training) -> Result<Batch, TrainError> {
        match self {
            Self::Shared(data) => first_batch(torch, data, how),
            Self::Absent(shape) => {
                let rows = zeros(torch, *shape, shape.rows.min(how.batch as usize))?;
                Ok(Batch { step: 0, rows })
            }
        }
    }
}

/// Rows of zeros.
fn zeros(torch: &Torch, shape: RowsShape, count: usize) -> Result<Rows, TrainError> {
    let (count, width) = (count as i64, shape.width as i64);
    let numbers = Tensor::f_zeros([count, width], (Kind::Float, torch.device))?;
    Ok(Rows { numbers, labels: Tensor::f_zeros([count], (Kind::Int64, torch.device))? })
}

impl Torch {
    /// Computes this rank's parts of a training that rank 0 has announced, until it ends.
    pub(in crate::torch) fn serve_graph(
        &self,
        model: &GraphModel,
        served: ServedRows<'_>,
        training: &RankTraining,
        peers: &mut dyn Peers,
    ) -> Result<(), TrainError> {
        let RankTraining { how, seed, first_step, measures } = training;
        how.check()?;
        crate::torch::threads::set_threads(1);
        let _generator = generator();
        let _repeatable = gpu_of(self.device).map(|_| RepeatableConvolutions::start());
        let net = GraphNet::new(model, program(model)?, self.device, Kind::Float)?
            .with_precision(how.execution.precision);
        let length = net.aligned_length() as i64;
        let flat = Tensor::f_zeros(length + TAIL, (Kind::Float, self.device))?;
        let workers = how.execution.virtual_workers.unwrap_or(1);
        let memory = match served {
            ServedRows::Shared(data) => self.admit_own(&net, &flat, data, how, Some(&*peers))?,
            ServedRows::Absent(shape) => self.whole_graph_rows(&net, shape.rows, how),
        };
        let mut gradients = VirtualGradients::new(&net, workers, *seed, &flat, memory)?;
        gradients.share(peers)?;
        gradients.end_sharing()?;
        gradients.remember_buffers()?;
        gradients.scale = control(&flat, length)?.1;
        let first = served.first_batch(self, how)?;
        let speed = measures.then(|| gradients.measure(&first)).transpose()?;
        peers.assign(speed, workers, flat.size1()? as u64)?;
        gradients.use_plan(&first, peers)?;
        let steps = Steps { rows: served.count(), how, seed: *seed, first: *first_step };
        let mut served_steps = ServedSteps { gradients, peers, flat, length };
        match served {
            ServedRows::Shared(data) => {
                let rows = BatchRows::new(self, data, &steps)?;
                with_batches(&rows, &steps, |mut batches| {
                    served_steps.run(&steps, &mut |places| Ok(batches.next(self, &steps, places)?))
                })
            }
            ServedRows::Absent(shape) => {
                served_steps.run(&steps, &mut |places| zeros(self, shape, places.places.len()))
            }
        }
    }
}

/// The steps of a rank that serves.
struct ServedSteps<'a, 'p> {
    gradients: VirtualGradients<'a>,
    peers: &'p mut dyn Peers,
    /// The parameters, aligned, with a tail; and the length before the tail.
    flat: Tensor,
    length: i64,
}

impl ServedSteps<'_, '_> {
    /// Computes the own parts of all batches, until rank 0 ends the training.
    fn run(
        &mut self,
        steps: &Steps<'_>,
        next: &mut dyn FnMut(BatchPlaces) -> Result<Rows, TrainError>,
    ) -> Result<(), TrainError> {
        let Self { gradients, peers, flat, length } = self;
        for places in steps.batches() {
            let step = places.step;
            let batch = Batch { step, rows: next(places)? };
            loop {
                gradients.compute(&batch, Some(&mut **peers), None)?;
                gradients.recycle();
                gradients.share(&mut **peers)?;
                let (stated, scale) = control(flat, *length)?;
                gradients.scale = scale;
                match stated {
                    Control::Again => {}
                    Control::Next => break,
                    Control::End => return gradients.end_sharing(),
                }
            }
            gradients.remember_buffers()?;
        }
        Ok(())
    }
}

/// The control that rank 0 has stated with the parameters, and the scale of the loss.
fn control(flat: &Tensor, length: i64) -> Result<(Control, f64), TrainError> {
    let tail = Vec::<f32>::try_from(flat.f_narrow(0, length, TAIL)?.f_to_device(Device::Cpu)?)?;
    Ok((Control::of(tail[0]), f64::from(tail[1])))
}
