//! Accuracy of the duplicate detection: pairs of honest updates, honest updates and the previous
//! public step, and copies and replays with noise, for many training setups.

use std::ops::Range;

use florin_learning::PartitionScheme;
use florin_work::preprocess::{Gram, PublicVectors, find_replay, find_republished, similarity};

use super::learn::{Cohort, Setting, sgd};
use super::noise::Noise;
use super::{Measurement, parallel};
use florin::show::TextTable;

/// Cohort sizes.
const SIZES: [usize; 7] = [2, 3, 4, 6, 8, 12, 20];
/// Rounds per cohort.
const ROUNDS: usize = 6;
/// Relative noise of copies and replays.
const NOISES: [f64; 5] = [0.0, 0.1, 0.2, 0.35, 0.5];
/// More than any number of rows.
const FULL_BATCH: u32 = 2_000;
/// Numbers of honest members that are replaced by noise, in cohorts of six and more.
const NOISE_MEMBERS: [usize; 4] = [0, 1, 2, 3];

/// Number of comparisons, and number of detections.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    of: usize,
    found: usize,
}

impl Count {
    fn record(&mut self, found: bool) {
        self.of += 1;
        self.found += usize::from(found);
    }

    fn add(&mut self, other: Self) {
        self.of += other.of;
        self.found += other.found;
    }

    fn rate(self) -> String {
        format!("{:.3}", self.found as f64 / self.of.max(1) as f64)
    }
}

/// The detections in cohorts of one size.
#[derive(Debug, Clone, Copy, Default)]
struct DetectionCounts {
    pairs: Count,
    steps: Count,
    /// Honest updates compared with other members' updates of the previous round.
    earlier: Count,
    /// Any of these comparisons, with noise in place of some members.
    beside_noise: Count,
    copies: [Count; NOISES.len()],
    replays: [Count; NOISES.len()],
    /// Copies of an update of the previous round.
    republished: [Count; NOISES.len()],
}

pub(super) fn run(seeds: u64) -> anyhow::Result<Vec<Measurement>> {
    let jobs = settings(seeds);
    let found = parallel(&jobs, evaluate_cohort)?;
    let mut table = TextTable::new(&[
        ">n",
        ">honest pairs",
        ">false copies",
        ">honest vs step",
        ">false replays",
        ">vs earlier",
        ">false copies of earlier",
        ">any, with noise",
        "copies detected at noise 0, 0.1, 0.2, 0.35, 0.5",
        "replays detected",
        "copies of earlier detected",
    ]);
    let mut whole = DetectionCounts::default();
    for size in SIZES {
        let mut sum = DetectionCounts::default();
        for (_, found) in jobs.iter().zip(&found).filter(|(job, _)| job.members == size) {
            sum.pairs.add(found.pairs);
            sum.steps.add(found.steps);
            sum.earlier.add(found.earlier);
            sum.beside_noise.add(found.beside_noise);
            for at in 0..NOISES.len() {
                sum.copies[at].add(found.copies[at]);
                sum.replays[at].add(found.replays[at]);
                sum.republished[at].add(found.republished[at]);
            }
        }
        let all = |counts: [Count; NOISES.len()]| counts.map(Count::rate).join("  ");
        table.row([
            size.to_string().into(),
            sum.pairs.of.to_string().into(),
            sum.pairs.found.to_string().into(),
            sum.steps.of.to_string().into(),
            sum.steps.found.to_string().into(),
            sum.earlier.of.to_string().into(),
            sum.earlier.found.to_string().into(),
            format!("{} of {}", sum.beside_noise.found, sum.beside_noise.of).into(),
            all(sum.copies).into(),
            all(sum.replays).into(),
            all(sum.republished).into(),
        ]);
        whole.pairs.add(sum.pairs);
        whole.steps.add(sum.steps);
        whole.earlier.add(sum.earlier);
        whole.beside_noise.add(sum.beside_noise);
    }
    table.print();
    let name = |what: &str, count: Count| format!("{what}, of {}", count.of);
    let DetectionCounts { pairs, steps, earlier, beside_noise, .. } = whole;
    let copies = name("honest pairs detected as copies", pairs);
    let replays = name("honest updates detected as replays", steps);
    let taken = name("honest updates detected as copies of earlier ones", earlier);
    let beside = name("any of these, with noise in place of up to 3 members", beside_noise);
    Ok(vec![
        Measurement::at_most(copies, pairs.found as f64, "", 0.0),
        Measurement::at_most(replays, steps.found as f64, "", 0.0),
        Measurement::at_most(taken, earlier.found as f64, "", 0.0),
        Measurement::plain(beside, beside_noise.found as f64, ""),
    ])
}

fn settings(seeds: u64) -> Vec<Setting> {
    let partitions = [
        PartitionScheme::Iid,
        PartitionScheme::Dirichlet { alpha: 1.0 },
        PartitionScheme::Dirichlet { alpha: 0.3 },
    ];
    let mut all = Vec::new();
    for partition in &partitions {
        for (rate, batch, epochs) in training_setups() {
            for members in SIZES {
                let training = sgd(rate, batch, epochs);
                let one = |seed| Setting {
                    partition: partition.clone(),
                    members,
                    training: training.clone(),
                    seed,
                };
                all.extend((1..=seeds).map(one));
            }
        }
    }
    all
}

/// Combinations of learning rate, batch size and epochs.
fn training_setups() -> impl Iterator<Item = (f64, u32, u32)> {
    let rates = [0.1, 0.3].into_iter();
    let batches = |rate| [16, 64, FULL_BATCH].map(|batch| (rate, batch));
    rates.flat_map(batches).flat_map(|(rate, batch)| [1, 2, 5].map(|epochs| (rate, batch, epochs)))
}

/// Trains one cohort for some rounds and compares all pairs.
fn evaluate_cohort(setting: &Setting) -> anyhow::Result<DetectionCounts> {
    let cohort = Cohort::new(setting)?;
    let rows: Vec<u64> = cohort.shards.iter().map(|shard| shard.rows() as u64).collect();
    let total: u64 = rows.iter().sum();
    let mut noise = Noise::new(setting.seed);
    let mut base = cohort.start();
    let mut steps: Vec<Vec<f32>> = Vec::new();
    let mut found = DetectionCounts::default();
    let mut last: Vec<Vec<f32>> = Vec::new();
    for round in 0..ROUNDS {
        let honest = (0..setting.members)
            .map(|member| cohort.honest(&base, member, round))
            .collect::<Result<Vec<_>, _>>()?;
        for junk in NOISE_MEMBERS.into_iter().filter(|junk| *junk == 0 || setting.members >= 6) {
            compare(&honest, &rows, (&steps, &last), junk, &mut noise, &mut found);
        }
        evaluate_copies(&honest, &rows, (&steps, &last), &mut noise, &mut found);
        let mean: Vec<f32> = (0..base.len())
            .map(|at| {
                let parts = honest.iter().zip(&rows).map(|(delta, rows)| delta[at] * *rows as f32);
                parts.sum::<f32>() / total as f32
            })
            .collect();
        base.iter_mut().zip(&mean).for_each(|(base, step)| *base += step);
        steps.insert(0, mean);
        last = honest;
    }
    Ok(found)
}

/// Compares honest members with each other, with the public steps so far and with the updates of
/// the previous round; noise replaces the last `junk` members.
fn compare(
    honest: &[Vec<f32>],
    rows: &[u64],
    (steps, last): (&[Vec<f32>], &[Vec<f32>]),
    junk: usize,
    noise: &mut Noise,
    found: &mut DetectionCounts,
) {
    let mut updates = honest.to_vec();
    let honest_count = updates.len() - junk;
    for update in &mut updates[honest_count..] {
        *update = noise.direction(update.len(), florin_learning::params::norm(update));
    }
    let vectors = vectors(&updates, steps, last);
    let mut gram = Gram::without_last_block(&vectors, last.len());
    let known = updates.len()..updates.len() + steps.len();
    let mut beyond = gram.project_out(known.clone());
    let same_sender: Vec<Option<usize>> = (0..last.len()).map(Some).collect();
    let public = public(known.clone(), &same_sender, &vectors);
    for later in 0..honest_count {
        for earlier in (0..honest_count).filter(|earlier| *earlier != later) {
            let copy = similarity(&gram, &beyond, rows, (later, earlier)).is_copy();
            let count = if junk == 0 { &mut found.pairs } else { &mut found.beside_noise };
            count.record(copy);
        }
        if !steps.is_empty() {
            let replay = find_replay(&gram, &beyond, rows, known.clone(), later).is_some();
            let count = if junk == 0 { &mut found.steps } else { &mut found.beside_noise };
            count.record(replay);
        }
        if !last.is_empty() {
            let taken = find_republished(&mut gram, &mut beyond, rows, &public, later).is_some();
            let count = if junk == 0 { &mut found.earlier } else { &mut found.beside_noise };
            count.record(taken);
        }
    }
}

/// Replaces the last member's update by a copy of the first member's update, by a copy of that
/// member's update of the previous round, and by a replay of the previous step.
fn evaluate_copies(
    honest: &[Vec<f32>],
    rows: &[u64],
    (steps, earlier): (&[Vec<f32>], &[Vec<f32>]),
    noise: &mut Noise,
    found: &mut DetectionCounts,
) {
    let last = honest.len() - 1;
    let same_sender: Vec<Option<usize>> = (0..earlier.len()).map(Some).collect();
    let known = honest.len()..honest.len() + steps.len();
    let mut updates = honest.to_vec();
    for (at, share) in NOISES.into_iter().enumerate() {
        updates[last] = noise.with_noise(&honest[0], share);
        let all = Gram::new(&vectors(&updates, steps, &[]));
        let beyond = all.project_out(known.clone());
        found.copies[at].record(similarity(&all, &beyond, rows, (last, 0)).is_copy());
        if let Some(step) = steps.first() {
            updates[last] = noise.with_noise(step, share);
            let all = Gram::new(&vectors(&updates, steps, &[]));
            let beyond = all.project_out(known.clone());
            let replay = find_replay(&all, &beyond, rows, known.clone(), last);
            found.replays[at].record(replay.is_some());
        }
        if let Some(first) = earlier.first() {
            updates[last] = noise.with_noise(first, share);
            let vectors = vectors(&updates, steps, earlier);
            let mut all = Gram::without_last_block(&vectors, earlier.len());
            let mut beyond = all.project_out(known.clone());
            let public = public(known.clone(), &same_sender, &vectors);
            let taken = find_republished(&mut all, &mut beyond, rows, &public, last);
            found.republished[at].record(taken.is_some());
        }
    }
}

fn vectors<'a>(
    updates: &'a [Vec<f32>],
    steps: &'a [Vec<f32>],
    last: &'a [Vec<f32>],
) -> Vec<&'a [f32]> {
    updates.iter().chain(steps).chain(last).map(Vec::as_slice).collect()
}

/// The public steps, followed by the updates of the previous round.
fn public<'a>(
    steps: Range<usize>,
    same_sender: &'a [Option<usize>],
    vectors: &'a [&'a [f32]],
) -> PublicVectors<'a> {
    let updates = steps.end..steps.end + same_sender.len();
    PublicVectors { updates, global_deltas: steps, same_sender, vectors }
}
