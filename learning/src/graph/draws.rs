//! The random draws of a graph's nodes.
//!
//! libtorch has one generator for the process. In a training by virtual workers, each node that draws
//! has a seed of its own, which follows from the worker's seed and the node's number. So its numbers do
//! not depend on the nodes that ran before it, nor on the process that runs it.

use rand_chacha::rand_core::Rng;
use tch::TchError;

use super::observer::RunObserver;
use super::operators::{self, Effect};
use super::value::{Argument, Graph, Node, Operation};
use crate::rng::{Purpose, rng};

/// Arguments that are a probability of dropping.
const DROPPED_SHARES: [&str; 2] = ["dropout_p", "dropout"];

/// The seed of libtorch's generator for the draws of a node: the first number of the stream of the
/// worker's seed for draws of nodes, part `node`. Graphs have fewer nodes than 2³².
pub(crate) fn node_seed(worker_seed: u64, node: usize) -> i64 {
    let first = rng(worker_seed, Purpose::NodeDraws, node as u32).next_u64();
    i64::from_le_bytes(first.to_le_bytes())
}

/// Whether each node of a graph draws random numbers in a training.
pub(crate) fn drawing_nodes(graph: &Graph) -> Vec<bool> {
    graph.nodes.iter().map(draws).collect()
}

fn draws(node: &Node) -> bool {
    let Operation::Aten(name) = &node.operation else { return false };
    let effect = operators::find(name).map(|operator| operator.effect);
    let drops = |(name, argument): &(String, Argument)| {
        DROPPED_SHARES.contains(&name.as_str())
            && match argument {
                Argument::Float(bits) => f64::from_bits(*bits) != 0.0,
                Argument::None => false,
                _ => true,
            }
    };
    matches!(effect, Some(Effect::Random | Effect::RandomInPlace))
        || node.arguments.iter().any(drops)
}

/// Seeds the generator in front of each node that draws.
pub(crate) struct SeededDraws<'o> {
    /// The seed of the worker.
    pub(crate) worker_seed: u64,
    /// By node.
    pub(crate) draws: &'o [bool],
}

impl RunObserver for SeededDraws<'_> {
    fn before_node(&mut self, node: usize) -> Result<(), TchError> {
        if self.draws.get(node) == Some(&true) {
            tch::manual_seed(node_seed(self.worker_seed, node));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The update of a member must not change with a release of the generator.
    #[test]
    fn seeds_of_nodes_match_the_recorded_numbers() {
        assert_eq!(
            [node_seed(7, 0), node_seed(7, 1), node_seed(8, 0)],
            [-1_381_652_700_959_110_468, -5_370_146_805_797_999_636, -9_034_381_107_304_701_565,]
        );
    }
}
