//! The forms of the values that a stage of the rows' owner receives. Another process may send anything:
//! each value must have the type and the sizes that the graph gives it for the rows of the micro-batch,
//! and a tensor's memory the size of one of the graph's tensors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use tch::Tensor;

use super::super::net::GraphNet;
use super::fault;
use crate::engine::BackendError;
use crate::graph::shapes::Number;
use crate::graph::{Shaped, TensorShape, ValueId, infer};
use crate::pipeline::{MESSAGE_BYTES_MAX, PipelineTensor, PipelineValue};

/// Bytes of a message beside its elements.
const HEAD_BYTES: u64 = 1 << 16;
/// The memory of a message's tensor relative to the largest tensor of the graph, at most: gradients may
/// be views of larger ones.
const SPAN_FACTOR_MAX: u64 = 4;

/// The forms of some values of a graph, by the rows of a micro-batch.
#[derive(Debug, Default)]
pub(super) struct ValueForms {
    by_rows: BTreeMap<usize, GraphForms>,
}

/// The forms of a graph's values for a number of rows.
#[derive(Debug)]
pub(super) struct GraphForms {
    values: Vec<Shaped>,
    /// Elements of the largest tensor.
    largest: u64,
}

impl ValueForms {
    /// The forms for a number of rows.
    ///
    /// # Errors
    /// [`BackendError`] if the graph has none for it.
    pub(super) fn of_rows(
        &mut self,
        net: &GraphNet<'_>,
        rows: usize,
    ) -> Result<&GraphForms, BackendError> {
        let entry = match self.by_rows.entry(rows) {
            Entry::Occupied(known) => return Ok(known.into_mut()),
            Entry::Vacant(entry) => entry,
        };
        let (_, values) = infer(&net.program.graph, &[rows as u64], u64::MAX)
            .map_err(|error| fault(error.to_string()))?;
        let elements = |value: &Shaped| match value {
            Shaped::Tensor(shape) => shape.elements(),
            Shaped::List(shapes) => shapes.iter().map(TensorShape::elements).max().unwrap_or(0),
            Shaped::Number(_) | Shaped::Unknown => 0,
        };
        let largest = values.iter().map(elements).max().unwrap_or(0);
        Ok(entry.insert(GraphForms { values, largest }))
    }
}

impl GraphForms {
    /// Bytes of a message with these values, at most. Overlapping elements may be sent more than once.
    pub(super) fn bytes_max(&self, ids: &[ValueId]) -> u64 {
        let bytes = ids.iter().map(|id| match &self.values[id.0 as usize] {
            Shaped::Tensor(shape) => shape.bytes(),
            Shaped::List(shapes) => shapes.iter().map(TensorShape::bytes).sum(),
            Shaped::Number(_) | Shaped::Unknown => 0,
        });
        let bytes = bytes.fold(0_u64, u64::saturating_add);
        bytes.saturating_mul(SPAN_FACTOR_MAX).saturating_add(HEAD_BYTES).min(MESSAGE_BYTES_MAX)
    }

    /// Checks received values.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check(&self, ids: &[ValueId], given: &[PipelineValue]) -> Result<(), String> {
        if ids.len() != given.len() {
            return Err(format!("{} values in place of {}", given.len(), ids.len()));
        }
        for (id, value) in ids.iter().zip(given) {
            let is_equal = match (&self.values[id.0 as usize], value) {
                (Shaped::Tensor(shape), PipelineValue::Tensor(tensor)) => {
                    self.check_tensor(tensor, shape)?;
                    true
                }
                (Shaped::List(shapes), PipelineValue::Tensors(tensors)) => {
                    for (tensor, shape) in tensors.iter().zip(shapes) {
                        self.check_tensor(tensor, shape)?;
                    }
                    tensors.len() == shapes.len()
                }
                (Shaped::Number(Number::Int(wanted)), PipelineValue::Int(found)) => wanted == found,
                (Shaped::Number(Number::Bool(wanted)), PipelineValue::Bool(found)) => {
                    wanted == found
                }
                (Shaped::Number(Number::Float(wanted)), PipelineValue::Float(found)) => {
                    wanted.to_bits() == found.to_bits()
                }
                _ => false,
            };
            if !is_equal {
                return Err(format!(
                    "another kind of value, or another number, for value {}",
                    id.0
                ));
            }
        }
        Ok(())
    }

    /// Checks the gradients of tensors.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn check_gradients(
        &self,
        tensors: &[&Tensor],
        given: &[PipelineValue],
    ) -> Result<(), String> {
        if tensors.len() != given.len() {
            return Err(format!("{} gradients in place of {}", given.len(), tensors.len()));
        }
        for (tensor, gradient) in tensors.iter().zip(given) {
            match gradient {
                PipelineValue::Absent => {}
                PipelineValue::Tensor(gradient) => {
                    let sizes = tensor.size().into_iter().map(i64::cast_unsigned).collect();
                    let data_type = gradient.form.data_type;
                    if data_type.kind() != tensor.kind() {
                        return Err(format!("a gradient of the type {data_type}"));
                    }
                    if !tensor.requires_grad() {
                        return Err("a gradient of a value that has none".to_owned());
                    }
                    self.check_tensor(gradient, &TensorShape { data_type, sizes })?;
                }
                _ => return Err("a gradient that is not a tensor".to_owned()),
            }
        }
        Ok(())
    }

    fn check_tensor(&self, found: &PipelineTensor, wanted: &TensorShape) -> Result<(), String> {
        let form = &found.form;
        if (form.data_type, &form.sizes) != (wanted.data_type, &wanted.sizes) {
            return Err(format!(
                "a tensor of {} and the sizes {:?} in place of {} and {:?}",
                form.data_type, form.sizes, wanted.data_type, wanted.sizes
            ));
        }
        let span = form.span().map_err(|error| error.to_string())?;
        if span > self.largest.saturating_mul(SPAN_FACTOR_MAX) {
            return Err(format!("a tensor with {span} elements of memory"));
        }
        Ok(())
    }
}
