//! The JSON form of statements, claims and amounts, in events and in the output of commands. Amounts
//! are integer strings of base units.

use florin_protocol::{Amount, Mismatch, Statement};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::claim_summary::ClaimSummary;

/// The fields of a statement.
#[must_use]
pub fn statement_fields(statement: &Statement) -> Value {
    json!({
        "round": statement.round,
        "account": statement.account,
        "score_nano": statement.score_nano,
        "error_nano": statement.error_nano,
        "increment_nano": statement.increment.to_string(),
        "payout": units(statement.payout),
        "floor": units(statement.floor),
        "infrastructure": units(statement.infrastructure),
        "debit": units(statement.debit),
        "explanation": statement.explanation,
    })
}

/// The fields of a claim.
#[must_use]
pub fn claim_fields(claim: &ClaimSummary) -> Value {
    json!({
        "paid": units(claim.paid),
        "debited": units(claim.taken),
        "paid_total": units(claim.totals.paid),
        "debited_total": units(claim.totals.debited),
    })
}

fn units(amount: Amount) -> String {
    amount.units().to_string()
}

pub(crate) fn amount<S: Serializer>(amount: &Amount, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&amount.units())
}

pub(crate) fn statement<S: Serializer>(
    statement: &Statement,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    statement_fields(statement).serialize(serializer)
}

pub(crate) fn claim<S: Serializer>(claim: &ClaimSummary, serializer: S) -> Result<S::Ok, S::Error> {
    claim_fields(claim).serialize(serializer)
}

pub(crate) fn mismatch<S: Serializer>(
    mismatch: &Mismatch,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let Mismatch { line, reported, recomputed } = mismatch;
    json!({ "line": line, "reported": reported, "recomputed": recomputed }).serialize(serializer)
}

#[cfg(test)]
mod tests {
    use florin_protocol::merkle::ClaimTotals;
    use florin_protocol::{
        Address, Digest, ErrorCode, Micro, Rejection, RoundNumber, SelectionReason, TaskId,
        Timestamp,
    };

    use super::*;
    use crate::agent::ParticipationQuote;
    use crate::event::ParticipantEvent as Event;
    use crate::privacy::{Epsilon, PrivacyPlan, RoundPrivacy};
    use crate::round_terms::RoundTerms;

    const TASK: TaskId = TaskId([7; 32]);
    const ROUND: RoundNumber = RoundNumber(3);

    fn fln(text: &str) -> Amount {
        text.parse().unwrap()
    }

    fn check(event: &Event, expected: &Value) {
        let text = serde_json::to_string(event).unwrap();
        let name = expected["event"].as_str().unwrap();
        assert!(text.starts_with(&format!("{{\"event\":\"{name}\"")), "the name is first: {text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), *expected);
    }

    #[test]
    fn an_event_has_its_name_first_and_amounts_in_base_units() {
        let task = TASK.to_string();
        check(
            &Event::Bonded { added: fln("1.5"), bond: fln("2") },
            &json!({ "event": "bonded", "added": "1500000000000000000", "bond": "2000000000000000000" }),
        );
        check(
            &Event::BondCoverage { bond: fln("1"), covered: 5, rows: 9 },
            &json!({
                "event": "bond_coverage", "bond": "1000000000000000000", "covered": 5, "rows": 9
            }),
        );
        check(
            &Event::Staked { added: fln("1"), stake: fln("3") },
            &json!({ "event": "staked", "added": "1000000000000000000", "stake": "3000000000000000000" }),
        );
        check(
            &Event::BondReturned { amount: fln("0.1") },
            &json!({ "event": "bond_returned", "amount": "100000000000000000" }),
        );
        check(
            &Event::BondLocked { until: Timestamp(9) },
            &json!({ "event": "bond_locked", "until": 9 }),
        );
        check(
            &Event::CloseObjected { round: ROUND, taken: fln("0.5") },
            &json!({ "event": "close_objected", "round": 3, "taken": "500000000000000000" }),
        );
        check(
            &Event::CloseAnnounced { at: Timestamp(9) },
            &json!({ "event": "close_announced", "at": 9 }),
        );
        check(
            &Event::Selected {
                round: ROUND,
                pool: fln("10"),
                cohort: 4,
                reason: SelectionReason::Drawn,
            },
            &json!({
                "event": "selected", "round": 3, "pool": "10000000000000000000", "selected": 4,
                "reason": "drawn"
            }),
        );
        check(&Event::Ready { task: TASK }, &json!({ "event": "ready", "task": task }));
        check(&Event::Stopped, &json!({ "event": "stopped" }));
    }

    #[test]
    fn a_quote_is_flat_and_an_alarm_has_its_counts() {
        let quote = ParticipationQuote {
            rounds_left: 9,
            pool: fln("10"),
            equal_share: fln("2.5"),
            floor_share: fln("0.5"),
            per_nat_max: fln("20"),
            rows: 40,
            rows_covered: 20,
            bond: fln("1"),
            debit_max: fln("0.5"),
            debits_max: fln("1"),
            slashes_max: fln("0.5"),
            arbiter: Address([3; 20]),
            is_arbiter_coordinator: false,
            is_arbiter_accepted: true,
            unbond_ms: 60_000,
            returned_after_ms: 20,
            terms: RoundTerms::from(&crate::testing::spec().rounds),
        };
        let terms = json!(quote.terms);
        assert_eq!(terms["staleness"], json!({ "rounds": 0, "weight": "inverse_root" }));
        check(
            &Event::Quoted { quote },
            &json!({
                "event": "quoted", "rounds_left": 9, "pool": "10000000000000000000",
                "equal_share": "2500000000000000000", "floor_share": "500000000000000000",
                "per_nat_max": "20000000000000000000", "rows": 40, "rows_covered": 20,
                "bond": "1000000000000000000", "debit_max": "500000000000000000",
                "debits_max": "1000000000000000000", "slashes_max": "500000000000000000",
                "arbiter": Address([3; 20]),
                "is_arbiter_coordinator": false, "is_arbiter_accepted": true, "unbond_ms": 60_000, "returned_after_ms": 20,
                "terms": terms
            }),
        );
        let (bond, least) = (fln("0.5"), fln("1"));
        check(
            &Event::BondNotRestored { bond, covered: 0, rows: 40, least, has_funds: false },
            &json!({
                "event": "bond_not_restored", "bond": "500000000000000000", "covered": 0,
                "rows": 40, "least": "1000000000000000000", "has_funds": false
            }),
        );
        check(
            &Event::LabelsContradict { round: ROUND, matching: 10, contradicting: 9 },
            &json!({
                "event": "labels_contradict", "round": 3, "matching": 10, "contradicting": 9
            }),
        );
        check(
            &Event::EarlierReports { rounds: 5, is_over: true },
            &json!({ "event": "earlier_reports", "rounds": 5, "is_over": true }),
        );
        check(
            &Event::RowsNotCompared { round: ROUND, why: "refused".to_owned() },
            &json!({ "event": "rows_not_compared", "round": 3, "message": "refused" }),
        );
    }

    #[test]
    fn a_privacy_loss_is_flat_and_in_millionths() {
        let plan = PrivacyPlan {
            clip: Micro(1_000_000),
            noise: Micro(1_350_000),
            delta: "0.00001".to_owned(),
            epsilon: Epsilon::from(Micro(0)),
            epsilon_next: Epsilon::from(Micro(2_760_001)),
            rounds_left: 10,
            epsilon_all: Epsilon::from(Micro(7_920_000)),
            epsilon_max: Epsilon::from(Micro(8_000_000)),
        };
        let text = plan.to_string();
        assert!(text.contains("2.77 after the next round") && !text.contains("ends before"));
        let beyond = PrivacyPlan { epsilon_all: Epsilon::from(Micro(8_000_001)), ..plan.clone() };
        assert!(beyond.to_string().contains("ends before the task does"), "{beyond}");
        check(
            &Event::PrivacyPlanned { plan },
            &json!({
                "event": "privacy_planned", "clip": "1", "noise": "1.35", "delta": "0.00001",
                "epsilon_micro": 0, "epsilon_next_micro": 2_760_001, "rounds_left": 10,
                "epsilon_all_micro": 7_920_000, "epsilon_max_micro": 8_000_000
            }),
        );
        let spent = RoundPrivacy {
            round: ROUND,
            epsilon_round: Epsilon::from(Micro(5)),
            epsilon: Epsilon::from(Micro(7)),
            delta: "0.00001".to_owned(),
        };
        check(
            &Event::PrivacySpent { spent },
            &json!({
                "event": "privacy_spent", "round": 3, "epsilon_round_micro": 5,
                "epsilon_micro": 7, "delta": "0.00001"
            }),
        );
    }

    #[test]
    fn a_cause_is_a_message_with_its_code() {
        let rejection = Rejection::new(ErrorCode::BondTooSmall, "bond more");
        let task = TASK.to_string();
        check(
            &Event::NotEnrolled { task: TASK, rejection: rejection.clone() },
            &json!({
                "event": "not_enrolled", "task": task, "code": "BOND_TOO_SMALL",
                "message": "bond more"
            }),
        );
        check(
            &Event::WorkRejected { round: ROUND, rejection },
            &json!({
                "event": "work_rejected", "round": 3, "code": "BOND_TOO_SMALL",
                "message": "bond more"
            }),
        );
        check(
            &Event::RoundFailed { round: ROUND, code: "X", why: "late".to_owned() },
            &json!({ "event": "round_failed", "round": 3, "code": "X", "message": "late" }),
        );
        check(
            &Event::Retrying { why: "refused".to_owned() },
            &json!({ "event": "retrying", "message": "refused" }),
        );
    }

    #[test]
    fn a_claim_a_statement_and_a_mismatch_are_flat() {
        let totals = ClaimTotals { paid: fln("4"), debited: fln("1") };
        let drawn = ClaimSummary { paid: fln("2"), taken: fln("1"), totals };
        check(
            &Event::Claimed { task: TASK, drawn },
            &json!({
                "event": "claimed", "task": TASK.to_string(), "paid": "2000000000000000000",
                "debited": "1000000000000000000", "paid_total": "4000000000000000000",
                "debited_total": "1000000000000000000"
            }),
        );
        let statement = Box::new(Statement {
            round: ROUND,
            account: Address([1; 20]),
            score_nano: Some(-5),
            error_nano: None,
            increment: 6,
            payout: fln("2"),
            floor: fln("1"),
            infrastructure: Amount::ZERO,
            debit: Amount::ZERO,
            explanation: "paid".to_owned(),
        });
        check(
            &Event::Reported { statement },
            &json!({
                "event": "reported", "round": 3, "account": Address([1; 20]).to_string(),
                "score_nano": -5, "error_nano": null, "increment_nano": "6",
                "payout": "2000000000000000000", "floor": "1000000000000000000",
                "infrastructure": "0", "debit": "0",
                "explanation": "paid"
            }),
        );
        let first_mismatch = Mismatch {
            line: "scores[0]".to_owned(),
            reported: "1".to_owned(),
            recomputed: "2".to_owned(),
        };
        check(
            &Event::ReportInconsistent { round: ROUND, first_mismatch },
            &json!({
                "event": "report_inconsistent", "round": 3, "line": "scores[0]", "reported": "1",
                "recomputed": "2"
            }),
        );
        check(
            &Event::ReceiptStored { round: ROUND, update: Digest([2; 32]) },
            &json!({
                "event": "receipt_stored", "round": 3, "update": Digest([2; 32]).to_string()
            }),
        );
    }
}
