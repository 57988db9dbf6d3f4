//! Charts as SVG text, and the frame of the pages that show them: self-contained HTML without
//! scripts or external resources.
//!
//! The crate knows numbers, names and units. It never reads a file, and it knows nothing of the
//! market: the callers format what a number means.

mod heat_map;
mod marker;
mod number_format;
mod plot;

pub use heat_map::{HeatMap, heat_map};
pub use number_format::format_number;
pub use plot::{
    ErrorBar, ErrorBarBounds, ScatterPoint, error_bars, escape_html, line_plot, scatter_plot,
};

const STYLE: &str = include_str!("style.css");

/// The beginning of a page. `lead` is HTML.
#[must_use]
pub fn page_start(title: &str, lead: &str) -> String {
    let title = escape_html(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main><h1>{title}</h1><p class=\"lead\">{lead}</p>"
    )
}

/// A plot as a standalone SVG file, with the colours of the page on white.
#[must_use]
pub fn standalone_svg(plot: &str) -> String {
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
#[must_use]
pub fn figure_html(plot: &str, caption: &str) -> String {
    format!("<figure>{plot}<figcaption>{caption}</figcaption></figure>")
}

/// Plots under a heading.
#[must_use]
pub fn section(title: &str, figures: &[String]) -> String {
    format!(
        "<section><h2>{}</h2><div class=\"plots\">{}</div></section>",
        escape_html(title),
        figures.concat()
    )
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
