//! The rows that a file names by a source and a range: the holdout of a task, or the rows of an order.

use std::ops::Range;
use std::path::Path;

use florin_learning::data::{
    FEATURE_MEAN_MAX, FEATURE_SD_MAX, SourceError, load, load_table, load_tokens, unscaled_feature,
};
use florin_learning::{DataSource, Dataset, Table};
use florin_protocol::{DataSchema, TaskSpec};

use super::data_section::{DataSection, feature_name};
use super::token_section::TokenizerFile;
use super::{TaskFileError, parse_rows, relative_to, select_rows};

/// The keys that name rows.
pub(super) struct NamedRows<'a> {
    /// The section of the keys `source` and `rows`.
    pub(super) section: &'static str,
    pub(super) source: &'a str,
    /// The range of rows; `None` stands for all.
    pub(super) rows: Option<&'a str>,
    pub(super) data: &'a DataSection,
}

/// The files that rows are read from.
pub(super) struct RowFiles<'a> {
    /// The folder of the file.
    pub(super) folder: &'a Path,
    pub(super) tokenizer: Option<&'a TokenizerFile>,
    /// The table of the source, if the caller has read it.
    pub(super) table: Option<Table>,
}

impl NamedRows<'_> {
    /// Reads the rows, selects the range, completes the schema's encoding with their numbers,
    /// encodes them, and checks them against the schema.
    pub(super) fn read(
        &self,
        from: RowFiles<'_>,
        schema: &mut DataSchema,
    ) -> Result<Dataset, TaskFileError> {
        let wrong = |right: String| self.wrong_source(right);
        let source: DataSource =
            self.source.parse().map_err(|e: SourceError| wrong(e.to_string()))?;
        let source = relative_to(from.folder, source);
        let is_tokenized = from.tokenizer.is_some();
        let (data, names) = match self.data.is_encoded() {
            true => self.encoded(from, &source, schema)?,
            false => (self.as_they_are(&source)?, None),
        };
        if !self.data.accept_unscaled && !is_tokenized {
            self.refuse_unscaled(schema, &data, names.as_ref())?;
        }
        match misfit(&data, schema) {
            Some(right) => Err(wrong(right)),
            None => Ok(data),
        }
    }

    fn wrong_source(&self, right: String) -> TaskFileError {
        let key = format!("{}.source", self.section);
        TaskFileError::key(&key, format!("{:?}", self.source), right)
    }

    /// The rows, and the table that they are encoded from.
    fn encoded(
        &self,
        from: RowFiles<'_>,
        source: &DataSource,
        schema: &mut DataSchema,
    ) -> Result<(Dataset, Option<Table>), TaskFileError> {
        let wrong = |right: String| self.wrong_source(right);
        if let DataSource::Florin { .. } = source {
            let right = "features of a florin: file are used as they are: remove the encoding from \
                [data], or use the original table";
            return Err(wrong(right.to_owned()));
        }
        let loaded = match (from.table, from.tokenizer) {
            (Some(table), _) => Ok(table),
            (None, Some(own)) => load_tokens(source, &own.tokenizer, own.encoder()),
            (None, None) => load_table(source),
        };
        let table = self.select(loaded.map_err(|e| wrong(e.to_string()))?)?;
        if from.tokenizer.is_none() {
            schema.encoding = Some(self.data.encoding(&table, self.section)?);
        }
        Ok((encode(schema, &table).map_err(wrong)?, Some(table)))
    }

    fn as_they_are(&self, source: &DataSource) -> Result<Dataset, TaskFileError> {
        let wrong = |right: String| self.wrong_source(right);
        let data = load(source).map_err(|e| wrong(e.to_string()))?;
        let data = match self.range(data.rows())? {
            None => data,
            Some(range) => select_rows(&data, range).map_err(wrong)?,
        };
        // The rows become one blob.
        data.check_fits_memory().map_err(|error| wrong(error.to_string()))?;
        Ok(data)
    }

    /// The selected rows; `None` stands for all.
    fn range(&self, rows: usize) -> Result<Option<Range<usize>>, TaskFileError> {
        let Some(text) = self.rows else { return Ok(None) };
        let key = format!("{}.rows", self.section);
        let wrong = |right: String| TaskFileError::key(&key, format!("{text:?}"), right);
        let range = parse_rows(text).map_err(wrong)?;
        if range.end > rows {
            let right = format!("the data has {rows} rows: write 0..{rows} or a range within it");
            return Err(wrong(right));
        }
        Ok(Some(range))
    }

    fn select(&self, table: Table) -> Result<Table, TaskFileError> {
        match self.range(table.rows())? {
            None => Ok(table),
            Some(range) => Ok(table.slice(range).unwrap_or(table)),
        }
    }

    /// Refuses features that are far from unit scale: gradient descent does not train on them.
    fn refuse_unscaled(
        &self,
        schema: &DataSchema,
        data: &Dataset,
        table: Option<&Table>,
    ) -> Result<(), TaskFileError> {
        let Some(found) = unscaled_feature(data) else { return Ok(()) };
        let encoder = florin_work::row_encoder(schema);
        let name = table.map_or_else(
            || format!("feature {}", found.feature),
            |table| feature_name(encoder.as_ref(), table, found.feature),
        );
        let right = format!(
            "{name} has mean {:.3} and standard deviation {:.3} in the {}, and features need a \
             mean within ±{FEATURE_MEAN_MAX} and a standard deviation of at most \
             {FEATURE_SD_MAX}: write scale = \"standard\", or accept_unscaled = true to publish \
             them as they are",
            found.mean, found.sd, self.section
        );
        let written =
            self.data.scale_name().map_or("nothing".to_owned(), |name| format!("{name:?}"));
        Err(TaskFileError::key("data.scale", written, right))
    }
}

/// The rows of a table, encoded as the schema declares. The error is a sentence.
fn encode(schema: &DataSchema, table: &Table) -> Result<Dataset, String> {
    let encoder = florin_work::row_encoder(schema).ok_or("the file has no encoding")?;
    let (encoded, width) = (encoder.width(), schema.width);
    if encoded != width as usize {
        return Err(format!(
            "its encoded rows have {encoded} features, but the task has data.width = {width}: \
             make both equal, and model.inputs as well"
        ));
    }
    encoder.encode(table).map_err(|error| error.to_string())
}

/// The reason why data does not fit a task's schema, as a sentence; `None` if it fits. Data in
/// which the highest labels do not occur still fits.
pub(crate) fn schema_mismatch(data: &Dataset, spec: &TaskSpec) -> Option<String> {
    misfit(data, &spec.data)
}

fn misfit(data: &Dataset, schema: &DataSchema) -> Option<String> {
    let (width, classes) = (schema.width as usize, schema.classes as usize);
    if data.width() != width {
        return Some(format!(
            "its rows have {} features, but the task requires data.width = {width}",
            data.width()
        ));
    }
    let used = data.labels().iter().max().map_or(0, |label| *label as usize + 1);
    (used > classes)
        .then(|| format!("it has {used} labels, but the task requires data.classes = {classes}"))
}
