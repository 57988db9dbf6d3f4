//! Every limit of the ledger, by name. A request beyond a limit is refused with
//! [`crate::Refusal::Limit`].

/// Transactions in one block.
pub const BLOCK_TRANSACTIONS_MAX: usize = 1_000;
/// Canonical bytes of one block's transactions; well below the protocol's largest message.
pub const BLOCK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Canonical bytes of one signed transaction.
pub const TRANSACTION_BYTES_MAX: usize = 128 * 1024;
/// Settlements of one task that may be pending (within their challenge windows) at the same time;
/// at the limit the coordinator waits. It bounds the size of a task's state in a response: see
/// [`TASK_ANSWER_BYTES_MAX`].
pub const PENDING_MAX: usize = 64;
/// Upper bound for the length of a task's state as JSON, for any sequence of posts; the usual
/// length is a few kilobytes.
pub const TASK_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Open tasks to which one provider may have pledged its stake.
pub const PLEDGES_MAX: usize = 256;
/// Accounts to which a genesis may allocate tokens.
pub const ALLOCATIONS_MAX: usize = 100_000;
/// Executed transactions whose outcome can still be queried.
pub const RECENT_MAX: usize = 100_000;
/// Submissions that may be queued for the writer.
pub const QUEUE_MAX: usize = 1_024;
/// How often a write is signed again because another transaction of its account was executed first.
pub const NONCE_RETRIES_MAX: u32 = 64;
/// Longest response of a remote ledger that is read, in bytes: one block as JSON.
pub const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// How often a request to an Ethereum node is retried when no response arrives.
pub const RPC_RETRIES_MAX: u32 = 4;
/// Transactions of one account in its outbox: those pending, and those that a reorganisation could
/// still revert.
pub const OUTBOX_MAX: usize = 1_024;
/// Versions (replacement transactions) of one transaction, each with a higher fee.
pub const ATTEMPTS_MAX: usize = 16;
/// Depth in blocks at which an outbox deletes a confirmed transaction. At least
/// [`CONFIRMATIONS_MAX`].
pub const FORGET_DEPTH: u64 = 64;
/// Most confirmations that an Ethereum market may require: nodes other than archive nodes store the
/// state of the last 128 blocks.
pub const CONFIRMATIONS_MAX: u64 = 64;
/// How often a request is repeated when a node lags behind a block seen before.
pub const LAG_RETRIES_MAX: u32 = 10;
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
pub const REREADS_MAX: u32 = 3;
/// Mismatches between events and contract state that are reported one by one.
pub const DIFFERENCES_MAX: usize = 100;
