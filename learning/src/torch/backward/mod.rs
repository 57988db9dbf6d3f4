//! A backward pass from several tensors with given gradients: that of a segment of a graph.
//!
//! Autograd adds the gradients of a tensor in the order in which they arrive: a given one first, and then
//! those of the operations that used the tensor, from the last to the first. So the gradient that a
//! later segment sends continues the sum of an uncut pass. The gradients are returned without a copy and
//! with the order in memory that they have in such a pass.

use std::ffi::{c_char, c_void};
use std::ptr;

use tch::Tensor;

use super::ENGINE;
use super::dispatch::take_text;
use crate::engine::BackendError;

#[expect(unsafe_code, reason = "the function of backward.cpp")]
unsafe extern "C" {
    fn florin_backward(
        roots: *const *const c_void,
        seeds: *const *const c_void,
        roots_length: usize,
        inputs: *const *const c_void,
        inputs_length: usize,
        outputs: *mut *mut c_void,
    ) -> *mut c_char;
}

/// A tensor that the pass begins at, with its gradient.
pub(super) struct Root<'a> {
    pub(super) tensor: &'a Tensor,
    pub(super) gradient: &'a Tensor,
}

/// The gradients of leaves by a backward pass from all roots at once; `None` for a leaf that no root
/// depends on. A root may be a leaf too.
///
/// # Errors
/// [`BackendError`] if a tensor has no gradients, or if libtorch fails.
#[expect(unsafe_code, reason = "a call of backward.cpp")]
pub(super) fn backward(
    roots: &[Root<'_>],
    leaves: &[&Tensor],
) -> Result<Vec<Option<Tensor>>, BackendError> {
    let without = |tensor: &Tensor| !tensor.requires_grad();
    if roots.iter().any(|root| without(root.tensor)) || leaves.iter().any(|leaf| without(leaf)) {
        let why = "a tensor of a backward pass has no gradient".to_owned();
        return Err(BackendError { engine: ENGINE, why });
    }
    if roots.is_empty() || leaves.is_empty() {
        return Ok(leaves.iter().map(|_| None).collect());
    }
    let pointer = |tensor: &Tensor| -> *const c_void { tensor.as_ptr().cast() };
    let tensors: Vec<_> = roots.iter().map(|root| pointer(root.tensor)).collect();
    let seeds: Vec<_> = roots.iter().map(|root| pointer(root.gradient)).collect();
    let inputs: Vec<_> = leaves.iter().map(|leaf| pointer(leaf)).collect();
    let mut outputs = vec![ptr::null_mut(); inputs.len()];
    // SAFETY: all pointers are of tensors that live, and the lists have the stated lengths.
    let error = unsafe {
        florin_backward(
            tensors.as_ptr(),
            seeds.as_ptr(),
            tensors.len(),
            inputs.as_ptr(),
            inputs.len(),
            outputs.as_mut_ptr(),
        )
    };
    if let Some(text) = take_text(error) {
        let why = text.lines().next().unwrap_or_default().to_owned();
        return Err(BackendError { engine: ENGINE, why });
    }
    // SAFETY: each pointer that is not null is a new tensor, which is taken once.
    let taken = |output: *mut c_void| unsafe { Tensor::from_ptr(output.cast()) };
    Ok(outputs.into_iter().map(|output| (!output.is_null()).then(|| taken(output))).collect())
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn a_leaf_that_is_a_root_adds_its_gradient_first() {
        let leaf = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let unused = Tensor::ones([1], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let (first, second) = (&leaf * 1e8, &leaf * -1e8);
        let one = Tensor::ones([1], (Kind::Float, Device::Cpu));
        let given = |tensor| Root { tensor, gradient: &one };
        let found = backward(&[given(&leaf), given(&first), given(&second)], &[&leaf, &unused]);
        let found = found.unwrap();
        // ((1 − 1e8) + 1e8), and not (1e8 − 1e8) + 1.
        assert_eq!(f64::try_from(found[0].as_ref().unwrap()).unwrap(), 0.0);
        assert!(found[1].is_none());
        assert!(backward(&[given(&one)], &[&leaf]).is_err());
    }
}
