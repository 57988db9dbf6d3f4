//! A task from its opening over its settlements to its close.

use florin_protocol::{
    Address, Amount, DATA_PER_ROUND_MIN, Digest, Report, RoundNumber, SettlementId,
};

use crate::api::{Claim, Claimed, Posted, Settlement, SettlementStatus, Terms};
use crate::conformance::FUNDS;
use crate::conformance::stage::{
    CHALLENGE_MS, DATA, INFRASTRUCTURE, LIFE_MS, NO_TASK, Stage, Sums, TASK, after, equal, fln,
    paid, total,
};

pub(super) fn opening(stage: &Stage) -> Result<(), String> {
    let (ledger, buyer) = (stage.ledger(), stage.buyer()?);
    let terms = stage.terms(TASK)?;
    stage.refused("NOT_ALLOWED", ledger.open_task(stage.stranger()?, &terms))?;
    let unit = Amount::from_units(1);
    let dust = DATA_PER_ROUND_MIN.minus(unit).map_err(|error| error.to_string())?;
    for data in [Amount::ZERO, unit, dust] {
        let small = Terms { data, ..terms };
        stage.refused("TOO_SMALL", ledger.open_task(buyer, &small))?;
    }
    // The buyer pays, so it must not be able to cancel settlements.
    let own = Terms { arbiter: buyer.address(), ..terms };
    stage.refused("MEANINGLESS", ledger.open_task(buyer, &own))?;
    // Each pool alone is affordable.
    let dear = Terms { data: FUNDS, infrastructure: fln(1), ..terms };
    stage.refused("INSUFFICIENT_FUNDS", ledger.open_task(buyer, &dear))?;
    stage.ok(ledger.open_task(buyer, &terms))?;
    let task = stage.task(TASK)?;
    equal("terms", &task.terms, &terms)?;
    let pools = (task.data_locked, task.infrastructure_locked);
    equal("pools", pools, (fln(DATA), fln(INFRASTRUCTURE)))?;
    equal("root", task.root, Digest::default())?;
    equal("closed", task.closed, false)?;
    stage.lost(buyer.address(), total([fln(DATA), fln(INFRASTRUCTURE)])?)?;
    stage.refused("TASK_EXISTS", ledger.open_task(buyer, &terms))
}

fn status(stage: &Stage, payout: SettlementId, expected: SettlementStatus) -> Result<(), String> {
    equal("status", stage.read(stage.ledger().settlement(TASK, payout))?, expected)
}

pub(super) fn settling(stage: &Stage) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    let first = stage.settlement(1, 30, 10)?;
    stage.refused("UNKNOWN_TASK", ledger.post(coordinator, &first))?;
    stage.refused("UNKNOWN_TASK", ledger.finalize(stage.stranger()?, TASK))?;
    stage.opened()?;
    stage.refused("NOT_ALLOWED", ledger.post(stage.stranger()?, &first))?;
    equal("posted", stage.ok(ledger.post(coordinator, &first))?, Posted::New)?;
    equal("posted again", stage.ok(ledger.post(coordinator, &first))?, Posted::Already)?;
    let other = Settlement { report: Digest([9; 32]), ..first };
    stage.refused("CONFLICTING_SETTLEMENT", ledger.post(coordinator, &other))?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    // Rounds may be shorter than challenge windows.
    let second = Settlement { infrastructure_total: fln(7), ..stage.settlement(3, 60, 20)? };
    equal("the next one", stage.ok(ledger.post(coordinator, &second))?, Posted::New)?;
    equal("pending", stage.task(TASK)?.pending.len(), 2)?;
    equal("too early", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 0)?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    stage.pass(CHALLENGE_MS);
    equal("both are due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 2)?;
    equal("no third", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 0)?;
    status(stage, first.payout, SettlementStatus::Final)?;
    status(stage, second.payout, SettlementStatus::Final)?;
    let task = stage.task(TASK)?;
    equal("paid", (task.data_paid, task.infrastructure_paid), (fln(80), fln(7)))?;
    equal("owed", task.owed, fln(87))?;
    equal("root", task.root, second.root)?;
    equal("pending", task.pending.len(), 0)?;
    equal(
        "posted after it is final",
        stage.ok(ledger.post(coordinator, &first))?,
        Posted::Already,
    )?;
    stage.refused("CONFLICTING_SETTLEMENT", ledger.post(coordinator, &other))
}

pub(super) fn bad_settlements(stage: &Stage) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.opened()?;
    let zeroth = stage.settlement(0, 30, 10)?;
    stage.refused("BAD_SETTLEMENT", ledger.post(coordinator, &zeroth))?;
    let first = stage.settlement(2, 30, 10)?;
    stage.ok(ledger.post(coordinator, &first))?;
    let next = stage.settlement(3, 40, 10)?;
    let unit = Amount::from_units(1);
    let cases: Vec<(&str, Settlement)> = vec![
        ("an earlier round", stage.settlement(1, 40, 10)?),
        (
            "the next round's payout id",
            Settlement { payout: Report::settlement_id(TASK, RoundNumber(4)), ..next },
        ),
        (
            "another task's payout id",
            Settlement { payout: Report::settlement_id(NO_TASK, next.round), ..next },
        ),
        (
            "the paid round with another id",
            Settlement { payout: SettlementId([0x77; 32]), ..first },
        ),
        ("it continues no settlement", Settlement { previous_root: Digest::default(), ..next }),
        ("it continues itself", after(next, &next)),
        ("data total decreases", stage.settlement(3, 29, 10)?),
        ("data above the deposit", stage.settlement(3, DATA, 1)?),
        (
            "infrastructure above the deposit",
            Settlement { infrastructure_total: total([fln(INFRASTRUCTURE), unit])?, ..next },
        ),
        ("no root", Settlement { root: Digest::default(), ..next }),
    ];
    for (what, settlement) in cases {
        stage
            .refused("BAD_SETTLEMENT", ledger.post(coordinator, &settlement))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    // Totals must not decrease below the final ones either.
    stage.pass(CHALLENGE_MS);
    stage.ok(ledger.finalize(coordinator, TASK))?;
    let shrunk = stage.settlement(3, 30, 9)?;
    stage.refused("BAD_SETTLEMENT", ledger.post(coordinator, &shrunk))?;
    // The previous root must be the final one as well.
    let astray = Settlement { previous_root: Digest::default(), ..stage.settlement(3, 40, 10)? };
    stage.refused("BAD_SETTLEMENT", ledger.post(coordinator, &astray))?;
    // A round without payouts is a valid settlement.
    equal(
        "a round without payouts",
        stage.ok(ledger.post(coordinator, &stage.settlement(3, 30, 10)?))?,
        Posted::New,
    )
}

pub(super) fn cancelling(stage: &Stage) -> Result<(), String> {
    let (ledger, arbiter) = (stage.ledger(), stage.arbiter()?);
    let coordinator = stage.coordinator()?;
    let first = stage.settlement(1, 10, 0)?;
    let second = after(stage.settlement(2, 20, 0)?, &first);
    let third = after(stage.settlement(3, 30, 0)?, &second);
    stage.refused("UNKNOWN_TASK", ledger.cancel(arbiter, TASK, first.payout))?;
    stage.opened()?;
    stage.refused("NOT_FOUND", ledger.cancel(arbiter, TASK, first.payout))?;
    for settlement in [&first, &second, &third] {
        stage.ok(ledger.post(coordinator, settlement))?;
    }
    stage.refused("NOT_ALLOWED", ledger.cancel(coordinator, TASK, second.payout))?;
    stage.ok(ledger.cancel(arbiter, TASK, second.payout))?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    status(stage, second.payout, SettlementStatus::Unknown)?;
    status(stage, third.payout, SettlementStatus::Unknown)?;
    stage.refused("NOT_FOUND", ledger.cancel(arbiter, TASK, second.payout))?;
    // The later settlement continued the cancelled one, so it cannot be posted again.
    stage.refused("BAD_SETTLEMENT", ledger.post(coordinator, &third))?;
    // The payout id of a cancelled settlement can be used again.
    let better = stage.settlement(2, 15, 0)?;
    equal("a better one", stage.ok(ledger.post(coordinator, &better))?, Posted::New)?;
    stage.refused("BAD_SETTLEMENT", ledger.post(coordinator, &third))?;
    stage.pass(CHALLENGE_MS);
    stage.refused("WINDOW_CLOSED", ledger.cancel(arbiter, TASK, better.payout))?;
    equal("due", stage.ok(ledger.finalize(arbiter, TASK))?, 2)?;
    stage.refused("WINDOW_CLOSED", ledger.cancel(arbiter, TASK, first.payout))?;
    equal("paid", stage.task(TASK)?.data_paid, fln(15))
}

pub(super) fn claiming(stage: &Stage) -> Result<(), String> {
    let (ledger, stranger) = (stage.ledger(), stage.stranger()?);
    let alice = stage.alice()?.address();
    let claim = stage.claim(alice, 30, 10)?;
    stage.refused("UNKNOWN_TASK", ledger.claim(stranger, &claim))?;
    stage.opened()?;
    stage.refused("BAD_PROOF", ledger.claim(stranger, &claim))?;
    stage.ok(ledger.post(stage.coordinator()?, &stage.settlement(1, 30, 10)?))?;
    // A posted settlement is not final.
    stage.refused("BAD_PROOF", ledger.claim(stranger, &claim))?;
    stage.pass(CHALLENGE_MS);
    stage.ok(ledger.finalize(stranger, TASK))?;
    let wrong: Vec<(&str, Claim)> = vec![
        ("more", Claim { totals: paid(31).totals(), ..claim.clone() }),
        ("less", Claim { totals: paid(29).totals(), ..claim.clone() }),
        ("a debit", Claim { totals: Sums { paid: 30, debited: 1 }.totals(), ..claim.clone() }),
        ("another account", Claim { account: stranger.address(), ..claim.clone() }),
        ("no proof", Claim { proof: Vec::new(), ..claim.clone() }),
        ("a long proof", Claim { proof: vec![Digest([3; 32]); 65], ..claim.clone() }),
        ("another task", Claim { task: NO_TASK, ..claim.clone() }),
    ];
    for (what, claim) in &wrong {
        let code = if claim.task == NO_TASK { "UNKNOWN_TASK" } else { "BAD_PROOF" };
        stage
            .refused(code, ledger.claim(stranger, claim))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    equal("paid", stage.ok(ledger.claim(stranger, &claim))?, drawn(30))?;
    stage.gained(alice, fln(30))?;
    stage.gained(stranger.address(), Amount::ZERO)?;
    equal("claimed", stage.read(ledger.claimed(TASK, alice))?, paid(30).totals())?;
    stage.refused("NOTHING_TO_CLAIM", ledger.claim(stage.alice()?, &claim))?;
    equal("owed", stage.task(TASK)?.owed, fln(10))
}

fn settle(stage: &Stage, round: u32, alice: u64, bob: u64) -> Result<(), String> {
    stage.settle(round, paid(alice), paid(bob))
}

/// The outcome of a claim without a debit.
fn drawn(amount: u64) -> Claimed {
    Claimed { paid: fln(amount), taken: Amount::ZERO }
}

pub(super) fn claiming_again(stage: &Stage) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.opened()?;
    settle(stage, 1, 30, 10)?;
    let first = stage.claim(alice.address(), 30, 10)?;
    equal("first", stage.ok(ledger.claim(alice, &first))?, drawn(30))?;
    settle(stage, 2, 35, 12)?;
    // An old proof does not match the new root, even though its totals were valid before.
    stage.refused("BAD_PROOF", ledger.claim(alice, &first))?;
    let second = stage.claim(alice.address(), 35, 12)?;
    equal("the difference", stage.ok(ledger.claim(alice, &second))?, drawn(5))?;
    let both = stage.claim(bob.address(), 35, 12)?;
    equal("two rounds at once", stage.ok(ledger.claim(alice, &both))?, drawn(12))?;
    stage.gained(alice.address(), fln(35))?;
    stage.gained(bob.address(), fln(12))?;
    equal("owed", stage.task(TASK)?.owed, Amount::ZERO)
}

pub(super) fn closing(stage: &Stage) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.refused("UNKNOWN_TASK", ledger.close(coordinator, TASK))?;
    stage.opened()?;
    settle(stage, 1, 30, 10)?;
    let second = stage.settlement(2, 40, 10)?;
    stage.ok(ledger.post(coordinator, &second))?;
    // Not even the buyer may close it before it expires.
    stage.refused("TOO_EARLY", ledger.close(stage.buyer()?, TASK))?;
    stage.refused("SETTLEMENT_PENDING", ledger.close(coordinator, TASK))?;
    stage.ok(ledger.cancel(stage.arbiter()?, TASK, second.payout))?;
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(40));
    equal("refund", stage.ok(ledger.close(coordinator, TASK))?, rest)?;
    stage.lost(stage.buyer()?.address(), fln(40))?;
    let task = stage.task(TASK)?;
    equal("closed", task.closed, true)?;
    equal("refunded", task.refunded, rest)?;
    equal("locked", (task.data_locked, task.infrastructure_locked), Default::default())?;
    stage.refused("TASK_CLOSED", ledger.close(coordinator, TASK))?;
    stage.refused("TASK_CLOSED", ledger.post(coordinator, &second))?;
    let terms = stage.terms(TASK)?;
    stage.refused("TASK_EXISTS", ledger.open_task(stage.buyer()?, &terms))?;
    // Finalised amounts can still be claimed.
    let claim = stage.claim(stage.bob()?.address(), 30, 10)?;
    equal("claim", stage.ok(ledger.claim(stage.stranger()?, &claim))?, drawn(10))
}

pub(super) fn expiring(stage: &Stage) -> Result<(), String> {
    let (ledger, stranger) = (stage.ledger(), stage.stranger()?);
    stage.opened()?;
    let settlement = stage.settlement(1, 5, 0)?;
    stage.refused("TOO_EARLY", ledger.close(stranger, TASK))?;
    stage.pass(LIFE_MS);
    // A coordinator that continues to post could keep the buyer's money locked.
    stage.refused("BAD_SETTLEMENT", ledger.post(stage.coordinator()?, &settlement))?;
    let all = fln(DATA.saturating_add(INFRASTRUCTURE));
    equal("refund", stage.ok(ledger.close(stranger, TASK))?, all)?;
    stage.gained(stage.buyer()?.address(), Amount::ZERO)
}

pub(super) fn closing_settles(stage: &Stage) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.opened()?;
    let first = stage.settlement(1, 30, 10)?;
    let second = Settlement { infrastructure_total: fln(3), ..stage.settlement(2, 50, 10)? };
    let second = after(second, &first);
    stage.ok(ledger.post(coordinator, &first))?;
    stage.ok(ledger.post(coordinator, &second))?;
    stage.pass(CHALLENGE_MS);
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(63));
    equal("refund", stage.ok(ledger.close(coordinator, TASK))?, rest)?;
    status(stage, second.payout, SettlementStatus::Final)?;
    let task = stage.task(TASK)?;
    equal("paid", (task.data_paid, task.infrastructure_paid), (fln(60), fln(3)))?;
    let alice: Address = stage.alice()?.address();
    equal("claim", stage.ok(ledger.claim(coordinator, &stage.claim(alice, 50, 10)?))?, drawn(50))
}
