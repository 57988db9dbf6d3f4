//! A dispute about the end of a segment: two traces from one start are halved until they differ in one step.
//!
//! Both sides state the state in the middle of the steps that are left. If they agree, the difference is in the
//! second half, otherwise in the first. After `log₂(steps)` answers of each side, rounded up, one step is left, from a state on
//! which both agree; a referee computes it, and any account can check that (J. Teutsch and C. Reitwießner, *A
//! scalable verification solution for blockchains*, 2017).

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Digest};

/// A side of a dispute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub enum Party {
    /// The provider of the lease.
    Provider,
    /// The auditor that returned another end.
    Auditor,
}

/// The state of a dispute.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Dispute {
    /// The segment.
    pub segment: u32,
    /// The auditor.
    pub auditor: Address,
    /// Steps after which both have the same state, and that state.
    pub agreed: (u32, Digest),
    /// Steps after which the states differ: the provider's and the auditor's.
    pub differ: (u32, Digest, Digest),
    /// The provider's state in the middle, if it has answered.
    pub stated: Option<Digest>,
}

impl Dispute {
    /// The step whose state is asked for; `None` when one step is left.
    #[must_use]
    pub fn middle(&self) -> Option<u32> {
        let left = self.differ.0.saturating_sub(self.agreed.0);
        (left > 1).then(|| self.agreed.0.saturating_add(left / 2))
    }

    /// The side that has to answer; `None` when one step is left.
    #[must_use]
    pub fn next(&self) -> Option<Party> {
        self.middle().map(|_| match self.stated {
            None => Party::Provider,
            Some(_) => Party::Auditor,
        })
    }

    /// The answer of the side whose turn it is.
    pub(crate) fn answer(&mut self, state: Digest) {
        let Some(middle) = self.middle() else { return };
        match self.stated.take() {
            None => self.stated = Some(state),
            Some(stated) if stated == state => self.agreed = (middle, state),
            Some(stated) => self.differ = (middle, stated, state),
        }
    }
}
