//! Payment mechanisms: from a round to scores. Florin's own mechanism values updates and excludes
//! harmful ones; the others are baselines. Under every mechanism the scores become money by the
//! same pay rule and within the same budget.

mod baselines;
mod refl;
mod tokenised;

use florin_learning::Reference;
use florin_protocol::{
    Micro, Preprocessing, StalenessWeight, UpdateScore, Valuation, ValuationEvidence, WorkResult,
    blob_digest,
};
use florin_work::{ValuationInputs, ValuationOutput, WorkError, model_spec, value_and_aggregate};
use serde::{Deserialize, Serialize};

use crate::scenario::StaleWeights;
pub use tokenised::{Defects, TokenMechanism, TokenRoundInput, TokenTransfers, Tokenised};

/// The mechanism that scores a round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "rule", deny_unknown_fields)]
pub enum Mechanism {
    /// Florin's own: scores each update by its share of the change of the loss (the path value). An
    /// update whose harm exceeds its error is excluded and debited.
    #[default]
    Florin,
    /// Florin's own, but negative scores are cut at zero instead of debited, and no part of a score
    /// is withheld for its error.
    CutAtZero,
    /// Equal shares.
    Equal,
    /// In proportion to the bonded rows.
    Rows,
    /// In proportion to the positive part of the leave-one-out value.
    LeaveOneOut,
    /// In proportion to the positive part of GTG-Shapley as published by its authors.
    Gtg,
    /// In proportion to the positive part of the cosine similarity with the mean of all updates.
    Cosine,
    /// In proportion to the rank by leave-one-out value: the best of n updates gets n parts, the
    /// last gets one.
    Rank,
    /// Tokenised incentive: members pay to take part and are paid back by improvement, rank and
    /// attendance.
    Tokenised(Tokenised),
}

impl Mechanism {
    /// Its name in results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Florin => "florin",
            Self::CutAtZero => "cut_at_zero",
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

/// How a round is scored: a mechanism, and whether Florin's own mechanism excludes harmful updates.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundScorer {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// Whether Florin's own mechanism excludes updates whose harm exceeds their error.
    pub excludes_harmful: bool,
    /// Weights of stale updates in place of the task's rule.
    pub stale_weights: Option<StaleWeights>,
}

impl RoundScorer {
    /// Values and aggregates a round.
    ///
    /// # Errors
    /// [`WorkError`].
    pub fn value(
        &self,
        inputs: &ValuationInputs<'_>,
        engine: &mut Reference,
        seed: u64,
    ) -> Result<ValuationOutput, WorkError> {
        match &self.mechanism {
            Mechanism::Florin => self.own_valuation(inputs, engine),
            Mechanism::CutAtZero => {
                let mut valued = self.own_valuation(inputs, engine)?;
                for score in &mut valued.result.valuation.scores {
                    score.score_nano = score.score_nano.max(0);
                    (score.error_nano, score.excluded) = (0, false);
                }
                Ok(valued)
            }
            other => baselines::value_round(inputs, engine, other, seed),
        }
    }
}

impl RoundScorer {
    fn own_valuation(
        &self,
        inputs: &ValuationInputs<'_>,
        engine: &mut Reference,
    ) -> Result<ValuationOutput, WorkError> {
        let mut spec = inputs.spec.clone();
        if !self.excludes_harmful {
            // With the maximum threshold no score is significantly negative.
            spec.budget.confidence_z = Micro(u64::MAX);
        }
        let Some(StaleWeights::Refl) = self.stale_weights else {
            return value_and_aggregate(&ValuationInputs { spec: &spec, ..*inputs }, engine);
        };
        let parameters = model_spec(&spec.model).parameters();
        let entries = refl::weighted_entries(inputs, parameters)
            .map_err(|source| WorkError::Input { what: "an update".to_owned(), source })?;
        spec.rounds.staleness.weight = StalenessWeight::Equal;
        // The entries have the task's limit already.
        spec.rounds.preprocessing.weight_cap = 0;
        let inputs = ValuationInputs { spec: &spec, entries: &entries, ..*inputs };
        value_and_aggregate(&inputs, engine)
    }
}

/// A result with scores but without evidence.
fn scores_only_result(
    scores: Vec<UpdateScore>,
    [before, after]: [i64; 2],
    metrics: florin_protocol::ModelMetrics,
    model: &[u8],
) -> WorkResult {
    let valuation = Valuation {
        loss_before_nano: before,
        loss_after_nano: after,
        total_nano: before - after,
        gap_nano: 0,
        model_loss_nano: after,
        stages: Vec::new(),
        scores,
        units: 2,
        evidence: ValuationEvidence::default(),
    };
    WorkResult { valuation, baseline: None, metrics, model: blob_digest(model) }
}

/// The preprocessing record of an update that was not changed.
const UNCHANGED: Preprocessing =
    Preprocessing { norm_factor: Micro::ONE, duplicate_of: None, weight: 1 };
