//! The news of a producer: its waits, its refused rows, and the rows of each round.

use std::fmt;

use florin_protocol::RoundNumber;
use serde::Serialize;

/// A stable code of a row, a connection or a file that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum RefusalCode {
    /// A line has another number of cells than the header, or is no UTF-8.
    RowMalformed,
    /// A cell does not fit the task's encoding.
    RowMismatch,
    /// A line is longer than the limit; the connection is closed.
    RowTooLong,
    /// A connection ended within a line.
    RowCut,
    /// The columns do not fit the task: the connection is closed, or the file is set aside.
    SchemaMismatch,
    /// A file has more bytes than the limit, and is set aside.
    FileTooLarge,
    /// A file is no whole Parquet file yet; it is read when it changes.
    FileNotReady,
    /// A file is damaged behind its first rows, and is set aside.
    FileDamaged,
}

impl RefusalCode {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RowMalformed => "ROW_MALFORMED",
            Self::RowMismatch => "ROW_MISMATCH",
            Self::RowTooLong => "ROW_TOO_LONG",
            Self::RowCut => "ROW_CUT",
            Self::SchemaMismatch => "SCHEMA_MISMATCH",
            Self::FileTooLarge => "FILE_TOO_LARGE",
            Self::FileNotReady => "FILE_NOT_READY",
            Self::FileDamaged => "FILE_DAMAGED",
        }
    }
}

/// A row, a connection or a file that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowRefusal {
    /// The code.
    pub code: RefusalCode,
    /// The place, the cause, and the values that would be valid.
    pub message: String,
}

impl fmt::Display for RowRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.message, self.code.as_str())
    }
}

/// The rows and the waits of a feed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FeedCounts {
    /// Rows that entered the reservoir, or were passed over by it.
    pub rows_seen: u64,
    /// Rows of the sample.
    pub rows_in_reservoir: u64,
    /// Rows that wait for a training to end.
    pub rows_queued: u64,
    /// Rows, connections and files that were refused.
    pub refused: u64,
    /// Connections of a socket, or files of a folder, that were read.
    pub sources_read: u64,
    /// Milliseconds for which the trainer waited for rows: the producer is slow.
    pub producer_slow_ms: u64,
    /// Milliseconds for which read rows waited for the trainer: the trainer is slow.
    pub trainer_slow_ms: u64,
}

/// News of a producer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum ProducerNews {
    /// Rows may be written from now on.
    Listening {
        /// The folder, the socket's file, or the address with its port.
        at: String,
    },
    /// There are too few rows: the trainer waits for the producer.
    Waiting {
        /// The round; none before the bond.
        round: Option<RoundNumber>,
        /// Rows of the reservoir.
        rows: u64,
        /// Rows of the reservoir that a round requires.
        rows_min: u64,
        /// New rows that a round requires in addition to those before the last training.
        new_rows_min: u64,
    },
    /// A training begins on a sample.
    Taken {
        /// The round.
        round: RoundNumber,
        /// Rows of the sample.
        rows: u64,
        /// The counts and waits so far.
        #[serde(flatten)]
        counts: FeedCounts,
    },
    /// A row, a connection or a file was refused: the first one with its code.
    Refused {
        /// The refusal.
        #[serde(flatten)]
        refusal: RowRefusal,
    },
}

impl fmt::Display for FeedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rows_seen, refused, producer_slow_ms, trainer_slow_ms, .. } = self;
        write!(
            f,
            "{rows_seen} rows seen, {refused} refused; so far {producer_slow_ms} ms of waiting for \
             rows, and {trainer_slow_ms} ms in which rows waited for the trainer"
        )
    }
}

impl fmt::Display for ProducerNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening { at } => write!(f, "rows are read from {at}"),
            Self::Waiting { round, rows, rows_min, new_rows_min } => {
                match round {
                    Some(round) => write!(f, "round {round}: ")?,
                    None => write!(f, "before the bond: ")?,
                }
                write!(f, "waiting for rows; {rows} of at least {rows_min} are there")?;
                match new_rows_min {
                    0 => Ok(()),
                    new => write!(f, ", and {new} must be new"),
                }
            }
            Self::Taken { round, rows, counts } => {
                write!(f, "round {round}: a sample of {rows} rows; {counts}")
            }
            Self::Refused { refusal } => {
                write!(f, "refused: {refusal}. Further ones with this code are counted, not shown")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_the_same_name_in_json_and_in_text() {
        for code in [
            RefusalCode::RowMalformed,
            RefusalCode::RowMismatch,
            RefusalCode::RowTooLong,
            RefusalCode::RowCut,
            RefusalCode::SchemaMismatch,
            RefusalCode::FileTooLarge,
            RefusalCode::FileNotReady,
            RefusalCode::FileDamaged,
        ] {
            assert_eq!(serde_json::json!(code), code.as_str());
        }
    }
}
