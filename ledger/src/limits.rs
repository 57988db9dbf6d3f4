//! Every limit of the ledger, by name. What goes beyond one is refused with [`crate::Refusal::Limit`].

/// Transactions in one block.
pub const BLOCK_TRANSACTIONS_MAX: usize = 1_000;
/// Canonical bytes of one block's transactions; well below the protocol's largest message.
pub const BLOCK_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Canonical bytes of one signed transaction.
pub const TRANSACTION_BYTES_MAX: usize = 128 * 1024;
/// Settlements of one task that may wait for their windows at the same time; its coordinator waits when there are so
/// many. It bounds what anybody can have read out by asking for a task: see [`TASK_ANSWER_BYTES_MAX`].
pub const PENDING_MAX: usize = 64;
/// No task's books are longer than this as JSON, whatever its parties post; a usual one has a few kilobytes.
pub const TASK_ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Open tasks to which one provider may have pledged its stake.
pub const PLEDGES_MAX: usize = 256;
/// Accounts that a genesis may fund.
pub const ALLOCATIONS_MAX: usize = 100_000;
/// Transactions whose outcome can be asked for after they were carried out.
pub const RECENT_MAX: usize = 100_000;
/// Submissions that may wait for the writer.
pub const QUEUE_MAX: usize = 1_024;
/// How often a write is signed anew because another transaction of its account came first.
pub const NONCE_RETRIES_MAX: u32 = 64;
/// Longest answer of a remote ledger that is read, in bytes: one block as JSON.
pub const ANSWER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Most blocks that an Ethereum market waits for: nodes keep the state of the last 128, unless they keep all.
pub const CONFIRMATIONS_MAX: u64 = 64;
