//! Path values in one pass over many updates, against the derivatives of every row along every
//! update.

use std::convert::Infallible;
use std::ops::{ControlFlow, Range};

use super::dots::UPDATES_AT_A_TIME;
use super::*;
use crate::data::{CanonicalRows, DataSource, Dataset, canonical_bytes, load};
use crate::engine::{SegmentPoint, mean};
use crate::model::ModelSpec;
use crate::{AffineLoss, Reference};

/// Gauss–Legendre quadrature on the unit interval.
fn nodes() -> [(f64, f64); 3] {
    let away = (3.0_f64 / 20.0).sqrt();
    [(0.5 - away, 5.0 / 18.0), (0.5, 8.0 / 18.0), (0.5 + away, 5.0 / 18.0)]
}

struct PathFixture {
    model: ModelSpec,
    base: Vec<f32>,
    deltas: Vec<Vec<f32>>,
    shares: Vec<f64>,
    total: Vec<f64>,
    holdout: Dataset,
}

fn round(hidden: usize, players: usize, rows: usize) -> PathFixture {
    let model = ModelSpec::Mlp { inputs: 64, hidden: vec![hidden], classes: 10 };
    let base = model.init(1).into_vec();
    let delta = |player| {
        let drawn = model.init(10 + player as u64).into_vec();
        drawn.iter().map(|value| value * 0.2).collect()
    };
    let deltas: Vec<Vec<f32>> = (0..players).map(delta).collect();
    let shares: Vec<f64> = (0..players).map(|at| 1.0 / (players + at) as f64).collect();
    let mut total = vec![0.0; base.len()];
    for (delta, share) in deltas.iter().zip(&shares) {
        total.iter_mut().zip(delta).for_each(|(sum, &own)| *sum += share * f64::from(own));
    }
    let holdout = load(&DataSource::Digits).unwrap().slice(0..rows).unwrap();
    PathFixture { model, base, deltas, shares, total, holdout }
}

impl PathFixture {
    fn way(&self) -> ParameterSegment<'_> {
        ParameterSegment { model: &self.model, base: &self.base, total: &self.total }
    }

    fn gradient(&self, groups: usize, rows: &mut dyn RowChunks) -> PathGradient {
        PathGradient::new(self.way(), &nodes(), groups, rows, &mut Reference::new()).unwrap()
    }

    /// Returns the updates one after another.
    fn updates(&self) -> impl FnMut(&mut Vec<f32>) -> Result<Option<f64>, Infallible> + '_ {
        let mut left = self.deltas.iter().zip(&self.shares);
        move |update| {
            let Some((delta, &share)) = left.next() else { return Ok(None) };
            update.clear();
            update.extend_from_slice(delta);
            Ok(Some(share))
        }
    }
}

fn bits(values: &[PathValue]) -> Vec<u64> {
    let numbers = |value: &PathValue| {
        [value.groups.as_slice(), &value.node_derivatives, &[value.random_direction_std]].concat()
    };
    values.iter().flat_map(numbers).map(f64::to_bits).collect()
}

#[test]
fn group_values_match_the_derivatives_of_their_rows() {
    let round = round(9, 4, 103);
    let path = round.gradient(8, &mut &round.holdout);
    let values = path.values(2, round.updates()).unwrap();

    let mut engine = Reference::new();
    let deltas: Vec<&[f32]> = round.deltas.iter().map(Vec::as_slice).collect();
    let PathFixture { model, base, holdout, .. } = &round;
    let mut affine = AffineLoss::new(model, base, &deltas, holdout, &mut engine).unwrap();
    let at = |t: f64| -> Vec<f64> { round.shares.iter().map(|share| share * t).collect() };
    let mut rows = vec![vec![0.0; 103]; 4];
    for (node, (t, weight)) in nodes().into_iter().enumerate() {
        let slopes = affine.directional_derivatives(&at(t)).unwrap();
        for (player, slopes) in slopes.iter().enumerate() {
            let share = round.shares[player];
            let own = -share * mean(slopes);
            assert!((own - values[player].node_derivatives[node]).abs() < 1e-12);
            for (row, slope) in rows[player].iter_mut().zip(slopes) {
                *row -= weight * share * slope;
            }
        }
    }
    for (rows, value) in rows.iter().zip(&values) {
        assert!((mean(rows) - value.value()).abs() < 1e-12, "{value:?}");
        assert!(value.value().abs() > 1e-3);
        for (group, &own) in value.groups.iter().enumerate() {
            let rows = &rows[103 * group / 8..103 * (group + 1) / 8];
            let expected = rows.iter().sum::<f64>() * 8.0 / 103.0;
            assert!((expected - own).abs() < 1e-12, "group {group}");
        }
    }
    let chance = affine.random_direction_std(&at(0.5)).unwrap();
    for ((value, chance), share) in values.iter().zip(chance).zip(&round.shares) {
        assert!((value.random_direction_std - share * chance).abs() < 1e-12);
    }
    let before = mean(&affine.losses(&at(0.0)).unwrap());
    let after = mean(&affine.losses(&at(1.0)).unwrap());
    assert!((mean(path.losses_before()) - before).abs() < 1e-12);
    assert!((mean(path.losses_after()) - after).abs() < 1e-12);
    let all: f64 = values.iter().map(PathValue::value).sum();
    assert!((all - (before - after)).abs() < 0.02 * (before - after).abs(), "{all}");
}

#[cfg(feature = "torch")]
#[test]
fn libtorch_gives_the_same_values() {
    use crate::torch::{Torch, TorchDevice};
    let round = round(9, 3, 300);
    let plain = round.gradient(1, &mut &round.holdout).values(1, round.updates()).unwrap();
    let mut torch = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let path = PathGradient::new(round.way(), &nodes(), 1, &mut &round.holdout, &mut torch);
    for (own, plain) in path.unwrap().values(1, round.updates()).unwrap().iter().zip(&plain) {
        assert!((own.value() - plain.value()).abs() < 1e-12);
        assert!((own.random_direction_std - plain.random_direction_std).abs() < 1e-12);
    }
}

/// An engine with the default implementation of `measure_along`.
struct DefaultSegmentEngine(Reference);

impl Evaluator for DefaultSegmentEngine {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.0.row_losses(model, params, data)
    }

    fn row_directional_derivatives(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        directions: &[&[f32]],
        data: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        self.0.row_directional_derivatives(model, params, directions, data)
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        self.0.correct_predictions(model, params, data)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        self.0.gradient(model, params, data)
    }
}

#[test]
fn measurements_along_a_segment_equal_those_at_each_point() {
    let round = round(5, 1, 300);
    let groups = [0..3, 3..290, 299..300];
    let place = |t, gradient| SegmentPoint { t, gradient };
    let places = [place(0.0, false), place(0.3, true), place(1.0, true), place(1.0, false)];
    let gather = |engine: &mut dyn Evaluator| {
        let mut seen = Vec::new();
        let look = &mut |group: usize, place: usize, numbers: &[f64]| {
            seen.push((group, place, numbers.to_vec()));
        };
        engine.evaluate_on_segment(round.way(), &places, &round.holdout, &groups, look).unwrap();
        seen
    };
    let plain = gather(&mut DefaultSegmentEngine(Reference::new()));
    assert_eq!(plain.len(), groups.len() * places.len());
    assert_eq!((plain[4].2.len(), plain[5].2.len()), (287, round.base.len()));
    let mut engines: Vec<Box<dyn Evaluator>> = vec![Box::new(Reference::new())];
    #[cfg(feature = "torch")]
    engines.push(Box::new(crate::torch::Torch::new(crate::torch::TorchDevice::Cpu, 1).unwrap()));
    for mut engine in engines {
        let own = gather(engine.as_mut());
        assert_eq!(own.len(), plain.len());
        for ((group, place, own), (of, at, plain)) in own.iter().zip(&plain) {
            assert_eq!((group, place, own.len()), (of, at, plain.len()));
            assert!(own.iter().zip(plain).all(|(own, plain)| (own - plain).abs() < 1e-11));
        }
        let mut wrong = |group: Range<usize>| {
            let (way, rows) = (round.way(), &round.holdout);
            let groups = std::slice::from_ref(&group);
            engine.evaluate_on_segment(way, &places, rows, groups, &mut |_, _, _| {})
        };
        assert!(wrong(0..0).is_err());
        assert!(wrong(299..301).is_err());
    }
}

/// The rows of a data set, in chunks of a given size, with a given announced number of rows.
struct Pieces<'a>(&'a Dataset, usize, usize);

impl RowChunks for Pieces<'_> {
    fn rows(&self) -> usize {
        self.2
    }

    fn width(&self) -> usize {
        self.0.width()
    }

    fn classes(&self) -> usize {
        self.0.classes()
    }

    fn each_chunk(
        &mut self,
        look: &mut dyn FnMut(&Dataset) -> ControlFlow<()>,
    ) -> Result<(), ChunkError> {
        for from in (0..self.0.rows()).step_by(self.1) {
            let piece = self.0.slice(from..self.0.rows().min(from + self.1)).unwrap();
            if look(&piece).is_break() {
                break;
            }
        }
        Ok(())
    }
}

#[test]
fn chunks_threads_and_files_change_no_bit() {
    let round = round(6, 5, 700);
    for groups in [1, 2, 13, 700] {
        let path = round.gradient(groups, &mut &round.holdout);
        let whole = bits(&path.values(1, round.updates()).unwrap());
        for threads in [2, 3, 7] {
            assert_eq!(bits(&path.values(threads, round.updates()).unwrap()), whole);
        }
        for piece in [1, 9, 255, 256, 257, 699] {
            let path = round.gradient(groups, &mut Pieces(&round.holdout, piece, 700));
            let values = path.values(1, round.updates()).unwrap();
            assert_eq!(bits(&values), whole, "{groups} groups, pieces of {piece}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let room = ScratchSpace { memory_max: 0, folder: folder.path().to_owned() };
    let (shared, nodes) = (round.gradient(13, &mut &round.holdout), nodes());
    let mut engine = Reference::new();
    let rows = &mut &round.holdout;
    let on_disk = PathGradient::within(&room, round.way(), &nodes, 13, rows, &mut engine).unwrap();
    assert_eq!(on_disk.gradients.as_slice(), shared.gradients.as_slice());
    let slices: Vec<(f64, &[f32])> =
        round.shares.iter().copied().zip(round.deltas.iter().map(Vec::as_slice)).collect();
    let mut released = 0;
    let values = on_disk.values_of_slices(2, &slices, &mut |range| released += range.len());
    let whole = bits(&shared.values(1, round.updates()).unwrap());
    assert_eq!(bits(&values.unwrap()), whole);
    assert_eq!(released % round.base.len(), 0);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), canonical_bytes(&round.holdout)).unwrap();
    let from_file = round.gradient(13, &mut CanonicalRows::open(file.path(), 50).unwrap());
    let in_memory = round.gradient(13, &mut &round.holdout);
    assert_eq!(from_file.gradients.as_slice(), in_memory.gradients.as_slice());
    assert_eq!(from_file.losses, in_memory.losses);
}

/// Counts the evaluated rows.
struct Counting(Reference, usize, usize);

impl Evaluator for Counting {
    fn row_losses(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<Vec<f64>, EvalError> {
        self.1 += data.rows();
        self.0.row_losses(model, params, data)
    }

    fn row_directional_derivatives(
        &mut self,
        _: &ModelSpec,
        _: &[f64],
        _: &[&[f32]],
        _: &Dataset,
    ) -> Result<Vec<Vec<f64>>, EvalError> {
        panic!("unexpected call for derivatives along each update")
    }

    fn correct_predictions(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<usize, EvalError> {
        self.0.correct_predictions(model, params, data)
    }

    fn gradient(
        &mut self,
        model: &ModelSpec,
        params: &[f64],
        data: &Dataset,
    ) -> Result<(f64, Vec<f64>), EvalError> {
        self.2 += data.rows();
        self.0.gradient(model, params, data)
    }
}

#[test]
fn a_thousand_updates_cost_three_gradients_two_losses_and_one_pass() {
    let round = round(8, 1, 256);
    let mut engine = Counting(Reference::new(), 0, 0);
    let path =
        PathGradient::new(round.way(), &nodes(), 64, &mut &round.holdout, &mut engine).unwrap();
    assert_eq!((engine.1, engine.2), (2 * 256, 3 * 256));
    let (mut handed, mut rooms) = (0, std::collections::BTreeSet::new());
    let values = path.values(2, |update| {
        if handed == 1_000 {
            return Ok::<_, Infallible>(None);
        }
        update.resize(round.base.len(), 0.0);
        rooms.insert(update.as_ptr() as usize);
        update[handed % 600] = 1.0;
        handed += 1;
        Ok(Some(0.001))
    });
    assert_eq!((values.unwrap().len(), handed), (1_000, 1_000));
    assert!(rooms.len() <= UPDATES_AT_A_TIME, "{} updates were in memory", rooms.len());
    let no_middle = [(0.25, 0.5), (0.75, 0.5)];
    let mut engine = Counting(Reference::new(), 0, 0);
    PathGradient::new(round.way(), &no_middle, 4, &mut &round.holdout, &mut engine).unwrap();
    assert_eq!(engine.2, 3 * 256);
}

#[test]
fn an_invalid_path_is_refused() {
    let round = round(3, 2, 20);
    let make =
        |way: ParameterSegment<'_>, nodes: &[(f64, f64)], groups, rows: &mut dyn RowChunks| {
            PathGradient::new(way, nodes, groups, rows, &mut Reference::new())
                .map(|_| ())
                .map_err(|error| error.code())
        };
    let mut rows = &round.holdout;
    let (way, nodes) = (round.way(), nodes());
    assert_eq!(make(way, &nodes, 4, &mut rows), Ok(()));
    assert_eq!(make(way, &nodes, 0, &mut rows), Err("PATH_GROUPS"));
    assert_eq!(make(way, &nodes, 21, &mut rows), Err("PATH_GROUPS"));
    assert_eq!(make(way, &[], 4, &mut rows), Err("PATH_NO_NODES"));
    assert_eq!(make(way, &[(1.5, 1.0)], 4, &mut rows), Err("PATH_NODE"));
    let short = ParameterSegment { total: &round.total[1..], ..way };
    assert_eq!(make(short, &nodes, 4, &mut rows), Err("PATH_EVALUATION"));
    for announced in [19, 21] {
        let mut wrong_count = Pieces(&round.holdout, 7, announced);
        assert_eq!(make(way, &nodes, 4, &mut wrong_count), Err("PATH_ROW_COUNT"), "{announced}");
    }
    let path = round.gradient(4, &mut rows);
    let value = |numbers: Vec<f32>, share: f64| {
        let mut once = Some(numbers);
        path.values(1, |update| {
            let Some(numbers) = once.take() else { return Ok::<_, Infallible>(None) };
            *update = numbers;
            Ok(Some(share))
        })
        .map(|values| values.len())
        .map_err(|error| error.code())
    };
    let good = round.base.clone();
    assert_eq!(value(good.clone(), 0.5), Ok(1));
    assert_eq!(value(good.clone(), f64::NAN), Err("PATH_SHARE"));
    assert_eq!(value(good[1..].to_vec(), 0.5), Err("PATH_EVALUATION"));
    assert_eq!(value(vec![f32::INFINITY; good.len()], 0.5), Err("PATH_EVALUATION"));
    let lost = path.values(1, |_| Err::<Option<f64>, _>("the disk failed"));
    assert_eq!(lost.unwrap_err().to_string(), "update 0: the disk failed");
}

#[test]
fn group_losses_match_those_of_the_path_gradient() {
    let round = round(4, 2, 101);
    let gradient = round.gradient(8, &mut &round.holdout);
    let deltas: Vec<&[f32]> = round.deltas.iter().map(Vec::as_slice).collect();
    let mut engine = Reference::new();
    let mut affine =
        AffineLoss::new(&round.model, &round.base, &deltas, &round.holdout, &mut engine).unwrap();
    let rows = affine.losses(&[0.0, 0.0]).unwrap();
    let groups = group_means(&rows, 8);
    assert!((mean(&groups) - mean(&rows)).abs() < 1e-12);
    for (ours, theirs) in groups.iter().zip(gradient.losses_before()) {
        assert!((ours - theirs).abs() < 1e-12, "{ours} {theirs}");
    }
    // Rows 0, 1 | 2, 3, 4 by hand: sums 3 and 12, times 2 groups divided by 5 rows.
    let by_hand = group_means(&[1.0, 2.0, 3.0, 4.0, 5.0], 2);
    assert!((by_hand[0] - 1.2).abs() < 1e-15 && (by_hand[1] - 4.8).abs() < 1e-15, "{by_hand:?}");
}
