//! Self-contained HTML pages without external resources or scripts.

mod heat;
mod mark;
mod plot;

use crate::measure::Interval;
use crate::results::Program;

pub(crate) use heat::{Heat, heat};
pub(crate) use plot::{Dot, Whisker, escape, lines, scatter, whiskers};

const STYLE: &str = include_str!("style.css");

/// The beginning of a page. `lead` is HTML.
pub(crate) fn open(title: &str, lead: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title>\
         <style>{STYLE}</style></head><body><main><h1>{title}</h1><p class=\"lead\">{lead}</p>"
    )
}

/// The end of a page: the scenario and the program version. `again` is HTML: how to reproduce the
/// results.
pub(crate) fn close(scenario: Option<&str>, program: &Program<'_>, again: &str) -> String {
    let scenario = scenario.map_or_else(String::new, |text| {
        let text = escape(text);
        format!("<details><summary>The scenario</summary><pre>{text}</pre></details>")
    });
    format!(
        "{scenario}<footer>Florin {} of commit {}. {again}</footer></main></body></html>\n",
        escape(program.version),
        escape(program.commit)
    )
}

/// A plot as a standalone SVG file, with the colours of the page on white.
pub(crate) fn picture(plot: &str) -> String {
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
pub(crate) fn figure(plot: &str, caption: &str) -> String {
    format!("<figure>{plot}<figcaption>{caption}</figcaption></figure>")
}

/// Plots under a heading.
pub(crate) fn section(title: &str, figures: &[String]) -> String {
    format!(
        "<section><h2>{}</h2><div class=\"plots\">{}</div></section>",
        escape(title),
        figures.concat()
    )
}

impl Whisker {
    /// A row for a mean and its confidence interval.
    pub(crate) fn of(name: &str, series: usize, interval: &Interval) -> Self {
        Self { name: name.to_owned(), series, mean: interval.mean, ends: interval.ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_svg_file_is_self_contained() {
        let row = Whisker { name: "a".to_owned(), series: 1, mean: 1.0, ends: None };
        let picture = picture(&whiskers("t", &[row]));
        assert!(
            picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="),
            "{picture}"
        );
        assert!(picture.contains("--c1:#dc2626") && picture.ends_with("</svg>\n"), "{picture}");
        assert_eq!(picture.matches("<style>").count(), 1);
    }
}
