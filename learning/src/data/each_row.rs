//! Encoding of a table of which single rows may be wrong: the others are used.

use super::{Dataset, DatasetError, EncodeError, RowEncoder, Table};

/// The rows of a table that fit an encoding, and the errors of the others.
#[derive(Debug)]
pub struct EncodedRows {
    /// The rows that fit, in their order; perhaps none.
    pub rows: Dataset,
    /// The error of each row that does not fit, in their order.
    pub refused: Vec<EncodeError>,
}

impl RowEncoder {
    /// As [`encode`](Self::encode), but a row with a wrong cell is left out.
    ///
    /// # Errors
    /// [`EncodeError`] if the columns do not fit, so that no row does, and if all rows together are
    /// too large.
    pub fn encode_each(&self, table: &Table) -> Result<EncodedRows, EncodeError> {
        match self.encode(table) {
            Ok(rows) => return Ok(EncodedRows { rows, refused: Vec::new() }),
            Err(error) if !is_of_one_row(&error) => return Err(error),
            Err(_) => {}
        }
        let (mut features, mut labels, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for row in 0..table.rows() {
            let Some(alone) = table.slice(row..row + 1) else { continue };
            match self.encode(&alone) {
                Ok(encoded) => {
                    features.extend_from_slice(encoded.features());
                    labels.extend_from_slice(encoded.labels());
                }
                Err(error) => refused.push(error.in_part_from(row)),
            }
        }
        Ok(EncodedRows { rows: self.dataset(features, labels)?, refused })
    }

    /// A data set of encoded rows, perhaps none.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn dataset(&self, features: Vec<f32>, labels: Vec<u32>) -> Result<Dataset, DatasetError> {
        Dataset::new(features, labels, self.width(), self.classes)
    }
}

/// Whether the other rows of the table may fit.
fn is_of_one_row(error: &EncodeError) -> bool {
    match error {
        EncodeError::NoValue { .. }
        | EncodeError::NotANumber { .. }
        | EncodeError::NoLabel { .. }
        | EncodeError::UnknownLabel { .. }
        | EncodeError::Image { .. }
        | EncodeError::Dataset(DatasetError::NotFinite { .. } | DatasetError::Label { .. }) => true,
        EncodeError::SurplusColumn { .. }
        | EncodeError::MissingColumn { .. }
        | EncodeError::NoTexts { .. }
        | EncodeError::TakesNoImages
        | EncodeError::Width { .. }
        | EncodeError::Dataset(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::{CsvLines, FeatureEncoder, NumberScale};

    fn table(lines: &[&str]) -> Table {
        let csv = CsvLines::from_header(Path::new("rows"), b"t,hot", "hot").unwrap();
        let records = lines.iter().zip(2..).map(|(line, at)| csv.record(at, line.as_bytes()));
        csv.table(records.map(|record| record.unwrap().unwrap()).collect())
    }

    fn encoder(factor: f64) -> RowEncoder {
        let scale = NumberScale { factor, ..NumberScale::IDENTITY };
        let features = FeatureEncoder::Uniform { width: 1, scale };
        RowEncoder { classes: 2, class_names: Vec::new(), features, target: None }
    }

    #[test]
    fn rows_with_wrong_cells_are_left_out_and_named() {
        let table = table(&["1,0", "left,1", "2,1", ",1", "3,7", "4,", "5,1", "1e300,0"]);
        let EncodedRows { rows, refused } = encoder(1.0).encode_each(&table).unwrap();
        assert_eq!((rows.features(), rows.labels()), (&[1.0, 2.0, 5.0][..], &[0, 1, 1][..]));
        let text: Vec<String> = refused.iter().map(ToString::to_string).collect();
        for (text, part) in text.iter().zip(["line 3", "line 5", "line 6", "line 7", "row 7"]) {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(text.len(), 5, "{text:?}");
    }

    #[test]
    fn a_table_with_other_columns_is_refused_as_a_whole() {
        let features = FeatureEncoder::Uniform { width: 2, scale: NumberScale::IDENTITY };
        let wide = RowEncoder { features, ..encoder(1.0) };
        let error = wide.encode_each(&table(&["1,0", "2,x"])).unwrap_err();
        assert!(matches!(error, EncodeError::Width { found: 1, width: 2 }), "{error}");
    }
}
