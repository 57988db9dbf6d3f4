//! Arguments of `florin participate` about rows that a running program writes.

use std::str::FromStr;

use clap::Args;
use florin_learning::DataSource;
use florin_learning::data::{ProducerSource, ProducerSourceError, SourceError};

/// Help heading of these options.
const PRODUCER: &str = "Rows of a running program";
/// Rows of the reservoir, unless --reservoir is given.
const RESERVOIR_ROWS: usize = 10_000;
/// The part of the reservoir with which a round begins, unless --min-rows is given: one in this many.
const MIN_ROWS_SHARE: usize = 10;

/// The rows of a participant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RowSource {
    /// Files.
    Files(DataSource),
    /// A running program.
    Producer(ProducerSource),
}

/// The text names neither files nor a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RowSourceError {
    /// It names no files.
    #[error(
        "{0}. Rows of a running program: `growing:FOLDER#LABEL`, `unix:PATH#LABEL`, \
         `tcp:127.0.0.1:PORT#LABEL`"
    )]
    Files(SourceError),
    /// It names no program.
    #[error(transparent)]
    Producer(ProducerSourceError),
}

impl FromStr for RowSource {
    type Err = RowSourceError;

    fn from_str(text: &str) -> Result<Self, RowSourceError> {
        match ProducerSource::has_kind_of(text) {
            true => text.parse().map(Self::Producer).map_err(RowSourceError::Producer),
            false => text.parse().map(Self::Files).map_err(RowSourceError::Files),
        }
    }
}

/// The sample of a running program's rows.
#[derive(Debug, Args)]
pub(crate) struct ReservoirArg {
    /// Rows of the sample that a round trains on, at most: a uniform one of all rows so far. The bond
    /// covers as many [default: 10000]
    #[arg(long, value_name = "N", help_heading = PRODUCER)]
    pub(crate) reservoir: Option<usize>,
    /// Begin a round with at least this number of rows [default: a tenth of --reservoir]
    #[arg(long, value_name = "N", help_heading = PRODUCER)]
    pub(crate) min_rows: Option<usize>,
    /// Begin a round with at least this number of rows that came after the last training began
    /// [default: 0]
    #[arg(long, value_name = "N", help_heading = PRODUCER)]
    pub(crate) new_rows: Option<u64>,
}

impl ReservoirArg {
    /// Whether none of the options is given.
    pub(crate) const fn is_empty(&self) -> bool {
        self.reservoir.is_none() && self.min_rows.is_none() && self.new_rows.is_none()
    }

    /// Rows of the reservoir, at most.
    pub(crate) fn capacity(&self) -> usize {
        self.reservoir.unwrap_or(RESERVOIR_ROWS)
    }

    /// The least number of rows of a round.
    pub(crate) fn rows_min(&self) -> usize {
        self.min_rows.unwrap_or_else(|| (self.capacity() / MIN_ROWS_SHARE).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_files_or_a_program() {
        let is_producer = |text: &str| matches!(text.parse(), Ok(RowSource::Producer(_)));
        assert!(is_producer("unix:rows.sock#hot") && is_producer("growing:out#hot"));
        assert!(matches!("csv:a.csv#hot".parse(), Ok(RowSource::Files(_))));
        for text in ["tcp:10.0.0.1:80#hot", "pipe:a#hot"] {
            let error = text.parse::<RowSource>().unwrap_err().to_string();
            assert!(error.contains("growing:FOLDER#LABEL"), "{error}");
        }
    }
}
