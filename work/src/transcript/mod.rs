//! The transcript of a round's valuation: every number that an engine computed for it, in the order in which
//! the valuation asks for them. A provider records it, and the coordinator replays it.
//!
//! A replay runs the same valuation, so that it alone decides what is evaluated, and reads each evaluation
//! from the transcript instead of computing it. Of each one it computes a random part again:
//!
//! * Losses, derivatives and right predictions are per row, or per group of rows ([`RowGroups`]). The replay
//!   draws a few groups and evaluates their rows alone.
//! * The gradient of the mean loss is stated whole. Each group states the products of its own gradient with
//!   random numbers that follow from the stated gradient, so a wrong gradient needs a wrong product of some group,
//!   or a great many tries, and the products of the drawn groups are computed again. (The idea is Freivalds' check of a matrix
//!   product: R. Freivalds, *Probabilistic Machines Can Use Less Running Time*, IFIP 1977.)
//! * The training of the public baseline states its states between segments, and the replay trains a drawn
//!   segment again. It must end with the same bits.
//!
//! The draws are fresh for each evaluation, from a seed that is secret while the transcript is written. With
//! `d` of `n` groups drawn, an evaluation with `m` forged groups passes with a probability of
//! `C(n − m, d) / C(n, d)`, and several forged evaluations with the product.
//!
//! Decoding, the comparison of updates, the aggregation and all sums are computed here and not read.

mod bytes;
mod gradient;
mod record;
mod replay;
mod sample;
#[cfg(test)]
mod tests;

use florin_contribution::GameError;
use florin_learning::Engine;
use florin_protocol::RoundNumber;

use crate::codec::model_bytes;
use crate::convert::training;
use crate::graph::BASELINE_TRAININGS;
use crate::round::{DecodedRound, ValuationInputs, ValuationOutput, WorkError, value_decoded};
pub use bytes::TRANSCRIPT_BYTES_MAX;
use bytes::{Reader, Writer};
use record::TranscriptRecorder;
use replay::Replay;
pub use sample::{TRANSCRIPT_PARTS, TranscriptSample};

/// Segments of a training of the public baseline, at most the number of its steps.
const BASELINE_SEGMENTS: u64 = 16;
/// Largest difference between a stated number and the computed one, for numbers below 1, and relative to larger
/// ones. Engines differ by about 1e-12; all stated numbers together move no sum by a nano-nat.
const TOLERANCE: f64 = 1e-11;

/// A valuation with its transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedRound {
    /// The result and the model.
    pub output: ValuationOutput,
    /// The transcript. `None` for a model whose gradient is not known, for a large cohort of which groups of
    /// rows are valued, for a large model, for a baseline that diverges, and beyond [`TRANSCRIPT_BYTES_MAX`].
    pub transcript: Option<Vec<u8>>,
}

/// Why a replay does not accept a transcript.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TranscriptError {
    /// It has no evaluation of this kind, or ends before it.
    #[error("the transcript ends before {0}")]
    Truncated(&'static str),
    /// There are bytes after the last evaluation.
    #[error("the transcript has {0} bytes after the last evaluation")]
    TrailingBytes(usize),
    /// A number is NaN or infinite, or a state is none of its training.
    #[error("the transcript has no valid {what}: {why}")]
    Invalid {
        /// The evaluation.
        what: &'static str,
        /// The reason.
        why: String,
    },
    /// A number differs from the computed one.
    #[error("{what}: the transcript states {stated}, recomputed {recomputed}")]
    Differs {
        /// The evaluation.
        what: &'static str,
        /// The stated number.
        stated: String,
        /// The computed one.
        recomputed: String,
    },
    /// The round has an evaluation that no transcript contains.
    #[error("the valuation of this round has no transcript")]
    NoTranscript,
}

impl From<TranscriptError> for WorkError {
    fn from(error: TranscriptError) -> Self {
        Self::Transcript(Box::new(error))
    }
}

impl From<TranscriptError> for GameError {
    fn from(error: TranscriptError) -> Self {
        Self::new(error)
    }
}

/// Values and aggregates a round as [`value_and_aggregate`](crate::value_and_aggregate), and records the
/// transcript. The result differs from that of `value_and_aggregate` by rounding.
///
/// # Errors
/// [`WorkError`].
pub fn value_and_record(
    inputs: &ValuationInputs<'_>,
    engine: &mut dyn Engine,
) -> Result<RecordedRound, WorkError> {
    let opened = DecodedRound::decode(inputs)?;
    let slices = opened.slices();
    let mut writer = Writer::default();
    if baseline_bytes(inputs) > TRANSCRIPT_BYTES_MAX as u64 {
        writer.give_up();
    }
    let mut recorder = TranscriptRecorder::new(opened.source(&slices, engine), writer);
    let output = value_decoded(inputs, &opened, &mut recorder)?;
    Ok(RecordedRound { output, transcript: recorder.finish() })
}

/// The most bytes of the states of the public baseline: known before the valuation, so that no time is spent on a transcript
/// that would become too long.
fn baseline_bytes(inputs: &ValuationInputs<'_>) -> u64 {
    let spec = inputs.spec;
    if spec.rounds.baseline_epochs == 0 {
        return 0;
    }
    let tensors = 1 + training(spec, RoundNumber::FIRST).state_tensors();
    let states = BASELINE_TRAININGS.saturating_mul(BASELINE_SEGMENTS).saturating_mul(tensors);
    states.saturating_mul(model_bytes(spec))
}

/// Values and aggregates a round from a transcript, of which it computes a sample again.
///
/// # Errors
/// [`WorkError`], with a [`TranscriptError`] as its cause if the transcript is not accepted. Numbers of a
/// transcript can cause any other error of a valuation, so no error means that the round cannot be valued.
pub fn replay_transcript(
    inputs: &ValuationInputs<'_>,
    transcript: &[u8],
    sample: TranscriptSample,
    engine: &mut dyn Engine,
) -> Result<ValuationOutput, WorkError> {
    let opened = DecodedRound::decode(inputs)?;
    let slices = opened.slices();
    let source = opened.source(&slices, engine);
    let mut replay = Replay::new(source, Reader::new(transcript), sample);
    let output = value_decoded(inputs, &opened, &mut replay)?;
    replay.finish()?;
    Ok(output)
}
