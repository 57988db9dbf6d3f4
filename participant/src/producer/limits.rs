//! The limits of a coupled producer. Each of them bounds memory or time that rows could take.

/// Rows that wait for a training to end, at most: the producer blocks at this number.
pub const QUEUE_ROWS_MAX: usize = 4_096;
/// Numbers of the waiting rows, at most: 64 MiB. One batch of rows may be larger.
pub const QUEUE_FEATURES_MAX: usize = 1 << 24;
/// Rows that are handed over at once, at most.
pub(super) const BATCH_ROWS_MAX: usize = 256;
/// Numbers of the rows that are handed over at once, at most; a row may be larger.
pub(super) const BATCH_FEATURES_MAX: usize = 1 << 20;
/// Bytes of a line, at most: 16 MiB.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Refused rows, connections and files without a valid row between them, at most: then the producer
/// has an error that no later row would mend.
pub const REFUSED_IN_A_ROW_MAX: u64 = 1_000;
/// Unread Parquet files of a folder at which its producer should wait.
pub const FILES_UNREAD_MAX: usize = 64;
/// Entries of a folder that one look at it reads, at most.
pub const FILES_LISTED_MAX: usize = 1_000_000;
/// Files that follow from one look at a folder, at most; the others follow from the next.
pub(super) const FILES_PER_LOOK_MAX: usize = 1 << 16;
/// Files that are remembered as not readable yet, at most.
pub const FILES_NOT_READY_MAX: usize = 4_096;
/// Messages about refused rows that wait for their reader, at most.
pub(super) const NEWS_MAX: usize = 64;

/// Rows of a batch with this many numbers each.
pub(super) fn batch_rows(width: usize) -> usize {
    (BATCH_FEATURES_MAX / width.max(1)).clamp(1, BATCH_ROWS_MAX)
}
