//! The inputs of one round in miniature, and its vector.

use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{Dataset, Reference};
use florin_protocol::*;
use serde_json::{Value, json};

use crate::*;

/// Classes of the rows of every scene but [`Scene::wide`].
const CLASSES: u32 = 3;
/// Rows of the holdout; all of them or the first ones evaluate the round.
const ROWS: u32 = 6;

/// The inputs of a round, decoded.
#[derive(Clone)]
pub(super) struct Scene {
    pub(super) spec: TaskSpec,
    pub(super) base: Vec<f32>,
    pub(super) deltas: Vec<Vec<f32>>,
    /// Rows that count for each update.
    pub(super) rows: Vec<u64>,
    /// Commit positions; by default the order of the senders.
    pub(super) positions: Vec<u32>,
    /// Versions of the model by which each update is late.
    pub(super) staleness: Vec<u32>,
    pub(super) holdout: Dataset,
    pub(super) drawn: Vec<u32>,
    /// Base models of the preceding rounds, the latest first.
    pub(super) previous_models: Vec<Vec<f32>>,
    /// Entry of the sender and update of earlier rounds.
    pub(super) earlier_updates: Vec<(usize, Vec<f32>)>,
    /// The rows of earlier rounds, by round.
    pub(super) earlier_drawn: Vec<Vec<u32>>,
}

/// Numbers from −1 to 1 in steps of 1/128, which every format of updates except `int8` represents.
pub(super) fn noise(label: &str, count: usize) -> Vec<f32> {
    let mut bytes = vec![0; count];
    blake3::Hasher::new().update(label.as_bytes()).finalize_xof().fill(&mut bytes);
    bytes.iter().map(|byte| f32::from(*byte) / 128.0 - 1.0).collect()
}

/// The sum of two vectors, each times a number.
pub(super) fn mixed(a: &[f32], by: f32, b: &[f32], with: f32) -> Vec<f32> {
    a.iter().zip(b).map(|(a, b)| a * by + b * with).collect()
}

pub(super) fn sender(at: usize) -> Address {
    Address([10 + at as u8; 20])
}

/// Rows whose feature number `label` is larger than the others.
pub(super) fn dataset(rows: u32, width: u32, classes: u32) -> Dataset {
    let mut features = noise(&format!("{rows} rows of {width}"), (rows * width) as usize);
    let labels: Vec<u32> = (0..rows).map(|row| row % classes).collect();
    for (row, label) in labels.iter().enumerate() {
        features[row * width as usize + *label as usize] += 1.5;
    }
    Dataset::new(features, labels, width as usize, classes as usize).unwrap()
}

impl Scene {
    /// Updates of a softmax regression that go in the right direction with noise, with steps of
    /// `size`.
    pub(super) fn new(updates: usize, size: f32) -> Self {
        let model = ModelArchitecture::Softmax { inputs: CLASSES, classes: CLASSES };
        Self::of(model, updates, size)
    }

    /// The same for another model.
    pub(super) fn of(model: ModelArchitecture, updates: usize, size: f32) -> Self {
        let (inputs, classes) = (model.inputs().unwrap(), model.classes());
        let example = TaskSpec::example();
        let spec = TaskSpec {
            data: DataSchema { width: inputs, classes, encoding: None },
            rounds: RoundRules { delta_norm_max: Micro(1_000_000_000_000), ..example.rounds },
            estimator: Estimator::Path { nodes: 3, cross_check_pairs: 2 },
            model,
            ..example
        };
        let (base, way) = start_and_way(&spec.model);
        let deltas = (0..updates).map(|at| {
            let own = noise(&format!("update {at}"), base.len());
            mixed(&way, size, &own, size / 4.0)
        });
        Self {
            deltas: deltas.collect(),
            rows: (0..updates as u64).map(|at| 10 + 5 * at).collect(),
            positions: (1..=updates as u32).collect(),
            staleness: vec![0; updates],
            holdout: dataset(ROWS, inputs, classes),
            drawn: (0..ROWS).collect(),
            previous_models: Vec::new(),
            earlier_updates: Vec::new(),
            earlier_drawn: Vec::new(),
            base,
            spec,
        }
    }

    /// The scene with a change.
    pub(super) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn encoded(&self, delta: &[f32]) -> Vec<u8> {
        encode_update(&self.spec, delta.to_vec(), None, 1).unwrap().bytes
    }

    /// The scene's bytes, and the result of the production code.
    pub(super) fn valued(&self) -> (Value, WorkResult) {
        let committed = CommittedHoldout::new(self.holdout.clone());
        let mut spec = self.spec.clone();
        let disclosed = |rows: &[u32]| committed.disclose(rows).unwrap().to_bytes();
        spec.holdout = Holdout {
            root: committed.root(),
            rows: self.holdout.rows() as u32,
            rows_per_round: self.drawn.len() as u32,
        };
        let base = encode_parameters(&spec, &self.base);
        let updates: Vec<Vec<u8>> = self.deltas.iter().map(|delta| self.encoded(delta)).collect();
        let previous: Vec<Vec<u8>> =
            self.previous_models.iter().map(|model| encode_parameters(&spec, model)).collect();
        let earlier: Vec<Vec<u8>> =
            self.earlier_updates.iter().map(|(_, delta)| self.encoded(delta)).collect();
        let sent = self.earlier_updates.iter().zip(&earlier);
        let ids: Vec<(Address, Digest)> =
            sent.map(|((at, _), bytes)| (sender(*at), blob_digest(bytes))).collect();
        let earlier_rows: Vec<Vec<u8>> =
            self.earlier_drawn.iter().map(|rows| disclosed(rows)).collect();
        let entries = self.entries(&updates);
        let shown = disclosed(&self.drawn);
        let inputs = ValuationInputs {
            spec: &spec,
            graph: None,
            base: &base,
            row_indices: &self.drawn,
            disclosed_rows: &shown,
            entries: &entries,
            updates: &updates,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &ids, bytes: &earlier },
            earlier_rows: &earlier_rows,
            scratch_space: &UNLIMITED_MEMORY,
        };
        let result = value_and_aggregate(&inputs, &mut Reference::new()).unwrap().result;
        let vector = json!({
            "task": task_keys(&spec),
            "base_model": base64(&base),
            "disclosed_rows": base64(&shown),
            "entries": entries.iter().map(entry_keys).collect::<Vec<_>>(),
            "update_header": base64(header(&updates[0])),
            "updates": updates.iter().map(|bytes| body(bytes)).collect::<Vec<_>>(),
            "previous_models": previous.iter().map(|bytes| base64(bytes)).collect::<Vec<_>>(),
            "earlier_updates": ids.iter().zip(&earlier).map(|((by, _), bytes)| json!([by, body(bytes)]))
                .collect::<Vec<_>>(),
            "earlier_rows": earlier_rows.iter().map(|bytes| base64(bytes)).collect::<Vec<_>>(),
            "void": result.valuation.void_reason(),
            "result": result,
        });
        (vector, result)
    }

    fn entries(&self, updates: &[Vec<u8>]) -> Vec<UpdateEntry> {
        let entry = |(at, bytes): (usize, &Vec<u8>)| UpdateEntry {
            sender: sender(at),
            header: Digest([1; 32]),
            update: blob_digest(bytes),
            salt: Digest([2; 32]),
            rows_declared: self.rows[at],
            rows_counted: self.rows[at],
            bond: Amount::ZERO,
            commit_position: self.positions[at],
            staleness: self.staleness[at],
        };
        updates.iter().enumerate().map(entry).collect()
    }
}

/// A base model whose last layer is zero, and a direction that improves it: weights from input or
/// hidden unit `label` to class `label` grow, and the others shrink.
fn start_and_way(model: &ModelArchitecture) -> (Vec<f32>, Vec<f32>) {
    let parameters = model_spec(model).parameters();
    let (inputs, classes) = (model.inputs().unwrap() as usize, model.classes() as usize);
    let (hidden, width) = match model {
        ModelArchitecture::Mlp { hidden, .. } => (hidden[0] as usize, hidden[0] as usize),
        _ => (0, inputs),
    };
    let first = hidden * (inputs + 1);
    let noise = noise("base", first);
    let own =
        |at: usize| if at < hidden * inputs && at / inputs == at % inputs { 1.0 } else { 0.0 };
    let base = (0..parameters).map(|at| own(at) + noise.get(at).map_or(0.0, |noise| noise / 8.0));
    let way = (0..parameters).map(|at| match at.checked_sub(first) {
        Some(at) if at / width < classes => {
            if at / width == at % width {
                1.0
            } else {
                -0.5
            }
        }
        _ => 0.0,
    });
    (base.collect(), way.collect())
}

/// The keys of the task that the computation reads.
fn task_keys(spec: &TaskSpec) -> Value {
    let all = serde_json::to_value(spec).unwrap();
    json!({
        "model": all["model"], "data": { "classes": all["data"]["classes"] },
        "holdout": all["holdout"], "training": all["training"], "estimator": all["estimator"],
        "budget": { "confidence_z": all["budget"]["confidence_z"] },
        "rounds": {
            "format": all["rounds"]["format"], "aggregation": all["rounds"]["aggregation"],
            "preprocessing": all["rounds"]["preprocessing"],
            "staleness": all["rounds"]["staleness"],
            "selection": all["rounds"]["selection"],
            "baseline_epochs": all["rounds"]["baseline_epochs"],
        },
    })
}

/// The keys of an entry that the computation reads.
fn entry_keys(entry: &UpdateEntry) -> Value {
    json!({
        "sender": entry.sender, "rows_counted": entry.rows_counted,
        "commit_position": entry.commit_position, "staleness": entry.staleness,
    })
}

/// The length and the header of a safetensors file: the same in all updates of a task.
fn header(bytes: &[u8]) -> &[u8] {
    let length = u64::from_le_bytes(*bytes.first_chunk().unwrap());
    &bytes[..8 + usize::try_from(length).unwrap()]
}

/// The numbers of an update, without its header.
fn body(bytes: &[u8]) -> String {
    base64(&bytes[header(bytes).len()..])
}

/// Standard base64 with padding.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let of = |three: &[u8]| {
        let at = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        let digit = |k: usize| match k <= three.len() {
            true => char::from(DIGITS[(bits >> (18 - 6 * k)) as usize % 64]),
            false => '=',
        };
        [0, 1, 2, 3].map(digit)
    };
    bytes.chunks(3).flat_map(of).collect()
}
