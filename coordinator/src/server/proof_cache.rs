//! A cache of claim proofs: one Merkle tree per task, built off the engine's thread at the first
//! request after a round becomes final, and cached until a later round is final.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use florin_protocol::{RoundNumber, TaskId};
use tokio::sync::OnceCell;

use super::body::blocking;
use super::error::{ApiError, ApiResult};
use crate::host::Host;
use florin_engine::{Engine, ProofTree};

/// Tasks whose tree is cached; the least recently used one is evicted.
const TREES_MAX: usize = 64;

/// The cached trees.
#[derive(Debug, Default)]
pub(super) struct ProofCache {
    entries: Mutex<CachedProofs>,
}

#[derive(Debug, Default)]
struct CachedProofs {
    trees: BTreeMap<TaskId, CachedTree>,
    clock: u64,
}

#[derive(Debug)]
struct CachedTree {
    round: RoundNumber,
    asked: u64,
    tree: Arc<OnceCell<Arc<ProofTree>>>,
}

impl ProofCache {
    /// The tree of the task's last final round. Concurrent requests wait for the same build.
    pub(super) async fn tree(&self, host: &Host, task: TaskId) -> ApiResult<Arc<ProofTree>> {
        let final_round =
            move |engine: &Engine, _| engine.final_totals(task).map(|last| last.round);
        let round = host.read(final_round).await??;
        let place = self.cell(task, round);
        let built = place.get_or_try_init(|| async move {
            let last = host.read(move |engine, _| engine.final_totals(task).cloned()).await??;
            // If a later round has just become final, its proofs are a right answer too.
            blocking(move || ProofTree::from_final_totals(&last).map(Arc::new))
                .await?
                .map_err(ApiError::from)
        });
        built.await.cloned()
    }

    fn cell(&self, task: TaskId, round: RoundNumber) -> Arc<OnceCell<Arc<ProofTree>>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.clock = entries.clock.saturating_add(1);
        let asked = entries.clock;
        if let Some(place) = entries.trees.get_mut(&task)
            && place.round == round
        {
            place.asked = asked;
            return Arc::clone(&place.tree);
        }
        if entries.trees.len() >= TREES_MAX && !entries.trees.contains_key(&task) {
            let oldest = entries.trees.iter().min_by_key(|(_, place)| place.asked);
            if let Some(oldest) = oldest.map(|(task, _)| *task) {
                entries.trees.remove(&oldest);
            }
        }
        let tree = Arc::new(OnceCell::new());
        entries.trees.insert(task, CachedTree { round, asked, tree: Arc::clone(&tree) });
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_cached_until_a_later_round_is_final() {
        let proofs = ProofCache::default();
        let task = |n| TaskId([n; 32]);
        let first = proofs.cell(task(0), RoundNumber(1));
        assert!(Arc::ptr_eq(&first, &proofs.cell(task(0), RoundNumber(1))));
        assert!(!Arc::ptr_eq(&first, &proofs.cell(task(0), RoundNumber(2))));
        let cell = proofs.cell(task(0), RoundNumber(2));
        for n in 1..=100 {
            proofs.cell(task(n), RoundNumber(1));
            assert!(Arc::ptr_eq(&cell, &proofs.cell(task(0), RoundNumber(2))), "{n}");
        }
        assert_eq!(proofs.entries.lock().unwrap().trees.len(), TREES_MAX);
    }
}
