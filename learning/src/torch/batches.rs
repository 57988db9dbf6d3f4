//! The batches of a training: from rows on the device, or gathered by a second thread.
//!
//! The second thread gathers the next batches from the memory of the host while the device computes,
//! and changes their images where the training does. Rows of a mapped file may exceed the memory, so
//! they are gathered as well. Both ways give the same bits.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tch::{Device, Kind, TchError, Tensor};

use super::Torch;
use super::descent::{BatchPlaces, Steps};
use super::memory::available_bytes;
use crate::augmentation::TrainingRows;
use crate::data::Dataset;

/// Batches that are ready before their steps, at most.
pub(super) const PREFETCHED_BATCHES_MAX: usize = 2;
/// Largest features of a training that are copied to the device as a whole, in bytes: 4 GiB.
pub(super) const RESIDENT_BYTES_MAX: usize = 4 << 30;
/// Divisor of the free memory of the host: the copy of a mapped file on its way to a GPU is at most
/// this part.
const HOST_COPY_DIVISOR: u64 = 4;

/// The rows of a training.
pub(super) enum BatchRows<'a> {
    /// All of them are on the device.
    Resident(Rows),
    /// Each batch is gathered.
    Gathered(TrainingRows<'a>),
}

/// Rows on a device.
pub(super) struct Rows {
    /// `[rows, numbers]`, in `f32`.
    pub(super) numbers: Tensor,
    /// `[rows]`.
    pub(super) labels: Tensor,
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        self.labels.size().first().map_or(0, |&rows| rows as usize)
    }

    /// The rows with these indices.
    pub(super) fn select(&self, indices: &Tensor) -> Result<Self, TchError> {
        Ok(Self {
            numbers: self.numbers.f_index_select(0, indices)?,
            labels: self.labels.f_index_select(0, indices)?,
        })
    }

    /// A copy of `count` rows from `first` on, aligned as any tensor is.
    pub(super) fn part(&self, first: usize, count: usize) -> Result<Self, TchError> {
        let part =
            |tensor: &Tensor| tensor.f_narrow(0, first as i64, count as i64)?.f_detach_copy();
        Ok(Self { numbers: part(&self.numbers)?, labels: part(&self.labels)? })
    }
}

/// The numbers of a gathered batch.
pub(super) struct HostBatch {
    features: Vec<f32>,
    labels: Vec<i64>,
}

/// The batches of a training, in the order of its steps.
pub(super) enum Batches<'a> {
    Resident { rows: &'a Rows, order: Option<(u32, Tensor)> },
    Gathered { from: Receiver<HostBatch>, width: usize },
}

impl<'a> BatchRows<'a> {
    /// The rows of a training, on the device unless they change or are too many.
    pub(super) fn new(
        torch: &Torch,
        data: &'a Dataset,
        steps: &Steps<'_>,
    ) -> Result<Self, TchError> {
        let seen = TrainingRows::new(data, steps.how, steps.seed);
        if seen.augmentation.is_some() || !may_be_resident(torch, data) {
            return Ok(Self::Gathered(seen));
        }
        let (numbers, labels) = torch.rows(data, 0..data.rows(), Kind::Float)?;
        Ok(Self::Resident(Rows { numbers, labels: labels.f_view([-1])? }))
    }
}

/// Whether all rows may be copied to the device. Those of a mapped file are on the CPU's device
/// already, page by page.
fn may_be_resident(torch: &Torch, data: &Dataset) -> bool {
    let bytes = size_of_val(data.features());
    let has_room = || match torch.device {
        Device::Cpu => false,
        _ => available_bytes().is_some_and(|free| bytes as u64 <= free / HOST_COPY_DIVISOR),
    };
    bytes <= torch.resident_bytes_max && (!data.is_mapped() || has_room())
}

impl TrainingRows<'_> {
    /// Sends all batches until the last one, or until the training ends.
    fn send(&self, steps: &Steps<'_>, to: &SyncSender<HostBatch>) {
        let (mut epoch, mut order) = (None, Vec::new());
        for batch in steps.batches() {
            if epoch != Some(batch.epoch) {
                (epoch, order) = (Some(batch.epoch), steps.order(batch.epoch));
            }
            let rows = &order[batch.places];
            let mut features = Vec::with_capacity(rows.len() * self.data.width());
            self.gather(rows, batch.epoch, &mut features);
            let labels = rows.iter().map(|&row| self.data.labels()[row].into()).collect();
            if to.send(HostBatch { features, labels }).is_err() {
                return;
            }
        }
    }
}

/// Calls `train` with the batches of a training. It must end when they do.
pub(super) fn with_batches<T>(
    rows: &BatchRows<'_>,
    steps: &Steps<'_>,
    train: impl FnOnce(Batches<'_>) -> T,
) -> T {
    match rows {
        BatchRows::Resident(rows) => train(Batches::Resident { rows, order: None }),
        BatchRows::Gathered(rows) => {
            let (to, from) = sync_channel(PREFETCHED_BATCHES_MAX);
            std::thread::scope(|scope| {
                // It ends when the receiver does, which `train` owns.
                scope.spawn(move || rows.send(steps, &to));
                train(Batches::Gathered { from, width: rows.data.width() })
            })
        }
    }
}

impl Batches<'_> {
    /// The next batch of [`Steps::batches`].
    pub(super) fn next(
        &mut self,
        torch: &Torch,
        steps: &Steps<'_>,
        batch: BatchPlaces,
    ) -> Result<Rows, TchError> {
        match self {
            Self::Resident { rows, order } => {
                let BatchPlaces { epoch, places, .. } = batch;
                let drawn = match order.take().filter(|(drawn, _)| *drawn == epoch) {
                    Some((_, drawn)) => drawn,
                    None => {
                        let drawn = steps.order(epoch).into_iter().map(|row| row as i64);
                        torch.to_tensor(&drawn.collect::<Vec<i64>>())?
                    }
                };
                let (from, count) = (places.start as i64, places.len() as i64);
                let chosen = rows.select(&drawn.f_narrow(0, from, count)?);
                *order = Some((epoch, drawn));
                chosen
            }
            Self::Gathered { from, width } => {
                let batch = from.recv().map_err(|_| {
                    TchError::Torch("the thread that gathers batches has ended".to_owned())
                })?;
                let numbers = torch.to_tensor(&batch.features)?.f_view([-1, *width as i64])?;
                Ok(Rows { numbers, labels: torch.to_tensor(&batch.labels)? })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::augmentation::Augmentation;
    use crate::data::{DataSource, ImageShape, canonical_bytes, load, map};
    use crate::engine::{TrainError, Trainer, TrainingStep};
    use crate::model::ModelSpec;
    use crate::reference::Reference;
    use crate::torch::TorchDevice;
    use crate::training::Training;

    fn go_on(_: TrainingStep) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn digits() -> Dataset {
        load(&DataSource::Digits).unwrap().slice(0..70).unwrap()
    }

    fn changing() -> Training {
        let image = ImageShape { channels: 1, height: 8, width: 8 };
        let augmentation = Augmentation { image, flip: true, crop_padding: 2 };
        Training { augmentation: Some(augmentation), ..Training::sgd(3, 16, 0.1) }
    }

    fn engine(resident_bytes_max: usize) -> Torch {
        Torch { resident_bytes_max, ..Torch::new(TorchDevice::Cpu, 1).unwrap() }
    }

    #[test]
    fn gathered_batches_give_the_bits_of_resident_rows() {
        let (data, how) = (digits(), Training::sgd(3, 16, 0.1));
        for model in [
            ModelSpec::Mlp { inputs: 64, hidden: vec![16], classes: 10 },
            ModelSpec::Cnn {
                channels: 1,
                height: 8,
                width: 8,
                filters: [2, 3],
                hidden: 8,
                classes: 10,
            },
        ] {
            let start = model.init(1).into_vec();
            let [resident, gathered] = [usize::MAX, 0].map(|most| {
                engine(most).train(&model, &start, &data, &how, 7, &mut go_on).unwrap()
            });
            assert_eq!(resident, gathered);
        }
    }

    #[test]
    fn a_mapped_file_trains_to_the_bits_of_rows_in_memory() {
        let owned = digits();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), canonical_bytes(&owned)).unwrap();
        let mapped = map(file.path()).unwrap();
        let how = Training::sgd(3, 16, 0.1);
        for model in [
            ModelSpec::Softmax { inputs: 64, classes: 10 },
            ModelSpec::Mlp { inputs: 64, hidden: vec![16], classes: 10 },
        ] {
            let start = model.init(1).into_vec();
            let mut torch = engine(usize::MAX);
            let steps = Steps::all(mapped.rows(), &how, 7);
            let rows = BatchRows::new(&torch, &mapped, &steps).unwrap();
            assert!(matches!(rows, BatchRows::Gathered(_)), "no copy of a mapped file");
            let mut plain = Reference::new();
            for engine in [&mut torch as &mut dyn Trainer, &mut plain] {
                let [a, b] = [&owned, &mapped]
                    .map(|data| engine.train(&model, &start, data, &how, 7, &mut go_on).unwrap());
                assert_eq!(a, b);
            }
        }
    }

    #[test]
    fn both_engines_train_on_the_same_changed_images() {
        let (data, how) = (digits(), changing());
        let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
        let start = model.init(1).into_vec();
        let torch = engine(0).train(&model, &start, &data, &how, 7, &mut go_on).unwrap();
        let plain = Reference::new().train(&model, &start, &data, &how, 7, &mut go_on).unwrap();
        let pairs = torch.params.iter().zip(&plain.params);
        assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-5), "{pairs:?}");
        let unchanged = Training { augmentation: None, ..how };
        let other = Reference::new().train(&model, &start, &data, &unchanged, 7, &mut go_on);
        assert_ne!(other.unwrap().params, plain.params);
        let again = engine(usize::MAX).train(&model, &start, &data, &how, 7, &mut go_on).unwrap();
        assert_eq!(again, torch, "a training repeats from its seed");
    }

    #[test]
    fn a_stopped_training_ends_the_thread_that_gathers() {
        let model = ModelSpec::Softmax { inputs: 64, classes: 10 };
        let start = model.init(1).into_vec();
        let stop = &mut |_| ControlFlow::Break(());
        let stopped = engine(0).train(&model, &start, &digits(), &changing(), 7, stop);
        assert!(matches!(stopped, Err(TrainError::Stopped { step: 1 })));
    }
}
