//! The limits of the ledger on Ethereum.

use std::time::Duration;

/// How often a request to an Ethereum node is retried when no response arrives.
pub const RPC_RETRIES_MAX: u32 = 4;
/// Transactions of one account in its outbox: those pending, and those that a reorganisation could
/// still revert.
pub const OUTBOX_MAX: usize = 1_024;
/// Versions (replacement transactions) of one transaction, each with a higher fee.
pub const TRANSACTION_VERSIONS_MAX: usize = 16;
/// Depth in blocks at which an outbox deletes a confirmed transaction. At least
/// [`CONFIRMATIONS_MAX`](florin_ledger::limits::CONFIRMATIONS_MAX).
pub const OUTBOX_PRUNE_DEPTH: u64 = 64;
/// How often a request is repeated when a node lags behind a block seen before, or when its events
/// lag behind its state.
pub const LAG_RETRIES_MAX: u32 = 10;
/// Pause before a request to a lagging node is repeated.
pub const LAG_PAUSE: Duration = Duration::from_millis(100);
/// Log queries that one read of the event history may send.
pub const LOG_PAGES_MAX: usize = 100_000;
/// Events that one read of the event history may return.
pub const LOGS_MAX: usize = 2_000_000;
/// Steps of one write on Ethereum at most: token approvals before it, and repetitions because other
/// transactions were executed first.
pub const STEPS_MAX: usize = 12;
/// Tasks whose event history a client caches.
pub const HISTORIES_MAX: usize = 256;
/// How often a read is repeated when the chain is reorganised during it.
pub const REORG_RETRIES_MAX: u32 = 3;
/// Mismatches between events and contract state that are reported one by one.
pub const MISMATCHES_MAX: usize = 100;
