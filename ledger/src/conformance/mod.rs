//! The suite that every [`Ledger`] passes: each method's every outcome, and the books after each step.
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

use florin_protocol::{Amount, Signer};

use crate::api::Ledger;

pub use signer::TestSigner;

/// Signers that a world needs.
pub const SIGNERS: usize = 7;
/// What each signer's wallet holds when a world begins; nobody else has anything.
pub const FUNDS: Amount = Amount::from_units(1_000_000_000_000_000_000_000);

/// A fresh ledger and those who use it.
pub struct World {
    /// Without tasks, bonds or stakes; the treasury is empty.
    pub ledger: Box<dyn Ledger>,
    /// [`SIGNERS`] accounts with [`FUNDS`] each.
    pub signers: Vec<Box<dyn Signer>>,
    /// Moves the ledger's clock on by so many milliseconds; whole seconds, unless the clock is exact. Apart from it the
    /// clock may run, but not by more than a few seconds in a case.
    pub advance: Box<dyn Fn(u64)>,
    /// Whether the clock stands still between two advances and knows every millisecond: then moments are tested on both
    /// sides of the exact one.
    pub is_exact: bool,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("market", &self.ledger.market()).finish_non_exhaustive()
    }
}

/// Makes worlds: one per case.
pub trait Fixture {
    /// A world that shares nothing with the ones before.
    fn new_world(&self) -> World;
}

/// A claim that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{case}: {what}")]
pub struct Violation {
    /// The case, as a claim.
    pub case: &'static str,
    /// What was found instead.
    pub what: String,
}

type Case = (&'static str, fn(&stage::Stage) -> Result<(), String>);

/// Every case, in the order in which they run.
const CASES: &[Case] = &[
    ("nothing is known of what never happened", books::unknown),
    ("a transfer moves what is there, once", books::transfers),
    ("a task's budget is locked in two pools", tasks::opening),
    ("a settlement is posted once and becomes final after its window", tasks::settling),
    ("totals and rounds that cannot be are refused", tasks::bad_settlements),
    ("cancelling takes a settlement and every later one back", tasks::cancelling),
    ("a claim pays the account in the leaf, whoever sends it, once", tasks::claiming),
    ("a claim draws the difference of running totals", tasks::claiming_again),
    ("closing refunds what was not spent", tasks::closing),
    ("after its expiry anybody closes a task", tasks::expiring),
    ("closing makes final what is due", tasks::closing_settles),
    ("a bond is at risk until its delay is over", risk::bonding),
    ("a closed task without settlements gives bonds back at once", risk::bonds_of_a_closed_task),
    ("a debit takes from the bond what is left of it, by proof, once", debits::taking),
    ("one claim pays and debits", debits::paying_and_taking),
    ("a debit beyond the rounds' limit, and totals that shrink, are refused", debits::bad_leaves),
    ("a bond stays until what was posted before its release can be proven", debits::held_bonds),
    ("a coordinator that goes on posting cannot keep a bond", debits::posting_for_ever),
    ("a bond outlasts its closed task until its last debit can be proven", debits::closed_tasks),
    ("a debit that is proven too late takes nothing, ever", debits::proven_too_late),
    ("a stake is at risk for the longest delay it is pledged to", risk::staking),
    ("an arbiter slashes a bond, and never more than there is", risk::slashing_a_bond),
    ("an arbiter slashes a pledged stake up to the task's minimum", risk::slashing_a_stake),
];

/// Runs every case, each in a world of its own, and stops at the first that fails.
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
