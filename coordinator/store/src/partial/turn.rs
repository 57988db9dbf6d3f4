//! Whose turn it is to send a partial's bytes: one connection at a time, and the newest one may have it. A connection
//! that broke without a word would otherwise keep its sender out until its time is over.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

/// The turn of one connection.
#[derive(Debug)]
pub struct Turn {
    asked: Notify,
    over: watch::Sender<bool>,
    written: AtomicU64,
}

impl Turn {
    pub(super) fn new(written: u64) -> Self {
        Self {
            asked: Notify::new(),
            over: watch::Sender::new(false),
            written: AtomicU64::new(written),
        }
    }

    /// Asks whoever has it to give it up.
    pub fn ask(&self) {
        self.asked.notify_one();
    }

    /// Resolves when somebody asked for it.
    pub async fn is_asked(&self) {
        self.asked.notified().await;
    }

    /// Resolves when it is over.
    pub async fn is_over(&self) {
        // It is not closed before it is over.
        let _ = self.over.subscribe().wait_for(|over| *over).await;
    }

    pub(super) fn end(&self) {
        self.over.send_replace(true);
    }

    /// Bytes on disk.
    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn set_written(&self, bytes: u64) {
        self.written.store(bytes, Ordering::Relaxed);
    }
}
