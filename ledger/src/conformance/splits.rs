//! Splits of pay: set once, before the account takes part, and paid by every claim.

use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{Address, Amount, Digest, Micro};

use crate::api::{Claim, ClaimOutcome, MemberShare, Settlement};
use crate::conformance::scenario::{
    BOND_MIN, CHALLENGE_MS, NANO_PER_FLORIN, NO_TASK, OTHER_TASK, Scenario, TASK, UNBOND_MS,
    expect_equal, fln, total,
};
use crate::limits::SPLIT_MEMBERS_MAX;

/// Shares of one half, a fifth and three tenths.
const SHARES: [u64; 3] = [500_000, 200_000, 300_000];

/// Alice, the provider and the stranger in the order of their addresses, as Alice's split has them.
fn members(stage: &Scenario) -> Result<Vec<MemberShare>, String> {
    let mut accounts =
        [stage.alice()?.address(), stage.provider()?.address(), stage.stranger()?.address()];
    accounts.sort_unstable();
    let shares = accounts.into_iter().zip(SHARES);
    Ok(shares.map(|(member, share)| MemberShare { member, share: Micro(share) }).collect())
}

fn base_units(paid: u128, debited: u128) -> ClaimTotals {
    ClaimTotals { paid: Amount::from_units(paid), debited: Amount::from_units(debited) }
}

/// The units that each member owns of the first `units`, one turn of a million after another.
fn owned(units: u128) -> [u128; 3] {
    let (turns, begun) = (units.div_euclid(1_000_000), units.rem_euclid(1_000_000));
    [(500_000, 0), (200_000, 500_000), (300_000, 700_000)].map(|(share, before): (u128, u128)| {
        turns.saturating_mul(share).saturating_add(begun.saturating_sub(before).min(share))
    })
}

/// Posts and finalises a settlement of Alice's totals alone; its improvement covers two florins.
fn settle(stage: &Scenario, round: u32, totals: ClaimTotals) -> Result<Claim, String> {
    let alice = stage.alice()?.address();
    let tree = ClaimTree::new([(alice, totals)]);
    let settlement = Settlement {
        root: tree.root(),
        data_total: totals.paid,
        score_pay_total: totals.paid,
        improvement_total_nano: NANO_PER_FLORIN.saturating_mul(2),
        ..stage.settlement(round, 0, 0)?
    };
    stage.ok(stage.ledger().post(stage.coordinator()?, &settlement))?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(stage.ledger().finalize(stage.bob()?, TASK))?;
    let proof = tree.proof(alice, totals).ok_or("the totals are not in the tree")?;
    Ok(Claim { task: TASK, account: alice, totals, proof })
}

/// The balances of the members, in their order.
fn balances(stage: &Scenario) -> Result<Vec<Amount>, String> {
    members(stage)?.iter().map(|each| stage.balance(each.member)).collect()
}

/// Checks that the members have gained these amounts, in base units.
fn expect_gains(stage: &Scenario, before: &[Amount], gains: [u128; 3]) -> Result<(), String> {
    let expected = before.iter().zip(gains);
    let expected = expected.map(|(before, gain)| total([*before, Amount::from_units(gain)]));
    expect_equal("the members' balances", balances(stage)?, expected.collect::<Result<_, _>>()?)
}

fn split_of(stage: &Scenario, account: Address) -> Result<Vec<MemberShare>, String> {
    stage.expect_read(stage.ledger().split_of(TASK, account))
}

/// Lists that are not a split, with the code of their refusal.
fn invalid_splits(valid: &[MemberShare]) -> Vec<(&'static str, &'static str, Vec<MemberShare>)> {
    let changed = |at: usize, share: u64| {
        let list = valid.iter().enumerate();
        let change = |(n, each): (usize, &MemberShare)| {
            if n == at { MemberShare { share: Micro(share), ..*each } } else { *each }
        };
        list.map(change).collect::<Vec<_>>()
    };
    let invalid = "SPLIT_INVALID";
    let twice = |member: Address| {
        let half = MemberShare { member, share: Micro(500_000) };
        vec![half, half]
    };
    let member = valid.first().map(|each| each.member).unwrap_or_default();
    let crowd = vec![MemberShare { member, share: Micro(1) }; SPLIT_MEMBERS_MAX.saturating_add(1)];
    vec![
        ("no member", invalid, Vec::new()),
        ("a millionth is missing", invalid, changed(2, 299_999)),
        ("a millionth too much", invalid, changed(0, 500_001)),
        ("a share of zero", invalid, changed(1, 0)),
        ("a share beyond 32 bits", invalid, changed(1, (1 << 32) + 200_000)),
        ("a descending order", invalid, valid.iter().rev().copied().collect()),
        ("a member twice", invalid, twice(member)),
        ("the zero address", invalid, twice(Address::default())),
        ("too many members", "LIMIT_EXCEEDED", crowd),
    ]
}

pub(super) fn setting(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    let valid = members(stage)?;
    stage.expect_refused("UNKNOWN_TASK", ledger.set_split(alice, NO_TASK, &valid))?;
    stage.open_task()?;
    for (what, code, list) in invalid_splits(&valid) {
        let refused = ledger.set_split(alice, TASK, &list);
        stage.expect_refused(code, refused).map_err(|error| format!("{what}: {error}"))?;
    }
    expect_equal("no split yet", split_of(stage, alice.address())?, Vec::new())?;
    stage.ok(ledger.set_split(alice, TASK, &valid))?;
    expect_equal("the split", split_of(stage, alice.address())?, valid.clone())?;
    let elsewhere = stage.expect_read(ledger.split_of(OTHER_TASK, alice.address()))?;
    expect_equal("in this task only", elsewhere, Vec::new())?;
    let alone = [MemberShare { member: alice.address(), share: Micro::ONE }];
    stage.expect_refused("SPLIT_FIXED", ledger.set_split(alice, TASK, &alone))?;
    stage.ok(ledger.set_split(alice, TASK, &valid))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.expect_refused("SPLIT_FIXED", ledger.set_split(alice, TASK, &alone))?;
    stage.ok(ledger.set_split(alice, TASK, &valid))?;
    // An account with a bond is too late, also while its return is requested.
    stage.ok(ledger.bond(bob, TASK, fln(BOND_MIN)))?;
    stage.expect_refused("SPLIT_TOO_LATE", ledger.set_split(bob, TASK, &valid))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    stage.expect_refused("SPLIT_TOO_LATE", ledger.set_split(bob, TASK, &valid))?;
    stage.advance_past(UNBOND_MS);
    stage.ok(ledger.withdraw_bond(bob, TASK))?;
    stage.ok(ledger.set_split(bob, TASK, &alone))?;
    expect_equal("Bob's", split_of(stage, bob.address())?, alone.to_vec())?;
    stage.close_after_window(TASK)?;
    stage.expect_refused("TASK_CLOSED", ledger.set_split(alice, TASK, &valid))?;
    expect_equal("it stays", split_of(stage, alice.address())?, valid)
}

pub(super) fn paying(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.open_task()?;
    stage.ok(ledger.set_split(alice, TASK, &members(stage)?))?;
    let before = balances(stage)?;
    // Parts of one turn of a million units, several turns, and a florin with a remainder.
    let totals = [1, 499_999, 500_001, 999_999, 3_600_000, fln(1).units().saturating_add(7)];
    for (round, units) in (1..).zip(totals) {
        let claim = settle(stage, round, base_units(units, 0))?;
        let earlier = stage.expect_read(ledger.claimed_totals(TASK, alice.address()))?.paid;
        let paid = stage.ok(ledger.claim(bob, &claim))?;
        let more = claim.totals.paid.minus(earlier).map_err(|error| error.to_string())?;
        expect_equal("paid", paid, ClaimOutcome { paid: more, taken: Amount::ZERO })?;
        expect_gains(stage, &before, owned(units))?;
        stage.expect_refused("NOTHING_TO_CLAIM", ledger.claim(alice, &claim))?;
    }
    expect_equal("nothing is owed", stage.task(TASK)?.owed, Amount::ZERO)?;
    stage.expect_gained(bob.address(), Amount::ZERO)
}

pub(super) fn debiting(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.open_task()?;
    // Alice is a member of its own split, and pays the whole debit.
    stage.ok(ledger.set_split(alice, TASK, &members(stage)?))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    let before = balances(stage)?;
    let first = settle(stage, 1, base_units(0, 3))?;
    let outcome = ClaimOutcome { paid: Amount::ZERO, taken: Amount::from_units(3) };
    expect_equal("a debit alone", stage.ok(ledger.claim(bob, &first))?, outcome)?;
    expect_gains(stage, &before, [0; 3])?;
    let florin = fln(1).units().saturating_add(7);
    let second = settle(stage, 2, base_units(florin, 10))?;
    let outcome = ClaimOutcome { paid: second.totals.paid, taken: Amount::from_units(7) };
    expect_equal("both", stage.ok(ledger.claim(bob, &second))?, outcome)?;
    expect_gains(stage, &before, owned(florin))?;
    let treasury = stage.expect_read(ledger.treasury())?;
    expect_equal("treasury", treasury, Amount::from_units(10))?;
    let own = stage.balance(alice.address())?;
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.advance_past(UNBOND_MS.saturating_add(CHALLENGE_MS));
    let left = fln(BOND_MIN).minus(treasury).map_err(|error| error.to_string())?;
    expect_equal("the bond returns to Alice", stage.ok(ledger.withdraw_bond(alice, TASK))?, left)?;
    expect_equal("Alice's wallet", stage.balance(alice.address())?, total([own, left])?)?;
    // The split outlives the bond.
    let alone = [MemberShare { member: alice.address(), share: Micro::ONE }];
    stage.expect_refused("SPLIT_FIXED", ledger.set_split(alice, TASK, &alone))
}

pub(super) fn other_senders(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice) = (stage.ledger(), stage.alice()?);
    stage.open_task()?;
    let split = members(stage)?;
    let before = balances(stage)?;
    // The split of another account is of no consequence, nor is one in another task.
    stage.ok(ledger.set_split(stage.bob()?, TASK, &split))?;
    let other = stage.terms(OTHER_TASK)?;
    stage.ok(ledger.open_task(stage.buyer()?, &other))?;
    stage.ok(ledger.set_split(alice, OTHER_TASK, &split))?;
    let place = split.iter().position(|each| each.member == alice.address());
    let own = |units: u128| -> Result<[u128; 3], String> {
        let mut gains = [0; 3];
        let gain = place.and_then(|place| gains.get_mut(place));
        *gain.ok_or("Alice is no member")? = units;
        Ok(gains)
    };
    let first = settle(stage, 1, base_units(5, 0))?;
    stage.ok(ledger.claim(stage.bob()?, &first))?;
    expect_gains(stage, &before, own(5)?)?;
    // After its first claim an account without a split stays without one.
    stage.expect_refused("SPLIT_TOO_LATE", ledger.set_split(alice, TASK, &split))?;
    let second = settle(stage, 2, base_units(1_000_000, 0))?;
    let forged = Claim { account: stage.bob()?.address(), ..second.clone() };
    stage.expect_refused("INVALID_PROOF", ledger.claim(stage.bob()?, &forged))?;
    let forged = Claim { proof: vec![Digest([7; 32])], ..second };
    stage.expect_refused("INVALID_PROOF", ledger.claim(stage.bob()?, &forged))?;
    stage.ok(ledger.claim(stage.stranger()?, &second))?;
    expect_gains(stage, &before, own(1_000_000)?)
}
