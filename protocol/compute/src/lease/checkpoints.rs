//! Checkpoints: ends of segments that a provider left with the coordinator while it computed. They speak for a provider
//! that does not come back.

use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Lease, Phase};
use crate::audit::{Secret, segment_leaf};
use crate::data_class::DataClass;
use crate::error::LeaseError;

/// The end of a delivered segment with the salt of its leaf.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Checkpoint {
    /// The segment.
    pub segment: u32,
    /// Its end, with the salt of its leaf.
    pub secret: Secret,
}

impl Lease {
    /// The segments whose checkpoints do what the provider has left undone in this phase: the ones before the starts that
    /// it has not served; those of its closed leaves with the ones before them, and that of the result; or that of a
    /// dispute in which its answer is due.
    #[must_use]
    pub fn checkpoints_needed(&self) -> BTreeSet<u32> {
        let mut needed = BTreeSet::new();
        match self.phase {
            Phase::Serving => {
                let open = self.audits.iter().filter(|audit| audit.start.is_none());
                needed.extend(open.filter_map(|audit| audit.segment.checked_sub(1)));
            }
            Phase::Opening => {
                for audit in self.audits.iter().filter(|audit| audit.end.is_none()) {
                    needed.insert(audit.segment);
                    needed.extend(audit.segment.checked_sub(1));
                }
                let last = self.delivered().checked_sub(1);
                needed.extend(last.filter(|_| self.result.is_none()));
            }
            Phase::Disputing if self.answers() == self.provider() => {
                needed.extend(self.dispute.as_ref().map(|dispute| dispute.segment));
            }
            _ => {}
        }
        needed
    }

    /// Does what a silent provider owes, after its deadline, or changes nothing. It serves the starts, and the auditors begin;
    /// it opens the leaves, and the ends are judged; or it leaves a dispute to the referee, which rules on all steps that are
    /// left: an auditor that knows of the silence would have its fee for any end otherwise.
    ///
    /// The coordinator of the lease has the bytes of each state that it so serves, and of the result.
    ///
    /// # Errors
    /// [`LeaseError`] in another phase, before the deadline, for private rows (whose owner audits, and could have a gone
    /// provider's work for nothing by a false dispute), and unless the checkpoints are those of
    /// [`Self::checkpoints_needed`], ascending, with the secrets of their leaves.
    pub fn use_checkpoints(
        &mut self,
        checkpoints: &[Checkpoint],
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        if self.order.data_class == DataClass::Private {
            return Err(LeaseError::Mismatch("a lease with checkpoints"));
        }
        // The start of the first segment needs none. In other phases an auditor alone may be silent.
        let needed = self.checkpoints_needed();
        if needed.is_empty() && self.phase != Phase::Serving {
            let action = "using checkpoints";
            return Err(LeaseError::Phase { phase: self.phase.name(), action });
        }
        if now <= self.deadline {
            return Err(LeaseError::Early(self.deadline));
        }
        let secrets = self.opened(checkpoints, needed)?;
        let mut next = self.clone();
        match self.phase {
            Phase::Serving => next.serve_from(&secrets, now),
            Phase::Disputing => next.wait_for_ruling(now),
            _ => next.open_from(&secrets, now)?,
        }
        *self = next;
        Ok(())
    }

    /// The secrets of the needed checkpoints, each compared with its leaf.
    fn opened(
        &self,
        checkpoints: &[Checkpoint],
        needed: BTreeSet<u32>,
    ) -> Result<BTreeMap<u32, Secret>, LeaseError> {
        if !checkpoints.iter().map(|one| one.segment).eq(needed) {
            return Err(LeaseError::Mismatch("the list of checkpoints"));
        }
        let is_right = |one: &Checkpoint| self.has_leaf(one.segment, one.secret);
        match checkpoints.iter().all(is_right) {
            true => Ok(checkpoints.iter().map(|one| (one.segment, one.secret)).collect()),
            false => Err(LeaseError::Commitment("the leaf of a checkpoint")),
        }
    }

    /// Whether the provider's leaf of a delivered segment is of a secret.
    #[must_use]
    pub fn has_leaf(&self, segment: u32, secret: Secret) -> bool {
        let leaf = usize::try_from(segment).ok().and_then(|at| self.leaves.get(at));
        let own = self.provider().map(|by| segment_leaf(self.id, by, segment, secret));
        own.is_some_and(|own| leaf == Some(&own))
    }

    fn serve_from(&mut self, secrets: &BTreeMap<u32, Secret>, now: Timestamp) {
        let first = self.order.start;
        for audit in self.audits.iter_mut().filter(|audit| audit.start.is_none()) {
            let before = audit.segment.checked_sub(1).and_then(|before| secrets.get(&before));
            audit.start = Some(before.map_or(first, |secret| secret.end));
        }
        self.enter(Phase::Auditing, now, self.order.windows.audit);
    }

    fn open_from(
        &mut self,
        secrets: &BTreeMap<u32, Secret>,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        for audit in self.audits.iter_mut().filter(|audit| audit.end.is_none()) {
            let before = audit.segment.checked_sub(1).and_then(|before| secrets.get(&before));
            // The start that the auditors were served is the end of the segment before.
            if before.is_some_and(|before| audit.start != Some(before.end)) {
                return Err(LeaseError::Commitment("the leaf before the segment"));
            }
            audit.end = secrets.get(&audit.segment).map(|secret| secret.end);
        }
        let last = self.delivered().checked_sub(1).and_then(|last| secrets.get(&last));
        self.result = self.result.or(last.map(|secret| secret.end));
        self.end_opening(now)
    }
}
