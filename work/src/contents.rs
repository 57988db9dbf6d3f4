//! Many byte strings in an order, wherever they lie.

use std::ops::Deref;

/// Byte strings in an order: in memory, or files that are read where they are touched.
pub trait Contents: Sync {
    /// How many.
    fn len(&self) -> usize;

    /// One of them; empty where there is no such one.
    fn at(&self, at: usize) -> &[u8];

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl dyn Contents + '_ {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.at(at))
    }
}

/// No byte strings.
pub const NOTHING: &[&[u8]] = &[];

fn at<T: Deref<Target = [u8]>>(all: &[T], at: usize) -> &[u8] {
    all.get(at).map_or(&[], Deref::deref)
}

impl<T: Deref<Target = [u8]> + Sync> Contents for Vec<T> {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn at(&self, i: usize) -> &[u8] {
        at(self, i)
    }
}

impl Contents for &[&[u8]] {
    fn len(&self) -> usize {
        <[&[u8]]>::len(self)
    }

    fn at(&self, i: usize) -> &[u8] {
        at(self, i)
    }
}
