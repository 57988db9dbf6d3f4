//! Bytes and numbers that may be larger than memory: files that are read, and filled, as if they lay in it.
//!
//! A mapped file is read by the system where it is touched, and forgotten again when memory is wanted for something
//! else. So a round of a hundred updates of a gigabyte takes the memory that there is, and no more.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use memmap2::MmapMut;

/// Where many numbers are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Up to so many bytes in memory; more in a file without a name, which is gone when it is closed.
    pub memory_max: u64,
    /// The folder for that file: not on a file system that is itself memory.
    pub folder: PathBuf,
}

impl Room {
    /// What is left of it once these rows are there.
    #[must_use]
    pub fn beside(&self, rows: &Rows) -> Self {
        let taken = match &rows.held {
            Held::Memory(numbers) => size_of_val(&**numbers) as u64,
            Held::File(_) => 0,
        };
        Self { memory_max: self.memory_max.saturating_sub(taken), folder: self.folder.clone() }
    }

    /// Everything in memory.
    pub const fn memory() -> Self {
        Self { memory_max: u64::MAX, folder: PathBuf::new() }
    }
}

/// Everything in memory, for who has little or much of it.
pub static MEMORY: Room = Room::memory();

/// Rows of equally many numbers, one behind the other, in memory or in a file.
#[derive(Debug)]
pub struct Rows {
    held: Held,
    rows: usize,
    width: usize,
}

#[derive(Debug)]
enum Held {
    Memory(Vec<f32>),
    File(MmapMut),
}

impl Rows {
    /// So many rows of `width` zeros.
    ///
    /// # Errors
    /// What the system said, where they go into a file; `InvalidInput` where they would not fit into
    /// any address space.
    pub fn zeros(rows: usize, width: usize, room: &Room) -> io::Result<Self> {
        let too_many = || {
            let what = format!("{rows} rows of {width} numbers are more than can be addressed");
            io::Error::new(io::ErrorKind::InvalidInput, what)
        };
        let numbers = rows.checked_mul(width).ok_or_else(too_many)?;
        let bytes = numbers.checked_mul(size_of::<f32>()).ok_or_else(too_many)? as u64;
        let held = if bytes <= room.memory_max || bytes == 0 {
            Held::Memory(vec![0.0; numbers])
        } else {
            Held::File(scratch(bytes, room)?)
        };
        Ok(Self { held, rows, width })
    }

    fn numbers(&self) -> &[f32] {
        match &self.held {
            Held::Memory(numbers) => numbers,
            Held::File(map) => bytemuck::cast_slice(map),
        }
    }

    fn numbers_mut(&mut self) -> &mut [f32] {
        match &mut self.held {
            Held::Memory(numbers) => numbers,
            Held::File(map) => bytemuck::cast_slice_mut(map),
        }
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// How many numbers a row has.
    pub fn width(&self) -> usize {
        self.width
    }

    /// One row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, at: usize) -> &[f32] {
        &self.numbers()[at * self.width..][..self.width]
    }

    /// One row, to be filled.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, at: usize) -> &mut [f32] {
        let width = self.width;
        &mut self.numbers_mut()[at * width..][..width]
    }

    /// All rows in order.
    pub fn slices(&self) -> Vec<&[f32]> {
        (0..self.rows).map(|at| self.row(at)).collect()
    }
}

impl From<Vec<Vec<f32>>> for Rows {
    /// # Panics
    /// If the rows are not of one length.
    fn from(rows: Vec<Vec<f32>>) -> Self {
        let width = rows.first().map_or(0, Vec::len);
        assert!(rows.iter().all(|row| row.len() == width), "rows of one length");
        Self { rows: rows.len(), width, held: Held::Memory(rows.concat()) }
    }
}

/// Fills a new file with so many zeros.
fn take_blocks(mut file: &File, bytes: u64) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        // File systems over a network may not know it.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            io::copy(&mut io::repeat(0).take(bytes), &mut file).map(|_| ())
        }
        taken => Ok(taken?),
    }
}

#[expect(unsafe_code, reason = "mapping a file; there is no safe way")]
fn scratch(bytes: u64, room: &Room) -> io::Result<MmapMut> {
    let file = tempfile::tempfile_in(&room.folder)?;
    // The blocks are taken now: a disk that fills up later would end the process in mid-write.
    take_blocks(&file, bytes)?;
    // SAFETY: the file has no name, so nobody else can open, change or shorten it.
    unsafe { MmapMut::map_mut(&file) }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn rows_hold_what_was_written_wherever_they_lie() {
        let dir = tempfile::tempdir().unwrap();
        for memory_max in [0, 1 << 20] {
            let room = Room { memory_max, folder: dir.path().to_owned() };
            let mut rows = Rows::zeros(300, 7, &room).unwrap();
            assert_eq!(matches!(rows.held, Held::File(_)), memory_max == 0);
            assert_eq!(rows.row(299), [0.0; 7]);
            for at in 0..300 {
                rows.row_mut(at).fill(at as f32);
            }
            assert!(rows.slices().iter().enumerate().all(|(at, row)| **row == [at as f32; 7]));
            assert_eq!((rows.len(), rows.width()), (300, 7));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "the file has no name");
        let nowhere = Room { memory_max: 0, folder: dir.path().join("absent") };
        assert!(Rows::zeros(1, 1, &nowhere).is_err());
        assert!(Rows::zeros(0, 5, &nowhere).unwrap().is_empty());
        assert!(Rows::zeros(usize::MAX, 2, &Room::memory()).is_err());
    }
}
