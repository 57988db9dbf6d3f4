//! Bonds and stakes: deposit, return and slashing.

use florin_protocol::{Amount, Digest};

use crate::api::{Slash, Terms};
use crate::conformance::FUNDS;
use crate::conformance::stage::{
    BOND_MIN, OTHER_TASK, STAKE_MIN, Stage, TASK, UNBOND_MS, equal, fln, total,
};

pub(super) fn bonding(stage: &Stage) -> Result<(), String> {
    let (ledger, alice) = (stage.ledger(), stage.alice()?);
    let owner = alice.address();
    stage.refused("UNKNOWN_TASK", ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.refused("UNKNOWN_TASK", ledger.unbond(alice, TASK))?;
    stage.refused("UNKNOWN_TASK", ledger.withdraw_bond(alice, TASK))?;
    stage.opened()?;
    let less = fln(BOND_MIN.saturating_sub(1));
    stage.refused("TOO_SMALL", ledger.bond(alice, TASK, less))?;
    let more = total([FUNDS, Amount::from_units(1)])?;
    stage.refused("INSUFFICIENT_FUNDS", ledger.bond(alice, TASK, more))?;
    stage.refused("NOT_FOUND", ledger.unbond(alice, TASK))?;
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    // The existing bond counts towards the minimum.
    stage.ok(ledger.bond(alice, TASK, fln(1)))?;
    equal("bond", stage.bonded(TASK, owner)?, fln(11))?;
    stage.lost(owner, fln(11))?;
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.refused("NOT_FOUND", ledger.unbond(stage.bob()?, TASK))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let release = stage.read(ledger.bond_of(TASK, owner))?.release;
    equal("a release is set", release.is_some(), true)?;
    stage.advance(60_000);
    // A repeated request does not change the moment.
    stage.ok(ledger.unbond(alice, TASK))?;
    equal("release", stage.read(ledger.bond_of(TASK, owner))?.release, release)?;
    stage.refused("TOO_EARLY", ledger.withdraw_bond(alice, TASK))?;
    // An additional bond cancels the unbonding.
    stage.ok(ledger.bond(alice, TASK, fln(1)))?;
    equal("cancelled", stage.read(ledger.bond_of(TASK, owner))?.release, None)?;
    stage.pass(UNBOND_MS);
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.pass(UNBOND_MS);
    equal("withdrawn", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(12))?;
    stage.gained(owner, Amount::ZERO)?;
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))
}

pub(super) fn bonds_of_a_closed_task(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.opened()?;
    stage.ok(ledger.bond(alice, TASK, fln(20)))?;
    stage.ok(ledger.bond(bob, TASK, fln(20)))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    stage.ok(ledger.close(stage.coordinator()?, TASK))?;
    stage.refused("TASK_CLOSED", ledger.bond(alice, TASK, fln(20)))?;
    // No settlement was posted that could debit the bond, so neither a request nor a delay is
    // needed.
    equal("at once", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(20))?;
    equal("without waiting", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(20))?;
    stage.gained(alice.address(), Amount::ZERO)?;
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))
}

pub(super) fn staking(stage: &Stage) -> Result<(), String> {
    let (ledger, provider) = (stage.ledger(), stage.provider()?);
    let owner = provider.address();
    stage.refused("MEANINGLESS", ledger.stake(provider, Amount::ZERO))?;
    let more = total([FUNDS, Amount::from_units(1)])?;
    stage.refused("INSUFFICIENT_FUNDS", ledger.stake(provider, more))?;
    stage.refused("NOT_FOUND", ledger.unstake(provider))?;
    stage.refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.refused("UNKNOWN_TASK", ledger.pledge(provider, TASK))?;
    stage.opened()?;
    let longer = Terms { unbond_ms: UNBOND_MS.saturating_mul(3), ..stage.terms(OTHER_TASK)? };
    stage.ok(ledger.open_task(stage.buyer()?, &longer))?;
    stage.ok(ledger.stake(provider, fln(STAKE_MIN.saturating_sub(1))))?;
    stage.refused("TOO_SMALL", ledger.pledge(provider, TASK))?;
    stage.ok(ledger.stake(provider, fln(1)))?;
    stage.lost(owner, fln(STAKE_MIN))?;
    equal("not pledged", stage.read(ledger.pledged(TASK, owner))?, false)?;
    // A stake without pledges is free at once.
    stage.refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.unstake(provider))?;
    // A pledge cancels the unstaking.
    stage.ok(ledger.pledge(provider, TASK))?;
    stage.refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.pledge(provider, OTHER_TASK))?;
    stage.ok(ledger.pledge(provider, OTHER_TASK))?;
    equal("pledged", stage.read(ledger.pledged(TASK, owner))?, true)?;
    stage.ok(ledger.unstake(provider))?;
    stage.pass(UNBOND_MS);
    stage.refused("TOO_EARLY", ledger.withdraw_stake(provider))?;
    // An additional stake cancels the unstaking; a closed task's delay does not count.
    stage.ok(ledger.stake(provider, fln(1)))?;
    equal("cancelled", stage.read(ledger.stake_of(owner))?.release, None)?;
    stage.ok(ledger.close(stage.coordinator()?, OTHER_TASK))?;
    stage.ok(ledger.unstake(provider))?;
    stage.pass(UNBOND_MS);
    let all = fln(STAKE_MIN.saturating_add(1));
    equal("withdrawn", stage.ok(ledger.withdraw_stake(provider))?, all)?;
    stage.gained(owner, Amount::ZERO)?;
    equal("no pledge is left", stage.read(ledger.pledged(TASK, owner))?, false)?;
    stage.refused("NOT_FOUND", ledger.withdraw_stake(provider))?;
    stage.ok(ledger.stake(provider, fln(STAKE_MIN)))?;
    stage.refused("TASK_CLOSED", ledger.pledge(provider, OTHER_TASK))
}

fn slash(account: florin_protocol::Address, stake: bool, amount: Amount) -> Slash {
    Slash { task: TASK, account, stake, amount, evidence: Digest([0xee; 32]) }
}

pub(super) fn slashing_a_bond(stage: &Stage) -> Result<(), String> {
    let (ledger, arbiter, alice) = (stage.ledger(), stage.arbiter()?, stage.alice()?);
    let part = slash(alice.address(), false, fln(6));
    stage.refused("UNKNOWN_TASK", ledger.slash(arbiter, &part))?;
    stage.opened()?;
    stage.refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.refused("NOT_ALLOWED", ledger.slash(stage.coordinator()?, &part))?;
    let nothing = slash(alice.address(), false, Amount::ZERO);
    stage.refused("MEANINGLESS", ledger.slash(arbiter, &nothing))?;
    // An unbonding bond is still at risk.
    stage.ok(ledger.unbond(alice, TASK))?;
    equal("taken", stage.ok(ledger.slash(arbiter, &part))?, fln(6))?;
    equal("the rest", stage.ok(ledger.slash(arbiter, &part))?, fln(4))?;
    stage.refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    equal("treasury", stage.read(ledger.treasury())?, fln(10))?;
    // The arbiter of a closed task cannot slash.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.ok(ledger.close(stage.coordinator()?, TASK))?;
    stage.refused("TASK_CLOSED", ledger.slash(arbiter, &part))?;
    equal("not slashed", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))
}

pub(super) fn slashing_a_stake(stage: &Stage) -> Result<(), String> {
    let (ledger, arbiter, provider) = (stage.ledger(), stage.arbiter()?, stage.provider()?);
    let owner = provider.address();
    let part = slash(owner, true, fln(30));
    stage.opened()?;
    stage.refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.stake(provider, fln(200)))?;
    // A stake can only be slashed by tasks to which it is pledged.
    stage.refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.pledge(provider, TASK))?;
    stage.refused("NOT_ALLOWED", ledger.slash(provider, &part))?;
    equal("taken", stage.ok(ledger.slash(arbiter, &part))?, fln(30))?;
    equal("still pledged", stage.read(ledger.pledged(TASK, owner))?, true)?;
    equal("up to the minimum", stage.ok(ledger.slash(arbiter, &part))?, fln(20))?;
    equal("stake", stage.read(ledger.stake_of(owner))?.amount, fln(150))?;
    // The pledge is used up: to continue, the provider must pledge again.
    equal("used up", stage.read(ledger.pledged(TASK, owner))?, false)?;
    stage.refused("NOT_FOUND", ledger.slash(arbiter, &part))?;
    stage.ok(ledger.pledge(provider, TASK))?;
    equal("a new pledge", stage.ok(ledger.slash(arbiter, &part))?, fln(30))?;
    equal("treasury", stage.read(ledger.treasury())?, fln(80))
}
