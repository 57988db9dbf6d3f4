//! An ordered list of blobs, in memory or in mapped files.

use std::ops::Deref;

/// An ordered list of blobs: in memory, or files that are mapped and read on access.
pub trait BlobSource: Sync {
    /// Number of blobs.
    fn len(&self) -> usize;

    /// The blob at an index; empty if the index is out of range.
    fn at(&self, at: usize) -> &[u8];

    /// Whether the list is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl dyn BlobSource + '_ {
    /// All blobs, in order.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|at| self.at(at))
    }
}

/// The empty list.
pub const NO_BLOBS: &[&[u8]] = &[];

fn at<T: Deref<Target = [u8]>>(all: &[T], at: usize) -> &[u8] {
    all.get(at).map_or(&[], Deref::deref)
}

impl<T: Deref<Target = [u8]> + Sync> BlobSource for Vec<T> {
    fn len(&self) -> usize {
        Self::len(self)
    }

    fn at(&self, i: usize) -> &[u8] {
        at(self, i)
    }
}

impl BlobSource for &[&[u8]] {
    fn len(&self) -> usize {
        <[&[u8]]>::len(self)
    }

    fn at(&self, i: usize) -> &[u8] {
        at(self, i)
    }
}
