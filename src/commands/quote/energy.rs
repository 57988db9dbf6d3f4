//! The energy of a training, by the watts of a device's card.

use florin_learning::energy::EnergyMeter;
use florin_learning::step_cost::DeviceCard;
use serde_json::{Value, json};

use super::DeviceQuote;
use crate::cli::Quote;

/// Joules of a step and of a round; null for a card without watts.
pub(super) fn json(card: &DeviceCard, step: f64, round: Option<f64>) -> Value {
    let Some(power) = &card.power else { return Value::Null };
    json!({
        "source": power.source,
        "idle_watts": power.idle_watts,
        "training_watts": power.training_watts,
        "step_joules": power.joules(step),
        "round_joules": round.map(|seconds| power.joules(seconds)),
    })
}

/// One line about a device.
pub(super) fn text(
    (name, card, step): &DeviceQuote<'_>,
    arguments: &Quote,
    steps: Option<u64>,
) -> String {
    let Some(power) = &card.power else {
        return match arguments.devices.is_empty() {
            true => missing(&card.engine),
            false => format!("unknown: {name} has no watts"),
        };
    };
    let of = |seconds: f64, time: &str| {
        let joules = power.joules(seconds);
        format!("{:.3} J a {time} ({:.3} J beyond idle)", joules.all, joules.beyond_idle)
    };
    let mut text = of(step.seconds, "step");
    if let Some(steps) = steps {
        text += &format!(", {}", of(steps as f64 * step.seconds, "round"));
    }
    format!("{text}, by {}", power.source)
}

/// The reason for which this machine has no watts.
fn missing(engine: &str) -> String {
    let why = match EnergyMeter::for_engine(engine) {
        Err(error) => error.to_string(),
        Ok(_) => "a counter failed in the measurement".to_owned(),
    };
    format!("not measurable on this machine ({why})")
}
