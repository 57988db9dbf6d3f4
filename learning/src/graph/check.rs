//! The rules of a graph that comes as bytes; an import keeps them by construction.

use super::operators;
use super::value::{Argument, Graph, Node, NodeOutput, Operation, ValueId};
use super::{DIMENSIONS_MAX, GraphError, LIST_MAX, NAME_BYTES_MAX, NODES_MAX, VALUES_MAX};
use crate::graph::GraphErrorKind::{Operator, TooLarge};

impl Graph {
    /// Checks that all operators are in the table, that each value is defined once and before its
    /// use, and that nothing exceeds its limit.
    ///
    /// # Errors
    /// [`GraphError`].
    pub fn check(&self) -> Result<(), GraphError> {
        let too_large = |what: &str| Err(GraphError::new(TooLarge, format!("too many {what}")));
        if self.nodes.len() > NODES_MAX {
            return too_large("nodes");
        }
        if self.values as usize > VALUES_MAX || self.inputs.len() > self.values as usize {
            return too_large("values");
        }
        for input in &self.inputs {
            let name = input.role.name();
            let is_short = name.is_none_or(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
            if !is_short || input.tensor.shape.len() > DIMENSIONS_MAX {
                return too_large("bytes of a name, or dimensions of an input");
            }
        }
        let mut names: Vec<&str> =
            self.inputs.iter().filter_map(|input| input.role.name()).collect();
        names.sort_unstable();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(GraphError::malformed(format!("two inputs have the name {}", pair[0])));
        }
        if self.outputs.len() > LIST_MAX {
            return too_large("outputs");
        }
        let mut defined = vec![false; self.values as usize];
        defined.iter_mut().take(self.inputs.len()).for_each(|defined| *defined = true);
        for node in &self.nodes {
            node.check(&mut defined)?;
        }
        self.outputs.iter().try_for_each(|output| check_argument(output, &defined))
    }
}

/// Most arguments of a node: no operator has as many.
const ARGUMENTS_MAX: usize = 64;

impl Node {
    fn check(&self, defined: &mut [bool]) -> Result<(), GraphError> {
        let (name, is_known) = match &self.operation {
            Operation::Aten(name) => {
                let is_size = operators::SIZE_OPERATORS.contains(&name.as_str());
                (name, is_size || operators::find(name).is_some())
            }
            Operation::Size(name) => (name, operators::SIZE_FUNCTIONS.contains(&name.as_str())),
        };
        if !is_known {
            let name: String = name.chars().take(NAME_BYTES_MAX).collect();
            return Err(GraphError::new(Operator, format!("the operator {name} is not supported")));
        }
        if self.arguments.len() > ARGUMENTS_MAX || self.outputs.len() > LIST_MAX {
            let why = "a node has too many arguments or results";
            return Err(GraphError::new(TooLarge, why));
        }
        for (name, argument) in &self.arguments {
            if name.len() > NAME_BYTES_MAX {
                return Err(GraphError::new(TooLarge, "the name of an argument is too long"));
            }
            if name == "device" && matches!(argument, Argument::Text(_)) {
                return Err(GraphError::malformed("a graph names no device"));
            }
            check_argument(argument, defined)?;
        }
        for ValueId(id) in self.outputs.iter().flat_map(NodeOutput::values) {
            match defined.get_mut(id as usize) {
                Some(defined) if !*defined => *defined = true,
                _ => {
                    return Err(GraphError::malformed(format!(
                        "value {id} is defined twice, or beyond the number of values"
                    )));
                }
            }
        }
        Ok(())
    }
}

fn check_argument(argument: &Argument, defined: &[bool]) -> Result<(), GraphError> {
    let length = match argument {
        Argument::Values(all) => all.len(),
        Argument::Ints(all) => all.len(),
        Argument::Floats(all) => all.len(),
        Argument::Bools(all) => all.len(),
        Argument::Text(text) => text.len(),
        _ => 0,
    };
    if length > LIST_MAX {
        return Err(GraphError::new(TooLarge, format!("a list of more than {LIST_MAX} elements")));
    }
    let missing = argument
        .values()
        .into_iter()
        .find(|ValueId(id)| !defined.get(*id as usize).copied().unwrap_or(false));
    match missing {
        None => Ok(()),
        Some(ValueId(id)) => {
            Err(GraphError::malformed(format!("value {id} is used before it is defined")))
        }
    }
}
