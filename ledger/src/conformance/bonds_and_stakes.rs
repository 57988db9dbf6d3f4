//! Bonds and stakes: deposit, return and slashing.

use florin_protocol::{Amount, Digest};

use crate::api::{Slash, Terms};
use crate::conformance::INITIAL_BALANCE;
use crate::conformance::scenario::{
    BOND_MIN, OTHER_TASK, STAKE_MIN, Scenario, TASK, UNBOND_MS, expect_equal, fln, total,
};

pub(super) fn bonding(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice) = (stage.ledger(), stage.alice()?);
    let owner = alice.address();
    stage.expect_refused("UNKNOWN_TASK", ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.expect_refused("UNKNOWN_TASK", ledger.unbond(alice, TASK))?;
    stage.expect_refused("UNKNOWN_TASK", ledger.withdraw_bond(alice, TASK))?;
    stage.open_task()?;
    let less = fln(BOND_MIN.saturating_sub(1));
    stage.expect_refused("TOO_SMALL", ledger.bond(alice, TASK, less))?;
    let more = total([INITIAL_BALANCE, Amount::from_units(1)])?;
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.bond(alice, TASK, more))?;
    stage.expect_refused("NOT_FOUND", ledger.unbond(alice, TASK))?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    // The existing bond counts towards the minimum.
    stage.ok(ledger.bond(alice, TASK, fln(1)))?;
    expect_equal("bond", stage.bond_amount(TASK, owner)?, fln(11))?;
    stage.expect_lost(owner, fln(11))?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.expect_refused("NOT_FOUND", ledger.unbond(stage.bob()?, TASK))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let release = stage.expect_read(ledger.bond_of(TASK, owner))?.release;
    expect_equal("a release is set", release.is_some(), true)?;
    stage.advance(60_000);
    // A repeated request does not change the moment.
    stage.ok(ledger.unbond(alice, TASK))?;
    expect_equal("release", stage.expect_read(ledger.bond_of(TASK, owner))?.release, release)?;
    stage.expect_refused("TOO_EARLY", ledger.withdraw_bond(alice, TASK))?;
    // An additional bond cancels the unbonding.
    stage.ok(ledger.bond(alice, TASK, fln(1)))?;
    expect_equal("cancelled", stage.expect_read(ledger.bond_of(TASK, owner))?.release, None)?;
    stage.advance_past(UNBOND_MS);
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.advance_past(UNBOND_MS);
    expect_equal("withdrawn", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(12))?;
    stage.expect_gained(owner, Amount::ZERO)?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))
}

pub(super) fn bonds_of_a_closed_task(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.open_task()?;
    stage.ok(ledger.bond(alice, TASK, fln(20)))?;
    stage.ok(ledger.bond(bob, TASK, fln(20)))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    stage.close_after_window(TASK)?;
    stage.expect_refused("TASK_CLOSED", ledger.bond(alice, TASK, fln(20)))?;
    // No settlement was posted that could debit the bond, so neither a request nor a delay is
    // needed.
    expect_equal("at once", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(20))?;
    expect_equal("without waiting", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(20))?;
    stage.expect_gained(alice.address(), Amount::ZERO)?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))
}

pub(super) fn staking(stage: &Scenario) -> Result<(), String> {
    let (ledger, provider) = (stage.ledger(), stage.provider()?);
    let owner = provider.address();
    stage.expect_refused("INVALID_ARGUMENT", ledger.stake(provider, Amount::ZERO))?;
    let more = total([INITIAL_BALANCE, Amount::from_units(1)])?;
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.stake(provider, more))?;
    stage.expect_refused("NOT_FOUND", ledger.unstake(provider))?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.expect_refused("UNKNOWN_TASK", ledger.pledge(provider, TASK))?;
    stage.open_task()?;
    let longer = Terms { unbond_ms: UNBOND_MS.saturating_mul(3), ..stage.terms(OTHER_TASK)? };
    stage.ok(ledger.open_task(stage.buyer()?, &longer))?;
    stage.ok(ledger.stake(provider, fln(STAKE_MIN.saturating_sub(1))))?;
    stage.expect_refused("TOO_SMALL", ledger.pledge(provider, TASK))?;
    stage.ok(ledger.stake(provider, fln(1)))?;
    stage.expect_lost(owner, fln(STAKE_MIN))?;
    expect_equal("not pledged", stage.expect_read(ledger.is_pledged(TASK, owner))?, false)?;
    // A stake without pledges is free at once.
    stage.expect_refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.unstake(provider))?;
    // A pledge cancels the unstaking.
    stage.ok(ledger.pledge(provider, TASK))?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.pledge(provider, OTHER_TASK))?;
    stage.ok(ledger.pledge(provider, OTHER_TASK))?;
    expect_equal("pledged", stage.expect_read(ledger.is_pledged(TASK, owner))?, true)?;
    stage.ok(ledger.unstake(provider))?;
    stage.advance_past(UNBOND_MS);
    stage.expect_refused("TOO_EARLY", ledger.withdraw_stake(provider))?;
    // An additional stake cancels the unstaking; a closed task's delay does not count.
    stage.ok(ledger.stake(provider, fln(1)))?;
    expect_equal("cancelled", stage.expect_read(ledger.stake_of(owner))?.release, None)?;
    stage.close_after_window(OTHER_TASK)?;
    stage.ok(ledger.unstake(provider))?;
    stage.advance_past(UNBOND_MS);
    let all = fln(STAKE_MIN.saturating_add(1));
    expect_equal("withdrawn", stage.ok(ledger.withdraw_stake(provider))?, all)?;
    stage.expect_gained(owner, Amount::ZERO)?;
    expect_equal("no pledge is left", stage.expect_read(ledger.is_pledged(TASK, owner))?, false)?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.stake(provider, fln(STAKE_MIN)))?;
    stage.expect_refused("TASK_CLOSED", ledger.pledge(provider, OTHER_TASK))
}

fn slash(account: florin_protocol::Address, stake: bool, amount: Amount) -> Slash {
    Slash { task: TASK, account, stake, amount, evidence: Digest([0xee; 32]) }
}

pub(super) fn slashing_a_bond(stage: &Scenario) -> Result<(), String> {
    let (ledger, arbiter, alice) = (stage.ledger(), stage.arbiter()?, stage.alice()?);
    let part = slash(alice.address(), false, fln(6));
    stage.expect_refused("UNKNOWN_TASK", ledger.slash(arbiter, &part))?;
    stage.open_task()?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.expect_refused("UNAUTHORIZED", ledger.slash(stage.coordinator()?, &part))?;
    let nothing = slash(alice.address(), false, Amount::ZERO);
    stage.expect_refused("INVALID_ARGUMENT", ledger.slash(arbiter, &nothing))?;
    // An unbonding bond is still at risk.
    stage.ok(ledger.unbond(alice, TASK))?;
    expect_equal("taken", stage.ok(ledger.slash(arbiter, &part))?, fln(6))?;
    expect_equal("the rest", stage.ok(ledger.slash(arbiter, &part))?, fln(4))?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(10))?;
    // All slashes of an account together are limited, also of another bond.
    stage.ok(ledger.bond(alice, TASK, fln(2 * BOND_MIN)))?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.advance_past(UNBOND_MS);
    stage.ok(ledger.withdraw_bond(alice, TASK))?;
    // The limit is the account's own.
    let (bob, other) = (stage.bob()?, slash(stage.bob()?.address(), false, fln(6)));
    stage.ok(ledger.bond(bob, TASK, fln(2 * BOND_MIN)))?;
    expect_equal("taken", stage.ok(ledger.slash(arbiter, &other))?, fln(6))?;
    expect_equal("up to the minimum", stage.ok(ledger.slash(arbiter, &other))?, fln(4))?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &other))?;
    let left = stage.expect_read(ledger.bond_of(TASK, bob.address()))?;
    expect_equal("left", left.amount, fln(BOND_MIN))?;
    // The arbiter of a closed task cannot slash.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.close_after_window(TASK)?;
    stage.expect_refused("TASK_CLOSED", ledger.slash(arbiter, &part))?;
    expect_equal("not slashed", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))
}

pub(super) fn slashing_a_stake(stage: &Scenario) -> Result<(), String> {
    let (ledger, arbiter, provider) = (stage.ledger(), stage.arbiter()?, stage.provider()?);
    let owner = provider.address();
    let part = slash(owner, true, fln(30));
    stage.open_task()?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.stake(provider, fln(200)))?;
    // A stake can only be slashed by tasks to which it is pledged.
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.pledge(provider, TASK))?;
    stage.expect_refused("UNAUTHORIZED", ledger.slash(provider, &part))?;
    expect_equal("taken", stage.ok(ledger.slash(arbiter, &part))?, fln(30))?;
    expect_equal("still pledged", stage.expect_read(ledger.is_pledged(TASK, owner))?, true)?;
    expect_equal("up to the minimum", stage.ok(ledger.slash(arbiter, &part))?, fln(20))?;
    expect_equal("stake", stage.expect_read(ledger.stake_of(owner))?.amount, fln(150))?;
    // The pledge is used up: to continue, the provider must pledge again.
    expect_equal("used up", stage.expect_read(ledger.is_pledged(TASK, owner))?, false)?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.pledge(provider, TASK))?;
    expect_equal("a new pledge", stage.ok(ledger.slash(arbiter, &part))?, fln(30))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(80))
}
