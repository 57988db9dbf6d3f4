//! The work of the coordinator's threads: disclose rows, value rounds, and execute ledger
//! transactions. Failed jobs are retried; after a crash the recovered engine requests its
//! outstanding jobs again.

use std::io;

use florin_coordinator::host::{
    ArchiveJob, DisclosureJob, EffectJob, EngineRequest, JobProgress, LedgerJob,
    REFUSED_RETRY_PAUSE, ValuationJob, WriteAck, advance, archive,
};
use florin_engine::Event;
use florin_learning::Reference;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_ledger::LedgerError;
use florin_protocol::{ErrorCode, Rejection, Report, RoundNumber, blob_digest};
use florin_store::is_full;
use florin_work::{CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, WorkError};

use super::{Coordinator, ME, Waiting};
use crate::bugs::Bug;
use crate::disk::Machine;
use crate::ledger::{ANSWER_LOST, Unsigned};
use crate::task::COORDINATOR;
use crate::world::{What, World};

/// First delay after a failure, in milliseconds; doubled with each further failure up to the
/// maximum.
const AGAIN_MS: u64 = 100;
const AGAIN_MS_MAX: u64 = 30_000;
/// Approximate maximum number of ledger requests of one step.
const REQUESTS: u64 = 8;

/// A job and the number of its retries.
#[derive(Debug)]
pub(super) struct Slot {
    job: EffectJob,
    puts_off: u32,
}

impl Slot {
    pub(super) const fn new(job: EffectJob) -> Self {
        Self { job, puts_off: 0 }
    }
}

/// The result of a step of a job.
enum Piece {
    Told(EngineRequest),
    Later(u64),
    Again(String),
}

impl Coordinator {
    /// Continues a job.
    pub(crate) fn job(&mut self, world: &mut World, life: u64, slot: u64) {
        if life != self.life {
            return;
        }
        let Some(running) = &mut self.running else { return };
        let Some(mut at) = running.jobs.remove(&slot) else { return };
        let piece = match &mut at.job {
            EffectJob::Disclose(job) => show(&self.machine, job),
            EffectJob::Value(job) => value(&self.machine, job),
            EffectJob::Archive(job) => keep(&self.machine, job, world.bug),
            EffectJob::Ledger(job) => self.ask_ledger(world, job),
        };
        let died = world.bank().spare();
        if self.machine.is_dead() || died {
            self.crash(world, "in the middle of a job");
            return;
        }
        world.send_late();
        let Some(running) = &mut self.running else { return };
        match piece {
            Piece::Told(asked) => {
                running.jobs.insert(slot, at);
                self.waiting.push(Waiting::Told { slot, asked });
                self.nudge(world, 0);
            }
            Piece::Later(pause) => {
                running.jobs.insert(slot, at);
                world.after(pause.max(1), What::Job { life, slot });
            }
            Piece::Again(why) => {
                world.tell(ME, format_args!("retries a job: {why}"));
                if world.bug == Some(Bug::DoubleSettlement) && is_unknown(&why) {
                    settle_once_more(&mut at.job);
                }
                running.jobs.insert(slot, at);
                self.again(world, slot);
            }
        }
    }

    fn again(&mut self, world: &mut World, slot: u64) {
        let life = self.life;
        let Some(at) = self.running.as_mut().and_then(|running| running.jobs.get_mut(&slot)) else {
            return;
        };
        let pause = AGAIN_MS.saturating_mul(1 << at.puts_off.min(16)).min(AGAIN_MS_MAX);
        at.puts_off += 1;
        world.after(pause, What::Job { life, slot });
    }

    fn ask_ledger(&self, world: &mut World, job: &mut LedgerJob) -> Piece {
        let dies = world.weather.disk.dies;
        if world.chance(dies) {
            let requests = world.some(REQUESTS);
            world.bank().kill_in(ME, requests);
        }
        let went = advance(job, &world.way(ME), &Unsigned(COORDINATOR));
        match went {
            Ok(JobProgress::Done(event)) => {
                world.tell(ME, format_args!("{job}: done"));
                Piece::Told(EngineRequest::Write(event))
            }
            Ok(JobProgress::Wait(pause)) => {
                Piece::Later(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
            }
            Err(LedgerError::Unavailable(why)) => Piece::Again(format!("{job}: {why}")),
            Err(error) => {
                world.tell(ME, format_args!("{job}: {error}"));
                Piece::Later(u64::try_from(REFUSED_RETRY_PAUSE.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// A job receives the outcome of its event: events that the journal refused are retried.
    pub(super) fn told(
        &mut self,
        world: &mut World,
        slot: u64,
        asked: &EngineRequest,
        became: &Result<WriteAck, Rejection>,
    ) {
        let Some(running) = &mut self.running else { return };
        match became {
            Err(rejection)
                if matches!(rejection.code, ErrorCode::StorageFull | ErrorCode::Internal) =>
            {
                self.again(world, slot);
            }
            Err(rejection) if rejection.code == ErrorCode::WorkResultMismatch => {
                world.tell(ME, format_args!("abandons a round: {rejection}"));
                if let EngineRequest::OwnResult { task, round, .. } = asked {
                    let event = Event::ValuationFailed { task: *task, round: *round };
                    let asked = EngineRequest::Write(Box::new(event));
                    self.waiting.push(Waiting::Told { slot, asked });
                    self.nudge(world, 0);
                }
            }
            _ => {
                running.jobs.remove(&slot);
            }
        }
    }
}

fn put_off(error: &io::Error) -> Piece {
    let why = if is_full(error) { "the disk is full".to_owned() } else { error.to_string() };
    Piece::Again(why)
}

fn show(machine: &Machine, job: &DisclosureJob) -> Piece {
    let (task, round) = (job.task, job.round);
    let shown = machine.get(job.holdout).and_then(|all| {
        let all = CommittedHoldout::decode(&job.spec, &all).map_err(io::Error::other)?;
        let shown = all.disclose(&job.drawn_rows);
        let shown = shown.ok_or_else(|| io::Error::other("a drawn row does not exist"))?;
        machine.put(&shown.to_bytes())
    });
    match shown {
        Ok(shown) => Piece::Told(EngineRequest::Write(Box::new(Event::RowsDisclosed {
            task,
            round,
            rows: shown,
        }))),
        Err(error) => put_off(&error),
    }
}

/// A finished round must be durable as a blob before the journal records its digest. Planted bug:
/// the blob is not written.
fn keep(machine: &Machine, job: &ArchiveJob, bug: Option<Bug>) -> Piece {
    let (task, round) = (job.task, job.round);
    let bytes =
        archive::to_bytes(&job.reported_round).map_err(|error| io::Error::other(error.to_string()));
    let put = |bytes: Vec<u8>| match bug {
        Some(Bug::RoundNotKept) => Ok(blob_digest(&bytes)),
        _ => machine.put(&bytes),
    };
    match bytes.and_then(put) {
        Ok(digest) => Piece::Told(EngineRequest::Write(Box::new(Event::RoundArchived {
            task,
            round,
            digest,
        }))),
        Err(error) => put_off(&error),
    }
}

fn value(machine: &Machine, job: &ValuationJob) -> Piece {
    let (task, round, order) = (job.task, job.round, &job.order);
    let read = |digest| machine.get(digest);
    let blobs = || -> io::Result<_> {
        let updates = order.entries.iter().map(|entry| read(entry.update));
        let updates = updates.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let previous = order.previous_models.iter().map(|digest| read(*digest));
        let previous = previous.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let last = order.earlier_updates.iter().map(|(_, digest)| read(*digest));
        let last = last.collect::<io::Result<Vec<Vec<u8>>>>()?;
        Ok((read(order.base_model)?, read(order.disclosed_rows)?, updates, previous, last))
    };
    let (base, holdout, updates, previous, last) = match blobs() {
        Ok(blobs) => blobs,
        Err(error) => return put_off(&error),
    };
    let updates: Vec<&[u8]> = updates.iter().map(Vec::as_slice).collect();
    let previous: Vec<&[u8]> = previous.iter().map(Vec::as_slice).collect();
    let inputs = ValuationInputs {
        spec: &job.spec,
        base: &base,
        row_indices: &job.drawn_rows,
        disclosed_rows: &holdout,
        entries: &order.entries,
        updates: &updates.as_slice(),
        previous_models: &previous.as_slice(),
        earlier_updates: EarlierUpdateBlobs { ids: &order.earlier_updates, bytes: &last },
        scratch_space: &UNLIMITED_MEMORY,
    };
    match florin_work::value_and_aggregate(&inputs, &mut Reference::new()) {
        // Durable before the report that references it.
        Ok(outcome) => match machine.put(&outcome.model) {
            Ok(_) => Piece::Told(EngineRequest::OwnResult {
                task,
                round,
                result: Box::new(outcome.result),
            }),
            Err(error) => put_off(&error),
        },
        Err(WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_)) => {
            Piece::Told(EngineRequest::Write(Box::new(Event::ValuationFailed { task, round })))
        }
        Err(error) => Piece::Again(error.to_string()),
    }
}

/// Whether the fate of a transaction is unknown because its response was lost. This depends on the
/// text of the error in [`florin_ledger::submit_over`].
fn is_unknown(why: &str) -> bool {
    why.contains(&format!("{ANSWER_LOST}; it is unknown whether"))
}

/// Planted bug: a settlement whose response was lost gets another round and pays again.
fn settle_once_more(job: &mut EffectJob) {
    let EffectJob::Ledger(job) = job else { return };
    if let LedgerJob::Post { settlement, .. } = job.as_mut() {
        settlement.round = RoundNumber(settlement.round.0 + 1);
        settlement.payout = Report::settlement_id(settlement.task, settlement.round);
        settlement.previous_root = settlement.root;
        let paid = settlement.data_total;
        settlement.data_total = paid.plus(paid).unwrap_or(paid);
    }
}
