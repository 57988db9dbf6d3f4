//! `florin-bench uploads`: concurrent large updates, beside copying and hashing the same bytes on
//! the same disk.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use florin_participant::Client;
use florin_protocol::{
    Canonical, Commit, Digest, Offer, Signed, TaskPhase, TaskSpec, Timestamp, UpdateHeader,
    WalletSigner, blob_digest,
};
use florin_store::MappedBytes;

use super::Measurement;
use super::server::load;
use super::server::market::{BenchMarket, BenchParticipant};
use crate::arguments::BenchUploads;
use florin::show;

/// Free disk space to leave besides the measured files, in bytes.
const SPARE: u64 = 2_000_000_000;
/// Settings that allow the large volume; the limits on memory are the defaults.
const SETTINGS: &str = "round_mib_max = 1048576\n[uploads]\ndisk_mib_max = 1048576\n\
    task_mib_max = 1048576\n";
/// Maximum memory of a coordinator beyond its declared buffers, in MiB.
const MEMORY_MIB: f64 = 512.0;
/// The default of `in_flight_mib`: the part of updates that may be mapped during their check.
const DECLARED_MIB: f64 = 256.0;
/// Size of a copy chunk.
const CHUNK_BYTES: usize = 1 << 20;
/// Interval of the samples of the coordinator's memory.
const LOOK: Duration = Duration::from_millis(50);

/// An update: its header, and the file with its bytes.
struct PreparedUpload {
    header: Signed<UpdateHeader>,
    path: PathBuf,
}

pub(super) fn run(arguments: &BenchUploads) -> anyhow::Result<Vec<Measurement>> {
    // Two equally wide layers have nearly all parameters.
    let bytes = u64::from(arguments.megabytes) * 1_000_000;
    let width = u32::try_from((bytes / 4).isqrt())?.saturating_sub(37).max(16);
    let count = uploads_that_fit(u64::from(arguments.uploads), bytes)?;
    // One more participant commits but does not upload, so that the round waits and no valuation
    // runs meanwhile.
    let market = BenchMarket::open_with(count + 1, &[], SETTINGS)?;
    let task = market.publish_model(0, &[width, width])?;
    load::join(&market, &[task], 4)?;
    load::wait_for_phase(&market, task, TaskPhase::Committing)?;
    let client = load::connect(&market)?;
    let view = client.task(task)?;
    let offer = view.offer.context("a task that waits for commits has an offer")?.body;
    let ready = prepare(&market, &view.spec, &offer, &client)?;
    load::wait_for_phase(&market, task, TaskPhase::Revealing)?;
    let uploads = ready.get(1..).context("there is one more update than uploads")?;
    let peak_is_ours = market.reset_peak();
    let before = market.usage()?;
    let (took, own) = upload(&market, uploads)?;
    let after = market.usage()?;
    let (copied, hashed) = copy_and_hash(&market, uploads)?;
    let all: u64 = uploads.iter().map(|ready| ready.header.body.bytes).sum();
    let rate = |time: Duration| {
        f64::from(u32::try_from(all / 1_000).unwrap_or(u32::MAX)) / 1e3 / time.as_secs_f64()
    };
    let of = format!("{count} concurrent updates of {} MB", all / count / 1_000_000);
    let peak = if peak_is_ours {
        "server's peak memory"
    } else {
        "server's peak memory, including the start"
    };
    Ok(vec![
        Measurement::plain(of, took.as_secs_f64(), "s"),
        Measurement::plain("  received, checked, durable", rate(took), "MB/s"),
        Measurement::plain("cp and fsync of the same, sequentially", rate(copied), "MB/s"),
        Measurement::plain("  and blake3 of the copies", rate(copied + hashed), "MB/s"),
        Measurement::at_least("  fraction of that", rate(took) / rate(copied + hashed), "", 0.5),
        Measurement::below(peak, after.peak_mib, "MiB", MEMORY_MIB + DECLARED_MIB),
        Measurement::below("  of it anonymous memory, maximum", own, "MiB", MEMORY_MIB),
        Measurement::plain("server's processor time", (after.cpu - before.cpu).as_secs_f64(), "s"),
    ])
}

/// The number of uploads of this size that fit on the disk: each needs space as a source, as a blob
/// and as a copy; one more is only a source, and the initial model needs space as well.
fn uploads_that_fit(count: u64, bytes: u64) -> anyhow::Result<u64> {
    let disk = rustix::fs::statvfs(".").context("cannot read the free disk space")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(SPARE);
    let fits = (free / bytes.max(1)).saturating_sub(2) / 3;
    ensure!(
        fits > 0,
        "the disk has {free} free bytes besides {SPARE}, but one upload of {bytes} bytes needs \
         five times its size"
    );
    if fits < count {
        let note = show::NOTE;
        anstream::eprintln!(
            "{note}the disk has space for {fits} of {count} uploads: measuring {fits}{note:#}"
        );
    }
    Ok(fits.min(count))
}

/// Writes all participants' updates into files, and commits to them.
fn prepare(
    market: &BenchMarket,
    spec: &TaskSpec,
    offer: &Offer,
    client: &Client,
) -> anyhow::Result<Vec<PreparedUpload>> {
    let parameters = florin_work::model_spec(&spec.model).parameters();
    // Within the task's maximum norm for every size.
    let number = 1.0 / (parameters as f32).sqrt();
    let mut bytes = florin_work::encode_parameters(spec, &vec![number; parameters]);
    let mut all = Vec::new();
    for (at, actor) in market.actors.iter().enumerate() {
        let mark = (number * (1.0 + at as f32 * 1e-3)).to_le_bytes();
        let end = bytes.len();
        bytes.get_mut(end - 4..).context("an update has a number")?.copy_from_slice(&mark);
        let header = UpdateHeader {
            scope: offer.scope,
            sender: actor.wallet.address(),
            offer: offer.digest(),
            base_model: offer.base_model,
            rows: 10,
            update: blob_digest(&bytes),
            bytes: bytes.len() as u64,
            salt: Digest([7; 32]),
            expires: Timestamp(u64::MAX >> 1),
        };
        let path = market.path(&format!("update-{at}"));
        std::fs::write(&path, &bytes)?;
        client.commit(&commit_to(actor, &header))?;
        all.push(PreparedUpload { header: actor.node.sign(header), path });
    }
    Ok(all)
}

fn commit_to(actor: &BenchParticipant, header: &UpdateHeader) -> Signed<Commit> {
    actor.node.sign(Commit {
        scope: header.scope,
        sender: header.sender,
        offer: header.offer,
        commitment: header.commitment(),
    })
}

/// Uploads all updates concurrently; returns the duration, and the maximum anonymous memory of the
/// coordinator.
fn upload(market: &BenchMarket, uploads: &[PreparedUpload]) -> anyhow::Result<(Duration, f64)> {
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut most = 0.0f64;
            while !over.load(Ordering::Relaxed) {
                most = market.usage().map_or(most, |usage| most.max(usage.own_mib));
                thread::sleep(LOOK);
            }
            most
        });
        let send = |ready: &PreparedUpload| -> anyhow::Result<()> {
            let bytes = MappedBytes::file(&File::open(&ready.path)?)?;
            load::connect(market)?.upload(&ready.header, &bytes)?;
            Ok(())
        };
        let threads: Vec<_> =
            uploads.iter().map(|ready| scope.spawn(move || send(ready))).collect();
        let sent: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        let most = watching.join().ok().context("the monitoring thread panicked")?;
        for one in sent {
            one.ok().context("an upload's thread panicked")??;
        }
        Ok((took, most))
    })
}

/// The time to copy the same bytes durably, and to hash the copies. All copies remain on disk, as
/// blobs do, because cached pages of a deleted file would speed up the next copy.
fn copy_and_hash(
    market: &BenchMarket,
    uploads: &[PreparedUpload],
) -> anyhow::Result<(Duration, Duration)> {
    let (mut copied, mut hashed) = (Duration::ZERO, Duration::ZERO);
    for (at, ready) in uploads.iter().enumerate() {
        let path = market.path(&format!("copy-{at}"));
        let begun = Instant::now();
        let copy = copy_durably(&ready.path, &path)?;
        copied += begun.elapsed();
        let begun = Instant::now();
        let right = blob_digest(&MappedBytes::file(&copy)?) == ready.header.body.update;
        hashed += begun.elapsed();
        ensure!(right, "a copy has another digest");
    }
    Ok((copied, hashed))
}

/// Copies as `cp` does: reads and writes all bytes, without reflinks.
fn copy_durably(from: &Path, to: &Path) -> anyhow::Result<File> {
    let mut from = File::open(from)?;
    let mut to = File::options().create_new(true).read(true).write(true).open(to)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let n = from.read(&mut chunk)?;
        if n == 0 {
            break;
        }
        to.write_all(chunk.get(..n).unwrap_or_default())?;
    }
    to.sync_all()?;
    Ok(to)
}
