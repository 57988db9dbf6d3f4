//! The updates of earlier rounds with which a round's updates are compared, by the reports so far.

use florin_protocol::limits::EARLIER_UPDATES_BYTES_MAX;
use florin_protocol::*;
use serde_json::{Value, json};

use super::rounds::report_of;

/// The outcomes of rounds: settled, void, abandoned with updates, abandoned without.
#[derive(Clone, Copy)]
enum Ended {
    Settled,
    Void,
    Failed,
    Empty,
}

/// The report of a round in which accounts 1 to 3 sent updates, the third one a near-duplicate.
fn report(number: u8, ended: Ended) -> Report {
    let senders: &[_] = match ended {
        Ended::Empty => &[],
        _ => &[(1, None), (2, None), (3, Some(1))],
    };
    let mut report = report_of(senders);
    for entry in &mut report.entries {
        entry.update = blob_digest(&[number, entry.sender.0[0]]);
    }
    report.outcome = match ended {
        Ended::Settled => RoundOutcome::Settled,
        // Its updates improve the loss, but its model does not.
        Ended::Void => RoundOutcome::Void(VoidReason::NoImprovement),
        Ended::Failed => RoundOutcome::Abandoned(AbandonReason::ValuationFailed),
        Ended::Empty => RoundOutcome::Abandoned(AbandonReason::TooFewUpdates { got: 0, needed: 2 }),
    };
    if matches!(ended, Ended::Failed | Ended::Empty) {
        report.valuation = None;
    }
    report
}

fn vector(name: &str, policy: DuplicatePolicy, model_bytes: u64, rounds: &[Ended]) -> Value {
    let reports: Vec<Report> = (1..).zip(rounds).map(|(at, ended)| report(at, *ended)).collect();
    let rules = PreprocessingRules { near_duplicates: policy, ..PreprocessingRules::DEFAULT };
    let listed = EarlierUpdates::from_reports(&reports).reference_updates(rules, model_bytes);
    let brief = |report: &Report| {
        let scores = report.valuation.as_ref().map_or(&[][..], |valuation| &valuation.scores);
        let repeats = scores.iter().filter(|score| score.preprocessing.duplicate_of.is_some());
        let entry = |entry: &UpdateEntry| {
            json!({
                "sender": entry.sender, "update": entry.update,
                "commit_position": entry.commit_position,
            })
        };
        json!({
            "outcome": report.outcome,
            "entries": report.entries.iter().map(entry).collect::<Vec<_>>(),
            "near_duplicates": repeats.map(|score| score.account).collect::<Vec<_>>(),
        })
    };
    json!({
        "name": name, "near_duplicates": policy, "model_bytes": model_bytes,
        "reports": reports.iter().map(brief).collect::<Vec<_>>(), "earlier_updates": listed,
    })
}

pub(crate) fn earlier_updates() -> Value {
    use DuplicatePolicy::{Accept, Reject};
    use Ended::{Empty, Failed, Settled, Void};
    let many = [Settled, Void, Void, Void, Void, Void, Void, Void, Void, Void];
    let room = EARLIER_UPDATES_BYTES_MAX;
    json!([
        vector("before any round", Reject, 200, &[]),
        vector("the last settled round", Reject, 200, &[Settled, Settled]),
        vector("and all later rounds", Reject, 200, &[Settled, Settled, Void, Empty, Failed]),
        vector("no settled round", Reject, 200, &[Void, Failed]),
        vector("more than 8 rounds", Reject, 200, &many),
        vector("the first round and the latest that fit", Reject, room / 5, &many[..4]),
        vector("a larger round that does not fit", Reject, room / 2, &[Settled, Failed, Void]),
        vector("a task that accepts near-duplicates", Accept, 200, &[Settled, Void]),
    ])
}
