//! Pages that carry everything they show: nothing is fetched and nothing is run.

mod heat;
mod plot;

use crate::measure::Interval;
use crate::results::Program;

pub(crate) use heat::{Heat, heat};
pub(crate) use plot::{Dot, Whisker, escape, lines, scatter, whiskers};

const STYLE: &str = include_str!("style.css");

/// A page's beginning. `lead` is HTML.
pub(crate) fn open(title: &str, lead: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><main><h1>{title}</h1><p class=\"lead\">{lead}</p>"
    )
}

/// A page's end: what was played, and by which program. `again` is HTML: how to have the same once more.
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

/// A plot with what it shows.
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
    /// A row for a mean and its interval.
    pub(crate) fn of(name: &str, series: usize, interval: &Interval) -> Self {
        let Interval { mean, low, high, .. } = *interval;
        Self { name: name.to_owned(), series, low, mean, high }
    }
}
