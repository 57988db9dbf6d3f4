//! Calls of libtorch's operators by name, with the arguments of the operator's schema.
//!
//! `tch` has a method for each operator, and omits arguments with defaults, such as `alpha` of an
//! addition. A model that PyTorch exported names operators and arguments instead. The dispatcher of
//! libtorch finds them by these names, as Python does: the same kernels run, autograd included, and
//! give the same bits.

use std::ffi::{CStr, CString, NulError, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Once;
use std::{ptr, slice};

use tch::Tensor;
use thiserror::Error;

use super::ENGINE;
use crate::engine::BackendError;
use crate::training::Precision;

/// An argument of an operator.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// `None` of an optional argument.
    None,
    /// A tensor.
    Tensor(&'a Tensor),
    /// An integer; also a data type, layout or memory format, by its number in C++.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text, or the name of a device.
    Text(&'a str),
    /// Tensors, some of which may be missing where the schema allows it.
    Tensors(&'a [Option<&'a Tensor>]),
    /// Integers.
    Ints(&'a [i64]),
    /// Real numbers.
    Floats(&'a [f64]),
    /// Truth values.
    Bools(&'a [bool]),
}

/// A result of an operator.
#[derive(Debug)]
pub(crate) enum Value {
    /// No value.
    None,
    /// A tensor.
    Tensor(Tensor),
    /// A list of tensors.
    Tensors(Vec<Tensor>),
    /// An integer.
    Int(i64),
    /// A real number.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// libtorch refused a name, an argument or a call.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
#[error("{operator}: {why}")]
pub struct AtenError {
    /// The operator, as `name.overload`.
    pub operator: String,
    /// The first line of libtorch's message.
    pub why: String,
}

/// An operator of libtorch. Its handle lives as long as the process.
#[derive(Debug, Clone)]
pub(crate) struct AtenOperator {
    name: String,
    handle: *const c_void,
}

const NONE: i32 = 0;
const TENSOR: i32 = 1;
const INT: i32 = 2;
const FLOAT: i32 = 3;
const BOOL: i32 = 4;
const TEXT: i32 = 5;
const TENSORS: i32 = 6;
const INTS: i32 = 7;
const FLOATS: i32 = 8;
const BOOLS: i32 = 9;

/// `c10::ScalarType::Half` and `BFloat16`.
const HALF: i32 = 5;
const BFLOAT16: i32 = 15;

#[repr(C)]
struct RawArgument {
    name: *const c_char,
    tag: i32,
    integer: i64,
    number: f64,
    items: *const c_void,
    length: usize,
}

#[repr(C)]
struct RawResult {
    tag: i32,
    integer: i64,
    number: f64,
    tensors: *mut *mut c_void,
    length: usize,
}

#[expect(unsafe_code, reason = "the functions of dispatch.cpp")]
unsafe extern "C" {
    fn florin_aten_find(
        name: *const c_char,
        overload: *const c_char,
        found: *mut *const c_void,
    ) -> *mut c_char;
    fn florin_aten_call(
        operation: *const c_void,
        arguments: *const RawArgument,
        length: usize,
        results: *mut *mut RawResult,
        count: *mut usize,
    ) -> *mut c_char;
    fn florin_aten_free_results(results: *mut RawResult, count: usize);
    fn florin_aten_free_text(text: *mut c_char);
    fn florin_retain_memory(bytes: i32, mapped: i32);
    fn florin_autocast(enabled: bool, gpu: bool, kind: i32);
}

// SAFETY: the handle is a constant of the process; libtorch's dispatcher may be used by all threads.
#[expect(unsafe_code, reason = "the dispatcher's handles belong to no thread")]
unsafe impl Send for AtenOperator {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the dispatcher's handles belong to no thread")]
unsafe impl Sync for AtenOperator {}

/// Freed memory that the process retains for the next step, in bytes.
const RETAINED_BYTES: i32 = 512 << 20;
/// The size from which a block is not of the heap: the largest value that the C library accepts.
const MAPPED_BYTES: i32 = 32 << 20;
/// Both sizes while the memory is scarce.
const SMALL_BYTES: i32 = 256 << 10;

/// Lets the C library retain freed memory between the steps of a training: it returned it to the system
/// otherwise, which costs a residual network a sixth of its time. The first call sets it.
#[expect(unsafe_code, reason = "a call of dispatch.cpp")]
pub(crate) fn retain_memory() {
    static ONCE: Once = Once::new();
    // SAFETY: the function changes settings of the C library, which has a lock for them.
    ONCE.call_once(|| unsafe { florin_retain_memory(RETAINED_BYTES, MAPPED_BYTES) });
}

/// While it lives, the C library returns freed tensors to the system at once, so that the process takes
/// hardly more memory than they do.
#[derive(Debug)]
pub(crate) struct ReturnMemory;

impl ReturnMemory {
    #[expect(unsafe_code, reason = "a call of dispatch.cpp")]
    pub(crate) fn start() -> Self {
        retain_memory();
        // SAFETY: as above.
        unsafe { florin_retain_memory(SMALL_BYTES, SMALL_BYTES) };
        Self
    }
}

impl Drop for ReturnMemory {
    #[expect(unsafe_code, reason = "a call of dispatch.cpp")]
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { florin_retain_memory(RETAINED_BYTES, MAPPED_BYTES) };
    }
}

/// PyTorch's autocast on this thread: while it lives, matrix products and convolutions run in a type of
/// 16 bits, and sums in 32.
pub(crate) struct Autocast {
    is_gpu: bool,
    /// The number of the type in C++.
    kind: i32,
}

impl Autocast {
    /// Starts it; `None` for 32 bits.
    pub(crate) fn start(precision: Precision, is_gpu: bool) -> Option<Self> {
        let kind = match precision {
            Precision::F32 => return None,
            Precision::Bf16 => BFLOAT16,
            Precision::F16 => HALF,
        };
        let autocast = Self { is_gpu, kind };
        autocast.set(true);
        Some(autocast)
    }

    #[expect(unsafe_code, reason = "a call of dispatch.cpp")]
    fn set(&self, enabled: bool) {
        // SAFETY: the function changes settings of this thread, and `kind` is the number of a type.
        unsafe { florin_autocast(enabled, self.is_gpu, self.kind) }
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        self.set(false);
    }
}

impl AtenOperator {
    /// Finds an operator by its name, such as `aten::add`, and its overload, such as `Tensor`; the
    /// overload is empty for the only one.
    ///
    /// # Errors
    /// [`AtenError`] if libtorch has no such operator.
    #[expect(unsafe_code, reason = "a call of dispatch.cpp")]
    pub(crate) fn find(name: &str, overload: &str) -> Result<Self, AtenError> {
        let full = if overload.is_empty() { name.to_owned() } else { format!("{name}.{overload}") };
        let c_name = c_text(name, &full)?;
        let c_overload = c_text(overload, &full)?;
        let mut handle = ptr::null();
        // SAFETY: both texts end with zero and outlive the call, and `handle` is a place for a pointer.
        let error =
            unsafe { florin_aten_find(c_name.as_ptr(), c_overload.as_ptr(), &raw mut handle) };
        check(error, &full)?;
        Ok(Self { name: full, handle })
    }

    /// The name and the overload.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Calls the operator. Positional arguments have no name. An argument without a value has the
    /// schema's default.
    ///
    /// # Errors
    /// [`AtenError`] if an argument is missing or has another type than the schema, or if the
    /// operator itself fails.
    #[expect(unsafe_code, reason = "a call of dispatch.cpp")]
    pub(crate) fn call(
        &self,
        arguments: &[(Option<&str>, Argument<'_>)],
    ) -> Result<Vec<Value>, AtenError> {
        let names = arguments.iter().map(|(name, _)| name.map(|name| c_text(name, &self.name)));
        let names: Vec<Option<CString>> =
            names.map(Option::transpose).collect::<Result<_, AtenError>>()?;
        let lists: Vec<Vec<*const c_void>> = arguments
            .iter()
            .map(|(_, argument)| match argument {
                Argument::Tensors(tensors) => tensors
                    .iter()
                    .map(|tensor| tensor.map_or(ptr::null(), |tensor| tensor.as_ptr().cast()))
                    .collect(),
                _ => Vec::new(),
            })
            .collect();
        let raw: Vec<RawArgument> = arguments
            .iter()
            .zip(&names)
            .zip(&lists)
            .map(|(((_, argument), name), list)| RawArgument::new(argument, name.as_deref(), list))
            .collect();
        let (mut results, mut count) = (ptr::null_mut(), 0);
        // SAFETY: `raw` points to names, lists and tensors that outlive the call; the two places
        // receive a list and its length.
        let error = unsafe {
            florin_aten_call(self.handle, raw.as_ptr(), raw.len(), &raw mut results, &raw mut count)
        };
        check(error, &self.name)?;
        // SAFETY: without an error, `results` has `count` elements. Each of their tensors is taken
        // exactly once, before the list is freed.
        let values = unsafe {
            let values = slice::from_raw_parts(results, count).iter().map(|raw| raw.take());
            let values: Vec<Value> = values.collect();
            florin_aten_free_results(results, count);
            values
        };
        Ok(values)
    }
}

impl RawArgument {
    fn new(argument: &Argument<'_>, name: Option<&CStr>, tensors: &[*const c_void]) -> Self {
        let name = name.map_or(ptr::null(), CStr::as_ptr);
        let empty =
            Self { name, tag: NONE, integer: 0, number: 0.0, items: ptr::null(), length: 0 };
        let list = |tag, items, length| Self { tag, items, length, ..empty };
        match *argument {
            Argument::None => empty,
            Argument::Tensor(tensor) => list(TENSOR, tensor.as_ptr().cast(), 1),
            Argument::Int(integer) => Self { tag: INT, integer, ..empty },
            Argument::Float(number) => Self { tag: FLOAT, number, ..empty },
            Argument::Bool(holds) => Self { tag: BOOL, integer: holds.into(), ..empty },
            Argument::Text(text) => list(TEXT, text.as_ptr().cast(), text.len()),
            Argument::Tensors(_) => list(TENSORS, tensors.as_ptr().cast(), tensors.len()),
            Argument::Ints(integers) => list(INTS, integers.as_ptr().cast(), integers.len()),
            Argument::Floats(numbers) => list(FLOATS, numbers.as_ptr().cast(), numbers.len()),
            Argument::Bools(all) => list(BOOLS, all.as_ptr().cast(), all.len()),
        }
    }
}

impl RawResult {
    /// The value, which owns its tensors from now on.
    ///
    /// # Safety
    /// The tensors must be those of `florin_aten_call`, and not taken before.
    #[expect(unsafe_code, reason = "takes tensors of dispatch.cpp")]
    unsafe fn take(&self) -> Value {
        let tensors = || {
            // SAFETY: `tensors` has `length` elements, each a tensor that nothing else owns.
            unsafe {
                let tensors = slice::from_raw_parts(self.tensors, self.length).iter();
                tensors.map(|&tensor| Tensor::from_ptr(tensor.cast())).collect::<Vec<Tensor>>()
            }
        };
        match self.tag {
            TENSOR => tensors().pop().map_or(Value::None, Value::Tensor),
            TENSORS => Value::Tensors(if self.length == 0 { Vec::new() } else { tensors() }),
            INT => Value::Int(self.integer),
            FLOAT => Value::Float(self.number),
            BOOL => Value::Bool(self.integer != 0),
            _ => Value::None,
        }
    }
}

fn c_text(text: &str, operator: &str) -> Result<CString, AtenError> {
    CString::new(text).map_err(|error: NulError| AtenError {
        operator: operator.replace('\0', "␀"),
        why: error.to_string(),
    })
}

/// The error of a call, if it returned one.
fn check(error: *mut c_char, operator: &str) -> Result<(), AtenError> {
    let Some(why) = take_text(error) else { return Ok(()) };
    let why = why.lines().next().unwrap_or_default().to_owned();
    Err(AtenError { operator: operator.to_owned(), why })
}

/// The failure of a function of our C++, if it returned one.
pub(super) fn called(error: *mut c_char) -> Result<(), BackendError> {
    take_text(error).map_or(Ok(()), |why| Err(BackendError { engine: ENGINE, why }))
}

/// The object that a function of our C++ has made, such as a tape.
pub(super) fn made(handle: *mut c_void, name: &str) -> Result<NonNull<c_void>, BackendError> {
    let none = || BackendError { engine: ENGINE, why: format!("a {name} could not be made") };
    NonNull::new(handle).ok_or_else(none)
}

/// The error text that a function of our C++ returned; `None` for null.
#[expect(unsafe_code, reason = "reads and frees a text of our C++")]
pub(super) fn take_text(error: *mut c_char) -> Option<String> {
    if error.is_null() {
        return None;
    }
    // SAFETY: the text ends with zero, and is freed once.
    unsafe {
        let text = CStr::from_ptr(error).to_string_lossy().into_owned();
        florin_aten_free_text(error);
        Some(text)
    }
}

#[cfg(test)]
mod tests;
