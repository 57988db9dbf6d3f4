//! The load: messages of all participants, prepared in advance and sent over many connections.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use florin_ledger::{Ledger, RemoteLedger};
use florin_participant::{Client, ClientConfig};
use florin_protocol::{
    Amount, Canonical, Commit, Digest, EnrolRequest, Registration, Role, RoundNumber, Signed,
    TaskId, TaskPhase, TaskSpec, Timestamp, UpdateHeader, blob_digest,
};

use super::market::{BenchMarket, BenchParticipant};

/// Timeout of any wait.
const PATIENCE: Duration = Duration::from_secs(300);
/// Rows that each participant declares.
const ROWS: u64 = 10;
/// The bond that covers them.
const BOND: &str = "1";

/// The result of many uploads.
pub(super) struct UploadStats {
    pub(super) count: usize,
    pub(super) took: Duration,
    pub(super) median: Duration,
    pub(super) p99: Duration,
}

/// An update, ready to be sent.
pub(super) struct PreparedUpdate {
    header: Signed<UpdateHeader>,
    bytes: Vec<u8>,
}

pub(crate) fn connect(market: &BenchMarket) -> anyhow::Result<Client> {
    Ok(Client::connect(&ClientConfig::new(&market.url))?)
}

/// Runs an action for each item, over `connections` connections; returns the duration of each
/// action.
fn run_parallel<T: Sync>(
    market: &BenchMarket,
    connections: usize,
    items: &[T],
    act: impl Fn(&Client, &T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<Vec<Duration>> {
    let (next, times) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(items.len())));
    let clients = (0..connections).map(|_| connect(market)).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let work = |client: Client| -> anyhow::Result<()> {
            let mut mine = Vec::new();
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                let begun = Instant::now();
                act(&client, item)?;
                mine.push(begun.elapsed());
            }
            times.lock().unwrap_or_else(PoisonError::into_inner).extend(mine);
            Ok(())
        };
        let threads: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || work(client))).collect();
        for thread in threads {
            thread.join().ok().context("a connection's thread panicked")??;
        }
        anyhow::Ok(())
    })?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Registers, bonds and enrols all participants in all tasks.
pub(crate) fn join(
    market: &BenchMarket,
    tasks: &[TaskId],
    connections: usize,
) -> anyhow::Result<()> {
    let ledger = RemoteLedger::connect_with_trust_anchors(&market.url, connect(market)?.trust())?;
    let name = ledger.market();
    let later = Timestamp(ledger.now()?.0.saturating_add(3_600_000));
    let bond: Amount = BOND.parse()?;
    run_parallel(
        market,
        connections,
        &market.actors,
        |client, BenchParticipant { wallet, node }| {
            let role = Role::Participant;
            client.register(&Registration::sign(name, wallet, node, role, later)?)?;
            for task in tasks {
                ledger.bond(wallet, *task, bond)?;
                let sender = florin_protocol::WalletSigner::address(wallet);
                let enrol = EnrolRequest::without_invitation(name, *task, sender, later);
                client.enrol(&node.sign(enrol))?;
            }
            Ok(())
        },
    )?;
    Ok(())
}

pub(crate) fn wait_for_phase(
    market: &BenchMarket,
    task: TaskId,
    phase: TaskPhase,
) -> anyhow::Result<()> {
    let client = connect(market)?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let view = client.task(task)?;
        if view.phase == phase {
            return Ok(());
        }
        client.task_after(task, view.sequence, 1_000)?;
    }
    bail!("task {task} did not reach the phase {phase:?} within {} s", PATIENCE.as_secs())
}

/// Creates all participants' updates for the first round of a task. Their content is arbitrary but
/// distinct.
fn updates(market: &BenchMarket, task: TaskId) -> anyhow::Result<Vec<PreparedUpdate>> {
    wait_for_phase(market, task, TaskPhase::Committing)?;
    let view = connect(market)?.task(task)?;
    let offer = view.offer.context("a task that waits for commits has an offer")?.body;
    let parameters = florin_work::model_spec(&view.spec.model).parameters();
    let make = |(number, actor): (usize, &BenchParticipant)| {
        let bytes = delta(&view.spec, parameters, task, number);
        let header = UpdateHeader {
            scope: offer.scope,
            sender: florin_protocol::WalletSigner::address(&actor.wallet),
            offer: offer.digest(),
            base_model: offer.base_model,
            rows: ROWS,
            update: blob_digest(&bytes),
            bytes: bytes.len() as u64,
            salt: Digest([7; 32]),
            expires: Timestamp(u64::MAX >> 1),
        };
        PreparedUpdate { header: actor.node.sign(header), bytes }
    };
    Ok(market.actors.iter().enumerate().map(make).collect())
}

/// Small numbers, distinct for each participant and task. The coordinator treats an upload with
/// known bytes differently (it looks them up and reads them back), which would distort the
/// measurement.
fn delta(spec: &TaskSpec, parameters: usize, task: TaskId, number: usize) -> Vec<u8> {
    let of_task = task.0.first_chunk::<8>().copied().map_or(0, u64::from_le_bytes);
    let mut state = (of_task ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
    let next = |_| {
        // xorshift64: fast, with a different seed for each participant.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1u32 << 24) as f32 - 0.5) * 1e-3
    };
    florin_work::encode_parameters(spec, &(0..parameters).map(next).collect::<Vec<f32>>())
}

fn commit_to(ready: &PreparedUpdate, market: &BenchMarket) -> anyhow::Result<Signed<Commit>> {
    let header = &ready.header.body;
    let is_sender =
        |a: &&BenchParticipant| florin_protocol::WalletSigner::address(&a.wallet) == header.sender;
    let actor = market.actors.iter().find(is_sender);
    let commit = Commit {
        scope: header.scope,
        sender: header.sender,
        offer: header.offer,
        commitment: header.commitment(),
    };
    Ok(actor.context("every sender is an actor")?.node.sign(commit))
}

/// Commits all updates in all tasks; returns the updates to upload: all but one of each task, so
/// that no task is complete and no valuation starts during the measurement.
pub(super) fn commit(
    market: &BenchMarket,
    tasks: &[TaskId],
    connections: usize,
) -> anyhow::Result<Vec<PreparedUpdate>> {
    let mut all = Vec::new();
    for task in tasks {
        all.extend(updates(market, *task)?);
    }
    let commits =
        all.iter().map(|ready| commit_to(ready, market)).collect::<Result<Vec<_>, _>>()?;
    run_parallel(market, connections, &commits, |client, commit| Ok(client.commit(commit)?))?;
    let digests: BTreeSet<Digest> = all.iter().map(|ready| ready.header.body.update).collect();
    ensure!(
        digests.len() == all.len(),
        "two updates are equal, so the second one would only be looked up"
    );
    let mut held = BTreeSet::new();
    all.retain(|ready| !held.insert(ready.header.body.scope.task));
    Ok(all)
}

/// Whether all tasks still wait for updates.
pub(super) fn still_revealing(market: &BenchMarket, tasks: &[TaskId]) -> anyhow::Result<bool> {
    let client = connect(market)?;
    let mut phases = tasks.iter().map(|task| client.task(*task).map(|view| view.phase));
    Ok(phases
        .try_fold(true, |all, phase| phase.map(|phase| all && phase == TaskPhase::Revealing))?)
}

/// Uploads all updates.
pub(super) fn upload(
    market: &BenchMarket,
    ready: &[PreparedUpdate],
    connections: usize,
) -> anyhow::Result<UploadStats> {
    let begun = Instant::now();
    let mut times =
        run_parallel(market, connections, ready, |client, PreparedUpdate { header, bytes }| {
            client.upload(header, bytes).map(drop).map_err(Into::into)
        })?;
    let took = begun.elapsed();
    times.sort_unstable();
    let at = |share: usize| times.get(times.len() * share / 100).copied().unwrap_or_default();
    Ok(UploadStats { count: times.len(), took, median: at(50), p99: at(99) })
}

/// The commits and uploads of one round.
pub(super) fn round(
    market: &BenchMarket,
    task: TaskId,
    connections: usize,
) -> anyhow::Result<UploadStats> {
    let all = updates(market, task)?;
    let commits =
        all.iter().map(|ready| commit_to(ready, market)).collect::<Result<Vec<_>, _>>()?;
    let begun = Instant::now();
    run_parallel(market, connections, &commits, |client, commit| Ok(client.commit(commit)?))?;
    let taken = upload(market, &all, connections)?;
    Ok(UploadStats { took: begun.elapsed(), ..taken })
}

/// Waits for the report of the round; returns the duration.
pub(super) fn settled(market: &BenchMarket, task: TaskId) -> anyhow::Result<Duration> {
    let client = connect(market)?;
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let view = client.task(task)?;
        if view.reported >= RoundNumber::FIRST.0 {
            return Ok(begun.elapsed());
        }
        client.task_after(task, view.sequence, 1_000)?;
    }
    bail!("the round has no report after {} s", PATIENCE.as_secs())
}
