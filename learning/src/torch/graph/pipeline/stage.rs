//! A stage of a pipeline: the forward and the backward pass of its nodes over a micro-batch.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tch::{Kind, Tensor};

use super::super::micro_batches::MicroBatch;
use super::super::net::{GraphFailure, GraphNet};
use super::fault;
use super::forms::ValueForms;
use super::travel::{from_message, pack, to_message, unpack};
use crate::engine::BackendError;
use crate::graph::{EndsError, OwnerEnds, Place, RunMode, SeededDraws, Segments, Slot, ValueId};
use crate::pipeline::{MESSAGE_BYTES_MAX, MessageKind, PartPlacement, PipelineValue};
use crate::torch::backward::{Root, backward};
use crate::training::Precision;

/// The nodes of all stages of a graph, and the values between them.
#[derive(Debug)]
pub(in crate::torch) struct StagePlan {
    ranges: Vec<Range<usize>>,
    segments: Segments,
    placement: PartPlacement,
}

impl StagePlan {
    /// For stages with these nodes.
    ///
    /// # Errors
    /// [`BackendError`] if products have 16 bits, if the ranges are not all nodes in order, or if the
    /// graph cannot be cut between them, such that the ends stay with the owner of the rows if they have to.
    pub(in crate::torch) fn new(
        net: &GraphNet<'_>,
        ranges: Vec<Range<usize>>,
        placement: PartPlacement,
    ) -> Result<Self, BackendError> {
        if net.precision != Precision::F32 {
            return Err(fault("a pipeline trains with products of 32 bits: use --precision f32"));
        }
        let segments = segments(net);
        let mut next = 0;
        for range in &ranges {
            let begins = range.start == 0 || segments.can_cut().get(range.start) == Some(&true);
            if range.start != next || range.is_empty() || !begins {
                return Err(fault(format!(
                    "the graph cannot be cut in front of node {}",
                    range.start
                )));
            }
            next = range.end;
        }
        if next != net.program.graph.nodes.len() {
            return Err(fault("the stages of a pipeline have other nodes than the graph"));
        }
        if placement == PartPlacement::EndsTogether {
            let checked = owner_ends(net).check(&ranges);
            checked.map_err(|error: EndsError| fault(error.to_string()))?;
        }
        Ok(Self { ranges, segments, placement })
    }

    /// Whether other processes than the first read each travelling tensor, if the first one has both ends;
    /// `None` if each process has a part and all tensors.
    pub(in crate::torch) fn shared(&self, net: &GraphNet<'_>) -> Option<Vec<bool>> {
        let (PartPlacement::EndsTogether, [first, .., last]) = (self.placement, &*self.ranges)
        else {
            return None;
        };
        let used = used_inputs(net, &(first.end..last.start));
        Some(travelling(net).iter().map(|own| used.contains(&own.input)).collect())
    }

    /// The processes of the stages.
    pub(in crate::torch) fn placement(&self) -> PartPlacement {
        self.placement
    }

    /// The number of stages.
    pub(in crate::torch) fn parts(&self) -> u32 {
        self.ranges.len() as u32
    }
}

/// The positions at which the graph can be cut.
pub(in crate::torch) fn segments(net: &GraphNet<'_>) -> Segments {
    let places = net.program.places.iter();
    let is_row: Vec<bool> = places.map(|place| matches!(place, Place::Row { .. })).collect();
    Segments::new(&net.program.graph, &is_row)
}

/// The ends of the graph that can stay with the owner of the rows.
pub(in crate::torch) fn owner_ends(net: &GraphNet<'_>) -> OwnerEnds {
    let of_places = |is: fn(&Place) -> bool| net.program.places.iter().map(is).collect();
    let is_row: Vec<bool> = of_places(|place| matches!(place, Place::Row { .. }));
    let is_parameter: Vec<bool> =
        of_places(|place| matches!(place, Place::Travels { is_buffer: false, .. }));
    OwnerEnds::new(&net.program.graph, &segments(net), &is_row, &is_parameter)
}

/// A travelling tensor that a stage uses.
#[derive(Debug, Clone, Copy)]
struct StageInput {
    /// The number of the graph's input.
    input: usize,
    /// Its place among the travelling tensors.
    travelling: usize,
    is_buffer: bool,
}

/// The tensors of a micro-batch between its forward and its backward pass.
struct InFlight {
    received: Vec<Slot>,
    leaves: Vec<Tensor>,
    sent: Vec<Slot>,
    /// The scaled loss, at the last stage.
    total: Option<Tensor>,
    loss: f64,
}

/// A stage with the parameters of a step.
pub(in crate::torch) struct Stage<'n> {
    net: &'n GraphNet<'n>,
    nodes: Range<usize>,
    is_last: bool,
    /// Whether the process of this stage has the first and the last one.
    is_end: bool,
    /// The parameters and buffers, as views of an aligned vector. They are not changed.
    views: Vec<Tensor>,
    received: Vec<ValueId>,
    sent: Vec<ValueId>,
    inputs: Vec<StageInput>,
    /// Inputs of the graph that do not travel.
    fixed: Vec<usize>,
    /// Parameters that an earlier stage uses too, and those of a later one, by their place.
    returned: Vec<usize>,
    awaited: Vec<usize>,
    /// The travelling tensors whose gradients, or new values, this stage writes.
    owned: Vec<usize>,
    in_flight: BTreeMap<u32, InFlight>,
    /// Gradients of the parameters of both ends, by micro-batch: those that the last stage hands to the
    /// first one.
    handed: BTreeMap<u32, Vec<Option<Tensor>>>,
    forms: ValueForms,
}

impl<'n> Stage<'n> {
    /// Stage `part` of a plan, on parameters as views of an aligned vector.
    ///
    /// # Errors
    /// [`BackendError`] if the plan has no such stage.
    pub(in crate::torch) fn new(
        net: &'n GraphNet<'n>,
        plan: &StagePlan,
        part: u32,
        views: Vec<Tensor>,
    ) -> Result<Self, BackendError> {
        let nodes = plan.ranges.get(part as usize).cloned();
        let nodes = nodes.ok_or_else(|| fault("a pipeline has fewer stages"))?;
        let (is_first, is_last) = (part == 0, part + 1 == plan.parts());
        let segments = &plan.segments;
        let (received, sent) = (segments.crossing(nodes.start), segments.crossing(nodes.end));
        let travelling = travelling(net);
        let parameters: BTreeMap<usize, usize> = travelling
            .iter()
            .filter(|own| !own.is_buffer)
            .map(|own| (own.input, own.travelling))
            .collect();
        let is_end = plan.placement == PartPlacement::EndsTogether && (is_first || is_last);
        let of_others = plan.shared(net);
        // The parameters of both ends do not travel through the stages between them.
        let is_on_the_way =
            |place: &usize| of_others.as_ref().is_none_or(|of_others| of_others[*place] != is_end);
        let shared = |position: usize| -> Vec<usize> {
            let inputs = segments.shared_inputs(position);
            let places = inputs.filter_map(|input| parameters.get(&input).copied());
            places.filter(is_on_the_way).collect()
        };
        let returned = if is_first { Vec::new() } else { shared(nodes.start) };
        let awaited = if is_last { Vec::new() } else { shared(nodes.end) };
        let used = used_inputs(net, &nodes);
        let is_owned = |own: &&StageInput| match segments.first_use(own.input) {
            Some(first) => nodes.contains(&first),
            None => is_first,
        };
        let owned = travelling.iter().filter(is_owned).map(|own| own.travelling).collect();
        let is_here = |own: &StageInput| {
            used.contains(&own.input)
                || returned.contains(&own.travelling)
                || awaited.contains(&own.travelling)
        };
        let rows: BTreeSet<usize> = sent.iter().map(|id| id.0 as usize).collect();
        let places = net.program.places.iter().enumerate();
        let fixed = places.filter(|(input, place)| match place {
            Place::Travels { .. } => false,
            Place::Frozen(_) => used.contains(input),
            Place::Row { .. } => is_first && (used.contains(input) || rows.contains(input)),
        });
        let fixed = fixed.map(|(input, _)| input).collect();
        let inputs = travelling.iter().copied().filter(is_here).collect();
        let received = if is_first { Vec::new() } else { received };
        let (in_flight, handed) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            net,
            nodes,
            is_last,
            is_end,
            views,
            received,
            sent,
            inputs,
            fixed,
            returned,
            awaited,
            owned,
            in_flight,
            handed,
            forms: ValueForms::default(),
        })
    }

    /// The travelling tensors whose gradients this stage writes, by their place.
    pub(super) fn owned(&self) -> &[usize] {
        &self.owned
    }

    pub(super) fn is_last(&self) -> bool {
        self.is_last
    }

    /// Bytes of a message for a micro-batch, at most.
    ///
    /// # Errors
    /// [`BackendError`] if the graph has no forms for its rows.
    pub(super) fn bytes_max(
        &mut self,
        batch: &MicroBatch,
        kind: MessageKind,
    ) -> Result<u64, BackendError> {
        if !self.is_end {
            return Ok(MESSAGE_BYTES_MAX);
        }
        let forms = self.forms.of_rows(self.net, batch.rows.len())?;
        Ok(forms.bytes_max(if kind == MessageKind::Activation {
            &self.received
        } else {
            &self.sent
        }))
    }

    /// Checks the values of a message against the graph, at the process with both ends.
    ///
    /// # Errors
    /// [`BackendError`] if the graph has no forms for its rows; the inner one is a difference.
    pub(super) fn check_message(
        &mut self,
        batch: &MicroBatch,
        kind: MessageKind,
        given: &[PipelineValue],
    ) -> Result<Result<(), String>, BackendError> {
        if !self.is_end {
            return Ok(Ok(()));
        }
        let forms = self.forms.of_rows(self.net, batch.rows.len())?;
        let own = self.in_flight.get(&batch.number);
        Ok(match (kind, own) {
            (MessageKind::Activation, _) => forms.check(&self.received, given),
            (MessageKind::Gradient, Some(own)) => {
                let sent: Vec<&Tensor> = own.sent.iter().flat_map(tensors_of).collect();
                forms.check_gradients(&sent, given)
            }
            (MessageKind::Gradient, None) => Err("a gradient in front of the values".to_owned()),
        })
    }

    /// The gradients of the parameters of both ends, which the last stage hands to the first one.
    pub(super) fn take_handed(&mut self, micro_batch: u32) -> Option<Vec<Option<Tensor>>> {
        self.handed.remove(&micro_batch)
    }

    /// Receives these gradients.
    pub(super) fn hand(&mut self, micro_batch: u32, gradients: Vec<Option<Tensor>>) {
        self.handed.insert(micro_batch, gradients);
    }

    /// Runs the nodes on a micro-batch, from the values that cross into the stage. Returns those that cross
    /// out of it; none at the last stage, which computes the losses.
    ///
    /// # Errors
    /// [`BackendError`] if the values are not those of the cut, or if an operator fails.
    pub(in crate::torch) fn forward(
        &mut self,
        batch: &MicroBatch,
        given: &[PipelineValue],
    ) -> Result<Vec<PipelineValue>, BackendError> {
        if given.len() != self.received.len() {
            return Err(fault("a stage has received other values than those of its cut"));
        }
        let net = self.net;
        let received = given.iter().map(|value| from_message(value, net.device));
        let received = received.collect::<Result<Vec<Slot>, _>>()?;
        let leaves = self.inputs.iter().map(|own| {
            let view = &self.views[own.travelling];
            match own.is_buffer {
                true => view.f_detach_copy(),
                false => view.f_detach()?.f_set_requires_grad(true),
            }
        });
        let leaves = leaves.collect::<Result<Vec<Tensor>, _>>()?;
        let mut values: Vec<(ValueId, Slot)> = Vec::new();
        for (&id, slot) in self.received.iter().zip(&received) {
            values.push((id, shared(slot)));
        }
        for (own, leaf) in self.inputs.iter().zip(&leaves) {
            values.push((ValueId(own.input as u32), Slot::Tensor(leaf.shallow_clone())));
        }
        for &input in &self.fixed {
            let tensor = net.fixed_input(input, &batch.rows, RunMode::Training)?;
            let tensor = tensor.ok_or_else(|| fault("an input of the graph is missing"))?;
            values.push((ValueId(input as u32), Slot::Tensor(tensor)));
        }
        let mut draws = SeededDraws { worker_seed: batch.worker_seed, draws: &net.draws };
        let found = net.interpreter.run_segment(self.nodes.clone(), values, &self.sent, &mut draws);
        let sent = found.map_err(GraphFailure::from)?;
        let mut own = InFlight { received, leaves, sent, total: None, loss: 0.0 };
        let mut message = Vec::new();
        if self.is_last {
            let Some(Slot::Tensor(output)) = own.sent.first() else {
                return Err(fault("the first output of the graph is not a tensor"));
            };
            let losses = net.losses_of_output(output, &batch.rows, RunMode::Training)?;
            own.total = Some(losses.f_sum(None::<Kind>)?.f_mul_scalar(batch.share)?);
            own.loss = f64::try_from(losses.f_detach()?.f_sum(Kind::Double)?)?;
            own.sent.clear();
        } else {
            message = own.sent.iter().map(to_message).collect::<Result<_, _>>()?;
        }
        self.in_flight.insert(batch.number, own);
        Ok(message)
    }

    /// Runs the backward pass of a micro-batch, from the gradients of the values that crossed out of the
    /// stage and of the parameters that later stages use. Writes the own gradients to `slots`, one for each
    /// travelling tensor. Returns the gradients for the stage before, and the summed loss of the rows,
    /// which is 0 but at the last stage.
    ///
    /// # Errors
    /// [`BackendError`] without a forward pass of the micro-batch, if the gradients are not those of the
    /// cut, or if an operator fails.
    pub(in crate::torch) fn backward(
        &mut self,
        batch: &MicroBatch,
        given: &[PipelineValue],
        slots: &[Tensor],
    ) -> Result<(Vec<PipelineValue>, f64), BackendError> {
        let own = self.in_flight.remove(&batch.number);
        let own = own.ok_or_else(|| fault("a micro-batch has no forward pass"))?;
        let handed = if self.is_last { None } else { self.handed.remove(&batch.number) };
        let found = self.gradients(&own, given, handed.unwrap_or_default())?;
        let places = self.inputs.iter().zip(&own.leaves);
        let mut of_place: BTreeMap<usize, (Option<&Tensor>, &Tensor, bool)> = BTreeMap::new();
        for ((input, leaf), gradient) in places.zip(&found.of_leaves) {
            of_place.insert(input.travelling, (gradient.as_ref(), leaf, input.is_buffer));
        }
        for &place in &self.owned {
            let mut slot = slots[place].shallow_clone();
            match of_place.get(&place) {
                Some((Some(gradient), _, false)) => slot.f_copy_(gradient)?,
                Some((_, leaf, true)) => slot.f_copy_(&leaf.f_mul_scalar(batch.weight)?)?,
                None if self.net.is_buffer(place) => {
                    slot.f_copy_(&self.views[place].f_mul_scalar(batch.weight)?)?;
                }
                _ => {
                    let _ = slot.f_zero_()?;
                }
            }
        }
        let of_parameters =
            self.returned.iter().map(|place| of_place.get(place).and_then(|own| own.0));
        let of_received = found.of_received.iter().map(Option::as_ref);
        let message: Vec<Option<&Tensor>> = match self.is_end {
            true => {
                if self.is_last {
                    let handed = of_parameters.map(|own| own.map(Tensor::shallow_clone)).collect();
                    self.handed.insert(batch.number, handed);
                }
                of_received.collect()
            }
            false => of_received.chain(of_parameters).collect(),
        };
        let message = message.into_iter().map(|gradient| match gradient {
            Some(gradient) => Ok(PipelineValue::Tensor(pack(gradient)?)),
            None => Ok(PipelineValue::Absent),
        });
        Ok((message.collect::<Result<_, BackendError>>()?, own.loss))
    }

    /// The gradients of the received tensors and of the leaves.
    fn gradients(
        &self,
        own: &InFlight,
        given: &[PipelineValue],
        handed: Vec<Option<Tensor>>,
    ) -> Result<StageGradients, BackendError> {
        let (mut tensors, mut seeds): (Vec<&Tensor>, Vec<Tensor>) = (Vec::new(), Vec::new());
        if let Some(total) = own.total.as_ref().filter(|total| total.requires_grad()) {
            tensors.push(total);
            seeds.push(total.f_detach()?.f_ones_like()?);
        }
        let leaf_of = |place: &usize| {
            let at = self.inputs.iter().position(|input| input.travelling == *place);
            at.and_then(|at| own.leaves.get(at))
        };
        let awaited: Vec<&Tensor> = self.awaited.iter().filter_map(leaf_of).collect();
        let of_message = if self.is_end { &[][..] } else { awaited.as_slice() };
        let later = own.sent.iter().flat_map(tensors_of).chain(of_message.iter().copied());
        let later: Vec<&Tensor> = later.collect();
        if later.len() != given.len() || (self.is_end && awaited.len() != handed.len()) {
            return Err(fault("a stage has received other gradients than those of its cut"));
        }
        for (tensor, gradient) in later.into_iter().zip(given) {
            match gradient {
                PipelineValue::Absent => {}
                PipelineValue::Tensor(gradient) => {
                    tensors.push(tensor);
                    seeds.push(unpack(gradient, self.net.device)?);
                }
                _ => return Err(fault("a gradient of a pipeline is not a tensor")),
            }
        }
        for (tensor, gradient) in awaited.into_iter().zip(handed) {
            if let Some(gradient) = gradient {
                tensors.push(tensor);
                seeds.push(gradient);
            }
        }
        let roots = tensors.into_iter().zip(&seeds);
        let roots: Vec<Root<'_>> =
            roots.map(|(tensor, gradient)| Root { tensor, gradient }).collect();
        let received: Vec<&Tensor> = own.received.iter().flat_map(tensors_of).collect();
        let all = received.iter().copied().chain(&own.leaves);
        let with: Vec<&Tensor> = all.clone().filter(|tensor| tensor.requires_grad()).collect();
        let mut found = backward(&roots, &with)?.into_iter();
        let mut each =
            all.map(|tensor| if tensor.requires_grad() { found.next().flatten() } else { None });
        let of_received = each.by_ref().take(received.len()).collect();
        Ok(StageGradients { of_received, of_leaves: each.collect() })
    }
}

/// The gradients of a micro-batch at a stage; `None` for a tensor without one.
struct StageGradients {
    of_received: Vec<Option<Tensor>>,
    of_leaves: Vec<Option<Tensor>>,
}

fn tensors_of(slot: &Slot) -> impl Iterator<Item = &Tensor> {
    let tensors = match slot {
        Slot::Tensor(tensor) => std::slice::from_ref(tensor),
        Slot::Tensors(tensors) => tensors.as_slice(),
        _ => &[],
    };
    tensors.iter()
}

/// The same value, with the same tensors.
fn shared(slot: &Slot) -> Slot {
    match slot {
        Slot::Empty => Slot::Empty,
        Slot::Tensor(tensor) => Slot::Tensor(tensor.shallow_clone()),
        Slot::Tensors(tensors) => {
            Slot::Tensors(tensors.iter().map(Tensor::shallow_clone).collect())
        }
        Slot::Int(integer) => Slot::Int(*integer),
        Slot::Float(number) => Slot::Float(*number),
        Slot::Bool(holds) => Slot::Bool(*holds),
    }
}

fn travelling(net: &GraphNet<'_>) -> Vec<StageInput> {
    let places = net.program.places.iter().enumerate();
    let travels = places.filter_map(|(input, place)| match place {
        Place::Travels { is_buffer, .. } => Some((input, *is_buffer)),
        _ => None,
    });
    let travels = travels.enumerate();
    travels
        .map(|(travelling, (input, is_buffer))| StageInput { input, travelling, is_buffer })
        .collect()
}

/// The inputs of the graph that some nodes use.
fn used_inputs(net: &GraphNet<'_>, nodes: &Range<usize>) -> BTreeSet<usize> {
    let graph = &net.program.graph;
    let arguments = graph.nodes[nodes.clone()].iter().flat_map(|node| &node.arguments);
    let values = arguments.flat_map(|(_, argument)| argument.values());
    values.map(|id| id.0 as usize).filter(|&id| id < graph.inputs.len()).collect()
}
