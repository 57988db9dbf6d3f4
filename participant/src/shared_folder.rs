//! A data folder that several participations of one process use at the same time: its signing guard
//! and its record of the privacy loss are open once, and locked against other processes.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use florin_learning::privacy::{Delta, PrivateSteps};
use florin_protocol::{MarketId, NodeKey, NodeSigner, RoundNumber, Signed, TaskId, UpdateHeader};

use crate::guard::{GuardError, RepeatableMessage, SignedUpdate, SigningGuard};
use crate::privacy::{Charge, Epsilon, NoiseError, PrivacyRecord};

/// The open records of a data folder. Clones share them.
#[derive(Clone, Debug)]
pub struct SharedFolder {
    folder: PathBuf,
    signer: NodeSigner,
    guard: Arc<Mutex<SigningGuard>>,
    privacy: Arc<Mutex<Option<SharedPrivacyRecord>>>,
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedFolder {
    /// Opens the signing guard of a data folder.
    ///
    /// # Errors
    /// Those of [`SigningGuard::open`].
    pub fn open(folder: &Path, signer: NodeSigner) -> Result<Self, GuardError> {
        let guard = SigningGuard::open(&folder.join("guard"), signer.clone())?;
        let (guard, privacy) = (Arc::new(Mutex::new(guard)), Arc::default());
        Ok(Self { folder: folder.to_owned(), signer, guard, privacy })
    }

    /// The key itself, for the only message that both keys sign: a registration.
    pub(crate) const fn signer(&self) -> &NodeSigner {
        &self.signer
    }

    /// Signs a message that may be repeated.
    pub(crate) fn sign<T: RepeatableMessage>(&self, body: T) -> Signed<T> {
        locked(&self.guard).sign(body)
    }

    /// As [`SigningGuard::signed_update_for`].
    pub(crate) fn signed_update_for(
        &self,
        market: MarketId,
        task: TaskId,
        round: RoundNumber,
    ) -> Option<SignedUpdate> {
        locked(&self.guard).signed_update_for(market, task, round)
    }

    /// The rounds of all recorded updates.
    pub(crate) fn signed_updates(&self) -> Vec<(MarketId, TaskId, RoundNumber)> {
        locked(&self.guard).signed_updates().collect()
    }

    /// As [`SigningGuard::sign_update`].
    pub(crate) fn sign_update(&self, header: UpdateHeader) -> Result<SignedUpdate, GuardError> {
        locked(&self.guard).sign_update(header)
    }

    /// The record of the privacy loss; the first call opens it.
    pub(crate) fn privacy_record(&self) -> Result<SharedPrivacyRecord, NoiseError> {
        let mut opened = locked(&self.privacy);
        if let Some(record) = &*opened {
            return Ok(record.clone());
        }
        let record = PrivacyRecord::open(&self.folder)?;
        let record = SharedPrivacyRecord(Arc::new(Mutex::new(record)));
        *opened = Some(record.clone());
        Ok(record)
    }

    /// The public key that signs.
    #[must_use]
    pub fn key(&self) -> NodeKey {
        self.signer.key()
    }
}

/// The record of all private trainings of a data folder. Only one training at a time may compare ε
/// with its limit and then be charged.
#[derive(Clone, Debug)]
pub(crate) struct SharedPrivacyRecord(Arc<Mutex<PrivacyRecord>>);

impl SharedPrivacyRecord {
    /// As [`PrivacyRecord::has_round`].
    pub(crate) fn has_round(&self, market: MarketId, task: TaskId, round: RoundNumber) -> bool {
        locked(&self.0).has_round(market, task, round)
    }

    /// As [`PrivacyRecord::has`].
    pub(crate) fn has(&self, charge: &Charge) -> bool {
        locked(&self.0).has(charge)
    }

    /// As [`PrivacyRecord::charge`].
    pub(crate) fn charge(&self, charge: Charge) -> Result<(), NoiseError> {
        locked(&self.0).charge(charge)
    }

    /// As [`PrivacyRecord::epsilon_with`].
    pub(crate) fn epsilon_with(&self, further: Option<PrivateSteps>, delta: Delta) -> Epsilon {
        locked(&self.0).epsilon_with(further, delta)
    }
}
