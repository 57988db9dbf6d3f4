//! Every limit of the ledger, by name. A request beyond a limit is refused with
//! [`crate::Refusal::LimitExceeded`].

/// Transactions in one block.
pub const BLOCK_TRANSACTIONS_MAX: usize = 1_000;
/// Canonical bytes of one block's transactions; well below the protocol's largest message.
pub const BLOCK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Canonical bytes of one signed transaction.
pub const TRANSACTION_BYTES_MAX: usize = 128 * 1024;
/// Settlements of one task that may be pending (within their challenge windows) at the same time;
/// at the limit the coordinator waits. It bounds the size of a task's state in a response: see
/// [`TASK_RESPONSE_BYTES_MAX`].
pub const PENDING_MAX: usize = 64;
/// Upper bound for the length of a task's state as JSON, for any sequence of posts; the usual
/// length is a few kilobytes.
pub const TASK_RESPONSE_BYTES_MAX: usize = 64 * 1024;
/// Open tasks to which one provider may have pledged its stake.
pub const PLEDGES_MAX: usize = 256;
/// Members of a split. Each claim pays all of them, and its sender bears the costs.
pub const SPLIT_MEMBERS_MAX: usize = 64;
/// Accounts to which a genesis may allocate tokens.
pub const ALLOCATIONS_MAX: usize = 100_000;
/// Executed transactions whose outcome can still be queried.
pub const RECENT_MAX: usize = 100_000;
/// Submissions that may be queued for the writer.
pub const QUEUE_MAX: usize = 1_024;
/// How often a write is signed again because another transaction of its account was executed first.
pub const NONCE_RETRIES_MAX: u32 = 64;
/// Longest response of a remote ledger that is read, in bytes: one block as JSON.
pub const RESPONSE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most confirmations that an Ethereum market may require: nodes other than archive nodes store the
/// state of the last 128 blocks.
pub const CONFIRMATIONS_MAX: u64 = 64;
