//! A reference model compared with the real chain under long random histories, with the chain
//! reopened in between.

use std::path::Path;

use florin_ledger::LocalChain;
use florin_testkit::ledger_model::books::Model;
use florin_testkit::ledger_model::cast::Cast;
use florin_testkit::ledger_model::coverage::Coverage;
use florin_testkit::ledger_model::dice::{Dice, seed};
use florin_testkit::ledger_model::draw::Draw;
use florin_testkit::ledger_model::operation::verdict;
use florin_testkit::ledger_model::view::Comparison;
use florin_testkit::ledger_model::{Clock, fresh_model, genesis, operator};

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
