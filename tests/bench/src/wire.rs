//! `florin-bench wire`: the size of each update format, and its effect on the accuracy.
//!
//! The demonstration's task, with its eight participants and their behaviours, runs in memory: real
//! training, the production code for encoding, decoding, valuing and aggregating updates, and the
//! plain-Rust engine. All formats use the same rows, initial models and batches. The accuracy is
//! that of the final model on a test set that is not used in the market.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::path::Path;

use anyhow::Context;
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{Dataset, Evaluator, Reference, Trainer};
use florin_participant::BehaviourKind;
use florin_protocol::limits::GLOBAL_DELTAS_MAX;
use florin_protocol::{
    Address, ChainId, Digest, MarketId, RoundNumber, RoundScope, TaskSpec, Timestamp, UpdateEntry,
    UpdateFormat, blob_digest, draw_rows, round_seed,
};
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, ValuationInputs, decode_model, encode_update,
    update_bytes, value_and_aggregate,
};

use super::contribution::refresh_page;
use super::{Measurement, mean_and_std};
use florin::demo::{plan, setup};
use florin::show::{self, TextTable};
use florin::task_file::{self, Parties};

/// The page with the table.
const PAGE: &str = "operations.md";

/// A format and its options.
#[derive(Debug, Clone, Copy)]
struct Encoding {
    name: &'static str,
    format: UpdateFormat,
    /// Whether participants add the residual of an update to their next one (error feedback).
    residual: bool,
}

const fn top_k(name: &'static str, permille: u16, carries: bool) -> Encoding {
    Encoding { name, format: UpdateFormat::TopK { permille }, residual: carries }
}

/// The first encoding is the baseline.
const ENCODINGS: [Encoding; 8] = [
    Encoding { name: "f32", format: UpdateFormat::F32, residual: false },
    Encoding { name: "bf16", format: UpdateFormat::Bf16, residual: false },
    Encoding { name: "int8", format: UpdateFormat::Int8, residual: false },
    top_k("top_k 200", 200, true),
    top_k("top_k 50", 50, true),
    top_k("top_k 50, no residual", 50, false),
    top_k("top_k 10", 10, true),
    top_k("top_k 10, no residual", 10, false),
];

/// The results of an encoding.
struct FormatResult {
    way: Encoding,
    bytes: u64,
    /// Test accuracy of the final model, for each seed.
    accuracy: Vec<f64>,
}

pub(super) fn run(seeds: u64, docs: Option<&Path>) -> anyhow::Result<Vec<Measurement>> {
    let mut all: Vec<FormatResult> = ENCODINGS
        .iter()
        .map(|way| FormatResult { way: *way, bytes: 0, accuracy: Vec::new() })
        .collect();
    for seed in 1..=seeds {
        let town = WireFixture::new(seed)?;
        for measured in &mut all {
            let spec = town.spec_in(measured.way.format);
            measured.bytes = update_bytes(&spec);
            measured.accuracy.push(town.play(&spec, measured.way.residual)?);
        }
    }
    let lines = lines(&all);
    let mut table = TextTable::new(&HEADS);
    for line in &lines {
        table.row(line.each_ref().map(|cell| cell.as_str().into()));
    }
    table.print();
    if let Some(folder) = docs {
        refresh_page(&folder.join(PAGE), &[("wire", markdown(&lines))])?;
    }
    let rows = all.iter().flat_map(|measured| {
        let name = measured.way.name;
        let (mean, spread) = mean_and_std(&measured.accuracy);
        [
            Measurement::plain(format!("{name}: update size"), measured.bytes as f64, "bytes"),
            Measurement::plain(format!("{name}: accuracy"), mean, ""),
            Measurement::plain(format!("{name}: its standard deviation"), spread, ""),
        ]
    });
    Ok(rows.collect())
}

const HEADS: [&str; 5] =
    ["format", ">bytes", ">of f32", ">accuracy, %", ">difference to f32, points"];

/// The rows of the table as text.
fn lines(all: &[FormatResult]) -> Vec<[String; 5]> {
    let Some(plain) = all.first() else { return Vec::new() };
    let line = |measured: &FormatResult| {
        let percent = |(mean, spread): (f64, f64)| {
            (format!("{:.1} ± {:.1}", 100.0 * mean, 100.0 * spread), mean)
        };
        let pairs = measured.accuracy.iter().zip(&plain.accuracy);
        let differences: Vec<f64> = pairs.map(|(own, plain)| own - plain).collect();
        [
            measured.way.name.to_owned(),
            show::thousands(&measured.bytes.to_string()),
            format!("{:.3}", measured.bytes as f64 / plain.bytes as f64),
            percent(mean_and_std(&measured.accuracy)).0,
            percent(mean_and_std(&differences)).0,
        ]
    };
    all.iter().map(line).collect()
}

fn markdown(lines: &[[String; 5]]) -> String {
    let heads = HEADS.map(|head| head.trim_start_matches('>')).join(" | ");
    let mut text = format!("\n| {heads} |\n|---|--:|--:|--:|--:|\n");
    for line in lines {
        let _ = writeln!(text, "| {} |", line.join(" | "));
    }
    text.push('\n');
    text
}

/// The demonstration's task and participants, in memory.
struct WireFixture {
    seed: u64,
    spec: TaskSpec,
    base: Vec<u8>,
    holdout: CommittedHoldout,
    test: Dataset,
    people: Vec<(BehaviourKind, Dataset)>,
}

/// The residual of each participant's last update.
type CarriedResiduals = Vec<Option<Vec<f32>>>;

impl WireFixture {
    fn new(seed: u64) -> anyhow::Result<Self> {
        let setup::SplitData { holdout, test, shards } = setup::split_digits(seed)?;
        let folder = tempfile::tempdir()?;
        florin_learning::data::save(&holdout, &folder.path().join("holdout.florin"))?;
        let parties = Parties {
            market: MarketId { chain: ChainId(0), genesis: Digest::default() },
            buyer: Address([1; 20]),
            coordinator: Address([2; 20]),
            now: Timestamp(0),
        };
        let file = folder.path().join("task.toml");
        std::fs::write(&file, plan::task_file(seed, plan::ROUNDS, UpdateFormat::F32))?;
        let ready = task_file::read(&file, &parties)?;
        let kind = |behaviour: plan::Behaviour| match behaviour {
            plan::Behaviour::Honest => BehaviourKind::Honest,
            plan::Behaviour::Noise => BehaviourKind::Noise,
            plan::Behaviour::Flip => BehaviourKind::Flipped,
            plan::Behaviour::Idle => BehaviourKind::Idle,
        };
        let kinds = plan::PARTICIPANTS.into_iter().map(|(_, behaviour)| kind(behaviour));
        Ok(Self {
            seed,
            spec: ready.spec,
            base: ready.base_model,
            holdout: CommittedHoldout::new(holdout),
            test,
            people: kinds.zip(shards).collect(),
        })
    }

    fn spec_in(&self, format: UpdateFormat) -> TaskSpec {
        let mut spec = self.spec.clone();
        spec.rounds.format = format;
        spec
    }

    /// Runs the whole task; returns the test accuracy of its final model.
    fn play(&self, spec: &TaskSpec, carries: bool) -> anyhow::Result<f64> {
        let mut engine = Reference::new();
        let (mut base, mut previous) = (self.base.clone(), Vec::<Vec<u8>>::new());
        let mut exposed = Vec::new();
        let mut last: (Vec<(Address, Digest)>, Vec<Vec<u8>>) = Default::default();
        let mut residuals: CarriedResiduals = vec![None; self.people.len()];
        for round in 1..=spec.rounds.count {
            let (entries, updates) = self.updates(spec, round, &base, &mut residuals)?;
            if !carries {
                residuals.fill(None);
            }
            let scope =
                RoundScope { market: spec.market, task: spec.id(), round: RoundNumber(round) };
            let drawn = draw_rows(&spec.holdout, &exposed, round_seed(scope, &[], &entries))?;
            let shown = self.holdout.disclose(&drawn).context("drawn rows are in the holdout")?;
            exposed.extend(&drawn);
            let inputs = ValuationInputs {
                spec,
                graph: None,
                base: &base,
                row_indices: &drawn,
                disclosed_rows: &shown.to_bytes(),
                entries: &entries,
                updates: &updates,
                previous_models: &previous,
                earlier_updates: EarlierUpdateBlobs { ids: &last.0, bytes: &last.1 },
                earlier_rows: &florin_work::NO_BLOBS,
                scratch_space: &UNLIMITED_MEMORY,
            };
            let model = value_and_aggregate(&inputs, &mut engine)?.model;
            if model == base {
                // A round without effect drops the residual, as in a participant, because the next
                // training covers it again.
                residuals.fill(None);
            }
            last = (entries.iter().map(|entry| (entry.sender, entry.update)).collect(), updates);
            previous.insert(0, std::mem::replace(&mut base, model));
            previous.truncate(GLOBAL_DELTAS_MAX);
        }
        let params: Vec<f64> = decode_model(spec, &base)?.into_iter().map(f64::from).collect();
        let model = florin_work::model_spec(&spec.model);
        let right = engine.correct_predictions(&model, &params, &self.test)?;
        Ok(right as f64 / self.test.rows() as f64)
    }

    /// The updates of all participants in a round. The new residual replaces the old one.
    fn updates(
        &self,
        spec: &TaskSpec,
        round: u32,
        base: &[u8],
        residuals: &mut CarriedResiduals,
    ) -> anyhow::Result<(Vec<UpdateEntry>, Vec<Vec<u8>>)> {
        let model = florin_work::model_spec(&spec.model);
        let how = florin_work::training(spec, RoundNumber(round));
        let base = decode_model(spec, base)?;
        let mut made = (Vec::new(), Vec::new());
        for ((member, (kind, own)), residual) in (1_u8..).zip(&self.people).zip(residuals) {
            let seed = self.seed << 32 | u64::from(round) << 8 | u64::from(member);
            let mut behaviour = kind.behaviour();
            let data = behaviour.data(own)?;
            let mut train = || {
                let go_on = &mut |_| ControlFlow::Continue(());
                let trained = Reference::new().train(&model, &base, &data, &how, seed, go_on)?;
                Ok(trained.params.iter().zip(&base).map(|(own, base)| own - base).collect())
            };
            let delta = behaviour.delta(base.len(), seed, &mut train)?;
            let written = encode_update(spec, delta, residual.as_deref(), seed)?;
            *residual = written.residual;
            let (rows, update) = (own.rows() as u64, blob_digest(&written.bytes));
            made.0.push(UpdateEntry {
                sender: Address([member; 20]),
                header: update,
                update,
                salt: update,
                rows_declared: rows,
                rows_counted: rows,
                bond: spec.budget.bond_per_row.mul_div_down(rows.into(), 1)?,
                commit_position: member.into(),
                staleness: 0,
            });
            made.1.push(written.bytes);
        }
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_row_has_size_ratio_accuracy_and_the_paired_difference() {
        let measured = |at: usize, bytes, accuracy: [f64; 2]| FormatResult {
            way: ENCODINGS[at],
            bytes,
            accuracy: accuracy.to_vec(),
        };
        let all = [measured(0, 20_000, [0.90, 0.94]), measured(2, 5_100, [0.88, 0.94])];
        let text = markdown(&lines(&all));
        let lines: Vec<&str> = text.trim().lines().collect();
        assert_eq!(
            lines[0],
            "| format | bytes | of f32 | accuracy, % | difference to f32, points |"
        );
        assert_eq!(lines[2], "| f32 | 20,000 | 1.000 | 92.0 ± 2.8 | 0.0 ± 0.0 |");
        assert_eq!(lines[3], "| int8 | 5,100 | 0.255 | 91.0 ± 4.2 | -1.0 ± 1.4 |");
    }
}
