//! Runs a segment of a graph: consecutive nodes, from the values that cross into it.

use std::ops::Range;

use super::interpreter::{Interpreter, InterpreterError, Slot, graph_error};
use super::observer::RunObserver;
use super::value::{RunMode, ValueId};

impl Interpreter<'_> {
    /// Runs the nodes of a segment in a training; returns the wanted values, which are given, computed, or
    /// both. Running statistics among the given values are changed in place.
    ///
    /// # Errors
    /// [`InterpreterError`] if an operator fails, if a value has no place in the graph, or if a wanted
    /// one is missing.
    pub(crate) fn run_segment(
        &self,
        nodes: Range<usize>,
        given: impl IntoIterator<Item = (ValueId, Slot)>,
        wanted: &[ValueId],
        observer: &mut dyn RunObserver,
    ) -> Result<Vec<Slot>, InterpreterError> {
        let (first, last) = (nodes.start, nodes.end.saturating_sub(1));
        if nodes.end > self.graph.nodes.len() {
            return Err(graph_error(last, "the graph has fewer nodes"));
        }
        let mut values: Vec<Slot> = Vec::new();
        values.resize_with(self.graph.values as usize, || Slot::Empty);
        for (ValueId(id), slot) in given {
            let place = values.get_mut(id as usize);
            *place.ok_or_else(|| graph_error(first, "a value has no place"))? = slot;
        }
        self.run_nodes(nodes, &mut values, RunMode::Training, observer)?;
        let found = wanted.iter().map(|&ValueId(id)| match values.get_mut(id as usize) {
            Some(slot @ (Slot::Tensor(_) | Slot::Tensors(_))) => {
                Ok(std::mem::replace(slot, Slot::Empty))
            }
            Some(Slot::Int(integer)) => Ok(Slot::Int(*integer)),
            Some(Slot::Float(number)) => Ok(Slot::Float(*number)),
            Some(Slot::Bool(holds)) => Ok(Slot::Bool(*holds)),
            _ => Err(graph_error(last, format!("value {id} is missing behind a segment"))),
        });
        found.collect()
    }
}
