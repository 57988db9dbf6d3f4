//! A volume with fault injection: a callback sees each operation before it runs and may make it
//! fail, for example as a full or broken disk, or record it.
//!
//! The store's unit tests include this file too, so it imports from its parent module.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::{AppendFile, LocalVolume, ReadSeek, Volume};

/// An operation that is about to run, with its file.
pub enum VolumeOp<'a> {
    /// Open for appending; created if absent.
    Open(&'a str),
    /// Append, with the number of bytes.
    Append(&'a str, usize),
    /// It is synced.
    Sync(&'a str),
    /// It is removed.
    Remove(&'a str),
    /// The names in the folder are synced.
    SyncNames,
}

impl std::fmt::Display for VolumeOp<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open(name) => write!(f, "open {name}"),
            Self::Append(name, bytes) => write!(f, "append {bytes} to {name}"),
            Self::Sync(name) => write!(f, "sync {name}"),
            Self::Remove(name) => write!(f, "remove {name}"),
            Self::SyncNames => f.write_str("sync names"),
        }
    }
}

/// An injected failure: the bytes of an append that are written before it, and the error.
pub struct InjectedFault(pub usize, pub io::Error);

/// The callback that decides whether an operation fails.
pub type FaultInjector = dyn Fn(VolumeOp<'_>) -> Result<(), InjectedFault> + Send + Sync;

/// The volume.
#[derive(Clone)]
pub struct FaultyVolume(LocalVolume, Arc<FaultInjector>);

impl FaultyVolume {
    /// A folder on which `check` is called before each step.
    pub fn intercept(
        folder: impl Into<PathBuf>,
        check: impl Fn(VolumeOp<'_>) -> Result<(), InjectedFault> + Send + Sync + 'static,
    ) -> Arc<dyn Volume> {
        Arc::new(Self(LocalVolume(folder.into()), Arc::new(check)))
    }

    /// A volume on a disk with `room` bytes of free space.
    pub fn with_free_space(
        folder: impl Into<PathBuf>,
        room: Arc<std::sync::Mutex<usize>>,
    ) -> Arc<dyn Volume> {
        Self::intercept(folder, move |doing| {
            let VolumeOp::Append(_, bytes) = doing else { return Ok(()) };
            let mut room = room.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let fits = bytes.min(*room);
            *room -= fits;
            if fits < bytes {
                Err(InjectedFault(fits, io::ErrorKind::StorageFull.into()))
            } else {
                Ok(())
            }
        })
    }

    fn check(&self, doing: VolumeOp<'_>) -> io::Result<()> {
        self.1(doing).map_err(|InjectedFault(_, error)| error)
    }
}

struct FaultyFile {
    inner: Box<dyn AppendFile>,
    name: String,
    folder: FaultyVolume,
}

impl AppendFile for FaultyFile {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(InjectedFault(written, error)) =
            self.folder.1(VolumeOp::Append(&self.name, bytes.len()))
        {
            self.inner.append(&bytes[..written])?;
            return Err(error);
        }
        self.inner.append(bytes)
    }
    fn sync(&mut self) -> io::Result<()> {
        self.folder.check(VolumeOp::Sync(&self.name))?;
        self.inner.sync()
    }
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }
}

impl Volume for FaultyVolume {
    fn path_of(&self, name: &str) -> PathBuf {
        self.0.path_of(name)
    }
    fn names(&self) -> io::Result<Vec<String>> {
        self.0.names()
    }
    fn open(&self, name: &str) -> io::Result<(Box<dyn ReadSeek>, u64)> {
        self.0.open(name)
    }
    fn append_to(&self, name: &str) -> io::Result<Box<dyn AppendFile>> {
        self.check(VolumeOp::Open(name))?;
        let inner = self.0.append_to(name)?;
        Ok(Box::new(FaultyFile { inner, name: name.to_owned(), folder: self.clone() }))
    }
    fn rewrite(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.rewrite(name, offset, bytes)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.0.rename(from, to)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.check(VolumeOp::Remove(name))?;
        self.0.remove(name)
    }
    fn sync(&self) -> io::Result<()> {
        self.check(VolumeOp::SyncNames)?;
        self.0.sync()
    }
}
