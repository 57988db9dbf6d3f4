//! Writes tables as Parquet files: the columns of the CSV, with their types.

use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;

use super::table::{ColumnValues, ResultTable};

/// The `created_by` field of the file; constant, so that the same table gives the same bytes.
const WRITER: &str = "florin";

impl<T> ResultTable<T> {
    /// The table as an uncompressed Parquet file with one row group. The same table gives the same
    /// bytes.
    pub(crate) fn parquet(&self) -> Result<Vec<u8>, ParquetError> {
        let fields = self.columns.iter().map(|(name, values)| {
            let (physical, logical) = values.kinds();
            let field = Type::primitive_type_builder(name, physical);
            let field = field.with_repetition(values.repetition()).with_logical_type(logical);
            field.build().map(Arc::new)
        });
        let fields = fields.collect::<Result<Vec<_>, _>>()?;
        let schema = Type::group_type_builder("row").with_fields(fields).build()?;
        let properties = WriterProperties::builder().set_created_by(WRITER.to_owned()).build();
        let mut file =
            SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties))?;
        let mut rows = file.next_row_group()?;
        for (_, values) in &self.columns {
            let Some(mut column) = rows.next_column()? else { break };
            match values {
                ColumnValues::Text(all) => {
                    let all: Vec<ByteArray> =
                        all.iter().map(|text| ByteArray::from(text.as_str())).collect();
                    column.typed::<ByteArrayType>().write_batch(&all, None, None)?;
                }
                ColumnValues::Integer(all) => {
                    column.typed::<Int64Type>().write_batch(all, None, None)?;
                }
                ColumnValues::Float(all) => {
                    column.typed::<DoubleType>().write_batch(all, None, None)?;
                }
                ColumnValues::OptionalFloat(all) => {
                    // The definition level marks the presence of each row's value; absent values
                    // are not stored.
                    let levels: Vec<i16> = all.iter().map(|v| i16::from(v.is_some())).collect();
                    let there: Vec<f64> = all.iter().flatten().copied().collect();
                    column.typed::<DoubleType>().write_batch(&there, Some(&levels), None)?;
                }
                ColumnValues::Bool(all) => {
                    column.typed::<BoolType>().write_batch(all, None, None)?;
                }
            }
            column.close()?;
        }
        rows.close()?;
        file.into_inner()
    }
}

impl ColumnValues {
    const fn kinds(&self) -> (Physical, Option<LogicalType>) {
        match self {
            Self::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Self::Integer(_) => (Physical::INT64, None),
            Self::Float(_) | Self::OptionalFloat(_) => (Physical::DOUBLE, None),
            Self::Bool(_) => (Physical::BOOLEAN, None),
        }
    }

    const fn repetition(&self) -> Repetition {
        match self {
            Self::OptionalFloat(_) => Repetition::OPTIONAL,
            Self::Text(_) | Self::Integer(_) | Self::Float(_) | Self::Bool(_) => {
                Repetition::REQUIRED
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::Field;

    use super::*;

    #[test]
    fn a_parquet_file_reads_back_equal_to_its_csv() {
        let items = [("a", 3_u64, 0.1_f64, true), ("ü,\"b", u64::MAX, -2.5e-7, false)];
        let table = ResultTable::new(items.to_vec())
            .text("text", |(text, ..): &(&str, u64, f64, bool)| (*text).to_owned())
            .integer("whole", |(_, whole, ..)| *whole)
            .float("real", |(_, _, real, _)| *real)
            .optional_float("maybe", |(_, _, real, _)| Some(*real).filter(|real| *real > 0.0))
            .boolean("flag", |(.., flag)| *flag);
        let bytes = table.parquet().unwrap();
        assert_eq!(bytes, table.parquet().unwrap(), "the same table gives the same bytes");
        assert_eq!(bytes.get(..4), Some(b"PAR1".as_slice()));
        let reader = SerializedFileReader::new(bytes::Bytes::from(bytes)).unwrap();
        let mut read = csv::Writer::from_writer(Vec::new());
        read.write_record(["text", "whole", "real", "maybe", "flag"]).unwrap();
        for row in reader.get_row_iter(None).unwrap() {
            let row = row.unwrap();
            let shown = row.get_column_iter().map(|(_, field)| match field {
                Field::Str(text) => text.clone(),
                Field::Long(whole) => whole.to_string(),
                Field::Double(real) => real.to_string(),
                Field::Bool(flag) => flag.to_string(),
                Field::Null => String::new(),
                other => panic!("{other:?}"),
            });
            read.write_record(shown.collect::<Vec<String>>()).unwrap();
        }
        let read = String::from_utf8(read.into_inner().unwrap()).unwrap();
        assert_eq!(read, table.csv());
        assert!(read.contains(&i64::MAX.to_string()), "values above i64::MAX saturate: {read}");
        let empty = ResultTable::new(Vec::<u64>::new()).integer("n", |n| *n).parquet().unwrap();
        let reader = SerializedFileReader::new(bytes::Bytes::from(empty)).unwrap();
        assert_eq!(reader.get_row_iter(None).unwrap().count(), 0);
    }
}
