//! The lease of an upload: one connection at a time may send its bytes, and a newer connection may
//! take over. Otherwise a connection that broke silently would block its sender until it times out.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// The lease of one connection.
#[derive(Debug)]
pub struct UploadLease {
    asked: Notify,
    over: watch::Sender<bool>,
    written: AtomicU64,
}

impl UploadLease {
    pub(super) fn new(written: u64) -> Self {
        Self {
            asked: Notify::new(),
            over: watch::Sender::new(false),
            written: AtomicU64::new(written),
        }
    }

    /// Asks the current holder to release the lease.
    pub fn request_release(&self) {
        self.asked.notify_one();
    }

    /// Resolves when another connection has asked for the lease.
    pub async fn release_requested(&self) {
        self.asked.notified().await;
    }

    /// Resolves when the lease is released.
    pub async fn released(&self) {
        // The sender is not dropped before the lease is released.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    pub(super) fn release(&self) {
        self.over.send_replace(true);
    }

    /// Number of bytes written.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Relaxed);
    }
}
