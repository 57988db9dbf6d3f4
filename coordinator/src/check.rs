//! Verifies a complete data folder and reports the findings. It changes nothing.
//!
//! No process may use the folder: the newest pack and the newest segment of a running coordinator
//! can be in the middle of a write. To verify a running coordinator, make a backup and check the
//! backup.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use florin_protocol::Digest;
use serde::Serialize;

use crate::host::snapshotter::{STATE_VERSION, to_bytes, with_replay_target};
use crate::identity::Identity;
use crate::leases::{LEASES_FILE, RESTRICTED_FOLDER, read_leases};
use florin_engine::Engine;
use florin_store::{
    DataFolderError, FolderLock, LocalVolume, blobs, lock_if_exists, pack, recovery, snapshot,
};

/// Most digests of missing blobs that are listed by name; the rest are counted.
const NAMED_MAX: usize = 5;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Intact.
    Intact,
    /// Intact, with information for the operator.
    Info,
    /// Damaged or missing.
    Damaged,
}

/// The result for one part of a folder.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The part.
    pub part: &'static str,
    /// The severity.
    pub severity: Severity,
    /// A stable error code; empty unless the part is damaged.
    pub code: &'static str,
    /// Number of records, snapshots, blobs or blocks.
    pub count: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Description.
    pub message: String,
}

impl Finding {
    /// An intact part.
    #[must_use]
    pub fn intact(part: &'static str, count: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { part, severity: Severity::Intact, code: "", count, bytes, message: what.into() }
    }

    fn info(part: &'static str, count: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { severity: Severity::Info, ..Self::intact(part, count, bytes, what) }
    }

    /// Whether a coordinator can start in spite of it: a damaged snapshot is skipped, and a damaged
    /// pack or blob loses only its own content. If the state needs that content, `BLOB_MISSING` is
    /// reported as well.
    #[must_use]
    pub fn is_tolerated(&self) -> bool {
        self.severity != Severity::Damaged
            || matches!(self.code, "SNAPSHOT_DAMAGED" | "PACK_DAMAGED" | "BLOB_DAMAGED")
    }

    /// A damaged part.
    #[must_use]
    pub fn damaged(part: &'static str, code: &'static str, what: impl Into<String>) -> Self {
        Self { severity: Severity::Damaged, code, ..Self::intact(part, 0, 0, what) }
    }
}

/// All findings, and the end of the journal.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Number of records in the journal.
    pub records: u64,
    /// Chain hash after the last record.
    pub chain: Digest,
    /// The findings, part by part.
    pub parts: Vec<Finding>,
}

impl Findings {
    /// Whether no part is damaged.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.parts.iter().all(|part| part.severity != Severity::Damaged)
    }
}

/// Why a folder could not be checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Another process uses the folder, or it is not a data folder.
    #[error(transparent)]
    Folder(#[from] DataFolderError),
    /// The folder has no identity.
    #[error(transparent)]
    Identity(#[from] crate::identity::IdentityError),
    /// A file could not be read for a reason other than its content.
    #[error("{path}: {source} [DATA_FOLDER_UNUSABLE]")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Returns whether a blob exists outside the folder.
pub type RemoteLookup<'a> = dyn Fn(Digest) -> Result<bool, String> + 'a;

/// Verifies a data folder. `known` is the owner of the folder, if the caller knows it; otherwise it
/// is read from the folder. `elsewhere` is called for blobs that are not in the folder.
///
/// # Errors
/// [`CheckError`] if the check is impossible. Damage is a finding, not an error.
pub fn check(
    data: &Path,
    known: Option<Identity>,
    elsewhere: Option<&RemoteLookup<'_>>,
) -> Result<Findings, CheckError> {
    // Held until the end, so that no coordinator changes the folder meanwhile.
    let _lock: Option<FolderLock> = lock_if_exists(data)?;
    let identity = match known {
        Some(identity) => identity,
        None => Identity::read(data)?,
    };
    let mut findings = Findings { records: 0, chain: Digest::default(), parts: Vec::new() };
    let engine = check_history(data, identity, &mut findings);
    let unreadable = |source| CheckError::Unreadable { path: data.to_owned(), source };
    let present = check_blobs(data, &mut findings.parts).map_err(unreadable)?;
    let leases = check_leases(data, &mut findings.parts);
    if let Some(engine) = engine {
        let needed = &engine.state().required_blobs() | &leases;
        check_references(&needed, &present, elsewhere, &mut findings.parts);
    }
    Ok(findings)
}

/// Folds the records of all leases. Returns the blobs that they need.
fn check_leases(data: &Path, parts: &mut Vec<Finding>) -> BTreeSet<Digest> {
    match read_leases(data) {
        Ok(None) => BTreeSet::new(),
        Ok(Some(leases)) => {
            let bytes = fs::metadata(data.join(LEASES_FILE)).map_or(0, |about| about.len());
            let what = format!("orders for compute with {} recorded actions", leases.records);
            parts.push(Finding::intact("leases", leases.orders, bytes, what));
            for (order, digest) in leases.damaged.iter().take(NAMED_MAX) {
                let what = format!(
                    "{RESTRICTED_FOLDER}/{order}/{digest} is missing or damaged: the order's accounts cannot read it"
                );
                parts.push(Finding::damaged("leases", "BLOB_DAMAGED", what));
            }
            leases.blobs
        }
        Err(error) => {
            parts.push(Finding::damaged("leases", "LEASES_UNUSABLE", error.to_string()));
            BTreeSet::new()
        }
    }
}

/// Replays the journal, and compares each snapshot with the state after the records before it.
fn check_history(data: &Path, identity: Identity, findings: &mut Findings) -> Option<Engine> {
    let volume = LocalVolume(data.to_owned());
    let Identity { market, coordinator } = identity;
    let owner = identity.owner();
    let parts = &mut findings.parts;
    let mut wrong = Vec::new();
    let mut compared = (0u64, 0u64);
    let mut seen =
        |records: u64, engine: &Engine| match recovery::read_snapshot(&volume, owner, records) {
            None => {}
            Some(Err(why)) => wrong.push(("SNAPSHOT_DAMAGED", why)),
            // Snapshots of another state version are skipped, as a coordinator does at its start.
            Some(Ok(found)) if !found.state.starts_with(&STATE_VERSION.to_le_bytes()) => {}
            Some(Ok(found)) if Some(&found.state) == to_bytes(engine.state()).as_ref() => {
                compared = (compared.0 + 1, compared.1.saturating_add(found.state.len() as u64));
            }
            Some(Ok(_)) => {
                let name = snapshot::name(records);
                wrong.push((
                    "SNAPSHOT_MISMATCH",
                    format!("{name}: its state differs from the replayed records"),
                ));
            }
        };
    let read = with_replay_target(market, coordinator, |fold| {
        recovery::recover_all(&volume, owner, fold, &mut seen)
    });
    let engine = match read {
        Ok(read) => {
            (findings.records, findings.chain) = (read.at.records, read.at.chain);
            let from = match read.from_snapshot {
                None => "from the first one".to_owned(),
                Some(from) => format!("from record {from} on; earlier records were removed"),
            };
            let (records, bytes) = (read.replayed.records, read.replayed.bytes);
            parts.push(Finding::intact("journal", records, bytes, format!("records, {from}")));
            if read.unfinished > 0 {
                let what = "bytes of an incomplete last record, which was never acknowledged";
                parts.push(Finding::info("journal", 0, read.unfinished, what));
            }
            wrong.extend(read.unusable_snapshots.into_iter().map(|why| ("SNAPSHOT_DAMAGED", why)));
            Some(read.state)
        }
        Err(error) => {
            parts.push(Finding::damaged("journal", "JOURNAL_DAMAGED", error.to_string()));
            None
        }
    };
    let (count, bytes) = compared;
    parts.push(Finding::intact("snapshots", count, bytes, "match the replayed records"));
    parts.extend(wrong.into_iter().map(|(code, why)| Finding::damaged("snapshots", code, why)));
    engine
}

type Present = BTreeMap<Digest, u64>;

/// Verifies the digest of every blob.
fn check_blobs(data: &Path, parts: &mut Vec<Finding>) -> io::Result<Present> {
    let root = data.join("blobs");
    let mut present = Present::new();
    let mut damaged = Vec::new();
    let packs = root.join("packs");
    if packs.is_dir() {
        let read = pack::check(&LocalVolume(packs))?;
        let bytes = read.whole.values().copied().sum();
        let what = format!("blobs in {} packs match their digests", read.packs);
        parts.push(Finding::intact("packs", read.whole.len() as u64, bytes, what));
        if read.unfinished > 0 {
            let what = "bytes after the last complete blob of the newest pack, never acknowledged";
            parts.push(Finding::info("packs", 0, read.unfinished, what));
        }
        damaged.extend(
            read.damaged.into_iter().map(|what| Finding::damaged("packs", "PACK_DAMAGED", what)),
        );
        present.extend(read.whole);
    }
    let (mut count, mut bytes) = (0u64, 0u64);
    for (digest, path) in blobs::files(&root)? {
        let (found, length) = blobs::hash_file(&path)?;
        if found == digest {
            count = count.saturating_add(1);
            bytes = bytes.saturating_add(length);
            present.insert(digest, length);
        } else {
            let what = format!("{}: its bytes hash to {found}", path.display());
            damaged.push(Finding::damaged("blobs", "BLOB_DAMAGED", what));
        }
    }
    parts.push(Finding::intact("blobs", count, bytes, "files match their digests"));
    for (folder, what) in [("partial", "unfinished writes"), ("uploads", "unfinished uploads")] {
        let left = leftovers(&root.join(folder))?;
        if left.files > 0 {
            parts.push(Finding::info("blobs", left.files, left.bytes, what));
        }
    }
    parts.extend(damaged);
    Ok(present)
}

/// The files of interrupted writes.
#[derive(Default)]
struct Leftovers {
    files: u64,
    bytes: u64,
}

fn leftovers(partial: &Path) -> io::Result<Leftovers> {
    let mut left = Leftovers::default();
    if partial.is_dir() {
        for entry in fs::read_dir(partial)? {
            left.bytes = left.bytes.saturating_add(entry?.metadata()?.len());
            left.files = left.files.saturating_add(1);
        }
    }
    Ok(left)
}

/// Compares the blobs that the state refers to with the blobs that exist.
fn check_references(
    needed: &BTreeSet<Digest>,
    present: &Present,
    elsewhere: Option<&RemoteLookup<'_>>,
    parts: &mut Vec<Finding>,
) {
    let mut missing = Vec::new();
    let (mut count, mut bytes, mut remote) = (0u64, 0u64, 0u64);
    for digest in needed {
        match present.get(digest) {
            Some(length) => (count, bytes) = (count + 1, bytes.saturating_add(*length)),
            None => match elsewhere.map(|ask| ask(*digest)) {
                Some(Ok(true)) => remote += 1,
                Some(Err(why)) => {
                    return parts.push(Finding::damaged("needed", "BUCKET_UNUSABLE", why));
                }
                Some(Ok(false)) | None => missing.push(digest.to_string()),
            },
        }
    }
    parts.push(Finding::intact(
        "needed",
        count,
        bytes,
        "blobs that the state refers to are in the folder",
    ));
    if remote > 0 {
        parts.push(Finding::intact("needed", remote, 0, "more of them are only in the bucket"));
    }
    if !missing.is_empty() {
        let named = missing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = missing.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let what = format!("{} blobs are missing: {named}{more}", missing.len());
        parts.push(Finding::damaged("needed", "BLOB_MISSING", what));
    }
    let spare: Vec<u64> =
        present.iter().filter(|(digest, _)| !needed.contains(digest)).map(|(_, n)| *n).collect();
    if !spare.is_empty() {
        let what = "unreferenced blobs: rejected, abandoned, or of a round that did not use them";
        parts.push(Finding::info("needed", spare.len() as u64, spare.iter().sum(), what));
    }
}
