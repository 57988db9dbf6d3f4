//! Runs a step by a plan: tensors leave the memory during the forward pass, and return before their use.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use tch::{Device, Kind, TchError, Tensor};

use super::record::Recipe;
use super::store::OffloadStore;
use crate::graph::{Interpreter, RunObserver, RunValues, ValueId};
use crate::memory::{MemoryPlan, SavedRule};
use crate::torch::dispatch::Autocast;
use crate::torch::tape::{RestoreSaved, Tape};
use crate::training::Precision;

/// The form of a value in its memory.
#[derive(Debug, Clone)]
struct Form {
    kind: Kind,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
}

/// The graph that computes buffers again.
pub(super) struct Recomputer<'n> {
    pub(super) interpreter: &'n Interpreter<'n>,
    pub(super) precision: Precision,
    pub(super) device: Device,
    pub(super) recipes: BTreeMap<usize, Recipe>,
}

/// The plan of a step while it runs.
pub(super) struct PlannedStep<'n> {
    recomputer: Recomputer<'n>,
    plan: MemoryPlan,
    /// Uses of each buffer that are not by saved tensors in the memory.
    uses: Vec<usize>,
    /// The values that recipes read.
    read_values: BTreeSet<ValueId>,
    state: Mutex<State>,
}

/// The buffers of a step.
struct State {
    store: Box<dyn OffloadStore>,
    /// The graph's inputs.
    inputs: Vec<Tensor>,
    forms: BTreeMap<ValueId, Form>,
    /// Buffers in the memory, as bytes, that this step holds itself.
    held: BTreeMap<usize, Tensor>,
    uses_left: Vec<usize>,
    /// The next of the plan's returns.
    next: usize,
    /// Bytes on their way, and those buffers.
    on_way: u64,
    reading: Vec<usize>,
    /// Buffers that have left the memory in this step.
    left: BTreeSet<usize>,
    failure: Option<String>,
}

impl<'n> PlannedStep<'n> {
    pub(super) fn new(
        recomputer: Recomputer<'n>,
        plan: MemoryPlan,
        store: Box<dyn OffloadStore>,
    ) -> Self {
        let mut uses: Vec<usize> = plan
            .buffers
            .iter()
            .map(|buffer| if buffer.rule == SavedRule::Retain { 0 } else { buffer.uses })
            .collect();
        let mut read_values = BTreeSet::new();
        for (buffer, recipe) in &recomputer.recipes {
            if plan.buffers[*buffer].rule == SavedRule::Recompute {
                recipe.inputs().iter().for_each(|&input| uses[input] += 1);
                read_values.extend(recipe.values.iter().map(|(id, _)| *id));
            }
        }
        let state = State {
            store,
            inputs: Vec::new(),
            forms: BTreeMap::new(),
            held: BTreeMap::new(),
            uses_left: Vec::new(),
            next: 0,
            on_way: 0,
            reading: Vec::new(),
            left: BTreeSet::new(),
            failure: None,
        };
        Self { recomputer, plan, uses, read_values, state: Mutex::new(state) }
    }

    pub(super) fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// The reason of a failed restoration, once.
    pub(super) fn take_failure(&self) -> Option<String> {
        self.lock().failure.take()
    }

    /// The tensors of a step have ended.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        while state.on_way > 0 {
            let before = state.on_way;
            // The reason of a failure is stored already.
            if self.settle(&mut state, true).is_err() && state.on_way == before {
                break;
            }
        }
        state.reading.clear();
        state.left.clear();
        state.held.clear();
        state.inputs.clear();
        state.forms.clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back a transfer that has ended.
    fn settle(&self, state: &mut State, waits: bool) -> Result<bool, String> {
        let Some(moved) = state.store.moved(waits) else {
            let gone = || "offloaded tensors are no longer moved".to_owned();
            return if waits { Err(gone()) } else { Ok(false) };
        };
        state.on_way -= self.plan.buffers[moved.buffer].bytes;
        if moved.is_read {
            state.reading.retain(|&buffer| buffer != moved.buffer);
            state.held.insert(moved.buffer, moved.bytes);
        }
        moved.result.map(|()| true)
    }

    /// Waits until a buffer can go on its way.
    fn make_way(&self, state: &mut State, bytes: u64) -> Result<(), String> {
        while self.settle(state, false)? {}
        while state.on_way > 0 && state.on_way + bytes > self.plan.window {
            self.settle(state, true)?;
        }
        Ok(())
    }

    fn offload(&self, state: &mut State, buffer: usize, bytes: Tensor) -> Result<(), String> {
        let own = self.plan.buffers[buffer].bytes;
        self.make_way(state, own)?;
        state.store.write(buffer, bytes)?;
        state.on_way += own;
        Ok(())
    }

    /// Begins to read the next buffers, as far as the window reaches.
    fn read_ahead(&self, state: &mut State) -> Result<(), String> {
        while let Some(&buffer) = self.plan.returns.get(state.next) {
            if !state.left.contains(&buffer) {
                state.next += 1;
                continue;
            }
            let bytes = self.plan.buffers[buffer].bytes;
            if state.on_way + self.waiting(state) + bytes > self.plan.window {
                break;
            }
            self.read(state, buffer)?;
            state.next += 1;
        }
        Ok(())
    }

    /// Bytes of buffers that have returned, and that no node has used.
    fn waiting(&self, state: &State) -> u64 {
        let unused = state.held.keys().filter(|&&buffer| {
            let own = &self.plan.buffers[buffer];
            own.rule == SavedRule::Offload && state.uses_left[buffer] == self.uses[buffer]
        });
        unused.map(|&buffer| self.plan.buffers[buffer].bytes).sum()
    }

    fn read(&self, state: &mut State, buffer: usize) -> Result<(), String> {
        let bytes = self.plan.buffers[buffer].bytes;
        let options = (Kind::Uint8, self.recomputer.device);
        let into = Tensor::f_empty(bytes as i64, options).map_err(|error| error.to_string())?;
        state.store.read(buffer, into)?;
        state.on_way += bytes;
        state.reading.push(buffer);
        Ok(())
    }

    /// The memory of a buffer for one use.
    fn memory(&self, state: &mut State, buffer: usize) -> Result<Tensor, String> {
        if !state.held.contains_key(&buffer) {
            match self.plan.buffers[buffer].rule {
                SavedRule::Offload => self.await_read(state, buffer)?,
                SavedRule::Recompute => {
                    let bytes = self.recompute(state, buffer)?;
                    state.held.insert(buffer, bytes);
                }
                SavedRule::Retain => return Err("a tensor was not retained".to_owned()),
            }
        }
        let missing = || "a tensor is missing".to_owned();
        let bytes = state.held.get(&buffer).ok_or_else(missing)?.shallow_clone();
        state.uses_left[buffer] = state.uses_left[buffer].saturating_sub(1);
        if state.uses_left[buffer] == 0 {
            state.held.remove(&buffer);
        }
        if self.plan.buffers[buffer].rule == SavedRule::Offload {
            self.read_ahead(state)?;
        }
        Ok(bytes)
    }

    fn await_read(&self, state: &mut State, buffer: usize) -> Result<(), String> {
        if !state.reading.contains(&buffer) {
            // It is needed before its turn.
            self.read(state, buffer)?;
            if self.plan.returns.get(state.next) == Some(&buffer) {
                state.next += 1;
            }
        }
        while state.reading.contains(&buffer) {
            self.settle(state, true)?;
        }
        Ok(())
    }

    fn recompute(&self, state: &mut State, buffer: usize) -> Result<Tensor, String> {
        let missing = || "a tensor cannot be computed again".to_owned();
        let recipe = self.recomputer.recipes.get(&buffer).ok_or_else(missing)?;
        let mut memories = BTreeMap::new();
        for input in recipe.inputs() {
            memories.insert(input, self.memory(state, input)?);
        }
        let mut given = Vec::new();
        for &id in &recipe.graph_inputs {
            let input = state.inputs.get(id.0 as usize).ok_or_else(missing)?;
            given.push((id, input.f_detach().map_err(|error| error.to_string())?));
        }
        for &(id, input) in &recipe.values {
            let form = state.forms.get(&id).ok_or_else(missing)?;
            let memory = memories.get(&input).ok_or_else(missing)?;
            given.push((id, form.of(memory).map_err(|error| error.to_string())?));
        }
        let Recomputer { interpreter, precision, device, .. } = &self.recomputer;
        let autocast = Autocast::start(*precision, *device != Device::Cpu);
        let found = interpreter.rerun(&recipe.nodes, given, recipe.output);
        drop(autocast);
        let bytes = found.map_err(|error| error.to_string())?;
        let bytes = whole_memory(&bytes).map_err(|error| error.to_string())?;
        let wanted = self.plan.buffers[buffer].bytes as i64;
        if bytes.size() != [wanted] {
            return Err(format!(
                "a tensor computed again has {:?} of {wanted} bytes",
                bytes.size()
            ));
        }
        Ok(bytes)
    }
}

impl Form {
    fn new(tensor: &Tensor, offset: i64) -> Result<Self, TchError> {
        let (kind, sizes, strides) = (tensor.f_kind()?, tensor.size(), tensor.stride());
        Ok(Self { kind, sizes, strides, offset })
    }

    /// The tensor of this form in a memory.
    fn of(&self, memory: &Tensor) -> Result<Tensor, TchError> {
        memory.f_view_dtype(self.kind)?.f_as_strided(&self.sizes, &self.strides, self.offset)
    }
}

/// The memory of a dense tensor that was just made, as bytes.
fn whole_memory(tensor: &Tensor) -> Result<Tensor, TchError> {
    let length = tensor.numel() as i64;
    tensor.f_as_strided([length], [1], 0)?.f_view_dtype(Kind::Uint8)
}

impl RestoreSaved for PlannedStep<'_> {
    fn restore(&self, number: usize) -> Option<Tensor> {
        let mut state = self.lock();
        let buffer = self.plan.buffer_of.get(number).copied().flatten()?;
        match self.memory(&mut state, buffer) {
            Ok(bytes) => Some(bytes),
            Err(why) => {
                state.failure.get_or_insert(why);
                None
            }
        }
    }
}

/// Moves tensors out of the memory during a forward pass.
pub(super) struct Mover<'a, 'n> {
    pub(super) tape: &'a Tape<'n>,
    pub(super) step: &'a PlannedStep<'n>,
    /// Saved tensors that were looked at.
    seen: usize,
    /// The saved tensors of each buffer so far.
    saved: BTreeMap<usize, Vec<usize>>,
}

impl<'a, 'n> Mover<'a, 'n> {
    pub(super) fn new(tape: &'a Tape<'n>, step: &'a PlannedStep<'n>) -> Self {
        Self { tape, step, seen: 0, saved: BTreeMap::new() }
    }

    fn look(&mut self) -> Result<(), TchError> {
        for number in self.seen..self.tape.saved() {
            let plan = &self.step.plan;
            let Some(buffer) = plan.buffer_of.get(number).copied().flatten() else { continue };
            self.saved.entry(buffer).or_default().push(number);
            let own = &plan.buffers[buffer];
            let leaves = own.rule != SavedRule::Retain || self.step.uses[buffer] > 0;
            if number != own.last_saved || !leaves {
                continue;
            }
            let memory = self.tape.memory(number).map_err(torch_error)?;
            let fits = |memory: &Tensor| memory.size() == [own.bytes as i64];
            let Some(memory) = memory else { continue };
            let mut state = self.step.lock();
            if !fits(&memory) {
                // A tensor of another size than predicted stays, also for those that read it.
                if self.step.uses[buffer] > own.uses {
                    state.held.insert(buffer, memory);
                }
                continue;
            }
            match own.rule {
                SavedRule::Retain => {
                    state.held.insert(buffer, memory);
                    continue;
                }
                SavedRule::Offload => {
                    let moved = self.step.offload(&mut state, buffer, memory);
                    moved.map_err(TchError::Torch)?;
                }
                SavedRule::Recompute => {}
            }
            state.left.insert(buffer);
            drop(state);
            for saved in self.saved.remove(&buffer).unwrap_or_default() {
                self.tape.release(saved).map_err(torch_error)?;
            }
        }
        self.seen = self.tape.saved();
        Ok(())
    }
}

pub(super) fn torch_error(error: crate::engine::BackendError) -> TchError {
    TchError::Torch(error.why)
}

impl RunObserver for Mover<'_, '_> {
    fn begin(&mut self, inputs: &[Tensor]) -> Result<(), TchError> {
        let mut state = self.step.lock();
        state.inputs = inputs.iter().map(Tensor::shallow_clone).collect();
        state.uses_left = self.step.uses.clone();
        state.next = 0;
        state.failure = None;
        Ok(())
    }

    fn after_node(&mut self, _: usize, values: RunValues<'_>) -> Result<(), TchError> {
        // A value that a recipe reads lives at least until the node that saves it has ended.
        for (id, tensor) in values.tensors() {
            if self.step.read_values.contains(&id) {
                let mut state = self.step.lock();
                if let Entry::Vacant(empty) = state.forms.entry(id) {
                    empty.insert(Form::new(tensor, self.tape.offset(tensor))?);
                }
            }
        }
        self.look()
    }

    fn end_forward(&mut self) -> Result<(), TchError> {
        self.look()?;
        let mut state = self.step.lock();
        self.step.read_ahead(&mut state).map_err(TchError::Torch)
    }
}

/// The step as a restorer of its tape.
pub(super) fn tape<'n>(
    device: Device,
    step: &Arc<PlannedStep<'n>>,
) -> Result<Tape<'n>, crate::engine::BackendError> {
    Tape::new(device, false, step.clone())
}
