//! Whether libtorch is loaded: where it is bound at its first call, a program starts without it.

/// Loads libtorch, unless it is loaded; the error is the loader's.
pub(crate) fn load() -> Result<(), String> {
    #[cfg(florin_lazy_torch)]
    {
        use std::ffi::{CStr, c_char};
        #[expect(unsafe_code, reason = "the function is C, in learning/lazy_binding/bind.c")]
        unsafe extern "C" {
            /// Binds all functions; null, or a message that lives as long as the process.
            safe fn florin_lazy_error() -> *const c_char;
        }
        let error = florin_lazy_error();
        if !error.is_null() {
            #[expect(unsafe_code, reason = "a message of C")]
            // SAFETY: the pointer is not null, and the text ends with a zero and never changes again.
            let text = unsafe { CStr::from_ptr(error) };
            return Err(text.to_string_lossy().into_owned());
        }
    }
    Ok(())
}
