//! Debits: taken by proof, limited by the number of rounds, and not avoidable by withdrawing the
//! bond.

use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Amount, WalletSigner};

use crate::api::{Claim, Claimed};
use crate::conformance::stage::{
    BOND_MIN, CHALLENGE_MS, DEBIT_MAX, Stage, Sums, TASK, UNBOND_MS, after, debited, equal, fln,
    paid,
};

/// Two challenge windows: one in which a settlement can be cancelled, and one in which its debits
/// can be proven.
const PROVEN_MS: u64 = CHALLENGE_MS.saturating_mul(2);
const NOBODY: Sums = paid(0);

fn moved(paid: u64, taken: u64) -> Claimed {
    Claimed { paid: fln(paid), taken: fln(taken) }
}

/// The outcome of an account's claim under these totals, sent by a stranger.
fn claim(stage: &Stage, who: &dyn WalletSigner, alice: Sums, bob: Sums) -> Result<Claimed, String> {
    let claim = stage.claim_under(who.address(), alice, bob)?;
    stage.ok(stage.ledger().claim(stage.stranger()?, &claim))
}

/// Expects that an account's claim under these totals is refused with a code.
fn refused(
    stage: &Stage,
    code: &str,
    who: &dyn WalletSigner,
    (alice, bob): (Sums, Sums),
) -> Result<(), String> {
    let claim = stage.claim_under(who.address(), alice, bob)?;
    stage.refused(code, stage.ledger().claim(stage.stranger()?, &claim))
}

/// Opens the task; Alice and Bob deposit the minimum bond.
fn bonded(stage: &Stage) -> Result<(), String> {
    stage.opened()?;
    for owner in [stage.alice()?, stage.bob()?] {
        stage.ok(stage.ledger().bond(owner, TASK, fln(BOND_MIN)))?;
    }
    Ok(())
}

pub(super) fn taking(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    bonded(stage)?;
    let first = (debited(DEBIT_MAX), debited(3));
    stage.ok(ledger.post(stage.coordinator()?, &stage.leading_to(1, first.0, first.1)?))?;
    // A posted settlement is not final, and a final debit is not taken until it is proven.
    refused(stage, "BAD_PROOF", alice, first)?;
    stage.pass(CHALLENGE_MS);
    equal("due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 1)?;
    equal("not before it is proven", stage.bonded(TASK, alice.address())?, fln(BOND_MIN))?;
    equal("Bob's", claim(stage, bob, first.0, first.1)?, moved(0, 3))?;
    equal("Bob's bond", stage.bonded(TASK, bob.address())?, fln(7))?;
    equal("treasury", stage.read(ledger.treasury())?, fln(3))?;
    refused(stage, "NOTHING_TO_CLAIM", bob, first)?;
    // Two rounds at once: a debit of 16 from a bond of 10 takes the 10 that are left; the rest is
    // never taken.
    let second = (debited(16), debited(5));
    stage.settle(2, second.0, second.1)?;
    refused(stage, "BAD_PROOF", bob, first)?;
    equal("Alice's", claim(stage, alice, second.0, second.1)?, moved(0, 10))?;
    equal("used up", stage.bonded(TASK, alice.address())?, Amount::ZERO)?;
    equal("the difference", claim(stage, bob, second.0, second.1)?, moved(0, 2))?;
    equal("treasury", stage.read(ledger.treasury())?, fln(15))?;
    let proven = stage.read(ledger.claimed(TASK, alice.address()))?;
    equal("all of it counts", proven, second.0.totals())?;
    // A new bond starts from zero and covers no earlier debit.
    stage.refused("TOO_SMALL", ledger.bond(alice, TASK, fln(5)))?;
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    refused(stage, "NOTHING_TO_CLAIM", alice, second)
}

pub(super) fn paying_and_taking(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    bonded(stage)?;
    let first = (Sums { paid: 30, debited: 4 }, paid(10));
    stage.settle(1, first.0, first.1)?;
    // The proof covers which total is which: they cannot be exchanged.
    let swapped = Sums { paid: 4, debited: 30 };
    let honest = stage.claim_under(alice.address(), first.0, first.1)?;
    let swapped = Claim { totals: swapped.totals(), ..honest };
    stage.refused("BAD_PROOF", ledger.claim(alice, &swapped))?;
    equal("both", claim(stage, alice, first.0, first.1)?, moved(30, 4))?;
    equal("bond", stage.bonded(TASK, alice.address())?, fln(6))?;
    // 30 paid, bond of 10.
    stage.gained(alice.address(), fln(20))?;
    equal("only paid", claim(stage, bob, first.0, first.1)?, moved(10, 0))?;
    let second = (Sums { paid: 30, debited: 5 }, paid(10));
    stage.settle(2, second.0, second.1)?;
    equal("only debited", claim(stage, alice, second.0, second.1)?, moved(0, 1))?;
    refused(stage, "NOTHING_TO_CLAIM", bob, second)?;
    equal("owed", stage.task(TASK)?.owed, Amount::ZERO)
}

pub(super) fn bad_leaves(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    bonded(stage)?;
    // In round 2 the total debit may be twice the limit; one unit more is refused, together with
    // the payout.
    let twice = DEBIT_MAX.saturating_mul(2);
    let greedy = (Sums { paid: 1, debited: twice.saturating_add(1) }, debited(twice));
    stage.settle(2, greedy.0, greedy.1)?;
    refused(stage, "BAD_SETTLEMENT", alice, greedy)?;
    equal("the limit itself", claim(stage, bob, greedy.0, greedy.1)?, moved(0, BOND_MIN))?;
    // One round later it is within the limit.
    let third = (greedy.0, Sums { paid: 20, debited: twice });
    stage.settle(3, third.0, third.1)?;
    equal("later", claim(stage, alice, third.0, third.1)?, moved(1, BOND_MIN))?;
    equal("pay", claim(stage, bob, third.0, third.1)?, moved(20, 0))?;
    // Neither total may decrease, independently of the other.
    let less = (Sums { paid: 2, debited: twice }, Sums { paid: 19, debited: 24 });
    stage.settle(4, less.0, less.1)?;
    refused(stage, "BAD_SETTLEMENT", alice, less)?;
    refused(stage, "BAD_SETTLEMENT", bob, less)?;
    equal("treasury", stage.read(ledger.treasury())?, fln(20))
}

pub(super) fn held_bonds(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    bonded(stage)?;
    // Posted long before the release: the release decides.
    stage.ok(ledger.post(stage.coordinator()?, &stage.leading_to(1, debited(1), NOBODY)?))?;
    stage.advance(PROVEN_MS.saturating_sub(UNBOND_MS).saturating_add(60_000));
    stage.ok(ledger.unbond(alice, TASK))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    let release = stage.read(ledger.bond_of(TASK, alice.address()))?.release;
    let release = release.ok_or("no release is set")?;
    let early = |owner| stage.refused("TOO_EARLY", ledger.withdraw_bond(owner, TASK));
    early(alice)?;
    // Posted shortly before the release: two windows after the post decide. The second window is
    // for the proof.
    stage.advance(UNBOND_MS.saturating_sub(240_000));
    equal("the first is due", stage.ok(ledger.finalize(bob, TASK))?, 1)?;
    let second = (debited(DEBIT_MAX), NOBODY);
    stage.ok(ledger.post(stage.coordinator()?, &stage.leading_to(2, second.0, second.1)?))?;
    let posted = stage.posted()?;
    equal("posted before the release", posted < release, true)?;
    equal("released before it is final", release < posted.saturating_add_ms(CHALLENGE_MS), true)?;
    stage.to(release)?;
    early(alice)?;
    stage.to(posted.saturating_add_ms(CHALLENGE_MS).saturating_add_ms(1_000))?;
    equal("due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 1)?;
    // Final, and not proven yet: the moment does not depend on the proof.
    stage.free_at(bob, posted.saturating_add_ms(PROVEN_MS))?;
    equal("the debit", claim(stage, alice, second.0, second.1)?, moved(0, DEBIT_MAX))?;
    let rest = fln(BOND_MIN.saturating_sub(DEBIT_MAX));
    equal("the rest", stage.ok(ledger.withdraw_bond(alice, TASK))?, rest)?;
    equal("not debited", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(BOND_MIN))?;
    equal("treasury", stage.read(ledger.treasury())?, fln(DEBIT_MAX))
}

pub(super) fn posting_for_ever(stage: &Stage) -> Result<(), String> {
    let (ledger, coordinator, alice) = (stage.ledger(), stage.coordinator()?, stage.alice()?);
    bonded(stage)?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let release = stage.read(ledger.bond_of(TASK, alice.address()))?.release;
    let release = release.ok_or("no release is set")?;
    let free = release.saturating_add_ms(PROVEN_MS);
    // Without any post the bond is free at its release, on both sides of that moment. Then a
    // settlement is posted at the very moment of the release.
    stage.free_at(alice, release)?;
    let first = stage.leading_to(1, debited(1), NOBODY)?;
    stage.ok(ledger.post(coordinator, &first))?;
    equal("it is too early again", stage.now()? < free, true)?;
    stage.refused("TOO_EARLY", ledger.withdraw_bond(alice, TASK))?;
    // Later posts do not change the moment, and neither does a cancelled one.
    stage.advance(CHALLENGE_MS.checked_div(2).unwrap_or_default());
    let second = after(stage.leading_to(2, debited(2), NOBODY)?, &first);
    stage.ok(ledger.post(coordinator, &second))?;
    stage.ok(ledger.cancel(stage.arbiter()?, TASK, second.payout))?;
    let again = stage.leading_to(3, debited(3), NOBODY)?;
    stage.ok(ledger.post(coordinator, &again))?;
    stage.free_at(alice, free)?;
    let last = after(stage.leading_to(4, debited(4), NOBODY)?, &again);
    stage.ok(ledger.post(coordinator, &last))?;
    equal("free", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))
}

pub(super) fn closed_tasks(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    bonded(stage)?;
    let last = (debited(2), NOBODY);
    // Bob's release is long after the close: a closed task does not hold his bond until then.
    stage.ok(ledger.post(stage.coordinator()?, &stage.leading_to(1, last.0, last.1)?))?;
    let posted = stage.posted()?;
    stage.to(posted.saturating_add_ms(CHALLENGE_MS).saturating_add_ms(1_000))?;
    stage.ok(ledger.unbond(bob, TASK))?;
    stage.ok(ledger.close(stage.coordinator()?, TASK))?;
    stage.free_at(alice, posted.saturating_add_ms(PROVEN_MS))?;
    equal("in time", claim(stage, alice, last.0, last.1)?, moved(0, 2))?;
    equal("the rest", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(8))?;
    equal("all of it", stage.ok(ledger.withdraw_bond(bob, TASK))?, fln(BOND_MIN))?;
    stage.refused("NOT_FOUND", ledger.withdraw_bond(alice, TASK))?;
    refused(stage, "NOTHING_TO_CLAIM", alice, last)
}

pub(super) fn proven_too_late(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.opened()?;
    // Bob never deposited a bond.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    stage.ok(ledger.unbond(alice, TASK))?;
    let first = (debited(6), Sums { paid: 9, debited: 1 });
    stage.settle(1, first.0, first.1)?;
    stage.pass(UNBOND_MS.saturating_add(PROVEN_MS));
    equal("gone", stage.ok(ledger.withdraw_bond(alice, TASK))?, fln(BOND_MIN))?;
    equal("no bond is left", claim(stage, alice, first.0, first.1)?, moved(0, 0))?;
    let proven = stage.read(ledger.claimed(TASK, alice.address()))?;
    equal("the debit counts as taken", proven, first.0.totals())?;
    refused(stage, "NOTHING_TO_CLAIM", alice, first)?;
    equal("pay only", claim(stage, bob, first.0, first.1)?, moved(9, 0))?;
    // A new bond covers new debits only, not the missed one.
    stage.ok(ledger.bond(alice, TASK, fln(BOND_MIN)))?;
    refused(stage, "NOTHING_TO_CLAIM", alice, first)?;
    let second = (debited(8), first.1);
    stage.settle(2, second.0, second.1)?;
    equal("the difference", claim(stage, alice, second.0, second.1)?, moved(0, 2))?;
    let held = stage.read(ledger.claimed(TASK, bob.address()))?;
    equal("Bob's", held, ClaimTotals { paid: fln(9), debited: fln(1) })?;
    equal("treasury", stage.read(ledger.treasury())?, fln(2))
}
