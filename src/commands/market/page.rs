//! The page of a market for compute: its prices, its providers, its listings and its orders.

use std::fmt::Write as _;

use florin_charts::{
    self as charts, Axes, Axis, ErrorBar, Point, Quantity, ScatterPoint, Unit, error_bars,
    escape_html, scatter_plot, stacked_bars,
};
use florin_compute::{LeaseOutcome, ProviderStatistics};
use florin_protocol::{Amount, Timestamp};

use super::{CheckedMarket, listing_table, order_table, provider_table};
use crate::rent::{MarketOrder, percent};
use crate::show;

/// Milliseconds of a minute, of an hour and of a day.
const MINUTE_MS: f64 = 60_000.0;
const HOUR_MS: f64 = 3_600_000.0;
const DAY_MS: f64 = 86_400_000.0;
/// A longer axis counts hours, or days.
const HOURS_FROM: f64 = 3.0;
const DAYS_FROM: f64 = 4.0;
/// Base units of a florin.
const UNITS: f64 = 1e18;
/// The series of the plots of awards, by how the lease of an award ended.
const ENDS: [&str; 4] = ["settled", "running", "stopped", "slashed"];
/// The title of the page.
const TITLE: &str = "A market for compute";
/// Bytes that have the title of a page.
pub(super) const TITLE_BYTES_MAX: u64 = 4_096;
/// Most providers in a plot, those with the most leases.
const PROVIDERS_MAX: usize = 24;

/// The page of a market.
pub(super) struct MarketPage<'a> {
    /// The URL of the coordinator.
    pub(super) url: &'a str,
    pub(super) market: &'a CheckedMarket,
}

/// Whether a file begins as a page of an earlier run does.
pub(super) fn is_page(begun: &[u8]) -> bool {
    let page = charts::page_start(TITLE, "");
    let title = page.split_inclusive("</title>").next().unwrap_or_default();
    begun.starts_with(title.as_bytes())
}

/// An award: when, at what price of a device-hour, and the index of its end in [`ENDS`].
struct PlottedAward {
    at: Timestamp,
    per_hour: f64,
    end: usize,
}

impl MarketPage<'_> {
    /// The page as HTML; it refers to nothing outside.
    pub(super) fn html(&self) -> String {
        let lead = format!(
            "The records of <code>{}</code>. This program has checked the signatures and the rules of every order and \
             listing below{}.",
            escape_html(self.url),
            match (self.market.left_out, self.market.listings_left_out) {
                (0, 0) => String::new(),
                (orders, listings) => {
                    format!("; {orders} older orders and {listings} older listings are left out")
                }
            }
        );
        let mut html = charts::page_start(TITLE, &lead);
        self.warnings(&mut html);
        self.cards(&mut html);
        let awards = self.awards();
        if !awards.is_empty() {
            html.push_str(&charts::section("Prices", &[price_figure(&awards)]));
        }
        if !self.market.statistics.providers.is_empty() {
            html.push_str(&charts::section("Providers", &self.provider_figures()));
            section(&mut html, "All providers", &provider_table(&self.market.statistics).html());
        }
        if !self.market.listings.is_empty() {
            section(&mut html, "Listings", &listing_table(&self.market.listings).html());
        }
        if !self.market.orders.is_empty() {
            section(&mut html, "Orders", &order_table(&self.market.orders).html());
        }
        html + &format!(
            "<footer>Florin {}. The same page: <code>florin market --market {} --out FILE</code></footer>{}",
            env!("CARGO_PKG_VERSION"),
            escape_html(self.url),
            charts::PAGE_END
        )
    }

    fn warnings(&self, html: &mut String) {
        if self.market.invalid.is_empty() {
            return;
        }
        html.push_str("<section><h2>Wrong records</h2>");
        for (_, why) in &self.market.invalid {
            let _ = write!(
                html,
                "<p class=\"why\"><b class=\"bad\">wrong</b> {}</p>",
                escape_html(why)
            );
        }
        html.push_str("</section>");
    }

    fn cards(&self, html: &mut String) {
        let providers = self.market.statistics.providers.values();
        let sum = |of: &dyn Fn(&ProviderStatistics) -> u32| -> u64 {
            self.market.statistics.providers.values().map(|own| u64::from(of(own))).sum()
        };
        let won = sum(&|own| own.won);
        let failed = sum(&|own| own.defaulted.saturating_add(own.slashed));
        let lost = Amount::total(providers.map(|own| own.lost)).unwrap_or_default();
        let price = self
            .market
            .statistics
            .median
            .map_or("–".to_owned(), |price| format!("{}&nbsp;FLN", show::fln(price)));
        let listed = self.market.listings.iter().filter(|listing| listing.covers(1)).count();
        let _ = write!(
            html,
            "<section><div class=\"cards\">\
             <div class=\"card\"><b>{price}</b><span>median price of a useful device-hour</span></div>\
             <div class=\"card\"><b>{won}</b><span>leases awarded, of {} orders</span></div>\
             <div class=\"card\"><b>{}</b><span>of the time a lease ran</span></div>\
             <div class=\"card\"><b>{listed}</b><span>listings with a passed probe, of {}</span></div>\
             <div class=\"card\"><b class=\"{}\">{failed}</b><span>leases stopped or slashed; providers lost {}&nbsp;FLN</span></div>\
             </div></section>",
            self.market.orders.len(),
            percent(self.market.statistics.utilisation_of_all()).replace(' ', "&nbsp;"),
            self.market.listings.len(),
            if failed == 0 { "good" } else { "bad" },
            show::fln(lost),
        );
    }

    fn awards(&self) -> Vec<PlottedAward> {
        let award = |order: &MarketOrder| {
            let facts = order.facts()?;
            let award = facts.award?;
            Some(PlottedAward {
                at: award.at,
                per_hour: florins(award.per_hour?),
                end: match facts.outcome {
                    Some(LeaseOutcome::Settled) => 0,
                    None => 1,
                    Some(LeaseOutcome::Defaulted { .. }) => 2,
                    // The winner did not fund it: no price was agreed.
                    Some(LeaseOutcome::Unawarded) => return None,
                    Some(LeaseOutcome::Slashed { .. }) => 3,
                },
            })
        };
        self.market.orders.iter().filter_map(award).collect()
    }

    /// Leases by their end, and the time at work, of the providers with the most leases.
    fn provider_figures(&self) -> [String; 2] {
        let mut all: Vec<_> = self.market.statistics.providers.iter().collect();
        all.sort_by_key(|(account, own)| (std::cmp::Reverse(own.won), **account));
        all.truncate(PROVIDERS_MAX);
        let bars: Vec<Vec<f64>> = all
            .iter()
            .map(|(_, own)| {
                let over = own.delivered.saturating_add(own.defaulted).saturating_add(own.slashed);
                let running = own.won.saturating_sub(over);
                [own.delivered, running, own.defaulted, own.slashed].map(f64::from).to_vec()
            })
            .collect();
        let provider = Quantity { name: "provider", unit: Unit::Number };
        let leases = Quantity { name: "leases", unit: Unit::Number };
        let axes = Axes {
            x: Axis::counting(provider, 0.5..=(all.len() as f64 + 0.5)),
            y: Axis::from_zero(leases, bars.iter().map(|parts| parts.iter().sum())),
        };
        let busy = (1..).zip(&all).map(|(number, (account, own))| ErrorBar {
            name: format!("{number}. {}", account.short()),
            series: 0,
            mean: f64::from(self.market.statistics.utilisation(own)) / 10_000.0,
            bounds: None,
        });
        let rows: Vec<ErrorBar> = busy.collect();
        let time = Quantity { name: "of the time with a lease", unit: Unit::Percent };
        [
            charts::figure_html(
                &stacked_bars("Leases of providers", &axes, &ENDS, &bars),
                "Leases of each provider, by how they ended; the numbers are those of the other plot.",
            ),
            charts::figure_html(
                &error_bars("Time at work", time, &rows),
                "The part of the market's time in which a provider computed a lease.",
            ),
        ]
    }
}

/// The price of each award over time.
fn price_figure(awards: &[PlottedAward]) -> String {
    let last = awards.iter().map(|award| award.at).max().unwrap_or_default();
    let first = awards.iter().map(|award| award.at).min().unwrap_or_default();
    let (name, unit_ms) = match last.ms_since(first) as f64 {
        ms if ms > DAYS_FROM * DAY_MS => ("days since the first award", DAY_MS),
        ms if ms > HOURS_FROM * HOUR_MS => ("hours since the first award", HOUR_MS),
        _ => ("minutes since the first award", MINUTE_MS),
    };
    let ago = |award: &PlottedAward| award.at.ms_since(first) as f64 / unit_ms;
    let dots: Vec<ScatterPoint> = awards
        .iter()
        .map(|award| ScatterPoint {
            at: Point { x: ago(award), y: award.per_hour },
            series: award.end,
        })
        .collect();
    let time = Quantity { name, unit: Unit::Number };
    let price = Quantity { name: "price of a useful device-hour", unit: Unit::Florins };
    let axes = Axes {
        x: Axis::covering(time, dots.iter().map(|dot| dot.at.x)),
        y: Axis::from_zero(price, dots.iter().map(|dot| dot.at.y)),
    };
    charts::figure_html(
        &scatter_plot("Price of each award", &axes, &dots, &ENDS),
        "Each point is an award: the agreed price, and how its lease ended.",
    )
}

fn florins(amount: Amount) -> f64 {
    amount.units() as f64 / UNITS
}

fn section(html: &mut String, title: &str, table: &str) {
    let _ = write!(html, "<section><h2>{title}</h2>{table}</section>");
}
