//! The durable records of leases: one database file in the data folder. Each change is one commit, and is durable
//! before any reply.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use borsh::{BorshDeserialize, BorshSerialize};
use florin_compute::{LeaseRecord, ListingRecord, ListingTerms, OrderMoney, OrderRequest};
use florin_protocol::{Digest, Timestamp};
use redb::backends::InMemoryBackend;
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};

/// The file in a data folder. It exists from the first order on.
pub const LEASES_FILE: &str = "leases.redb";

/// An id → the encoded order or listing.
type ThingTable = TableDefinition<'static, [u8; 32], &'static [u8]>;
/// An id and a number → an encoded record.
type RecordTable = TableDefinition<'static, ([u8; 32], u32), &'static [u8]>;

/// An order's id → [`StoredOrder`].
const ORDERS: ThingTable = TableDefinition::new("orders");
/// An order's id and a number → [`LeaseRecord`].
const RECORDS: RecordTable = TableDefinition::new("records");
/// An order's id and the digest of a state → [`StoredState`].
const STATES: TableDefinition<'_, ([u8; 32], [u8; 32]), &[u8]> = TableDefinition::new("states");
/// An order's id and a number of segments → [`StoredCheckpoint`] after them.
const CHECKPOINTS: RecordTable = TableDefinition::new("checkpoints");
/// The digests of blobs that were uploaded for jobs.
const BLOBS: TableDefinition<'_, [u8; 32], ()> = TableDefinition::new("blobs");

/// A listing's id → [`StoredListing`].
const LISTINGS: ThingTable = TableDefinition::new("listings");
/// A listing's id and a number → [`ListingRecord`].
const LISTING_RECORDS: RecordTable = TableDefinition::new("listing records");

/// An order as it was received, and how far it has come.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct StoredOrder {
    pub(super) request: OrderRequest,
    /// The secret whose commitment is published at once, and which draws the audits.
    pub(super) beacon: Digest,
    pub(super) received: Timestamp,
    /// When its bids began.
    pub(super) opened: Option<Timestamp>,
    /// Why its bids never begin.
    pub(super) refused: Option<String>,
    pub(super) money: OrderMoney,
}

/// A state whose bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct StoredState {
    /// Steps of the job before it.
    pub(super) step: u64,
    /// The blob with its bytes.
    pub(super) blob: Digest,
}

/// A state that the provider of a lease left while it computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct StoredCheckpoint {
    /// The digest of the state.
    pub(super) state: Digest,
    /// The salt of the leaf of the segment before it.
    pub(super) salt: Digest,
    /// Its bytes.
    pub(super) stored: StoredState,
}

/// A listing as it was received, and how far its money has come.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub(super) struct StoredListing {
    pub(super) terms: ListingTerms,
    pub(super) opened: Timestamp,
    pub(super) money: OrderMoney,
}

/// All that is stored of a listing.
#[derive(Clone, Debug)]
pub(super) struct LoadedListing {
    pub(super) stored: StoredListing,
    pub(super) records: Vec<ListingRecord>,
}

/// All that is stored of an order.
#[derive(Clone, Debug)]
pub(super) struct LoadedOrder {
    pub(super) stored: StoredOrder,
    pub(super) records: Vec<LeaseRecord>,
    pub(super) states: BTreeMap<Digest, StoredState>,
    pub(super) checkpoints: BTreeMap<u32, StoredCheckpoint>,
}

/// All that is stored.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadedLeases {
    pub(super) orders: BTreeMap<Digest, LoadedOrder>,
    pub(super) listings: BTreeMap<Digest, LoadedListing>,
    pub(super) blobs: BTreeSet<Digest>,
}

/// The records of leases cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("the records of leases in {path}: {why} [LEASES_UNUSABLE]", path = .path.display())]
pub struct LeaseStoreError {
    path: PathBuf,
    why: String,
    is_full: bool,
}

impl LeaseStoreError {
    /// Whether the disk is full.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.is_full
    }
}

/// The database.
#[derive(Debug)]
pub(super) struct LeaseStore {
    path: PathBuf,
    /// `None` before the first order.
    database: Mutex<Option<Database>>,
    has_failed: AtomicBool,
}

impl LeaseStore {
    fn new(path: PathBuf) -> Self {
        Self { path, database: Mutex::new(None), has_failed: AtomicBool::new(false) }
    }

    /// Opens the file of a data folder, if it exists.
    pub(super) fn open(folder: &Path) -> Result<Self, LeaseStoreError> {
        let store = Self::new(folder.join(LEASES_FILE));
        if store.path.exists() {
            let database = store.run(|| Ok(Database::open(&store.path)?))?;
            *store.database.lock().unwrap_or_else(PoisonError::into_inner) = Some(database);
        }
        Ok(store)
    }

    /// A copy in memory of the file of a data folder, which stays as it is; `None` without a file.
    pub(super) fn read_only(folder: &Path) -> Result<Option<Self>, LeaseStoreError> {
        let path = folder.join(LEASES_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let store = Self::new(path);
        let database = store.run(|| {
            let bytes = std::fs::read(&store.path)?;
            let memory = InMemoryBackend::new();
            memory.set_len(u64::try_from(bytes.len()).unwrap_or(u64::MAX))?;
            memory.write(0, &bytes)?;
            Ok(Database::builder().create_with_backend(memory)?)
        })?;
        *store.database.lock().unwrap_or_else(PoisonError::into_inner) = Some(database);
        Ok(Some(store))
    }

    fn failed(&self, error: &redb::Error) -> LeaseStoreError {
        let is_full = matches!(error, redb::Error::Io(error) if florin_store::is_full(error));
        LeaseStoreError { path: self.path.clone(), why: error.to_string(), is_full }
    }

    fn run<T>(&self, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, LeaseStoreError> {
        work().map_err(|error| self.failed(&error))
    }

    fn corrupt(&self, why: &dyn std::fmt::Display) -> LeaseStoreError {
        let why = format!("it is damaged ({why}): restore a backup");
        LeaseStoreError { path: self.path.clone(), why, is_full: false }
    }

    /// The error of records that contradict the rules.
    pub(super) fn inconsistent(&self, why: &str) -> LeaseStoreError {
        self.corrupt(&why)
    }

    fn decode<T: BorshDeserialize>(&self, bytes: &[u8]) -> Result<T, LeaseStoreError> {
        borsh::from_slice(bytes).map_err(|error| self.corrupt(&error))
    }

    /// Makes changes durable in one commit. Creates the file.
    fn write(
        &self,
        change: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), LeaseStoreError> {
        let mut database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let written = self.run(|| {
            let database = match database.take() {
                Some(there) => database.insert(there),
                None => database.insert(Database::create(&self.path)?),
            };
            let write = database.begin_write()?;
            change(&write)?;
            Ok(write.commit()?)
        });
        if written.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        written
    }

    pub(super) fn put_order(&self, id: Digest, order: &StoredOrder) -> Result<(), LeaseStoreError> {
        self.put(ORDERS, id, order)
    }

    fn put(
        &self,
        table: ThingTable,
        id: Digest,
        thing: &impl BorshSerialize,
    ) -> Result<(), LeaseStoreError> {
        let bytes = borsh::to_vec(thing).map_err(|error| self.corrupt(&error))?;
        self.write(|write| {
            write.open_table(table)?.insert(id.0, bytes.as_slice())?;
            Ok(())
        })
    }

    fn append_to(
        &self,
        table: RecordTable,
        (id, number): (Digest, u32),
        record: &impl BorshSerialize,
    ) -> Result<(), LeaseStoreError> {
        let bytes = borsh::to_vec(record).map_err(|error| self.corrupt(&error))?;
        self.write(|write| {
            write.open_table(table)?.insert((id.0, number), bytes.as_slice())?;
            Ok(())
        })
    }

    /// Stores a new order, with the state that it starts from.
    pub(super) fn put_new_order(
        &self,
        id: Digest,
        order: &StoredOrder,
        start: Option<(Digest, StoredState)>,
    ) -> Result<(), LeaseStoreError> {
        let bytes = borsh::to_vec(order).map_err(|error| self.corrupt(&error))?;
        let start = start.map(|(state, stored)| borsh::to_vec(&stored).map(|bytes| (state, bytes)));
        let start = start.transpose().map_err(|error| self.corrupt(&error))?;
        self.write(|write| {
            write.open_table(ORDERS)?.insert(id.0, bytes.as_slice())?;
            if let Some((state, bytes)) = &start {
                write.open_table(STATES)?.insert((id.0, state.0), bytes.as_slice())?;
            }
            Ok(())
        })
    }

    pub(super) fn append(
        &self,
        id: Digest,
        number: u32,
        record: &LeaseRecord,
    ) -> Result<(), LeaseStoreError> {
        self.append_to(RECORDS, (id, number), record)
    }

    /// Stores the states of checkpoints among those of the lease.
    pub(super) fn put_states(
        &self,
        id: Digest,
        states: &[(Digest, StoredState)],
    ) -> Result<(), LeaseStoreError> {
        let encoded = states.iter().map(|(state, stored)| Ok((state, borsh::to_vec(stored)?)));
        let encoded: Vec<_> =
            encoded.collect::<Result<_, std::io::Error>>().map_err(|error| self.corrupt(&error))?;
        self.write(|write| {
            let mut table = write.open_table(STATES)?;
            for (state, bytes) in &encoded {
                table.insert((id.0, state.0), bytes.as_slice())?;
            }
            Ok(())
        })
    }

    pub(super) fn put_checkpoint(
        &self,
        id: Digest,
        after: u32,
        checkpoint: &StoredCheckpoint,
    ) -> Result<(), LeaseStoreError> {
        self.append_to(CHECKPOINTS, (id, after), checkpoint)
    }

    pub(super) fn forget_checkpoint(&self, id: Digest, after: u32) -> Result<(), LeaseStoreError> {
        self.write(|write| {
            write.open_table(CHECKPOINTS)?.remove((id.0, after))?;
            Ok(())
        })
    }

    /// Removes the checkpoints of an order.
    pub(super) fn forget_checkpoints(&self, id: Digest) -> Result<(), LeaseStoreError> {
        self.write(|write| {
            let all = (id.0, 0)..=(id.0, u32::MAX);
            Ok(write.open_table(CHECKPOINTS)?.retain_in(all, |_, _| false)?)
        })
    }

    pub(super) fn put_blob(&self, digest: Digest) -> Result<(), LeaseStoreError> {
        self.write(|write| {
            write.open_table(BLOBS)?.insert(digest.0, ())?;
            Ok(())
        })
    }

    pub(super) fn put_listing(
        &self,
        id: Digest,
        listing: &StoredListing,
    ) -> Result<(), LeaseStoreError> {
        self.put(LISTINGS, id, listing)
    }

    pub(super) fn append_to_listing(
        &self,
        id: Digest,
        number: u32,
        record: &ListingRecord,
    ) -> Result<(), LeaseStoreError> {
        self.append_to(LISTING_RECORDS, (id, number), record)
    }

    /// Removes a listing with its records.
    pub(super) fn forget_listing(&self, id: Digest) -> Result<(), LeaseStoreError> {
        self.write(|write| {
            write.open_table(LISTINGS)?.remove(id.0)?;
            let records = (id.0, 0)..=(id.0, u32::MAX);
            write.open_table(LISTING_RECORDS)?.retain_in(records, |_, _| false)?;
            Ok(())
        })
    }

    /// Removes an order with its records and states.
    pub(super) fn forget(&self, id: Digest) -> Result<(), LeaseStoreError> {
        self.write(|write| {
            write.open_table(ORDERS)?.remove(id.0)?;
            let records = (id.0, 0)..=(id.0, u32::MAX);
            write.open_table(RECORDS)?.retain_in(records.clone(), |_, _| false)?;
            write.open_table(CHECKPOINTS)?.retain_in(records, |_, _| false)?;
            let states = (id.0, [0; 32])..=(id.0, [u8::MAX; 32]);
            write.open_table(STATES)?.retain_in(states, |_, _| false)?;
            Ok(())
        })
    }

    /// Reads everything.
    pub(super) fn load(&self) -> Result<LoadedLeases, LeaseStoreError> {
        let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(database) = database.as_ref() else { return Ok(LoadedLeases::default()) };
        let rows = self.run(|| StoredRows::read(&database.begin_read()?))?;
        let mut loaded = LoadedLeases { blobs: rows.blobs, ..LoadedLeases::default() };
        for (id, bytes) in rows.orders {
            let stored = self.decode(&bytes)?;
            let (states, checkpoints) = (BTreeMap::new(), BTreeMap::new());
            let order = LoadedOrder { stored, records: Vec::new(), states, checkpoints };
            loaded.orders.insert(id, order);
        }
        for ((id, number), bytes) in rows.records {
            let order = loaded.orders.get_mut(&id);
            let order = order.ok_or_else(|| self.corrupt(&"a record without an order"))?;
            if usize::try_from(number) != Ok(order.records.len()) {
                return Err(self.corrupt(&"a record is missing"));
            }
            order.records.push(self.decode(&bytes)?);
        }
        for ((id, state), bytes) in rows.states {
            let order = loaded.orders.get_mut(&id);
            let order = order.ok_or_else(|| self.corrupt(&"a state without an order"))?;
            order.states.insert(state, self.decode(&bytes)?);
        }
        for ((id, after), bytes) in rows.checkpoints {
            let order = loaded.orders.get_mut(&id);
            let order = order.ok_or_else(|| self.corrupt(&"a checkpoint without an order"))?;
            order.checkpoints.insert(after, self.decode(&bytes)?);
        }
        for (id, bytes) in rows.listings {
            let listing = LoadedListing { stored: self.decode(&bytes)?, records: Vec::new() };
            loaded.listings.insert(id, listing);
        }
        for ((id, number), bytes) in rows.listing_records {
            let listing = loaded.listings.get_mut(&id);
            let listing = listing.ok_or_else(|| self.corrupt(&"a record without a listing"))?;
            if usize::try_from(number) != Ok(listing.records.len()) {
                return Err(self.corrupt(&"a record of a listing is missing"));
            }
            listing.records.push(self.decode(&bytes)?);
        }
        Ok(loaded)
    }

    /// A consistent copy of all rows; `None` before the first order. Writes go on meanwhile.
    pub(super) fn copy(&self) -> Result<Option<LeaseCopy>, LeaseStoreError> {
        let read = {
            let database = self.database.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(database) = database.as_ref() else { return Ok(None) };
            self.run(|| Ok(database.begin_read()?))?
        };
        let rows = self.run(|| StoredRows::read(&read))?;
        Ok(Some(LeaseCopy { rows }))
    }

    /// Whether records can be written: after a failed write the file is opened anew by a restart.
    pub(super) fn is_usable(&self) -> bool {
        !self.has_failed.load(Ordering::Relaxed)
    }
}

/// A copy of the records of all leases.
pub struct LeaseCopy {
    rows: StoredRows,
}

impl LeaseCopy {
    /// Writes the copy to a new file.
    ///
    /// # Errors
    /// [`LeaseStoreError`].
    pub fn write(&self, to: &Path) -> Result<(), LeaseStoreError> {
        let store = LeaseStore::new(to.to_owned());
        store.run(|| {
            let copy = Database::create(to)?;
            let write = copy.begin_write()?;
            self.rows.write(&write)?;
            Ok(write.commit()?)
        })
    }
}

/// The rows of all tables in one read transaction.
#[derive(Default)]
struct StoredRows {
    orders: ThingRows,
    records: RecordRows,
    states: Vec<((Digest, Digest), Vec<u8>)>,
    checkpoints: RecordRows,
    blobs: BTreeSet<Digest>,
    listings: ThingRows,
    listing_records: RecordRows,
}

/// A table that no write has opened yet has no rows.
fn if_there<T>(opened: Result<T, redb::TableError>) -> Result<Option<T>, redb::Error> {
    match opened {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Encoded orders or listings.
type ThingRows = Vec<(Digest, Vec<u8>)>;
/// Encoded records.
type RecordRows = Vec<((Digest, u32), Vec<u8>)>;

fn things(read: &ReadTransaction, table: ThingTable) -> Result<ThingRows, redb::Error> {
    let Some(table) = if_there(read.open_table(table))? else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for row in table.iter()? {
        let (id, bytes) = row?;
        rows.push((Digest(id.value()), bytes.value().to_vec()));
    }
    Ok(rows)
}

fn records(read: &ReadTransaction, table: RecordTable) -> Result<RecordRows, redb::Error> {
    let Some(table) = if_there(read.open_table(table))? else { return Ok(Vec::new()) };
    let mut rows = Vec::new();
    for row in table.iter()? {
        let (key, bytes) = row?;
        let (id, number) = key.value();
        rows.push(((Digest(id), number), bytes.value().to_vec()));
    }
    Ok(rows)
}

impl StoredRows {
    fn read(read: &ReadTransaction) -> Result<Self, redb::Error> {
        let mut rows = Self {
            orders: things(read, ORDERS)?,
            records: records(read, RECORDS)?,
            checkpoints: records(read, CHECKPOINTS)?,
            listings: things(read, LISTINGS)?,
            listing_records: records(read, LISTING_RECORDS)?,
            ..Self::default()
        };
        if let Some(table) = if_there(read.open_table(STATES))? {
            for row in table.iter()? {
                let (key, bytes) = row?;
                let (id, state) = key.value();
                rows.states.push(((Digest(id), Digest(state)), bytes.value().to_vec()));
            }
        }
        if let Some(table) = if_there(read.open_table(BLOBS))? {
            for row in table.iter()? {
                rows.blobs.insert(Digest(row?.0.value()));
            }
        }
        Ok(rows)
    }

    fn write(&self, write: &redb::WriteTransaction) -> Result<(), redb::Error> {
        for (table, rows) in [(ORDERS, &self.orders), (LISTINGS, &self.listings)] {
            let mut table = write.open_table(table)?;
            for (id, bytes) in rows {
                table.insert(id.0, bytes.as_slice())?;
            }
        }
        for (table, rows) in [
            (RECORDS, &self.records),
            (CHECKPOINTS, &self.checkpoints),
            (LISTING_RECORDS, &self.listing_records),
        ] {
            let mut table = write.open_table(table)?;
            for ((id, number), bytes) in rows {
                table.insert((id.0, *number), bytes.as_slice())?;
            }
        }
        let mut table = write.open_table(STATES)?;
        for ((id, state), bytes) in &self.states {
            table.insert((id.0, state.0), bytes.as_slice())?;
        }
        let mut table = write.open_table(BLOBS)?;
        for blob in &self.blobs {
            table.insert(blob.0, ())?;
        }
        Ok(())
    }
}
