//! `florin-bench train`: training steps per second of one participant, on as many threads as the
//! peer.

use std::ops::ControlFlow;
use std::path::Path;

use florin_learning::data::load;
use florin_learning::{DataSource, EngineKind, ModelSpec, Training};

use super::peers::{self, Peer};
use super::{Measurement, fastest};

/// Epochs over the digits per run.
const EPOCHS: u32 = 40;
/// Rows per step.
const BATCH: u32 = 16;
/// Units of the hidden layer.
const HIDDEN: usize = 128;
/// Number of runs; the fastest one counts.
const REPEATS: usize = 5;

pub(super) fn run(python: Option<&Path>) -> anyhow::Result<Vec<Measurement>> {
    let data = load(&DataSource::Digits)?;
    let model = ModelSpec::Mlp { inputs: 64, hidden: vec![HIDDEN], classes: 10 };
    let how = Training::sgd(EPOCHS, BATCH, 0.1);
    let start = model.init(1).into_vec();
    let script = include_str!("../../../xtask/peers/train.py");
    let peer = peers::run(&Peer { name: "PyTorch", script, arguments: Vec::new() }, python)?;
    let bar = peer.first().map(|row| row.value);
    let mut rows = Vec::new();
    for kind in [EngineKind::Torch, EngineKind::Reference] {
        let mut engine = match florin_learning::engine(kind, 1) {
            Ok(engine) => engine,
            Err(error) => {
                anstream::eprintln!("{kind} is skipped: {error}");
                continue;
            }
        };
        let mut steps = 0;
        let seconds = fastest(REPEATS, || {
            let go_on = &mut |_| ControlFlow::Continue(());
            steps = engine.train(&model, &start, &data, &how, 1, go_on)?.steps;
            Ok(())
        })?;
        let value = steps as f64 / seconds;
        let name = format!("Florin, {}", engine.name());
        rows.push(match bar {
            Some(bar) => Measurement::at_least(name, value, "steps/s", bar),
            None => Measurement::plain(name, value, "steps/s"),
        });
    }
    rows.extend(peer);
    Ok(rows)
}
