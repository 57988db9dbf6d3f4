//! The plain-Rust engine against libtorch: losses, gradients and trainings of graphs.

use super::tests::{ALL, GraphTask, engine, go_on, is_random, models, optimizers, training};
use crate::data::ImageShape;
use crate::engine::{Evaluator, InputError, ParameterSegment, SegmentPoint, Trainer};
use crate::graph::{BufferPolicy, GraphModel};
use crate::model::ModelSpec;
use crate::torch::{Torch, TorchDevice};
use crate::{Augmentation, Reference};

/// Models that the plain-Rust engine runs, and those that it refuses, with their operators.
fn plain_models() -> (Vec<(String, GraphTask)>, Vec<String>) {
    let (mut all, mut refused) = (Vec::new(), Vec::new());
    for name in models() {
        let case = GraphTask::load(&name, ALL, BufferPolicy::Average);
        match Reference::check_model(&case.model, 5) {
            Ok(()) => all.push((name, case)),
            Err(InputError::Operators { operators, .. }) => {
                refused.push(format!("{name}: {}", operators.join(", ")));
            }
            Err(error) => panic!("{name}: {error}"),
        }
    }
    (all, refused)
}

fn farthest<'a>(
    one: impl IntoIterator<Item = &'a f64>,
    two: impl IntoIterator<Item = &'a f64>,
) -> f64 {
    one.into_iter().zip(two).fold(0.0, |far: f64, (a, b)| far.max((a - b).abs()))
}

#[test]
fn evaluations_in_plain_rust_agree_with_libtorch() {
    let (all, refused) = plain_models();
    println!("not in plain Rust: {refused:?}");
    for (name, case) in &all {
        let (model, rows, base) = (&case.model, &case.rows, case.wide());
        let (mut plain, mut torch) = (Reference::with_threads(2), engine());
        let losses = [
            plain.row_losses(model, &base, rows).unwrap(),
            torch.row_losses(model, &base, rows).unwrap(),
        ];
        let loss_away = farthest(&losses[0], &losses[1]);
        let gradients = [
            plain.gradient(model, &base, rows).unwrap().1,
            torch.gradient(model, &base, rows).unwrap().1,
        ];
        let slope_away = farthest(&gradients[0], &gradients[1]);
        println!("{name}: losses differ by up to {loss_away:e}, gradients by {slope_away:e}");
        assert!(loss_away < 1e-12 && slope_away < 1e-11, "{name}: {loss_away} {slope_away}");
        let outputs = [
            plain.row_outputs(model, &base, rows).unwrap(),
            torch.row_outputs(model, &base, rows).unwrap(),
        ];
        assert_eq!(outputs[0].len(), outputs[1].len(), "{name}");
        assert!(farthest(&outputs[0], &outputs[1]) < 1e-11, "{name}");
        assert_eq!(
            plain.correct_predictions(model, &base, rows).unwrap(),
            torch.correct_predictions(model, &base, rows).unwrap(),
            "{name}"
        );
        let one = Reference::new().gradient(model, &base, rows).unwrap().1;
        assert_eq!(one, gradients[0], "{name}: threads change no bit");
    }
    assert!(all.len() >= 13, "{} models run in plain Rust", all.len());
}

#[test]
fn segments_in_plain_rust_agree_with_libtorch() {
    for (name, case) in plain_models().0 {
        let (model, rows) = (&case.model, &case.rows);
        let total: Vec<f64> = (0..case.start.len()).map(|at| (at % 7) as f64 / 700.0).collect();
        let way = ParameterSegment { model, base: &case.start, total: &total };
        let places = [false, true].map(|gradient| SegmentPoint { t: 0.7, gradient });
        let groups = [0..1, 1..rows.rows()];
        let run = |engine: &mut dyn Evaluator| {
            let mut found = vec![Vec::new(); 4];
            let mut look = |group: usize, place: usize, numbers: &[f64]| {
                found[group * 2 + place] = numbers.to_vec();
            };
            engine.evaluate_on_segment(way, &places, rows, &groups, &mut look).unwrap();
            found
        };
        let (plain, torch) = (run(&mut Reference::new()), run(&mut engine()));
        for (plain, torch) in plain.iter().zip(&torch) {
            assert_eq!(plain.len(), torch.len(), "{name}");
            assert!(farthest(plain, torch) < 1e-10, "{name}: {}", farthest(plain, torch));
        }
    }
}

#[test]
fn trainings_in_plain_rust_end_where_those_of_libtorch_end() {
    let mut compared = 0;
    for (name, case) in plain_models().0.iter().filter(|(name, _)| !is_random(name)) {
        for (prefix, how, most) in optimizers() {
            // Adam makes steps of rounding errors where a gradient is zero.
            if prefix != "after" && case.model.tensors().iter().any(|it| it.name.contains("norm")) {
                continue;
            }
            let plain = Reference::new()
                .train(&case.model, &case.start, &case.rows, &how, 7, &mut go_on)
                .unwrap();
            let torch =
                engine().train(&case.model, &case.start, &case.rows, &how, 7, &mut go_on).unwrap();
            let pairs = plain.params.iter().zip(&torch.params);
            let far = pairs.fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
            println!("{name} {prefix}: at most {far:e} from libtorch");
            assert!(far < most, "{name} {prefix}: {far}");
            compared += 1;
        }
    }
    assert!(compared >= 12, "{compared}");
}

#[test]
fn both_engines_train_graphs_on_the_same_changed_images() {
    let case = GraphTask::load("convnext", ALL, BufferPolicy::Refuse);
    let image = ImageShape { channels: 1, height: 2, width: case.rows.width() / 2 };
    let augmentation = Some(Augmentation { image, flip: true, crop_padding: 1 });
    let how = crate::Training { augmentation, ..training(2) };
    let run = |engine: &mut dyn Trainer, how| {
        engine.train(&case.model, &case.start, &case.rows, how, 7, &mut go_on).unwrap().params
    };
    let (plain, torch) = (run(&mut Reference::new(), &how), run(&mut engine(), &how));
    assert!(plain.iter().zip(&torch).all(|(a, b)| (a - b).abs() < 1e-5));
    assert_ne!(run(&mut Reference::new(), &training(2)), plain);
}

#[test]
fn gradients_of_rows_in_plain_rust_are_those_of_libtorch() {
    for (name, _) in plain_models().0.iter().filter(|(name, _)| !is_random(name)) {
        let case = GraphTask::load(name, ALL, BufferPolicy::Freeze);
        let run = |engine: &mut dyn Trainer| {
            let mut all = Vec::new();
            let mut look =
                |row: crate::RowGradient<'_>| all.push((row.loss, row.gradient.to_vec()));
            engine.row_gradients(&case.model, &case.start, &case.rows, &[1, 0], &mut look).unwrap();
            all
        };
        let (plain, torch) = (run(&mut Reference::new()), run(&mut engine()));
        for ((loss, plain), (other, torch)) in plain.iter().zip(&torch) {
            assert!((loss - other).abs() < 1e-5, "{name}: {loss} {other}");
            let far = plain.iter().zip(torch).fold(0.0_f32, |far, (a, b)| far.max((a - b).abs()));
            assert!(far < 1e-5, "{name}: {far}");
        }
    }
}

#[test]
fn random_trainings_in_plain_rust_repeat_from_their_seed() {
    let mut compared = 0;
    for (name, case) in plain_models().0.iter().filter(|(name, _)| is_random(name)) {
        let run = |seed| {
            let mut engine = Reference::new();
            engine.train(&case.model, &case.start, &case.rows, &training(2), seed, &mut go_on)
        };
        assert_eq!(run(3).unwrap(), run(3).unwrap(), "{name}");
        assert_ne!(run(3).unwrap(), run(4).unwrap(), "{name}");
        compared += 1;
    }
    assert!(compared >= 4, "{compared}");
}

#[test]
fn a_refused_value_has_the_largest_loss_in_plain_rust_too() {
    let case = GraphTask::load("gpt", ALL, BufferPolicy::Refuse);
    let mut numbers = case.rows.features().to_vec();
    numbers[1] = 1e6;
    let labels = case.rows.labels().to_vec();
    let rows =
        crate::Dataset::new(numbers, labels, case.rows.width(), case.rows.classes()).unwrap();
    let base = case.wide();
    let plain = Reference::new().gradient(&case.model, &base, &rows).unwrap();
    // A GPU that meets such a token serves the process no more; rows of a task have none.
    let mut on_cpu = Torch::new(TorchDevice::Cpu, 1).unwrap();
    let torch = on_cpu.gradient(&case.model, &base, &rows).unwrap();
    assert!((plain.0 - torch.0).abs() < 1e-12);
    assert!(farthest(&plain.1, &torch.1) < 1e-12);
    let losses = Reference::new().row_losses(&case.model, &base, &rows).unwrap();
    let ModelSpec::Graph(model) = &case.model else { unreachable!() };
    let declaration = model.declaration();
    assert_eq!(losses[0], declaration.loss.largest(declaration.outputs));
    let bare = ModelSpec::Graph(Box::new(GraphModel::new(declaration.clone())));
    let error = Reference::new().row_losses(&bare, &base, &rows).unwrap_err().to_string();
    assert!(error.contains("is not loaded"), "{error}");
}
