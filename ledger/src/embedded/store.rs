//! The chain's database (redb): blocks and state in one file, one durable commit per block.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

use crate::embedded::ChainError;
use crate::embedded::ledger_file::{AcknowledgedBlock, LedgerFile};
use crate::state::{LedgerState, TABLES, TableRows};

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const BLOCKS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("blocks");
/// The key of the genesis in [`META`].
const GENESIS: &str = "genesis";
/// Size of the page cache. The state is in memory anyway, so that the cache serves the write path
/// only; a larger one would fill with blocks that are never read.
const CACHE_BYTES: usize = 8 * 1024 * 1024;

fn table(name: &str) -> TableDefinition<'_, &'static [u8], &'static [u8]> {
    TableDefinition::new(name)
}

/// The database, and the device with the page in front of it.
#[derive(Debug)]
pub(crate) struct Store {
    database: Database,
    device: LedgerFile,
    /// An injected bug for the crash tests: commits a block and its changes separately.
    #[cfg(test)]
    pub(crate) split_commits: bool,
}

impl From<redb::Error> for ChainError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::Locked,
            redb::Error::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Self::corrupt("the file ends before its last page".to_owned())
            }
            redb::Error::Io(error) => error.into(),
            redb::Error::PreviousIo => Self::Io(io::Error::other(
                "an earlier write failed: restart once the disk works again",
            )),
            other => Self::corrupt(format!("database error: {other}")),
        }
    }
}

impl From<DatabaseError> for ChainError {
    fn from(error: DatabaseError) -> Self {
        redb::Error::from(error).into()
    }
}

/// Runs a database operation on untrusted pages; converts a panic on a damaged page to an error.
fn catch_panic<T>(step: impl FnOnce() -> Result<T, ChainError>) -> Result<T, ChainError> {
    catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| {
        Err(ChainError::corrupt("the database panicked while reading a page".to_owned()))
    })
}

impl Store {
    /// Creates a database behind a new first page.
    pub(crate) fn create(
        device: LedgerFile,
        genesis: &[u8],
        state: &[TableRows],
    ) -> Result<Self, ChainError> {
        device.format()?;
        let store = Self::from_device(device)?;
        let run = || -> Result<(), redb::Error> {
            let mut write = store.database.begin_write()?;
            write.set_two_phase_commit(true);
            write.open_table(META)?.insert(GENESIS, genesis)?;
            write.open_table(BLOCKS)?;
            for name in TABLES {
                write.open_table(table(name))?;
            }
            write_rows(&write, state)?;
            Ok(write.commit()?)
        };
        run()?;
        Ok(store)
    }

    /// Opens a database and verifies the checksum of every page.
    pub(crate) fn open(device: LedgerFile) -> Result<Self, ChainError> {
        if !device.is_ledger()? {
            return Err(ChainError::NotALedger);
        }
        catch_panic(|| {
            let mut store = Self::from_device(device)?;
            if !store.database.check_integrity()? {
                return Err(ChainError::corrupt(
                    "checksums of database pages do not match".to_owned(),
                ));
            }
            Ok(store)
        })
    }

    fn from_device(device: LedgerFile) -> Result<Self, ChainError> {
        let database =
            redb::Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(device.clone())?;
        Ok(Self {
            database,
            device,
            #[cfg(test)]
            split_commits: false,
        })
    }

    /// Makes a block and its changes durable in one commit.
    pub(crate) fn commit(
        &self,
        number: u64,
        block: &[u8],
        changes: &[TableRows],
    ) -> Result<(), ChainError> {
        let run = || -> Result<(), redb::Error> {
            let mut write = self.database.begin_write()?;
            write.set_two_phase_commit(true);
            write.open_table(BLOCKS)?.insert(number, block)?;
            #[cfg(test)]
            if self.split_commits {
                write.commit()?;
                write = self.database.begin_write()?;
                write.set_two_phase_commit(true);
            }
            write_rows(&write, changes)?;
            Ok(write.commit()?)
        };
        Ok(run()?)
    }

    /// Records the newest acknowledged block.
    pub(crate) fn record_acknowledged(&self, witness: AcknowledgedBlock) -> Result<(), ChainError> {
        Ok(self.device.record_acknowledged(witness)?)
    }

    /// The newest acknowledged block, if it is known.
    pub(crate) fn last_acknowledged(&self) -> Result<Option<AcknowledgedBlock>, ChainError> {
        Ok(self.device.last_acknowledged()?)
    }

    /// The canonical bytes of the genesis.
    pub(crate) fn genesis(&self) -> Result<Vec<u8>, ChainError> {
        self.snapshot()?.genesis()
    }

    /// The canonical bytes of a block.
    pub(crate) fn block(&self, number: u64) -> Result<Option<Vec<u8>>, ChainError> {
        catch_panic(|| {
            let run = || -> Result<Option<Vec<u8>>, redb::Error> {
                let read = self.database.begin_read()?;
                Ok(read.open_table(BLOCKS)?.get(number)?.map(|bytes| bytes.value().to_vec()))
            };
            Ok(run()?)
        })
    }

    /// A snapshot of the current commit, unaffected by later commits.
    pub(crate) fn snapshot(&self) -> Result<StoreSnapshot, ChainError> {
        catch_panic(|| Ok(StoreSnapshot(self.database.begin_read().map_err(redb::Error::from)?)))
    }

    /// Writes blocks whose changes are part of the stored state already, in one commit.
    pub(crate) fn append_blocks(&self, blocks: &[(u64, Vec<u8>)]) -> Result<(), ChainError> {
        let run = || -> Result<(), redb::Error> {
            let mut write = self.database.begin_write()?;
            write.set_two_phase_commit(true);
            for (number, bytes) in blocks {
                write.open_table(BLOCKS)?.insert(number, bytes.as_slice())?;
            }
            Ok(write.commit()?)
        };
        Ok(run()?)
    }

    /// Calls `take` for every block, oldest first, until it returns an error.
    pub(crate) fn each_block(
        &self,
        take: impl FnMut(u64, &[u8]) -> Result<(), ChainError>,
    ) -> Result<(), ChainError> {
        self.snapshot()?.each_block(take)
    }

    /// The stored state.
    pub(crate) fn state(&self) -> Result<LedgerState, ChainError> {
        catch_panic(|| {
            let mut state = LedgerState::default();
            let read = self.database.begin_read().map_err(redb::Error::from)?;
            for name in TABLES {
                let rows = read.open_table(table(name)).map_err(redb::Error::from)?;
                for row in rows.iter().map_err(redb::Error::from)? {
                    let (key, value) = row.map_err(redb::Error::from)?;
                    state.restore(name, key.value(), value.value()).map_err(|error| {
                        ChainError::corrupt(format!("table {name} has an invalid row: {error}"))
                    })?;
                }
            }
            Ok(state)
        })
    }
}

/// A snapshot of the database at one commit.
pub(crate) struct StoreSnapshot(redb::ReadTransaction);

impl StoreSnapshot {
    /// The canonical bytes of the genesis.
    pub(crate) fn genesis(&self) -> Result<Vec<u8>, ChainError> {
        catch_panic(|| {
            let run = || -> Result<Option<Vec<u8>>, redb::Error> {
                Ok(self.0.open_table(META)?.get(GENESIS)?.map(|bytes| bytes.value().to_vec()))
            };
            run()?.ok_or_else(|| ChainError::corrupt("table meta has no genesis".to_owned()))
        })
    }

    /// Calls `take` for every block, oldest first, until it returns an error.
    pub(crate) fn each_block(
        &self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), ChainError>,
    ) -> Result<(), ChainError> {
        catch_panic(|| {
            let blocks = self.0.open_table(BLOCKS).map_err(redb::Error::from)?;
            for row in blocks.iter().map_err(redb::Error::from)? {
                let (number, bytes) = row.map_err(redb::Error::from)?;
                take(number.value(), bytes.value())?;
            }
            Ok(())
        })
    }

    /// Every row of the stored state.
    pub(crate) fn rows(&self) -> Result<Vec<TableRows>, ChainError> {
        catch_panic(|| {
            let run = || -> Result<Vec<TableRows>, redb::Error> {
                let mut tables = Vec::new();
                for name in TABLES {
                    let mut found = Vec::new();
                    for row in self.0.open_table(table(name))?.iter()? {
                        let (key, value) = row?;
                        found.push((key.value().to_vec(), Some(value.value().to_vec())));
                    }
                    tables.push((*name, found));
                }
                Ok(tables)
            };
            Ok(run()?)
        })
    }
}

fn write_rows(write: &redb::WriteTransaction, tables: &[TableRows]) -> Result<(), redb::Error> {
    for (name, rows) in tables {
        let mut table = write.open_table(table(name))?;
        for (key, value) in rows {
            match value {
                Some(value) => table.insert(key.as_slice(), value.as_slice())?,
                None => table.remove(key.as_slice())?,
            };
        }
    }
    Ok(())
}
