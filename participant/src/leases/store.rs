//! The data folder of leases: one folder for each order, with the sealed bid, the states at the
//! starts of segments and the traces of audited ones; and the losses of all orders.
//!
//! A state's file name has its segment and its digest, and files are written atomically: a file
//! that exists is whole. Nothing here is a secret. All but the bid and the losses can be computed
//! again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use florin_compute::Bid;
use florin_protocol::limits::BLOB_BYTES_MAX;
use florin_protocol::{Amount, ClaimProof, Digest};
use serde::{Deserialize, Serialize};

use super::policy::LeaseRole;
use crate::atomic_file::{self, FileError};
use crate::locked_file::{LockError, LockedFile};

/// Longest file with a bid, in bytes.
const BID_BYTES_MAX: u64 = 64 * 1024;
/// The file with the proof of an order's pay.
const CLAIM: &str = "claim.json";
/// The empty file of an order whose pay was announced.
const PAID: &str = "paid";
/// Longest file with a proof, in bytes.
const CLAIM_BYTES_MAX: u64 = 64 * 1024;
/// Longest file with losses, in bytes.
const LOSSES_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a digest.
const DIGEST_BYTES: usize = 32;
/// Longest file with a trace: the digests of a million steps.
const TRACE_BYTES_MAX: u64 = 32 * 1_000_000;

/// The data folder of leases.
#[derive(Clone, Debug)]
pub(super) struct LeaseStore {
    folder: PathBuf,
}

/// The folder of one order.
#[derive(Clone, Debug)]
pub(super) struct OrderFolder {
    folder: PathBuf,
}

/// The losses of one role: an amount for each order, so that a loss counts once.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct LossesByOrder(BTreeMap<Digest, Amount>);

/// A state at the start of a segment, on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredState {
    pub(super) digest: Digest,
    path: PathBuf,
}

impl LeaseStore {
    /// Opens the folder, and creates it.
    pub(super) fn open(folder: &Path) -> Result<Self, FileError> {
        let folder = folder.join("leases");
        atomic_file::create_folder(&folder)?;
        Ok(Self { folder })
    }

    /// Locks the folder for a process that takes part in all orders, or in one: two would deposit twice.
    pub(super) fn lock(folder: &Path, only: Option<Digest>) -> Result<LockedFile, LockError> {
        let Self { folder } = Self::open(folder)?;
        let name = only.map_or_else(|| "lock".to_owned(), |order| format!("lock-{order}"));
        LockedFile::open(&folder.join(name))
    }

    /// The folder of an order.
    pub(super) fn order(&self, order: Digest) -> OrderFolder {
        OrderFolder { folder: self.folder.join(order.to_string()) }
    }

    /// The folder of executors.
    pub(super) fn executors(&self) -> PathBuf {
        self.folder.join("executors")
    }

    /// A folder for files that are linked elsewhere; it is removed on drop.
    pub(super) fn temporary(&self) -> Result<tempfile::TempDir, FileError> {
        let failed = |error| FileError::new("create the folder", &self.folder, error);
        tempfile::tempdir_in(&self.folder).map_err(failed)
    }

    /// The orders that have a folder.
    pub(super) fn orders(&self) -> Result<Vec<Digest>, FileError> {
        let failed = |error| FileError::new("read", &self.folder, error);
        let mut orders = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            orders.extend(name.to_string_lossy().parse::<Digest>().ok());
        }
        Ok(orders)
    }

    fn losses_path(&self, role: LeaseRole) -> PathBuf {
        self.folder.join(match role {
            LeaseRole::Provider => "lost-stakes.json",
            LeaseRole::Auditor => "lost-bonds.json",
        })
    }

    fn losses(&self, role: LeaseRole) -> Result<LossesByOrder, FileError> {
        let path = self.losses_path(role);
        let bytes = atomic_file::read_limited(&path, LOSSES_BYTES_MAX)?;
        let Some(bytes) = bytes else { return Ok(LossesByOrder::default()) };
        serde_json::from_slice(&bytes).map_err(|error| FileError::new("read", &path, error.into()))
    }

    /// All losses of a role.
    pub(super) fn lost(&self, role: LeaseRole) -> Result<Amount, FileError> {
        let LossesByOrder(losses) = self.losses(role)?;
        Ok(Amount::total(losses.into_values()).unwrap_or(Amount::from_units(u128::MAX)))
    }

    /// Records the loss of an order; returns whether it is new.
    pub(super) fn record_loss(
        &self,
        role: LeaseRole,
        order: Digest,
        amount: Amount,
    ) -> Result<bool, FileError> {
        let LossesByOrder(mut losses) = self.losses(role)?;
        if losses.get(&order) == Some(&amount) {
            return Ok(false);
        }
        losses.insert(order, amount);
        let path = self.losses_path(role);
        let bytes = serde_json::to_vec(&LossesByOrder(losses))
            .map_err(|error| FileError::new("write", &path, error.into()))?;
        atomic_file::write_atomically(&path, &bytes)?;
        Ok(true)
    }
}

impl OrderFolder {
    /// The folder at a path.
    pub(super) const fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    pub(super) fn path(&self) -> &Path {
        &self.folder
    }

    /// Whether the account has a part in the order.
    pub(super) fn exists(&self) -> bool {
        self.folder.is_dir()
    }

    pub(super) fn create(&self) -> Result<(), FileError> {
        atomic_file::create_folder(&self.folder)
    }

    /// Removes the folder with all its files.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        atomic_file::remove_folder(&self.folder)
    }

    /// The proof of the pay, once the lease is over.
    pub(super) fn claim(&self) -> Result<Option<ClaimProof>, FileError> {
        let path = self.folder.join(CLAIM);
        let bytes = atomic_file::read_limited(&path, CLAIM_BYTES_MAX)?;
        let read = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        read.map_err(|error| FileError::new("read", &path, error.into()))
    }

    /// Stores the proof of the pay, and removes the files of the computation: the lease is over.
    pub(super) fn keep_only_claim(&self, claim: Option<&ClaimProof>) -> Result<(), FileError> {
        let path = self.folder.join(CLAIM);
        if let Some(claim) = claim {
            let bytes = serde_json::to_vec(claim)
                .map_err(|error| FileError::new("write", &path, error.into()))?;
            self.write(&path, &bytes)?;
        }
        let failed = |error| FileError::new("remove", &self.folder, error);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name() != CLAIM && entry.file_name() != PAID {
                fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Whether the pay was announced.
    pub(super) fn is_paid(&self) -> bool {
        self.folder.join(PAID).is_file()
    }

    /// Records that the pay was announced.
    pub(super) fn mark_paid(&self) -> Result<(), FileError> {
        self.write(&self.folder.join(PAID), &[])
    }

    /// The bid that was sealed.
    pub(super) fn bid(&self) -> Result<Option<Bid>, FileError> {
        let path = self.folder.join("bid.json");
        let bytes = atomic_file::read_limited(&path, BID_BYTES_MAX)?;
        let read = bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose();
        read.map_err(|error| FileError::new("read", &path, error.into()))
    }

    /// Whether a bid was stored.
    pub(super) fn has_bid(&self) -> bool {
        self.folder.join("bid.json").exists()
    }

    /// Stores a bid, before it is sealed.
    pub(super) fn write_bid(&self, bid: &Bid) -> Result<(), FileError> {
        let path = self.folder.join("bid.json");
        let bytes = serde_json::to_vec(bid)
            .map_err(|error| FileError::new("write", &path, error.into()))?;
        self.write(&path, &bytes)
    }

    /// The states at the starts of segments, by segment; that behind the last one is the result.
    pub(super) fn states(&self) -> Result<BTreeMap<u32, StoredState>, FileError> {
        let mut states = BTreeMap::new();
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(states),
            Err(error) => return Err(FileError::new("read", &self.folder, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| FileError::new("read", &self.folder, error))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some((segment, digest)) = parse_state_name(&name) {
                states.insert(segment, StoredState { digest, path: entry.path() });
            }
        }
        Ok(states)
    }

    /// Stores the state at the start of a segment.
    pub(super) fn write_state(
        &self,
        segment: u32,
        digest: Digest,
        bytes: &[u8],
    ) -> Result<StoredState, FileError> {
        let path = self.folder.join(format!("state-{segment}-{digest}.safetensors"));
        self.write(&path, bytes)?;
        Ok(StoredState { digest, path })
    }

    /// The states of the steps of a segment, if its trace was stored.
    pub(super) fn trace(&self, segment: u32) -> Result<Option<Vec<Digest>>, FileError> {
        let path = self.folder.join(format!("trace-{segment}"));
        let bytes = atomic_file::read_limited(&path, TRACE_BYTES_MAX)?;
        let digests = |bytes: Vec<u8>| -> Vec<Digest> {
            bytes.as_chunks::<DIGEST_BYTES>().0.iter().map(|digest| Digest(*digest)).collect()
        };
        Ok(bytes.map(digests))
    }

    /// Whether the trace of a segment is stored.
    pub(super) fn has_trace(&self, segment: u32) -> bool {
        self.folder.join(format!("trace-{segment}")).is_file()
    }

    pub(super) fn write_trace(&self, segment: u32, trace: &[Digest]) -> Result<(), FileError> {
        let bytes: Vec<u8> = trace.iter().flat_map(|digest| digest.0).collect();
        self.write(&self.folder.join(format!("trace-{segment}")), &bytes)
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), FileError> {
        self.create()?;
        atomic_file::write_atomically(path, bytes)
    }
}

impl StoredState {
    pub(super) fn read(&self) -> Result<Vec<u8>, FileError> {
        let bytes = atomic_file::read_limited(&self.path, BLOB_BYTES_MAX)?;
        bytes.ok_or_else(|| FileError::new("read", &self.path, io::ErrorKind::NotFound.into()))
    }

    /// Removes a file whose bytes are not the state.
    pub(super) fn remove(&self) -> Result<(), FileError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::new("remove", &self.path, error))
            }
            _ => Ok(()),
        }
    }
}

/// Segment and digest of a state's file.
fn parse_state_name(name: &str) -> Option<(u32, Digest)> {
    let rest = name.strip_prefix("state-")?.strip_suffix(".safetensors")?;
    let (segment, digest) = rest.split_once('-')?;
    Some((segment.parse().ok()?, digest.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use florin_compute::StepTimes;

    use super::*;

    const ORDER: Digest = Digest([5; 32]);

    #[test]
    fn a_state_has_its_segment_and_its_digest_in_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let order = LeaseStore::open(folder.path()).unwrap().order(ORDER);
        assert!(!order.exists() && order.states().unwrap().is_empty());
        let stored = order.write_state(12, Digest([1; 32]), b"state").unwrap();
        // A crash leaves a temporary file, which is no state.
        let name = format!("state-13-{}.safetensors.77-0.new", Digest([2; 32]));
        fs::write(folder.path().join("leases").join(ORDER.to_string()).join(name), b"st").unwrap();
        let states = order.states().unwrap();
        assert_eq!(states, BTreeMap::from([(12, stored.clone())]));
        assert_eq!(stored.read().unwrap(), b"state");
        order.remove().unwrap();
        order.remove().unwrap();
        assert!(!order.exists());
    }

    #[test]
    fn bids_and_traces_return_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let order = LeaseStore::open(folder.path()).unwrap().order(ORDER);
        assert_eq!((order.bid().unwrap(), order.trace(3).unwrap()), (None, None));
        let times = StepTimes::new(vec![70]).unwrap();
        let bid = Bid { per_second: Amount::from_units(9), devices: 1, times };
        order.write_bid(&bid).unwrap();
        let trace = vec![Digest([1; 32]), Digest([2; 32])];
        order.write_trace(3, &trace).unwrap();
        assert_eq!((order.bid().unwrap(), order.trace(3).unwrap()), (Some(bid), Some(trace)));
    }

    #[test]
    fn the_loss_of_an_order_counts_once_and_by_role() {
        let folder = tempfile::tempdir().unwrap();
        let store = LeaseStore::open(folder.path()).unwrap();
        let units = Amount::from_units;
        assert_eq!(store.lost(LeaseRole::Provider).unwrap(), Amount::ZERO);
        assert!(store.record_loss(LeaseRole::Provider, ORDER, units(5)).unwrap());
        assert!(!store.record_loss(LeaseRole::Provider, ORDER, units(5)).unwrap());
        assert!(store.record_loss(LeaseRole::Provider, Digest([6; 32]), units(2)).unwrap());
        let again = LeaseStore::open(folder.path()).unwrap();
        assert_eq!(again.lost(LeaseRole::Provider).unwrap(), units(7));
        assert_eq!(again.lost(LeaseRole::Auditor).unwrap(), Amount::ZERO);
    }
}
