//! Checkpoints: a provider leaves the end of each segment with the coordinator before it delivers it, so that its work is
//! audited and paid if it does not come back.

use florin_compute::{CheckpointUpload, ComputeJob, DataClass};
use florin_protocol::{Digest, ErrorCode};

use super::LeaseDaemon;
use super::error::LeaseServeError;
use super::event::LeaseEvent;
use super::followed::FollowedOrder;
use super::secrets::Commitment;
use super::store::StoredState;
use crate::client::ClientError;

/// A checkpoint takes at most this part of the window that a segment has for transfers.
const WINDOW_PART: u64 = 2;

impl LeaseDaemon<'_, '_> {
    /// Leaves the end of a segment, and before the first one the state that it starts from. A checkpoint that cannot be
    /// left delays no delivery.
    pub(super) fn leave_checkpoint(
        &mut self,
        order: &mut FollowedOrder,
        segment: u32,
        end: &StoredState,
    ) -> Result<(), LeaseServeError> {
        if !order.leaves_checkpoints || order.checkpoint == Some(segment) {
            return Ok(());
        }
        if order.view.order.data_class == DataClass::Private {
            order.leaves_checkpoints = false;
            return Ok(());
        }
        let salt = self.secrets.salt(order.view.id, Commitment::Leaf(segment));
        let mut all = vec![(end.clone(), salt)];
        if segment == 0
            && let Some(first) = self.reach(order, 0)?
        {
            all.insert(0, (first, Digest::default()));
        }
        for (state, salt) in all {
            if !self.send_checkpoint(order, &state, salt)? {
                return Ok(());
            }
        }
        order.checkpoint = Some(segment);
        self.emit(&LeaseEvent::CheckpointLeft { order: order.view.id, segment });
        Ok(())
    }

    /// Returns whether the coordinator has it.
    fn send_checkpoint(
        &mut self,
        order: &mut FollowedOrder,
        stored: &StoredState,
        salt: Digest,
    ) -> Result<bool, LeaseServeError> {
        // The serving of a damaged file finds it, and computes the state again.
        let Ok(bytes) = stored.read() else { return Ok(false) };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let ms = ComputeJob::bytes_ms(length).saturating_mul(WINDOW_PART);
        if length > self.config.policy.checkpoint_bytes_max || ms > order.view.order.windows.segment
        {
            order.leaves_checkpoints = false;
            return Ok(false);
        }
        let client = self.context.client;
        client.check_confidential(order.view.order.data_class)?;
        let upload =
            CheckpointUpload { order: order.view.id, by: self.me, state: stored.digest, salt };
        let signature = upload.sign(order.view.order.market, self.context.wallet)?;
        self.turn.is_over = true;
        match client.put_checkpoint(&upload, &signature, &bytes) {
            Ok(()) => Ok(true),
            Err(error) => {
                tracing::warn!(order = %order.view.id, %error, "a checkpoint is not left");
                order.leaves_checkpoints = !is_final(&error);
                Ok(false)
            }
        }
    }
}

/// Whether a coordinator refuses all checkpoints of a lease: it does not know them, or the states are too large.
fn is_final(error: &ClientError) -> bool {
    let code = error.code();
    [ErrorCode::LeaseRefused, ErrorCode::NotFound].iter().any(|one| one.as_str() == code)
}
