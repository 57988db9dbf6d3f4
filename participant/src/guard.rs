//! The signing guard: prevents a node key from signing two conflicting messages, by recording each
//! message on disk before signing it.
//!
//! A sender may sign one update per round, and a provider one result per work order. Two different
//! signed ones are evidence against their signer, whether it cheated or crashed and computed again.
//! So the guard holds the node key, and returns a signature only after the record is on disk. A
//! repeated request with the same content, also after a crash, gets the same signature, because
//! ed25519 is deterministic. A request with other content is refused.
//!
//! The record is a file in the data folder; one process at a time may use it. The guard cannot
//! detect that the same wallet is used with another data folder, or with a backup that is older
//! than the last signature.

use std::collections::BTreeMap;
use std::path::Path;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    BlobRequest, Canonical, Commit, Digest, EnrolRequest, MarketId, NodeKey, NodeSigner,
    RoundNumber, Signed, TaskId, UpdateHeader, WorkRecord, WorkRequest,
};

use crate::hash_chain::{HashChainError, HashChainLog};

/// Key-derivation context of the guard file's hash chain.
const CONTEXT: &str = "florin v1 signing guard";

/// A record of the guard file.
#[derive(BorshSerialize, BorshDeserialize)]
enum GuardRecord {
    /// An update that is about to be signed.
    Update(UpdateHeader),
    /// A work record that is about to be signed.
    Work(WorkRecord),
}

type UpdateKey = (MarketId, TaskId, RoundNumber);
type WorkKey = (MarketId, Digest);

/// Errors of the guard.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    /// Another update of this round is recorded.
    #[error(
        "round {round} of task {task}: an update with digest {recorded} was signed before, so \
         {refused} is not: two signed updates for one round are evidence against their sender"
    )]
    DoubleUpdate {
        /// The task.
        task: TaskId,
        /// The round.
        round: RoundNumber,
        /// Digest of the recorded header.
        recorded: Digest,
        /// Digest of the refused header.
        refused: Digest,
    },
    /// Another result of this work order is recorded.
    #[error(
        "order {order}: another result was signed before, so this one is not: two signed results \
         for one order are evidence against their provider"
    )]
    DoubleWork {
        /// The work order's digest.
        order: Digest,
    },
    /// An unknown record in a file with an intact chain: another program version wrote it.
    #[error(
        "the guard file contains an unknown record, written by another version of this program: {0}"
    )]
    UnknownRecord(String),
    /// The guard file cannot be used.
    #[error(transparent)]
    File(#[from] HashChainError),
}

impl GuardError {
    /// The stable error code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::DoubleUpdate { .. } | Self::DoubleWork { .. } => "DOUBLE_SIGN",
            Self::UnknownRecord(_) => "GUARD_CORRUPT",
            Self::File(error) => error.code(),
        }
    }
}

/// Messages that may be signed any number of times: requests and queries without obligations.
pub trait RepeatableMessage: Canonical {}
impl RepeatableMessage for EnrolRequest {}
impl RepeatableMessage for BlobRequest {}
impl RepeatableMessage for WorkRequest {}

/// A node key with a record of its signatures.
#[derive(Debug)]
pub struct SigningGuard {
    file: HashChainLog,
    signer: NodeSigner,
    updates: BTreeMap<UpdateKey, UpdateHeader>,
    work: BTreeMap<WorkKey, WorkRecord>,
}

/// The two signed messages of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedUpdate {
    /// Sent in the commit phase.
    pub commit: Signed<Commit>,
    /// Sent with the update's bytes in the reveal phase.
    pub header: Signed<UpdateHeader>,
}

impl SigningGuard {
    /// Opens or creates the guard file at `path`.
    ///
    /// # Errors
    /// [`GuardError::File`]: in use, damaged, or a failed file operation;
    /// [`GuardError::UnknownRecord`].
    pub fn open(path: &Path, signer: NodeSigner) -> Result<Self, GuardError> {
        let (file, records) = HashChainLog::open(path, CONTEXT)?;
        let mut guard = Self { file, signer, updates: BTreeMap::new(), work: BTreeMap::new() };
        for bytes in records {
            let record = borsh::from_slice(&bytes)
                .map_err(|error| GuardError::UnknownRecord(error.to_string()))?;
            guard.insert_record(record);
        }
        Ok(guard)
    }

    /// The public key.
    #[must_use]
    pub fn key(&self) -> NodeKey {
        self.signer.key()
    }

    /// The recorded update of a round, signed again.
    #[must_use]
    pub fn signed_update_for(
        &self,
        market: MarketId,
        task: TaskId,
        round: RoundNumber,
    ) -> Option<SignedUpdate> {
        let header = self.updates.get(&(market, task, round))?;
        Some(self.signed_update(header.clone()))
    }

    /// The rounds of all recorded updates.
    pub fn signed_updates(&self) -> impl Iterator<Item = (MarketId, TaskId, RoundNumber)> {
        self.updates.keys().copied()
    }

    /// Records an update, then signs its commit and its header.
    ///
    /// If an update of this market, task and round is recorded, the recorded one is signed,
    /// provided that it has the same content: sender, offer, base model, rows, digest and length.
    /// Salt and expiry are those of the record.
    ///
    /// # Errors
    /// [`GuardError::DoubleUpdate`] for other content; [`GuardError::File`].
    pub fn sign_update(&mut self, header: UpdateHeader) -> Result<SignedUpdate, GuardError> {
        let key = (header.scope.market, header.scope.task, header.scope.round);
        if let Some(recorded) = self.updates.get(&key) {
            let same = has_same_content(recorded, &header);
            return if same {
                Ok(self.signed_update(recorded.clone()))
            } else {
                Err(GuardError::DoubleUpdate {
                    task: header.scope.task,
                    round: header.scope.round,
                    recorded: recorded.digest(),
                    refused: header.digest(),
                })
            };
        }
        self.record(GuardRecord::Update(header.clone()))?;
        Ok(self.signed_update(header))
    }

    /// The recorded work record of an order, signed again.
    #[must_use]
    pub fn signed_work_for(&self, market: MarketId, order: Digest) -> Option<Signed<WorkRecord>> {
        self.work.get(&(market, order)).map(|record| self.signer.sign(record.clone()))
    }

    /// Records a result, then signs it. An identical result is signed again.
    ///
    /// # Errors
    /// [`GuardError::DoubleWork`] for another result of the same order; [`GuardError::File`].
    pub fn sign_work(&mut self, record: WorkRecord) -> Result<Signed<WorkRecord>, GuardError> {
        match self.work.get(&(record.market, record.order)) {
            Some(recorded) if *recorded != record => {
                return Err(GuardError::DoubleWork { order: record.order });
            }
            Some(_) => {}
            None => self.record(GuardRecord::Work(record.clone()))?,
        }
        Ok(self.signer.sign(record))
    }

    /// Signs a message that may be repeated.
    #[must_use]
    pub fn sign<T: RepeatableMessage>(&self, body: T) -> Signed<T> {
        self.signer.sign(body)
    }

    /// The key itself, for the only message that both keys sign: a registration.
    pub(crate) fn signer(&self) -> &NodeSigner {
        &self.signer
    }

    fn signed_update(&self, header: UpdateHeader) -> SignedUpdate {
        let commit = Commit {
            scope: header.scope,
            sender: header.sender,
            offer: header.offer,
            commitment: header.commitment(),
        };
        SignedUpdate { commit: self.signer.sign(commit), header: self.signer.sign(header) }
    }

    fn record(&mut self, record: GuardRecord) -> Result<(), GuardError> {
        let bytes = borsh::to_vec(&record).expect("writing to memory does not fail");
        self.file.append(&bytes)?;
        self.insert_record(record);
        Ok(())
    }

    fn insert_record(&mut self, record: GuardRecord) {
        match record {
            GuardRecord::Update(header) => {
                let key = (header.scope.market, header.scope.task, header.scope.round);
                self.updates.insert(key, header);
            }
            GuardRecord::Work(record) => {
                self.work.insert((record.market, record.order), record);
            }
        }
    }
}

/// Whether two headers have the same content: all fields but salt and expiry.
fn has_same_content(recorded: &UpdateHeader, header: &UpdateHeader) -> bool {
    let (salt, expires) = (recorded.salt, recorded.expires);
    *recorded == UpdateHeader { salt, expires, ..header.clone() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use florin_protocol::{
        Address, ChainId, ModelMetrics, RoundScope, Timestamp, Valuation, WorkResult,
    };

    use super::*;

    fn signer() -> NodeSigner {
        NodeSigner::from_seed(&[5; 32])
    }

    fn header(round: u32, update: u8) -> UpdateHeader {
        let market = MarketId { chain: ChainId(7), genesis: Digest([1; 32]) };
        UpdateHeader {
            scope: RoundScope { market, task: TaskId([2; 32]), round: RoundNumber(round) },
            sender: Address([3; 20]),
            offer: Digest([4; 32]),
            base_model: Digest([5; 32]),
            rows: 100,
            update: Digest([update; 32]),
            bytes: 40,
            salt: Digest([6; 32]),
            expires: Timestamp(1_000),
        }
    }

    fn work(order: u8, total_nano: i64) -> WorkRecord {
        let valuation = Valuation {
            loss_before_nano: 2,
            loss_after_nano: 1,
            total_nano,
            gap_nano: 0,
            model_loss_nano: 0,
            stages: Vec::new(),
            scores: Vec::new(),
            units: 5,
            evidence: florin_protocol::ValuationEvidence::default(),
        };
        let result = WorkResult {
            valuation,
            baseline: None,
            metrics: ModelMetrics::default(),
            model: Digest([8; 32]),
        };
        WorkRecord {
            market: header(1, 1).scope.market,
            order: Digest([order; 32]),
            provider: Address([9; 20]),
            result,
        }
    }

    fn guard_path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("guard");
        (folder, path)
    }

    #[test]
    fn a_second_update_of_a_round_is_refused_also_after_reopening() {
        let (_folder, path) = guard_path();
        let mut guard = SigningGuard::open(&path, signer()).unwrap();
        let first = guard.sign_update(header(1, 1)).unwrap();
        assert!(
            first.header.verify(guard.key()).is_ok() && first.commit.verify(guard.key()).is_ok()
        );
        assert_eq!(first.commit.body.commitment, header(1, 1).commitment());
        for _ in 0..2 {
            let error = guard.sign_update(header(1, 2)).unwrap_err();
            assert_eq!(error.code(), "DOUBLE_SIGN", "{error}");
            for other in [
                UpdateHeader { rows: 101, ..header(1, 1) },
                UpdateHeader { offer: Digest([9; 32]), ..header(1, 1) },
                UpdateHeader { base_model: Digest([9; 32]), ..header(1, 1) },
                UpdateHeader { sender: Address([9; 20]), ..header(1, 1) },
                UpdateHeader { bytes: 41, ..header(1, 1) },
            ] {
                assert_eq!(guard.sign_update(other).unwrap_err().code(), "DOUBLE_SIGN");
            }
            drop(guard);
            guard = SigningGuard::open(&path, signer()).unwrap();
        }
        guard.sign_update(header(2, 2)).unwrap();
    }

    #[test]
    fn the_same_update_gets_the_same_signature() {
        let (_folder, path) = guard_path();
        let first = SigningGuard::open(&path, signer()).unwrap().sign_update(header(1, 1)).unwrap();
        let mut guard = SigningGuard::open(&path, signer()).unwrap();
        let later =
            UpdateHeader { salt: Digest([77; 32]), expires: Timestamp(2_000), ..header(1, 1) };
        assert_eq!(guard.sign_update(later).unwrap(), first);
        let scope = header(1, 1).scope;
        assert_eq!(guard.signed_update_for(scope.market, scope.task, scope.round).unwrap(), first);
        assert_eq!(guard.signed_update_for(scope.market, scope.task, RoundNumber(2)), None);
    }

    #[test]
    fn the_record_is_on_disk_before_the_signature_is_returned() {
        let (_folder, path) = guard_path();
        let mut guard = SigningGuard::open(&path, signer()).unwrap();
        let empty = std::fs::read(&path).unwrap();
        let first = guard.sign_update(header(1, 1)).unwrap();
        let full = std::fs::read(&path).unwrap();
        drop(guard);
        // A crash at any byte of the record: either the update is recorded and gets the same
        // signature, or it is not recorded, and no signature was returned.
        for length in empty.len()..=full.len() {
            std::fs::write(&path, &full[..length]).unwrap();
            let mut guard = SigningGuard::open(&path, signer()).unwrap();
            let other = guard.sign_update(header(1, 2));
            if length == full.len() {
                assert_eq!(other.unwrap_err().code(), "DOUBLE_SIGN");
                assert_eq!(guard.sign_update(header(1, 1)).unwrap(), first);
            } else {
                other.unwrap();
            }
        }
    }

    #[test]
    fn a_second_result_of_an_order_is_refused() {
        let (_folder, path) = guard_path();
        let mut guard = SigningGuard::open(&path, signer()).unwrap();
        let first = guard.sign_work(work(1, 10)).unwrap();
        assert_eq!(guard.sign_work(work(1, 11)).unwrap_err().code(), "DOUBLE_SIGN");
        guard.sign_work(work(2, 11)).unwrap();
        drop(guard);
        let mut guard = SigningGuard::open(&path, signer()).unwrap();
        assert_eq!(guard.sign_work(work(1, 11)).unwrap_err().code(), "DOUBLE_SIGN");
        assert_eq!(guard.sign_work(work(1, 10)).unwrap(), first);
        let market = first.body.market;
        assert_eq!(guard.signed_work_for(market, first.body.order), Some(first));
        assert_eq!(guard.signed_work_for(market, Digest([3; 32])), None);
    }

    #[test]
    fn a_second_process_cannot_open_the_guard() {
        let (_folder, path) = guard_path();
        let _first = SigningGuard::open(&path, signer()).unwrap();
        let error = SigningGuard::open(&path, signer()).unwrap_err();
        assert_eq!(error.code(), "DATA_FOLDER_IN_USE", "{error}");
    }
}
