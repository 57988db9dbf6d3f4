//! Orders for compute: opening them, their records, and the bytes of jobs and states.

use std::time::Duration;

use florin_compute::{
    CheckpointUpload, ComputeJob, ComputeOrder, DataClass, LEASE_READ_MS_MAX, LeaseRead,
    LeaseRecord, OrderChanges, OrderRequest, OrderView, RecordedLease, SignedLeaseAction,
    StateUpload,
};
use florin_protocol::limits::BLOB_BYTES_MAX;
use florin_protocol::{Blob, Canonical, Digest, WalletSignature, WalletSigner, blob_digest};

use super::http::StreamedRequest;
use super::{Client, ClientError, WAIT_MS_MAX, check_digest};

/// A signed request to read is valid for half of the longest life: clocks differ.
const READ_MS: u64 = LEASE_READ_MS_MAX / 2;

fn unexpected(what: String, why: &dyn std::fmt::Display) -> ClientError {
    ClientError::UnexpectedContent { what, why: why.to_string() }
}

impl Client {
    /// Opens an order whose escrow is on the ledger. Idempotent: a second call returns the current view.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn open_order(&self, request: &OrderRequest) -> Result<OrderView, ClientError> {
        let view = self.http.post("orders", request, 0)?.json()?;
        self.check_order(view, request.order.id())
    }

    /// All orders that the coordinator remembers, the newest first.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] for an order of another market; those of any request.
    pub fn orders(&self) -> Result<Vec<OrderView>, ClientError> {
        let views: Vec<OrderView> = self.http.get("orders", 0)?;
        let checked = views.into_iter().map(|view| {
            let id = view.id;
            self.check_order(view, id)
        });
        checked.collect()
    }

    /// The orders that have changed behind a change of a run of the coordinator; all orders for another run.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] for an order of another market; those of any request.
    pub(crate) fn order_changes(&self, run: u64, after: u64) -> Result<OrderChanges, ClientError> {
        let path = format!("orders/changes?run={run}&after={after}");
        let changes: OrderChanges = self.http.get(&path, 0)?;
        let orders = changes.orders.into_iter().map(|view| {
            let id = view.id;
            self.check_order(view, id)
        });
        Ok(OrderChanges { orders: orders.collect::<Result<_, _>>()?, ..changes })
    }

    /// The current view of an order.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] if the order does not have this id; those of any request.
    pub fn order(&self, id: Digest) -> Result<OrderView, ClientError> {
        self.check_order(self.http.get(&format!("orders/{id}"), 0)?, id)
    }

    fn check_order(&self, view: OrderView, id: Digest) -> Result<OrderView, ClientError> {
        if view.id != id || view.order.id() != id {
            let why = format!("the order's id is {}", view.order.id());
            return Err(unexpected(format!("order {id}"), &why));
        }
        match view.order.market == self.coordinator.market {
            true => Ok(view),
            false => Err(unexpected(format!("order {id}"), &"it is an order of another market")),
        }
    }

    /// The job of an order, whose digest is the order's.
    ///
    /// # Errors
    /// [`ClientError::WrongDigest`], or those of any request.
    pub fn order_job(&self, order: Digest, job: Digest) -> Result<ComputeJob, ClientError> {
        let found: ComputeJob = self.http.get(&format!("orders/{order}/job"), 0)?;
        match found.digest() {
            got if got == job => Ok(found),
            got => Err(ClientError::WrongDigest { expected: job, got }),
        }
    }

    /// The record of a lease behind its first `after` actions. Without any it waits for the next one, at most
    /// `wait_ms` (at most [`WAIT_MS_MAX`]).
    ///
    /// # Errors
    /// Those of any request.
    pub fn lease_records(
        &self,
        order: Digest,
        after: u32,
        wait_ms: u64,
    ) -> Result<Vec<LeaseRecord>, ClientError> {
        let wait_ms = wait_ms.min(WAIT_MS_MAX);
        let path = format!("orders/{order}/records?after={after}&wait_ms={wait_ms}");
        self.http.get(&path, wait_ms)
    }

    /// The lease of an order, folded from its verified record; `None` before its bids begin.
    ///
    /// # Errors
    /// As [`Self::follow_lease`].
    pub fn recorded_lease(&self, view: &OrderView) -> Result<Option<RecordedLease>, ClientError> {
        let Some(opening) = view.opening() else { return Ok(None) };
        let lease = RecordedLease::open(opening);
        let mut lease =
            lease.map_err(|error| unexpected(format!("the order {}", view.id), &error))?;
        while lease.length() < view.records {
            if !self.follow_lease(&mut lease, 0)? {
                let why = format!("its record ends after {} actions", lease.length());
                return Err(unexpected(format!("the order {}", view.id), &why));
            }
        }
        Ok(Some(lease))
    }

    /// Performs the next recorded actions on a lease; returns whether there were any. Waits for one as
    /// [`Self::lease_records`] does.
    ///
    /// # Errors
    /// [`ClientError::UnexpectedContent`] for a record that does not follow the rules; those of any request.
    pub fn follow_lease(
        &self,
        lease: &mut RecordedLease,
        wait_ms: u64,
    ) -> Result<bool, ClientError> {
        let order = lease.opening().order.id();
        let records = self.lease_records(order, lease.length(), wait_ms)?;
        for record in &records {
            let number = lease.length();
            let what = || format!("action {number} of the order {order}");
            lease.apply(record).map_err(|error| unexpected(what(), &error))?;
        }
        Ok(!records.is_empty())
    }

    /// Sends an action on a lease. Idempotent for an identical action.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn act(&self, action: &SignedLeaseAction) -> Result<(), ClientError> {
        self.http.post(&format!("orders/{}/actions", action.body.order), action, 0)?.discard()
    }

    /// Uploads a blob of an order's job. Idempotent.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn put_order_blob(&self, order: Digest, bytes: &[u8]) -> Result<(), ClientError> {
        self.put_whole(&format!("orders/{order}/blobs/{}", blob_digest(bytes)), &[], bytes)
    }

    /// Uploads a state of a lease, with the signature of its provider's wallet. Idempotent.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn put_state(
        &self,
        upload: &StateUpload,
        signature: &WalletSignature,
        bytes: &[u8],
    ) -> Result<(), ClientError> {
        let StateUpload { order, by, state } = upload;
        let headers =
            [("state-account", by.to_string()), ("state-signature", signature.to_string())];
        self.put_whole(&format!("orders/{order}/states/{state}"), &headers, bytes)
    }

    /// Uploads a checkpoint of a lease within a time, with the signature of its provider's wallet. Idempotent.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn put_checkpoint(
        &self,
        upload: &CheckpointUpload,
        signature: &WalletSignature,
        bytes: &[u8],
        time: Duration,
    ) -> Result<(), ClientError> {
        let CheckpointUpload { order, by, state, salt } = upload;
        let headers = [
            ("state-account", by.to_string()),
            ("state-salt", salt.to_string()),
            ("state-signature", signature.to_string()),
        ];
        let path = format!("orders/{order}/checkpoints/{state}");
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let sent = StreamedRequest {
            method: "PUT",
            path: &path,
            headers: &headers,
            length,
            verified_bytes: length,
            time: Some(time),
        };
        self.http.send(&sent, &mut &*bytes)?.discard()
    }

    pub(super) fn put_whole(
        &self,
        path: &str,
        headers: &[(&str, String)],
        bytes: &[u8],
    ) -> Result<(), ClientError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let method = "PUT";
        let sent =
            StreamedRequest { method, path, headers, length, verified_bytes: length, time: None };
        self.http.send(&sent, &mut &*bytes)?.discard()
    }

    /// Checks that no other machine reads rows of a data class on their way.
    ///
    /// # Errors
    /// [`ClientError::NotConfidential`] over plain HTTP to another machine, unless the class is public.
    pub fn check_confidential(&self, class: DataClass) -> Result<(), ClientError> {
        match class == DataClass::Public || self.http.is_confidential() {
            true => Ok(()),
            false => Err(ClientError::NotConfidential { class: class.name() }),
        }
    }

    /// A blob of an order's job, of at most `limit` bytes, checked against its digest. `reader` signs the request, if
    /// the order is not public.
    ///
    /// # Errors
    /// [`ClientError::WrongDigest`], [`ClientError::NotConfidential`]; a rejection; those of any request.
    pub fn order_blob(
        &self,
        order: &ComputeOrder,
        digest: Digest,
        limit: u64,
        reader: &dyn WalletSigner,
    ) -> Result<Vec<u8>, ClientError> {
        let path = format!("orders/{}/blobs/{digest}", order.id());
        let headers = self.reader_headers(order, digest, reader)?;
        check_digest(digest, self.http.get_bytes(&path, &headers, limit.min(BLOB_BYTES_MAX))?)
    }

    /// The bytes of a state of a lease. The caller compares them with the digest as a state:
    /// [`florin_work::LeasedTraining::start`]. `reader` signs the request, if the order is not public.
    ///
    /// # Errors
    /// [`ClientError::NotConfidential`]; a rejection, or those of any request.
    pub fn order_state(
        &self,
        order: &ComputeOrder,
        state: Digest,
        reader: Option<&dyn WalletSigner>,
    ) -> Result<Vec<u8>, ClientError> {
        let headers = match reader {
            Some(reader) => self.reader_headers(order, state, reader)?,
            None => Vec::new(),
        };
        let path = format!("orders/{}/states/{state}", order.id());
        self.http.get_bytes(&path, &headers, BLOB_BYTES_MAX)
    }

    /// The rows of the disputed step of an order on private rows, for the referee that rules on it.
    ///
    /// # Errors
    /// As for [`Self::order_state`].
    pub fn disputed_rows(
        &self,
        order: &ComputeOrder,
        rows: Blob,
        reader: &dyn WalletSigner,
    ) -> Result<Vec<u8>, ClientError> {
        let headers = self.reader_headers(order, rows.digest, reader)?;
        let path = format!("orders/{}/disputed-rows", order.id());
        self.http.get_bytes(&path, &headers, rows.bytes.min(BLOB_BYTES_MAX))
    }

    /// The headers of a signed request to read something of an order; none for a public one.
    fn reader_headers(
        &self,
        order: &ComputeOrder,
        digest: Digest,
        reader: &dyn WalletSigner,
    ) -> Result<Vec<(&'static str, String)>, ClientError> {
        if order.data_class == DataClass::Public {
            return Ok(Vec::new());
        }
        self.check_confidential(order.data_class)?;
        let (by, expires) = (reader.address(), self.now().saturating_add_ms(READ_MS));
        let read = LeaseRead { order: order.id(), by, digest, expires };
        let signature = read.sign(order.market, reader)?;
        Ok(vec![
            ("reader-account", by.to_string()),
            ("reader-expires", expires.0.to_string()),
            ("reader-signature", signature.to_string()),
        ])
    }
}
