//! `florin market`: the orders, the providers and the prices of a market for compute.

mod page;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Context;
use florin_compute::{
    DRIFT_LIMIT, Listing, ListingEvent, ListingOutcome, ListingRecord, MarketStatistics, OrderView,
};
use florin_participant::ClientError;
use florin_protocol::Digest;
use serde_json::{Value, json};

use crate::cli::MarketTable;
use crate::commands::out_file::{refuse_existing, write_bytes};
use crate::demo::writable;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::rent::records::history;
use crate::rent::{MarketOrder, percent, statistics_json};
use crate::show::{self, DIM, NOTE, TextTable};
use page::MarketPage;

/// Most orders whose records are fetched, the newest first.
const ORDERS_MAX: usize = 1_000;
/// Most listings whose records are fetched, the newest first.
const LISTINGS_MAX: usize = 200;
/// Most days of prices in the text.
const DAYS_SHOWN_MAX: usize = 30;

pub(super) fn run(arguments: &MarketTable) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    if let Some(file) = &arguments.out {
        // Before thousands of records are fetched.
        check_out(file)?;
    }
    let checked = CheckedMarket::fetch(&market)?;
    if let Some(file) = &arguments.out {
        checked.write_page(&arguments.market.market, file)?;
    }
    if arguments.json.json {
        show::json(&checked.to_json())?;
    } else {
        checked.print();
        if let Some(file) = &arguments.out {
            anstream::println!("\n{DIM}written to{DIM:#} {}", file.display());
        }
    }
    Ok(if checked.invalid.is_empty() { Exit::Done } else { Exit::Negative })
}

/// A market as its checked records show it.
pub(crate) struct CheckedMarket {
    orders: Vec<MarketOrder>,
    listings: Vec<Listing>,
    statistics: MarketStatistics,
    /// Orders and listings whose records are wrong, with the reason.
    invalid: Vec<(Digest, String)>,
    /// Older orders, and older listings, whose records were not fetched.
    left_out: usize,
    listings_left_out: usize,
}

impl CheckedMarket {
    /// Fetches and checks all records.
    ///
    /// # Errors
    /// Those of the requests; a wrong record is no error.
    pub(crate) fn fetch(market: &MarketConnection) -> anyhow::Result<Self> {
        let mut invalid = Vec::new();
        let (listings, listings_left_out) =
            Progress::during("checking listings", || checked_listings(market, &mut invalid))?;
        let CheckedOrders { orders, invalid: wrong_orders, left_out } = checked_orders(market)?;
        invalid.extend(wrong_orders);
        let shown = Progress::start("checking measured leases");
        for (listing, records) in &listings {
            for order in contradictions(market, records, &orders)? {
                let why = format!(
                    "listing {}: the coordinator recorded other times than the lease of order {} has: trust no number of \
                     this listing, and report it to its referee",
                    listing.id().short(),
                    order.short()
                );
                invalid.push((listing.id(), why));
            }
        }
        drop(shown);
        let listings = listings.into_iter().map(|(listing, _)| listing).collect();
        let statistics =
            MarketStatistics::from_leases(orders.iter().filter_map(MarketOrder::facts))?;
        Ok(Self { orders, listings, statistics, invalid, left_out, listings_left_out })
    }

    /// The orders with correct records, the newest first.
    pub(crate) fn orders(&self) -> &[MarketOrder] {
        &self.orders
    }

    /// The listings with correct records.
    pub(crate) fn listings(&self) -> &[Listing] {
        &self.listings
    }

    /// Whether a record is wrong.
    pub(crate) const fn has_invalid(&self) -> bool {
        !self.invalid.is_empty()
    }

    /// Warns of wrong records, and of older ones that were not fetched.
    pub(crate) fn warn(&self) {
        for (_, why) in &self.invalid {
            anstream::eprintln!("{NOTE}warning:{NOTE:#} {why}");
        }
        if self.left_out > 0 {
            show::hint(&format!("\n{} older orders are left out.", self.left_out));
        }
        if self.listings_left_out > 0 {
            show::hint(&format!("\n{} older listings are left out.", self.listings_left_out));
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Those of the file.
    pub(crate) fn write_page(&self, url: &str, file: &Path) -> anyhow::Result<()> {
        let page = MarketPage { url, market: self }.html();
        write_bytes(file, page.as_bytes())
    }

    fn to_json(&self) -> Value {
        let rows: Vec<Value> = self.orders.iter().map(MarketOrder::to_json).collect();
        let invalid: Vec<Value> =
            self.invalid.iter().map(|(id, why)| json!({ "id": id, "why": why })).collect();
        let mut value = statistics_json(&self.statistics);
        value["orders"] = json!(rows);
        value["invalid"] = json!(invalid);
        value["listings"] = json!(self.listings.iter().map(listing_json).collect::<Vec<_>>());
        value["left_out"] = json!(self.left_out);
        value["listings_left_out"] = json!(self.listings_left_out);
        value
    }

    fn print(&self) {
        if !self.listings.is_empty() {
            listing_table(&self.listings).print();
            anstream::println!();
        }
        print(&self.orders, &self.statistics);
        self.warn();
    }
}

/// Checks that the page can be written, and refuses a file that is no page of an earlier run.
///
/// # Errors
/// `FILE_EXISTS`, and those of the file.
fn check_out(file: &Path) -> anyhow::Result<()> {
    let mut begun = Vec::new();
    if file.is_file() {
        let named = || file.display().to_string();
        let start = page::TITLE_BYTES_MAX;
        File::open(file)
            .with_context(named)?
            .take(start)
            .read_to_end(&mut begun)
            .with_context(named)?;
    }
    if !page::is_page(&begun) {
        refuse_existing(file)?;
    }
    // A device or a pipe is opened once.
    match file.metadata() {
        Ok(found) if !found.is_file() => Ok(()),
        _ => writable(file),
    }
}

/// The orders of a market, each with the history of its verified record.
pub(super) struct CheckedOrders {
    pub(super) orders: Vec<MarketOrder>,
    /// Orders whose records are wrong, with the reason.
    pub(super) invalid: Vec<(Digest, String)>,
    /// Older orders, whose records were not fetched.
    pub(super) left_out: usize,
}

/// Fetches and checks the records of a market's orders.
pub(super) fn checked_orders(market: &MarketConnection) -> anyhow::Result<CheckedOrders> {
    let views = market.orders()?;
    let left_out = views.len().saturating_sub(ORDERS_MAX);
    let (mut orders, mut invalid) = (Vec::new(), Vec::new());
    let shown = Progress::start("checking records");
    for (number, view) in views.iter().take(ORDERS_MAX).enumerate() {
        shown.step(format!("checking the record of order {} of {}", number + 1, views.len()));
        match history(market, view) {
            Ok(history) => orders.push(MarketOrder { history, ..order(view) }),
            Err(error) if crate::failure::classify(&error).0 == "LEASE_RECORD_INVALID" => {
                invalid.push((view.id, error.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(CheckedOrders { orders, invalid, left_out })
}

/// Listings as they follow from their records, with these, and the number of older ones that were not fetched.
type CheckedListings = (Vec<(Listing, Vec<ListingRecord>)>, usize);

/// The listings, each as it follows from its record. One whose record is wrong is added to the invalid ones.
fn checked_listings(
    market: &MarketConnection,
    invalid: &mut Vec<(Digest, String)>,
) -> anyhow::Result<CheckedListings> {
    let views = market.listings()?;
    let left_out = views.len().saturating_sub(LISTINGS_MAX);
    let mut checked = Vec::new();
    for view in views.iter().take(LISTINGS_MAX) {
        match market.recorded_listing(view) {
            Ok(listing) => checked.push(listing),
            Err(error @ ClientError::UnexpectedContent { .. }) => {
                invalid.push((view.listing.id(), error.to_string()));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok((checked, left_out))
}

/// Compares the measured leases of a listing with the records of the leases. Returns the orders whose lease has other
/// times: a coordinator cannot take a stake by leases that it invented without being seen.
fn contradictions(
    market: &MarketConnection,
    records: &[ListingRecord],
    orders: &[MarketOrder],
) -> anyhow::Result<Vec<Digest>> {
    let mut found = Vec::new();
    for record in records {
        let ListingEvent::Measured { order: id, predicted_us, measured_us } = record.event else {
            continue;
        };
        // An order that the coordinator has forgotten cannot be compared.
        let Some(order) = orders.iter().find(|order| order.id == id) else { continue };
        let lease = order.history.as_ref().map(|history| history.lease());
        let times = match lease.and_then(|lease| Some((lease, lease.award()?))) {
            None => None,
            Some((lease, award)) => {
                let state_ms = market.order_job(id, lease.order().job)?.state_ms();
                Some((award.step_us, lease.measured_us_without(state_ms)))
            }
        };
        if times != Some((predicted_us, measured_us)) {
            found.push(id);
        }
    }
    Ok(found)
}

fn listing_json(listing: &Listing) -> Value {
    let terms = listing.terms();
    let ((probes, passed), (leases, drift)) = (listing.probes(), listing.drift());
    json!({
        "id": listing.id(),
        "provider": terms.provider,
        "phase": listing.phase().0,
        "outcome": listing.outcome(),
        "devices": terms.probe.devices,
        "memory_bytes": terms.probe.memory_bytes(),
        "card": terms.card,
        "stake": show::units(terms.stake),
        "probes": probes,
        "passed": passed,
        "leases": leases,
        "drift": drift.parts(),
    })
}

fn listing_table(listings: &[Listing]) -> TextTable {
    let mut table = TextTable::new(&[
        "listing",
        "provider",
        ">devices",
        ">MiB each",
        ">µs a link",
        ">speed-up",
        ">stake, FLN",
        ">probes passed",
        ">slower than bid",
        "state",
    ]);
    for listing in listings {
        let terms = listing.terms();
        let (card, devices) = (&terms.card, terms.probe.devices);
        let one = card.links.on(1).unwrap_or_default();
        let all = card.links.on(devices).unwrap_or_default();
        let speed_up = f64::from(devices) * one as f64 / (all as f64).max(1.0);
        let ((probes, passed), (_, drift)) = (listing.probes(), listing.drift());
        let state = match listing.outcome() {
            None => listing.phase().0.name(),
            Some(ListingOutcome::Unproven) => "unproven",
            Some(ListingOutcome::Withdrawn) => "withdrawn",
            Some(ListingOutcome::Expired) => "expired",
            Some(ListingOutcome::Contradicted { .. }) => "slashed",
        };
        table.row([
            listing.id().short().into(),
            terms.provider.short().into(),
            devices.into(),
            (terms.probe.memory_bytes() >> 20).into(),
            all.into(),
            format!("{speed_up:.2}").into(),
            show::fln(terms.stake).into(),
            format!("{passed}/{probes}").into(),
            format!("{:.0} of {:.0} %", percents(drift.parts()), percents(DRIFT_LIMIT)).into(),
            state.into(),
        ]);
    }
    table
}

fn percents(parts: u64) -> f64 {
    parts as f64 / 10_000.0
}

fn order(view: &OrderView) -> MarketOrder {
    MarketOrder {
        id: view.id,
        renter: view.order.renter,
        segments: view.order.segments,
        class: view.order.class,
        money: view.money,
        history: None,
    }
}

fn print(orders: &[MarketOrder], statistics: &MarketStatistics) {
    if orders.is_empty() {
        show::hint(
            "No orders yet. A renter places one with `florin rent new` and `florin rent order`.",
        );
        return;
    }
    order_table(orders).print();
    if !statistics.providers.is_empty() {
        anstream::println!();
        provider_table(statistics).print();
    }
    if let Some(median) = statistics.median {
        anstream::println!();
        let mut table = TextTable::new(&["day", ">awards", ">median, FLN per device-hour"]);
        let from = statistics.days.len().saturating_sub(DAYS_SHOWN_MAX);
        for day in statistics.days.iter().skip(from) {
            let date = show::date(day.day).chars().take(10).collect::<String>();
            table.row([date.into(), day.awards.into(), show::fln(day.median).into()]);
        }
        table.print();
        anstream::println!();
        show::sentence(&format!(
            "Median of all awards: {} FLN per useful device-hour. Leases ran in {} of the time.",
            show::fln(median),
            percent(statistics.utilisation_of_all())
        ));
    }
}

fn order_table(orders: &[MarketOrder]) -> TextTable {
    let mut table = TextTable::new(&[
        "order",
        "renter",
        "class",
        "phase",
        "provider",
        ">segments",
        ">price, FLN",
        "deadline or outcome",
    ]);
    for order in orders {
        let lease = order.history.as_ref().map(|history| history.lease());
        let provider = lease.and_then(|lease| lease.award()).map(|award| award.provider.short());
        let delivered = order.observed().map_or(0, |lease| lease.delivered());
        let end = order.history.as_ref().map_or_else(String::new, |history| {
            history.ended().unwrap_or_else(|| show::date(history.lease().phase().1))
        });
        table.row([
            order.id.short().into(),
            order.renter.short().into(),
            order.class.short().into(),
            lease.map_or("awaiting its job", |lease| lease.phase().0.name()).into(),
            provider.unwrap_or_else(|| "–".to_owned()).into(),
            format!("{delivered}/{}", order.segments).into(),
            order.price().map_or_else(|| "–".to_owned(), show::fln).into(),
            end.into(),
        ]);
    }
    table
}

fn provider_table(statistics: &MarketStatistics) -> TextTable {
    let mut table = TextTable::new(&[
        "provider",
        ">won",
        ">delivered",
        ">stopped",
        ">slashed",
        ">segments",
        ">earned, FLN",
        ">lost, FLN",
        ">price per device-hour, FLN",
        ">busy",
    ]);
    for (account, provider) in &statistics.providers {
        table.row([
            account.short().into(),
            provider.won.into(),
            provider.delivered.into(),
            provider.defaulted.into(),
            provider.slashed.into(),
            provider.segments.into(),
            show::fln(provider.earned).into(),
            show::fln(provider.lost).into(),
            provider.per_hour().map_or_else(|| "–".to_owned(), show::fln).into(),
            percent(statistics.utilisation(provider)).into(),
        ]);
    }
    table
}
