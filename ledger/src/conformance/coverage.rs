//! The coordinator's bond: it covers the pay that is posted and not final.

use florin_protocol::{Amount, Digest};

use crate::api::{LedgerError, PostOutcome, Refusal, Slash, Terms};
use crate::conformance::scenario::{
    BOND_MIN, CHALLENGE_MS, ROUNDS, Scenario, TASK, UNBOND_MS, continuing, expect_equal, fln,
};

/// The bond that is less than the minimum of participants.
const SMALL_BOND: u64 = BOND_MIN.saturating_sub(1);

/// Checks that a post of this total is refused for the lack of a bond, with both amounts.
fn expect_uncovered(
    stage: &Scenario,
    (round, paid): (u32, u64),
    offered: Amount,
    smallest: Amount,
) -> Result<(), String> {
    let answer = stage.ledger().post(stage.coordinator()?, &stage.settlement(round, paid, 0)?);
    if let Err(LedgerError::Refused(Refusal::TooSmall { offered: got, smallest: needed })) = &answer
    {
        expect_equal("offered and needed", (*got, *needed), (offered, smallest))?;
    }
    stage.expect_refused("TOO_SMALL", answer)
}

fn expect_posted(stage: &Scenario, round: u32, paid: u64) -> Result<(), String> {
    let settlement = stage.settlement(round, paid, 0)?;
    let posted = stage.ok(stage.ledger().post(stage.coordinator()?, &settlement))?;
    expect_equal("posted", posted, PostOutcome::Posted)
}

fn slash(stage: &Scenario, amount: Amount) -> Result<Slash, String> {
    let account = stage.coordinator()?.address();
    Ok(Slash { task: TASK, account, stake: false, amount, evidence: Digest([0xcc; 32]) })
}

pub(super) fn posting(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    let unit = Amount::from_units(1);
    stage.open_task_without_bond()?;
    // A settlement without pay needs no bond; the bond of another account covers nothing.
    stage.ok(ledger.bond(stage.alice()?, TASK, fln(100)))?;
    expect_posted(stage, 1, 0)?;
    expect_uncovered(stage, (2, 30), Amount::ZERO, fln(30))?;
    // The minimum of participants does not concern the coordinator.
    stage.ok(ledger.bond(coordinator, TASK, fln(SMALL_BOND)))?;
    let rest = fln(30_u64.saturating_sub(SMALL_BOND)).minus(unit).map_err(|e| e.to_string())?;
    stage.ok(ledger.bond(coordinator, TASK, rest))?;
    let almost = fln(30).minus(unit).map_err(|error| error.to_string())?;
    expect_uncovered(stage, (2, 30), almost, fln(30))?;
    stage.ok(ledger.bond(coordinator, TASK, unit))?;
    let first = stage.settlement(2, 30, 0)?;
    stage.ok(ledger.post(coordinator, &first))?;
    // Both pools count, and pay of all settlements that are not final.
    let next = continuing(stage.settlement(3, 30, 0)?, &first);
    let infrastructure = crate::api::Settlement { infrastructure_total: unit, ..next };
    stage.expect_refused("TOO_SMALL", ledger.post(coordinator, &infrastructure))?;
    expect_uncovered(stage, (3, 31), fln(30), fln(31))?;
    // A repeated post, and one that pays nothing more, stay possible.
    let again = stage.ok(ledger.post(coordinator, &first))?;
    expect_equal("again", again, PostOutcome::AlreadyPosted)?;
    expect_posted(stage, 3, 30)?;
    // An invalid settlement is refused as such, not for the lack of a bond.
    let greedy = stage.settlement(4, 290, 0)?;
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &greedy))?;
    // Due settlements count until they are finalised.
    stage.advance_past(CHALLENGE_MS);
    expect_uncovered(stage, (4, 31), fln(30), fln(31))?;
    expect_equal("due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 3)?;
    expect_uncovered(stage, (4, 61), fln(30), fln(31))?;
    expect_posted(stage, 4, 60)?;
    // A cancelled settlement frees the bond.
    let fourth = stage.settlement(4, 60, 0)?.payout;
    stage.ok(ledger.cancel(stage.arbiter()?, TASK, fourth))?;
    expect_posted(stage, 5, 60)?;
    let bond = stage.bond_amount(TASK, coordinator.address())?;
    expect_equal("posts take nothing from the bond", bond, fln(30))
}

pub(super) fn requested_return(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.open_task()?;
    expect_posted(stage, 1, 10)?;
    stage.ok(ledger.unbond(coordinator, TASK))?;
    expect_uncovered(stage, (2, 20), Amount::ZERO, fln(20))?;
    // Final pay needs no cover: a post that pays nothing more needs none.
    stage.advance_past(UNBOND_MS.saturating_add(CHALLENGE_MS.saturating_mul(2)));
    stage.ok(ledger.finalize(coordinator, TASK))?;
    expect_posted(stage, 2, 10)?;
    // The delay is over, but the task is open.
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(coordinator, TASK))?;
    expect_uncovered(stage, (3, 11), Amount::ZERO, fln(1))?;
    // An additional bond, also of nothing, cancels the request.
    stage.ok(ledger.bond(coordinator, TASK, Amount::ZERO))?;
    expect_posted(stage, 3, 150)?;
    stage.expect_refused("NOT_FOUND", ledger.withdraw_bond(coordinator, TASK))
}

pub(super) fn slashed_bond(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator, arbiter) = (stage.ledger(), stage.coordinator()?, stage.arbiter()?);
    stage.open_task_without_bond()?;
    stage.ok(ledger.bond(coordinator, TASK, fln(40)))?;
    expect_posted(stage, 1, 40)?;
    let taken = stage.ok(ledger.slash(arbiter, &slash(stage, fln(25))?))?;
    expect_equal("taken", taken, fln(25))?;
    expect_uncovered(stage, (2, 41), fln(15), fln(41))?;
    stage.ok(ledger.bond(coordinator, TASK, fln(26)))?;
    expect_posted(stage, 2, 41)?;
    // A slash after the request does not revive the cover.
    stage.ok(ledger.unbond(coordinator, TASK))?;
    stage.ok(ledger.slash(arbiter, &slash(stage, fln(1))?))?;
    expect_uncovered(stage, (3, 42), Amount::ZERO, fln(42))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(26))
}

pub(super) fn return_after_close(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator, arbiter) = (stage.ledger(), stage.coordinator()?, stage.arbiter()?);
    stage.open_task_without_bond()?;
    stage.ok(ledger.bond(coordinator, TASK, fln(50)))?;
    stage.ok(ledger.bond(stage.alice()?, TASK, fln(BOND_MIN)))?;
    expect_posted(stage, ROUNDS, 50)?;
    let free = stage.last_posted_at()?.saturating_add_ms(CHALLENGE_MS.saturating_mul(2));
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.close(coordinator, TASK))?;
    // The arbiter can still slash the coordinator's bond, but no other one.
    expect_equal("taken", stage.ok(ledger.slash(arbiter, &slash(stage, fln(20))?))?, fln(20))?;
    let alice = Slash { account: stage.alice()?.address(), ..slash(stage, fln(1))? };
    stage.expect_refused("TASK_CLOSED", ledger.slash(arbiter, &alice))?;
    let stake = Slash { stake: true, ..slash(stage, fln(1))? };
    stage.expect_refused("TASK_CLOSED", ledger.slash(arbiter, &stake))?;
    stage.expect_refused("TASK_CLOSED", ledger.bond(coordinator, TASK, fln(1)))?;
    stage.expect_withdrawable_at(coordinator, free)?;
    // Until it is withdrawn, also later.
    expect_equal("later", stage.ok(ledger.slash(arbiter, &slash(stage, fln(10))?))?, fln(10))?;
    expect_equal("the rest", stage.ok(ledger.withdraw_bond(coordinator, TASK))?, fln(20))?;
    stage.expect_refused("NOT_FOUND", ledger.slash(arbiter, &slash(stage, fln(1))?))?;
    stage.expect_lost(coordinator.address(), fln(30))
}

pub(super) fn trusted_coordinator(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    let terms = Terms { arbiter: coordinator.address(), ..stage.terms(TASK)? };
    stage.ok(ledger.open_task(stage.buyer()?, &terms))?;
    expect_posted(stage, 1, 50)?;
    // Its bond is one of a participant.
    let small = ledger.bond(coordinator, TASK, fln(SMALL_BOND));
    stage.expect_refused("TOO_SMALL", small)?;
    stage.ok(ledger.bond(coordinator, TASK, fln(BOND_MIN)))?;
    stage.ok(ledger.unbond(coordinator, TASK))?;
    stage.advance_past(UNBOND_MS.saturating_add(CHALLENGE_MS.saturating_mul(2)));
    let returned = stage.ok(ledger.withdraw_bond(coordinator, TASK))?;
    expect_equal("withdrawn from an open task", returned, fln(BOND_MIN))?;
    stage.ok(ledger.bond(coordinator, TASK, fln(BOND_MIN)))?;
    expect_posted(stage, 2, 100)?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.close(coordinator, TASK))?;
    stage.expect_refused("TASK_CLOSED", ledger.slash(coordinator, &slash(stage, fln(1))?))?;
    stage.expect_lost(coordinator.address(), fln(BOND_MIN))
}
