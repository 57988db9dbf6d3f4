//! Reads a data folder back, whole, and says what is in order and what is not. Changes nothing.
//!
//! The folder must be at rest: the newest pack and the newest segment of a running coordinator are in the middle of
//! something. For a look at a running one, make a backup and check that.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use florin_protocol::Digest;
use serde::Serialize;

use crate::host::keeper::{STATE_VERSION, to_bytes, with_fold};
use crate::host::owner;
use crate::identity::Identity;
use florin_engine::Engine;
use florin_store::{FolderError, Local, blobs, history, lock_to_look, pack, snapshot};

/// Digests of missing or damaged blobs that are named; more are counted.
const NAMED_MAX: usize = 5;

/// How something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// In order.
    Good,
    /// In order, and worth knowing.
    Note,
    /// Not in order.
    Bad,
}

/// What was found of one part of a folder.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Which part.
    pub part: &'static str,
    /// How it is.
    pub verdict: Verdict,
    /// A stable code where it is not in order; empty otherwise.
    pub code: &'static str,
    /// How many records, snapshots, blobs or blocks.
    pub count: u64,
    /// How many bytes.
    pub bytes: u64,
    /// In words.
    pub what: String,
}

impl Finding {
    /// Something that is as it should be.
    #[must_use]
    pub fn good(part: &'static str, count: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { part, verdict: Verdict::Good, code: "", count, bytes, what: what.into() }
    }

    fn note(part: &'static str, count: u64, bytes: u64, what: impl Into<String>) -> Self {
        Self { verdict: Verdict::Note, ..Self::good(part, count, bytes, what) }
    }

    /// Whether a start goes on in spite of it: a damaged snapshot is passed over, and a damaged pack or blob costs what is
    /// in it. Where that is needed, `BLOB_MISSING` says so besides.
    #[must_use]
    pub fn is_survived(&self) -> bool {
        self.verdict != Verdict::Bad
            || matches!(self.code, "SNAPSHOT_DAMAGED" | "PACK_DAMAGED" | "BLOB_DAMAGED")
    }

    /// Something that is not.
    #[must_use]
    pub fn bad(part: &'static str, code: &'static str, what: impl Into<String>) -> Self {
        Self { verdict: Verdict::Bad, code, ..Self::good(part, 0, 0, what) }
    }
}

/// Everything that was found, and where the journal ends.
#[derive(Clone, Debug, Serialize)]
pub struct Findings {
    /// Records in the journal.
    pub records: u64,
    /// Their chain value.
    pub chain: Digest,
    /// Part by part.
    pub parts: Vec<Finding>,
}

impl Findings {
    /// Whether everything is in order.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.parts.iter().all(|part| part.verdict != Verdict::Bad)
    }
}

/// Why a folder could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// Somebody uses it, or it is none.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// It does not say whose it is.
    #[error(transparent)]
    Identity(#[from] crate::identity::IdentityError),
    /// A file could not be read for a reason that is not in its bytes.
    #[error("{path}: {source} [DATA_FOLDER_UNUSABLE]")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A blob that is somewhere else than in the folder.
pub type Elsewhere<'a> = dyn Fn(Digest) -> Result<bool, String> + 'a;

/// Reads everything back. `known` is whose folder it is, if the caller knows; otherwise the folder says it. `elsewhere`
/// is asked for blobs that are not in the folder.
///
/// # Errors
/// [`CheckError`] where nothing can be said; what is damaged is a finding.
pub fn check(
    data: &Path,
    known: Option<Identity>,
    elsewhere: Option<&Elsewhere<'_>>,
) -> Result<Findings, CheckError> {
    // Held to the end: nobody changes what is being read.
    let _lock: Option<File> = lock_to_look(data)?;
    let identity = match known {
        Some(identity) => identity,
        None => Identity::read(data)?,
    };
    let mut findings = Findings { records: 0, chain: Digest::default(), parts: Vec::new() };
    let engine = check_history(data, identity, &mut findings);
    let unreadable = |source| CheckError::Unreadable { path: data.to_owned(), source };
    let present = check_blobs(data, &mut findings.parts).map_err(unreadable)?;
    if let Some(engine) = engine {
        check_needs(&engine, &present, elsewhere, &mut findings.parts);
    }
    Ok(findings)
}

/// Follows the journal, and holds each snapshot against what the records before it come to.
fn check_history(data: &Path, identity: Identity, findings: &mut Findings) -> Option<Engine> {
    let volume = Local(data.to_owned());
    let Identity { market, coordinator } = identity;
    let owner = owner(market, coordinator);
    let parts = &mut findings.parts;
    let mut wrong = Vec::new();
    let mut compared = (0u64, 0u64);
    let mut seen = |records: u64, engine: &Engine| match history::snapshot(&volume, owner, records)
    {
        None => {}
        Some(Err(why)) => wrong.push(("SNAPSHOT_DAMAGED", why)),
        // A start passes over what another version wrote, and so does this.
        Some(Ok(found)) if !found.state.starts_with(&STATE_VERSION.to_le_bytes()) => {}
        Some(Ok(found)) if Some(&found.state) == to_bytes(engine.state()).as_ref() => {
            compared = (compared.0 + 1, compared.1.saturating_add(found.state.len() as u64));
        }
        Some(Ok(_)) => {
            let name = snapshot::name(records);
            wrong.push((
                "SNAPSHOT_WRONG",
                format!("{name}: its state is not what the records come to"),
            ));
        }
    };
    let read =
        with_fold(market, coordinator, |fold| history::read_all(&volume, owner, fold, &mut seen));
    let engine = match read {
        Ok(read) => {
            (findings.records, findings.chain) = (read.at.records, read.at.chain);
            let from = match read.from {
                None => "from the first".to_owned(),
                Some(from) => format!("from record {from} on; those before it are not kept"),
            };
            let (records, bytes) = (read.read.records, read.read.bytes);
            parts.push(Finding::good("journal", records, bytes, format!("records, {from}")));
            if read.unfinished > 0 {
                let what = "bytes of a last record that was never finished, nor answered for";
                parts.push(Finding::note("journal", 0, read.unfinished, what));
            }
            wrong.extend(read.unused.into_iter().map(|why| ("SNAPSHOT_DAMAGED", why)));
            Some(read.state)
        }
        Err(error) => {
            parts.push(Finding::bad("journal", "JOURNAL_DAMAGED", error.to_string()));
            None
        }
    };
    let (count, bytes) = compared;
    parts.push(Finding::good(
        "snapshots",
        count,
        bytes,
        "are what the records before them come to",
    ));
    parts.extend(wrong.into_iter().map(|(code, why)| Finding::bad("snapshots", code, why)));
    engine
}

type Present = BTreeMap<Digest, u64>;

/// Hashes every blob.
fn check_blobs(data: &Path, parts: &mut Vec<Finding>) -> io::Result<Present> {
    let root = data.join("blobs");
    let mut present = Present::new();
    let mut damaged = Vec::new();
    let packs = root.join("packs");
    if packs.is_dir() {
        let read = pack::check(&Local(packs))?;
        let bytes = read.whole.values().copied().sum();
        let what = format!("blobs in {} packs have their digests", read.packs);
        parts.push(Finding::good("packs", read.whole.len() as u64, bytes, what));
        if read.unfinished > 0 {
            let what = "bytes behind the last whole blob of the newest pack, nor answered for";
            parts.push(Finding::note("packs", 0, read.unfinished, what));
        }
        damaged.extend(
            read.damaged.into_iter().map(|what| Finding::bad("packs", "PACK_DAMAGED", what)),
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
            damaged.push(Finding::bad("blobs", "BLOB_DAMAGED", what));
        }
    }
    parts.push(Finding::good("blobs", count, bytes, "files have their digests"));
    for (folder, what) in [
        ("partial", "writes that were never finished"),
        ("uploads", "uploads that are not finished"),
    ] {
        let left = leftovers(&root.join(folder))?;
        if left.0 > 0 {
            parts.push(Finding::note("blobs", left.0, left.1, what));
        }
    }
    parts.extend(damaged);
    Ok(present)
}

fn leftovers(partial: &Path) -> io::Result<(u64, u64)> {
    let (mut count, mut bytes) = (0u64, 0u64);
    if partial.is_dir() {
        for entry in fs::read_dir(partial)? {
            bytes = bytes.saturating_add(entry?.metadata()?.len());
            count = count.saturating_add(1);
        }
    }
    Ok((count, bytes))
}

/// Holds what the state needs against what is there.
fn check_needs(
    engine: &Engine,
    present: &Present,
    elsewhere: Option<&Elsewhere<'_>>,
    parts: &mut Vec<Finding>,
) {
    let needed = engine.state().blobs();
    let mut missing = Vec::new();
    let (mut count, mut bytes, mut remote) = (0u64, 0u64, 0u64);
    for digest in &needed {
        match present.get(digest) {
            Some(length) => (count, bytes) = (count + 1, bytes.saturating_add(*length)),
            None => match elsewhere.map(|ask| ask(*digest)) {
                Some(Ok(true)) => remote += 1,
                Some(Err(why)) => {
                    return parts.push(Finding::bad("needed", "BUCKET_UNUSABLE", why));
                }
                Some(Ok(false)) | None => missing.push(digest.to_string()),
            },
        }
    }
    parts.push(Finding::good("needed", count, bytes, "blobs that the state names are here"));
    if remote > 0 {
        parts.push(Finding::good("needed", remote, 0, "more of them are in the bucket alone"));
    }
    if !missing.is_empty() {
        let named = missing.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = missing.len().saturating_sub(NAMED_MAX);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let what = format!("{} blobs are missing: {named}{more}", missing.len());
        parts.push(Finding::bad("needed", "BLOB_MISSING", what));
    }
    let spare: Vec<u64> =
        present.iter().filter(|(digest, _)| !needed.contains(digest)).map(|(_, n)| *n).collect();
    if !spare.is_empty() {
        let what =
            "blobs that nothing names: refused, abandoned, or of a round that went on without them";
        parts.push(Finding::note("needed", spare.len() as u64, spare.iter().sum(), what));
    }
}
