//! Observers of a graph's run.

use tch::{TchError, Tensor};

use super::interpreter::Slot;
use super::value::ValueId;

/// The values of a run after a node.
#[derive(Clone, Copy)]
pub(crate) struct RunValues<'a>(&'a [Slot]);

impl<'a> RunValues<'a> {
    pub(super) fn new(values: &'a [Slot]) -> Self {
        Self(values)
    }

    /// The tensors that are still needed, with the values that they belong to.
    pub(crate) fn tensors(self) -> impl Iterator<Item = (ValueId, &'a Tensor)> {
        let own = |(id, slot): (usize, &'a Slot)| {
            let tensors = match slot {
                Slot::Tensor(tensor) => std::slice::from_ref(tensor),
                Slot::Tensors(tensors) => tensors.as_slice(),
                _ => &[],
            };
            tensors.iter().map(move |tensor| (ValueId(id as u32), tensor))
        };
        self.0.iter().enumerate().flat_map(own)
    }
}

/// Watches a run.
pub(crate) trait RunObserver {
    /// A run begins on these inputs of the graph.
    fn begin(&mut self, _inputs: &[Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    /// A node begins.
    fn before_node(&mut self, _node: usize) -> Result<(), TchError> {
        Ok(())
    }

    /// A node has ended, and the values that it uses last are dropped.
    fn after_node(&mut self, _node: usize, _values: RunValues<'_>) -> Result<(), TchError> {
        Ok(())
    }

    /// The loss is computed; the backward pass begins.
    fn end_forward(&mut self) -> Result<(), TchError> {
        Ok(())
    }
}

/// Watches nothing.
pub(crate) struct NotObserved;

impl RunObserver for NotObserved {}
