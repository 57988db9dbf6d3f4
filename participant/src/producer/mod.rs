//! A coupled producer: a running program whose rows a participant trains on while it writes them.
//!
//! One thread reads the rows, from a socket or a growing folder, and encodes them. A reservoir
//! holds a uniform sample of all rows so far, and each round trains on a copy of it. While a
//! training runs, rows wait in a queue with a limit; at the limit the reading stops, and the
//! producer blocks. Time is therefore lost on one of two sides, and counted for it: the trainer waits
//! for rows (the producer is slow), or read rows wait for the trainer (the trainer is slow).
//!
//! Nothing of the rows is on disk, so that a restart begins with an empty reservoir.

mod exchange;
mod folder;
#[cfg(test)]
mod folder_tests;
#[cfg(test)]
mod heat_tests;
mod limits;
mod lines;
mod news;
mod row_reader;
mod socket;
#[cfg(test)]
mod tests;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use florin_learning::data::{DatasetError, LoadError, ProducerSource, Reservoir, RowShape};
use florin_learning::{Dataset, RowEncoder};

use exchange::{Clock, Exchange};
use folder::FolderReader;
pub use limits::{
    FILES_LISTED_MAX, FILES_NOT_READY_MAX, FILES_UNREAD_MAX, LINE_BYTES_MAX, QUEUE_FEATURES_MAX,
    QUEUE_ROWS_MAX, REFUSED_IN_A_ROW_MAX,
};
pub use news::{FeedCounts, ProducerNews, RefusalCode, RowRefusal};
use row_reader::RowReader;
use socket::Listener;

/// The name of the reading thread; a trace has its waits at a location of its own.
const THREAD: &str = "florin-producer";

/// Settings of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedSettings {
    /// Rows of the reservoir, at most.
    pub capacity: usize,
    /// Rows of the reservoir from which on a round begins.
    pub rows_min: usize,
    /// Rows that a round requires in addition to those before the last training.
    pub new_rows_min: u64,
    /// Seed of the sample.
    pub seed: u64,
}

/// The use of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplePurpose {
    /// A training, which begins with it: further rows wait until [`RowFeed::resume`].
    Training,
    /// Measurements before a bond.
    Quote,
}

/// Why a producer's rows cannot be read, or not any longer.
#[derive(Debug, thiserror::Error)]
pub enum ProducerError {
    /// The settings contradict each other or the rows of the task.
    #[error("{0}")]
    Settings(String),
    /// The address cannot be listened on.
    #[error("cannot listen at {at}: {source}")]
    Address {
        /// The address, or the socket's file.
        at: String,
        /// The system's error.
        source: io::Error,
    },
    /// The folder cannot be used.
    #[error(
        "{}: {source}; the folder must exist, and its files are moved into its subfolders \
         `consumed` and `refused`", path.display()
    )]
    Folder {
        /// The folder, or the path in it.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This program reads no Parquet.
    #[error(transparent)]
    Unsupported(Box<LoadError>),
    /// Too many rows in a row are wrong.
    #[error(
        "more than {REFUSED_IN_A_ROW_MAX} rows, connections or files in a row were refused; the last \
         one: {last}. Compare what the program writes with docs/producers.md, and start again"
    )]
    Refused {
        /// The last refusal.
        last: RowRefusal,
    },
    /// Too many files are not readable.
    #[error(
        "more than {FILES_NOT_READY_MAX} files of {} are no whole Parquet files: remove them, or \
         write each under another name and rename it when it is whole", path.display()
    )]
    NotReady {
        /// The folder.
        path: PathBuf,
    },
    /// The rows form no data set.
    #[error(transparent)]
    Rows(#[from] DatasetError),
    /// The reading thread has ended.
    #[error("the thread that reads rows has ended; start the command again")]
    Stopped,
}

impl ProducerError {
    /// The stable error code.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Settings(_) => "PRODUCER_SETTINGS",
            Self::Address { .. } => "PRODUCER_ADDRESS",
            Self::Folder { .. } => "PRODUCER_FOLDER",
            Self::Unsupported(_) => "INVALID_DATA",
            Self::Refused { .. } | Self::NotReady { .. } => "PRODUCER_INVALID",
            Self::Rows(_) => "DATA_MISMATCH",
            Self::Stopped => "PRODUCER_STOPPED",
        }
    }
}

/// The rows of a producer, as long as this value exists.
#[derive(Debug)]
pub struct RowFeed {
    exchange: Arc<Exchange>,
    settings: FeedSettings,
    address: String,
    empty: Dataset,
    thread: Option<JoinHandle<()>>,
}

impl RowFeed {
    /// Starts to read the rows of a producer, encoded by `encoder`.
    ///
    /// # Errors
    /// [`ProducerError::Settings`], [`ProducerError::Address`] and [`ProducerError::Folder`].
    pub fn start(
        source: &ProducerSource,
        encoder: RowEncoder,
        settings: FeedSettings,
    ) -> Result<Self, ProducerError> {
        let begun = std::time::Instant::now();
        Self::start_with_clock(source, encoder, settings, Arc::new(move || begun.elapsed()))
    }

    fn start_with_clock(
        source: &ProducerSource,
        encoder: RowEncoder,
        settings: FeedSettings,
        clock: Clock,
    ) -> Result<Self, ProducerError> {
        settings.check()?;
        let shape = RowShape { width: encoder.width(), classes: encoder.classes };
        let reservoir = Reservoir::new(shape, settings.capacity, settings.seed);
        let reservoir = reservoir.map_err(|error| {
            ProducerError::Settings(format!("--reservoir {}: {error}", settings.capacity))
        })?;
        let empty = encoder.dataset(Vec::new(), Vec::new())?;
        let exchange = Arc::new(Exchange::new(reservoir, clock));
        let label = source.label().to_owned();
        let rows = RowReader::new(Arc::clone(&exchange), encoder, label);
        let (address, read): (String, Box<dyn FnOnce() + Send>) = match source {
            ProducerSource::Folder { folder, .. } => {
                let reader = FolderReader::open(folder, rows)?;
                (folder.display().to_string(), Box::new(move || reader.run()))
            }
            socket => {
                let listener = Listener::bind(socket)?;
                (listener.address().to_owned(), Box::new(move || listener.run(&rows)))
            }
        };
        let ends = ThreadEnd(Arc::clone(&exchange));
        let work = move || {
            let _ends = ends;
            read();
        };
        let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(work);
        let failed = |source| ProducerError::Address { at: address.clone(), source };
        let thread = Some(thread.map_err(failed)?);
        Ok(Self { exchange, settings, address, empty, thread })
    }

    /// The folder, the socket's file, or the address with its port.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The settings.
    #[must_use]
    pub const fn settings(&self) -> FeedSettings {
        self.settings
    }

    /// A data set of the shape of the rows, without any.
    #[must_use]
    pub const fn empty_rows(&self) -> &Dataset {
        &self.empty
    }

    /// The counts and waits so far.
    #[must_use]
    pub fn counts(&self) -> FeedCounts {
        self.exchange.counts()
    }

    /// The refusals that were not returned before.
    #[must_use]
    pub fn take_refusals(&self) -> Vec<RowRefusal> {
        self.exchange.take_refusals()
    }

    /// Whether a training may begin: [`take`](Self::take) would not wait.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.exchange.is_ready(&self.settings)
    }

    /// The sample; `None` if too few rows came within `limit`.
    ///
    /// # Errors
    /// [`ProducerError`] of the reading, which ends the feed.
    pub fn take(
        &self,
        purpose: SamplePurpose,
        limit: Duration,
    ) -> Result<Option<Dataset>, ProducerError> {
        self.exchange.take(&self.settings, purpose, limit)
    }

    /// The training has ended: the rows that wait, and further ones, enter the reservoir.
    pub fn resume(&self) {
        self.exchange.resume();
    }
}

impl FeedSettings {
    fn check(&self) -> Result<(), ProducerError> {
        let Self { capacity, rows_min, .. } = *self;
        if capacity == 0 || rows_min == 0 || rows_min > capacity {
            return Err(ProducerError::Settings(format!(
                "--min-rows {rows_min} and --reservoir {capacity}: a round needs at least one row, and \
                 the reservoir must have room for as many as a round needs"
            )));
        }
        Ok(())
    }
}

impl Drop for RowFeed {
    fn drop(&mut self) {
        self.exchange.close();
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its thread.
            let _ = thread.join();
        }
    }
}

/// Wakes the trainer when the reading thread ends, also by a panic.
#[derive(Debug)]
struct ThreadEnd(Arc<Exchange>);

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        self.0.fail(ProducerError::Stopped);
    }
}

/// The part of a path behind its folder, for messages.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
