//! Numbers aligned to a cache line, so that a register load never spans two lines.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, which is also the size of the widest register.
const LINE_BYTES: usize = 64;
const LINE: usize = LINE_BYTES / size_of::<f32>();

/// A fixed number of `f32` whose first element is aligned to a cache line.
pub(super) struct Aligned {
    storage: Vec<f32>,
    from: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(super) fn zeros(len: usize) -> Self {
        let storage = vec![0.0; len + LINE - 1];
        // If no aligned element is found, loads are only slower.
        let from = storage.as_ptr().align_offset(LINE_BYTES).min(LINE - 1);
        Self { storage, from, len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.storage[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.storage[self.from..self.from + self.len]
    }
}
