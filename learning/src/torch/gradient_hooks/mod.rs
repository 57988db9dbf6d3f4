//! Hooks of leaves: the gradient of each tensor, as soon as the backward pass has summed it.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use tch::{TchError, Tensor};

use super::dispatch::called;
use crate::engine::BackendError;

type RawOnGradient = extern "C" fn(*mut c_void, usize, *const c_void) -> bool;

#[expect(unsafe_code, reason = "the function of gradient_hooks.cpp")]
unsafe extern "C" {
    fn florin_on_gradient(
        leaf: *const c_void,
        number: usize,
        on_gradient: RawOnGradient,
        context: *mut c_void,
    ) -> *mut c_char;
}

/// Receives the gradient of the leaf with a number.
pub(super) type OnGradient<'a> = dyn FnMut(usize, &Tensor) -> Result<(), TchError> + Send + 'a;

/// The receiver of the gradients, and its first failure.
struct HookContext<'a, 'b>(Mutex<(&'a mut OnGradient<'b>, Option<TchError>)>);

/// Calls `pass`, which runs a backward pass, and gives each gradient of the leaves that require one to
/// `receive`, in the thread of the pass. The leaves must belong to this pass alone, and end with it.
///
/// # Errors
/// [`BackendError`] if a hook cannot be set; the error of the pass or of the receiver.
pub(super) fn with_gradient_hooks<T, E: From<TchError> + From<BackendError>>(
    leaves: &[Tensor],
    receive: &mut OnGradient<'_>,
    pass: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let context = HookContext(Mutex::new((receive, None)));
    for (number, leaf) in leaves.iter().enumerate().filter(|(_, leaf)| leaf.requires_grad()) {
        hook(leaf, number, &context)?;
    }
    let passed = pass();
    let (_, failure) = context.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    match failure {
        Some(error) => Err(error.into()),
        None => passed,
    }
}

#[expect(unsafe_code, reason = "a call of gradient_hooks.cpp")]
fn hook(leaf: &Tensor, number: usize, context: &HookContext<'_, '_>) -> Result<(), BackendError> {
    let place = std::ptr::from_ref(context).cast_mut().cast();
    // SAFETY: the leaf lives. The context lives until the pass has ended, and no other one follows.
    let error = unsafe { florin_on_gradient(leaf.as_ptr().cast(), number, on_gradient, place) };
    called(error)
}

#[expect(unsafe_code, reason = "called by gradient_hooks.cpp")]
extern "C" fn on_gradient(context: *mut c_void, number: usize, gradient: *const c_void) -> bool {
    let receive = || {
        // SAFETY: the context is that of `hook`, and its receiver is behind a lock. The gradient lives
        // during the call, and the clone is another handle of it.
        let (context, gradient) = unsafe {
            let context = &*context.cast_const().cast::<HookContext<'_, '_>>();
            (context, Tensor::clone_from_ptr(gradient.cast_mut().cast()))
        };
        let mut receiver = context.0.lock().unwrap_or_else(PoisonError::into_inner);
        if receiver.1.is_none()
            && let Err(error) = (receiver.0)(number, &gradient)
        {
            receiver.1 = Some(error);
        }
        receiver.1.is_none()
    };
    // A panic must not enter C++.
    catch_unwind(AssertUnwindSafe(receive)).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;

    fn leaf(value: f32) -> Tensor {
        Tensor::from_slice(&[value]).set_requires_grad(true)
    }

    fn pass(
        leaves: &[Tensor],
        total: &Tensor,
        receive: &mut OnGradient<'_>,
    ) -> Result<(), BackendError> {
        with_gradient_hooks(leaves, receive, || Ok(total.f_backward()?))
    }

    #[test]
    fn a_leaf_has_its_whole_gradient_once_and_the_last_layer_is_first() {
        let leaves = [leaf(2.0), leaf(3.0), leaf(5.0)];
        // Leaf 0 is used twice, the last leaf never.
        let total = ((&leaves[0] * &leaves[0]) * &leaves[1]).sum(Kind::Float);
        let mut found = Vec::new();
        let mut receive = |number: usize, gradient: &Tensor| {
            found.push((number, f64::try_from(gradient)?));
            Ok(())
        };
        pass(&leaves, &total, &mut receive).unwrap();
        assert_eq!(found, [(1, 4.0), (0, 12.0)]);
        assert_eq!(f64::try_from(leaves[0].grad()).unwrap(), 12.0);
    }

    #[test]
    fn a_failure_of_the_receiver_ends_the_pass() {
        let leaves = [leaf(2.0), leaf(3.0)];
        let total = (&leaves[0] * &leaves[1]).sum(Kind::Float);
        let mut calls = 0;
        let mut receive = |_: usize, _: &Tensor| {
            calls += 1;
            Err(TchError::Convert("no room".to_owned()))
        };
        let error = pass(&leaves, &total, &mut receive).unwrap_err();
        assert!(error.why.contains("no room"), "{error}");
        assert_eq!(calls, 1);
    }
}
