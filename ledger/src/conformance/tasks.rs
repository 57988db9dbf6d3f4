//! A task from its opening over its settlements to its close.

use florin_protocol::limits::TASK_MS_MAX;
use florin_protocol::{
    Address, Amount, DATA_PER_ROUND_MIN, Digest, LedgerReceipt, Micro, Report, RoundNumber,
    SettlementId, Timestamp,
};

use crate::api::{
    Claim, ClaimOutcome, Objection, PostOutcome, Settlement, SettlementStatus, Terms,
};
use crate::conformance::INITIAL_BALANCE;
use crate::conformance::scenario::{
    CHALLENGE_MS, DATA, INFRASTRUCTURE, LIFE_MS, NANO_PER_FLORIN, NO_TASK, OTHER_TASK, ROUNDS,
    Scenario, TASK, TotalsInFlorins, continuing, expect_equal, fln, paid, total,
};

pub(super) fn opening(stage: &Scenario) -> Result<(), String> {
    let (ledger, buyer) = (stage.ledger(), stage.buyer()?);
    let terms = stage.terms(TASK)?;
    stage.expect_refused("UNAUTHORIZED", ledger.open_task(stage.stranger()?, &terms))?;
    let unit = Amount::from_units(1);
    let dust = DATA_PER_ROUND_MIN.minus(unit).map_err(|error| error.to_string())?;
    for data in [Amount::ZERO, unit, dust] {
        let small = Terms { data, ..terms };
        stage.expect_refused("TOO_SMALL", ledger.open_task(buyer, &small))?;
    }
    // The buyer pays, so it must not be able to cancel settlements.
    let own = Terms { arbiter: buyer.address(), ..terms };
    let endless = Terms { rounds: 0, ..terms };
    let generous = Terms { floor_share: Micro(1_000_001), ..terms };
    let unarbitrated = Terms { arbiter: Address::default(), ..terms };
    let windowless = Terms { challenge_ms: 0, ..terms };
    for wrong in [own, endless, generous, unarbitrated, windowless] {
        stage.expect_refused("INVALID_ARGUMENT", ledger.open_task(buyer, &wrong))?;
    }
    let latest = stage.now()?.saturating_add_ms(TASK_MS_MAX);
    for late in [latest.saturating_add_ms(stage.clock_drift_ms()), Timestamp::MAX] {
        let late = Terms { expires: late, ..terms };
        stage.expect_refused("LIMIT_EXCEEDED", ledger.open_task(buyer, &late))?;
    }
    // Each pool alone is affordable.
    let dear = Terms { data: INITIAL_BALANCE, infrastructure: fln(1), ..terms };
    stage.expect_refused("INSUFFICIENT_FUNDS", ledger.open_task(buyer, &dear))?;
    stage.ok(ledger.open_task(buyer, &terms))?;
    let task = stage.task(TASK)?;
    expect_equal("terms", &task.terms, &terms)?;
    let pools = (task.data_locked, task.infrastructure_locked);
    expect_equal("pools", pools, (fln(DATA), fln(INFRASTRUCTURE)))?;
    expect_equal("root", task.root, Digest::default())?;
    expect_equal("closed", task.closed, false)?;
    stage.expect_lost(buyer.address(), total([fln(DATA), fln(INFRASTRUCTURE)])?)?;
    stage.expect_refused("TASK_EXISTS", ledger.open_task(buyer, &terms))?;
    // The longest life and the shortest window are accepted.
    let long = Terms { expires: latest, challenge_ms: 1, ..stage.terms(OTHER_TASK)? };
    stage.ok(ledger.open_task(buyer, &long)).map(|_| ())
}

fn status(
    stage: &Scenario,
    payout: SettlementId,
    expected: SettlementStatus,
) -> Result<(), String> {
    expect_equal(
        "status",
        stage.expect_read(stage.ledger().settlement_status(TASK, payout))?,
        expected,
    )
}

pub(super) fn settling(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    let first = stage.settlement(1, 30, 10)?;
    stage.expect_refused("UNKNOWN_TASK", ledger.post(coordinator, &first))?;
    stage.expect_refused("UNKNOWN_TASK", ledger.finalize(stage.stranger()?, TASK))?;
    stage.open_task()?;
    stage.expect_refused("UNAUTHORIZED", ledger.post(stage.stranger()?, &first))?;
    expect_equal("posted", stage.ok(ledger.post(coordinator, &first))?, PostOutcome::Posted)?;
    expect_equal(
        "posted again",
        stage.ok(ledger.post(coordinator, &first))?,
        PostOutcome::AlreadyPosted,
    )?;
    let other = Settlement { report: Digest([9; 32]), ..first };
    stage.expect_refused("CONFLICTING_SETTLEMENT", ledger.post(coordinator, &other))?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    // Rounds may be shorter than challenge windows.
    let second = Settlement { infrastructure_total: fln(7), ..stage.settlement(3, 60, 20)? };
    expect_equal(
        "the next one",
        stage.ok(ledger.post(coordinator, &second))?,
        PostOutcome::Posted,
    )?;
    expect_equal("pending", stage.task(TASK)?.pending.len(), 2)?;
    expect_equal("too early", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 0)?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    stage.advance_past(CHALLENGE_MS);
    expect_equal("both are due", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 2)?;
    expect_equal("no third", stage.ok(ledger.finalize(stage.stranger()?, TASK))?, 0)?;
    status(stage, first.payout, SettlementStatus::Final)?;
    status(stage, second.payout, SettlementStatus::Final)?;
    let task = stage.task(TASK)?;
    expect_equal("paid", (task.data_paid, task.infrastructure_paid), (fln(80), fln(7)))?;
    expect_equal("owed", task.owed, fln(87))?;
    expect_equal("root", task.root, second.root)?;
    expect_equal("pending", task.pending.len(), 0)?;
    expect_equal(
        "posted after it is final",
        stage.ok(ledger.post(coordinator, &first))?,
        PostOutcome::AlreadyPosted,
    )?;
    stage.expect_refused("CONFLICTING_SETTLEMENT", ledger.post(coordinator, &other))
}

pub(super) fn invalid_settlements(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.open_task()?;
    let zeroth = stage.settlement(0, 30, 10)?;
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &zeroth))?;
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
        ("it continues itself", continuing(next, &next)),
        ("data total decreases", stage.settlement(3, 29, 10)?),
        ("data above the deposit", stage.settlement(ROUNDS, DATA, 1)?),
        (
            "infrastructure above the deposit",
            Settlement {
                infrastructure_total: total([fln(INFRASTRUCTURE), unit])?,
                ..stage.settlement(ROUNDS, 40, 10)?
            },
        ),
        ("a round after the last", stage.settlement(ROUNDS.saturating_add(1), 40, 10)?),
        ("no root", Settlement { root: Digest::default(), ..next }),
    ];
    for (what, settlement) in cases {
        stage
            .expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &settlement))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    // Totals must not decrease below the final ones either.
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.finalize(coordinator, TASK))?;
    let shrunk = stage.settlement(3, 30, 9)?;
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &shrunk))?;
    // The previous root must be the final one as well.
    let astray = Settlement { previous_root: Digest::default(), ..stage.settlement(3, 40, 10)? };
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &astray))?;
    // A round without payouts is a valid settlement.
    expect_equal(
        "a round without payouts",
        stage.ok(ledger.post(coordinator, &stage.settlement(3, 30, 10)?))?,
        PostOutcome::Posted,
    )
}

/// A total, and the same with one base unit more: the last valid and the first invalid one.
fn at_and_above(total: Amount) -> Result<[(Amount, bool); 2], String> {
    let above = total.plus(Amount::from_units(1)).map_err(|error| error.to_string())?;
    Ok([(total, true), (above, false)])
}

pub(super) fn spending_follows_rounds_and_improvement(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.open_task()?;
    // A later round raises the limits of the totals; a skipped round does not lower them.
    for (round, data, infrastructure) in [(1, 50, 16), (3, 150, 50), (6, 300, 100)] {
        let paid = stage.settlement(round, data, 0)?;
        let exact = INFRASTRUCTURE.saturating_mul(round.into()).checked_rem(ROUNDS.into());
        let limit = match exact {
            Some(0) => fln(infrastructure),
            // A sixth of 100 florins, rounded down to base units.
            _ => Amount::from_units(16_666_666_666_666_666_666),
        };
        let floor = fln(u64::from(round).saturating_mul(10));
        let mut cases = Vec::new();
        for (score_pay_total, valid) in at_and_above(fln(data))? {
            // One unit more for scores, in both totals.
            cases
                .push((Settlement { data_total: score_pay_total, score_pay_total, ..paid }, valid));
        }
        for (infrastructure_total, valid) in at_and_above(limit)? {
            cases.push((Settlement { infrastructure_total, ..paid }, valid));
        }
        for (floor, valid) in at_and_above(floor)? {
            let scores = fln(data).minus(floor).map_err(|error| error.to_string())?;
            cases.push((Settlement { score_pay_total: scores, ..paid }, valid));
        }
        for (short, valid) in [(0, true), (1, false)] {
            let nano = data.saturating_mul(NANO_PER_FLORIN).saturating_sub(short);
            cases.push((Settlement { improvement_total_nano: nano, ..paid }, valid));
        }
        let [_, (above, _)] = at_and_above(paid.data_total)?;
        cases.push((Settlement { score_pay_total: above, ..paid }, false));
        cases.push((Settlement { improvement_total_nano: u64::MAX, ..paid }, true));
        for (settlement, valid) in cases {
            if valid {
                let posted = ledger.post(coordinator, &settlement);
                expect_equal("within the limits", stage.ok(posted)?, PostOutcome::Posted)?;
                stage.ok(ledger.cancel(stage.arbiter()?, TASK, settlement.payout))?;
            } else {
                let code = "INVALID_SETTLEMENT";
                stage.expect_refused(code, ledger.post(coordinator, &settlement))?;
            }
        }
        stage.ok(ledger.post(coordinator, &paid))?;
    }
    Ok(())
}

pub(super) fn cancelling(stage: &Scenario) -> Result<(), String> {
    let (ledger, arbiter) = (stage.ledger(), stage.arbiter()?);
    let coordinator = stage.coordinator()?;
    let first = stage.settlement(1, 10, 0)?;
    let second = continuing(stage.settlement(2, 20, 0)?, &first);
    let third = continuing(stage.settlement(3, 30, 0)?, &second);
    stage.expect_refused("UNKNOWN_TASK", ledger.cancel(arbiter, TASK, first.payout))?;
    stage.open_task()?;
    stage.expect_refused("NOT_FOUND", ledger.cancel(arbiter, TASK, first.payout))?;
    for settlement in [&first, &second, &third] {
        stage.ok(ledger.post(coordinator, settlement))?;
    }
    stage.expect_refused("UNAUTHORIZED", ledger.cancel(coordinator, TASK, second.payout))?;
    stage.ok(ledger.cancel(arbiter, TASK, second.payout))?;
    status(stage, first.payout, SettlementStatus::Pending)?;
    status(stage, second.payout, SettlementStatus::Unknown)?;
    status(stage, third.payout, SettlementStatus::Unknown)?;
    stage.expect_refused("NOT_FOUND", ledger.cancel(arbiter, TASK, second.payout))?;
    // The later settlement continued the cancelled one, so it cannot be posted again.
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &third))?;
    // The payout id of a cancelled settlement can be used again.
    let better = stage.settlement(2, 15, 0)?;
    expect_equal(
        "a better one",
        stage.ok(ledger.post(coordinator, &better))?,
        PostOutcome::Posted,
    )?;
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(coordinator, &third))?;
    stage.advance_past(CHALLENGE_MS);
    stage.expect_refused("WINDOW_CLOSED", ledger.cancel(arbiter, TASK, better.payout))?;
    expect_equal("due", stage.ok(ledger.finalize(arbiter, TASK))?, 2)?;
    stage.expect_refused("WINDOW_CLOSED", ledger.cancel(arbiter, TASK, first.payout))?;
    expect_equal("paid", stage.task(TASK)?.data_paid, fln(15))
}

pub(super) fn claiming(stage: &Scenario) -> Result<(), String> {
    let (ledger, stranger) = (stage.ledger(), stage.stranger()?);
    let alice = stage.alice()?.address();
    let claim = stage.claim(alice, 30, 10)?;
    stage.expect_refused("UNKNOWN_TASK", ledger.claim(stranger, &claim))?;
    stage.open_task()?;
    stage.expect_refused("INVALID_PROOF", ledger.claim(stranger, &claim))?;
    stage.ok(ledger.post(stage.coordinator()?, &stage.settlement(1, 30, 10)?))?;
    // A posted settlement is not final.
    stage.expect_refused("INVALID_PROOF", ledger.claim(stranger, &claim))?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.finalize(stranger, TASK))?;
    let wrong: Vec<(&str, Claim)> = vec![
        ("more", Claim { totals: paid(31).totals(), ..claim.clone() }),
        ("less", Claim { totals: paid(29).totals(), ..claim.clone() }),
        (
            "a debit",
            Claim { totals: TotalsInFlorins { paid: 30, debited: 1 }.totals(), ..claim.clone() },
        ),
        ("another account", Claim { account: stranger.address(), ..claim.clone() }),
        ("no proof", Claim { proof: Vec::new(), ..claim.clone() }),
        ("a long proof", Claim { proof: vec![Digest([3; 32]); 65], ..claim.clone() }),
        ("another task", Claim { task: NO_TASK, ..claim.clone() }),
    ];
    for (what, claim) in &wrong {
        let code = if claim.task == NO_TASK { "UNKNOWN_TASK" } else { "INVALID_PROOF" };
        stage
            .expect_refused(code, ledger.claim(stranger, claim))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    expect_equal("paid", stage.ok(ledger.claim(stranger, &claim))?, paid_outcome(30))?;
    stage.expect_gained(alice, fln(30))?;
    stage.expect_gained(stranger.address(), Amount::ZERO)?;
    expect_equal(
        "claimed",
        stage.expect_read(ledger.claimed_totals(TASK, alice))?,
        paid(30).totals(),
    )?;
    stage.expect_refused("NOTHING_TO_CLAIM", ledger.claim(stage.alice()?, &claim))?;
    expect_equal("owed", stage.task(TASK)?.owed, fln(10))
}

fn settle(stage: &Scenario, round: u32, alice: u64, bob: u64) -> Result<(), String> {
    stage.settle(round, paid(alice), paid(bob))
}

/// The outcome of a claim without a debit.
fn paid_outcome(amount: u64) -> ClaimOutcome {
    ClaimOutcome { paid: fln(amount), taken: Amount::ZERO }
}

pub(super) fn claiming_again(stage: &Scenario) -> Result<(), String> {
    let (ledger, alice, bob) = (stage.ledger(), stage.alice()?, stage.bob()?);
    stage.open_task()?;
    settle(stage, 1, 30, 10)?;
    let first = stage.claim(alice.address(), 30, 10)?;
    expect_equal("first", stage.ok(ledger.claim(alice, &first))?, paid_outcome(30))?;
    settle(stage, 2, 35, 12)?;
    // An old proof does not match the new root, even though its totals were valid before.
    stage.expect_refused("INVALID_PROOF", ledger.claim(alice, &first))?;
    let second = stage.claim(alice.address(), 35, 12)?;
    expect_equal("the difference", stage.ok(ledger.claim(alice, &second))?, paid_outcome(5))?;
    let both = stage.claim(bob.address(), 35, 12)?;
    expect_equal("two rounds at once", stage.ok(ledger.claim(alice, &both))?, paid_outcome(12))?;
    stage.expect_gained(alice.address(), fln(35))?;
    stage.expect_gained(bob.address(), fln(12))?;
    expect_equal("owed", stage.task(TASK)?.owed, Amount::ZERO)
}

pub(super) fn closing(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.expect_refused("UNKNOWN_TASK", ledger.close(coordinator, TASK))?;
    stage.open_task()?;
    settle(stage, 1, 30, 10)?;
    // Not even the buyer may close it before it expires.
    stage.expect_refused("TOO_EARLY", ledger.close(stage.buyer()?, TASK))?;
    let second = stage.settlement(2, 40, 10)?;
    stage.ok(ledger.post(coordinator, &second))?;
    stage.expect_refused("SETTLEMENT_PENDING", ledger.close(coordinator, TASK))?;
    stage.ok(ledger.cancel(stage.arbiter()?, TASK, second.payout))?;
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(40));
    // A cancelled settlement ends the task: the coordinator closes it without a window.
    expect_equal("refund", stage.ok(ledger.close(coordinator, TASK))?, rest)?;
    stage.expect_lost(stage.buyer()?.address(), fln(40))?;
    let task = stage.task(TASK)?;
    expect_equal("closed", task.closed, true)?;
    expect_equal("refunded", task.refunded, rest)?;
    expect_equal("locked", (task.data_locked, task.infrastructure_locked), Default::default())?;
    stage.expect_refused("TASK_CLOSED", ledger.close(coordinator, TASK))?;
    stage.expect_refused("TASK_CLOSED", ledger.post(coordinator, &second))?;
    let terms = stage.terms(TASK)?;
    stage.expect_refused("TASK_EXISTS", ledger.open_task(stage.buyer()?, &terms))?;
    // Finalised amounts can still be claimed.
    let claim = stage.claim(stage.bob()?.address(), 30, 10)?;
    expect_equal("claim", stage.ok(ledger.claim(stage.stranger()?, &claim))?, paid_outcome(10))
}

pub(super) fn announced_close(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.expect_refused("UNKNOWN_TASK", ledger.announce_close(coordinator, TASK))?;
    stage.open_task()?;
    stage.expect_refused("UNAUTHORIZED", ledger.announce_close(stage.buyer()?, TASK))?;
    stage.expect_refused("TOO_EARLY", ledger.close(coordinator, TASK))?;
    let first = stage.settlement(1, 30, 10)?;
    stage.ok(ledger.post(coordinator, &first))?;
    stage.expect_refused("SETTLEMENT_PENDING", ledger.announce_close(coordinator, TASK))?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.finalize(coordinator, TASK))?;
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    let closes_at = stage.task(TASK)?.closes_at.ok_or("no close is announced")?;
    stage.expect_refused("TOO_EARLY", ledger.close(coordinator, TASK))?;
    stage.advance(2_000);
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    expect_equal("a second announcement", stage.task(TASK)?.closes_at, Some(closes_at))?;
    // A task that goes on is not about to be closed.
    let second = continuing(stage.settlement(2, 40, 10)?, &first);
    stage.ok(ledger.post(coordinator, &second))?;
    expect_equal("after a post", stage.task(TASK)?.closes_at, None)?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.finalize(coordinator, TASK))?;
    stage.expect_refused("TOO_EARLY", ledger.close(coordinator, TASK))?;
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    let closes_at = stage.task(TASK)?.closes_at.ok_or("no close is announced")?;
    stage.advance_to_just_before(closes_at)?;
    stage.expect_refused("TOO_EARLY", ledger.close(stage.stranger()?, TASK))?;
    stage.advance_to(closes_at)?;
    // Then any account closes it.
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(50));
    expect_equal("refund", stage.ok(ledger.close(stage.stranger()?, TASK))?, rest)?;
    stage.expect_refused("TASK_CLOSED", ledger.announce_close(coordinator, TASK))
}

pub(super) fn finished_task(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.ok(ledger.open_task(stage.buyer()?, &Terms { rounds: 1, ..stage.terms(TASK)? }))?;
    stage.ok(ledger.bond(coordinator, TASK, fln(40)))?;
    settle(stage, 1, 30, 10)?;
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(40));
    stage.expect_refused("TOO_EARLY", ledger.close(stage.stranger()?, TASK))?;
    expect_equal("refund", stage.ok(ledger.close(coordinator, TASK))?, rest)
}

pub(super) fn objecting(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator, alice) = (stage.ledger(), stage.coordinator()?, stage.alice()?);
    let objection = stage.objection(TASK, 2)?;
    stage.expect_refused("UNKNOWN_TASK", ledger.object(alice, &objection))?;
    stage.open_task_without_bond()?;
    stage.ok(ledger.bond(coordinator, TASK, fln(50)))?;
    settle(stage, 1, 30, 10)?;
    stage.expect_refused("NOT_FOUND", ledger.object(alice, &objection))?;
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    let settled = stage.objection(TASK, 1)?;
    stage.expect_refused("INVALID_ARGUMENT", ledger.object(alice, &settled))?;
    let changes = [
        ("another round", LedgerReceipt { round: RoundNumber(3), ..objection.receipt }),
        ("another sender", LedgerReceipt { sender: coordinator.address(), ..objection.receipt }),
        ("another update", LedgerReceipt { update: Digest([1; 32]), ..objection.receipt }),
    ];
    for (what, receipt) in changes {
        let forged = Objection { receipt, ..objection };
        stage
            .expect_refused("INVALID_SIGNATURE", ledger.object(alice, &forged))
            .map_err(|error| format!("{what}: {error}"))?;
    }
    // Another task's receipt is none of this task.
    let elsewhere = Objection { receipt: stage.objection(OTHER_TASK, 2)?.receipt, ..objection };
    stage.expect_refused("UNKNOWN_TASK", ledger.object(alice, &elsewhere))?;
    // Any account may object; it costs the coordinator its bond.
    let stranger = stage.stranger()?;
    expect_equal("taken", stage.ok(ledger.object(stranger, &objection))?, fln(50))?;
    stage.expect_lost(coordinator.address(), fln(50))?;
    expect_equal("treasury", stage.expect_read(ledger.treasury())?, fln(50))?;
    expect_equal("announced", stage.task(TASK)?.closes_at, None)?;
    stage.advance_past(CHALLENGE_MS);
    stage.expect_refused("TOO_EARLY", ledger.close(coordinator, TASK))?;
    // The receipt holds up the next attempt too.
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    stage.advance_past(CHALLENGE_MS);
    expect_equal("nothing left", stage.ok(ledger.object(alice, &objection))?, Amount::ZERO)?;
    stage.expect_refused("TOO_EARLY", ledger.close(coordinator, TASK))?;
    // A settlement of the round answers it.
    let first = stage.settlement(1, 30, 10)?;
    let second = continuing(stage.settlement(2, 30, 10)?, &first);
    stage.ok(ledger.post(coordinator, &second))?;
    stage.expect_refused("SETTLEMENT_PENDING", ledger.object(alice, &objection))?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.finalize(coordinator, TASK))?;
    stage.ok(ledger.announce_close(coordinator, TASK))?;
    stage.expect_refused("INVALID_ARGUMENT", ledger.object(alice, &objection))?;
    stage.advance_past(CHALLENGE_MS);
    stage.ok(ledger.close(coordinator, TASK))?;
    stage.expect_refused("TASK_CLOSED", ledger.object(alice, &objection))
}

pub(super) fn expiring(stage: &Scenario) -> Result<(), String> {
    let (ledger, stranger) = (stage.ledger(), stage.stranger()?);
    stage.open_task()?;
    let settlement = stage.settlement(1, 5, 0)?;
    stage.expect_refused("TOO_EARLY", ledger.close(stranger, TASK))?;
    stage.advance_past(LIFE_MS);
    // A coordinator that continues to post could keep the buyer's money locked.
    stage.expect_refused("INVALID_SETTLEMENT", ledger.post(stage.coordinator()?, &settlement))?;
    let all = fln(DATA.saturating_add(INFRASTRUCTURE));
    expect_equal("refund", stage.ok(ledger.close(stranger, TASK))?, all)?;
    stage.expect_gained(stage.buyer()?.address(), Amount::ZERO)
}

pub(super) fn closing_settles(stage: &Scenario) -> Result<(), String> {
    let (ledger, coordinator) = (stage.ledger(), stage.coordinator()?);
    stage.open_task()?;
    let first = stage.settlement(1, 30, 10)?;
    let second = Settlement { infrastructure_total: fln(3), ..stage.settlement(2, 50, 10)? };
    let second = continuing(second, &first);
    stage.ok(ledger.post(coordinator, &first))?;
    stage.ok(ledger.post(coordinator, &second))?;
    stage.advance_past(CHALLENGE_MS);
    let rest = fln(DATA.saturating_add(INFRASTRUCTURE).saturating_sub(63));
    let late = LIFE_MS.saturating_sub(CHALLENGE_MS);
    stage.advance_past(late);
    expect_equal("refund", stage.ok(ledger.close(coordinator, TASK))?, rest)?;
    status(stage, second.payout, SettlementStatus::Final)?;
    let task = stage.task(TASK)?;
    expect_equal("paid", (task.data_paid, task.infrastructure_paid), (fln(60), fln(3)))?;
    let alice: Address = stage.alice()?.address();
    expect_equal(
        "claim",
        stage.ok(ledger.claim(coordinator, &stage.claim(alice, 50, 10)?))?,
        paid_outcome(50),
    )
}
