//! Debits: taken by proof, limited by the number of final settlements, and not avoidable by withdrawing the
//! bond.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Amount, WalletSigner};

use crate::api::{Claim, ClaimOutcome};
use crate::conformance::scenario::{
    BOND_MIN, CHALLENGE_MS, DEBIT_MAX, ROUNDS, Scenario, TASK, TotalsInFlorins, UNBOND_MS,
    continuing, debited, expect_equal, fln, paid,
};

/// Two challenge windows: one in which a settlement can be cancelled, and one in which its debits
/// can be proven.
const TWO_WINDOWS_MS: u64 = CHALLENGE_MS.saturating_mul(2);
const NO_TOTALS: TotalsInFlorins = paid(0);

fn claim_outcome(paid: u64, taken: u64) -> ClaimOutcome {
    ClaimOutcome { paid: fln(paid), taken: fln(taken) }
}

/// The outcome of an account's claim under these totals, sent by a stranger.
fn send_claim(
    stage: &Scenario,
    who: &dyn WalletSigner,
    alice: TotalsInFlorins,
    bob: TotalsInFlorins,
) -> Result<ClaimOutcome, String> {
    let claim = stage.claim_with_totals(who.address(), alice, bob)?;
    stage.ok(stage.ledger().claim(stage.stranger()?, &claim))
}

/// Expects that an account's claim under these totals is refused with a code.
fn expect_claim_refused(
    stage: &Scenario,
    code: &str,
    who: &dyn WalletSigner,
    (alice, bob): (TotalsInFlorins, TotalsInFlorins),
) -> Result<(), String> {
    let claim = stage.claim_with_totals(who.address(), alice, bob)?;
    stage.expect_refused(code, stage.ledger().claim(stage.stranger()?, &claim))
}

/// Opens the task; Alice and Bob deposit the minimum bond.
fn open_with_bonds(stage: &Scenario) -> Result<(), String> {
    stage.open_task()?;
    for owner in [stage.alice()?, stage.bob()?] {
        stage.ok(stage.ledger().bond(owner, TASK, fln(BOND_MIN)))?;
    }
    Ok(())
}

pub(super) fn debit_is_taken_by_proof(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    open_with_bonds(stage)?;
    let first = (debited(DEBIT_MAX), debited(3));
    stage.ok(
        ledger.post(stage.coordinator()?, &stage.settlement_with_totals(1, first.0, first.1)?)
    )?;
    // A posted settlement is not final, and a final debit is not taken until it is proven.
    expect_claim_refused(stage, "INVALID_PROOF", alice, first)?;
    stage.advance_past(CHALLENGE_MS);
    expect_equal("due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 1)?;
    expect_equal(
        "not before it is proven",
        stage.bond_amount(TASK, alice.address())?,
        fln(BOND_MIN),
    )?;
    expect_equal("Bob's", send_claim(stage, bob, first.0, first.1)?, claim_outcome(0, 3))?;
    expect_equal("Bob's bond", stage.bond_amount(TASK, bob.address())?, fln(7))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(3))?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", bob, first)?;
    // Two rounds at once: a debit of 16 from a bond of 10 takes the 10 that are left; the rest is
    // never taken.
    let second = (debited(16), debited(5));
    stage.settle(2, second.0, second.1)?;
    expect_claim_refused(stage, "INVALID_PROOF", bob, first)?;
    expect_equal("Alice's", send_claim(stage, alice, second.0, second.1)?, claim_outcome(0, 10))?;
    expect_equal("used up", stage.bond_amount(TASK, alice.address())?, Amount::ZERO)?;
    expect_equal(
        "the difference",
        send_claim(stage, bob, second.0, second.1)?,
        claim_outcome(0, 2),
    )?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(15))?;
    let proven = stage.expect_read(ledger.claimed_totals(TASK, alice.address()))?;
    expect_equal("all of it counts", proven, second.0.totals())?;
    // A new bond starts from zero and covers no earlier debit.
    stage.expect_refused("TOO_SMALL", ledger.bond(alice, TASK, fln(5)))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", alice, second)
}

pub(super) fn paying_and_taking(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    open_with_bonds(stage)?;
    let first = (TotalsInFlorins { paid: 30, debited: 4 }, paid(10));
    stage.settle(1, first.0, first.1)?;
    // The proof covers which total is which: they cannot be exchanged.
    let swapped = TotalsInFlorins { paid: 4, debited: 30 };
    let honest = stage.claim_with_totals(alice.address(), first.0, first.1)?;
    let swapped = Claim { totals: swapped.totals(), ..honest };
    stage.expect_refused("INVALID_PROOF", ledger.claim(alice, &swapped))?;
    expect_equal("both", send_claim(stage, alice, first.0, first.1)?, claim_outcome(30, 4))?;
    expect_equal("bond", stage.bond_amount(TASK, alice.address())?, fln(6))?;
    // 30 paid, bond of 10.
    stage.expect_gained(alice.address(), fln(20))?;
    expect_equal("only paid", send_claim(stage, bob, first.0, first.1)?, claim_outcome(10, 0))?;
    let second = (TotalsInFlorins { paid: 30, debited: 5 }, paid(10));
    stage.settle(2, second.0, second.1)?;
    expect_equal(
        "only debited",
        send_claim(stage, alice, second.0, second.1)?,
        claim_outcome(0, 1),
    )?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", bob, second)?;
    expect_equal("owed", stage.task(TASK)?.owed, Amount::ZERO)
}

pub(super) fn invalid_totals_are_refused(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    open_with_bonds(stage)?;
    // The number of final settlements counts, not the number of the round: round 2 is the first.
    let early = (debited(DEBIT_MAX.saturating_add(1)), debited(DEBIT_MAX));
    stage.settle(2, early.0, early.1)?;
    expect_claim_refused(stage, "INVALID_SETTLEMENT", alice, early)?;
    // After two settlements the total debit may be twice the limit; one unit more is refused,
    // together with the payout.
    let twice = DEBIT_MAX.saturating_mul(2);
    let greedy = (TotalsInFlorins { paid: 1, debited: twice.saturating_add(1) }, debited(twice));
    stage.settle(3, greedy.0, greedy.1)?;
    expect_claim_refused(stage, "INVALID_SETTLEMENT", alice, greedy)?;
    expect_equal(
        "the limit itself",
        send_claim(stage, bob, greedy.0, greedy.1)?,
        claim_outcome(0, BOND_MIN),
    )?;
    // One round later it is within the limit.
    let third = (greedy.0, TotalsInFlorins { paid: 20, debited: twice });
    stage.settle(4, third.0, third.1)?;
    expect_equal("later", send_claim(stage, alice, third.0, third.1)?, claim_outcome(1, BOND_MIN))?;
    expect_equal("pay", send_claim(stage, bob, third.0, third.1)?, claim_outcome(20, 0))?;
    // Neither total may decrease, independently of the other.
    let less =
        (TotalsInFlorins { paid: 2, debited: twice }, TotalsInFlorins { paid: 19, debited: 24 });
    stage.settle(5, less.0, less.1)?;
    expect_claim_refused(stage, "INVALID_SETTLEMENT", alice, less)?;
    expect_claim_refused(stage, "INVALID_SETTLEMENT", bob, less)?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(20))
}

pub(super) fn bond_is_held_until_debits_are_provable(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    open_with_bonds(stage)?;
    // Posted long before the release: the release decides.
    stage.ok(
        ledger.post(stage.coordinator()?, &stage.settlement_with_totals(1, debited(1), NO_TOTALS)?)
    )?;
    stage.advance(TWO_WINDOWS_MS.saturating_sub(UNBOND_MS).saturating_add(60_000));
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    let release = stage.expect_read(ledger.bond_of(TASK, alice.address()))?.release;
    let release = release.ok_or("no release is set")?;
    let early = |owner| stage.expect_refused("TOO_EARLY", ledger.withdraw_bond(owner, TASK));
    early(alice)?;
    // Posted shortly before the release: two windows after the post decide. The second window is
    // for the proof.
    stage.advance(UNBOND_MS.saturating_sub(240_000));
    expect_equal("the first is due", stage.ok(ledger.finalize(bob, TASK))?, 1)?;
    let second = (debited(DEBIT_MAX), NO_TOTALS);
    stage
        .ok(ledger
            .post(stage.coordinator()?, &stage.settlement_with_totals(2, second.0, second.1)?))?;
    let posted = stage.last_posted_at()?;
    expect_equal("posted before the release", posted < release, true)?;
    expect_equal(
        "released before it is final",
        release < posted.saturating_add_ms(CHALLENGE_MS),
        true,
    )?;
    stage.advance_to(release)?;
    early(alice)?;
    stage.advance_to(posted.saturating_add_ms(CHALLENGE_MS).saturating_add_ms(1_000))?;
    expect_equal("due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 1)?;
    // Final, and not proven yet: the moment does not depend on the proof.
    stage.expect_withdrawable_at(bob, posted.saturating_add_ms(TWO_WINDOWS_MS))?;
    expect_equal(
        "the debit",
        send_claim(stage, alice, second.0, second.1)?,
        claim_outcome(0, DEBIT_MAX),
    )?;
    let rest = fln(BOND_MIN.saturating_sub(DEBIT_MAX));
    expect_equal("the rest", stage.ok(ledger.withdraw_bond(alice, TASK))?, rest)?;
    expect_equal("not debited", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(BOND_MIN))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(DEBIT_MAX))
}

pub(super) fn later_posts_do_not_hold_a_bond(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator, alice) = (stage.ledger(), stage.coordinator()?, stage.alice()?);
    open_with_bonds(stage)?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let release = stage.expect_read(ledger.bond_of(TASK, alice.address()))?.release;
    let release = release.ok_or("no release is set")?;
    let free = release.saturating_add_ms(TWO_WINDOWS_MS);
    // Without any post the bond is free at its release, on both sides of that moment. Then a
    // settlement is posted at the very moment of the release.
    stage.expect_withdrawable_at(alice, release)?;
    let first = stage.settlement_with_totals(1, debited(1), NO_TOTALS)?;
    stage.ok(ledger.post(coordinator, &first))?;
    expect_equal("it is too early again", stage.now()? < free, true)?;
    stage.expect_refused("TOO_EARLY", ledger.withdraw_bond(alice, TASK))?;
    // Later posts do not change the moment, and neither does a cancelled one.
    stage.advance(CHALLENGE_MS.checked_div(2).unwrap_or_default());
    let second = continuing(stage.settlement_with_totals(2, debited(2), NO_TOTALS)?, &first);
    stage.ok(ledger.post(coordinator, &second))?;
    stage.ok(ledger.cancel(stage.arbiter()?, TASK, second.payout))?;
    let again = stage.settlement_with_totals(3, debited(3), NO_TOTALS)?;
    stage.ok(ledger.post(coordinator, &again))?;
    stage.expect_withdrawable_at(alice, free)?;
    let last = continuing(stage.settlement_with_totals(4, debited(4), NO_TOTALS)?, &again);
    stage.ok(ledger.post(coordinator, &last))?;
    expect_equal("free", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))
}

pub(super) fn closed_tasks(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    open_with_bonds(stage)?;
    let last = (debited(2), NO_TOTALS);
    // Bob's release is long after the close: a closed task does not hold his bond until then.
    stage
        .ok(ledger
            .post(stage.coordinator()?, &stage.settlement_with_totals(ROUNDS, last.0, last.1)?))?;
    let posted = stage.last_posted_at()?;
    stage.advance_to(posted.saturating_add_ms(CHALLENGE_MS).saturating_add_ms(1_000))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    stage.ok(ledger.close(stage.coordinator()?, TASK))?;
    stage.expect_withdrawable_at(alice, posted.saturating_add_ms(TWO_WINDOWS_MS))?;
    expect_equal("in time", send_claim(stage, alice, last.0, last.1)?, claim_outcome(0, 2))?;
    expect_equal("the rest", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(8))?;
    expect_equal("all of it", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(BOND_MIN))?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", alice, last)
}

pub(super) fn proven_too_late(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.open_task()?;
    // Bob never deposited a bond.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let first = (debited(6), TotalsInFlorins { paid: 9, debited: 1 });
    stage.settle(1, first.0, first.1)?;
    stage.advance_past(UNBOND_MS.saturating_add(TWO_WINDOWS_MS));
    expect_equal("gone", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))?;
    expect_equal(
        "no bond is left",
        send_claim(stage, alice, first.0, first.1)?,
        claim_outcome(0, 0),
    )?;
    let proven = stage.expect_read(ledger.claimed_totals(TASK, alice.address()))?;
    expect_equal("the debit counts as taken", proven, first.0.totals())?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", alice, first)?;
    expect_equal("pay only", send_claim(stage, bob, first.0, first.1)?, claim_outcome(9, 0))?;
    // A new bond covers new debits only, not the missed one.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    expect_claim_refused(stage, "NOTHING_TO_CLAIM", alice, first)?;
    let second = (debited(8), first.1);
    stage.settle(2, second.0, second.1)?;
    expect_equal(
        "the difference",
        send_claim(stage, alice, second.0, second.1)?,
        claim_outcome(0, 2),
    )?;
    let held = stage.expect_read(ledger.claimed_totals(TASK, bob.address()))?;
    expect_equal("Bob's", held, ClaimTotals { paid: fln(9), debited: fln(1) })?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(2))
}
