//! Golden vectors of near-duplicates, one cohort for each case. A program in another language finds
//! the same matches (`protocol/vectors/repeats.py`).
//! `FLORIN_BLESS=1 cargo test -p florin-work --lib near_duplicate_vectors` rewrites the file.

use std::path::Path;

use florin_protocol::*;
use serde_json::{Value, json};

use crate::preprocess::{PublicHistory, preprocess};

/// Whole numbers without a pattern, from −500 to 499: a linear congruential generator.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> i32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        i32::try_from((self.0 >> 33) % 1_000).unwrap() - 500
    }

    fn many(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.next()).collect()
    }
}

/// Numbers of a vector: exact in `f32`.
fn parts_of(denominator: f32, numbers: &[i32]) -> Vec<f32> {
    numbers.iter().map(|n| *n as f32 / denominator).collect()
}

fn assert_committed(name: &str, vectors: &Value) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../protocol/vectors").join(name);
    let text = serde_json::to_string_pretty(vectors).unwrap() + "\n";
    if std::env::var_os("FLORIN_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert_eq!(text, committed, "{}: was a rule changed on purpose?", path.display());
}

fn entry(n: u8, rows: u64, commit_position: u32) -> UpdateEntry {
    UpdateEntry {
        sender: Address([n; 20]),
        header: Digest([0; 32]),
        update: Digest([0; 32]),
        salt: Digest([0; 32]),
        rows_declared: rows,
        rows_counted: rows,
        bond: Amount::ZERO,
        commit_position,
        staleness: 0,
    }
}

/// The sum of vectors, each times a factor; the numbers stay whole.
fn sum(vectors: &[(&[i32], i32)]) -> Vec<i32> {
    let at = |i: usize| vectors.iter().map(|(vector, factor)| vector[i] * factor).sum();
    (0..vectors[0].0.len()).map(at).collect()
}

/// Numbers as text, so that a vector is one line.
fn listed(numbers: &[i32]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A cohort of near-duplicate tests.
struct Cohort {
    updates: Vec<Vec<i32>>,
    global_deltas: Vec<Vec<i32>>,
    /// Sender and numbers.
    earlier: Vec<(u8, Vec<i32>)>,
    positions: Vec<u32>,
}

impl Cohort {
    /// Five honest updates of `dimensions` numbers: a common direction, which all learned, and a
    /// part of their own. Each two share one half of what they learned beyond it.
    fn honest(dimensions: usize) -> Self {
        let mut numbers = Numbers(77);
        let common = numbers.many(dimensions);
        let shared = numbers.many(dimensions);
        let own = |_| {
            let (mine, part) = (numbers.many(dimensions), numbers.next());
            sum(&[(&common, 4), (&shared, 1 + part.signum()), (&mine, 2)])
        };
        let updates: Vec<Vec<i32>> = (0..5).map(own).collect();
        Self {
            updates,
            global_deltas: Vec::new(),
            earlier: Vec::new(),
            positions: (0..5).collect(),
        }
    }

    fn vector(&self, name: &str) -> Value {
        const SCALE: f32 = 65_536.0;
        let floats = |vectors: &[Vec<i32>]| -> Vec<Vec<f32>> {
            vectors.iter().map(|numbers| parts_of(SCALE, numbers)).collect()
        };
        let entries: Vec<UpdateEntry> = (0..self.updates.len())
            .map(|at| entry(1 + at as u8, 100 + 10 * at as u64, self.positions[at]))
            .collect();
        let earlier: Vec<Vec<i32>> =
            self.earlier.iter().map(|(_, vector)| vector.clone()).collect();
        let known = PublicHistory {
            global_deltas: floats(&self.global_deltas).into(),
            senders: self.earlier.iter().map(|(sender, _)| Address([*sender; 20])).collect(),
            updates: floats(&earlier).into(),
        };
        let rules = PreprocessingRules { weight_cap: 1, ..PreprocessingRules::DEFAULT };
        let held = preprocess(
            rules,
            StalenessWeight::Equal,
            &entries,
            floats(&self.updates).into(),
            &known,
        );
        let of_entry = |(entry, numbers): (&UpdateEntry, &Vec<i32>)| {
            json!({
                "sender": entry.sender,
                "rows_counted": entry.rows_counted,
                "commit_position": entry.commit_position,
                "update": listed(numbers),
            })
        };
        let listed_all =
            |vectors: &[Vec<i32>]| vectors.iter().map(|v| listed(v)).collect::<Vec<_>>();
        let senders = self.earlier.iter().zip(&known.senders);
        json!({
            "name": name,
            "denominator": SCALE as u32,
            "weight_cap": rules.weight_cap,
            "entries": entries.iter().zip(&self.updates).map(of_entry).collect::<Vec<_>>(),
            "global_deltas": listed_all(&self.global_deltas),
            "earlier_updates": senders
                .map(|((_, update), sender)| json!({ "sender": sender, "update": listed(update) }))
                .collect::<Vec<_>>(),
            "duplicate_of": held.duplicates,
            "norm_factors": held.norm_factors,
            "weights": held.rows,
        })
    }
}

/// Noise whose norm is `per_mille` of the vector's.
fn noisy(vector: &[i32], per_mille: i64, seed: u64) -> Vec<i32> {
    let norm = |numbers: &[i32]| -> i64 {
        let squares: i64 = numbers.iter().map(|n| i64::from(*n) * i64::from(*n)).sum();
        squares.isqrt()
    };
    let noise = Numbers(seed).many(vector.len());
    let (whole, own) = (norm(vector), norm(&noise));
    let add = |(v, n): (&i32, &i32)| {
        v + i32::try_from(i64::from(*n) * whole * per_mille / (1_000 * own)).unwrap()
    };
    vector.iter().zip(&noise).map(add).collect()
}

/// Numbers of an update of the larger model.
const SIZE: usize = 420;

/// The honest cohort after a change.
fn with(change: impl FnOnce(&mut Cohort)) -> Cohort {
    let mut cohort = Cohort::honest(SIZE);
    change(&mut cohort);
    cohort
}

/// Cohorts without vectors of earlier rounds.
fn cohorts_of_one_round() -> Vec<(&'static str, Cohort)> {
    vec![
        ("honest updates with a common direction", Cohort::honest(SIZE)),
        ("a copy of twice the norm", with(|c| c.updates[3] = sum(&[(&c.updates[1], 2)]))),
        ("a copy under noise", with(|c| c.updates[4] = noisy(&c.updates[0], 300, 3))),
        (
            "of two equal updates the earlier commit stays",
            with(|c| {
                c.updates[4] = sum(&[(&c.updates[0], 3)]);
                c.positions = vec![4, 1, 2, 3, 0];
            }),
        ),
        (
            "an original that is committed after its noisy copy passes",
            with(|c| {
                c.updates[4] = noisy(&c.updates[0], 300, 3);
                c.positions = vec![4, 1, 2, 3, 0];
            }),
        ),
        ("a copy under much noise passes", with(|c| c.updates[4] = noisy(&c.updates[0], 900, 3))),
        (
            "what an update learned beyond another one is no noise",
            with(|c| {
                let learned = sum(&[(&c.updates[1], 1), (&c.updates[2], 1), (&c.updates[0], -2)]);
                c.updates[4] = sum(&[(&c.updates[0], 70), (&learned, 1)]);
            }),
        ),
        (
            "a zero update is no duplicate",
            with(|c| {
                c.updates[1] = vec![0; SIZE];
                c.updates[2] = vec![0; SIZE];
            }),
        ),
    ]
}

/// Cohorts with global deltas and updates of earlier rounds.
fn cohorts_of_later_rounds() -> Vec<(&'static str, Cohort)> {
    let stranger = Numbers(991).many(SIZE);
    vec![
        (
            "another sender's update of an earlier round",
            with(|c| c.earlier = vec![(1, c.updates[0].clone()), (9, c.updates[2].clone())]),
        ),
        (
            "a sender repeats its own update of an earlier round",
            with(|c| c.earlier = vec![(3, c.updates[2].clone())]),
        ),
        (
            "a member whose earlier update another one commits first is no copier",
            with(|c| {
                c.earlier = vec![(1, c.updates[0].clone())];
                c.updates[4] = noisy(&c.updates[0], 100, 5);
                c.positions = vec![4, 1, 2, 3, 0];
            }),
        ),
        (
            "a copy sent in an earlier round does not make its original sender a copier",
            with(|c| {
                c.earlier = vec![(1, c.updates[0].clone()), (8, noisy(&c.updates[0], 100, 5))];
            }),
        ),
        (
            "a combination of global deltas",
            with(|c| {
                c.global_deltas = vec![stranger.clone(), Numbers(992).many(SIZE)];
                c.updates[2] = sum(&[(&c.global_deltas[0], 3), (&c.global_deltas[1], -2)]);
            }),
        ),
        (
            "a global delta under noise",
            with(|c| {
                let learned: Vec<(&[i32], i32)> =
                    [0, 1, 3, 4].map(|at| (c.updates[at].as_slice(), 1)).to_vec();
                let delta = sum(&[(&sum(&learned), 1), (&stranger, 12)]);
                c.updates[2] = noisy(&delta, 200, 7);
                c.global_deltas = vec![delta];
            }),
        ),
        (
            "a replay is no witness",
            with(|c| {
                c.global_deltas = vec![stranger.clone()];
                c.updates[2].clone_from(&stranger);
                c.updates[3] = sum(&[(&stranger, 2)]);
                c.updates[4] = noisy(&c.updates[0], 300, 3);
            }),
        ),
    ]
}

/// Two cohorts of a model of fewer than 400 parameters.
fn cohorts_of_a_small_model() -> [(&'static str, Cohort); 2] {
    let [mut near, mut scaled] = [(); 2].map(|()| Cohort::honest(40));
    near.updates[4] = noisy(&near.updates[0], 4, 3);
    scaled.updates[4] = sum(&[(&scaled.updates[0], 3)]);
    [("nearly equal updates of a small model", near), ("a copy in a small model", scaled)]
}

#[test]
fn near_duplicates_match_the_committed_vectors() {
    let cohorts = cohorts_of_one_round().into_iter().chain(cohorts_of_later_rounds());
    let vectors: Vec<Value> = cohorts
        .chain(cohorts_of_a_small_model())
        .map(|(name, cohort)| cohort.vector(name))
        .collect();
    assert_committed("repeats.json", &vectors.into());
}
