//! Numbers that begin on a cache line, so that no register is loaded from two.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, and of the widest register.
const LINE_BYTES: usize = 64;
const LINE: usize = LINE_BYTES / size_of::<f32>();

/// A fixed number of `f32`, the first of them on a cache line.
pub(super) struct Aligned {
    room: Vec<f32>,
    from: usize,
    len: usize,
}

impl Aligned {
    /// `len` zeros.
    pub(super) fn zeros(len: usize) -> Self {
        let room = vec![0.0; len + LINE - 1];
        // Where the line cannot be found the numbers are only slower to read.
        let from = room.as_ptr().align_offset(LINE_BYTES).min(LINE - 1);
        Self { room, from, len }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.room[self.from..self.from + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.room[self.from..self.from + self.len]
    }
}
