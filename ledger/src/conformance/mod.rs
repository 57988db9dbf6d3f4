//! The conformance suite that every [`Ledger`] passes: every outcome of every method, and the
//! conservation of money after every step.
//!
//! ```no_run
//! # use florin_ledger::conformance::{Fixture, TestLedger, run};
//! # struct Mine;
//! # impl Fixture for Mine { fn new_ledger(&self) -> TestLedger { loop {} } }
//! run(&Mine).unwrap();
//! ```

mod accounts;
mod bonds_and_stakes;
mod coverage;
mod debits;
mod leases;
mod listings;
mod scenario;
mod signer;
mod splits;
mod tasks;

use std::fmt;

use florin_protocol::{Amount, WalletSigner};

use crate::api::Ledger;

pub use signer::TestSigner;

/// Number of signers of a test ledger.
pub const SIGNER_COUNT: usize = 7;
/// Initial balance of each signer's wallet; no other account has a balance.
pub const INITIAL_BALANCE: Amount = Amount::from_units(1_000_000_000_000_000_000_000);

/// A new ledger with its signers and its clock.
pub struct TestLedger {
    /// The ledger, without tasks, bonds or stakes; the treasury is empty.
    pub ledger: Box<dyn Ledger>,
    /// [`SIGNER_COUNT`] accounts with [`INITIAL_BALANCE`] each.
    pub signers: Vec<Box<dyn WalletSigner>>,
    /// Advances the ledger's clock by milliseconds; by whole seconds, unless the clock is exact.
    /// The clock may also run by itself, by at most a few seconds in one case.
    pub advance: Box<dyn Fn(u64)>,
    /// Whether the clock stands still between two advances and has a resolution of one millisecond:
    /// then deadlines are tested at the last millisecond before and at the exact moment.
    pub is_clock_exact: bool,
}

impl fmt::Debug for TestLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("market", &self.ledger.market()).finish_non_exhaustive()
    }
}

/// Creates test ledgers, one for each case.
pub trait Fixture {
    /// A ledger that shares no state with the earlier ones.
    fn new_ledger(&self) -> TestLedger;
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

type ConformanceCase = (&'static str, fn(&scenario::Scenario) -> Result<(), String>);

/// Every case, in the order of execution.
const CASES: &[ConformanceCase] = &[
    ("unknown ids read as zero or absent", accounts::unknown_ids_read_as_zero),
    ("a transfer moves an available balance, once", accounts::transfers),
    ("a task's budget is locked in two pools", tasks::opening),
    ("a settlement is posted once and becomes final after its window", tasks::settling),
    ("invalid totals and rounds are refused", tasks::invalid_settlements),
    (
        "totals follow the rounds and the improvement",
        tasks::spending_follows_rounds_and_improvement,
    ),
    ("cancelling a settlement removes it and every later one", tasks::cancelling),
    ("a claim pays the account in the leaf, for any sender, once", tasks::claiming),
    ("a claim pays the increase of the running totals", tasks::claiming_again),
    ("closing refunds the unspent budget", tasks::closing),
    ("a close before the expiry is announced a window ahead", tasks::announced_close),
    ("a task whose last round is final is closed at once", tasks::finished_task),
    ("a receipt of an unsettled round holds up a close, at a price", tasks::objecting),
    ("any account closes an expired task", tasks::expiring),
    ("closing finalises due settlements", tasks::closing_settles),
    ("a bond is at risk until its delay is over", bonds_and_stakes::bonding),
    (
        "a closed task without settlements returns bonds at once",
        bonds_and_stakes::bonds_of_a_closed_task,
    ),
    ("a debit takes the available bond, by proof, once", debits::debit_is_taken_by_proof),
    ("one claim pays and debits", debits::paying_and_taking),
    (
        "debits above the limit of the final settlements and decreasing totals are refused",
        debits::invalid_totals_are_refused,
    ),
    (
        "a bond is held until settlements before its release can be proven",
        debits::bond_is_held_until_debits_are_provable,
    ),
    ("a coordinator cannot hold a bond by posting", debits::later_posts_do_not_hold_a_bond),
    ("a bond outlasts its closed task until its last debit can be proven", debits::closed_tasks),
    ("a debit that is proven too late takes nothing, ever", debits::proven_too_late),
    ("a post is covered by the coordinator's bond", coverage::posting),
    ("a bond that was requested back covers nothing", coverage::requested_return),
    ("a slashed bond covers less", coverage::slashed_bond),
    (
        "the coordinator's bond returns two windows after the last post",
        coverage::return_after_close,
    ),
    ("a coordinator that is the arbiter needs no bond", coverage::trusted_coordinator),
    ("a lease pays from its escrow and returns the bonds", leases::settled),
    ("a slashed lease debits the stake and pays who found it", leases::slashed),
    ("an order without a lease is refunded", leases::unawarded),
    ("a bid that stays closed is debited", leases::debited_alone),
    ("one claim of a lease pays and fines", leases::paid_and_debited),
    ("a provider that ends its listing pays for its probes", listings::withdrawn),
    ("leases that contradict a card take the stake of its listing", listings::contradicted),
    ("a split is set once, before the account takes part", splits::setting),
    ("a claim of a split account pays its members, to the unit", splits::paying),
    ("a split leaves bond and debits with its account", splits::debiting),
    ("the sender of a claim cannot change its split's payments", splits::other_senders),
    ("a stake is at risk for the longest delay of its pledges", bonds_and_stakes::staking),
    ("an arbiter slashes at most the available bond", bonds_and_stakes::slashing_a_bond),
    (
        "an arbiter slashes a pledged stake up to the task's minimum",
        bonds_and_stakes::slashing_a_stake,
    ),
];

/// Runs every case, each with a new ledger, and stops at the first that fails.
///
/// # Errors
/// The [`Violation`].
pub fn run(fixture: &dyn Fixture) -> Result<(), Violation> {
    for (case, claim) in CASES {
        let outcome = scenario::Scenario::new(fixture.new_ledger()).and_then(|stage| claim(&stage));
        outcome.map_err(|what| Violation { case, what })?;
    }
    Ok(())
}
