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

/// Two observers of one run; the first one is called first.
pub(crate) struct BothObservers<'o>(
    pub(crate) &'o mut dyn RunObserver,
    pub(crate) &'o mut dyn RunObserver,
);

impl RunObserver for BothObservers<'_> {
    fn begin(&mut self, inputs: &[Tensor]) -> Result<(), TchError> {
        self.0.begin(inputs)?;
        self.1.begin(inputs)
    }

    fn before_node(&mut self, node: usize) -> Result<(), TchError> {
        self.0.before_node(node)?;
        self.1.before_node(node)
    }

    fn after_node(&mut self, node: usize, values: RunValues<'_>) -> Result<(), TchError> {
        self.0.after_node(node, values)?;
        self.1.after_node(node, values)
    }

    fn end_forward(&mut self) -> Result<(), TchError> {
        self.0.end_forward()?;
        self.1.end_forward()
    }
}
