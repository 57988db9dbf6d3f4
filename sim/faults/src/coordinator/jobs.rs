//! The work of the coordinator's threads: disclose rows, value rounds, and execute ledger
//! transactions. Failed jobs are retried; after a crash the recovered engine requests its
//! outstanding jobs again.

use std::io;

use florin_coordinator::host::{
    ArchiveJob, DisclosureJob, EffectJob, EngineRequest, JobProgress, LedgerJob,
    REFUSED_RETRY_PAUSE, ResultSource, ValuationJob, WriteAck, advance, archive,
};
use florin_engine::Event;
use florin_learning::Reference;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_ledger::LedgerError;
use florin_protocol::{ErrorCode, Rejection, Report, RoundNumber, blob_digest};
use florin_store::is_full;
use florin_work::{CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, WorkError};

use super::{BatchInput, ME, SimCoordinator};
use crate::bugs::Bug;
use crate::context::{SimContext, SimEvent};
use crate::disk::SimDisk;
use crate::ledger::{DummySigner, RESPONSE_LOST};
use crate::setup::COORDINATOR;

/// First delay after a failure, in milliseconds; doubled with each further failure up to the
/// maximum.
const RETRY_MS: u64 = 100;
const RETRY_MS_MAX: u64 = 30_000;
/// Approximate maximum number of ledger requests of one step.
const REQUESTS: u64 = 8;

/// A job and the number of its retries.
#[derive(Debug)]
pub(super) struct JobSlot {
    job: EffectJob,
    retries: u32,
}

impl JobSlot {
    pub(super) const fn new(job: EffectJob) -> Self {
        Self { job, retries: 0 }
    }
}

/// The result of a step of a job.
enum JobStep {
    Completed(EngineRequest),
    WaitFor(u64),
    Retry(String),
}

impl SimCoordinator {
    /// Continues a job.
    pub(crate) fn job(&mut self, world: &mut SimContext, life: u64, slot: u64) {
        if life != self.restarts {
            return;
        }
        let Some(running) = &mut self.running else { return };
        let Some(mut at) = running.jobs.remove(&slot) else { return };
        let piece = match &mut at.job {
            EffectJob::Disclose(job) => disclose(&self.disk, job),
            EffectJob::Value(job) => value(&self.disk, job),
            EffectJob::Archive(job) => archive_round(&self.disk, job, world.bug),
            EffectJob::Ledger(job) => self.ledger_step(world, job),
        };
        let died = world.ledger().take_caller_crash();
        if self.disk.is_crashed() || died {
            self.crash(world, "in the middle of a job");
            return;
        }
        world.schedule_late_transactions();
        let Some(running) = &mut self.running else { return };
        match piece {
            JobStep::Completed(asked) => {
                running.jobs.insert(slot, at);
                self.waiting.push(BatchInput::JobResult { slot, asked });
                self.schedule_batch(world, 0);
            }
            JobStep::WaitFor(pause) => {
                running.jobs.insert(slot, at);
                world.schedule(pause.max(1), SimEvent::Job { life, slot });
            }
            JobStep::Retry(why) => {
                world.log(ME, format_args!("retries a job: {why}"));
                if world.bug == Some(Bug::DoubleSettlement) && fate_is_unknown(&why) {
                    plant_double_settlement(&mut at.job);
                }
                running.jobs.insert(slot, at);
                self.schedule_retry(world, slot);
            }
        }
    }

    fn schedule_retry(&mut self, world: &mut SimContext, slot: u64) {
        let life = self.restarts;
        let Some(at) = self.running.as_mut().and_then(|running| running.jobs.get_mut(&slot)) else {
            return;
        };
        let pause = RETRY_MS.saturating_mul(1 << at.retries.min(16)).min(RETRY_MS_MAX);
        at.retries += 1;
        world.schedule(pause, SimEvent::Job { life, slot });
    }

    fn ledger_step(&self, world: &mut SimContext, job: &mut LedgerJob) -> JobStep {
        let dies = world.faults.disk.crashes;
        if world.random_bool(dies) {
            let requests = world.random_ms(REQUESTS);
            world.ledger().crash_caller_after(ME, requests);
        }
        let went = advance(job, &world.ledger_link(ME), &DummySigner(COORDINATOR));
        match went {
            Ok(JobProgress::Done(event)) => {
                world.log(ME, format_args!("{job}: done"));
                JobStep::Completed(EngineRequest::Write(event))
            }
            Ok(JobProgress::Wait(pause)) => {
                JobStep::WaitFor(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX))
            }
            Err(LedgerError::Unavailable(why)) => JobStep::Retry(format!("{job}: {why}")),
            Err(error) => {
                world.log(ME, format_args!("{job}: {error}"));
                JobStep::WaitFor(u64::try_from(REFUSED_RETRY_PAUSE.as_millis()).unwrap_or(u64::MAX))
            }
        }
    }

    /// A job receives the outcome of its event: events that the journal refused are retried.
    pub(super) fn on_job_outcome(
        &mut self,
        world: &mut SimContext,
        slot: u64,
        asked: &EngineRequest,
        became: &Result<WriteAck, Rejection>,
    ) {
        let Some(running) = &mut self.running else { return };
        match became {
            Err(rejection)
                if matches!(rejection.code, ErrorCode::StorageFull | ErrorCode::Internal) =>
            {
                self.schedule_retry(world, slot);
            }
            Err(rejection) if rejection.code == ErrorCode::WorkResultMismatch => {
                world.log(ME, format_args!("abandons a round: {rejection}"));
                if let EngineRequest::OwnResult { task, round, .. } = asked {
                    let event = Event::ValuationFailed { task: *task, round: *round };
                    let asked = EngineRequest::Write(Box::new(event));
                    self.waiting.push(BatchInput::JobResult { slot, asked });
                    self.schedule_batch(world, 0);
                }
            }
            _ => {
                running.jobs.remove(&slot);
            }
        }
    }
}

fn retry_later(error: &io::Error) -> JobStep {
    let why = if is_full(error) { "the disk is full".to_owned() } else { error.to_string() };
    JobStep::Retry(why)
}

fn disclose(machine: &SimDisk, job: &DisclosureJob) -> JobStep {
    let (task, round) = (job.task, job.round);
    let shown = machine.get_blob(job.holdout).and_then(|all| {
        let all = CommittedHoldout::decode(&job.spec, &all).map_err(io::Error::other)?;
        let shown = all.disclose(&job.drawn_rows);
        let shown = shown.ok_or_else(|| io::Error::other("a drawn row does not exist"))?;
        machine.put_blob(&shown.to_bytes())
    });
    match shown {
        Ok(shown) => JobStep::Completed(EngineRequest::Write(Box::new(Event::RowsDisclosed {
            task,
            round,
            rows: shown,
        }))),
        Err(error) => retry_later(&error),
    }
}

/// A finished round must be durable as a blob before the journal records its digest. Planted bug:
/// the blob is not written.
fn archive_round(machine: &SimDisk, job: &ArchiveJob, bug: Option<Bug>) -> JobStep {
    let (task, round) = (job.task, job.round);
    let bytes =
        archive::to_bytes(&job.reported_round).map_err(|error| io::Error::other(error.to_string()));
    let put = |bytes: Vec<u8>| match bug {
        Some(Bug::RoundNotArchived) => Ok(blob_digest(&bytes)),
        _ => machine.put_blob(&bytes),
    };
    match bytes.and_then(put) {
        Ok(digest) => JobStep::Completed(EngineRequest::Write(Box::new(Event::RoundArchived {
            task,
            round,
            digest,
        }))),
        Err(error) => retry_later(&error),
    }
}

fn value(machine: &SimDisk, job: &ValuationJob) -> JobStep {
    let (task, round, order) = (job.task, job.round, &job.order);
    let read = |digest| machine.get_blob(digest);
    let blobs = || -> io::Result<_> {
        let updates = order.entries.iter().map(|entry| read(entry.update));
        let updates = updates.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let previous = order.previous_models.iter().map(|digest| read(*digest));
        let previous = previous.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let last = order.earlier_updates.iter().map(|(_, digest)| read(*digest));
        let last = last.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let earlier = order.earlier_rows.iter().map(|digest| read(*digest));
        let earlier = earlier.collect::<io::Result<Vec<Vec<u8>>>>()?;
        let shown = read(order.disclosed_rows)?;
        Ok((read(order.base_model)?, shown, updates, previous, last, earlier))
    };
    let (base, holdout, updates, previous, last, earlier) = match blobs() {
        Ok(blobs) => blobs,
        Err(error) => return retry_later(&error),
    };
    let updates: Vec<&[u8]> = updates.iter().map(Vec::as_slice).collect();
    let previous: Vec<&[u8]> = previous.iter().map(Vec::as_slice).collect();
    let inputs = ValuationInputs {
        spec: &job.spec,
        graph: None,
        base: &base,
        row_indices: &job.drawn_rows,
        disclosed_rows: &holdout,
        entries: &order.entries,
        updates: &updates.as_slice(),
        previous_models: &previous.as_slice(),
        earlier_updates: EarlierUpdateBlobs { ids: &order.earlier_updates, bytes: &last },
        earlier_rows: &earlier,
        scratch_space: &UNLIMITED_MEMORY,
    };
    match florin_work::value_and_aggregate(&inputs, &mut Reference::new()) {
        // Durable before the report that references it.
        Ok(outcome) => match machine.put_blob(&outcome.model) {
            Ok(_) => JobStep::Completed(EngineRequest::OwnResult {
                task,
                round,
                result: Box::new(outcome.result),
                source: ResultSource::Computed(None),
            }),
            Err(error) => retry_later(&error),
        },
        Err(WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_)) => {
            JobStep::Completed(EngineRequest::Write(Box::new(Event::ValuationFailed {
                task,
                round,
            })))
        }
        Err(error) => JobStep::Retry(error.to_string()),
    }
}

/// Whether the fate of a transaction is unknown because its response was lost. This depends on the
/// text of the error in [`florin_ledger::submit_remote`].
fn fate_is_unknown(why: &str) -> bool {
    why.contains(&format!("{RESPONSE_LOST}; it is unknown whether"))
}

/// Planted bug: a settlement whose response was lost gets another round. The ledger refuses to pay twice for it,
/// but the round stays occupied.
fn plant_double_settlement(job: &mut EffectJob) {
    let EffectJob::Ledger(job) = job else { return };
    if let LedgerJob::Post { settlement, .. } = job.as_mut() {
        settlement.round = RoundNumber(settlement.round.0 + 1);
        settlement.payout = Report::settlement_id(settlement.task, settlement.round);
        settlement.previous_root = settlement.root;
    }
}
