//! The work and the memory of an optimizer's step.

use super::work::StepWork;
use crate::training::{Optimizer, Training};

/// Tensors of the parameters' size that an operator reads and writes. Plain gradient descent has one
/// operator, which is part of the parameters' own work.
struct Passes {
    calls: f64,
    tensors: f64,
}

/// `velocity *= momentum` and `velocity += gradient`.
const MOMENTUM: Passes = Passes { calls: 2.0, tensors: 2.0 + 3.0 };
/// Adam's `lerp`, `mul`, `addcmul`, root, division, sum and `addcdiv`, less the operator of plain descent.
const ADAM: Passes =
    Passes { calls: 7.0 - 1.0, tensors: 3.0 + 2.0 + 3.0 + 2.0 + 2.0 + 2.0 + 4.0 - 3.0 };
/// `gradient += decay · parameters`.
const DECAY: Passes = Passes { calls: 1.0, tensors: 3.0 };
/// `parameters *= 1 − rate · decay`.
const DECOUPLED_DECAY: Passes = Passes { calls: 1.0, tensors: 2.0 };
/// The difference from the start, its multiple, and its sum with the gradient.
const PROXIMAL: Passes = Passes { calls: 3.0, tensors: 3.0 + 2.0 + 3.0 };
/// The norm in `f64`: a copy, squares and their sum; and the product.
const CLIP: Passes = Passes { calls: 4.0, tensors: 3.0 + 4.0 + 2.0 + 2.0 };

impl Training {
    /// Tensors of the parameters' size that the optimizer carries from step to step.
    pub fn state_tensors(&self) -> u64 {
        match self.optimizer {
            Optimizer::Sgd if self.momentum == 0.0 => 0,
            Optimizer::Sgd => 1,
            Optimizer::Adam(_) | Optimizer::AdamW(_) => 2,
        }
    }

    /// Tensors of the parameters' size that a step has for a moment, after the tensors of the gradient are
    /// gone.
    pub fn passing_tensors(&self) -> u64 {
        match self.optimizer {
            // A result and the one before it.
            Optimizer::Adam(_) | Optimizer::AdamW(_) => 2,
            Optimizer::Sgd => 0,
        }
    }

    fn passes(&self) -> Vec<Passes> {
        let mut passes = Vec::new();
        match self.optimizer {
            Optimizer::Sgd if self.momentum > 0.0 => passes.push(MOMENTUM),
            Optimizer::Sgd => {}
            Optimizer::Adam(_) | Optimizer::AdamW(_) => passes.push(ADAM),
        }
        if self.weight_decay > 0.0 {
            passes.push(match self.optimizer {
                Optimizer::AdamW(_) => DECOUPLED_DECAY,
                Optimizer::Sgd | Optimizer::Adam(_) => DECAY,
            });
        }
        passes.extend(self.fedprox.filter(|&pull| pull > 0.0).map(|_| PROXIMAL));
        passes.extend(self.clip_gradient.map(|_| CLIP));
        passes
    }
}

impl StepWork {
    /// The work of the optimizer of `how` beyond plain gradient descent, on parameters of
    /// `parameter_bytes` bytes.
    pub fn of_optimizer(how: &Training, parameter_bytes: f64) -> Self {
        let mut work = Self::none();
        for Passes { calls, tensors } in how.passes() {
            work.add_optimizer(calls, tensors * parameter_bytes);
        }
        work
    }

    /// The same step with the optimizer of `how`.
    #[must_use]
    pub fn with_optimizer(self, how: &Training) -> Self {
        let own = Self::of_optimizer(how, self.parameter_bytes());
        let sum = |at: usize| self.amounts[at] + own.amounts[at];
        Self { amounts: std::array::from_fn(sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::WORK_KINDS;
    use super::*;
    use crate::training::Betas;

    const BETAS: Betas = Betas { beta1: 0.9, beta2: 0.999 };

    /// Calls, and tensors of four bytes.
    fn passes(how: &Training) -> (f64, f64) {
        let work = StepWork::of_optimizer(how, 4.0);
        let at = |name: &str| {
            let place = WORK_KINDS.iter().position(|kind| *kind == name).unwrap();
            work.amounts[place]
        };
        let (calls, bytes) = (at("optimizer_calls"), at("optimizer_bytes"));
        assert_eq!(work.amounts.iter().sum::<f64>(), calls + bytes);
        (calls, bytes / 4.0)
    }

    #[test]
    fn optimizers_pass_over_the_parameters_as_often_as_their_operators() {
        let sgd = Training::sgd(1, 1, 0.1);
        assert_eq!(passes(&sgd), (0.0, 0.0));
        assert_eq!(passes(&Training { momentum: 0.9, ..sgd }), (2.0, 5.0));
        let adam = Training { optimizer: Optimizer::Adam(BETAS), ..sgd };
        assert_eq!(passes(&adam), (6.0, 15.0));
        assert_eq!(passes(&Training { weight_decay: 0.1, ..adam }), (7.0, 18.0));
        let adamw = Training { optimizer: Optimizer::AdamW(BETAS), weight_decay: 0.1, ..sgd };
        assert_eq!(passes(&adamw), (7.0, 17.0));
        let bounded = Training { clip_gradient: Some(1.0), fedprox: Some(0.1), ..sgd };
        assert_eq!(passes(&bounded), (7.0, 19.0));
        let tensors =
            [&adam, &adamw, &bounded].map(|how| (how.state_tensors(), how.passing_tensors()));
        assert_eq!(tensors, [(2, 2), (2, 2), (0, 0)]);
    }
}
