//! Fast coalitions against engines that evaluate one model after another in `f64`.

use std::ops::ControlFlow;

use pulp::{Arch, Scalar, WithSimd};

use super::*;
use crate::data::{CanonicalRows, DataSource, Dataset, canonical_bytes, load};
use crate::engine::{Engine, mean};
use crate::training::Training;
use crate::{AffineLoss, Reference, Trainer};

/// A complete round.
struct CoalitionFixture {
    model: ModelSpec,
    base: Vec<f32>,
    deltas: Vec<Vec<f32>>,
    shares: Vec<f64>,
    holdout: Dataset,
}

impl CoalitionFixture {
    fn with<T>(&self, work: impl FnOnce(Updates<'_>) -> T) -> T {
        let deltas: Vec<&[f32]> = self.deltas.iter().map(Vec::as_slice).collect();
        let (model, base, shares) = (&self.model, self.base.as_slice(), self.shares.as_slice());
        work(Updates { model, base, deltas: &deltas, shares })
    }

    fn losses(&self, masks: &CoalitionMasks, threads: usize) -> Vec<f64> {
        self.with(|updates| {
            Coalitions::new(updates, &self.holdout, threads).unwrap().mean_losses(masks).unwrap()
        })
    }

    /// Mean loss and correct predictions of each coalition, by an engine, one after another.
    fn by(&self, engine: &mut dyn Engine, masks: &CoalitionMasks) -> (Vec<f64>, Vec<usize>) {
        self.with(|updates| {
            let Updates { model, base, deltas, shares } = updates;
            let mut affine = AffineLoss::new(model, base, deltas, &self.holdout, engine).unwrap();
            let measure = |at| {
                let mut coefficients = vec![0.0; shares.len()];
                masks.members(at).for_each(|player| coefficients[player] = shares[player]);
                let losses = affine.losses(&coefficients).unwrap();
                (mean(&losses), affine.correct_predictions(&coefficients).unwrap())
            };
            (0..masks.len()).map(measure).unzip()
        })
    }

    /// Random updates with about the magnitude of the base model.
    fn drawn(model: ModelSpec, players: usize, holdout: Dataset) -> Self {
        let delta = |player| {
            let drawn = model.init(100 + player as u64).into_vec();
            drawn.iter().map(|value| value * 0.8).collect()
        };
        let base = model.init(1).into_vec();
        let deltas = (0..players).map(delta).collect();
        let shares = (0..players).map(|player| 1.0 / (players + player) as f64).collect();
        Self { model, base, deltas, shares, holdout }
    }

    /// Updates trained by players on their own digits.
    fn trained(model: ModelSpec, players: usize, epochs: u32) -> Self {
        let digits = load(&DataSource::Digits).unwrap();
        let how = Training::sgd(epochs, 20, 0.1);
        let base = model.init(1).into_vec();
        let train = |player: usize| {
            let own = digits.slice(player * 120..(player + 1) * 120).unwrap();
            let seed = player as u64;
            let go = &mut |_| ControlFlow::Continue(());
            let trained = Reference::new().train(&model, &base, &own, &how, seed, go).unwrap();
            trained.params.iter().zip(&base).map(|(own, base)| own - base).collect()
        };
        let deltas = (0..players).map(train).collect();
        let shares = vec![1.0 / players as f64; players];
        Self { model, base, deltas, shares, holdout: digits.slice(1437..1797).unwrap() }
    }
}

fn digits(rows: usize) -> Dataset {
    load(&DataSource::Digits).unwrap().slice(0..rows).unwrap()
}

fn mlp(inputs: usize, hidden: &[usize]) -> ModelSpec {
    ModelSpec::Mlp { inputs, hidden: hidden.to_vec(), classes: 10 }
}

fn cnn() -> ModelSpec {
    ModelSpec::Cnn { channels: 2, height: 9, width: 7, filters: [5, 13], hidden: 11, classes: 10 }
}

/// Random rows of a wide model, between 0 and 1.
fn wide(rows: usize, inputs: usize) -> Dataset {
    let mut state = 5_u64;
    let mut draw = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    let features = (0..rows * inputs).map(|_| draw()).collect();
    let labels = (0..rows).map(|_| (draw() * 10.0) as u32).collect();
    Dataset::new(features, labels, inputs, 10).unwrap()
}

fn some(players: usize, count: usize) -> CoalitionMasks {
    let mut masks = CoalitionMasks::new(players);
    let mut state = 77_u64;
    for _ in 0..count {
        let word = |at: usize, state: u64| {
            let used = players - 64 * at;
            if used < 64 { state.rotate_left(at as u32) >> (64 - used) } else { state }
        };
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let words: Vec<u64> = (0..players.div_ceil(64)).map(|at| word(at, state)).collect();
        masks.push(&words).unwrap();
    }
    masks
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The largest distance, in nano-nats.
fn distance_nano(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs() * 1e9).fold(0.0, f64::max)
}

#[test]
fn coalition_losses_match_the_reference_within_the_tolerance() {
    let rounds = [
        (CoalitionFixture::trained(mlp(64, &[32]), 10, 5), CoalitionMasks::all(10).unwrap()),
        (CoalitionFixture::trained(mlp(64, &[24, 17, 9]), 6, 5), CoalitionMasks::all(6).unwrap()),
        (
            CoalitionFixture::trained(ModelSpec::Softmax { inputs: 64, classes: 10 }, 8, 3),
            some(8, 60),
        ),
        (CoalitionFixture::drawn(mlp(784, &[64]), 10, wide(300, 784)), some(10, 40)),
        (CoalitionFixture::drawn(mlp(64, &[13]), 70, digits(77)), some(70, 20)),
    ];
    for (round, masks) in rounds {
        let (losses, correct) = round.by(&mut Reference::new(), &masks);
        let off = distance_nano(&round.losses(&masks, 2), &losses);
        println!("{}: off by {off:.1} nano-nats at most", round.model);
        assert!(off <= COALITION_TOLERANCE_NANO as f64, "{}: {off}", round.model);
        assert!(losses.iter().any(|loss| (loss - losses[0]).abs() > 1e-3), "{}", round.model);
        round.with(|updates| {
            let mut fast = Coalitions::new(updates, &round.holdout, 2).unwrap();
            assert_eq!(fast.correct_predictions(&masks).unwrap(), correct, "{}", round.model);
        });
    }
}

#[cfg(feature = "torch")]
#[test]
fn cnn_coalition_losses_match_libtorch_within_the_tolerance() {
    use crate::torch::{Torch, TorchDevice};
    let models = [
        (cnn(), wide(70, 2 * 9 * 7)),
        (
            ModelSpec::Cnn {
                channels: 1,
                height: 8,
                width: 8,
                filters: [8, 16],
                hidden: 32,
                classes: 10,
            },
            digits(100),
        ),
    ];
    for (model, holdout) in models {
        let round = CoalitionFixture::drawn(model, 5, holdout);
        let masks = CoalitionMasks::all(5).unwrap();
        let (losses, correct) = round.by(&mut Torch::new(TorchDevice::Cpu, 1).unwrap(), &masks);
        let off = distance_nano(&round.losses(&masks, 2), &losses);
        println!("{}: off by {off:.1} nano-nats at most", round.model);
        assert!(off <= COALITION_TOLERANCE_NANO as f64, "{}: {off}", round.model);
        round.with(|updates| {
            let mut fast = Coalitions::new(updates, &round.holdout, 1).unwrap();
            assert_eq!(fast.correct_predictions(&masks).unwrap(), correct, "{}", round.model);
        });
    }
}

#[cfg(feature = "torch")]
#[test]
fn libtorch_coalitions_match_single_evaluations_within_the_tolerance() {
    use crate::torch::{Torch, TorchDevice};
    let models = [
        (cnn(), wide(70, 2 * 9 * 7)),
        (mlp(64, &[12, 8]), digits(1_100)),
        (mlp(64, &[12]), digits(90)),
        (ModelSpec::Softmax { inputs: 64, classes: 10 }, digits(90)),
    ];
    let mut torch = Torch::new(TorchDevice::Cpu, 1).unwrap();
    for (model, holdout) in models {
        let round = CoalitionFixture::drawn(model, 5, holdout);
        let masks = some(5, 20);
        let losses = round.by(&mut torch, &masks).0;
        round.with(|updates| {
            let mut rows = &round.holdout;
            let batched = torch.coalition_losses(updates, &masks, &mut rows).unwrap();
            let off = distance_nano(&batched, &losses);
            assert!(off <= COALITION_TOLERANCE_NANO as f64, "{}: {off}", round.model);
            let singly = torch.coalition_losses_one_by_one(updates, &masks, &round.holdout);
            let off = distance_nano(&singly.unwrap(), &losses);
            assert!(off <= 3.0 * COALITION_TOLERANCE_NANO as f64, "{}: {off}", round.model);
            let others = CoalitionMasks::all(4).unwrap();
            let error = torch.coalition_losses(updates, &others, &mut rows).unwrap_err();
            assert_eq!(error.code(), "COALITION_PLAYERS");
        });
    }
}

#[test]
fn threads_batches_and_memory_change_no_bit() {
    for model in [mlp(64, &[13]), mlp(64, &[9, 30]), ModelSpec::Softmax { inputs: 64, classes: 10 }]
    {
        let round = CoalitionFixture::drawn(model, 7, digits(200));
        let masks = CoalitionMasks::all(7).unwrap();
        let alone = bits(&round.losses(&masks, 1));
        for threads in [2, 3, 7] {
            assert_eq!(bits(&round.losses(&masks, threads)), alone, "{threads} threads");
        }
        round.with(|updates| {
            let mut fast = Coalitions::new(updates, &round.holdout, 3).unwrap();
            for at in [0, 1, 63, 100, 127] {
                let mut one = CoalitionMasks::new(7);
                one.push(&[at]).unwrap();
                assert_eq!(bits(&fast.mean_losses(&one).unwrap()), [alone[at as usize]]);
            }
            let mut backwards = CoalitionMasks::new(7);
            (0..128).rev().for_each(|bits| backwards.push(&[bits]).unwrap());
            let turned = fast.mean_losses(&backwards).unwrap();
            assert!(bits(&turned).into_iter().rev().eq(alone.iter().copied()));
            let tight = MemoryLimits { window: 1, retained: 0 };
            let mut fast = Coalitions::with_memory(tight, updates, &round.holdout, 2).unwrap();
            assert_eq!(bits(&fast.mean_losses(&masks).unwrap()), alone);
        });
    }
}

/// Evaluates with the register width that `run` selects.
fn walked(
    round: &CoalitionFixture,
    masks: &CoalitionMasks,
    run: impl Fn(Walk<'_>) -> Vec<f64>,
) -> Vec<u64> {
    round.with(|updates| {
        let fast = Coalitions::new(updates, &round.holdout, 1).unwrap();
        let window = &fast.retained.as_ref().unwrap()[0];
        let plan = WalkPlan::new(masks, &masks.prefix_order());
        let tiles = 0..window.tiles();
        let (net, deeper) = (&fast.prepared.net, fast.prepared.deeper.as_slice());
        let question = Quantity::Rows;
        bits(&run(Walk { net, deeper, window, tiles, plan: &plan, question }))
    })
}

#[test]
fn the_register_width_changes_no_bit() {
    let holdout = wide(40, 2 * 9 * 7);
    for model in [cnn(), mlp(2 * 9 * 7, &[14, 3])] {
        let round = CoalitionFixture::drawn(model, 4, holdout.clone());
        let masks = CoalitionMasks::all(4).unwrap();
        let widest = walked(&round, &masks, |walk| Arch::new().dispatch(walk));
        assert_eq!(walked(&round, &masks, |walk| walk.with_simd(Scalar::new())), widest);
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = pulp::x86::V3::try_new() {
            let run = |walk: Walk<'_>| pulp::Simd::vectorize(simd, walk);
            assert_eq!(walked(&round, &masks, run), widest);
        }
    }
}

/// Rows that are generated on request, in chunks of varying size.
struct GeneratedRows {
    rows: usize,
    chunk: usize,
    largest: usize,
}

impl RowChunks for GeneratedRows {
    fn rows(&self) -> usize {
        self.rows
    }

    fn width(&self) -> usize {
        3
    }

    fn classes(&self) -> usize {
        4
    }

    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError> {
        let mut from = 0;
        while from < self.rows {
            let count = (1 + from % self.chunk).min(self.rows - from);
            let value = |at: usize| ((at * 2_654_435_761) >> 8 & 0xffff) as f32 / 65_536.0;
            let features = (3 * from..3 * (from + count)).map(value).collect();
            let labels = (from..from + count).map(|row| (row * 7 / 3 % 4) as u32).collect();
            let chunk = Dataset::new(features, labels, 3, 4).unwrap();
            self.largest = self.largest.max(chunk.rows());
            if look(&chunk).is_break() {
                break;
            }
            from += count;
        }
        Ok(())
    }
}

#[test]
fn chunk_size_and_memory_limit_do_not_change_the_result() {
    let model = ModelSpec::Mlp { inputs: 3, hidden: vec![4], classes: 4 };
    let round = CoalitionFixture::drawn(model, 3, digits(1));
    let masks = CoalitionMasks::all(3).unwrap();
    let memory = MemoryLimits { window: 64 << 10, retained: 64 << 10 };
    round.with(|updates| {
        let measure = |rows, chunk| {
            let mut made = GeneratedRows { rows, chunk, largest: 0 };
            let (bytes, losses, hits);
            {
                let source: &mut dyn RowChunks = &mut made;
                let mut fast = Coalitions::with_memory(memory, updates, source, 2).unwrap();
                assert!(fast.retained.is_none());
                bytes = fast.prepared.window_tiles * TileWindow::tile_bytes(&fast.prepared.net, 3);
                losses = bits(&fast.mean_losses(&masks).unwrap());
                hits = fast.correct_predictions(&masks).unwrap();
            }
            (bytes, made.largest, losses, hits)
        };
        let (bytes, largest, losses, hits) = measure(20_011, 1_000);
        assert!(bytes <= memory.window && largest <= 1_000, "{bytes}, {largest}");
        for chunk in [1, 31, 20_011] {
            let again = measure(20_011, chunk);
            assert_eq!((&again.2, &again.3), (&losses, &hits), "chunks of {chunk}");
        }
        let ten_times = measure(200_110, 1_000);
        assert!(ten_times.0 == bytes && ten_times.1 <= 1_000);
        assert_ne!(ten_times.2, losses);
    });
}

#[test]
fn rows_from_a_file_give_the_same_bits_as_rows_in_memory() {
    let round = CoalitionFixture::drawn(mlp(64, &[6]), 4, digits(100));
    let masks = CoalitionMasks::all(4).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), canonical_bytes(&round.holdout)).unwrap();
    let rows = CanonicalRows::open(file.path(), 9).unwrap();
    let from_file = round.with(|updates| {
        let tight = MemoryLimits { window: 1, retained: 0 };
        Coalitions::with_memory(tight, updates, rows, 1).unwrap().mean_losses(&masks).unwrap()
    });
    assert_eq!(bits(&from_file), bits(&round.losses(&masks, 1)));
}

#[test]
fn the_mean_loss_is_the_mean_of_the_row_losses() {
    let round = CoalitionFixture::drawn(mlp(64, &[6]), 5, digits(75));
    let masks = some(5, 9);
    let losses = round.losses(&masks, 1);
    round.with(|updates| {
        for memory in [MemoryLimits::default(), MemoryLimits { window: 1, retained: 0 }] {
            let mut fast = Coalitions::with_memory(memory, updates, &round.holdout, 2).unwrap();
            let rows = fast.row_losses(&masks).unwrap();
            for (at, rows) in rows.iter().enumerate() {
                assert_eq!(rows.len(), 75);
                assert!((mean(rows) - losses[at]).abs() < 1e-14);
            }
            let mut engine = Reference::new();
            let Updates { model, base, deltas, .. } = updates;
            let mut affine =
                AffineLoss::new(model, base, deltas, &round.holdout, &mut engine).unwrap();
            let mut coefficients = vec![0.0; 5];
            masks.members(3).for_each(|player| coefficients[player] = round.shares[player]);
            let slow = affine.losses(&coefficients).unwrap();
            assert!(rows[3].iter().zip(slow).all(|(fast, slow)| (fast - slow).abs() < 1e-5));
        }
    });
}

#[test]
fn invalid_updates_shares_and_rows_are_refused() {
    let good =
        CoalitionFixture::drawn(ModelSpec::Softmax { inputs: 64, classes: 10 }, 2, digits(5));
    let code = |round: &CoalitionFixture, masks: &CoalitionMasks| {
        round.with(|updates| {
            let mut made = Coalitions::new(updates, &round.holdout, 1);
            let answer = made.as_mut().map(|made| made.mean_losses(masks));
            match answer {
                Ok(Ok(_)) => "fine",
                Ok(Err(error)) => error.code(),
                Err(error) => error.code(),
            }
        })
    };
    let all = CoalitionMasks::all(2).unwrap();
    assert_eq!(code(&good, &all), "fine");
    assert_eq!(code(&good, &CoalitionMasks::all(3).unwrap()), "COALITION_PLAYERS");
    let change = |change: &dyn Fn(&mut CoalitionFixture)| {
        let CoalitionFixture { model, base, deltas, shares, holdout } = &good;
        let mut round = CoalitionFixture {
            model: model.clone(),
            base: base.clone(),
            deltas: deltas.clone(),
            shares: shares.clone(),
            holdout: holdout.clone(),
        };
        change(&mut round);
        code(&round, &all)
    };
    assert_eq!(change(&|round| round.deltas[1][3] = f32::NAN), "COALITION_INPUT");
    assert_eq!(change(&|round| round.deltas[1].truncate(3)), "COALITION_INPUT");
    assert_eq!(change(&|round| round.shares.truncate(1)), "COALITION_SHARES");
    assert_eq!(change(&|round| round.shares[0] = f64::INFINITY), "COALITION_SHARE");
    assert_eq!(change(&|round| round.holdout = digits(0)), "COALITION_INPUT");
    assert_eq!(change(&|round| round.holdout = wide(2, 3)), "COALITION_INPUT");
    assert_eq!(change(&|round| round.deltas[1].fill(3e38)), "COALITION_NOT_FINITE");
    let mut wild = CoalitionFixture::drawn(mlp(64, &[8]), 2, digits(5));
    wild.deltas[1].fill(3e38);
    wild.shares = vec![1.0; 2];
    wild.with(|updates| {
        let mut fast = Coalitions::new(updates, &wild.holdout, 1).unwrap();
        let error = fast.mean_losses(&all).unwrap_err();
        assert!(matches!(error, CoalitionError::NotFinite { at: 2 }), "{error}");
        let error = fast.correct_predictions(&all).unwrap_err();
        assert!(matches!(error, CoalitionError::NotFinite { at: 2 }), "{error}");
    });
    let no_players = CoalitionFixture::drawn(mlp(64, &[8]), 0, digits(5));
    assert_eq!(no_players.losses(&CoalitionMasks::all(0).unwrap(), 1).len(), 1);
}

#[test]
fn coalition_losses_match_the_recorded_bits() {
    // Recorded on x86-64 with 512-bit registers; every other machine must give the same bits.
    let table = [
        (mlp(126, &[14, 3]), [0x4001_97bf_af7a_8243, 0x4001_7b73_757c_3bdb]),
        (cnn(), [0x4003_13bb_1b73_acae, 0x4003_c5b8_2a3e_0b3e]),
        (
            ModelSpec::Softmax { inputs: 126, classes: 10 },
            [0x4002_bea0_7625_3785, 0x4003_5ff0_ecfb_6cf5],
        ),
    ];
    for (model, expected) in table {
        let round = CoalitionFixture::drawn(model, 4, wide(70, 126));
        let mut masks = CoalitionMasks::new(4);
        [0b0000, 0b1011].iter().for_each(|&mask| masks.push(&[mask]).unwrap());
        assert_eq!(bits(&round.losses(&masks, 2)), expected, "{}", round.model);
    }
}
