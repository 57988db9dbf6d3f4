//! A small round on the digits data set, its audit, and every forgery that the audit must detect.

use std::ops::ControlFlow;

use florin_learning::data::{DataSource, canonical_bytes, load};
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{Dataset, Reference, ScratchSpace, Trainer};
use florin_protocol::*;

use crate::*;

pub(crate) struct TestRound {
    pub(crate) spec: TaskSpec,
    pub(crate) base: Vec<u8>,
    pub(crate) committed: CommittedHoldout,
    offer: Offer,
    headers: Vec<UpdateHeader>,
    pub(crate) entries: Vec<UpdateEntry>,
    pub(crate) updates: Vec<Vec<u8>>,
    /// Published updates of earlier rounds.
    earlier_updates: EarlierUpdates,
}

/// Decodes an update.
pub(crate) fn decoded(spec: &TaskSpec, bytes: &[u8]) -> Result<Vec<f32>, Rejection> {
    let mut delta = vec![f32::NAN; model_spec(&spec.model).parameters()];
    decode_update_into(spec, bytes, &mut delta).map(|()| delta)
}

fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

fn spec(base: &[u8], root: Digest) -> TaskSpec {
    let example = TaskSpec::example();
    TaskSpec {
        name: "digits".to_owned(),
        base_model: blob_digest(base),
        holdout: Holdout { root, rows: 500, rows_per_round: 200 },
        rounds: RoundRules { count: 2, enrol_ms: 0, ..example.rounds },
        budget: Budget { debit_max: fln("5"), unbond_ms: 0, ..example.budget },
        ..example
    }
}

/// Rows 0..500 are the holdout; sender `i` has its own rows.
pub(crate) fn shard(digits: &Dataset, i: usize) -> Dataset {
    digits.slice(500 + 200 * i..700 + 200 * i).unwrap()
}

pub(crate) fn flipped(data: &Dataset) -> Dataset {
    let labels = data.labels().iter().map(|label| 9 - label).collect();
    Dataset::new(data.features().to_vec(), labels, data.width(), data.classes()).unwrap()
}

/// The update after training on a shard; zero without a shard.
fn update(spec: &TaskSpec, start: &[f32], shard: Option<&Dataset>) -> Vec<u8> {
    let mut delta = vec![0.0; start.len()];
    if let Some(data) = shard {
        let (model, how) = (model_spec(&spec.model), training(spec, RoundNumber::FIRST));
        let mut go_on = |_| ControlFlow::Continue(());
        let trained = Reference::new().train(&model, start, data, &how, 1, &mut go_on).unwrap();
        delta = trained.params.iter().zip(start).map(|(a, b)| a - b).collect();
    }
    clip_update(spec, &mut delta);
    encode_parameters(spec, &delta)
}

/// Two honest senders, one with flipped labels, and an idle one.
pub(crate) fn world() -> TestRound {
    let digits = load(&DataSource::Digits).unwrap();
    let shards =
        [Some(shard(&digits, 0)), Some(shard(&digits, 1)), Some(flipped(&shard(&digits, 2))), None];
    world_of(&digits, &shards)
}

/// A forgery of the round's gap that is consistent with the valuation's last stage.
pub(crate) fn shift_gap(valuation: &mut Valuation, nano: i64) {
    valuation.gap_nano += nano;
    valuation.stages.last_mut().unwrap().gap_nano += nano;
}

/// One sender per shard; a sender without a shard is idle.
pub(crate) fn world_of(digits: &Dataset, shards: &[Option<Dataset>]) -> TestRound {
    world_with(digits, shards, |_| ())
}

/// [`world_of`] with a change of the task.
pub(crate) fn world_with(
    digits: &Dataset,
    shards: &[Option<Dataset>],
    change: impl FnOnce(&mut TaskSpec),
) -> TestRound {
    let committed = CommittedHoldout::new(digits.slice(0..500).unwrap());
    let base = initial_model(&ModelArchitecture::Softmax { inputs: 64, classes: 10 }, 7).unwrap();
    let mut spec = spec(&base, committed.root());
    spec.rounds.cohort_target = shards.len() as u32;
    change(&mut spec);
    let start = decode_model(&spec, &base).unwrap();
    let updates: Vec<Vec<u8>> =
        shards.iter().map(|shard| update(&spec, &start, shard.as_ref())).collect();
    let scope = RoundScope { market: spec.market, task: spec.id(), round: RoundNumber::FIRST };
    let cohort: Vec<Address> = (10..).take(shards.len()).map(|n| Address([n; 20])).collect();
    let offer = Offer {
        scope,
        base_model: spec.base_model,
        previous_report: Digest(spec.id().0),
        cohort: cohort.clone(),
        reasons: Vec::new(),
        candidates: Digest::default(),
        opened: Timestamp(0),
        commit_by: Timestamp(1_000),
        reveal_by: Timestamp(2_000),
        pool: spec.pool_for_round(RoundNumber::FIRST, None).unwrap(),
    };
    let headers: Vec<UpdateHeader> = cohort
        .iter()
        .zip(&updates)
        .map(|(sender, bytes)| UpdateHeader {
            scope,
            sender: *sender,
            offer: offer.digest(),
            base_model: spec.base_model,
            rows: 200,
            update: blob_digest(bytes),
            bytes: bytes.len() as u64,
            salt: Digest([9; 32]),
            expires: offer.reveal_by,
        })
        .collect();
    let bond = fln("10");
    let entries = headers
        .iter()
        .map(|header| UpdateEntry {
            sender: header.sender,
            header: header.digest(),
            update: header.update,
            salt: header.salt,
            rows_declared: header.rows,
            rows_counted: spec.rows_counted(header.rows, bond),
            bond,
            commit_position: u32::from(header.sender.0[0]) - 9,
            staleness: 0,
        })
        .collect();
    let shown = EarlierUpdates::default();
    TestRound { spec, base, committed, offer, headers, entries, updates, earlier_updates: shown }
}

impl TestRound {
    fn commits(&self) -> Vec<(Address, Digest)> {
        self.headers.iter().map(|h| (h.sender, h.commitment())).collect()
    }

    /// The rows drawn for the round, with none exposed before; empty if there are too few updates.
    pub(crate) fn drawn(&self) -> Vec<u32> {
        let seed = round_seed(self.offer.scope, &self.commits(), &self.entries);
        match self.spec.has_quorum(self.entries.len()) {
            true => draw_rows(&self.spec.holdout, &[], seed).unwrap(),
            false => Vec::new(),
        }
    }

    pub(crate) fn disclosed_rows(&self) -> Vec<u8> {
        self.committed.disclose(&self.drawn()).unwrap().to_bytes()
    }

    pub(crate) fn inputs<'a>(&'a self, drawn: &'a [u32], shown: &'a [u8]) -> ValuationInputs<'a> {
        ValuationInputs {
            spec: &self.spec,
            graph: None,
            base: &self.base,
            row_indices: drawn,
            disclosed_rows: shown,
            entries: &self.entries,
            updates: &self.updates,
            previous_models: &NO_BLOBS,
            earlier_updates: EarlierUpdateBlobs::NONE,
            earlier_rows: &NO_BLOBS,
            scratch_space: &UNLIMITED_MEMORY,
        }
    }

    pub(crate) fn outcome(&self) -> ValuationOutput {
        value_and_aggregate(
            &self.inputs(&self.drawn(), &self.disclosed_rows()),
            &mut Reference::new(),
        )
        .unwrap()
    }

    /// Selected participants without an entry.
    fn missing(&self) -> Vec<(Address, MissingReason)> {
        let came = |who: &Address| self.entries.iter().any(|entry| entry.sender == *who);
        let cohort = self.offer.cohort.iter();
        cohort.filter(|who| !came(who)).map(|who| (*who, MissingReason::NoReveal)).collect()
    }

    pub(crate) fn report(&self, result: Result<&WorkResult, AbandonReason>) -> Report {
        let provider = Address([20; 20]);
        let work = result.map(|r| (provider, Digest([5; 32]), r.valuation.units));
        close_round(&ReportInputs {
            spec: &self.spec,
            offer: &self.offer,
            previous_report: None,
            commits: &self.commits(),
            entries: &self.entries,
            times: &RoundTimes::default(),
            missing: &self.missing(),
            holdout_rows: &self.drawn(),
            result,
            verified_work: &work.into_iter().collect::<Vec<_>>(),
        })
        .unwrap()
    }

    pub(crate) fn audit(&self, report: &Report) -> Vec<Mismatch> {
        self.audit_with(report, &self.disclosed_rows(), &[])
    }

    /// Audits with the given disclosed rows, and with rows exposed by earlier rounds.
    fn audit_with(&self, report: &Report, shown: &[u8], exposed: &[u32]) -> Vec<Mismatch> {
        audit_round(&self.audit_inputs(report, shown, exposed), &mut Reference::new()).unwrap()
    }

    pub(crate) fn audit_inputs<'a>(
        &'a self,
        report: &'a Report,
        shown: &'a [u8],
        exposed: &'a [u32],
    ) -> AuditInputs<'a> {
        let round = self.inputs(&report.holdout.rows, shown);
        AuditInputs {
            round: ValuationInputs { entries: &report.entries, ..round },
            offer: &self.offer,
            report,
            previous_report: None,
            earlier_models: &[],
            earlier_updates: &self.earlier_updates,
            used_rows: exposed,
            headers: &self.headers,
        }
    }
}

#[test]
fn honest_updates_score_positive_flipped_labels_are_excluded_and_idle_ones_score_zero() {
    let world = world();
    let ValuationOutput { result, model } = world.outcome();
    let scores = &result.valuation.scores;
    assert!(scores[0].score_nano > 0 && scores[1].score_nano > 0, "{scores:?}");
    assert!(scores[2].score_nano < 0 && scores[2].excluded, "{scores:?}");
    assert_eq!((scores[3].score_nano, scores[3].error_nano), (0, 0), "{scores:?}");
    assert!(result.metrics.correct_after > result.metrics.correct_before + 100);
    assert_eq!(result.model, blob_digest(&model));
    decode_model(&world.spec, &model).unwrap();
}

#[test]
fn the_model_does_not_depend_on_an_excluded_update() {
    let mut world = world();
    // The median norm is taken before the valuation, so it includes excluded updates.
    world.spec.rounds.preprocessing.norm_scaling = NormScaling::None;
    let with = world.outcome();
    assert!(with.result.valuation.scores[2].excluded);
    world.entries.remove(2);
    world.updates.remove(2);
    assert_eq!(world.outcome().model, with.model);
}

#[test]
fn an_honest_report_audits_without_differences() {
    let world = world();
    let report = world.report(Ok(&world.outcome().result));
    assert!(!report.data_total.is_zero());
    assert_eq!(world.audit(&report), []);
}

fn evidence(report: &mut Report) -> &mut ValuationEvidence {
    &mut report.valuation.as_mut().unwrap().evidence
}

fn check(report: &mut Report) -> &mut CrossCheck {
    evidence(report).cross_check.as_mut().unwrap()
}

/// The root of the report's totals with all debits multiplied by `times`.
fn root_with_debits(report: &Report, times: u128) -> Digest {
    let mut standings = report.account_totals.clone();
    for standing in standings.values_mut() {
        standing.debited = standing.debited.mul_div_down(times, 1).unwrap();
    }
    claim_tree(&standings).unwrap().root()
}

/// The rule that a forged commit position breaks.
const POSITIONS: &str = "entries' commit positions distinct, from 1 to the number of commits";

type ReportForgery = (&'static str, fn(&mut Report));

/// Forged reports, and the line that the audit names.
const FORGERIES: &[ReportForgery] = &[
    ("valuation.scores[1].score_nano", |r| {
        r.valuation.as_mut().unwrap().scores[1].score_nano += 11;
    }),
    ("valuation.scores[0].error_nano", |r| {
        r.valuation.as_mut().unwrap().scores[0].error_nano -= 11;
    }),
    ("valuation.scores[2].excluded", |r| {
        r.valuation.as_mut().unwrap().scores[2].excluded = false;
    }),
    ("valuation.total_nano", |r| r.valuation.as_mut().unwrap().total_nano += 1_000),
    ("metrics.correct_after", |r| r.metrics.as_mut().unwrap().correct_after += 1),
    ("valuation.scores[0].preprocessing.norm_factor", |r| {
        r.valuation.as_mut().unwrap().scores[0].preprocessing.norm_factor = Micro(999_999);
    }),
    ("valuation.scores[1].preprocessing.duplicate_of", |r| {
        let repeat = DuplicateMatch { source: DuplicateSource::GlobalDeltas, cosine: Micro::ONE };
        r.valuation.as_mut().unwrap().scores[1].preprocessing.duplicate_of = Some(repeat);
    }),
    (POSITIONS, |r| r.entries[1].commit_position = 1),
    (POSITIONS, |r| r.entries[3].commit_position = 5),
    ("model", |r| r.model = Digest([1; 32])),
    ("lines[0].payout", |r| {
        r.lines[0].payout = r.lines[0].payout.plus(Amount::from_units(1)).unwrap();
    }),
    ("lines[2].debit", |r| r.lines[2].debit = Amount::ZERO),
    ("lines[3].reason", |r| r.lines[3].reason = PayReason::Paid),
    ("valuation.evidence.derivatives_nano[1][2]", |r| evidence(r).derivatives_nano[1][2] += 11),
    ("valuation.evidence.derivatives_nano", |r| evidence(r).derivatives_nano.truncate(1)),
    ("valuation.evidence.cross_check", |r| evidence(r).cross_check = None),
    ("valuation.evidence.cross_check.seed", |r| check(r).seed += 1),
    ("valuation.evidence.cross_check.table[4].value_nano", |r| check(r).table[4].value_nano -= 11),
    ("valuation.evidence.cross_check.table[1].members", |r| check(r).table[1].members = vec![7]),
    ("valuation.evidence.cross_check.scores_nano[1]", |r| check(r).scores_nano[1] += 11),
    ("root", |r| r.root = Digest([1; 32])),
    // The root also commits to debits: none may be missing or doubled.
    ("root", |r| r.root = root_with_debits(r, 0)),
    ("root", |r| r.root = root_with_debits(r, 2)),
    ("previous_root", |r| r.previous_root = Digest([1; 32])),
    ("data_total", |r| r.data_total = Amount::ZERO),
    ("infrastructure[0].units", |r| r.infrastructure[0].units += 1),
    ("entries[0].rows_counted", |r| r.entries[0].rows_counted += 1),
    ("entries[1].rows_declared", |r| r.entries[1].rows_declared = 10),
    ("entries[1].update", |r| r.entries[1].update = Digest([1; 32])),
    ("base_model", |r| r.base_model = Digest([1; 32])),
    ("previous_report", |r| r.previous_report = Digest([1; 32])),
    ("entries and missing are the cohort", |r| {
        r.missing.push((Address([9; 20]), MissingReason::NoCommit))
    }),
    ("holdout.seed", |r| r.holdout.seed = Digest([1; 32])),
    ("holdout.rows", |r| r.holdout.rows.truncate(199)),
    ("holdout.rows[3]", |r| r.holdout.rows[3] = 499),
    ("entries[0].salt", |r| r.entries[0].salt = Digest([1; 32])),
    ("settlement_id", |r| r.settlement_id = SettlementId([1; 32])),
    ("pool", |r| r.pool = Amount::ZERO),
];

#[test]
fn the_audit_names_the_line_of_every_forgery() {
    let world = world();
    let honest = world.report(Ok(&world.outcome().result));
    for (line, forge) in FORGERIES {
        let mut report = honest.clone();
        forge(&mut report);
        let found = world.audit(&report);
        assert!(found.iter().any(|d| d.line == *line), "{line}: {found:?}");
    }
}

/// The second sender's bytes equal the first one's: commit-reveal prevents this unless the two
/// collude.
fn round_with_copy() -> TestRound {
    let mut world = world();
    world.updates[1] = world.updates[0].clone();
    world.headers[1].update = world.headers[0].update;
    world.entries[1].update = world.headers[1].update;
    world.entries[1].header = world.headers[1].digest();
    world
}

#[test]
fn a_copy_scores_zero_and_the_model_does_not_depend_on_it() {
    let mut world = round_with_copy();
    let with = world.outcome();
    let score = with.result.valuation.scores[1];
    let repeat = DuplicateMatch {
        source: DuplicateSource::SameRound(world.entries[0].sender),
        cosine: Micro::ONE,
    };
    assert_eq!(score.preprocessing.duplicate_of, Some(repeat));
    assert_eq!((score.score_nano, score.error_nano), (0, 0));
    world.entries.remove(1);
    world.updates.remove(1);
    assert_eq!(with.model, world.outcome().model);
}

#[test]
fn the_audit_detects_a_report_that_accepts_a_copy() {
    let world = round_with_copy();
    let mut result = world.outcome().result;
    assert_eq!(world.audit(&world.report(Ok(&result))), []);
    result.valuation.scores[1].preprocessing.duplicate_of = None;
    let found = world.audit(&world.report(Ok(&result)));
    assert_eq!(found[0].line, "valuation.scores[1].preprocessing.duplicate_of", "{found:?}");
    assert!(found[0].recomputed.contains("cosine 1"), "{found:?}");
}

#[test]
fn scratch_space_on_disk_does_not_change_the_result() {
    let world = world();
    let dir = tempfile::tempdir().unwrap();
    let room = ScratchSpace { memory_max: 0, folder: dir.path().to_owned() };
    let (drawn, shown) = (world.drawn(), world.disclosed_rows());
    let inputs = ValuationInputs { scratch_space: &room, ..world.inputs(&drawn, &shown) };
    assert_eq!(value_and_aggregate(&inputs, &mut Reference::new()).unwrap(), world.outcome());
    let room = ScratchSpace { folder: dir.path().join("absent"), ..room };
    let inputs = ValuationInputs { scratch_space: &room, ..inputs };
    let error = value_and_aggregate(&inputs, &mut Reference::new()).unwrap_err();
    assert!(matches!(error, WorkError::ScratchSpace(_)), "{error}");
}

#[test]
fn the_audit_detects_a_round_abandoned_without_reason() {
    let mut world = world();
    let unfounded = world.report(Err(AbandonReason::ValuationFailed));
    assert_eq!(world.audit(&unfounded)[0].line, "outcome");
    let too_few = AbandonReason::TooFewUpdates { got: 1, needed: 2 };
    assert_eq!(world.audit(&world.report(Err(too_few)))[0].line, "outcome");
    world.entries.truncate(1);
    world.updates.truncate(1);
    world.headers.truncate(1);
    assert_eq!(world.audit(&world.report(Err(too_few))), []);
}

#[test]
fn the_audit_detects_an_offer_that_violates_the_task() {
    let mut world = world();
    let honest = world.report(Ok(&world.outcome().result));
    type OfferForgery = (&'static str, fn(&mut Offer));
    let changes: [OfferForgery; 3] = [
        ("offer.pool", |o| o.pool = Amount::ZERO),
        ("offer.cohort ascending and within the size limit", |o| o.cohort.reverse()),
        ("entries and missing are the cohort", |o| o.cohort.truncate(3)),
    ];
    let offer = world.offer.clone();
    for (line, change) in changes {
        change(&mut world.offer);
        let found = world.audit(&honest);
        assert!(found.iter().any(|d| d.line == line), "{line}: {found:?}");
        world.offer = offer.clone();
    }
}

#[test]
fn the_audit_detects_a_settled_round_with_too_few_updates() {
    let mut world = world();
    let report = world.report(Ok(&world.outcome().result));
    world.spec.rounds.cohort_min = 5;
    let found = world.audit(&report);
    assert!(found.iter().any(|d| d.line == "entries are at least cohort_min"), "{found:?}");
}

#[test]
fn the_median_replaces_krum_if_exclusion_leaves_too_few_updates() {
    let mut world = world();
    world.spec.rounds.aggregation = Aggregation::Krum { byzantine: 1 };
    let outcome = world.outcome();
    assert!(outcome.result.valuation.scores[2].excluded);
    assert!(outcome.result.metrics.correct_after > outcome.result.metrics.correct_before);
}

#[test]
fn rows_beyond_the_bond_do_not_count() {
    let world = world();
    assert_eq!(world.spec.rows_counted(1_000_000_000_000, fln("10")), 200);
    assert_eq!(world.spec.rows_counted(7, fln("10")), 7);
}

#[test]
fn a_holdout_that_is_not_the_committed_one_is_refused() {
    let TestRound { spec, .. } = world();
    let digits = load(&DataSource::Digits).unwrap();
    let good = canonical_bytes(&digits.slice(0..500).unwrap());
    assert_eq!(CommittedHoldout::decode(&spec, &good).unwrap().root(), spec.holdout.root);
    let mut other_label = good.clone();
    let last = other_label.len() - 4;
    other_label[last] ^= 1;
    let moved = canonical_bytes(&digits.slice(1..501).unwrap());
    let fewer = canonical_bytes(&digits.slice(0..499).unwrap());
    for bad in [&other_label, &moved, &fewer, &good[1..].to_vec()] {
        assert_eq!(CommittedHoldout::decode(&spec, bad).unwrap_err().code, ErrorCode::InvalidTask);
    }
}

#[test]
fn forged_or_undrawn_validation_rows_are_detected() {
    let world = world();
    let report = world.report(Ok(&world.outcome().result));
    let drawn = world.drawn();
    let honest = world.committed.disclose(&drawn).unwrap();
    type RowForgery = (&'static str, &'static str, fn(&mut Vec<DisclosedRow>));
    let forgeries: &[RowForgery] = &[
        ("holdout.rows[3]", "does not lead to the root", |rows| rows[3].row[0] ^= 1),
        ("holdout.rows[3]", "does not lead to the root", |rows| {
            let label = rows[3].row.len() - 4;
            rows[3].row[label] ^= 1;
        }),
        ("holdout.rows[4]", "does not lead to the root", |rows| {
            rows[4].blinding_factor = Digest([1; 32])
        }),
        ("holdout.rows[5]", "does not lead to the root", |rows| {
            rows[5].proof.pop();
        }),
        ("holdout.rows[5]", "does not lead to the root", |rows| {
            let other = rows[6].clone();
            rows[5] = DisclosedRow { index: rows[5].index, ..other };
        }),
        ("holdout.rows[5]", "was drawn", |rows| rows.swap(5, 6)),
        ("holdout.rows[0]", "was drawn", |rows| rows[0].index += 1_000),
        ("holdout.rows", "199 rows are disclosed", |rows| {
            rows.pop();
        }),
    ];
    for (line, why, forge) in forgeries {
        let mut shown = honest.clone();
        forge(&mut shown.rows);
        let bytes = shown.to_bytes();
        let found = world.audit_with(&report, &bytes, &[]);
        let named = found.len() == 1 && found[0].line == *line && found[0].recomputed.contains(why);
        assert!(named, "{line}, {why}: {found:?}");
        // A provider rejects these rows too.
        let error =
            value_and_aggregate(&world.inputs(&drawn, &bytes), &mut Reference::new()).unwrap_err();
        assert!(
            matches!(&error, WorkError::Disclosure(error) if error.report_path() == *line),
            "{error}"
        );
    }
    let found = world.audit_with(&report, b"nothing", &[]);
    assert_eq!((found.len(), found[0].line.as_str()), (1, "holdout.rows"));
}

#[test]
fn the_audit_detects_a_row_reused_from_an_earlier_round() {
    let world = world();
    let report = world.report(Ok(&world.outcome().result));
    let again = report.holdout.rows[0];
    let found = world.audit_with(&report, &world.disclosed_rows(), &[again]);
    assert_eq!(found[0].line, "holdout.rows[0]");
    assert_eq!(found[0].reported, format!("row {again}, disclosed in an earlier round"));
    let used_up: Vec<u32> = (0..301).collect();
    let found = world.audit_with(&report, &world.disclosed_rows(), &used_up);
    assert_eq!(found[0].recomputed, "the holdout has 199 undisclosed rows left; a round needs 200");
}

#[test]
fn rows_that_do_not_fit_the_model_are_refused() {
    let TestRound { mut spec, .. } = world();
    let narrow = Dataset::new(vec![0.5; 4], vec![0, 1], 2, 10).unwrap();
    let committed = CommittedHoldout::new(narrow);
    spec.holdout = Holdout { root: committed.root(), rows: 2, rows_per_round: 2 };
    let bytes = committed.disclose(&[0, 1]).unwrap().to_bytes();
    let error = verify_disclosed_rows(&spec, &[0, 1], &bytes).unwrap_err();
    assert!(
        matches!(&error, DisclosureError::ModelMismatch(why) if why.contains("2 features, not 64"))
    );
    assert_eq!(committed.disclose(&[2]), None);
}

#[test]
fn two_tasks_with_hidden_layers_start_from_different_models() {
    let mlp = ModelArchitecture::Mlp { inputs: 4, hidden: vec![3], classes: 2 };
    let task = |salt| TaskSpec { salt, model: mlp.clone(), ..TaskSpec::example() };
    let [one, again, other] = [1, 1, 2].map(|salt| crate::derived_model(&task(salt)).unwrap());
    assert_eq!(one, again);
    assert_ne!(one, other);
    assert_eq!(one, initial_model(&mlp, task(1).model_seed()).unwrap());
}

#[test]
fn the_audit_names_an_early_end_that_asked_participants_and_a_round_after_an_end() {
    let world = world();
    let ended = world.report(Err(AbandonReason::TaskEnded));
    let found = world.audit(&ended);
    let found = found.iter().find(|each| each.line == "outcome").unwrap();
    assert_eq!(found.reported, "the task ended before the round");
    let next = world.report(Ok(&world.outcome().result));
    let rows = world.disclosed_rows();
    let inputs = world.audit_inputs(&next, &rows, &[]);
    let inputs = AuditInputs { previous_report: Some(&ended), ..inputs };
    let found = audit_round(&inputs, &mut Reference::new()).unwrap();
    let line = "scope.round after the task's end";
    assert!(found.iter().any(|each| each.line == line), "{found:?}");
}
