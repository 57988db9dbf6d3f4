//! Rows from lines and tables, for the exchange: encoded batch after batch, with the wrong ones
//! counted.

use std::path::Path;
use std::sync::Arc;

use florin_learning::RowEncoder;
use florin_learning::data::{CsvLines, CsvRecord, LoadError, Table};

use super::exchange::{Exchange, FeedClosed};
use super::limits::{LINE_BYTES_MAX, batch_rows};
use super::lines::LineTooLong;
use super::news::{RefusalCode, RowRefusal};

/// Why the rest of a connection or of a file is not read.
#[derive(Debug)]
pub(super) enum ReadStop {
    /// The feed is closed.
    Closed,
    /// Its rows are refused.
    Refused(RowRefusal),
}

impl From<FeedClosed> for ReadStop {
    fn from(FeedClosed: FeedClosed) -> Self {
        Self::Closed
    }
}

impl From<LineTooLong> for ReadStop {
    fn from(LineTooLong { line }: LineTooLong) -> Self {
        let message = format!(
            "line {line} has more than {LINE_BYTES_MAX} bytes: a row is one line, and ends with a \
             line break"
        );
        Self::Refused(RowRefusal { code: RefusalCode::RowTooLong, message })
    }
}

/// Encodes rows and hands them over.
#[derive(Debug)]
pub(super) struct RowReader {
    pub(super) exchange: Arc<Exchange>,
    encoder: RowEncoder,
    pub(super) label: String,
}

impl RowReader {
    pub(super) fn new(exchange: Arc<Exchange>, encoder: RowEncoder, label: String) -> Self {
        Self { exchange, encoder, label }
    }

    /// Rows that are handed over at once.
    pub(super) fn batch_rows(&self) -> usize {
        batch_rows(self.encoder.width())
    }

    /// Hands over the rows of a table that fit, and refuses the others.
    pub(super) fn table(&self, place: &str, table: &Table) -> Result<(), ReadStop> {
        let encoded = self.encoder.encode_each(table).map_err(|error| {
            let message = format!("{place}: {error}");
            ReadStop::Refused(RowRefusal { code: RefusalCode::SchemaMismatch, message })
        })?;
        if encoded.rows.rows() > 0 {
            self.exchange.offer(encoded.rows)?;
        }
        for error in encoded.refused {
            let message = format!("{place}: {error}");
            self.exchange.refuse(RowRefusal { code: RefusalCode::RowMismatch, message });
        }
        match self.exchange.is_closed() {
            true => Err(ReadStop::Closed),
            false => Ok(()),
        }
    }
}

/// The lines of one connection: a header, and rows.
#[derive(Debug)]
pub(super) struct ConnectionRows<'a> {
    rows: &'a RowReader,
    /// The connection, for messages.
    place: String,
    csv: Option<CsvLines>,
    batch: Vec<CsvRecord>,
}

impl<'a> ConnectionRows<'a> {
    pub(super) fn new(rows: &'a RowReader, place: String) -> Self {
        Self { rows, place, csv: None, batch: Vec::new() }
    }

    /// Reads a line.
    pub(super) fn line(&mut self, number: u64, line: &[u8]) -> Result<(), ReadStop> {
        let Some(csv) = &self.csv else { return self.header(line) };
        match csv.record(number, line) {
            Ok(record) => self.batch.extend(record),
            Err(error) => {
                let message = error.to_string();
                let code = RefusalCode::RowMalformed;
                self.rows.exchange.refuse(RowRefusal { code, message });
            }
        }
        match self.batch.len() >= self.rows.batch_rows() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Reads the first line, and compares its columns with the task's.
    fn header(&mut self, line: &[u8]) -> Result<(), ReadStop> {
        let csv = CsvLines::from_header(Path::new(&self.place), line, &self.rows.label);
        let csv = csv.map_err(|error| {
            let message = error.to_string();
            ReadStop::Refused(RowRefusal { code: RefusalCode::SchemaMismatch, message })
        })?;
        self.rows.table(&self.place, &csv.table(Vec::new()))?;
        self.csv = Some(csv);
        Ok(())
    }

    /// Hands over the rows so far.
    pub(super) fn flush(&mut self) -> Result<(), ReadStop> {
        let Some(csv) = self.csv.as_ref().filter(|_| !self.batch.is_empty()) else {
            return Ok(());
        };
        let table = csv.table(std::mem::take(&mut self.batch));
        self.rows.table(&self.place, &table)
    }
}

/// Whether a file may become readable: a writer may not have finished it.
pub(super) fn is_not_ready(error: &LoadError) -> bool {
    !matches!(
        error,
        LoadError::TableNoLabel { .. }
            | LoadError::TableSize { .. }
            | LoadError::ParquetNested { .. }
            | LoadError::CsvColumnTwice { .. }
            | LoadError::CsvColumnName { .. }
    )
}
