//! A vector of each variant of each enum that the messages do not have: its JSON form and its bytes.

use borsh::BorshSerialize;
use florin_protocol::*;
use serde::Serialize;
use serde_json::{Value, json};

use super::{hex, market, specs, wallet};

fn value<T: BorshSerialize + Serialize>(type_name: &str, value: &T) -> Value {
    let bytes = hex(&borsh::to_vec(value).unwrap());
    json!({"name": format!("{type_name} {}", json!(value)), "type": type_name, "value": value, "bytes": bytes})
}

fn values_of<T: BorshSerialize + Serialize>(type_name: &str, values: &[T]) -> Vec<Value> {
    values.iter().map(|each| value(type_name, each)).collect()
}

/// One value of each variant.
fn outcomes() -> Vec<RoundOutcome> {
    let settled = RoundOutcome::Settled;
    let voids = [
        VoidReason::Unresolved,
        VoidReason::NoUpdateRemains,
        VoidReason::MajorityExcluded,
        VoidReason::NoImprovement,
    ];
    let abandoned = [
        AbandonReason::TooFewUpdates { got: 2, needed: 5 },
        AbandonReason::ValuationFailed,
        AbandonReason::TaskEnded,
    ];
    std::iter::once(settled)
        .chain(voids.map(RoundOutcome::Void))
        .chain(abandoned.map(RoundOutcome::Abandoned))
        .collect()
}

pub(crate) fn values() -> Value {
    let account = wallet(5).address();
    let missing: Vec<MissingReason> = [MissingReason::NoCommit, MissingReason::NoReveal]
        .into_iter()
        .chain(ErrorCode::ALL.iter().copied().map(MissingReason::Rejected))
        .collect();
    let mut values = values_of("ErrorCode", ErrorCode::ALL);
    values.extend(values_of("MissingReason", &missing));
    values.extend(values_of("RoundOutcome", &outcomes()));
    values.extend(values_of(
        "DuplicateSource",
        &[
            DuplicateSource::SameRound(account),
            DuplicateSource::GlobalDeltas,
            DuplicateSource::EarlierRound(account),
        ],
    ));
    values.extend(values_of(
        "ScoreEstimator",
        &[ScoreEstimator::Path(3), ScoreEstimator::Shapley, ScoreEstimator::Permutations(32)],
    ));
    values.extend(values_of(
        "Estimator",
        &[Estimator::Path { nodes: 3, cross_check_pairs: 1 }, Estimator::Coalitions],
    ));
    values.extend(values_of(
        "GraphForm",
        &[
            GraphForm::Operators,
            GraphForm::Trainer { has_gradient: false },
            GraphForm::Trainer { has_gradient: true },
        ],
    ));
    values.extend(values_of(
        "PayReason",
        &[
            PayReason::Paid,
            PayReason::Withheld,
            PayReason::Idle,
            PayReason::NotHelpful,
            PayReason::CarriedOver,
            PayReason::Excluded,
        ],
    ));
    values.extend(values_of(
        "Aggregation",
        &[
            Aggregation::Mean,
            Aggregation::Median,
            Aggregation::TrimmedMean { trim: Micro(100_000) },
            Aggregation::Krum { byzantine: 1 },
            Aggregation::ClippedMean,
        ],
    ));
    values.extend(values_of(
        "UpdateFormat",
        &[
            UpdateFormat::F32,
            UpdateFormat::Bf16,
            UpdateFormat::Int8,
            UpdateFormat::TopK { permille: 50 },
        ],
    ));
    values.extend(values_of("NormScaling", &[NormScaling::None, NormScaling::Median]));
    values
        .extend(values_of("DuplicatePolicy", &[DuplicatePolicy::Accept, DuplicatePolicy::Reject]));
    values.extend(values_of("Role", &[Role::Participant, Role::Provider, Role::Coordinator]));
    values.into()
}

/// The part of a receipt that a ledger verifies, signed by the coordinator's wallet.
pub(super) fn receipts() -> Value {
    let [_, _, softmax] = specs();
    let one = |name: &str, round: u32| {
        let receipt = LedgerReceipt {
            task: softmax.id(),
            round: RoundNumber(round),
            sender: wallet(6).address(),
            update: Digest([0x5a; 32]),
        };
        let hash = receipt.signing_hash(market().chain);
        json!({
            "name": name,
            "chain": market().chain,
            "wallet": wallet(1).address(),
            "value": receipt,
            "hash": hex(&hash),
            "wallet_signature": wallet(1).sign_typed_data(hash).unwrap(),
        })
    };
    json!([one("a receipt of round 1", 1), one("a receipt of the last round", u32::MAX)])
}
