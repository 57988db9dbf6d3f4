//! A reference model compared with the real chain under long random histories, with the chain
//! reopened in between.

use std::path::Path;

use florin_ledger::EmbeddedChain;
use florin_testkit::ledger_model::accounts::TestAccounts;
use florin_testkit::ledger_model::comparison::Comparison;
use florin_testkit::ledger_model::coverage::Coverage;
use florin_testkit::ledger_model::generator::OperationGenerator;
use florin_testkit::ledger_model::model::LedgerModel;
use florin_testkit::ledger_model::operation::code_result;
use florin_testkit::ledger_model::rng::{TestRng, seed};
use florin_testkit::ledger_model::{TestClock, fresh_model, genesis, operator};

/// The real chain and the model.
struct ChainAndModel {
    chain: Option<EmbeddedChain>,
    model: LedgerModel,
    clock: TestClock,
    cast: TestAccounts,
}

impl ChainAndModel {
    fn new(path: &Path) -> Self {
        let cast = TestAccounts::new(1);
        EmbeddedChain::create(path, &genesis(&cast)).unwrap();
        Self { chain: None, model: fresh_model(), clock: TestClock::default(), cast }
    }

    fn reopen(&mut self, path: &Path) {
        drop(self.chain.take());
        let clock = self.clock.to_ledger_clock();
        self.chain = Some(EmbeddedChain::open(path, operator(), clock).unwrap());
    }

    /// Executes one random operation on both, and compares every readable value.
    fn step(&mut self, dice: &mut TestRng, coverage: &mut Coverage) {
        let mut draw = OperationGenerator { dice, model: &self.model, posts_rapidly: false };
        let (pause, operation) = (draw.pause(), draw.operation());
        self.model.now += pause;
        self.clock.set(self.cast.tick(self.model.now));
        let chain = self.chain.as_ref().unwrap();
        let got = code_result(&operation.on_ledger(chain, &self.cast));
        let expected = operation.on_model(&mut self.model);
        assert_eq!(got, expected, "{operation:?}");
        coverage.record(&operation, got);
        let comparison = Comparison { ledger: chain, model: &self.model, cast: &self.cast };
        comparison.all().unwrap_or_else(|difference| panic!("{operation:?}: {difference}"));
    }
}

#[test]
fn the_chain_agrees_with_the_model_under_random_histories() {
    let mut dice = TestRng::new(seed());
    let mut coverage = Coverage::default();
    for _ in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut both = ChainAndModel::new(&path);
        both.reopen(&path);
        for _ in 0..700 {
            if dice.once_in(60) {
                both.reopen(&path);
            }
            both.step(&mut dice, &mut coverage);
        }
        drop(both);
        let found = EmbeddedChain::verify(&path).unwrap();
        assert!(found.transactions > 50);
    }
    println!("{coverage}");
    // A history without executed operations would prove nothing. Cancelling within the window is
    // rare: the longer test with the contracts requires it.
    for verb in ["bond", "claim", "finalize", "pledge", "post", "slash bond", "transfer"] {
        coverage.assert_covered(&[(verb, &["done"])], 1);
    }
}
