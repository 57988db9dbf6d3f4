//! A training of a graph by virtual workers: rank 0 takes the steps and stores its state, the other
//! ranks compute their parts of each batch.

use std::ops::Range;
use std::time::Instant;

use tch::{Device, Kind, TchError, Tensor};

use super::generator;
use super::net::{GraphNet, program};
use super::step_memory::{ESTIMATE_DIVISOR, StepMemory};
use super::training::{GraphTraining, LossScale};
use super::virtual_workers::VirtualGradients;
use crate::checkpoint::{
    Checkpoint, CheckpointNews, CheckpointSettings, StateNumbers, TrainingState,
};
use crate::data::Dataset;
use crate::engine::{TrainError, TrainedModel, TrainingProgress};
use crate::graph::GraphModel;
use crate::ranks::{RankError, RankErrorCode, RankTraining, data_fingerprint};
use crate::rng::{Purpose, below, rng};
use crate::segment_record::SegmentRecord;
use crate::torch::batches::BatchRows;
use crate::torch::descent::{Batch, BatchGradients, GradientDescent, Progress, Steps};
use crate::torch::peers::{Control, Peers, ReceivedSum, TAIL};
use crate::torch::side_stream::{RepeatableConvolutions, gpu_of};
use crate::torch::{LIBTORCH_VERSION, Torch};
use crate::training::{Execution, Precision, Training};

/// Steps in which, on average, the gradient of another rank is checked once.
const STEPS_OF_A_CHECK: u64 = 20;
/// Largest relative difference of a checked gradient. Processors with other vector instructions differ by
/// up to 3e-4; a skipped tenth of the rows, or products of 16 bits, by more than 3e-3.
const CHECK_TOLERANCE: f64 = 2e-3;
/// The same for products of 16 bits, which round by up to 4e-3 themselves.
const CHECK_TOLERANCE_16_BITS: f64 = 5e-2;

/// Rows that a rank of a pipeline measures, at least: statistics of a batch need two.
const MEASURED_ROWS_MIN: usize = 2;

/// A gradient of another rank that rank 0 computes as well.
#[derive(Debug, Clone, Copy)]
struct Check {
    step: u64,
    draw: u64,
}

impl Torch {
    /// Trains by virtual workers, with the other ranks if there are any. A segment starts from its state; the
    /// caller has checked it, and stops the training after its last step.
    pub(in crate::torch) fn train_graph_virtually(
        &mut self,
        training: &GraphTraining<'_>,
        workers: u32,
        segment: Option<(&TrainingState, &mut SegmentRecord)>,
        progress: TrainingProgress<'_>,
    ) -> Result<TrainedModel, TrainError> {
        let mut peers = self.peers.take();
        let peers_of_training = peers.as_deref_mut().map(|peers| peers as &mut dyn Peers);
        let trained =
            self.virtual_training(training, workers, peers_of_training, segment, progress);
        self.peers = peers;
        trained
    }

    fn virtual_training(
        &self,
        training: &GraphTraining<'_>,
        workers: u32,
        peers: Option<&mut dyn Peers>,
        segment: Option<(&TrainingState, &mut SegmentRecord)>,
        progress: TrainingProgress<'_>,
    ) -> Result<TrainedModel, TrainError> {
        let (start_of_segment, segment) = segment.unzip();
        let GraphTraining { model, start, data, how, seed } = *training;
        // One thread: the bits of a part must not depend on their number.
        crate::torch::threads::set_threads(1);
        let _generator = generator();
        let _repeatable = gpu_of(self.device).map(|_| RepeatableConvolutions::start());
        let program = program(model)?;
        let net = GraphNet::new(model, program, self.device, Kind::Float)?
            .with_precision(how.execution.precision);
        let start = self.to_tensor(&net.align(start))?;
        let length = start.size1()?;
        let flat = Tensor::f_zeros(length + TAIL, (Kind::Float, self.device))?;
        let own = flat.f_narrow(0, 0, length)?;
        own.shallow_clone().f_copy_(&start)?;
        let mut descent = GradientDescent::on(own, &start, how)?.with_fixed(net.aligned_buffers());
        let mut scale = LossScale::new(how.execution.precision);
        let settings = self.checkpoints.as_ref().filter(|_| segment.is_none());
        let store = settings.map(|settings| {
            let key = key(model, training);
            StateFile { settings, key, last: Instant::now() }
        });
        let total_steps = how.steps(data.rows());
        let stored = store.as_ref().and_then(|store| store.read(training.start.len()));
        let stored = start_of_segment.or(stored.as_ref().map(|stored| &stored.state));
        let from = match stored.filter(|stored| stored.step() < total_steps) {
            Some(stored) => restore(&net, stored, &descent, &mut scale)?,
            None => Progress::default(),
        };
        let steps = Steps { first: from.step, ..Steps::all(data.rows(), how, seed) };
        let memory = self.admit_own(&net, &flat, data, how, peers.as_deref())?;
        let gradients = VirtualGradients::new(&net, workers, seed, &flat, memory)?;
        let check = peers.as_ref().and_then(|_| draw_check(&steps, total_steps));
        let mut virtual_steps = VirtualSteps {
            net: &net,
            gradients,
            peers,
            scale,
            flat,
            length,
            buffers: Vec::new(),
            store,
            segment,
            check,
            is_16_bit: how.execution.precision != Precision::F32,
            total: total_steps,
            is_awaited: false,
        };
        virtual_steps.begin(training, &steps, self)?;
        if let (step @ 1.., Some(store)) = (from.step, &virtual_steps.store) {
            (store.settings.notify)(&CheckpointNews::Continues { step, steps: total_steps });
        }
        let rows = BatchRows::new(self, data, &steps)?;
        let trained =
            self.descend_from(from, &steps, &rows, &mut descent, progress, &mut virtual_steps);
        virtual_steps.end(&trained)?;
        let trained = trained?;
        Ok(TrainedModel { params: net.unalign(&trained.params), ..trained })
    }

    /// Admits steps to the memory, unless this rank computes a part of the graph alone.
    pub(super) fn admit_own<'n>(
        &self,
        net: &'n GraphNet<'n>,
        flat: &Tensor,
        data: &Dataset,
        how: &Training,
        peers: Option<&dyn Peers>,
    ) -> Result<StepMemory<'n>, TrainError> {
        match peers.and_then(Peers::pipeline) {
            Some(_) => Ok(self.whole_graph_rows(net, data.rows(), how)),
            None => self.admit_steps(net, &net.aligned_views(flat)?, data, how, 0),
        }
    }

    /// The rows on which a rank of a pipeline runs the whole graph, to measure it: as many as its memory
    /// has room for by the static estimate, or two.
    pub(super) fn whole_graph_rows<'n>(
        &self,
        net: &GraphNet<'n>,
        rows: usize,
        how: &Training,
    ) -> StepMemory<'n> {
        let largest = net.largest_batch(rows, how).iter().map(Range::len).max();
        let bytes = how.execution.memory_bytes.or_else(|| self.free_memory()).unwrap_or(u64::MAX);
        let rows = net.program.rows_within(bytes / ESTIMATE_DIVISOR, largest.unwrap_or(0));
        StepMemory::in_parts(rows.max(MEASURED_ROWS_MIN))
    }
}

/// Rows of the size of a batch, for a measurement.
pub(super) fn first_batch(
    torch: &Torch,
    data: &Dataset,
    how: &Training,
) -> Result<Batch, TrainError> {
    let rows = 0..data.rows().min(how.batch as usize);
    Ok(Batch { step: 0, rows: torch.graph_rows(data, rows)? })
}

/// A step in which rank 0 checks another rank, drawn such that it is rare in long trainings. No other rank
/// can foresee it; the result does not depend on it.
fn draw_check(steps: &Steps<'_>, total: u64) -> Option<Check> {
    let left = total.saturating_sub(steps.first);
    let mut random = rng(rand_seed(), Purpose::Directions, 0);
    let is_drawn = below(&mut random, STEPS_OF_A_CHECK) < left;
    let step = steps.first + 1 + below(&mut random, left.max(1));
    is_drawn.then(|| Check { step, draw: below(&mut random, u64::MAX) })
}

/// A seed that other processes do not know.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0_u8)
}

/// The key of a training's state: a digest of everything that decides the training.
fn key(model: &GraphModel, training: &GraphTraining<'_>) -> String {
    let GraphTraining { start, data, how, seed, .. } = training;
    let mut hasher = blake3::Hasher::new_derive_key("florin v3 state of a training");
    // The bits do not depend on the memory.
    let execution = Execution { memory_bytes: None, ..how.execution };
    let how = Training { execution, ..(*how).clone() };
    let how = serde_json::to_string(&how).unwrap_or_default();
    for text in [&model.to_string(), &how, &data_fingerprint(data), LIBTORCH_VERSION] {
        hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
    }
    hasher.update(&seed.to_le_bytes()).update(bytemuck::cast_slice(start));
    hasher.finalize().to_hex().to_string()
}

/// The file with the state of a training.
struct StateFile<'a> {
    settings: &'a CheckpointSettings,
    key: String,
    last: Instant,
}

impl StateFile<'_> {
    fn read(&self, length: usize) -> Option<Checkpoint> {
        Checkpoint::read(&self.settings.file, &self.key, length)
    }

    fn write(&mut self, state: TrainingState) {
        let state = Checkpoint { key: self.key.clone(), state };
        if let Err(why) = state.write(&self.settings.file) {
            (self.settings.notify)(&CheckpointNews::NotStored { why });
        }
        self.last = Instant::now();
    }
}

fn is_finite(tensors: &[Tensor]) -> Result<bool, TchError> {
    for tensor in tensors {
        if !bool::try_from(tensor.f_isfinite()?.f_all()?)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The state of a descent.
fn state_of(
    net: &GraphNet<'_>,
    descent: &GradientDescent<'_>,
    done: &Progress,
    scale: Option<&LossScale>,
) -> Result<TrainingState, TrainError> {
    let tensors = descent.state().into_iter().map(|tensor| {
        let aligned = Vec::<f32>::try_from(tensor.f_to_device(Device::Cpu)?.f_contiguous()?)?;
        Ok::<_, TchError>(net.unalign(&aligned))
    });
    let numbers = StateNumbers {
        step: done.step,
        sum: done.sum.to_bits(),
        mean_loss: done.mean_loss.to_bits(),
        scale: scale.map_or((0, 0), LossScale::bits),
    };
    Ok(TrainingState { numbers, tensors: tensors.collect::<Result<_, _>>()? })
}

/// Puts a stored state into a descent.
fn restore(
    net: &GraphNet<'_>,
    stored: &TrainingState,
    descent: &GradientDescent<'_>,
    scale: &mut Option<LossScale>,
) -> Result<Progress, TrainError> {
    let own = descent.state();
    if own.len() != stored.tensors.len() {
        return Ok(Progress::default());
    }
    for (tensor, numbers) in own.iter().zip(&stored.tensors) {
        tensor.shallow_clone().f_copy_(&Tensor::f_from_slice(&net.align(numbers))?)?;
    }
    let StateNumbers { step, sum, mean_loss, scale: bits } = stored.numbers;
    *scale = scale.take().map(|_| LossScale::from_bits(bits));
    Ok(Progress { step, sum: f64::from_bits(sum), mean_loss: f64::from_bits(mean_loss) })
}

/// The steps of rank 0.
struct VirtualSteps<'a, 'p, 's> {
    net: &'a GraphNet<'a>,
    gradients: VirtualGradients<'a>,
    peers: Option<&'p mut dyn Peers>,
    scale: Option<LossScale>,
    /// The parameters, aligned, with a tail; and the length before the tail.
    flat: Tensor,
    length: i64,
    /// The buffers that the parts of the batch have made.
    buffers: Vec<Tensor>,
    store: Option<StateFile<'a>>,
    /// The segment that is trained, unless it is a whole training.
    segment: Option<&'s mut SegmentRecord>,
    check: Option<Check>,
    /// Whether products have 16 bits.
    is_16_bit: bool,
    /// All steps.
    total: u64,
    /// Whether the other ranks wait for parameters.
    is_awaited: bool,
}

impl VirtualSteps<'_, '_, '_> {
    /// Announces the training, gives its start to all ranks, and assigns the workers.
    fn begin(
        &mut self,
        training: &GraphTraining<'_>,
        steps: &Steps<'_>,
        torch: &Torch,
    ) -> Result<(), TrainError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let GraphTraining { data, how, seed, .. } = *training;
        let (first_step, measures) = (steps.first, peers.needs_speeds());
        peers.announce(&RankTraining { how: how.clone(), seed, first_step, measures }, data)?;
        self.share(Control::Next)?;
        self.gradients.end_sharing()?;
        let speed = match measures {
            true => Some(self.gradients.measure(&first_batch(torch, data, how)?)?),
            false => None,
        };
        let workers = how.execution.virtual_workers.unwrap_or(1);
        let Some(peers) = &mut self.peers else { return Ok(()) };
        peers.assign(speed, workers, self.flat.size1()? as u64)?;
        self.gradients.use_plan(&first_batch(torch, data, how)?, &mut **peers)
    }

    fn share(&mut self, control: Control) -> Result<(), TrainError> {
        let Some(peers) = &mut self.peers else { return Ok(()) };
        let factor = self.scale.as_ref().map_or(1.0, |scale| scale.factor);
        let mut tail = [0.0_f32; TAIL as usize];
        (tail[0], tail[1]) = (control.number(), factor as f32);
        self.flat.f_narrow(0, self.length, TAIL)?.f_copy_(&Tensor::f_from_slice(&tail)?)?;
        self.gradients.share(&mut **peers)?;
        self.is_awaited = false;
        Ok(())
    }

    /// The training is over, or failed: the other ranks must not wait, unless one of them has failed.
    fn end(&mut self, trained: &Result<TrainedModel, TrainError>) -> Result<(), TrainError> {
        let is_of_model = matches!(
            trained,
            Ok(_) | Err(TrainError::Diverged { .. } | TrainError::Stopped { .. })
        );
        if self.is_awaited && is_of_model {
            self.share(Control::End)?;
        }
        if is_of_model {
            self.gradients.end_sharing()?;
        }
        if let (Some(store), Ok(_) | Err(TrainError::Diverged { .. })) = (&self.store, trained) {
            // It is of no use any more; a file that stays is replaced by the next training.
            let _ = std::fs::remove_file(&store.settings.file);
        }
        Ok(())
    }

    /// Compares a received sum with the same one computed here.
    fn compare(&mut self, batch: &Batch, received: &ReceivedSum) -> Result<(), TrainError> {
        let ReceivedSum { from: rank, parts, pieces } = received;
        let whole = self.gradients.recompute(batch, parts.clone())?;
        // Of the elements that came from this rank.
        let [flat, of_rank] = [whole.f_zeros_like()?, whole.f_zeros_like()?];
        for (from, piece) in pieces {
            let (from, length) = (*from as i64, piece.size1()?);
            of_rank.f_narrow(0, from, length)?.f_copy_(&whole.f_narrow(0, from, length)?)?;
            flat.f_narrow(0, from, length)?.f_copy_(piece)?;
        }
        // Running statistics may be large beside gradients: they are left out.
        let gradient = |flat: &Tensor| -> Result<Tensor, TchError> {
            let flat = flat.f_to_device(Device::Cpu)?.f_narrow(0, 0, self.length)?;
            for buffer in self.net.aligned_buffers() {
                let (from, length) = (buffer.start as i64, buffer.len() as i64);
                let _ = flat.f_narrow(0, from, length)?.f_zero_()?;
            }
            flat.f_to_kind(Kind::Double)
        };
        let (own, received) = (gradient(&of_rank)?, gradient(&flat)?);
        if !bool::try_from(own.f_isfinite()?.f_all()?)? {
            return Ok(());
        }
        let norm = |tensor: &Tensor| f64::try_from(tensor.f_norm()?);
        // Single tensors may have rounding noise alone: the elements count with their part of the whole, too.
        let elements: i64 = pieces.iter().map(|(_, piece)| piece.size1().unwrap_or(0)).sum();
        let part = (elements as f64 / self.length as f64).min(1.0).sqrt();
        let difference = norm(&own.f_sub(&received)?)?;
        let size = norm(&own)?.max(norm(&gradient(&whole)?)? * part);
        // Written so that a difference that is not a number is too large.
        let tolerance = match self.is_16_bit {
            true => CHECK_TOLERANCE_16_BITS,
            false => CHECK_TOLERANCE,
        };
        if difference <= tolerance * size {
            return Ok(());
        }
        let why = format!(
            "in step {}, rank {rank} or a rank behind it sent a gradient that its rows do not give: it \
             differs by {difference:.3e} of {size:.3e}. Check the memory and the program of its \
             machine, or leave it out",
            batch.step
        );
        Err(RankError::new(RankErrorCode::Differs, why).into())
    }
}

impl BatchGradients for VirtualSteps<'_, '_, '_> {
    fn gradient(
        &mut self,
        batch: &Batch,
        descent: &mut GradientDescent<'_>,
    ) -> Result<f64, TrainError> {
        let audit = self.check.filter(|check| check.step == batch.step).map(|check| check.draw);
        loop {
            self.gradients.scale = self.scale.as_ref().map_or(1.0, |scale| scale.factor);
            let peers = self.peers.as_deref_mut().map(|peers| peers as &mut dyn Peers);
            let received = self.gradients.compute(batch, peers, audit)?;
            self.is_awaited = self.peers.is_some();
            let (total, loss) = self.gradients.total()?;
            let gradient = total.f_narrow(0, 0, self.length)?;
            if let Some(scale) = &mut self.scale {
                let _ = gradient.shallow_clone().f_mul_scalar_(1.0 / self.gradients.scale)?;
                let is_finite = bool::try_from(gradient.f_isfinite()?.f_all()?)?;
                if !scale.accepts(is_finite) {
                    self.gradients.recycle();
                    self.share(Control::Again)?;
                    continue;
                }
            }
            // A training that diverges, or overflows, has no gradient to compare.
            if let (Some(received), true) = (received, loss.is_finite()) {
                self.compare(batch, &received)?;
            }
            let slots = self.net.aligned_views(&gradient)?;
            self.buffers.clear();
            for slot in self.net.buffers_of(&slots) {
                self.buffers.push(slot.f_detach_copy()?);
                let _ = slot.shallow_clone().f_zero_()?;
            }
            descent.use_gradient(gradient);
            return Ok(loss);
        }
    }

    fn stepped(
        &mut self,
        descent: &GradientDescent<'_>,
        done: &Progress,
        is_over: bool,
    ) -> Result<(), TrainError> {
        let views = self.net.aligned_views(&self.flat)?;
        for (view, made) in self.net.buffers_of(&views).zip(&self.buffers) {
            view.shallow_clone().f_copy_(made)?;
        }
        // A state with other numbers has no next one: in a segment, this step has diverged.
        if self.segment.is_some() && !is_finite(&descent.state())? {
            return Err(TrainError::Diverged { step: done.step });
        }
        self.gradients.remember_buffers()?;
        self.gradients.recycle();
        self.share(if is_over { Control::End } else { Control::Next })?;
        if let Some(store) = &mut self.store
            && done.step < self.total
            && (is_over || store.last.elapsed() >= store.settings.every)
        {
            store.write(state_of(self.net, descent, done, self.scale.as_ref())?);
        }
        if let Some(segment) = &mut self.segment {
            segment
                .stepped(done.step, || state_of(self.net, descent, done, self.scale.as_ref()))?;
        }
        Ok(())
    }
}
