//! `florin provide --list`: lists devices under a stake, and proves them by probes, until the listing is over.

mod expected;
mod file;

pub(super) use file::read;

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use florin_compute::ListingOutcome;
use florin_ledger::Ledger;
use florin_participant::listings::{
    ListConfig, ListError, ListingContext, ListingNews, ListingOffer, ListingSummary, ProbeGate,
    RecordError, end_listings, serve_listing,
};
use florin_participant::{Backoff, ParticipantEvent, Shutdown, Wallet};
use florin_protocol::Digest;
use serde_json::json;

use super::event_printer::EventPrinter;
use super::participate::{state_folder, stop_on_request};
use crate::cli::Provide;
use crate::commands::wallet;
use crate::compose;
use crate::failure::{Exit, Failure, classify, in_one_line};
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, BAD, JsonEvent, NOTE};

/// The time of each sample of a measured card.
const SAMPLE: Duration = Duration::from_millis(500);

/// Lists devices, and takes part in nothing else.
pub(super) fn run(arguments: &Provide, file: &Path) -> anyhow::Result<Exit> {
    // A wrong file is an error before any wait.
    let offer = file::read(file)?;
    if arguments.dry_run {
        return expected::run(arguments, &offer);
    }
    let wallet = wallet::open(&arguments.wallet)?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let parts = ListingParts { market: &market, wallet: &wallet, ledger: &*ledger };
    if arguments.unlist {
        let ended =
            with_listing(arguments, offer, &parts, ProbeGate::default(), |config, context| {
                let mut print = |news: &ListingNews| print_news(&printer, news);
                end_listings(config, context, &shutdown, &mut print)
            })?;
        ended.iter().for_each(|summary| print_summary(summary, &printer));
        return Ok(Exit::Done);
    }
    let summary = serve(arguments, offer, &parts, (&shutdown, ProbeGate::default()))?;
    print_summary(&summary, &printer);
    Ok(match summary.outcome {
        Some(ListingOutcome::Unproven | ListingOutcome::Contradicted { .. }) => Exit::Negative,
        _ => Exit::Done,
    })
}

/// The connections of a provider, which its other work may share.
#[derive(Clone, Copy)]
pub(super) struct ListingParts<'a> {
    pub(super) market: &'a MarketConnection,
    pub(super) wallet: &'a Wallet,
    pub(super) ledger: &'a dyn Ledger,
}

/// Lists devices until the listing is over or a shutdown is requested.
pub(super) fn serve(
    arguments: &Provide,
    offer: ListingOffer,
    parts: &ListingParts<'_>,
    (shutdown, gate): (&Shutdown, ProbeGate),
) -> anyhow::Result<ListingSummary> {
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |news: &ListingNews| print_news(&printer, news);
    with_listing(arguments, offer, parts, gate, |config, context| {
        serve_listing(config, context, shutdown, &mut print)
    })
}

/// Calls `work` with the resources of a listing.
fn with_listing<T>(
    arguments: &Provide,
    offer: ListingOffer,
    parts: &ListingParts<'_>,
    gate: ProbeGate,
    work: impl FnOnce(&ListConfig, &ListingContext<'_>) -> Result<T, ListError>,
) -> anyhow::Result<T> {
    let kind = arguments.engine.engine;
    let no_probe = |error: florin_learning::select::EngineError| {
        Failure::input("NO_ENGINE", error.to_string())
    };
    let products = florin_learning::select::field_products(kind).map_err(no_probe)?;
    let engine = compose::engine(arguments.engine)?;
    let class = florin_work::compute_class(&*engine).unwrap_or(Digest([0; 32]));
    drop(engine);
    let config = ListConfig {
        folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
        offer,
        sample: SAMPLE,
        backoff: Backoff::default(),
        gate,
    };
    let context = ListingContext {
        wallet: parts.wallet,
        client: parts.market.client(),
        ledger: parts.ledger,
        products: &products,
        class,
    };
    work(&config, &context).map_err(|error| match error {
        ListError::Client(error) => error.into(),
        ListError::Ledger(error) => error.into(),
        ListError::Claim(error) => error.into(),
        ListError::Record(RecordError::Damaged { .. }) => {
            Failure::input(error.code(), error.to_string()).into()
        }
        error => Failure::negative(error.code(), error.to_string()).into(),
    })
}

fn print_news(printer: &EventPrinter, news: &ListingNews) {
    if printer.is_json() {
        return printer.print_json(news);
    }
    let style = match news {
        news if news.is_alarm() => BAD,
        ListingNews::Retrying { .. }
        | ListingNews::Measuring { .. }
        | ListingNews::Another { .. } => NOTE,
        _ => anstyle::Style::new(),
    };
    let text = match news {
        ListingNews::Locked { until } => format!(
            "the stake is locked until {}, so that a debit can still be proven",
            show::date(*until)
        ),
        news => news.to_string(),
    };
    printer.print_text(&text, style);
}

/// Prints the summary of a listing.
pub(super) fn print_summary(summary: &ListingSummary, printer: &EventPrinter) {
    let ListingSummary { listing, passed, outcome, returned } = summary;
    if printer.is_json() {
        let fields = json!({
            "listing": listing,
            "passed": passed,
            "outcome": outcome,
            "returned": show::units(*returned),
        });
        return printer.print_json(&JsonEvent { event: "listing_summary", fields });
    }
    let outcome = match outcome {
        None => "goes on: start again before its next probe".to_owned(),
        Some(ListingOutcome::Unproven) => "unproven".to_owned(),
        Some(ListingOutcome::Withdrawn) => "withdrawn".to_owned(),
        Some(ListingOutcome::Expired) => "expired".to_owned(),
        Some(ListingOutcome::Contradicted { order }) => {
            format!("contradicted by leases, the last one of order {}", order.short())
        }
    };
    anstream::println!();
    show::facts(&[
        ("listing", listing.to_string()),
        ("passed probes", passed.to_string()),
        ("outcome", outcome),
        ("returned", format!("{} FLN", show::fln(*returned))),
    ]);
}

/// Prints why a listing failed beside other work, which goes on.
fn print_failure(error: &anyhow::Error, printer: &EventPrinter) {
    let ((code, _), why) = (classify(error), in_one_line(error));
    match printer.is_json() {
        true => printer.print_json(&json!({ "event": "listing_failed", "code": code, "why": why })),
        false => printer.print_text(&format!("the listing failed: {why} [{code}]"), BAD),
    }
}

/// Lists devices on a thread of its own while other work goes on. A listing that ends does not end the work.
///
/// # Errors
/// Those of the work.
pub(super) fn beside<T>(
    arguments: &Provide,
    offer: ListingOffer,
    parts: &ListingParts<'_>,
    (shutdown, gate): (&Shutdown, ProbeGate),
    work: impl FnOnce() -> T,
) -> anyhow::Result<T> {
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    std::thread::scope(|scope| {
        let listing =
            std::thread::Builder::new().name("listing".to_owned()).spawn_scoped(scope, || {
                match serve(arguments, offer, parts, (shutdown, gate)) {
                    Ok(summary) => print_summary(&summary, &printer),
                    Err(error) => print_failure(&error, &printer),
                }
            });
        listing.context("cannot start a thread for the listing")?;
        Ok(work())
    })
}
