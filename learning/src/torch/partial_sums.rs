//! The sums of a step by virtual workers: those that a process has, and which of their elements are there.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use tch::{TchError, Tensor};

use super::ENGINE;
use super::peers::TAIL;
use crate::engine::BackendError;
use crate::virtual_workers::Merge;

/// The gradient of a subtree, flat, and its views by tensor, if they are needed. Its tail has the summed
/// loss.
pub(super) struct PartialSum {
    pub(super) flat: Tensor,
    pub(super) views: Vec<Tensor>,
}

/// Some elements of a flat tensor.
pub(super) fn elements_of(flat: &Tensor, elements: &Range<usize>) -> Result<Tensor, TchError> {
    flat.f_narrow(0, elements.start as i64, elements.len() as i64)
}

impl PartialSum {
    /// Another handle of the same numbers.
    pub(super) fn handle(&self) -> Self {
        let views = self.views.iter().map(Tensor::shallow_clone).collect();
        Self { flat: self.flat.shallow_clone(), views }
    }

    /// The numbers behind the gradient.
    pub(super) fn tail(&self) -> Result<Tensor, TchError> {
        let length = self.flat.size1()?;
        self.flat.f_narrow(0, length - TAIL, TAIL)
    }
}

/// The sums of a process by their first part, with vectors for further ones.
pub(super) struct PartialSums {
    sums: BTreeMap<usize, PartialSum>,
    free: Vec<PartialSum>,
    /// A vector of the same form.
    like: Tensor,
}

impl PartialSums {
    /// No sums, of the form of a vector.
    pub(super) fn new(like: &Tensor) -> Self {
        Self { sums: BTreeMap::new(), free: Vec::new(), like: like.shallow_clone() }
    }

    /// Numbers of a sum.
    #[cfg(feature = "distributed")]
    pub(super) fn elements(&self) -> Result<i64, TchError> {
        self.like.size1()
    }

    /// The sum that begins at a part.
    ///
    /// # Errors
    /// [`BackendError`] if it is not here.
    pub(super) fn get(&self, part: usize) -> Result<&PartialSum, BackendError> {
        let lost =
            || BackendError { engine: ENGINE, why: "a sum of the tree is missing".to_owned() };
        self.sums.get(&part).ok_or_else(lost)
    }

    /// The vector at a part as [`at`](Self::at), with its views by tensor.
    pub(super) fn with_views(
        &mut self,
        part: usize,
        views: impl FnOnce(&Tensor) -> Result<Vec<Tensor>, TchError>,
    ) -> Result<&mut PartialSum, TchError> {
        let sum = self.at(part)?;
        if sum.views.is_empty() {
            sum.views = views(&sum.flat)?;
        }
        Ok(sum)
    }

    /// The vector at a part; a new one, of any content, if there is none.
    pub(super) fn at(&mut self, part: usize) -> Result<&mut PartialSum, TchError> {
        Ok(match self.sums.entry(part) {
            Entry::Occupied(own) => own.into_mut(),
            Entry::Vacant(place) => {
                let sum = match self.free.pop() {
                    Some(sum) => sum,
                    None => PartialSum { flat: self.like.f_zeros_like()?, views: Vec::new() },
                };
                place.insert(sum)
            }
        })
    }

    /// Makes an addition of some elements whose two sums are here; none if it was made before.
    ///
    /// # Errors
    /// [`BackendError`] if only the right sum is here.
    pub(super) fn merge(
        &mut self,
        merge: Merge,
        elements: &[Range<usize>],
    ) -> Result<(), BackendError> {
        let Some(right) = self.sums.remove(&merge.from) else { return Ok(()) };
        let left = self.get(merge.into)?;
        for range in elements {
            let _ = elements_of(&left.flat, range)?.f_add_(&elements_of(&right.flat, range)?)?;
        }
        self.free.push(right);
        Ok(())
    }

    /// The whole of a sum.
    pub(super) fn all(&self) -> [Range<usize>; 1] {
        [Range { start: 0, end: self.like.numel() }]
    }

    /// Forgets the sum at a part.
    pub(super) fn forget(&mut self, part: usize) {
        self.free.extend(self.sums.remove(&part));
    }

    /// Forgets all sums.
    pub(super) fn forget_all(&mut self) {
        self.free.extend(std::mem::take(&mut self.sums).into_values());
    }
}

/// Which elements of a gradient its process has computed: those from one on. One thread computes, another
/// one waits.
pub(super) struct ReadyElements {
    state: Mutex<ReadyState>,
    changed: Condvar,
}

/// The first element that is there; none after a failure.
type ReadyState = Option<u64>;

impl ReadyElements {
    /// No element of a gradient of `elements` is there.
    pub(super) fn none_of(elements: u64) -> Self {
        Self { state: Mutex::new(Some(elements)), changed: Condvar::new() }
    }

    /// The elements from `first` on are there.
    pub(super) fn set(&self, first: u64) {
        self.change(Some(first));
    }

    /// No more elements follow.
    pub(super) fn fail(&self) {
        self.change(None);
    }

    fn change(&self, state: ReadyState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.changed.notify_all();
    }

    /// Waits until the elements from `first` on are there. Returns whether they are: the computation may
    /// have failed.
    #[cfg(any(test, feature = "distributed"))]
    pub(super) fn wait(&self, first: u64) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_open = |state: &mut ReadyState| state.is_some_and(|from| from > first);
        let state = self.changed.wait_while(state, is_open);
        state.unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

/// Ends the wait for elements when it is dropped, also by a panic, unless all are there.
pub(super) struct EndOfElements<'a>(pub(super) &'a ReadyElements);

impl Drop for EndOfElements<'_> {
    fn drop(&mut self) {
        let is_whole = *self.0.state.lock().unwrap_or_else(PoisonError::into_inner) == Some(0);
        if !is_whole {
            self.0.fail();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_waits_for_elements_and_a_failure_ends_the_wait() {
        let ready = ReadyElements::none_of(10);
        let end = EndOfElements(&ready);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| ready.wait(8));
            ready.set(7);
            assert!(waits.join().unwrap());
            let waits = scope.spawn(|| ready.wait(6));
            drop(end);
            assert!(!waits.join().unwrap());
        });
        let whole = ReadyElements::none_of(10);
        let end = EndOfElements(&whole);
        whole.set(0);
        drop(end);
        assert!(whole.wait(0));
    }
}
