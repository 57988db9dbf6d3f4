//! The disclosure thread: discloses a round's holdout rows with the proofs that they belong to the
//! task's committed holdout.

use std::sync::Arc;

use crossbeam_channel::Receiver;
use florin_protocol::{Digest, RoundNumber, TaskId, TaskSpec};
use florin_work::CommittedHoldout;

use super::EngineSender;
use super::retry_queue::{RetryQueue, RetryReason};
use super::valuer::{ATTEMPTS_MAX, classify_reply};
use crate::trace;
use florin_engine::Event;
use florin_store::BlobStore;

/// One round whose rows are to be disclosed.
#[derive(Clone, Debug)]
pub struct DisclosureJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The task's specification.
    pub spec: TaskSpec,
    /// The blob with all rows of the holdout.
    pub holdout: Digest,
    /// The indices of the rows drawn for the round.
    pub drawn_rows: Vec<u32>,
}

/// The disclosure thread.
pub(super) fn run(jobs: Receiver<DisclosureJob>, blobs: &Arc<BlobStore>, mailbox: &EngineSender) {
    let mut jobs = RetryQueue::new(jobs);
    while let Some(job) = jobs.next() {
        let (task, round) = (job.job.task, job.job.round);
        let work = trace::work("disclose", task, round);
        let event = match work.in_scope(|| disclose(&job.job, blobs)) {
            Ok(shown) => Event::RowsDisclosed { task, round, rows: shown },
            Err(RetryReason::Failed(why)) if job.failures + 1 >= ATTEMPTS_MAX => {
                tracing::error!(%task, %round, reason = %why, "no disclosure: abandoning the round");
                Event::ValuationFailed { task, round }
            }
            Err(why) => {
                tracing::error!(%task, %round, reason = %why, "no disclosure yet: will retry");
                jobs.retry(job, &why);
                continue;
            }
        };
        if let Err(why) = classify_reply(mailbox.write(event).map(|_| ())) {
            tracing::error!(%task, %round, reason = %why, "disclosure not recorded yet: will retry");
            jobs.retry(job, &why);
        }
    }
}

/// Encodes the disclosed rows and stores them as a blob, which is durable before the engine
/// references it.
fn disclose(job: &DisclosureJob, blobs: &BlobStore) -> Result<Digest, RetryReason> {
    let all = blobs.read(job.holdout)?;
    let all = CommittedHoldout::decode(&job.spec, &all)
        .map_err(|error| RetryReason::Failed(error.to_string()))?;
    let shown = all.disclose(&job.drawn_rows);
    let shown =
        shown.ok_or_else(|| RetryReason::Failed("a drawn row is not in the holdout".to_owned()))?;
    let store = trace::store_blob(job.task, job.round);
    Ok(store.in_scope(|| blobs.put(&shown.to_bytes()))?)
}
