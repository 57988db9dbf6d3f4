//! The step of stochastic gradient descent on flat parameters.

use pulp::Arch;

use crate::engine::Training;
use crate::params::squares;

/// The state of a descent: the initial parameters and the velocity.
pub(crate) struct Descent<'a> {
    how: &'a Training,
    start: &'a [f32],
    velocity: Vec<f32>,
}

impl<'a> Descent<'a> {
    pub(crate) fn new(start: &'a [f32], how: &'a Training) -> Self {
        Self { how, start, velocity: vec![0.0; start.len()] }
    }

    /// One step of [`Training`] from the gradient of the mean loss of a batch, which it overwrites.
    pub(crate) fn step(&mut self, params: &mut [f32], gradient: &mut [f32]) {
        let Training { learning_rate, momentum, weight_decay, .. } = *self.how;
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
        let (rate, momentum, decay) = (learning_rate as f32, momentum as f32, weight_decay as f32);
        // Elementwise: any register width gives the same bits.
        Arch::new().dispatch(|| {
            for (w, (v, &g)) in params.iter_mut().zip(self.velocity.iter_mut().zip(&*gradient)) {
                *v = momentum * *v + (g + decay * *w);
                *w -= rate * *v;
            }
        });
    }
}
