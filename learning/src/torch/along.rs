//! Gradients and losses at several places of a way, from what the places have in common.
//!
//! A dense first layer is linear in its parameters: what it makes of the rows at `base + t·total` is
//! what it makes of them at `base`, and `t` times what it makes of them at `total`. Two products with
//! the rows serve any number of places, and rows are brought into the engine's form once.

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use super::net::{self, Net};
use super::{Torch, to_vec};
use crate::data::Dataset;
use crate::engine::{EvalError, Place, Way, check_evaluation, check_groups, chunks_of};

/// The model at one place, and where its gradient is written.
struct Station {
    place: Place,
    net: Net,
    gradient: Tensor,
    slots: Net,
}

/// What the places have in common for some rows.
struct Shared {
    features: Tensor,
    labels: Tensor,
    /// What the first dense layer makes of the rows with the base's parameters, and with the
    /// total's; none where something comes before that layer.
    first: Option<(Tensor, Tensor)>,
}

impl Torch {
    pub(super) fn along(
        &self,
        way: Way<'_>,
        places: &[Place],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        way.check()?;
        let models: Vec<Vec<f64>> = places.iter().map(|place| way.at(place.t)).collect();
        for model in &models {
            check_evaluation(way.model, model, &[], data)?;
        }
        check_groups(data, groups)?;
        self.ready();
        let mut stations = Vec::with_capacity(places.len());
        for (&place, model) in places.iter().zip(&models) {
            let gradient = Tensor::f_zeros(model.len() as i64, (Kind::Double, self.device))?;
            let (net, slots) =
                (Net::new(way.model, &self.put(model)?)?, Net::new(way.model, &gradient)?);
            stations.push(Station { place, net, gradient, slots });
        }
        let base = self.put(way.base)?.f_to_kind(Kind::Double)?;
        let ends = [Net::new(way.model, &base)?, Net::new(way.model, &self.put(way.total)?)?];
        for (group, rows) in groups.iter().enumerate() {
            let mut numbers = vec![Vec::new(); stations.len()];
            for rows in chunks_of(rows.clone()) {
                let shared = self.shared(&ends, data, rows)?;
                for (station, numbers) in stations.iter().zip(&mut numbers) {
                    station.measure(&shared, numbers)?;
                }
            }
            for (at, numbers) in numbers.iter().enumerate() {
                look(group, at, numbers);
            }
        }
        Ok(())
    }

    fn shared(
        &self,
        ends: &[Net; 2],
        data: &Dataset,
        rows: Range<usize>,
    ) -> Result<Shared, TchError> {
        let (features, labels) = self.rows(data, rows, Kind::Double)?;
        let [base, total] = ends;
        let first = match base.is_dense() {
            true => Some((base.first(&features)?, total.first(&features)?)),
            false => None,
        };
        Ok(Shared { features, labels, first })
    }
}

impl Station {
    /// Adds the gradient over these rows to `numbers`, or puts their losses behind it.
    fn measure(&self, shared: &Shared, numbers: &mut Vec<f64>) -> Result<(), TchError> {
        let Shared { features, labels, first } = shared;
        let tape = match first {
            Some((base, total)) => {
                let first = base.f_add(&total.f_mul_scalar(self.place.t)?)?;
                Some(self.net.onwards(features, first)?)
            }
            None => None,
        };
        if !self.place.gradient {
            let logits = match tape {
                Some(tape) => tape.logits,
                None => self.net.forward(features)?.logits,
            };
            numbers.extend(to_vec(&net::losses(&logits, labels)?)?);
            return Ok(());
        }
        let _losses = match tape {
            Some(tape) => self.net.back(&tape, labels, 1.0, &self.slots)?,
            None => self.net.gradient(features, labels, 1.0, &self.slots)?,
        };
        let own = to_vec(&self.gradient)?;
        if numbers.is_empty() {
            *numbers = own;
        } else {
            numbers.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        }
        Ok(())
    }
}
