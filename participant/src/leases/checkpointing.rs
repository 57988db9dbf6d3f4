//! Checkpoints: a provider leaves the end of each segment with the coordinator before it delivers it, so that its work is
//! audited and paid if it does not come back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use florin_compute::{CheckpointUpload, ComputeJob};
use florin_protocol::{Digest, ErrorCode};

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::FollowedOrder;
use super::secrets::Commitment;
use super::store::StoredState;
use crate::client::ClientError;

/// Checkpoints before a delivery take at most this part of the window that a segment has for transfers.
const WINDOW_PART: u64 = 2;
/// And at most this part of the time that is left to the deadline.
const LEFT_PART: u64 = 4;

/// Whether a provider leaves checkpoints of a lease.
#[derive(Debug)]
pub(super) enum CheckpointPlan {
    /// It has not looked at the job.
    Unknown,
    /// It leaves none.
    Never,
    /// It leaves those of all segments.
    Each(LeftCheckpoints),
}

/// The checkpoints that were left in this run.
#[derive(Debug)]
pub(super) struct LeftCheckpoints {
    /// Whether the coordinator has the first state.
    has_first: bool,
    /// The last segment whose checkpoint was left or given up.
    last: Option<u32>,
    /// Delivered segments whose checkpoints are missing.
    gaps: BTreeSet<u32>,
    /// Milliseconds of the last upload, once there was one. All states have about as many bytes.
    upload_ms: Option<u64>,
}

/// A checkpoint to leave: that of a segment, or the first state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Due {
    First,
    Segment(u32),
}

/// The end of an attempt.
enum Attempt {
    Left,
    /// There was not enough time, or an error that may pass.
    Missed,
    /// Its file cannot be read: the turn that needs it computes it again.
    Unreadable,
    /// The coordinator takes none.
    Refused,
}

impl LeaseDaemon<'_, '_> {
    /// Leaves the end of a segment, and a checkpoint that is missing. One that cannot be left in time delays no
    /// delivery.
    pub(super) fn leave_checkpoints(&mut self, order: &mut FollowedOrder, segment: u32) {
        if let Err(error) = self.leave_due(order, segment) {
            tracing::warn!(order = %order.view.id, %error, "no checkpoint is left");
        }
    }

    fn leave_due(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
    ) -> Result<(), LeaseServeError> {
        if let CheckpointPlan::Unknown = order.checkpoints {
            order.checkpoints = self.plan_checkpoints(order, segment)?;
        }
        let CheckpointPlan::Each(left) = &mut order.checkpoints else { return Ok(()) };
        if left.last == Some(segment) {
            return Ok(());
        }
        left.last = Some(segment);
        let gap = left.gaps.first().copied().map(Due::Segment);
        let missing = if left.has_first { gap } else { Some(Due::First) };
        left.gaps.insert(segment);
        for due in [Due::Segment(segment)].into_iter().chain(missing) {
            let attempt = self.leave(order, due)?;
            let CheckpointPlan::Each(left) = &mut order.checkpoints else { return Ok(()) };
            match (attempt, due) {
                (Attempt::Left | Attempt::Unreadable, Due::First) => left.has_first = true,
                (Attempt::Left, Due::Segment(segment)) => {
                    left.gaps.remove(&segment);
                    self.emit(&LeaseEvent::CheckpointLeft { order: order.view.id, segment });
                }
                (Attempt::Unreadable, Due::Segment(segment)) => drop(left.gaps.remove(&segment)),
                (Attempt::Missed, _) => return Ok(()),
                (Attempt::Refused, _) => {
                    order.checkpoints = CheckpointPlan::Never;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether the order takes checkpoints of a size that the policy allows.
    fn plan_checkpoints(
        &self,
        order: &FollowedOrder,
        segment: u32,
    ) -> Result<CheckpointPlan, LeaseServeError> {
        let (offered, max) = (&order.view.order, self.config.policy.checkpoint_bytes_max);
        if max == 0 {
            return Ok(CheckpointPlan::Never);
        }
        let job: ComputeJob = self.context.client.order_job(order.view.id, offered.job)?;
        let fits = offered.takes_checkpoints(&job) && job.state_bytes_max() <= max;
        // At first 20 MB/s are expected.
        let expected = ComputeJob::bytes_ms(job.state_bytes_max());
        Ok(match fits && expected.saturating_mul(WINDOW_PART) <= offered.windows.segment {
            true => CheckpointPlan::Each(LeftCheckpoints {
                // The coordinator copied that of a continued order.
                has_first: offered.first_segment > 0,
                last: None,
                // An earlier run may have left them: then each costs one transfer.
                gaps: (0..segment).collect(),
                upload_ms: None,
            }),
            false => CheckpointPlan::Never,
        })
    }

    /// The time for a checkpoint before a delivery: no action of another order is late by it.
    fn checkpoint_time(&self, order: &FollowedOrder) -> Duration {
        let left = order.view.deadline.ms_since(self.context.client.now()) / LEFT_PART;
        let spare = self.spare_ms().map_or(u64::MAX, |ms| ms / WINDOW_PART);
        Duration::from_millis(left.min(order.view.order.windows.segment / WINDOW_PART).min(spare))
    }

    fn leave(&mut self, order: &mut FollowedOrder, due: Due) -> Result<Attempt, LeaseServeError> {
        let id = order.view.id;
        let (at, salt) = match due {
            Due::First => (0, Digest::default()),
            Due::Segment(segment) => {
                (segment.saturating_add(1), self.secrets.salt(id, Commitment::Leaf(segment)))
            }
        };
        let known = order.states.as_ref().and_then(|states| states.get(&at).cloned());
        let Some((stored, bytes)) = known.and_then(read) else {
            return Ok(Attempt::Unreadable);
        };
        let time = self.checkpoint_time(order);
        let CheckpointPlan::Each(left) = &mut order.checkpoints else {
            return Ok(Attempt::Refused);
        };
        let expected = left.upload_ms.unwrap_or(1);
        if time < Duration::from_millis(expected) {
            // The next one is tried again: the link may be faster by then.
            left.upload_ms = Some(expected / 2);
            return Ok(Attempt::Missed);
        }
        let client = self.context.client;
        client.check_confidential(order.view.order.data_class)?;
        let upload = CheckpointUpload { order: id, by: self.me, state: stored.digest, salt };
        let signature = upload.sign(order.view.order.market, self.context.wallet)?;
        self.turn.is_over = true;
        let began = Instant::now();
        let sent = client.put_checkpoint(&upload, &signature, &bytes, time);
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        left.upload_ms = Some(took);
        Ok(match sent {
            Ok(()) => Attempt::Left,
            Err(error) => {
                tracing::warn!(order = %id, %error, "a checkpoint is not left");
                if is_final(&error) { Attempt::Refused } else { Attempt::Missed }
            }
        })
    }
}

fn read(stored: StoredState) -> Option<(StoredState, Vec<u8>)> {
    let bytes = stored.read().ok()?;
    Some((stored, bytes))
}

/// Whether a coordinator refuses all checkpoints of a lease.
fn is_final(error: &ClientError) -> bool {
    let code = error.code();
    [ErrorCode::LeaseRefused, ErrorCode::NotFound].iter().any(|one| one.as_str() == code)
}
