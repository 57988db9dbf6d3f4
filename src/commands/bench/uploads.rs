//! `florin bench uploads`: many large updates at once, beside copying and hashing the same bytes on the same disk.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use florin_participant::Client;
use florin_protocol::{
    Canonical, Commit, Digest, Offer, Phase, Signed, Signer, TaskSpec, Tick, UpdateHeader,
    blob_digest,
};
use florin_store::Mapped;

use super::Row;
use super::server::load;
use super::server::market::{Actor, Market};
use crate::cli::BenchUploads;
use crate::show;

/// What the disk keeps free beside everything that is measured, in bytes.
const SPARE: u64 = 2_000_000_000;
/// Settings under which so much may come at once; the limits on memory stay as they are.
const SETTINGS: &str = "round_mib_max = 1048576\n[uploads]\ndisk_mib_max = 1048576\n\
    task_mib_max = 1048576\n";
/// The most that a coordinator may need beyond what its settings declare, in MiB.
const MEMORY_MIB: f64 = 512.0;
/// What `in_flight_mib` is where no setting says otherwise: the part of updates that may be mapped while they are checked.
const DECLARED_MIB: f64 = 256.0;
/// Bytes copied at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Between two looks at the coordinator's memory.
const LOOK: Duration = Duration::from_millis(50);

/// One update: its header, and the file that its bytes are in.
struct Ready {
    header: Signed<UpdateHeader>,
    path: PathBuf,
}

pub(super) fn run(arguments: &BenchUploads) -> anyhow::Result<Vec<Row>> {
    // Two layers as wide as each other hold nearly all of the parameters.
    let bytes = u64::from(arguments.megabytes) * 1_000_000;
    let width = u32::try_from((bytes / 4).isqrt())?.saturating_sub(37).max(16);
    let count = fitting(u64::from(arguments.uploads), bytes)?;
    // One more commits and stays away, so that the round waits and nothing else is computed meanwhile.
    let market = Market::open_with(count + 1, &[], SETTINGS)?;
    let task = market.publish_model(0, &[width, width])?;
    load::join(&market, &[task], 4)?;
    load::until(&market, task, Phase::Committing)?;
    let client = load::connect(&market)?;
    let view = client.task(task)?;
    let offer = view.offer.context("a task that waits for commits has an offer")?.body;
    let ready = prepare(&market, &view.spec, &offer, &client)?;
    load::until(&market, task, Phase::Revealing)?;
    let uploads = ready.get(1..).context("there is one more than is uploaded")?;
    let peak_is_ours = market.forget_peak();
    let before = market.usage()?;
    let (took, own) = upload(&market, uploads)?;
    let after = market.usage()?;
    let (copied, hashed) = copy_and_hash(&market, uploads)?;
    let all: u64 = uploads.iter().map(|ready| ready.header.body.bytes).sum();
    let rate = |time: Duration| {
        f64::from(u32::try_from(all / 1_000).unwrap_or(u32::MAX)) / 1e3 / time.as_secs_f64()
    };
    let of = format!("{count} updates of {} MB at once", all / count / 1_000_000);
    let peak =
        if peak_is_ours { "server's peak memory" } else { "server's peak memory, start included" };
    Ok(vec![
        Row::plain(of, took.as_secs_f64(), "s"),
        Row::plain("  received, checked, durable", rate(took), "MB/s"),
        Row::plain("cp and fsync of the same, one after the other", rate(copied), "MB/s"),
        Row::plain("  and blake3 of the copies", rate(copied + hashed), "MB/s"),
        Row::at_least("  share of that", rate(took) / rate(copied + hashed), "", 0.5),
        Row::below(peak, after.peak_mib, "MiB", MEMORY_MIB + DECLARED_MIB),
        Row::below("  of it memory of its own, highest seen", own, "MiB", MEMORY_MIB),
        Row::plain("server's processor time", (after.cpu - before.cpu).as_secs_f64(), "s"),
    ])
}

/// How many uploads of this size the disk has room for: each as a source, as a blob and as a
/// copy; one more is only a source, and the first model is there too.
fn fitting(count: u64, bytes: u64) -> anyhow::Result<u64> {
    let disk = rustix::fs::statvfs(".").context("this folder's disk")?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(SPARE);
    let fits = (free / bytes.max(1)).saturating_sub(2) / 3;
    ensure!(
        fits > 0,
        "{free} bytes are free here besides {SPARE}: one upload of {bytes} takes five times its size"
    );
    if fits < count {
        let note = show::NOTE;
        anstream::eprintln!(
            "{note}this disk has room for {fits} of {count} uploads: measuring {fits}{note:#}"
        );
    }
    Ok(fits.min(count))
}

/// Writes everybody's update into a file, and commits to it.
fn prepare(
    market: &Market,
    spec: &TaskSpec,
    offer: &Offer,
    client: &Client,
) -> anyhow::Result<Vec<Ready>> {
    let parameters = florin_work::model_spec(&spec.model).parameters();
    // Within the task's norm, whatever the size.
    let number = 1.0 / (parameters as f32).sqrt();
    let mut bytes = florin_work::encode(spec, &vec![number; parameters]);
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
            expires: Tick(u64::MAX >> 1),
        };
        let path = market.path(&format!("update-{at}"));
        std::fs::write(&path, &bytes)?;
        client.commit(&promise(actor, &header))?;
        all.push(Ready { header: actor.node.sign(header), path });
    }
    Ok(all)
}

fn promise(actor: &Actor, header: &UpdateHeader) -> Signed<Commit> {
    actor.node.sign(Commit {
        scope: header.scope,
        sender: header.sender,
        offer: header.offer,
        commitment: header.commitment(),
    })
}

/// Uploads all at once; returns how long that took, and the most memory of its own that the coordinator was seen with.
fn upload(market: &Market, uploads: &[Ready]) -> anyhow::Result<(Duration, f64)> {
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
        let send = |ready: &Ready| -> anyhow::Result<()> {
            let bytes = Mapped::file(&File::open(&ready.path)?)?;
            load::connect(market)?.upload(&ready.header, &bytes)?;
            Ok(())
        };
        let threads: Vec<_> =
            uploads.iter().map(|ready| scope.spawn(move || send(ready))).collect();
        let sent: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        let took = begun.elapsed();
        over.store(true, Ordering::Relaxed);
        let most = watching.join().ok().context("the watching thread panicked")?;
        for one in sent {
            one.ok().context("an upload's thread panicked")??;
        }
        Ok((took, most))
    })
}

/// How long copying the same bytes durably takes, and hashing the copies. All of them stay, as all blobs do: memory that
/// a file gave back would be warm for the next one.
fn copy_and_hash(market: &Market, uploads: &[Ready]) -> anyhow::Result<(Duration, Duration)> {
    let (mut copied, mut hashed) = (Duration::ZERO, Duration::ZERO);
    for (at, ready) in uploads.iter().enumerate() {
        let path = market.path(&format!("copy-{at}"));
        let begun = Instant::now();
        let copy = copy_durably(&ready.path, &path)?;
        copied += begun.elapsed();
        let begun = Instant::now();
        let right = blob_digest(&Mapped::file(&copy)?) == ready.header.body.update;
        hashed += begun.elapsed();
        ensure!(right, "a copy has another digest");
    }
    Ok((copied, hashed))
}

/// As `cp` does it: read and written, never shared between two names.
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
