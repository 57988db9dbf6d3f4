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
pub(super) struct Proofs {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    trees: BTreeMap<TaskId, Place>,
    asked: u64,
}

#[derive(Debug)]
struct Place {
    round: RoundNumber,
    asked: u64,
    tree: Arc<OnceCell<Arc<ProofTree>>>,
}

impl Proofs {
    /// The tree of the task's last final round. Concurrent requests wait for the same build.
    pub(super) async fn of(&self, host: &Host, task: TaskId) -> ApiResult<Arc<ProofTree>> {
        let final_round =
            move |engine: &Engine, _| engine.final_standings(task).map(|last| last.round);
        let round = host.read(final_round).await??;
        let place = self.place(task, round);
        let built = place.get_or_try_init(|| async move {
            let last = host.read(move |engine, _| engine.final_standings(task).cloned()).await??;
            // If a later round has just become final, its proofs are a right answer too.
            blocking(move || ProofTree::of_final(&last).map(Arc::new))
                .await?
                .map_err(ApiError::from)
        });
        built.await.cloned()
    }

    fn place(&self, task: TaskId, round: RoundNumber) -> Arc<OnceCell<Arc<ProofTree>>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.asked = kept.asked.saturating_add(1);
        let asked = kept.asked;
        if let Some(place) = kept.trees.get_mut(&task)
            && place.round == round
        {
            place.asked = asked;
            return Arc::clone(&place.tree);
        }
        if kept.trees.len() >= TREES_MAX && !kept.trees.contains_key(&task) {
            let oldest = kept.trees.iter().min_by_key(|(_, place)| place.asked);
            if let Some(oldest) = oldest.map(|(task, _)| *task) {
                kept.trees.remove(&oldest);
            }
        }
        let tree = Arc::new(OnceCell::new());
        kept.trees.insert(task, Place { round, asked, tree: Arc::clone(&tree) });
        tree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_cached_until_a_later_round_is_final() {
        let proofs = Proofs::default();
        let task = |n| TaskId([n; 32]);
        let first = proofs.place(task(0), RoundNumber(1));
        assert!(Arc::ptr_eq(&first, &proofs.place(task(0), RoundNumber(1))));
        assert!(!Arc::ptr_eq(&first, &proofs.place(task(0), RoundNumber(2))));
        let kept = proofs.place(task(0), RoundNumber(2));
        for n in 1..=100 {
            proofs.place(task(n), RoundNumber(1));
            assert!(Arc::ptr_eq(&kept, &proofs.place(task(0), RoundNumber(2))), "{n}");
        }
        assert_eq!(proofs.kept.lock().unwrap().trees.len(), TREES_MAX);
    }
}
