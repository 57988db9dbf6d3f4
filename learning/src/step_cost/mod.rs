//! Predictions of a training step's time: by the work of a graph's operators, and a card of a device's
//! measured speeds.
//!
//! A step's work is a short list of numbers: how many operators run, and how many floating-point
//! operations and bytes each kind of them takes, forward and backward. A card has the seconds of each of
//! them. It is fitted to the measured steps of a fixed suite of graphs on the device, so that the same
//! card predicts other graphs and batches: a roofline (Williams, Waterman and Patterson 2009) whose slopes
//! are measured.

mod card;
mod drawn;
mod fit;
mod optimizer;
mod power;
pub mod scaling;
mod suite;
mod together;
mod work;

pub use card::{
    CardError, DeviceCard, MeasuredPower, StepSeconds, TrainingJoules, measure, step_seconds,
};
pub use drawn::DrawnStep;
pub use together::{TogetherError, TogetherStep, step_together};
#[cfg(feature = "torch")]
pub(crate) use work::is_product;
pub use work::{StepWork, WORK_KINDS};
