//! `florin provide --orders`: takes part in orders for compute, by a policy, until it is stopped.

mod file;

use std::path::Path;

use florin_participant::leases::{
    LeaseEvent, LeaseExperiment, LeaseServeConfig, LeaseSummary, ORDERS_POLL_MS, serve_orders,
};
use florin_participant::{Backoff, ParticipantEvent, ProviderContext};
use serde_json::json;

use super::event_printer::EventPrinter;
use super::participate::{state_folder, stop_on_request};
use crate::cli::{OrderExperiment, Provide};
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, BAD, JsonEvent, NOTE};

pub(super) fn run(arguments: &Provide, policy: &Path) -> anyhow::Result<Exit> {
    let policy = file::read(policy)?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let mut engine = compose::engine(arguments.engine)?;
    let config = LeaseServeConfig {
        folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
        policy,
        poll_ms: ORDERS_POLL_MS,
        backoff: Backoff::default(),
        experiment: arguments.experiment.map(|OrderExperiment::Lazy| LeaseExperiment::Lazy),
    };
    let parts = ProviderContext {
        wallet: &wallet,
        client: &market,
        ledger: &*ledger,
        engine: &mut *engine,
    };
    let mut print = |event: &LeaseEvent| print_event(&printer, event);
    let outcome = serve_orders(&config, parts, &shutdown, &mut print)?;
    summary(&outcome, &printer);
    Ok(Exit::Done)
}

fn print_event(printer: &EventPrinter, event: &LeaseEvent) {
    if printer.is_json() {
        return printer.print_json(event);
    }
    let style = match event {
        event if event.is_alarm() => BAD,
        event if event.is_notice() => NOTE,
        _ => anstyle::Style::new(),
    };
    let text = match event {
        LeaseEvent::BondLocked { order, until } => format!(
            "order {}: the bond is locked until {}, so that debits can still be applied",
            order.short(),
            show::date(*until)
        ),
        event => event.to_string(),
    };
    printer.print_text(&text, style);
}

fn summary(outcome: &LeaseSummary, printer: &EventPrinter) {
    let LeaseSummary { account, bids, segments, audits, rulings, paid, lost, returned } = outcome;
    if printer.is_json() {
        let fields = json!({
            "account": account,
            "bids": bids,
            "segments": segments,
            "audits": audits,
            "rulings": rulings,
            "paid": show::units(*paid),
            "lost": show::units(*lost),
            "returned": show::units(*returned),
        });
        return printer.print_json(&JsonEvent { event: "summary", fields });
    }
    anstream::println!();
    show::facts(&[
        ("account", account.to_string()),
        ("bids", bids.to_string()),
        ("segments", segments.to_string()),
        ("audits", audits.to_string()),
        ("rulings", rulings.to_string()),
        ("paid", format!("{} FLN", show::fln(*paid))),
        ("lost", format!("{} FLN", show::fln(*lost))),
        ("returned", format!("{} FLN", show::fln(*returned))),
    ]);
}
