//! Every limit of the ledger on Ethereum, by name.

/// How often a question to an Ethereum node is asked again when no answer comes.
pub const RPC_RETRIES_MAX: u32 = 4;
/// Transactions of one account that an outbox keeps: what waits, and what a reorganisation could still undo.
pub const OUTBOX_MAX: usize = 1_024;
/// Versions of one transaction, each with a higher fee.
pub const ATTEMPTS_MAX: usize = 16;
/// How deep a transaction must lie before an outbox forgets it, in blocks. At least [`CONFIRMATIONS_MAX`](florin_ledger::limits::CONFIRMATIONS_MAX).
pub const FORGET_DEPTH: u64 = 64;
/// How often a node that lags behind what was seen before is asked again.
pub const LAG_RETRIES_MAX: u32 = 10;
/// Questions for events that one reading may take.
pub const LOG_PAGES_MAX: usize = 100_000;
/// Events that one reading may bring.
pub const LOGS_MAX: usize = 2_000_000;
/// Steps that one write on Ethereum takes at most: approvals before it, and repetitions because others came first.
pub const STEPS_MAX: usize = 12;
/// Tasks whose events a client keeps.
pub const HISTORIES_MAX: usize = 256;
/// How often a chain that is reorganised while it is read is read again.
pub const REREADS_MAX: u32 = 3;
/// Differences between events and contract that are told one by one.
pub const DIFFERENCES_MAX: usize = 100;
