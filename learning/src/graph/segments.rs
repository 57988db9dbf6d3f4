//! The positions at which a graph can be cut into segments of consecutive nodes, and the values that
//! cross a cut.
//!
//! Each segment runs on a rank of its own, with copies of the values that cross into it. Parameters,
//! buffers and frozen tensors do not cross: each segment has them itself. Rows do: the first segment
//! receives the rows, and a later one that reads an input of rows receives it as a value.
//!
//! A cut at position `c` is in front of node `c`. It is allowed if copies cannot differ from the shared
//! memory of an uncut run:
//!
//! 1. A value that crosses is not written in place at or behind the cut, through any view.
//! 2. Of the values that share a memory which any node writes, one crosses at most: autograd may
//!    rewrite the history of a view whose memory changes.
//! 3. Of the values that may be one tensor under two names, such as those of `contiguous` or an
//!    element of a list, one crosses at most: autograd adds their gradients in one order.
//! 4. The nodes that touch an input which is written, such as the running statistics of a norm, are all
//!    on one side. So each buffer belongs to the segment that changes it.
//!
//! Random draws do not join nodes: each node has a seed of its own ([`node_seed`](super::draws::node_seed)).

use std::collections::BTreeMap;

use super::operators::{self, Effect};
use super::value::{Graph, Node, NodeOutput, Operation, ValueId};

/// Operators that may return an argument itself.
const MAY_RETURN_ARGUMENT: [&str; 16] = [
    "contiguous",
    "to.dtype",
    "to.dtype_layout",
    "to.device",
    "to.other",
    "type_as",
    "einsum",
    "meshgrid",
    "meshgrid.indexing",
    "dropout",
    "alpha_dropout",
    "feature_dropout",
    "feature_alpha_dropout",
    "flatten.using_ints",
    "lift_fresh",
    "real",
];
/// Arguments of norms that are changed in a training.
const STATISTICS: [&str; 2] = ["running_mean", "running_var"];
/// The function of an element of a list.
pub(super) const ELEMENT: &str = "getitem";

/// A span of positions, both ends included.
#[derive(Debug, Clone, Copy)]
struct Span {
    first: usize,
    last: usize,
}

/// The values of a graph by position.
#[derive(Debug, Clone)]
pub(crate) struct Segments {
    /// The cuts that each value crosses; `None` for one that crosses none, or that each segment has.
    crossing: Vec<Option<Span>>,
    can_cut: Vec<bool>,
    /// The first and the last node that read or change each input of the graph.
    uses: Vec<Option<Span>>,
}

impl Segments {
    /// Analyses a checked graph. `is_row` states for each input whether it is of rows.
    pub(crate) fn new(graph: &Graph, is_row: &[bool]) -> Self {
        let nodes = graph.nodes.len();
        let ranges = value_ranges(graph, is_row);
        let crossing: Vec<Option<Span>> = ranges.iter().map(|range| range.cuts()).collect();
        let uses = ranges.iter().take(graph.inputs.len()).map(|range| range.uses).collect();
        let mut new = Self { crossing, can_cut: vec![true; nodes + 1], uses };
        new.forbid(graph, is_row);
        for end in [0, nodes] {
            new.can_cut[end] = false;
        }
        new
    }

    /// Whether a segment can begin at each position. It has one entry more than there are nodes; the
    /// first and the last are `false`.
    pub(crate) fn can_cut(&self) -> &[bool] {
        &self.can_cut
    }

    /// The values that cross a cut at a position, in the order of their numbers: computed in front of it,
    /// or rows, and read behind it. An output of the graph is read at its end.
    pub(crate) fn crossing(&self, position: usize) -> Vec<ValueId> {
        let spans = self.crossing.iter().enumerate();
        let crossing = spans.filter(|(_, span)| span.is_some_and(|span| span.has(position)));
        crossing.map(|(id, _)| ValueId(id as u32)).collect()
    }

    /// Each value that crosses cuts, with the first and the last position that it crosses.
    pub(crate) fn spans(&self) -> impl Iterator<Item = (ValueId, usize, usize)> {
        let spans = self.crossing.iter().enumerate();
        spans.filter_map(|(id, span)| span.map(|own| (ValueId(id as u32), own.first, own.last)))
    }

    /// The inputs of the graph, parameters among them, that nodes on both sides of a position use.
    pub(crate) fn shared_inputs(&self, position: usize) -> impl Iterator<Item = usize> {
        let uses = self.uses.iter().enumerate();
        let both = uses.filter(move |(_, span)| {
            span.is_some_and(|span| span.first < position && span.last >= position)
        });
        both.map(|(input, _)| input)
    }

    /// The first node that uses an input; `None` for one without a use.
    pub(crate) fn first_use(&self, input: usize) -> Option<usize> {
        self.uses.get(input).copied().flatten().map(|span| span.first)
    }

    /// The first and the last node that use an input; `None` for one without a use.
    pub(super) fn uses(&self, input: usize) -> Option<(usize, usize)> {
        self.uses.get(input).copied().flatten().map(|span| (span.first, span.last))
    }

    /// Clears the positions that the rules forbid.
    fn forbid(&mut self, graph: &Graph, is_row: &[bool]) {
        let mut memory = Classes::new(graph.values as usize);
        let mut names = Classes::new(graph.values as usize);
        for node in &graph.nodes {
            join(node, &mut memory, &mut names);
        }
        let mut writes: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, node) in graph.nodes.iter().enumerate() {
            for ValueId(id) in written(node) {
                writes.insert(memory.root(id as usize), at);
            }
        }
        let mut of_memory: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        let mut of_name: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (id, span) in self.crossing.clone().into_iter().enumerate() {
            let Some(span) = span else { continue };
            of_name.entry(names.root(id)).or_default().push(span);
            let class = memory.root(id);
            let Some(&last_write) = writes.get(&class) else { continue };
            of_memory.entry(class).or_default().push(span);
            self.clear(Span { last: span.last.min(last_write), ..span });
        }
        for spans in of_memory.into_values().chain(of_name.into_values()) {
            self.clear_overlaps(spans);
        }
        self.forbid_inside_inputs(graph, is_row, &mut memory, &writes);
    }

    /// Rule 4.
    fn forbid_inside_inputs(
        &mut self,
        graph: &Graph,
        is_row: &[bool],
        memory: &mut Classes,
        writes: &BTreeMap<usize, usize>,
    ) {
        let own = (0..graph.inputs.len()).filter(|&input| !is_row.get(input).is_some_and(|&is| is));
        let own = own.map(|input| memory.root(input)).filter(|class| writes.contains_key(class));
        let mut touched: BTreeMap<usize, Option<Span>> = own.map(|class| (class, None)).collect();
        for (at, node) in graph.nodes.iter().enumerate() {
            for ValueId(id) in read(node).chain(node.outputs.iter().flat_map(NodeOutput::values)) {
                if let Some(span) = touched.get_mut(&memory.root(id as usize)) {
                    let first = span.map_or(at, |span| span.first);
                    *span = Some(Span { first, last: at });
                }
            }
        }
        for span in touched.into_values().flatten() {
            self.clear(Span { first: span.first + 1, last: span.last });
        }
    }

    fn clear(&mut self, span: Span) {
        if span.first <= span.last
            && let Some(positions) = self.can_cut.get_mut(span.first..=span.last)
        {
            positions.fill(false);
        }
    }

    /// Clears the positions that two of the spans have.
    fn clear_overlaps(&mut self, mut spans: Vec<Span>) {
        spans.sort_by_key(|span| span.first);
        let mut furthest: Option<usize> = None;
        for span in spans {
            if let Some(end) = furthest {
                self.clear(Span { first: span.first, last: span.last.min(end) });
            }
            furthest = furthest.max(Some(span.last));
        }
    }
}

impl Span {
    fn has(self, position: usize) -> bool {
        (self.first..=self.last).contains(&position)
    }
}

/// The nodes that make and use a value.
#[derive(Debug, Clone, Copy)]
struct ValueRange {
    /// The first cut behind the place where it is made; `None` if each segment has it.
    made: Option<usize>,
    uses: Option<Span>,
}

impl ValueRange {
    fn cuts(&self) -> Option<Span> {
        let span = Span { first: self.made?, last: self.uses?.last };
        (span.first <= span.last).then_some(span)
    }

    fn used(&mut self, at: usize) {
        let first = self.uses.map_or(at, |span| span.first);
        self.uses = Some(Span { first, last: at });
    }
}

fn value_ranges(graph: &Graph, is_row: &[bool]) -> Vec<ValueRange> {
    let mut ranges = vec![ValueRange { made: None, uses: None }; graph.values as usize];
    for (input, range) in ranges.iter_mut().take(graph.inputs.len()).enumerate() {
        range.made = is_row.get(input).is_some_and(|&is| is).then_some(1);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        for ValueId(id) in read(node) {
            ranges[id as usize].used(at);
        }
        for ValueId(id) in node.outputs.iter().flat_map(NodeOutput::values) {
            ranges[id as usize].made = Some(at + 1);
        }
    }
    if let Some(ValueId(id)) = output(graph) {
        ranges[id as usize].used(graph.nodes.len());
    }
    ranges
}

/// The first output of a graph that is not a number: the one that a loss reads.
pub(super) fn output(graph: &Graph) -> Option<ValueId> {
    let is_number = |id: &ValueId| {
        let makes = |node: &&Node| node.outputs.iter().any(|output| output.values().contains(id));
        graph.nodes.iter().find(makes).is_some_and(|node| match &node.operation {
            Operation::Size(name) => name != ELEMENT,
            Operation::Aten(name) => operators::SIZE_OPERATORS.contains(&name.as_str()),
        })
    };
    let values = graph.outputs.iter().filter_map(|output| match output {
        super::value::Argument::Value(id) => Some(*id),
        _ => None,
    });
    values.into_iter().find(|id| !is_number(id))
}

fn read(node: &Node) -> impl Iterator<Item = ValueId> {
    node.arguments.iter().flat_map(|(_, argument)| argument.values())
}

fn effect(node: &Node) -> Option<Effect> {
    match &node.operation {
        Operation::Aten(name) => operators::find(name).map(|operator| operator.effect),
        Operation::Size(_) => None,
    }
}

/// The values that a node changes.
pub(super) fn written(node: &Node) -> Vec<ValueId> {
    let statistics = node.arguments.iter().filter(|(name, _)| STATISTICS.contains(&name.as_str()));
    let mut written: Vec<ValueId> =
        statistics.flat_map(|(_, argument)| argument.values()).collect();
    if matches!(effect(node), Some(Effect::InPlace | Effect::RandomInPlace)) {
        written.extend(node.arguments.first().into_iter().flat_map(|(_, first)| first.values()));
    }
    written
}

/// Joins the values of a node that may share a memory, or be one tensor.
pub(super) fn join(node: &Node, memory: &mut Classes, names: &mut Classes) {
    let may_be_argument = match &node.operation {
        Operation::Size(name) => name == ELEMENT,
        Operation::Aten(name) => MAY_RETURN_ARGUMENT.contains(&name.as_str()),
    };
    let is_in_place = matches!(effect(node), Some(Effect::InPlace | Effect::RandomInPlace));
    let is_same = may_be_argument || is_in_place;
    let is_shared = is_same || effect(node) == Some(Effect::View);
    let count = if may_be_argument { usize::MAX } else { 1 };
    let arguments = node.arguments.iter().take(count).flat_map(|(_, own)| own.values());
    let arguments: Vec<ValueId> = arguments.collect();
    for ValueId(output) in node.outputs.iter().flat_map(NodeOutput::values) {
        for &ValueId(argument) in &arguments {
            if is_shared {
                memory.join(argument as usize, output as usize);
            }
            if is_same {
                names.join(argument as usize, output as usize);
            }
        }
    }
}

/// Disjoint classes of values.
pub(super) struct Classes(Vec<usize>);

impl Classes {
    pub(super) fn new(values: usize) -> Self {
        Self((0..values).collect())
    }

    /// The least value of its class.
    pub(super) fn root(&mut self, mut value: usize) -> usize {
        while self.0[value] != value {
            self.0[value] = self.0[self.0[value]];
            value = self.0[value];
        }
        value
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
#[path = "segments_tests.rs"]
mod tests;
