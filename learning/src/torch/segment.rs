//! Gradients and losses at several points of a segment, with shared work.
//!
//! A dense first layer is linear in its parameters: its output at `base + t·total` is the output at
//! `base` plus `t` times the output at `total`. One product with the rows serves any number of
//! points, one more their gradients, and the rows are converted to tensors once.

use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use super::net::{self, FirstLayers, Objective, TensorNet};
use super::{Torch, to_vec};
use crate::data::Dataset;
use crate::engine::{
    EvalError, ParameterSegment, SegmentPoint, check_evaluation, check_groups, chunks_in,
};
use crate::loss::RowLoss;
use crate::model::ModelSpec;

/// The model at one point, with its gradient buffer.
struct SegmentModel {
    place: SegmentPoint,
    net: TensorNet,
    gradient: Tensor,
    slots: TensorNet,
}

impl Torch {
    pub(super) fn evaluate_segment(
        &self,
        way: ParameterSegment<'_>,
        places: &[SegmentPoint],
        data: &Dataset,
        groups: &[Range<usize>],
        look: &mut dyn FnMut(usize, usize, &[f64]),
    ) -> Result<(), EvalError> {
        way.check()?;
        check_groups(data, groups)?;
        self.set_threads();
        if let ModelSpec::Graph(model) = way.model {
            return self.evaluate_graph_segment(model, way, places, data, groups, look);
        }
        let mut stations = Vec::with_capacity(places.len());
        for &place in places {
            let params = way.at(place.t);
            check_evaluation(way.model, &params, &[], data)?;
            let net = TensorNet::new(way.model, &self.to_tensor(&params)?)?;
            let gradient = Tensor::f_zeros(params.len() as i64, (Kind::Double, self.device))?;
            let slots = TensorNet::new(way.model, &gradient)?;
            stations.push(SegmentModel { place, net, gradient, slots });
        }
        let base = self.to_tensor(way.base)?.f_to_kind(Kind::Double)?;
        let ends = [
            TensorNet::new(way.model, &base)?,
            TensorNet::new(way.model, &self.to_tensor(way.total)?)?,
        ];
        let first = TensorNet::concatenate_first_layers(&ends)?;
        let mut numbers = vec![Vec::new(); stations.len()];
        for (group, rows) in groups.iter().enumerate() {
            numbers.iter_mut().for_each(Vec::clear);
            for rows in chunks_in(rows.clone()) {
                let (features, labels) = self.rows(data, rows, Kind::Double)?;
                match &first {
                    Some(first) => dense(first, &stations, &features, &labels, &mut numbers)?,
                    None => each(&stations, &features, &labels, &mut numbers)?,
                }
            }
            for (at, numbers) in numbers.iter().enumerate() {
                look(group, at, numbers);
            }
        }
        Ok(())
    }
}

/// Adds the results of some rows to the `numbers` of each station, one station after another.
fn each(
    stations: &[SegmentModel],
    features: &Tensor,
    labels: &Tensor,
    numbers: &mut [Vec<f64>],
) -> Result<(), TchError> {
    for (station, numbers) in stations.iter().zip(numbers) {
        if station.place.gradient {
            let _losses =
                station.net.gradient(features, labels, Objective::EVALUATION, &station.slots)?;
            add(numbers, to_vec(&station.gradient)?);
        } else {
            let logits = station.net.forward(features)?.logits;
            numbers.extend(to_vec(&net::losses(&logits, labels, RowLoss::Bounded)?)?);
        }
    }
    Ok(())
}

/// The same for a dense first layer, with two products for all stations.
fn dense(
    first: &FirstLayers,
    stations: &[SegmentModel],
    features: &Tensor,
    labels: &Tensor,
    numbers: &mut [Vec<f64>],
) -> Result<(), TchError> {
    let ends = first.apply(features)?;
    let [base, total] = ends.as_slice() else { return Ok(()) };
    let mut pulls = Vec::with_capacity(stations.len());
    for (station, numbers) in stations.iter().zip(&mut *numbers) {
        let SegmentModel { place, net, slots, .. } = station;
        let tape = net.forward_from_first(features, base.f_add(&total.f_mul_scalar(place.t)?)?)?;
        if place.gradient {
            pulls.push(net.backward_to_first(&tape, labels, Objective::EVALUATION, slots)?.1);
        } else {
            numbers.extend(to_vec(&net::losses(&tape.logits, labels, RowLoss::Bounded)?)?);
        }
    }
    if pulls.is_empty() {
        return Ok(());
    }
    let gradients = stations.iter().zip(numbers).filter(|(station, _)| station.place.gradient);
    let weights = Tensor::f_cat(&pulls, 1)?.f_tr()?.f_mm(features)?;
    let weights = weights.f_chunk(pulls.len() as i64, 0)?;
    for (weight, (station, numbers)) in weights.iter().zip(gradients) {
        // The first layer's weight is at the start of the parameters.
        let mut own = to_vec(&weight.f_view([-1])?)?;
        let from = own.len() as i64;
        let rest = station.gradient.f_narrow(0, from, station.gradient.size1()? - from)?;
        own.extend(to_vec(&rest)?);
        add(numbers, own);
    }
    Ok(())
}

/// Adds `own` to `numbers`, or replaces them if they are empty.
fn add(numbers: &mut Vec<f64>, own: Vec<f64>) {
    if numbers.is_empty() {
        *numbers = own;
    } else {
        numbers.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    }
}
