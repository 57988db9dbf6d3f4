//! The rows of a round: the participant's own, or a sample of those that a coupled producer has
//! written so far.

use std::time::Duration;

use florin_learning::Dataset;
use florin_protocol::{Digest, RoundNumber, TaskPhase, TaskView};
use serde::{Deserialize, Serialize};

use super::state_machine::RoundStage;
use super::{Agent, AgentError};
use crate::event::ParticipantEvent;
use crate::privacy::NoiseError;
use crate::producer::{ProducerNews, SamplePurpose};
use crate::trace::Work;

/// The code of a round that ended while there were too few rows.
const ROWS_MISSING: &str = "ROWS_MISSING";

/// The state of the rows that change from round to round.
#[derive(Debug, Default)]
pub(super) struct ProducedRows {
    /// The sample of the last training.
    sample: Option<Dataset>,
    /// Whether the address was shown.
    is_shown: bool,
    /// The round for which the wait was shown; `Some(None)` is the wait before the bond.
    awaited: Option<Option<RoundNumber>>,
}

impl ProducedRows {
    /// The rows of the last training, or those of a participant without a producer.
    pub(super) fn or<'d>(&'d self, own: &'d Dataset) -> &'d Dataset {
        self.sample.as_ref().unwrap_or(own)
    }
}

/// The number of rows of an update, on disk before the update is.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SampledRows {
    /// The update.
    pub(super) update: Digest,
    /// The rows that it was trained on.
    pub(super) rows: u64,
}

impl Agent<'_, '_> {
    /// The rows of this round.
    pub(super) fn data(&self) -> &Dataset {
        self.produced.or(self.context.data)
    }

    /// The rows that the bond should cover: with a producer as many as any round may have.
    pub(super) fn bonded_rows(&self) -> u64 {
        match self.context.producer {
            Some(feed) => feed.settings().capacity as u64,
            None => self.context.data.rows() as u64,
        }
    }

    /// The rows of the longest training: with a producer those of a full reservoir, of which the
    /// rows that are there stand for the others.
    pub(super) fn rows_of_longest_training(&self) -> Result<Option<Dataset>, AgentError> {
        let Some(feed) = self.context.producer else { return Ok(None) };
        let sample = self.data();
        let rows: Vec<usize> = (0..sample.rows()).cycle().take(feed.settings().capacity).collect();
        Ok(Some(sample.subset(&rows)?))
    }

    /// Refuses noise for rows of a producer: the accountant's ε is for rows that all rounds share.
    pub(super) fn check_producer(&self) -> Result<(), AgentError> {
        match self.context.producer.is_some() && self.config.privacy.is_some() {
            true => Err(NoiseError::Producer.into()),
            false => Ok(()),
        }
    }

    /// Takes the rows on which a first bond is quoted. False if there are too few yet.
    pub(super) fn take_rows_before_bond(&mut self) -> Result<bool, AgentError> {
        let (ledger, task, me) = (self.context.ledger, self.config.task, self.me);
        if self.context.producer.is_none() {
            return Ok(true);
        }
        self.show_address();
        // A bond that is there was quoted; the update of a round may wait for its commit.
        let is_bonded = !self.with_ledger(|| ledger.bond_of(task, me))?.amount.is_zero();
        Ok(is_bonded || self.take_rows(None)?)
    }

    /// Takes the rows of a round, `None` for those before the bond. False if there are too few yet:
    /// the caller looks at the task again, and repeats the call.
    pub(super) fn take_rows(&mut self, round: Option<RoundNumber>) -> Result<bool, AgentError> {
        let Some(feed) = self.context.producer else { return Ok(true) };
        let purpose = match round {
            Some(_) => SamplePurpose::Training,
            None => SamplePurpose::Quote,
        };
        let mut limit = Duration::ZERO;
        let mut span = None;
        if !feed.is_ready() {
            self.show_wait(round);
            limit = Duration::from_millis(self.config.poll_ms.max(1));
            let of = round.unwrap_or(self.current.round);
            span = Some(Work::AwaitRows.span(self.config.task, of).entered());
        }
        let sample = feed.take(purpose, limit)?;
        drop(span);
        for refusal in feed.take_refusals() {
            self.emit_news(ProducerNews::Refused { refusal });
        }
        let Some(sample) = sample else { return Ok(false) };
        let rows = sample.rows() as u64;
        self.produced.sample = Some(sample);
        self.produced.awaited = None;
        if let Some(round) = round {
            self.emit_news(ProducerNews::Taken { round, rows, counts: feed.counts() });
        }
        Ok(true)
    }

    /// The training of a round has ended: further rows are read.
    pub(super) fn resume_producer(&self) {
        if let Some(feed) = self.context.producer {
            feed.resume();
        }
    }

    /// Fails a round that ended while rows were missing.
    pub(super) fn note_missed_rows(&mut self, view: &TaskView) {
        let Some(Some(round)) = self.produced.awaited else { return };
        if view.round == round && view.phase == TaskPhase::Committing {
            return;
        }
        self.produced.awaited = None;
        if self.current.round == round && self.current.stage == RoundStage::NotStarted {
            let why = "the producer wrote too few rows before the commits were closed: see \
                --min-rows and --new-rows";
            self.fail_round(ROWS_MISSING, &why);
        }
    }

    /// Stores the number of rows of an update that was trained on a sample, before the update.
    pub(super) fn store_rows(&self, round: RoundNumber, update: Digest) -> Result<(), AgentError> {
        if self.context.producer.is_none() {
            return Ok(());
        }
        let rows = self.data().rows() as u64;
        Ok(self.store.write_rows(round, &SampledRows { update, rows })?)
    }

    /// The number of rows that an update was trained on. `None` if it was trained on a sample of
    /// which the number is lost.
    pub(super) fn rows_of_update(
        &self,
        round: RoundNumber,
        update: Digest,
    ) -> Result<Option<u64>, AgentError> {
        let stored = self.store.rows(round)?.filter(|stored| stored.update == update);
        let own = self.context.producer.is_none().then(|| self.context.data.rows() as u64);
        Ok(stored.map(|stored| stored.rows).or(own))
    }

    fn show_address(&mut self) {
        let Some(feed) = self.context.producer else { return };
        if !std::mem::replace(&mut self.produced.is_shown, true) {
            let at = feed.address().to_owned();
            self.emit_news(ProducerNews::Listening { at });
        }
    }

    fn show_wait(&mut self, round: Option<RoundNumber>) {
        let Some(feed) = self.context.producer else { return };
        if self.produced.awaited.replace(round) == Some(round) {
            return;
        }
        let settings = feed.settings();
        self.emit_news(ProducerNews::Waiting {
            round,
            rows: feed.counts().rows_in_reservoir,
            rows_min: settings.rows_min as u64,
            new_rows_min: settings.new_rows_min,
        });
    }

    fn emit_news(&mut self, news: ProducerNews) {
        self.emit(&ParticipantEvent::Producer { news });
    }
}
