//! A reference model compared with the real chain under long random histories, with the chain
//! reopened in between.

pub(crate) mod books;
pub(crate) mod cast;
pub(crate) mod coverage;
pub(crate) mod dice;
pub(crate) mod draw;
pub(crate) mod operation;
pub(crate) mod view;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use florin_ledger::{Genesis, LocalChain};
use florin_protocol::{Address, ChainId, NodeSigner};

use books::{FUNDS, Model, PEOPLE};
use cast::{Cast, START, units};
use coverage::Coverage;
use dice::{Dice, seed};
use draw::Draw;
use operation::verdict;
use view::Comparison;

/// The model of a ledger in which every account has the same balance.
pub(crate) fn fresh_model() -> Model {
    Model { wallets: [FUNDS; PEOPLE], now: START, ..Model::default() }
}

pub(crate) fn operator() -> NodeSigner {
    NodeSigner::from_seed(&[3; 32])
}

pub(crate) fn genesis(cast: &Cast) -> Genesis {
    Genesis {
        chain_id: ChainId(5),
        operator: Address([1; 20]),
        operator_key: operator().key(),
        allocations: (0..PEOPLE).map(|n| (cast.address(n), units(FUNDS))).collect(),
        created: cast.tick(START),
    }
}

/// A clock that a test sets.
#[derive(Clone, Default)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn set(&self, to: florin_protocol::Tick) {
        self.0.store(to.0, Ordering::SeqCst);
    }

    pub(crate) fn as_seen_by_a_chain(&self) -> florin_ledger::Clock {
        let now = Arc::clone(&self.0);
        Arc::new(move || florin_protocol::Tick(now.load(Ordering::SeqCst)))
    }
}

/// The real chain and the model.
struct Both {
    chain: Option<LocalChain>,
    model: Model,
    clock: Clock,
    cast: Cast,
}

impl Both {
    fn new(path: &Path) -> Self {
        let cast = Cast::new(1);
        LocalChain::create(path, &genesis(&cast)).unwrap();
        Self { chain: None, model: fresh_model(), clock: Clock::default(), cast }
    }

    fn reopen(&mut self, path: &Path) {
        drop(self.chain.take());
        let clock = self.clock.as_seen_by_a_chain();
        self.chain = Some(LocalChain::open(path, operator(), clock).unwrap());
    }

    /// Executes one random operation on both, and compares every readable value.
    fn step(&mut self, dice: &mut Dice, coverage: &mut Coverage) {
        let mut draw = Draw { dice, model: &self.model, is_rushed: false };
        let (pause, operation) = (draw.pause(), draw.operation());
        self.model.now += pause;
        self.clock.set(self.cast.tick(self.model.now));
        let chain = self.chain.as_ref().unwrap();
        let got = verdict(&operation.on_ledger(chain, &self.cast));
        let expected = operation.on_model(&mut self.model);
        assert_eq!(got, expected, "{operation:?}");
        coverage.note(&operation, got);
        let comparison = Comparison { ledger: chain, model: &self.model, cast: &self.cast };
        comparison.all().unwrap_or_else(|difference| panic!("{operation:?}: {difference}"));
    }
}

#[test]
fn the_chain_agrees_with_the_model_under_random_histories() {
    let mut dice = Dice::new(seed());
    let mut coverage = Coverage::default();
    for _ in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut both = Both::new(&path);
        both.reopen(&path);
        for _ in 0..700 {
            if dice.once_in(60) {
                both.reopen(&path);
            }
            both.step(&mut dice, &mut coverage);
        }
        drop(both);
        let found = LocalChain::verify(&path).unwrap();
        assert!(found.transactions > 50);
    }
    println!("{coverage}");
    // A history without executed operations would prove nothing. Cancelling within the window is
    // rare: the longer test with the contracts requires it.
    for verb in ["bond", "claim", "finalize", "pledge", "post", "slash bond", "transfer"] {
        coverage.has(&[(verb, &["done"])], 1);
    }
}
