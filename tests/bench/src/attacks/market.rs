//! A market in memory, round by round, with the production code for valuation and payment but
//! without a ledger.

use std::collections::BTreeMap;

use anyhow::Context;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{Dataset, Reference};
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    AccountTotals, Address, Aggregation, Amount, Budget, Canonical, ChainId, DataSchema, Digest,
    EarlierUpdates, Estimator, Holdout, MarketId as Name, Micro, ModelArchitecture, Offer,
    PreprocessingRules, Report, ReportInputs, RoundNumber, RoundRules, RoundScope, TaskSpec,
    Timestamp, Training, UpdateEntry, UpdateScore, blob_digest, close_round, draw_rows, round_seed,
};
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, clip_update, decode_model,
    encode_parameters, model_bytes, value_and_aggregate,
};

use super::learn::Cohort;

/// Rounds of a task.
pub(super) const ROUNDS: usize = 8;

/// The submission of one identity in a round.
#[derive(Debug, Clone)]
pub(super) struct Submission {
    pub(super) account: Address,
    /// Number of rows it declares.
    pub(super) rows: u64,
    /// Its bond, in number of covered rows.
    pub(super) bonded: u64,
    pub(super) delta: Vec<f32>,
}

/// A task whose rounds run in memory.
pub(super) struct InMemoryMarket {
    spec: TaskSpec,
    holdout: CommittedHoldout,
    /// Holdout rows used in earlier rounds.
    exposed: Vec<u32>,
    base: Vec<u8>,
    /// Base models of the previous rounds, newest first.
    previous: Vec<Vec<u8>>,
    before: Option<Report>,
    /// The updates that earlier rounds disclosed.
    disclosed: EarlierUpdates,
    /// The bytes of these updates.
    last: BTreeMap<Digest, Vec<u8>>,
    engine: Reference,
}

/// The budget rule that limits the payouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PayLimit {
    /// As in the demonstration: the price limits the first rounds, the pool the others.
    Demonstration,
    /// The price alone: payouts are proportional to scores.
    Priced,
}

fn fln(whole: u64) -> Amount {
    Amount::from_units(u128::from(whole) * 1_000_000_000_000_000_000)
}

/// The demonstration's task, with bonds large enough for every deduction.
fn spec(
    cohort: &Cohort,
    protection: PreprocessingRules,
    purse: PayLimit,
    root: Digest,
    base: &[u8],
) -> TaskSpec {
    let micro = Micro;
    let hidden = vec![32];
    let example = TaskSpec::example();
    TaskSpec {
        market: Name { chain: ChainId(1), genesis: Digest([1; 32]) },
        buyer: Address([1; 20]),
        coordinator: Address([2; 20]),
        arbiter: Address([3; 20]),
        name: "attacks".to_owned(),
        salt: cohort.seed,
        model: ModelArchitecture::Mlp { inputs: 64, hidden, classes: 10 },
        base_model: blob_digest(base),
        data: DataSchema { width: 64, classes: 10 },
        holdout: Holdout {
            root,
            rows: cohort.holdout.rows() as u32,
            rows_per_round: (cohort.holdout.rows() / ROUNDS) as u32,
        },
        training: Training {
            epochs: cohort.training.epochs,
            batch: cohort.training.batch,
            learning_rate: micro(100_000),
            ..example.training
        },
        rounds: RoundRules {
            count: ROUNDS as u32,
            cohort_min: 2,
            cohort_target: 64,
            enrol_ms: 0,
            train_ms: 1_000,
            reveal_ms: 1_000,
            value_ms: 1_000,
            delta_norm_max: micro(20_000_000),
            aggregation: Aggregation::Mean,
            preprocessing: protection,
            ..example.rounds
        },
        estimator: Estimator::Path { nodes: 3, cross_check_pairs: 0 },
        budget: Budget {
            data: if purse == PayLimit::Priced { fln(1_000_000) } else { fln(1_000) },
            infrastructure: fln(1),
            per_nat_max: fln(500),
            confidence_z: micro(3_000_000),
            bond_min: fln(1),
            bond_per_row: fln(1),
            debit_max: fln(1_000_000),
            per_unit: Amount::ZERO,
            challenge_ms: 0,
            unbond_ms: 0,
            ..example.budget
        },
        expires: Timestamp::MAX,
        ..example
    }
}

impl InMemoryMarket {
    pub(super) fn new(cohort: &Cohort, protection: PreprocessingRules, purse: PayLimit) -> Self {
        let holdout = CommittedHoldout::new(cohort.holdout.clone());
        let start = cohort.start();
        let mut market = Self {
            spec: spec(cohort, protection, purse, holdout.root(), &[]),
            holdout,
            exposed: Vec::new(),
            base: Vec::new(),
            previous: Vec::new(),
            before: None,
            disclosed: EarlierUpdates::default(),
            last: BTreeMap::new(),
            engine: Reference::new(),
        };
        market.base = encode_parameters(&market.spec, &start);
        market.spec.base_model = blob_digest(&market.base);
        market
    }

    /// The base model of the next round.
    pub(super) fn base(&self) -> anyhow::Result<Vec<f32>> {
        Ok(decode_model(&self.spec, &self.base)?)
    }

    /// Runs a round with the submissions, in commit order. Returns the scores, sorted by account.
    pub(super) fn play(&mut self, sent: &[Submission]) -> anyhow::Result<Vec<UpdateScore>> {
        let round = self.before.as_ref().map_or(1, |report| report.scope.round.0 + 1);
        let scope = RoundScope {
            market: self.spec.market,
            task: self.spec.id(),
            round: RoundNumber(round),
        };
        let (entries, updates) = self.received(sent);
        let offer = Offer {
            scope,
            base_model: blob_digest(&self.base),
            previous_report: self.before.as_ref().map_or(Digest(self.spec.id().0), Report::digest),
            cohort: entries.iter().map(|entry| entry.sender).collect(),
            opened: Timestamp(0),
            commit_by: Timestamp(0),
            reveal_by: Timestamp(0),
            pool: self.spec.pool_for_round(RoundNumber(round), self.before.as_ref())?,
        };
        let seed = round_seed(scope, &[], &entries);
        let drawn = draw_rows(&self.spec.holdout, &self.exposed, seed)?;
        let shown = self.holdout.disclose(&drawn).context("drawn rows are in the holdout")?;
        self.exposed.extend(&drawn);
        let previous = self.previous.iter().take(GLOBAL_DELTAS_MAX);
        let previous: Vec<&[u8]> = previous.map(Vec::as_slice).collect();
        let (named, last) = self.last_updates();
        let outcome = value_and_aggregate(
            &ValuationInputs {
                spec: &self.spec,
                base: &self.base,
                row_indices: &drawn,
                disclosed_rows: &shown.to_bytes(),
                entries: &entries,
                updates: &updates,
                previous_models: &previous.as_slice(),
                earlier_updates: EarlierUpdateBlobs { ids: &named, bytes: &last },
                scratch_space: &UNLIMITED_MEMORY,
            },
            &mut self.engine,
        )?;
        let report = close_round(&ReportInputs {
            spec: &self.spec,
            offer: &offer,
            previous_report: self.before.as_ref(),
            commits: &[],
            entries: &entries,
            missing: &[],
            holdout_rows: &drawn,
            result: Ok(&outcome.result),
            verified_work: &[],
        })?;
        self.previous.insert(0, std::mem::replace(&mut self.base, outcome.model));
        self.advance(report, updates);
        Ok(outcome.result.valuation.scores)
    }

    /// The entries and the bytes of submissions in commit order, sorted by account.
    fn received(&self, sent: &[Submission]) -> (Vec<UpdateEntry>, Vec<Vec<u8>>) {
        let mut by_sender: BTreeMap<Address, (UpdateEntry, Vec<u8>)> = BTreeMap::new();
        for (sent, order) in sent.iter().zip(1..) {
            let mut delta = sent.delta.clone();
            clip_update(&self.spec, &mut delta);
            let bytes = encode_parameters(&self.spec, &delta);
            let bond = fln(sent.bonded);
            let entry = UpdateEntry {
                sender: sent.account,
                header: Digest([9; 32]),
                update: blob_digest(&bytes),
                salt: blob_digest(&bytes),
                rows_declared: sent.rows,
                rows_counted: self.spec.rows_counted(sent.rows, bond),
                bond,
                commit_position: order,
            };
            by_sender.insert(sent.account, (entry, bytes));
        }
        by_sender.into_values().unzip()
    }

    /// Stores the updates for the duplicate detection of the next round, and continues.
    fn advance(&mut self, report: Report, updates: Vec<Vec<u8>>) {
        self.disclosed.add_report(&report);
        if report.is_productive() {
            self.last.clear();
        }
        self.last.extend(report.entries.iter().map(|entry| entry.update).zip(updates));
        self.before = Some(report);
    }

    /// The updates of earlier rounds that the duplicate detection compares with.
    fn last_updates(&self) -> (Vec<(Address, Digest)>, Vec<Vec<u8>>) {
        let rules = self.spec.rounds.preprocessing;
        let named = self.disclosed.reference_updates(rules, model_bytes(&self.spec));
        let bytes = named.iter().filter_map(|(_, update)| self.last.get(update).cloned());
        let bytes = bytes.collect();
        (named, bytes)
    }

    /// Earnings of an account so far, minus its deductions, in florins.
    pub(super) fn earned(&self, account: Address) -> f64 {
        let standings = self.before.as_ref().map(|report| &report.account_totals);
        let Some(AccountTotals { data, debited, .. }) = standings.and_then(|all| all.get(&account))
        else {
            return 0.0;
        };
        (data.units() as f64 - debited.units() as f64) / 1e18
    }
}

/// The number of rows of a shard, as its owner declares and covers them.
pub(super) fn rows_of(shard: &Dataset) -> u64 {
    shard.rows() as u64
}
