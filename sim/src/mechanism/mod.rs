//! How a round becomes scores. The market's own way values updates and keeps out what harms; the others are what it is
//! held against. Whatever the way, scores become money through the market's one rule, up to the same budget.

mod shares;
mod tokenised;

use florin_learning::Reference;
use florin_protocol::{Evidence, Micro, Scored, Treatment, Valuation, WorkResult, blob_digest};
use florin_work::{Inputs, Outcome, WorkError, carry_out};
use serde::{Deserialize, Serialize};

pub use tokenised::{Defects, Moves, RoundSeen, Tokenised, Tokens};

/// How a round is paid.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
pub enum Mechanism {
    /// The market's own: each update by what it did to the loss, by the path value; what harms beyond its error is kept
    /// out and debited.
    #[default]
    Own,
    /// Everybody the same.
    Equal,
    /// By rows, as far as they are bonded.
    Rows,
    /// By what would be missing without the update, if that is positive.
    LeaveOneOut,
    /// By GTG-Shapley as its authors published it, if that is positive.
    Gtg,
    /// By the cosine with the mean of all updates, if that is positive.
    Cosine,
    /// By place in the order of leave-one-out: the best of n gets n parts, the last one.
    Rank,
    /// Tokenised incentive: members pay to take part, and are paid back by improvement, place and attendance.
    Tokenised(Tokenised),
}

impl Mechanism {
    /// Its name in results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Equal => "equal",
            Self::Rows => "rows",
            Self::LeaveOneOut => "leave_one_out",
            Self::Gtg => "gtg",
            Self::Cosine => "cosine",
            Self::Rank => "rank",
            Self::Tokenised(_) => "tokenised",
        }
    }
}

/// Who judges a round: a mechanism, and whether the market's own keeps out what harms.
#[derive(Clone, Debug, PartialEq)]
pub struct Judge {
    /// How the round is paid.
    pub mechanism: Mechanism,
    /// Whether the market's own way keeps out updates that harm beyond their error.
    pub keeps_out: bool,
}

impl Judge {
    /// Values and aggregates a round.
    ///
    /// # Errors
    /// [`WorkError`].
    pub fn value(
        &self,
        inputs: &Inputs<'_>,
        engine: &mut Reference,
        seed: u64,
    ) -> Result<Outcome, WorkError> {
        match &self.mechanism {
            Mechanism::Own if self.keeps_out => carry_out(inputs, engine),
            Mechanism::Own => {
                // Nobody's score is so far below its error.
                let mut lax = inputs.spec.clone();
                lax.budget.withheld = Micro(u64::MAX);
                carry_out(&Inputs { spec: &lax, ..*inputs }, engine)
            }
            other => shares::value(inputs, engine, other, seed),
        }
    }
}

/// A result that states scores and nothing that supports them.
fn result_of(
    scores: Vec<Scored>,
    [before, after]: [i64; 2],
    metrics: florin_protocol::Metrics,
    model: &[u8],
) -> WorkResult {
    let valuation = Valuation {
        loss_before_nano: before,
        loss_after_nano: after,
        total_nano: before - after,
        gap_nano: 0,
        scores,
        units: 2,
        evidence: Evidence::default(),
    };
    WorkResult { valuation, metrics, model: blob_digest(model) }
}

/// Nothing was done to an update.
const UNTREATED: Treatment = Treatment { clip: Micro::ONE, repeats: None };
