//! Reads of unknown accounts and tasks, and transfers between wallets.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, SettlementId};

use crate::api::{BondState, SettlementStatus, StakeState};
use crate::conformance::INITIAL_BALANCE;
use crate::conformance::scenario::{NO_TASK, Scenario, expect_equal, fln, total};

pub(super) fn unknown_ids_read_as_zero(stage: &Scenario) -> Result<(), String> {
    let (ledger, stranger) = (stage.ledger(), Address([0x0f; 20]));
    expect_equal("balance", stage.expect_read(ledger.balance(stranger))?, Amount::ZERO)?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, Amount::ZERO)?;
    expect_equal("task", stage.expect_read(ledger.task(NO_TASK))?, None)?;
    expect_equal(
        "bond",
        stage.expect_read(ledger.bond_of(NO_TASK, stranger))?,
        BondState::default(),
    )?;
    expect_equal("stake", stage.expect_read(ledger.stake_of(stranger))?, StakeState::default())?;
    expect_equal("pledged", stage.expect_read(ledger.is_pledged(NO_TASK, stranger))?, false)?;
    expect_equal(
        "claimed",
        stage.expect_read(ledger.claimed_totals(NO_TASK, stranger))?,
        ClaimTotals::default(),
    )?;
    let split = stage.expect_read(ledger.split_of(NO_TASK, stranger))?;
    expect_equal("split", split, Vec::new())?;
    let status = stage.expect_read(ledger.settlement_status(NO_TASK, SettlementId([1; 32])))?;
    expect_equal("settlement", status, SettlementStatus::Unknown)?;
    let before = stage.now()?;
    stage.advance(5_000);
    expect_equal("the clock moves", stage.now()? >= before.saturating_add_ms(5_000), true)
}

pub(super) fn transfers(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?.address());
    let too_much = total([INITIAL_BALANCE, Amount::from_units(1)])?;
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, too_much))?;
    let most = Amount::from_units(u128::MAX);
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, most))?;
    stage.expect_refused("INVALID_ARGUMENT", ledger.transfer(alice, bob, Amount::ZERO))?;
    stage.expect_refused("INVALID_ARGUMENT", ledger.transfer(alice, alice.address(), fln(1)))?;
    let zero_address = Address([0; 20]);
    stage.expect_refused("INVALID_ARGUMENT", ledger.transfer(alice, zero_address, fln(1)))?;
    let first = stage.ok(ledger.transfer(alice, bob, fln(100)))?;
    stage.expect_lost(alice.address(), fln(100))?;
    stage.expect_gained(bob, fln(100))?;
    // The same transfer again is a second transfer.
    let second = stage.ok(ledger.transfer(alice, bob, fln(100)))?;
    expect_equal("two transfers have two ids", first == second, false)?;
    stage.expect_gained(bob, fln(200))?;
    stage.ok(ledger.transfer(alice, bob, fln(800)))?;
    expect_equal("an emptied wallet", stage.balance(alice.address())?, Amount::ZERO)?;
    let unit = Amount::from_units(1);
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.transfer(alice, bob, unit))
}
