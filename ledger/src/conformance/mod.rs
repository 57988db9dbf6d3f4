//! The conformance suite that every [`Ledger`] passes: every outcome of every method, and the
//! conservation of money after every step.
//!
//! ```no_run
//! # use florin_ledger::conformance::{Fixture, World, run};
//! # struct Mine;
//! # impl Fixture for Mine { fn new_world(&self) -> World { loop {} } }
//! run(&Mine).unwrap();
//! ```

mod books;
mod debits;
mod risk;
mod signer;
mod stage;
mod tasks;

use std::fmt;

use florin_protocol::{Amount, WalletSigner};

use crate::api::Ledger;

pub use signer::TestSigner;

/// Number of signers of a test ledger.
pub const SIGNERS: usize = 7;
/// Initial balance of each signer's wallet; no other account has a balance.
pub const FUNDS: Amount = Amount::from_units(1_000_000_000_000_000_000_000);

/// A new ledger with its signers and its clock.
pub struct World {
    /// The ledger, without tasks, bonds or stakes; the treasury is empty.
    pub ledger: Box<dyn Ledger>,
    /// [`SIGNERS`] accounts with [`FUNDS`] each.
    pub signers: Vec<Box<dyn WalletSigner>>,
    /// Advances the ledger's clock by milliseconds; by whole seconds, unless the clock is exact.
    /// The clock may also run by itself, by at most a few seconds in one case.
    pub advance: Box<dyn Fn(u64)>,
    /// Whether the clock stands still between two advances and has a resolution of one millisecond:
    /// then deadlines are tested at the last millisecond before and at the exact moment.
    pub is_exact: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("market", &self.ledger.market()).finish_non_exhaustive()
    }
}

/// Creates test ledgers, one for each case.
pub trait Fixture {
    /// A ledger that shares no state with the earlier ones.
    fn new_world(&self) -> World;
}

/// A failed case.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{case}: {what}")]
pub struct Violation {
    /// The name of the case, which is a claim.
    pub case: &'static str,
    /// The observed deviation.
    pub what: String,
}

type Case = (&'static str, fn(&stage::Stage) -> Result<(), String>);

/// Every case, in the order of execution.
const CASES: &[Case] = &[
    ("unknown ids read as zero or absent", books::unknown),
    ("a transfer moves an available balance, once", books::transfers),
    ("a task's budget is locked in two pools", tasks::opening),
    ("a settlement is posted once and becomes final after its window", tasks::settling),
    ("invalid totals and rounds are refused", tasks::bad_settlements),
    ("cancelling a settlement removes it and every later one", tasks::cancelling),
    ("a claim pays the account in the leaf, for any sender, once", tasks::claiming),
    ("a claim pays the increase of the running totals", tasks::claiming_again),
    ("closing refunds the unspent budget", tasks::closing),
    ("any account closes an expired task", tasks::expiring),
    ("closing finalises due settlements", tasks::closing_settles),
    ("a bond is at risk until its delay is over", risk::bonding),
    ("a closed task without settlements returns bonds at once", risk::bonds_of_a_closed_task),
    ("a debit takes the available bond, by proof, once", debits::taking),
    ("one claim pays and debits", debits::paying_and_taking),
    ("debits above the rounds' limit and decreasing totals are refused", debits::bad_leaves),
    ("a bond is held until settlements before its release can be proven", debits::held_bonds),
    ("a coordinator cannot hold a bond by posting", debits::posting_for_ever),
    ("a bond outlasts its closed task until its last debit can be proven", debits::closed_tasks),
    ("a debit that is proven too late takes nothing, ever", debits::proven_too_late),
    ("a stake is at risk for the longest delay of its pledges", risk::staking),
    ("an arbiter slashes at most the available bond", risk::slashing_a_bond),
    ("an arbiter slashes a pledged stake up to the task's minimum", risk::slashing_a_stake),
];

/// Runs every case, each with a new ledger, and stops at the first that fails.
///
/// # Errors
/// The [`Violation`].
pub fn run(fixture: &dyn Fixture) -> Result<(), Violation> {
    for (case, claim) in CASES {
        let outcome = stage::Stage::new(fixture.new_world()).and_then(|stage| claim(&stage));
        outcome.map_err(|what| Violation { case, what })?;
    }
    Ok(())
}
