//! The time of a training step on several replicas, by the model of Pollux.
//!
//! A replica computes its gradient in `T_grad = α_grad + β_grad · rows`. The replicas then average
//! their gradients in `T_sync`, which is 0 for one replica and grows linearly with the replicas
//! beyond two. The two overlap by an exponent `γ`: a step takes `(T_grad^γ + T_sync^γ)^(1/γ)`. That
//! is the sum at 1, and nearly the longer of the two at 10. Each earlier part of an accumulated
//! gradient adds one `T_grad`.
//!
//! Source: Qiao et al., "Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep
//! Learning", OSDI 2021. Its statistical efficiency is missing on purpose.

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use fit::{
    FittedScaling, PredictionError, SAMPLES_MAX, SAMPLES_MIN, SECONDS_MAX, SECONDS_MIN,
    ScalingError, fit,
};

mod descent;
mod fit;
#[cfg(test)]
mod tests;

/// The exponent of a step without overlap.
pub const OVERLAP_MIN: f64 = 1.0;
/// The exponent of a step whose shorter part is nearly free.
pub const OVERLAP_MAX: f64 = 10.0;
/// Replicas among which [`StepScaling::fastest_replicas`] searches, at most.
pub const REPLICAS_MAX: u32 = 65_536;

/// Parameters of a [`StepScaling`].
const PARAMETERS: usize = 7;
/// Their names, in the order of [`ScalingParameters::to_array`].
const NAMES: [&str; PARAMETERS] = [
    "grad_seconds",
    "grad_row_seconds",
    "local_seconds",
    "local_replica_seconds",
    "remote_seconds",
    "remote_replica_seconds",
    "overlap",
];
const OVERLAP: usize = 6;

/// The nodes of a job's replicas. The model has one cost of a network for two nodes and for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Nodes {
    /// All replicas run on one node.
    One,
    /// At least two replicas run on different nodes.
    Several,
}

/// The parameters of a [`StepScaling`]. Seconds are finite and at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingParameters {
    /// `α_grad`: seconds of a gradient, without its rows.
    pub grad_seconds: f64,
    /// `β_grad`: seconds of a gradient for each row of a replica.
    pub grad_row_seconds: f64,
    /// `α_local`: seconds of an average between two replicas on one node.
    pub local_seconds: f64,
    /// `β_local`: seconds for each further replica on one node.
    pub local_replica_seconds: f64,
    /// `α_node`: seconds of an average between two replicas on two nodes.
    pub remote_seconds: f64,
    /// `β_node`: seconds for each further replica, on several nodes.
    pub remote_replica_seconds: f64,
    /// `γ`: from [`OVERLAP_MIN`], without overlap, to [`OVERLAP_MAX`].
    pub overlap: f64,
}

/// The time of a step as a function of its rows and replicas.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ScalingParameters", into = "ScalingParameters")]
pub struct StepScaling {
    parameters: ScalingParameters,
}

/// A parameter is outside its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{name} is {value}, but it must be from {least} to {most}")]
pub struct ParameterOutOfBounds {
    /// The parameter.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
    /// The least valid value.
    pub least: f64,
    /// The largest valid value.
    pub most: f64,
}

/// A batch whose replicas can be chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaledBatch {
    /// Rows of all replicas together.
    pub rows: u64,
    /// Replicas, at most. More than [`REPLICAS_MAX`] are not searched.
    pub replicas_max: u32,
    /// Replicas of a node, at most. 0 counts as 1.
    pub replicas_per_node: u32,
}

/// A measured step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScalingSample {
    /// Rows of each replica.
    pub rows: u64,
    /// Replicas of the job.
    pub replicas: u32,
    /// Their nodes.
    pub nodes: Nodes,
    /// Seconds of the step, from [`SECONDS_MIN`] to [`SECONDS_MAX`].
    pub step_seconds: f64,
}

impl Nodes {
    /// The nodes of a number of them. 0 counts as 1.
    #[must_use]
    pub const fn from_count(count: u32) -> Self {
        if count < 2 { Self::One } else { Self::Several }
    }
}

impl ScalingParameters {
    fn from_array(numbers: [f64; PARAMETERS]) -> Self {
        let [grad_seconds, grad_row_seconds, local_seconds, local_replica_seconds, ..] = numbers;
        let [.., remote_seconds, remote_replica_seconds, overlap] = numbers;
        Self {
            grad_seconds,
            grad_row_seconds,
            local_seconds,
            local_replica_seconds,
            remote_seconds,
            remote_replica_seconds,
            overlap,
        }
    }

    /// In the order of [`NAMES`].
    fn to_array(self) -> [f64; PARAMETERS] {
        [
            self.grad_seconds,
            self.grad_row_seconds,
            self.local_seconds,
            self.local_replica_seconds,
            self.remote_seconds,
            self.remote_replica_seconds,
            self.overlap,
        ]
    }
}

impl TryFrom<ScalingParameters> for StepScaling {
    type Error = ParameterOutOfBounds;

    fn try_from(parameters: ScalingParameters) -> Result<Self, Self::Error> {
        for (at, value) in parameters.to_array().into_iter().enumerate() {
            let (least, most) = bounds(at);
            if !(least..=most).contains(&value) {
                return Err(ParameterOutOfBounds { name: NAMES[at], value, least, most });
            }
        }
        Ok(Self { parameters })
    }
}

impl From<StepScaling> for ScalingParameters {
    fn from(scaling: StepScaling) -> Self {
        scaling.parameters
    }
}

impl StepScaling {
    /// The parameters.
    #[must_use]
    pub const fn parameters(&self) -> &ScalingParameters {
        &self.parameters
    }

    /// Seconds of a gradient of these rows on one replica: `T_grad`.
    #[must_use]
    pub fn grad_seconds(&self, rows_per_replica: u64) -> f64 {
        self.parameters.grad_seconds + self.parameters.grad_row_seconds * rows_per_replica as f64
    }

    /// Seconds of an average between the replicas: `T_sync`. 0 replicas count as 1.
    #[must_use]
    pub fn sync_seconds(&self, replicas: u32, nodes: Nodes) -> f64 {
        let ScalingParameters { local_seconds, local_replica_seconds, .. } = self.parameters;
        let ScalingParameters { remote_seconds, remote_replica_seconds, .. } = self.parameters;
        let Some(further) = replicas.checked_sub(2) else { return 0.0 };
        match nodes {
            Nodes::One => local_seconds + local_replica_seconds * f64::from(further),
            Nodes::Several => remote_seconds + remote_replica_seconds * f64::from(further),
        }
    }

    /// Seconds of a step with these rows on each replica: `T_iter`. 0 replicas count as 1.
    #[must_use]
    pub fn seconds(&self, rows_per_replica: u64, replicas: u32, nodes: Nodes) -> f64 {
        let grad = self.grad_seconds(rows_per_replica);
        overlapped(grad, self.sync_seconds(replicas, nodes), self.parameters.overlap)
    }

    /// Seconds of a step whose replicas add up several gradients before they average them:
    /// `earlier_gradients` without an average, and the last one with it. Each of them has the rows
    /// of `last`, whose measured seconds count for nothing.
    #[must_use]
    pub fn accumulated_seconds(&self, last: &ScalingSample, earlier_gradients: u32) -> f64 {
        f64::from(earlier_gradients) * self.grad_seconds(last.rows) + self.predict(last)
    }

    /// The replicas with the shortest step for a batch, from 1: the fewest of them, if several
    /// numbers are equally fast. The replica with the most rows decides, and nodes are filled in
    /// turn.
    #[must_use]
    pub fn fastest_replicas(&self, batch: ScaledBatch) -> u32 {
        let per_node = batch.replicas_per_node.max(1);
        let seconds = |replicas: u32| {
            let rows = batch.rows.div_ceil(replicas.into());
            self.seconds(rows, replicas, Nodes::from_count(replicas.div_ceil(per_node)))
        };
        (2..=batch.replicas_max.min(REPLICAS_MAX))
            .fold((1, seconds(1)), |best, replicas| {
                let time = seconds(replicas);
                if time < best.1 { (replicas, time) } else { best }
            })
            .0
    }

    fn predict(&self, sample: &ScalingSample) -> f64 {
        self.seconds(sample.rows, sample.replicas, sample.nodes)
    }
}

/// The least and the largest valid value of a parameter.
const fn bounds(at: usize) -> (f64, f64) {
    if at == OVERLAP { (OVERLAP_MIN, OVERLAP_MAX) } else { (0.0, f64::MAX) }
}

/// `(a^γ + b^γ)^(1/γ)`, without powers that leave the range of a float.
fn overlapped(a: f64, b: f64, overlap: f64) -> f64 {
    let (longer, shorter) = (a.max(b), a.min(b));
    if shorter <= 0.0 {
        return longer;
    }
    longer * ((shorter / longer).powf(overlap).ln_1p() / overlap).exp()
}
