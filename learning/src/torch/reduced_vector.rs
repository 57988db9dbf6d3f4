//! Reductions of a vector by all ranks, without a training: for comparisons with other programs.

use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::ENGINE;
use super::partial_sums::{PartialSums, ReadyElements};
use super::peers::Peers;
use super::ranks::Ranks;
use crate::engine::{BackendError, TrainError};

impl Ranks {
    /// Adds vectors of `elements` numbers in f32, one of each rank, at rank 0, by the plan of these ranks;
    /// `turns` times. Returns the seconds of each turn on this rank. All ranks call it, once, with the same
    /// arguments.
    ///
    /// # Errors
    /// [`TrainError`] if a transfer fails, or if the total at rank 0 is wrong.
    pub fn reduce_vectors(
        &mut self,
        elements: usize,
        turns: usize,
    ) -> Result<Vec<f64>, TrainError> {
        let size = self.place().size;
        self.assign(None, size, elements as u64)?;
        let options = (Kind::Float, Device::Cpu);
        let mut sums = PartialSums::new(&Tensor::f_zeros(elements as i64, options)?);
        let token = Tensor::f_zeros(1, options)?;
        let (parts, own) = (size as usize, self.own(size as usize));
        let mut seconds = Vec::with_capacity(turns);
        for _ in 0..turns {
            let ready = ReadyElements::none_of(elements as u64);
            for part in own.clone() {
                let _ = sums.at(part)?.flat.f_fill_(f64::from(self.rank() + 1))?;
            }
            ready.set(0);
            self.broadcast(&token)?.wait()?;
            let start = Instant::now();
            self.reduce(&mut sums, parts, &ready, None)?;
            seconds.push(start.elapsed().as_secs_f64());
            if self.rank() == 0 {
                check(&sums.get(0)?.flat, f64::from(size * (size + 1) / 2))?;
            }
            sums.forget_all();
        }
        Ok(seconds)
    }
}

fn check(total: &Tensor, expected: f64) -> Result<(), TrainError> {
    let ends = [total.f_min()?, total.f_max()?].map(f64::try_from);
    match ends {
        [Ok(least), Ok(most)] if least == expected && most == expected => Ok(()),
        found => {
            let why = format!("a reduced vector has {found:?} in place of {expected}");
            Err(BackendError { engine: ENGINE, why }.into())
        }
    }
}
