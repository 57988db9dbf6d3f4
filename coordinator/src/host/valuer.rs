//! The valuation threads: the replay of providers' transcripts, and the coordinator's own valuation and aggregation
//! of rounds without one. The only file that calls [`florin_work`] for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use florin_learning::graph::GraphModel;
use florin_learning::{Engine, ScratchSpace};
use florin_protocol::{
    Digest, ErrorCode, NodeSigner, Rejection, RoundNumber, TaskId, TaskSpec, WorkOrder, WorkRecord,
    WorkResult,
};
use florin_work::{
    EarlierUpdateBlobs, TRANSCRIPT_PARTS, TranscriptSample, ValuationInputs, ValuationOutput,
    WorkError,
};

use super::EngineSender;
use super::batch::ResultSource;
use super::retry_queue::{RetryQueue, RetryReason};
use super::transcripts::{HeldTranscript, Transcripts};
use super::valuation_metrics::ValuationMetrics;
use crate::config::VALUATION_PARTS_DEFAULT;
use crate::trace;
use florin_engine::Event;
use florin_engine::state::ReceivedRecord;
use florin_store::{BlobError, BlobStore};

/// Attempts at a computation that fails for no reason in its inputs, before the round is abandoned.
pub const ATTEMPTS_MAX: u32 = 5;

/// Executes work orders.
pub trait Valuer: Send {
    /// Values and aggregates a round from its blobs on the rows drawn for it. It returns the new
    /// model without storing it.
    ///
    /// # Errors
    /// [`ValuerError`].
    fn value_and_aggregate(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
    ) -> Result<ValuationOutput, ValuerError>;

    /// The same from a provider's transcript, of which a part is drawn with this seed and computed again. `None`
    /// if this valuer computes every round itself.
    ///
    /// # Errors
    /// [`ValuerError`] if the transcript is not accepted: the caller then computes the round.
    fn replay(
        &mut self,
        _order: &WorkOrder,
        _drawn: &[u32],
        _spec: &TaskSpec,
        _blobs: &BlobStore,
        _transcript: (&[u8], u64),
    ) -> Result<Option<ValuationOutput>, ValuerError> {
        Ok(None)
    }
}

/// Why a work order cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum ValuerError {
    /// The updates cannot be valued or aggregated: a property of the inputs, the same on every
    /// machine.
    #[error("the round cannot be valued: {0}")]
    CannotBeValued(String),
    /// There is no scratch space, or a read failed: the caller retries without a limit.
    #[error("the valuation waits for scratch space, a readable disk or a trainer: {0}")]
    Transient(String),
    /// A fault of this machine; another attempt may succeed.
    #[error("the valuation failed: {0}")]
    Fault(String),
}

impl From<Rejection> for ValuerError {
    fn from(rejection: Rejection) -> Self {
        Self::CannotBeValued(rejection.to_string())
    }
}

impl From<BlobError> for ValuerError {
    fn from(error: BlobError) -> Self {
        match RetryReason::from(error) {
            RetryReason::Failed(why) => Self::Fault(why),
            RetryReason::Transient(why) => Self::Transient(why),
        }
    }
}

/// The default valuer: [`florin_work::value_and_aggregate`] on a learning engine.
pub struct WorkValuer {
    engine: Box<dyn Engine>,
    scratch_space: ScratchSpace,
    /// The graph of the task that was valued last.
    graph: Option<(TaskId, GraphModel)>,
    /// Parts of 32 of a transcript that are computed again.
    parts: u32,
}

impl WorkValuer {
    /// Creates a valuer on `engine`; `room` is the scratch space for a round's decoded updates.
    #[must_use]
    pub fn new(engine: Box<dyn Engine>, scratch_space: ScratchSpace) -> Self {
        Self { engine, scratch_space, graph: None, parts: VALUATION_PARTS_DEFAULT }
    }

    /// The same with another number of parts of a transcript, of 32, that are computed again. With all of them
    /// it computes every round itself.
    #[must_use]
    pub fn with_parts(mut self, parts: u32) -> Self {
        self.parts = parts;
        self
    }

    fn load_graph(&mut self, spec: &TaskSpec, blobs: &BlobStore) -> Result<(), ValuerError> {
        let id = spec.id();
        if self.graph.as_ref().is_none_or(|(task, _)| *task != id) {
            self.graph = None;
            let read = |digest, _| Ok::<_, ValuerError>(blobs.read(digest)?);
            self.graph = florin_work::load_graph(spec, read)?.map(|graph| (id, graph));
        }
        Ok(())
    }
}

impl WorkValuer {
    /// Calls `value` with the inputs of an order.
    fn with_inputs(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
        value: impl FnOnce(&ValuationInputs<'_>, &mut dyn Engine) -> Result<ValuationOutput, WorkError>,
    ) -> Result<ValuationOutput, ValuerError> {
        self.load_graph(spec, blobs)?;
        let base = blobs.read(order.base_model)?;
        let shown = blobs.read(order.disclosed_rows)?;
        let previous = order.previous_models.iter().map(|digest| blobs.map(*digest));
        let previous = previous.collect::<Result<Vec<_>, _>>()?;
        let updates = order.entries.iter().map(|entry| blobs.map(entry.update));
        let updates = updates.collect::<Result<Vec<_>, _>>()?;
        let last = order.earlier_updates.iter().map(|(_, digest)| blobs.map(*digest));
        let last = last.collect::<Result<Vec<_>, _>>()?;
        let earlier = order.earlier_rows.iter().map(|digest| blobs.map(*digest));
        let earlier = earlier.collect::<Result<Vec<_>, _>>()?;
        let inputs = ValuationInputs {
            spec,
            graph: self.graph.as_ref().map(|(_, graph)| graph),
            base: &base,
            row_indices: drawn,
            disclosed_rows: &shown,
            entries: &order.entries,
            updates: &updates,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &order.earlier_updates, bytes: &last },
            earlier_rows: &earlier,
            scratch_space: &self.scratch_space,
        };
        value(&inputs, self.engine.as_mut()).map_err(|error| {
            if let Some(failure) = error.trainer_failure() {
                // A failure of a program may be this machine's alone, and its operator can accept it later.
                return match failure.is_refusal() {
                    true => ValuerError::Transient(error.to_string()),
                    false => ValuerError::Fault(error.to_string()),
                };
            }
            match error {
                WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_) => {
                    ValuerError::CannotBeValued(error.to_string())
                }
                WorkError::ScratchSpace(_) => ValuerError::Transient(error.to_string()),
                _ => ValuerError::Fault(error.to_string()),
            }
        })
    }
}

impl Valuer for WorkValuer {
    fn value_and_aggregate(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
    ) -> Result<ValuationOutput, ValuerError> {
        self.with_inputs(order, drawn, spec, blobs, florin_work::value_and_aggregate)
    }

    fn replay(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &BlobStore,
        (transcript, seed): (&[u8], u64),
    ) -> Result<Option<ValuationOutput>, ValuerError> {
        if self.parts >= TRANSCRIPT_PARTS {
            return Ok(None);
        }
        let sample = TranscriptSample { seed, parts_of_32: self.parts };
        let replay = |inputs: &ValuationInputs<'_>, engine: &mut dyn Engine| {
            florin_work::replay_transcript(inputs, transcript, sample, engine)
        };
        self.with_inputs(order, drawn, spec, blobs, replay).map(Some)
    }
}

/// The work records of a round, compared with the coordinator's own result.
#[derive(Debug)]
pub(super) struct RecordMatch {
    /// The record with an accepted transcript, or else the first one, that agrees with it.
    pub(super) paid: Option<Digest>,
    /// The wrong records before that one.
    pub(super) wrong_records: Vec<Digest>,
}

/// Finds the record that is paid, `proven` being the one with an accepted transcript. Records behind it are not compared.
pub(super) fn match_records(
    ours: &WorkResult,
    records: &[ReceivedRecord],
    proven: Option<Digest>,
) -> RecordMatch {
    let is_right = |record: &ReceivedRecord| is_same_result(ours, &record.signed.body);
    let is_proven = |record: &ReceivedRecord| Some(record.digest) == proven && is_right(record);
    let at = records.iter().position(is_proven).or_else(|| records.iter().position(is_right));
    let before = records.iter().take(at.unwrap_or(records.len()));
    let wrong = before.filter(|record| !record_agrees(ours, &record.signed.body));
    RecordMatch {
        paid: at.and_then(|at| records.get(at)).map(|record| record.digest),
        wrong_records: wrong.map(|record| record.digest).collect(),
    }
}

/// Whether a record has this result.
pub(super) fn is_same_result(ours: &WorkResult, record: &WorkRecord) -> bool {
    florin_work::compare_results(ours, &record.result).is_ok()
}

/// Whether a record agrees with the coordinator's own result; logs the mismatch if not.
pub(super) fn record_agrees(ours: &WorkResult, record: &WorkRecord) -> bool {
    let difference = florin_work::compare_results(ours, &record.result).err();
    if let Some(difference) = &difference {
        let provider = record.provider;
        tracing::warn!(%provider, %difference, "a work record is wrong and earns no pay");
    }
    difference.is_none()
}

/// One round to value.
#[derive(Clone, Debug)]
pub struct ValuationJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The task's specification.
    pub spec: TaskSpec,
    /// The work order.
    pub order: WorkOrder,
    /// The indices of the rows drawn for the round.
    pub drawn_rows: Vec<u32>,
    /// The work records so far.
    pub records: Vec<ReceivedRecord>,
}

/// The parts of a coordinator that a valuation thread uses.
#[derive(Clone)]
pub(super) struct ValuerLink {
    pub(super) blobs: Arc<BlobStore>,
    pub(super) transcripts: Transcripts,
    pub(super) metrics: ValuationMetrics,
    pub(super) node: NodeSigner,
    pub(super) mailbox: EngineSender,
}

/// A valuation thread.
pub(super) fn run(jobs: Receiver<ValuationJob>, mut valuer: Box<dyn Valuer>, link: &ValuerLink) {
    let mut jobs = RetryQueue::new(jobs);
    while let Some(job) = jobs.next() {
        let what = &job.job;
        match run_job(what, job.failures, valuer.as_mut(), link) {
            Ok(()) => {}
            Err(why) => {
                tracing::error!(
                    task = %what.task, round = %what.round, reason = %why, "valuation failed: will retry"
                );
                jobs.retry(job, &why);
            }
        }
    }
}

fn run_job(
    job: &ValuationJob,
    failures: u32,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Result<(), RetryReason> {
    let (task, round) = (job.task, job.round);
    let mut transcripts = link.transcripts.take_first(task, round);
    let done = value_round(job, failures, &mut transcripts, valuer, link);
    match done {
        Ok(()) => link.transcripts.close(task, round),
        Err(_) => link.transcripts.put_back(task, round, transcripts),
    }
    done
}

/// Values a round by a transcript, or else in full. Transcripts that another attempt can read are left.
fn value_round(
    job: &ValuationJob,
    failures: u32,
    transcripts: &mut Vec<HeldTranscript>,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Result<(), RetryReason> {
    let (task, round) = (job.task, job.round);
    let ValuerLink { blobs, mailbox, .. } = link;
    let give_up = |why: String| {
        tracing::error!(%task, %round, reason = %why, "abandoning the round");
        classify_reply(mailbox.write(Event::ValuationFailed { task, round }).map(|_| ()))
    };
    let send = |outcome: ValuationOutput, source: ResultSource| {
        // The model is durable before the report that references it.
        trace::store_blob(task, round).in_scope(|| blobs.put(&outcome.model))?;
        Ok::<_, RetryReason>(mailbox.send_result(task, round, outcome.result, source))
    };
    let replayed = trace::work("value", task, round)
        .in_scope(|| replay_records(job, transcripts, valuer, link));
    if let Some((replayed, record)) = replayed {
        match send(replayed, ResultSource::Transcript(record))? {
            Err(refused) if refused.code == ErrorCode::ConflictingMessage => {
                tracing::info!(%task, %round, why = %refused, "valuing the round");
            }
            answer => {
                link.metrics.replayed.inc();
                tracing::info!(%task, %round, "valued by the transcript of a provider");
                return classify_reply(answer);
            }
        }
    }
    // A panic of the valuer fails this round only.
    let tried = AssertUnwindSafe(|| {
        let _span = trace::work("value", task, round).entered();
        compute(job, valuer, link)
    });
    let tried = catch_unwind(tried)
        .unwrap_or_else(|_| Err(ValuerError::Fault("the valuation panicked".to_owned())));
    match tried {
        Ok(outcome) => {
            transcripts.extend(link.transcripts.take_later(task, round));
            let proven = first_proven(job, transcripts, &outcome.result, valuer, link);
            match send(outcome, ResultSource::Computed(proven))? {
                Err(refused) if refused.code == ErrorCode::WorkResultMismatch => {
                    give_up(refused.to_string())
                }
                answer => classify_reply(answer),
            }
        }
        Err(ValuerError::CannotBeValued(why)) => give_up(why),
        Err(ValuerError::Fault(why)) if failures + 1 >= ATTEMPTS_MAX => give_up(why),
        Err(ValuerError::Transient(why)) => Err(RetryReason::Transient(why)),
        Err(error) => Err(RetryReason::Failed(error.to_string())),
    }
}

fn compute(
    job: &ValuationJob,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Result<ValuationOutput, ValuerError> {
    link.metrics.computed.inc();
    valuer.value_and_aggregate(&job.order, &job.drawn_rows, &job.spec, &link.blobs)
}

/// The result of the first record with a transcript, if that is accepted and has it. A transcript that is not accepted decides
/// nothing: the coordinator's own valuation then judges all records. All but refused transcripts are left.
fn replay_records(
    job: &ValuationJob,
    transcripts: &mut Vec<HeldTranscript>,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Option<(ValuationOutput, Digest)> {
    let mut results = job.records.iter().map(|record| &record.signed.body.result);
    if let Some(first) = results.next()
        && results.any(|other| florin_work::compare_results(first, other).is_err())
    {
        // Records that contradict each other are judged by all of the valuation.
        return None;
    }
    // The first one only: each further one would be another try at the draws.
    let at = transcripts.iter().position(|it| record_of(it, &job.records).is_some())?;
    let transcript = transcripts.get_mut(at)?;
    let record = record_of(transcript, &job.records)?;
    let replayed = replay(job, transcript, &record.signed.body.result, valuer, link);
    if matches!(replayed, Replayed::Refused) {
        transcripts.remove(at);
    }
    replayed.accepted().map(|output| (output, record.digest))
}

/// The first record whose transcript is accepted, behind the coordinator's own valuation: a record with a transcript
/// takes longer, and is paid before those without one. Here the draws decide nothing but that. Only transcripts of
/// records with the right result are read, and none if one record alone has it.
fn first_proven(
    job: &ValuationJob,
    transcripts: &mut Vec<HeldTranscript>,
    ours: &WorkResult,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Option<Digest> {
    let mut records = link.mailbox.open_records(job.task);
    records.retain(|record| is_same_result(ours, &record.signed.body));
    if records.len() < 2 {
        return None;
    }
    transcripts.retain(|transcript| record_of(transcript, &records).is_some());
    let mut at = 0;
    while let Some(transcript) = transcripts.get_mut(at) {
        match replay(job, transcript, ours, valuer, link) {
            Replayed::Accepted(_) => return Some(transcript.record()),
            Replayed::Refused => drop(transcripts.remove(at)),
            Replayed::Postponed => at += 1,
        }
    }
    None
}

fn record_of<'a>(
    transcript: &HeldTranscript,
    records: &'a [ReceivedRecord],
) -> Option<&'a ReceivedRecord> {
    records.iter().find(|record| record.digest == transcript.record())
}

/// The end of a replay.
enum Replayed {
    /// It has the expected result.
    Accepted(Box<ValuationOutput>),
    /// It has not, or a drawn part of it is false.
    Refused,
    /// This machine could not read it now, or reads none.
    Postponed,
}

impl Replayed {
    fn accepted(self) -> Option<ValuationOutput> {
        match self {
            Self::Accepted(output) => Some(*output),
            _ => None,
        }
    }
}

/// Replays a transcript. The log has the reason if it is refused.
fn replay(
    job: &ValuationJob,
    transcript: &mut HeldTranscript,
    expected: &WorkResult,
    valuer: &mut dyn Valuer,
    link: &ValuerLink,
) -> Replayed {
    let (task, round, provider) = (job.task, job.round, transcript.provider());
    let refused = |why: String| {
        link.metrics.refused.inc();
        tracing::warn!(%task, %round, %provider, %why, "a transcript is not accepted");
        Replayed::Refused
    };
    let seed = transcript.seed(&link.node);
    let read = transcript.read().map_err(ValuerError::from);
    let replayed = AssertUnwindSafe(|| {
        let (order, drawn) = (&job.order, &job.drawn_rows);
        let replay =
            |bytes: Vec<u8>| valuer.replay(order, drawn, &job.spec, &link.blobs, (&bytes, seed));
        read.and_then(replay)
    });
    let replayed = catch_unwind(replayed)
        .unwrap_or_else(|_| Err(ValuerError::Fault("the replay panicked".to_owned())));
    match replayed {
        Ok(Some(output)) if florin_work::compare_results(&output.result, expected).is_ok() => {
            tracing::info!(%task, %round, %provider, "the transcript of a provider is accepted");
            Replayed::Accepted(Box::new(output))
        }
        Ok(Some(_)) => refused("it has another result".to_owned()),
        Ok(None) => Replayed::Postponed,
        Err(ValuerError::Transient(why)) => {
            tracing::warn!(%task, %round, %provider, %why, "a transcript cannot be read now");
            Replayed::Postponed
        }
        Err(error) => refused(error.to_string()),
    }
}

/// Decides from the engine's reply whether to retry: a journal failure is transient; any other
/// rejection is final, because the engine does not need the event any more.
pub(super) fn classify_reply(answer: Result<(), Rejection>) -> Result<(), RetryReason> {
    use florin_protocol::ErrorCode::{Internal, StorageFull};
    match answer {
        Err(rejection) if matches!(rejection.code, StorageFull | Internal) => {
            Err(RetryReason::Transient(rejection.to_string()))
        }
        _ => Ok(()),
    }
}
