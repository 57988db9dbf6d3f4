//! The frame of a page, and SVG files.

use crate::palette::palette_css;
use crate::text::escape_html;

/// The style sheet of every page; the colours are in the palette.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The style of an SVG file.
const SVG_STYLE: &str = "svg{background:var(--card);font:12px system-ui,sans-serif}\
    text{fill:var(--soft)}.axis,.row{fill:var(--ink)}.strong{fill:var(--ink);font-weight:600}\
    .head{fill:var(--ink);font-size:16px;font-weight:600}.grid{stroke:var(--grid)}\
    .zero{stroke:var(--soft);stroke-dasharray:3 3}";

/// The end of a page.
pub const PAGE_END: &str = "</main></body></html>\n";

/// The beginning of a page. `lead` is HTML.
#[must_use]
pub fn page_start(title: &str, lead: &str) -> String {
    let title = escape_html(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>{}{STYLE}</style></head><body><main><h1>{title}</h1><p class=\"lead\">{lead}</p>",
        palette_css()
    )
}

/// The style sheet of every page, with the palette: for a page that has its own frame.
#[must_use]
pub fn style_sheet() -> String {
    palette_css() + STYLE
}

/// A chart as an SVG file, which follows the reader's light or dark mode.
#[must_use]
pub fn standalone_svg(chart: &str) -> String {
    let style = format!("<style>{}{SVG_STYLE}</style>", palette_css());
    let opened = chart.replacen("<svg ", "<svg xmlns=\"http://www.w3.org/2000/svg\" ", 1);
    opened.replacen('>', &format!(">{style}"), 1) + "\n"
}

/// A chart with its caption. `caption` is HTML.
#[must_use]
pub fn figure_html(chart: &str, caption: &str) -> String {
    format!("<figure>{chart}<figcaption>{caption}</figcaption></figure>")
}

/// Charts under a heading.
#[must_use]
pub fn section(title: &str, figures: &[String]) -> String {
    format!(
        "<section><h2>{}</h2><div class=\"plots\">{}</div></section>",
        escape_html(title),
        figures.concat()
    )
}

/// A table in a box of its own, in which a wide table scrolls. `rows` is HTML: the rows with their
/// head.
#[must_use]
pub fn table_html(rows: &str) -> String {
    format!("<div class=\"scroll\"><table>{rows}</table></div>")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::{Quantity, Unit};
    use crate::error_bars::{ErrorBar, error_bars};

    #[test]
    fn an_svg_file_is_self_contained() {
        let row = ErrorBar { name: "a".to_owned(), series: 1, mean: 1.0, bounds: None };
        let profit = Quantity { name: "profit", unit: Unit::Florins };
        let picture = standalone_svg(&error_bars("t", profit, &[row]));
        assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" "), "{picture}");
        assert!(picture.contains("--c1:#e69f00") && picture.ends_with("</svg>\n"), "{picture}");
        assert_eq!(picture.matches("<style>").count(), 1);
    }

    #[test]
    fn a_page_fits_a_narrow_screen() {
        let page = page_start("a<b", "lead");
        assert!(page.contains("name=\"viewport\" content=\"width=device-width, initial-scale=1\""));
        assert!(page.contains("<title>a&lt;b</title>"));
        for rule in [
            // A column of charts is never wider than the screen.
            "minmax(min(100%,",
            // Wide tables scroll in their box, and long addresses break.
            ".scroll{overflow-x:auto",
            "code{overflow-wrap:anywhere",
            // Numbers do not break.
            ".n{text-align:right;white-space:nowrap",
            // Text in charts grows where the charts shrink.
            "@media(max-width:560px){",
        ] {
            assert!(page.contains(rule), "the style sheet lacks {rule}");
        }
        assert!(table_html("<tr>").starts_with("<div class=\"scroll\"><table>"));
    }
}
