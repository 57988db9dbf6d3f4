//! Self-contained HTML pages without external resources or scripts.

mod heat_map;
mod marker;
mod plot;

use crate::measure::ConfidenceInterval;
use crate::results::Program;

pub(crate) use heat_map::{HeatMap, heat_map};
pub(crate) use plot::{ErrorBar, ScatterPoint, error_bars, escape_html, line_plot, scatter_plot};

const STYLE: &str = include_str!("style.css");

/// The beginning of a page. `lead` is HTML.
pub(crate) fn page_start(title: &str, lead: &str) -> String {
    let title = escape_html(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main><h1>{title}</h1><p class=\"lead\">{lead}</p>"
    )
}

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

/// A plot as a standalone SVG file, with the colours of the page on white.
pub(crate) fn standalone_svg(plot: &str) -> String {
    let style = format!(
        "<style>{}svg{{background:#fff;font:12px system-ui,sans-serif}}svg \
         text{{fill:#5b6675}}.grid{{stroke:#e3e7ee}}.zero{{stroke:#5b6675;stroke-dasharray:3 \
         3}}</style>",
        STYLE.lines().next().unwrap_or_default()
    );
    let opened = plot.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    opened.replacen('>', &format!(">{style}"), 1) + "\n"
}

/// A plot with its caption.
pub(crate) fn figure_html(plot: &str, caption: &str) -> String {
    format!("<figure>{plot}<figcaption>{caption}</figcaption></figure>")
}

/// Plots under a heading.
pub(crate) fn section(title: &str, figures: &[String]) -> String {
    format!(
        "<section><h2>{}</h2><div class=\"plots\">{}</div></section>",
        escape_html(title),
        figures.concat()
    )
}

impl ErrorBar {
    /// A row for a mean and its confidence interval.
    pub(crate) fn from_interval(name: &str, series: usize, interval: &ConfidenceInterval) -> Self {
        Self { name: name.to_owned(), series, mean: interval.mean, bounds: interval.bounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_svg_file_is_self_contained() {
        let row = ErrorBar { name: "a".to_owned(), series: 1, mean: 1.0, bounds: None };
        let picture = standalone_svg(&error_bars("t", &[row]));
        assert!(
            picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="),
            "{picture}"
        );
        assert!(picture.contains("--c1:#dc2626") && picture.ends_with("</svg>\n"), "{picture}");
        assert_eq!(picture.matches("<style>").count(), 1);
    }
}
