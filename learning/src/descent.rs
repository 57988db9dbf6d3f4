//! The step of a training on flat parameters.

use pulp::Arch;

use crate::params::squares;
use crate::training::{ADAM_EPSILON, AdamStep, Betas, Optimizer, Training};

/// The state of a descent: the initial parameters, and the state of the optimizer.
pub(crate) struct Descent<'a> {
    how: &'a Training,
    start: &'a [f32],
    step: u64,
    steps: u64,
    /// The velocity, or Adam's first moment.
    first: Vec<f32>,
    /// Adam's second moment; empty without it.
    second: Vec<f32>,
}

impl<'a> Descent<'a> {
    /// A descent of `steps` steps.
    pub(crate) fn new(start: &'a [f32], how: &'a Training, steps: u64) -> Self {
        let second = match how.optimizer {
            Optimizer::Sgd => 0,
            Optimizer::Adam(_) | Optimizer::AdamW(_) => start.len(),
        };
        let (first, second) = (vec![0.0; start.len()], vec![0.0; second]);
        Self { how, start, step: 0, steps, first, second }
    }

    /// The same after `step` steps, with what the optimizer carried: as many vectors as
    /// [`Training::state_tensors`].
    pub(crate) fn resume(mut self, step: u64, carried: &[Vec<f32>]) -> Self {
        self.step = step;
        for (own, carried) in [&mut self.first, &mut self.second].into_iter().zip(carried) {
            own.copy_from_slice(carried);
        }
        self
    }

    /// The state of the optimizer between two steps: as many vectors as [`Training::state_tensors`].
    pub(crate) fn carried(&self) -> Vec<Vec<f32>> {
        let count = self.how.state_tensors() as usize;
        [&self.first, &self.second].into_iter().take(count).cloned().collect()
    }

    /// The next step of [`Training`] from the gradient of the mean loss of a batch, which it overwrites.
    pub(crate) fn step(&mut self, params: &mut [f32], gradient: &mut [f32]) {
        self.step += 1;
        if let Some(pull) = self.how.fedprox.filter(|&pull| pull > 0.0) {
            let pull = pull as f32;
            for ((g, &w), &w0) in gradient.iter_mut().zip(&*params).zip(self.start) {
                *g += pull * (w - w0);
            }
        }
        if let Some(most) = self.how.clip_gradient {
            let norm = squares(gradient).sqrt();
            if norm > most {
                let scale = (most / norm) as f32;
                gradient.iter_mut().for_each(|g| *g *= scale);
            }
        }
        let (rate, decay) =
            (self.how.learning_rate_at(self.step, self.steps), self.how.weight_decay);
        match self.how.optimizer {
            Optimizer::Sgd => self.step_sgd(params, gradient, rate as f32),
            Optimizer::Adam(betas) => {
                let decay = decay as f32;
                gradient.iter_mut().zip(&*params).for_each(|(g, &w)| *g += decay * w);
                self.step_adam(params, gradient, rate, betas);
            }
            Optimizer::AdamW(betas) => {
                let retained = (1.0 - rate * decay) as f32;
                params.iter_mut().for_each(|w| *w *= retained);
                self.step_adam(params, gradient, rate, betas);
            }
        }
    }

    // Elementwise: any register width gives the same bits.
    fn step_sgd(&mut self, params: &mut [f32], gradient: &[f32], rate: f32) {
        let (momentum, decay) = (self.how.momentum as f32, self.how.weight_decay as f32);
        Arch::new().dispatch(|| {
            for (w, (v, &g)) in params.iter_mut().zip(self.first.iter_mut().zip(gradient)) {
                *v = momentum * *v + (g + decay * *w);
                *w -= rate * *v;
            }
        });
    }

    fn step_adam(&mut self, params: &mut [f32], gradient: &[f32], rate: f64, betas: Betas) {
        let numbers = AdamStep::new(betas, rate, self.step);
        let (first, second) = (numbers.first as f32, numbers.second as f32);
        let (retained, root) = (numbers.retained as f32, numbers.bias_root as f32);
        let (rate, epsilon) = (numbers.rate as f32, ADAM_EPSILON as f32);
        Arch::new().dispatch(|| {
            let moments = self.first.iter_mut().zip(self.second.iter_mut());
            for ((w, &g), (m, s)) in params.iter_mut().zip(gradient).zip(moments) {
                *m += first * (g - *m);
                *s = retained * *s + second * g * g;
                *w -= rate * *m / (s.sqrt() / root + epsilon);
            }
        });
    }
}
