//! Tables of results: named columns, exported as CSV for people and as Parquet for programs.

/// The values of a column, one per row.
pub(super) enum ColumnValues {
    Text(Vec<String>),
    Integer(Vec<i64>),
    Float(Vec<f64>),
    OptionalFloat(Vec<Option<f64>>),
    Bool(Vec<bool>),
}

/// A table with one row per item.
pub(crate) struct ResultTable<T> {
    items: Vec<T>,
    pub(super) columns: Vec<(&'static str, ColumnValues)>,
}

impl<T> ResultTable<T> {
    /// A table without columns.
    pub(crate) fn new(items: Vec<T>) -> Self {
        Self { items, columns: Vec::new() }
    }

    fn with(mut self, name: &'static str, values: ColumnValues) -> Self {
        self.columns.push((name, values));
        self
    }

    /// Adds a column of text.
    pub(crate) fn text(self, name: &'static str, of: impl Fn(&T) -> String) -> Self {
        let values = self.items.iter().map(of).collect();
        self.with(name, ColumnValues::Text(values))
    }

    /// Adds a column of integers; values above `i64::MAX` saturate.
    pub(crate) fn integer(self, name: &'static str, of: impl Fn(&T) -> u64) -> Self {
        let whole = |item| i64::try_from(of(item)).unwrap_or(i64::MAX);
        let values = self.items.iter().map(whole).collect();
        self.with(name, ColumnValues::Integer(values))
    }

    /// Adds a column of floating-point numbers.
    pub(crate) fn float(self, name: &'static str, of: impl Fn(&T) -> f64) -> Self {
        let values = self.items.iter().map(of).collect();
        self.with(name, ColumnValues::Float(values))
    }

    /// Adds a column of optional floating-point numbers.
    pub(crate) fn optional_float(self, name: &'static str, of: impl Fn(&T) -> Option<f64>) -> Self {
        let values = self.items.iter().map(of).collect();
        self.with(name, ColumnValues::OptionalFloat(values))
    }

    /// Adds a column of booleans.
    pub(crate) fn boolean(self, name: &'static str, of: impl Fn(&T) -> bool) -> Self {
        let values = self.items.iter().map(of).collect();
        self.with(name, ColumnValues::Bool(values))
    }

    /// Adds further columns if `holds`.
    pub(crate) fn when(self, holds: bool, more: impl FnOnce(Self) -> Self) -> Self {
        if holds { more(self) } else { self }
    }

    /// The table as CSV, with a header. Floating-point numbers have the shortest form that reads
    /// back unchanged.
    pub(crate) fn csv(&self) -> String {
        let mut out = csv::Writer::from_writer(Vec::new());
        // Writing into memory does not fail.
        let _ = out.write_record(self.columns.iter().map(|(name, _)| *name));
        for row in 0..self.items.len() {
            let _ = out.write_record(self.columns.iter().map(|(_, values)| values.cell_text(row)));
        }
        String::from_utf8(out.into_inner().unwrap_or_default()).unwrap_or_default()
    }
}

impl ColumnValues {
    fn cell_text(&self, row: usize) -> String {
        let shown = match self {
            Self::Text(all) => all.get(row).cloned(),
            Self::Integer(all) => all.get(row).map(i64::to_string),
            Self::Float(all) => all.get(row).map(f64::to_string),
            Self::OptionalFloat(all) => {
                all.get(row).map(|v| v.map_or_else(String::new, |v| v.to_string()))
            }
            Self::Bool(all) => all.get(row).map(bool::to_string),
        };
        shown.unwrap_or_default()
    }
}
