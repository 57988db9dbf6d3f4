//! Reports of settled, void and abandoned rounds.

use florin_protocol::*;

use super::{fln, market, micro, wallet};

/// One improving and one harmful update.
fn valuation(cohort: &[Address; 3]) -> Valuation {
    let score = |i: usize, score_nano, error_nano, excluded| UpdateScore {
        account: cohort[i],
        score_nano,
        error_nano,
        excluded,
        preprocessing: Preprocessing::default(),
    };
    Valuation {
        loss_before_nano: 2_302_585_093,
        loss_after_nano: 2_202_585_092,
        total_nano: 100_000_001,
        gap_nano: 1,
        model_loss_nano: 2_202_585_092,
        stages: vec![
            ValuationStage {
                estimator: ScoreEstimator::Permutations(32),
                total_nano: 50_000_002,
                gap_nano: 2,
                units: 110,
            },
            ValuationStage {
                estimator: ScoreEstimator::Path(3),
                total_nano: 100_000_001,
                gap_nano: 1,
                units: 5,
            },
        ],
        scores: vec![
            UpdateScore {
                preprocessing: Preprocessing {
                    norm_factor: micro("0.75"),
                    duplicate_of: None,
                    weight: 125,
                },
                ..score(0, 100_000_000, 1_000_000, false)
            },
            score(1, -50_000_000, 2_000_000, true),
        ],
        units: 9,
        evidence: ValuationEvidence {
            derivatives_nano: vec![
                vec![90_000_000, 100_000_000, 110_000_000],
                vec![-50_000_000; 3],
            ],
            cross_check: Some(CrossCheck {
                version: 1,
                seed: 77,
                passes: 2,
                table: vec![
                    CoalitionValue { members: vec![], value_nano: 0 },
                    CoalitionValue { members: vec![0], value_nano: 100_000_001 },
                ],
                scores_nano: vec![100_000_001],
            }),
            class_effects: Some(ClassEffects {
                losses_nano: vec![Some(2_000_000_000), None, Some(1_500_000_000)],
                shares: vec![vec![200, 0, 55], vec![]],
            }),
        },
    }
}

pub(crate) fn settled_round(
    spec: &TaskSpec,
    offer: &Offer,
    cohort: &[Address; 3],
    header: &dyn Fn(Address) -> UpdateHeader,
) -> (WorkOrder, WorkRecord, Report) {
    let entries: Vec<UpdateEntry> = cohort[..2]
        .iter()
        .map(|sender| UpdateEntry {
            sender: *sender,
            header: header(*sender).digest(),
            update: header(*sender).update,
            salt: header(*sender).salt,
            rows_declared: 150,
            rows_counted: spec.rows_counted(150, fln("12.5")),
            bond: fln("12.5"),
            commit_position: if *sender == cohort[0] { 2 } else { 1 },
            staleness: 0,
        })
        .collect();
    let commits: Vec<_> =
        cohort.iter().map(|sender| (*sender, header(*sender).commitment())).collect();
    let order = WorkOrder {
        scope: offer.scope,
        base_model: offer.base_model,
        disclosed_rows: Digest([0x77; 32]),
        commits: commits.clone(),
        entries: entries.clone(),
        due: Timestamp(700_000),
        previous_models: vec![offer.base_model],
        earlier_updates: vec![(cohort[0], Digest([0x66; 32]))],
        earlier_rows: vec![Digest([0x56; 32])],
    };
    let metrics = ModelMetrics {
        rows: 36,
        correct_before: 3,
        correct_after: 20,
        loss_after_nano: 2_202_585_092,
    };
    let record = WorkRecord {
        market: market(),
        order: order.digest(),
        provider: wallet(8).address(),
        result: WorkResult {
            valuation: valuation(cohort),
            baseline: Some(PublicBaseline {
                rows: 150,
                loss_before_nano: 2_100_000_000,
                validation_loss_nano: Some(2_050_000_000),
            }),
            metrics,
            model: Digest([0x55; 32]),
        },
    };
    let seed = round_seed(offer.scope, &commits, &entries);
    let report = close_round(&ReportInputs {
        spec,
        offer,
        previous_report: None,
        commits: &commits,
        entries: &entries,
        times: &times(),
        missing: &[(cohort[2], MissingReason::NoReveal)],
        holdout_rows: &draw_rows(&spec.holdout, &[], seed).unwrap(),
        result: Ok(&record.result),
        verified_work: &[(record.provider, record.digest(), record.result.valuation.units)],
    })
    .unwrap();
    (order, record, report)
}

/// The next round, with the same updates, which do not improve the model.
pub(crate) fn void_report(spec: &TaskSpec, before: &Report, record: &WorkRecord) -> Report {
    let offer = offer_after(spec, before, RoundNumber(2));
    let mut result = record.result.clone();
    result.valuation.total_nano = 0;
    (result.model, result.metrics.correct_after) = (before.model, result.metrics.correct_before);
    close_round(&ReportInputs {
        spec,
        offer: &offer,
        previous_report: Some(before),
        commits: &before.commits,
        entries: &before.entries,
        times: &RoundTimes::default(),
        missing: &[(before.missing[0].0, MissingReason::Rejected(ErrorCode::UpdateWrongSchema))],
        holdout_rows: &[3, 5],
        result: Ok(&result),
        verified_work: &[],
    })
    .unwrap()
}

/// A round that is abandoned; the task's last one pays what was withheld.
pub(crate) fn abandoned_report(
    spec: &TaskSpec,
    before: &Report,
    round: RoundNumber,
    needed: u32,
) -> Report {
    let offer = offer_after(spec, before, round);
    close_round(&ReportInputs {
        spec,
        offer: &offer,
        previous_report: Some(before),
        commits: &[],
        entries: &[],
        times: &RoundTimes::default(),
        missing: &[],
        holdout_rows: &[],
        result: Err(AbandonReason::TooFewUpdates { got: 0, needed }),
        verified_work: &[],
    })
    .unwrap()
}

/// Arrivals in the order of the senders.
fn times() -> RoundTimes {
    RoundTimes {
        commits: vec![Timestamp(2_000), Timestamp(1_500), Timestamp(2_500)],
        commits_closed: Timestamp(3_000),
        updates: vec![Timestamp(4_000), Timestamp(3_500)],
        ..RoundTimes::default()
    }
}

fn offer_after(spec: &TaskSpec, before: &Report, round: RoundNumber) -> Offer {
    Offer {
        scope: RoundScope { round, ..before.scope },
        base_model: before.model,
        previous_report: before.digest(),
        cohort: vec![],
        reasons: vec![],
        candidates: Digest::default(),
        opened: Timestamp(2_000_000),
        commit_by: Timestamp(2_600_000),
        reveal_by: Timestamp(2_660_000),
        pool: spec.pool_for_round(round, Some(before)).unwrap(),
    }
}
