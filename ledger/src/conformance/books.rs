//! Reads of unknown accounts and tasks, and transfers between wallets.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, SettlementId};

use crate::api::{BondState, SettlementStatus, StakeState};
use crate::conformance::FUNDS;
use crate::conformance::stage::{NO_TASK, Stage, equal, fln, total};

pub(super) fn unknown(stage: &Stage) -> Result<(), String> {
    let (ledger, nobody) = (stage.ledger(), Address([0x0f; 20]));
    equal("balance", stage.read(ledger.balance(nobody))?, Amount::ZERO)?;
    equal("treasury", stage.read(ledger.treasury())?, Amount::ZERO)?;
    equal("task", stage.read(ledger.task(NO_TASK))?, None)?;
    equal("bond", stage.read(ledger.bond_of(NO_TASK, nobody))?, BondState::default())?;
    equal("stake", stage.read(ledger.stake_of(nobody))?, StakeState::default())?;
    equal("pledged", stage.read(ledger.pledged(NO_TASK, nobody))?, false)?;
    equal("claimed", stage.read(ledger.claimed(NO_TASK, nobody))?, ClaimTotals::default())?;
    let status = stage.read(ledger.settlement(NO_TASK, SettlementId([1; 32])))?;
    equal("settlement", status, SettlementStatus::Unknown)?;
    let before = stage.now()?;
    stage.advance(5_000);
    equal("the clock moves", stage.now()? >= before.saturating_add_ms(5_000), true)
}

pub(super) fn transfers(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?.address());
    let too_much = total([FUNDS, Amount::from_units(1)])?;
    stage.refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, too_much))?;
    let most = Amount::from_units(u128::MAX);
    stage.refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, most))?;
    stage.refused("MEANINGLESS", ledger.transfer(alice, bob, Amount::ZERO))?;
    stage.refused("MEANINGLESS", ledger.transfer(alice, alice.address(), fln(1)))?;
    let nobody = Address([0; 20]);
    stage.refused("MEANINGLESS", ledger.transfer(alice, nobody, fln(1)))?;
    let first = stage.ok(ledger.transfer(alice, bob, fln(100)))?;
    stage.lost(alice.address(), fln(100))?;
    stage.gained(bob, fln(100))?;
    // The same transfer again is a second transfer.
    let second = stage.ok(ledger.transfer(alice, bob, fln(100)))?;
    equal("two transfers have two ids", first == second, false)?;
    stage.gained(bob, fln(200))?;
    stage.ok(ledger.transfer(alice, bob, fln(800)))?;
    equal("an emptied wallet", stage.balance(alice.address())?, Amount::ZERO)?;
    let unit = Amount::from_units(1);
    stage.refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, unit))
}
