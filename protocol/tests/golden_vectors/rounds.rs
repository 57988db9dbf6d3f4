//! Tasks and the reports of their rounds. An independent program recomputes every integer of a
//! report from its valuation: whether the round is void, pool, floor, pay, debits, totals and root.

use florin_protocol::*;
use serde_json::{Value, json};

use super::{fln, market, micro, specs, wallet};

/// Ten florins a round and two of them floor; 100 FLN per nat, z = 2, debits up to 5 FLN.
fn task() -> TaskSpec {
    let [mut task, ..] = specs();
    task.rounds.count = 4;
    task.rounds.cohort_min = 2;
    task.estimator = Estimator::Path { nodes: 3, cross_check_pairs: 0 };
    task.budget = Budget {
        data: fln("40"),
        infrastructure: fln("10"),
        per_nat_max: fln("100"),
        floor_share: micro("0.2"),
        confidence_z: micro("2"),
        bond_min: fln("5"),
        bond_per_row: fln("0.1"),
        debit_max: fln("5"),
        per_unit: fln("0.25"),
        ..task.budget
    };
    task
}

/// One update: its sender, and its score and standard error in millinats.
#[derive(Clone, Copy)]
struct Update {
    sender: u8,
    score_m: i64,
    error_m: u64,
    rows: u64,
    bond: &'static str,
    /// The sender of the update of an earlier round that it repeats.
    repeats: Option<u8>,
}

fn update(sender: u8, score_m: i64, error_m: u64) -> Update {
    Update { sender, score_m, error_m, rows: 100, bond: "10", repeats: None }
}

fn account(sender: u8) -> Address {
    Address([sender; 20])
}

impl Update {
    fn entry(&self, task: &TaskSpec, commit_position: u32) -> UpdateEntry {
        let bond = fln(self.bond);
        UpdateEntry {
            sender: account(self.sender),
            header: Digest([self.sender; 32]),
            update: blob_digest(&[self.repeats.unwrap_or(self.sender)]),
            salt: blob_digest(&[self.sender, 1]),
            rows_declared: self.rows,
            rows_counted: task.rows_counted(self.rows, bond),
            bond,
            commit_position,
            staleness: 0,
        }
    }

    fn score(&self, rows_counted: u64, excludes: bool) -> UpdateScore {
        let limit = i64::try_from(2 * self.error_m).unwrap();
        let source = self.repeats.map(|sender| DuplicateMatch {
            source: DuplicateSource::EarlierRound(account(sender)),
            cosine: Micro::ONE,
        });
        let is_nothing = source.is_some() || (self.score_m == 0 && self.error_m == 0);
        UpdateScore {
            account: account(self.sender),
            score_nano: self.score_m * 1_000_000,
            error_nano: self.error_m * 1_000_000,
            excluded: excludes && self.score_m < -limit,
            preprocessing: Preprocessing {
                norm_factor: Micro::ONE,
                duplicate_of: source,
                weight: if is_nothing { 0 } else { rows_counted },
            },
        }
    }
}

/// A round to value: its updates, the estimator that resolves its first stage, that stage's gap,
/// the model's loss above that of the aggregate, and the scores of the cross-check, if there is one.
#[derive(Clone, Copy)]
struct Round<'a> {
    updates: &'a [Update],
    estimator: ScoreEstimator,
    gap_nano: i64,
    worse_nano: i64,
    second_nano: Option<&'a [i64]>,
}

fn round(updates: &[Update]) -> Round<'_> {
    Round {
        updates,
        estimator: ScoreEstimator::Path(3),
        gap_nano: 1,
        worse_nano: 0,
        second_nano: None,
    }
}

/// Passes of a stage that begins with 3 nodes and ends with an estimator, and of the null standard
/// deviation.
fn stage_units(last: ScoreEstimator, players: usize) -> u64 {
    let players = u64::try_from(players).unwrap();
    match last {
        ScoreEstimator::Path(3) => 1 + 4,
        ScoreEstimator::Path(6) => 1 + 4 + 7,
        ScoreEstimator::Path(_) => 1 + 4 + 7 + 13,
        ScoreEstimator::Shapley => 25 + (1 << players) - 1,
        ScoreEstimator::Permutations(_) => 25 + 64 * (players - 1) + 1,
    }
}

const LOSS: i64 = 2_302_585_093;

fn valuation(round: Round<'_>, entries: &[UpdateEntry]) -> Valuation {
    let scored = |excludes| {
        let each = round.updates.iter().zip(entries);
        each.map(|(update, entry)| update.score(entry.rows_counted, excludes)).collect::<Vec<_>>()
    };
    let sum = |scores: &[UpdateScore]| -> i64 {
        scores.iter().filter(|score| !score.excluded).fold(0, |sum, score| sum + score.score_nano)
    };
    let all = sum(&scored(false)) + round.gap_nano;
    let mut stages = vec![ValuationStage {
        estimator: round.estimator,
        total_nano: all,
        gap_nano: round.gap_nano,
        units: stage_units(round.estimator, entries.len()),
    }];
    let scores = scored(stages[0].is_resolved());
    let own: Vec<_> = scores.iter().filter(|score| !score.excluded).collect();
    let mut total_nano = sum(&scores) + round.gap_nano;
    if own.iter().all(|score| score.preprocessing.weight == 0) {
        total_nano = 0;
    } else if own.len() < scores.len() {
        stages.push(ValuationStage {
            estimator: ScoreEstimator::Path(3),
            total_nano,
            gap_nano: round.gap_nano,
            units: stage_units(ScoreEstimator::Path(3), own.len()),
        });
    }
    let derivatives = match stages.last().map(|stage| stage.estimator) {
        Some(ScoreEstimator::Path(nodes)) => usize::from(nodes),
        _ => 0,
    };
    Valuation {
        loss_before_nano: LOSS,
        loss_after_nano: LOSS - total_nano,
        total_nano,
        gap_nano: total_nano - sum(&scores),
        model_loss_nano: LOSS - total_nano + round.worse_nano,
        units: 1 + stages.iter().fold(0, |sum, stage| sum + stage.units),
        evidence: ValuationEvidence {
            derivatives_nano: scores.iter().map(|s| vec![s.score_nano; derivatives]).collect(),
            cross_check: round.second_nano.map(|scores| CrossCheck {
                version: 1,
                seed: 7,
                passes: 6,
                table: vec![],
                scores_nano: scores.to_vec(),
            }),
            class_effects: None,
        },
        stages,
        scores,
    }
}

/// The reports of a task's rounds, `None` for one without a valuation, for this reason; `first` is the
/// number of the first.
fn reports(
    first: u32,
    rounds: &[Option<Round<'_>>],
    reason: AbandonReason,
) -> (TaskSpec, Vec<Report>) {
    let task = task();
    let mut reports: Vec<Report> = Vec::new();
    for (number, round) in (first..).map(RoundNumber).zip(rounds) {
        let before = reports.last();
        let offer = Offer {
            scope: RoundScope { market: market(), task: task.id(), round: number },
            base_model: before.map_or(task.base_model, |report| report.model),
            previous_report: before.map_or(Digest(task.id().0), Canonical::digest),
            cohort: vec![],
            reasons: vec![],
            candidates: Digest::default(),
            opened: Timestamp(1_000),
            commit_by: Timestamp(601_000),
            reveal_by: Timestamp(661_000),
            pool: task.pool_for_round(number, before).unwrap(),
        };
        let updates = round.map_or(&[][..], |round| round.updates);
        // The latest sender in the order of the addresses commits first.
        let positions = (1..=u32::try_from(updates.len()).unwrap()).rev();
        let entries: Vec<UpdateEntry> =
            updates.iter().zip(positions).map(|(update, at)| update.entry(&task, at)).collect();
        let commits: Vec<_> =
            entries.iter().map(|entry| (entry.sender, blob_digest(&entry.salt.0))).collect();
        let result = round.map(|round| WorkResult {
            valuation: valuation(round, &entries),
            baseline: None,
            metrics: ModelMetrics::default(),
            model: blob_digest(&number.0.to_le_bytes()),
        });
        let units = result.as_ref().map(|result| result.valuation.units);
        let work = units.map(|units| (wallet(8).address(), Digest([0x44; 32]), units));
        let report = close_round(&ReportInputs {
            spec: &task,
            offer: &offer,
            previous_report: before,
            commits: &commits,
            entries: &entries,
            times: &RoundTimes::default(),
            missing: &[],
            holdout_rows: &[],
            result: result.as_ref().ok_or(reason),
            verified_work: work.as_slice(),
        });
        reports.push(report.unwrap());
    }
    (task, reports)
}

/// The outcome of the report with which a task ends early.
const ENDED: &str = "Abandoned(TaskEnded)";

/// The report of a settled round, given senders and whose updates they repeat.
pub(crate) fn report_of(senders: &[(u8, Option<u8>)]) -> Report {
    let each = senders.iter().map(|&(sender, repeats)| Update { repeats, ..update(sender, 30, 2) });
    let updates: Vec<_> = each.collect();
    let valued = (!updates.is_empty()).then(|| round(&updates));
    reports(1, &[valued], AbandonReason::ValuationFailed).1.remove(0)
}

fn vector(name: &str, outcomes: &[&str], first: u32, rounds: &[Option<Round<'_>>]) -> Value {
    let reason = match outcomes.contains(&ENDED) {
        true => AbandonReason::TaskEnded,
        false => AbandonReason::ValuationFailed,
    };
    let (task, reports) = reports(first, rounds, reason);
    let ended: Vec<String> = reports.iter().map(|report| format!("{:?}", report.outcome)).collect();
    assert_eq!(ended, outcomes, "{name}");
    json!({ "name": name, "first_round": first, "task": task, "reports": reports })
}

/// A round whose first stage ends on one rung of the gap rules.
fn on_rung(name: &str, estimator: ScoreEstimator, updates: u8) -> Value {
    let updates: Vec<_> = (1..=updates).map(|n| update(n, i64::from(n), 0)).collect();
    let resolved = Round { estimator, ..round(&updates) };
    vector(name, &["Settled"], 1, &[Some(resolved)])
}

fn void_rounds() -> Vec<Value> {
    let many: Vec<_> = (1..=65).map(|n| update(n, 1, 0)).collect();
    let unresolved = Round {
        estimator: ScoreEstimator::Path(12),
        gap_nano: 65_000_000 / 49 + 1,
        ..round(&many)
    };
    let good = [update(1, 30, 5), update(2, 20, 2)];
    let worse = Round { worse_nano: 50_000_001, ..round(&good) };
    let majority = [update(1, 30, 5), update(2, -50, 1), Update { rows: 1, ..update(3, -9, 1) }];
    vec![
        vector("unresolved", &["Void(Unresolved)"], 1, &[Some(unresolved)]),
        vector(
            "the cross-check confirms all scores",
            &["Settled"],
            1,
            &[Some(Round { second_nano: Some(&[25_000_000, 22_000_000]), ..round(&good) })],
        ),
        vector(
            "the cross-check denies a score",
            &["Void(Unresolved)"],
            1,
            &[Some(Round { second_nano: Some(&[25_000_000, 22_000_001]), ..round(&good) })],
        ),
        vector(
            "no update remains",
            &["Void(NoUpdateRemains)"],
            1,
            &[Some(round(&[update(1, -30, 1), update(2, -9, 2)]))],
        ),
        vector(
            "the majority is excluded",
            &["Void(MajorityExcluded)"],
            1,
            &[Some(round(&majority))],
        ),
        vector(
            "no improvement carries increments over, and harm counts",
            &["Void(NoImprovement)", "Settled"],
            1,
            &[Some(worse), Some(round(&[update(1, 5, 0), update(2, 4, 0)]))],
        ),
        vector(
            "a model one nano-nat better is an improvement",
            &["Settled"],
            1,
            &[Some(Round { worse_nano: 50_000_000, ..round(&good) })],
        ),
    ]
}

fn last_rounds() -> [Value; 5] {
    let withheld = [update(1, 30, 5), update(2, 9, 5), update(3, 20, 5)];
    let next = [update(1, 10, 0), update(4, 6, 1)];
    let worse = Round { worse_nano: 20_000_000, ..round(&next) };
    let last = |name, outcome, round| {
        vector(name, &["Settled", outcome], 3, &[Some(self::round(&withheld)), round])
    };
    let harmful = [update(1, -3, 1), update(4, 9, 0)];
    [
        last("the last round settles withheld pay", "Settled", Some(round(&next))),
        last("a void last round settles it too", "Void(NoImprovement)", Some(worse)),
        last("an abandoned last round too", "Abandoned(ValuationFailed)", None),
        vector("an early end too", &["Settled", ENDED], 1, &[Some(round(&withheld)), None]),
        last("an excluded sender is paid and debited", "Settled", Some(round(&harmful))),
    ]
}

fn paid_rounds() -> Vec<Value> {
    let first = [update(1, 50, 0), update(2, 5, 3)];
    let harm = [update(1, -20, 0), update(2, 60, 0)];
    let early = [update(1, 120, 80), update(2, 50, 40), update(3, -30, 5)];
    let poor = [Update { bond: "0.25", rows: 2, ..update(1, -40, 0) }, update(2, 60, 0)];
    let repeat = [update(1, 20, 1), Update { repeats: Some(1), ..update(2, 0, 0) }];
    vec![
        vector(
            "every reason of a line",
            &["Settled"],
            1,
            &[Some(round(&[
                update(1, 30, 5),
                update(2, 25, 10),
                update(3, 9, 5),
                update(4, 0, 0),
                update(5, -1, 2),
                update(6, -50, 10),
            ]))],
        ),
        vector(
            "a debit, its clawback, and the score earned again",
            &["Settled", "Settled", "Settled"],
            1,
            &[Some(round(&first)), Some(round(&harm)), Some(round(&first))],
        ),
        vector("harm where nothing is payable yet", &["Settled"], 1, &[Some(round(&early))]),
        vector("a debit up to the bond", &["Settled"], 1, &[Some(round(&poor))]),
        vector(
            "a repeat of an earlier round's update",
            &["Settled", "Settled"],
            1,
            &[Some(round(&first)), Some(round(&repeat))],
        ),
        vector(
            "a floor by capped weights where no score stands out",
            &["Settled"],
            1,
            &[Some(round(&[
                Update { rows: 10, ..update(1, 1, 5) },
                Update { rows: 20, ..update(2, 2, 5) },
                Update { rows: 900, bond: "90", ..update(3, 3, 5) },
                Update { rows: 900, bond: "2.05", ..update(4, 3, 5) },
            ]))],
        ),
        vector(
            "score pay up to the price of the improvement so far, then what was abandoned",
            &["Settled", "Settled", "Abandoned(ValuationFailed)", "Settled"],
            1,
            &[
                Some(Round { worse_nano: 45_000_000, ..round(&first) }),
                Some(Round {
                    worse_nano: 30_000_000,
                    ..round(&[update(1, 20, 0), update(3, 15, 1)])
                }),
                None,
                Some(round(&[update(2, 7, 1), update(3, 5, 0)])),
            ],
        ),
    ]
}

pub(crate) fn rounds() -> Value {
    let mut all = vec![
        on_rung("3 nodes", ScoreEstimator::Path(3), 3),
        on_rung("6 nodes", ScoreEstimator::Path(6), 3),
        on_rung("12 nodes", ScoreEstimator::Path(12), 3),
        on_rung("Shapley values", ScoreEstimator::Shapley, 3),
        on_rung(
            "antithetic pairs, for more than the infrastructure pool",
            ScoreEstimator::Permutations(32),
            9,
        ),
    ];
    all.extend(void_rounds());
    all.extend(last_rounds());
    all.extend(paid_rounds());
    all.into()
}

/// Figures on both sides of the gap rule's limits.
pub(crate) fn gaps() -> Value {
    let figures = [
        ("2 % of the improvement", 1_000_000_000, 20_000_000),
        ("a nano-nat more", 1_000_000_000, 20_000_001),
        ("2 % of a loss", -1_000_000_000, -20_000_000),
        ("an improvement that 50 does not divide", 1_000_000_049, 20_000_000),
        ("one nano-nat above it", 1_000_000_049, -20_000_001),
        ("a ten-thousandth of a nat", 0, -100_000),
        ("a nano-nat above a ten-thousandth", 0, 100_001),
        ("both limits meet", 5_000_000, 100_000),
        ("above both limits", 5_000_049, 100_001),
        ("the smallest gap of 64 bits", i64::MAX, i64::MIN),
    ];
    let one = |(name, total_nano, gap_nano): (&str, i64, i64)| {
        let resolved = void::is_gap_resolved(gap_nano, total_nano);
        json!({
            "name": name, "total_nano": total_nano, "gap_nano": gap_nano, "resolved": resolved
        })
    };
    figures.map(one).to_vec().into()
}

/// Scores at both ends of what a second estimate confirms.
pub(crate) fn confirmations() -> Value {
    let figures = [
        ("within the standard error", [300_000, 500_000, 0], 200_000),
        ("a nano-nat beyond it", [300_000, 500_001, 0], 200_000),
        ("within a ten-thousandth of a nat", [-300_000, -400_000, 0], 0),
        ("a nano-nat beyond that", [-300_000, -400_001, 0], 0),
        ("within 2 % of the improvement", [1, 20_000_001, 1_000_000_000], 1),
        ("a nano-nat beyond them", [1, -20_000_000, -1_000_000_000], 1),
        ("an update without effect", [0, i64::MIN, 0], 0),
        ("a score without an error", [1, i64::MIN, 0], 0),
    ];
    let one = |(name, [score, second, total], error): (&str, [i64; 3], u64)| {
        json!({
            "name": name,
            "score_nano": score,
            "error_nano": error,
            "second_nano": second,
            "total_nano": total,
            "confirmed": void::is_score_confirmed(score, error, second, total),
        })
    };
    figures.map(one).to_vec().into()
}
