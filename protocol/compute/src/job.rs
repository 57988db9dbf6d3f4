//! The job of an order: the training whose steps are computed.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Augmentation, Blob, Canonical, GraphModel, Micro, SpecError, Training};
use serde::{Deserialize, Serialize};

use crate::data_class::DataClass;
use crate::error::LeaseError;
use crate::order::ComputeOrder;

/// Most bytes of all states that a lease uploads: 64 GiB.
pub const LEASE_STATES_BYTES_MAX: u64 = 1 << 36;
/// Most bytes of all checkpoints of a lease: 8 GiB.
pub const CHECKPOINTS_BYTES_MAX: u64 = 1 << 33;
/// States of a lease beyond the starts of its drawn segments: the start of a continued order, and the result.
const OTHER_STATES_MAX: u64 = 2;
/// Bytes of a state beyond its tensors.
const STATE_HEADER_BYTES_MAX: u64 = 8_192;
/// Most virtual workers of a job.
pub const VIRTUAL_WORKERS_MAX: u32 = 1_024;
/// Most rows of a job.
pub const JOB_ROWS_MAX: u64 = 1 << 32;

/// Copies of the parameters in a state, at most.
const STATE_COPIES: u64 = 3;
/// Bytes of a state that count for a millisecond.
const STATE_BYTES_PER_MS: u64 = 20_000;

/// A training of a graph by virtual workers. With the class of an order it fixes every bit of each state.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ComputeJob {
    /// The graph of operators, with the digests of its blobs.
    pub graph: GraphModel,
    /// The initial parameters: a safetensors file in canonical form.
    pub start: Blob,
    /// The rows: a data set in canonical form.
    pub rows: Blob,
    /// Number of rows.
    pub row_count: u64,
    /// The settings of the training, which has all its epochs here.
    pub training: Training,
    /// Virtual workers that share each batch.
    pub virtual_workers: u32,
    /// Seed of the batches and of random layers.
    pub seed: u64,
}

impl Canonical for ComputeJob {
    const DOMAIN: &'static str = "florin v1 compute job";
}

impl ComputeJob {
    /// Number of steps: the batches of an epoch, the last one may be smaller, times the epochs.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let batch = u64::from(self.training.batch.max(1));
        self.row_count.div_ceil(batch).saturating_mul(self.training.epochs.into())
    }

    /// Milliseconds in which a provider writes and sends a state at 20 MB/s: of each segment they count for no step of a
    /// listed provider, whose prediction measures steps alone. A state has the parameters and at most two tensors of an
    /// optimizer.
    #[must_use]
    pub fn state_ms(&self) -> u64 {
        Self::bytes_ms(self.start.bytes.saturating_mul(STATE_COPIES))
    }

    /// Milliseconds of some bytes at 20 MB/s.
    #[must_use]
    pub fn bytes_ms(bytes: u64) -> u64 {
        bytes.checked_div(STATE_BYTES_PER_MS).unwrap_or_default()
    }

    /// The blobs of its graph, its initial parameters and its rows.
    pub fn blobs(&self) -> impl Iterator<Item = Blob> {
        self.graph.blobs().chain([self.start, self.rows])
    }

    /// Bytes of all its blobs.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blobs().fold(0, |all, blob| all.saturating_add(blob.bytes))
    }

    /// The most bytes of a state of the job: its tensors, and a header.
    #[must_use]
    pub fn state_bytes_max(&self) -> u64 {
        let tensors = self.start.bytes.saturating_mul(STATE_COPIES);
        tensors.saturating_add(STATE_HEADER_BYTES_MAX)
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`SpecError`] with the first that is invalid.
    pub fn check(&self) -> Result<(), SpecError> {
        let wrong = |key, value: String, expected: &str| {
            Err(SpecError { key, value, expected: expected.to_owned() })
        };
        if self.graph.is_trainer() {
            let expected = "a graph of operators: the steps of a program cannot be audited";
            return wrong("model.kind", "a trainer".to_owned(), expected);
        }
        self.graph.check()?;
        self.training.check()?;
        if self.training.augmentation != Augmentation::NONE {
            let expected = "remove the key: rows of an order are used as they are";
            return wrong("training.flip", "flip or crop_padding".to_owned(), expected);
        }
        if self.training.noise_min != Micro::ZERO {
            let expected = "use 0: an order trains without noise";
            return wrong("training.noise_min", self.training.noise_min.to_string(), expected);
        }
        if !(1..=JOB_ROWS_MAX).contains(&self.row_count) {
            return wrong("rows", self.row_count.to_string(), "use 1 to 2^32 rows");
        }
        if !(1..=VIRTUAL_WORKERS_MAX).contains(&self.virtual_workers) {
            let expected = "use 1 to 1,024 virtual workers";
            return wrong("virtual_workers", self.virtual_workers.to_string(), expected);
        }
        Ok(())
    }
}

impl ComputeOrder {
    /// Checks that the segments of the order are all steps of a job, or all that are left of it.
    ///
    /// # Errors
    /// [`LeaseError::Mismatch`] if the order is of another job, [`LeaseError::Invalid`] with the number of
    /// segments, or with the bytes of the states of drawn segments beyond [`LEASE_STATES_BYTES_MAX`].
    pub fn check_job(&self, job: &ComputeJob) -> Result<(), LeaseError> {
        if self.job != job.digest() {
            return Err(LeaseError::Mismatch("the job"));
        }
        let segments = job.steps().div_ceil(u64::from(self.steps.max(1)));
        let left = segments.checked_sub(self.first_segment.into());
        if left != Some(u64::from(self.segments)) {
            return Err(LeaseError::Invalid {
                what: "segments",
                got: self.segments.into(),
                rule: "must be the steps of the job divided by the steps of a segment, rounded up, without \
                       the segments before",
            });
        }
        let bytes = self.states_max().saturating_mul(job.state_bytes_max());
        match bytes <= LEASE_STATES_BYTES_MAX {
            true => Ok(()),
            false => Err(LeaseError::Invalid {
                what: "the most bytes of the states of drawn segments",
                got: bytes.into(),
                rule: "at most 64 GiB: use longer segments or a smaller share of audits",
            }),
        }
    }

    /// Whether a provider may leave the states of all segments of a job with the coordinator, while it computes: rows that
    /// are not private, and at most [`CHECKPOINTS_BYTES_MAX`].
    #[must_use]
    pub fn takes_checkpoints(&self, job: &ComputeJob) -> bool {
        let states = u64::from(self.segments).saturating_add(1);
        let bytes = states.saturating_mul(job.state_bytes_max());
        self.data_class != DataClass::Private && bytes <= CHECKPOINTS_BYTES_MAX
    }

    /// The most states that a lease of the order uploads: the starts of drawn segments, the start of a continued order,
    /// and the result.
    #[must_use]
    pub fn states_max(&self) -> u64 {
        u64::from(self.audited(self.segments)).saturating_add(OTHER_STATES_MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use florin_protocol::{Digest, GraphForm, ModelLoss, TaskSpec, TensorShape, blob_digest};

    use super::*;
    use crate::lease::tests::order;

    pub(crate) fn job() -> ComputeJob {
        let blob = |bytes: u64| Blob { digest: blob_digest(&bytes.to_le_bytes()), bytes };
        ComputeJob {
            graph: GraphModel {
                form: GraphForm::Operators,
                graph: blob(100),
                frozen: None,
                inputs: 4,
                targets: 0,
                outputs: 3,
                loss: ModelLoss::CrossEntropy { label_smoothing: Micro::ZERO },
                tensors: vec![TensorShape { name: "weight".to_owned(), shape: vec![3, 4] }],
            },
            start: blob(200),
            rows: blob(300),
            row_count: 101,
            training: Training { epochs: 3, batch: 10, ..TaskSpec::example().training },
            virtual_workers: 4,
            seed: 7,
        }
    }

    #[test]
    fn an_order_has_all_steps_of_its_job() {
        // Eleven batches of an epoch, three times.
        assert_eq!(job().steps(), 33);
        let order =
            |steps, segments| ComputeOrder { job: job().digest(), steps, segments, ..order() };
        for (steps, segments) in [(33, 1), (11, 3), (10, 4), (32, 2), (1, 33), (100, 1)] {
            assert_eq!(order(steps, segments).check_job(&job()), Ok(()), "{steps}");
            for other in [segments - 1, segments + 1] {
                let error = order(steps, other).check_job(&job()).unwrap_err();
                assert_eq!(error.code(), "COMPUTE_INVALID", "{steps} {other}");
            }
        }
        // Three of four segments are done.
        let rest = |first_segment, segments| ComputeOrder { first_segment, ..order(10, segments) };
        assert_eq!(rest(3, 1).check_job(&job()), Ok(()));
        for (first_segment, segments) in [(3, 2), (4, 1), (5, 1), (3, 4)] {
            let error = rest(first_segment, segments).check_job(&job()).unwrap_err();
            assert_eq!(error.code(), "COMPUTE_INVALID", "{first_segment} {segments}");
        }
        let other = ComputeJob { seed: 8, ..job() };
        assert_eq!(order(33, 1).check_job(&other).unwrap_err().code(), "COMPUTE_MISMATCH");
    }

    #[test]
    fn jobs_are_checked() {
        assert_eq!(job().check(), Ok(()));
        let largest =
            ComputeJob { row_count: JOB_ROWS_MAX, virtual_workers: VIRTUAL_WORKERS_MAX, ..job() };
        assert_eq!(largest.check(), Ok(()));
        type Change = fn(&mut ComputeJob);
        let wrong: [(Change, &str); 9] = [
            (|job| job.row_count = 0, "rows"),
            (|job| job.row_count = JOB_ROWS_MAX + 1, "rows"),
            (|job| job.virtual_workers = 0, "virtual_workers"),
            (|job| job.virtual_workers = VIRTUAL_WORKERS_MAX + 1, "virtual_workers"),
            (|job| job.training.batch = 0, "training.batch"),
            (|job| job.training.noise_min = Micro::ONE, "training.noise_min"),
            (|job| job.training.augmentation.flip = true, "training.flip"),
            (|job| job.graph.inputs = 0, "model.inputs"),
            (
                |job| {
                    job.graph.form = GraphForm::Trainer { has_gradient: true };
                    job.graph.loss = ModelLoss::Output { bound: Micro::ONE };
                },
                "model.kind",
            ),
        ];
        for (change, key) in wrong {
            let mut job = job();
            change(&mut job);
            assert_eq!(job.check().unwrap_err().key, key);
        }
    }

    #[test]
    fn the_bytes_of_a_job_and_of_its_states_have_limits() {
        let (mut job, mut order) = (job(), order());
        assert_eq!(job.bytes(), job.graph.graph.bytes + job.start.bytes + job.rows.bytes);
        assert_eq!(job.state_bytes_max(), 3 * job.start.bytes + 8_192);
        assert_eq!((ComputeJob::bytes_ms(19_999), ComputeJob::bytes_ms(40_000)), (0, 2));
        assert_eq!(LEASE_STATES_BYTES_MAX, 68_719_476_736);
        // Two of twenty segments are drawn; the start of the order and its result.
        assert_eq!(order.states_max(), 4);
        assert!(order.takes_checkpoints(&job));
        order.data_class = DataClass::Private;
        assert!(!order.takes_checkpoints(&job));
        // 32 states of 256 MiB.
        (order.data_class, order.segments) = (DataClass::Buyer, 31);
        job.start.bytes = ((1 << 28) - 8_192) / 3;
        assert!(order.takes_checkpoints(&job) && job.state_bytes_max() <= 1 << 28);
        assert_eq!(job.state_ms(), 13_421);
        job.start.bytes += 1;
        assert!(!order.takes_checkpoints(&job));
    }

    #[test]
    fn each_part_of_a_job_changes_its_digest() {
        let changes: [fn(&mut ComputeJob); 7] = [
            |job| job.graph.outputs = 4,
            |job| job.start.digest = Digest([1; 32]),
            |job| job.rows.digest = Digest([1; 32]),
            |job| job.row_count += 1,
            |job| job.training.epochs += 1,
            |job| job.virtual_workers += 1,
            |job| job.seed += 1,
        ];
        for change in changes {
            let mut other = job();
            change(&mut other);
            assert_ne!(other.digest(), job().digest());
        }
    }
}
