//! The gap rules: which estimator values a stage of a round.
//!
//! The scores of a quadrature sum to the improvement only if the loss is smooth enough along the
//! round's path. The unexplained part is the **gap**. A stage is valued with more and more
//! nodes until its gap is small, then by an estimator without a gap. A stage that no estimator
//! resolves has no scores: money never follows a figure that contradicts its neighbour. The caller
//! decides which gap is small.

/// Quadrature nodes to which a stage climbs after the task's own number.
const MORE_NODES: [u8; 2] = [6, 12];
/// Largest number of players whose coalitions are enumerated.
pub const ENUMERATED_PLAYERS_MAX: usize = 8;
/// Pairs of permutations for more players.
pub const PERMUTATION_PAIRS: u16 = 32;
/// Largest number of players whose permutations are sampled: their 4,032 evaluations are a round's
/// limit.
pub const PERMUTED_PLAYERS_MAX: usize = 64;

/// The estimator of a stage's scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StageEstimator {
    /// The path integral with this many nodes.
    Path {
        /// Number of nodes.
        nodes: u8,
    },
    /// The Shapley value by enumeration of all coalitions.
    Shapley,
    /// The Shapley value by antithetic pairs of permutations.
    Permutations {
        /// Number of pairs.
        pairs: u16,
    },
}

/// The estimators that a stage of `players` players tries, in order; `nodes` is the task's own
/// number, `None` if the task has only estimators without a gap.
pub fn stage_estimators(nodes: Option<u8>, players: usize) -> Vec<StageEstimator> {
    let more = MORE_NODES.into_iter().filter(|more| nodes.is_some_and(|nodes| *more > nodes));
    let path = |nodes| StageEstimator::Path { nodes };
    let mut all: Vec<StageEstimator> = nodes.into_iter().chain(more).map(path).collect();
    match players {
        0..=ENUMERATED_PLAYERS_MAX => all.push(StageEstimator::Shapley),
        _ if players <= PERMUTED_PLAYERS_MAX => {
            all.push(StageEstimator::Permutations { pairs: PERMUTATION_PAIRS });
        }
        _ => {}
    }
    all
}

impl StageEstimator {
    /// Evaluations and gradients for `players` players, without those of the base point.
    pub fn passes(self, players: usize) -> u64 {
        let players = players as u64;
        match self {
            Self::Path { nodes } => u64::from(nodes) + 1,
            Self::Shapley => (1 << players) - 1,
            Self::Permutations { pairs } => 2 * u64::from(pairs) * players.saturating_sub(1) + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_climbs_from_its_nodes_to_estimators_without_a_gap() {
        use StageEstimator::{Path, Permutations, Shapley};
        let nodes = |n| Path { nodes: n };
        let pairs = Permutations { pairs: 32 };
        assert_eq!(stage_estimators(Some(3), 8), [nodes(3), nodes(6), nodes(12), Shapley]);
        assert_eq!(stage_estimators(Some(6), 9), [nodes(6), nodes(12), pairs]);
        assert_eq!(stage_estimators(Some(8), 64), [nodes(8), nodes(12), pairs]);
        assert_eq!(stage_estimators(Some(3), 65), [nodes(3), nodes(6), nodes(12)]);
        assert_eq!(stage_estimators(None, 8), [Shapley]);
        assert_eq!(stage_estimators(None, 64), [pairs]);
        assert_eq!(stage_estimators(None, 65), []);
    }

    #[test]
    fn estimators_state_their_passes() {
        assert_eq!(StageEstimator::Path { nodes: 12 }.passes(20), 13);
        assert_eq!(StageEstimator::Shapley.passes(8), 255);
        assert_eq!(StageEstimator::Permutations { pairs: 32 }.passes(64), 4_033);
    }
}
