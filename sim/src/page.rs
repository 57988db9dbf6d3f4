//! What the laboratory's pages add to the frame of a page.

use florin_charts::{ErrorBar, ErrorBarBounds, escape_html};

use crate::measure::ConfidenceInterval;
use crate::results::Program;

/// The end of a page: the scenario and the program version. `again` is HTML: how to reproduce the
/// results.
pub(crate) fn page_end(scenario: Option<&str>, program: &Program<'_>, again: &str) -> String {
    let scenario = scenario.map_or_else(String::new, |text| {
        let text = escape_html(text);
        format!("<details><summary>The scenario</summary><pre>{text}</pre></details>")
    });
    format!(
        "{scenario}<footer>Florin {} of commit {}. {again}</footer></main></body></html>\n",
        escape_html(program.version),
        escape_html(program.commit)
    )
}

/// A row for a mean and its confidence interval.
pub(crate) fn error_bar(name: &str, series: usize, interval: &ConfidenceInterval) -> ErrorBar {
    let bounds = interval.bounds.map(|ends| ErrorBarBounds { low: ends.low, high: ends.high });
    ErrorBar { name: name.to_owned(), series, mean: interval.mean, bounds }
}
