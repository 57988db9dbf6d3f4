//! Memory-mapped bytes and numbers, which may exceed the memory: files for reading and scratch
//! files.
//!
//! The system loads the pages of a mapped file on access, and evicts them if memory is needed. So a
//! round of a hundred updates of a gigabyte each uses only the memory that is available.

use std::fs::File;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::PathBuf;

use memmap2::{Advice, Mmap, MmapMut, UncheckedAdvice};

/// The storage for many numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchSpace {
    /// Up to this many bytes are allocated in memory; more go to a file without a name, which is
    /// deleted on closing.
    pub memory_max: u64,
    /// The folder for that file; it must not be on a file system in memory.
    pub folder: PathBuf,
}

impl ScratchSpace {
    /// The scratch space that remains after the allocation of `rows`.
    #[must_use]
    pub fn remaining_after(&self, rows: &RowMatrix) -> Self {
        let taken = match &rows.held {
            RowStorage::Memory(numbers) => size_of_val(&**numbers) as u64,
            RowStorage::File(_) => 0,
        };
        Self { memory_max: self.memory_max.saturating_sub(taken), folder: self.folder.clone() }
    }

    /// Unlimited memory, without a file.
    pub const fn memory() -> Self {
        Self { memory_max: u64::MAX, folder: PathBuf::new() }
    }
}

/// Unlimited memory, without a file, for callers that need no limit.
pub static UNLIMITED_MEMORY: ScratchSpace = ScratchSpace::memory();

/// Rows of equal width, stored one after another, in memory or in a file.
#[derive(Debug)]
pub struct RowMatrix {
    held: RowStorage,
    rows: usize,
    width: usize,
}

#[derive(Debug)]
enum RowStorage {
    Memory(Vec<f32>),
    File(MmapMut),
}

impl RowMatrix {
    /// `rows` rows of `width` zeros.
    ///
    /// # Errors
    /// The system's error if the rows go to a file; `InvalidInput` if they exceed the address
    /// space.
    pub fn zeros(rows: usize, width: usize, room: &ScratchSpace) -> io::Result<Self> {
        let too_many = || {
            let what = format!("{rows} rows of {width} numbers exceed the address space");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let numbers = rows.checked_mul(width).ok_or_else(too_many)?;
        let bytes = numbers.checked_mul(size_of::<f32>()).ok_or_else(too_many)? as u64;
        let held = if bytes <= room.memory_max || bytes == 0 {
            RowStorage::Memory(vec![0.0; numbers])
        } else {
            RowStorage::File(scratch_file(bytes, room)?)
        };
        Ok(Self { held, rows, width })
    }

    fn numbers(&self) -> &[f32] {
        match &self.held {
            RowStorage::Memory(numbers) => numbers,
            RowStorage::File(map) => bytemuck::cast_slice(map),
        }
    }

    fn numbers_mut(&mut self) -> &mut [f32] {
        match &mut self.held {
            RowStorage::Memory(numbers) => numbers,
            RowStorage::File(map) => bytemuck::cast_slice_mut(map),
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Number of elements per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn row(&self, at: usize) -> &[f32] {
        &self.numbers()[at * self.width..][..self.width]
    }

    /// One row, mutable.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn row_mut(&mut self, at: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.numbers_mut()[at * width..][..width]
    }

    /// Returns the memory of these columns to the system if the rows are in a file, which retains the
    /// numbers: the next access reads them again.
    pub fn release(&self, columns: &Range<usize>) {
        let RowStorage::File(map) = &self.held else { return };
        for row in 0..self.rows {
            let from = row * self.width;
            release::<f32>(map, &(from + columns.start..from + columns.end));
        }
    }

    /// All rows in order.
    pub fn slices(&self) -> Vec<&[f32]> {
        (0..self.rows).map(|at| self.row(at)).collect()
    }
}

impl From<Vec<Vec<f32>>> for RowMatrix {
    /// # Panics
    /// If the rows differ in length.
    fn from(rows: Vec<Vec<f32>>) -> Self {
        let width = rows.first().map_or(0, Vec::len);
        assert!(rows.iter().all(|row| row.len() == width), "all rows must have the same length");
        Self { rows: rows.len(), width, held: RowStorage::Memory(rows.concat()) }
    }
}

/// Many `f64` numbers, in memory or in a file.
#[derive(Debug)]
pub(crate) enum ScratchNumbers {
    Memory(Vec<f64>),
    File(MmapMut),
}

impl ScratchNumbers {
    /// `length` zeros.
    pub(crate) fn zeros(length: usize, room: &ScratchSpace) -> io::Result<Self> {
        let bytes = (length * size_of::<f64>()) as u64;
        Ok(match bytes <= room.memory_max || bytes == 0 {
            true => Self::Memory(vec![0.0; length]),
            false => Self::File(scratch_file(bytes, room)?),
        })
    }

    pub(crate) fn as_slice(&self) -> &[f64] {
        match self {
            Self::Memory(numbers) => numbers,
            Self::File(map) => bytemuck::cast_slice(map),
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [f64] {
        match self {
            Self::Memory(numbers) => numbers,
            Self::File(map) => bytemuck::cast_slice_mut(map),
        }
    }

    /// As [`RowMatrix::release`].
    pub(crate) fn release(&self, range: &Range<usize>) {
        if let Self::File(map) = self {
            release::<f64>(map, range);
        }
    }
}

/// A file of numbers with a name, mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
}

impl MappedFile {
    /// Maps the whole file. It must not be shortened as long as the map exists: an access to a page
    /// behind its new end stops the process (SIGBUS).
    #[expect(unsafe_code, reason = "mapping a file has no safe interface")]
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: nothing writes through this map. Another process may change the file, which has a
        // name: then its numbers are other `f32`, for which any bits are valid, and no size, index
        // or label is read from the map after its check. A shortened file stops the process.
        let map = unsafe { Mmap::map(file)? };
        Ok(Self { map })
    }

    /// The numbers of these bytes, in the byte order of the machine.
    ///
    /// # Panics
    /// If the range exceeds the file, or does not consist of whole numbers.
    pub(crate) fn numbers(&self, bytes: Range<usize>) -> &[f32] {
        bytemuck::cast_slice(&self.map[bytes])
    }

    /// Starts to load these bytes, which are read soon.
    pub(crate) fn will_need(&self, bytes: &Range<usize>) {
        // A system without this advice loads them on access.
        let _ = self.map.advise_range(Advice::WillNeed, bytes.start, bytes.len());
    }
}

/// Returns the pages of some numbers of a mapped file to the system.
#[expect(unsafe_code, reason = "advice on a mapping has no safe interface")]
fn release<T>(map: &MmapMut, numbers: &Range<usize>) {
    let page = rustix::param::page_size();
    // Pages that numbers outside share stay.
    let from = (numbers.start * size_of::<T>()).next_multiple_of(page);
    let to = (numbers.end * size_of::<T>()).min(map.len());
    let to = if to == map.len() { to } else { to / page * page };
    if from < to {
        // SAFETY: the map is shared and of a file, so the pages are read from the file again. A system
        // without this advice retains them.
        let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, to - from) };
    }
}

/// Allocates `bytes` zero bytes in a new file.
fn allocate_zeros(mut file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // Network file systems may not support it.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            io::copy(&mut io::repeat(0).take(bytes), &mut file).map(|_| ())
        }
        taken => Ok(taken?),
    }
}

#[expect(unsafe_code, reason = "mapping a file has no safe interface")]
fn scratch_file(bytes: u64, room: &ScratchSpace) -> io::Result<MmapMut> {
    let file = tempfile::tempfile_in(&room.folder)?;
    // Allocate the blocks now: on a disk that fills up later, a write would end the process
    // (SIGBUS).
    allocate_zeros(&file, bytes)?;
    // SAFETY: the file has no name, so no other process can open, change or truncate it.
    unsafe { MmapMut::map_mut(&file) }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn rows_return_what_was_written_in_memory_and_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        for memory_max in [0, 1 << 20] {
            let room = ScratchSpace { memory_max, folder: dir.path().to_owned() };
            let mut rows = RowMatrix::zeros(300, 7, &room).unwrap();
            assert_eq!(matches!(rows.held, RowStorage::File(_)), memory_max == 0);
            assert_eq!(rows.row(299), [0.0; 7]);
            for at in 0..300 {
                rows.row_mut(at).fill(at as f32);
            }
            assert!(rows.slices().iter().enumerate().all(|(at, row)| **row == [at as f32; 7]));
            rows.release(&(0..7));
            assert!(rows.slices().iter().enumerate().all(|(at, row)| **row == [at as f32; 7]));
            let mut numbers = ScratchNumbers::zeros(5_000, &room).unwrap();
            numbers.as_mut_slice().fill(0.5);
            numbers.release(&(0..5_000));
            assert_eq!(numbers.as_slice(), [0.5; 5_000]);
            assert_eq!((rows.len(), rows.width()), (300, 7));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        let nowhere = ScratchSpace { memory_max: 0, folder: dir.path().join("absent") };
        assert!(RowMatrix::zeros(1, 1, &nowhere).is_err());
        assert!(RowMatrix::zeros(0, 5, &nowhere).unwrap().is_empty());
        assert!(RowMatrix::zeros(usize::MAX, 2, &ScratchSpace::memory()).is_err());
    }
}
