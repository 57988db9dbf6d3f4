//! Tables of the terminal as HTML, for pages.

use std::fmt::Write as _;

use florin_charts::{escape_html, table_html};

use super::{Align, TextTable};

/// A longer text is a sentence, whose column does not become narrow.
const SENTENCE: usize = 24;

impl TextTable {
    /// The table as HTML, in a box in which a wide one scrolls. Numbers and their units stay on a line.
    pub(crate) fn html(&self) -> String {
        let class = |align: Align| if align == Align::Right { " class=\"n\"" } else { "" };
        let cell_class = |align: Align, text: &str| match align {
            Align::Left if text.len() > SENTENCE => " class=\"text\"",
            _ => class(align),
        };
        let mut rows = "<tr>".to_owned();
        for (title, align) in &self.columns {
            let _ = write!(rows, "<th{}>{}</th>", class(*align), escape_html(title));
        }
        rows.push_str("</tr>");
        for row in &self.rows {
            rows.push_str("<tr>");
            for ((_, align), cell) in self.columns.iter().zip(row) {
                let _ = write!(
                    rows,
                    "<td{}>{}</td>",
                    cell_class(*align, &cell.text),
                    escape_html(&cell.text)
                );
            }
            rows.push_str("</tr>");
        }
        table_html(&rows)
    }
}
