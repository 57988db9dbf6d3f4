//! The disclosure thread: discloses a round's holdout rows with the proofs that they belong to the
//! task's committed holdout.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use florin_protocol::{Digest, RoundNumber, TaskId, TaskSpec};
use florin_work::CommittedHoldout;

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::valuer::{TRIES_MAX, told};
use florin_engine::Event;
use florin_store::Blobs;

/// One round whose rows are to be disclosed.
#[derive(Clone, Debug)]
pub struct ShowJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: RoundNumber,
    /// The task's specification.
    pub spec: TaskSpec,
    /// The blob with all rows of the holdout.
    pub holdout: Digest,
    /// The indices of the rows drawn for the round.
    pub drawn: Vec<u32>,
}

/// The disclosure thread.
pub(super) fn work(jobs: Receiver<ShowJob>, blobs: &Arc<Blobs>, mailbox: &Mailbox) {
    let mut jobs = Delayed::new(jobs);
    while let Some(job) = jobs.next() {
        let (task, round) = (job.what.task, job.what.round);
        let event = match show(&job.what, blobs) {
            Ok(shown) => Event::Disclosed { task, round, shown },
            Err(Again::Failed(why)) if job.failures + 1 >= TRIES_MAX => {
                tracing::error!(%task, %round, %why, "no disclosure: abandoning the round");
                Event::ValuationFailed { task, round }
            }
            Err(why) => {
                tracing::error!(%task, %round, %why, "no disclosure yet: will retry");
                jobs.again(job, &why);
                continue;
            }
        };
        if let Err(why) = told(mailbox.write(event).map(|_| ())) {
            tracing::error!(%task, %round, %why, "disclosure not recorded yet: will retry");
            jobs.again(job, &why);
        }
    }
}

/// Encodes the disclosed rows and stores them as a blob, which is durable before the engine
/// references it.
fn show(job: &ShowJob, blobs: &Blobs) -> Result<Digest, Again> {
    let all = blobs.read(job.holdout)?;
    let all = CommittedHoldout::decode(&job.spec, &all)
        .map_err(|error| Again::Failed(error.to_string()))?;
    let shown = all.disclose(&job.drawn);
    let shown =
        shown.ok_or_else(|| Again::Failed("a drawn row is not in the holdout".to_owned()))?;
    Ok(blobs.put(&shown.to_bytes())?)
}
