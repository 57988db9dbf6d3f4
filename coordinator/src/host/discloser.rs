//! The disclosure thread: shows a round's rows, with the proofs that they are those the task committed to.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use florin_protocol::{Digest, Round, TaskId, TaskSpec};
use florin_work::Committed;

use super::Mailbox;
use super::delayed::{Again, Delayed};
use super::valuer::{TRIES_MAX, told};
use florin_engine::Event;
use florin_store::Blobs;

/// One round's rows to be shown.
#[derive(Clone, Debug)]
pub struct ShowJob {
    /// The task.
    pub task: TaskId,
    /// The round.
    pub round: Round,
    /// What the task asks for.
    pub spec: TaskSpec,
    /// Where all the rows are.
    pub holdout: Digest,
    /// Which of them were drawn.
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
                tracing::error!(%task, %round, %why, "no rows can be shown: the round is abandoned");
                Event::ValuationFailed { task, round }
            }
            Err(why) => {
                tracing::error!(%task, %round, %why, "the round's rows cannot be shown yet");
                jobs.again(job, &why);
                continue;
            }
        };
        if let Err(why) = told(mailbox.write(event).map(|_| ())) {
            tracing::error!(%task, %round, %why, "disclosure");
            jobs.again(job, &why);
        }
    }
}

/// Makes the bytes and keeps them: durable before anybody is told of them.
fn show(job: &ShowJob, blobs: &Blobs) -> Result<Digest, Again> {
    let all = blobs.read(job.holdout)?;
    let all = Committed::read(&job.spec, &all).map_err(|error| Again::Failed(error.to_string()))?;
    let shown = all.show(&job.drawn);
    let shown =
        shown.ok_or_else(|| Again::Failed("a row was drawn that is not there".to_owned()))?;
    Ok(blobs.put(&shown.to_bytes())?)
}
