//! `florin provide --orders`: takes part in orders for compute, by a policy, until it is stopped.

mod executors;
mod file;
mod value;

use std::path::Path;

use florin_participant::leases::{
    LeaseEvent, LeaseExperiment, LeaseServeConfig, LeaseSummary, ORDERS_POLL_MS, OrderProspect,
    prospects, serve_orders_by,
};
use florin_participant::listings::ProbeGate;
use florin_participant::{Backoff, ParticipantEvent, ProviderContext};
use serde_json::{Value, json};

use super::event_printer::EventPrinter;
use super::participate::{state_folder, stop_on_request};
use super::provide_list::{self, ListingParts};
use crate::cli::{OrderExperiment, Provide};
use crate::commands::wallet;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, BAD, JsonEvent, NOTE, TextTable};
use value::ValueParts;

pub(super) fn run(arguments: &Provide, policy: &Path) -> anyhow::Result<Exit> {
    let file::OrdersPolicy { policy, executors, value } = file::read(policy, arguments.backend)?;
    check_experiment(arguments, executors.is_some())?;
    let offer = arguments.list.as_deref().map(provide_list::read).transpose()?;
    let wallet = wallet::open(&arguments.wallet)?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let mut engine = compose::engine(arguments.engine)?;
    let gate = ProbeGate::default();
    let config = LeaseServeConfig {
        // Executors run in other folders.
        folder: std::path::absolute(state_folder(
            arguments.state.as_deref(),
            &arguments.wallet.wallet,
        ))?,
        policy,
        poll_ms: ORDERS_POLL_MS,
        gate: gate.clone(),
        backoff: Backoff::default(),
        only: None,
        experiment: arguments.experiment.map(|OrderExperiment::Lazy| LeaseExperiment::Lazy),
    };
    let parts = ProviderContext {
        wallet: &wallet,
        client: &market,
        ledger: &*ledger,
        engine: &mut *engine,
    };
    if arguments.dry_run {
        return print_prospects(&prospects(&config, parts, &shutdown)?, arguments.json.json);
    }
    let backend =
        executors.map(|plan| plan.backend(arguments.engine, &config.folder)).transpose()?;
    let mut print = |event: &LeaseEvent| print_event(&printer, event);
    let (market, wallet, ledger) = (&market, &wallet, &*ledger);
    let serve = || match offer {
        None => Ok(serve_orders_by(&config, parts, backend, &shutdown, &mut print)?),
        Some(offer) => {
            let shared = ListingParts { market, wallet, ledger };
            let work = || {
                let served = serve_orders_by(&config, parts, backend, &shutdown, &mut print);
                // The listing ends with the work.
                shutdown.request();
                served
            };
            Ok(provide_list::beside(arguments, offer, &shared, (&shutdown, gate), work)??)
        }
    };
    let beside = ValueParts { market, wallet, ledger };
    let outcome = value::beside(arguments, value.as_ref(), beside, &shutdown, serve)?;
    summary(&outcome, &printer);
    Ok(Exit::Done)
}

/// Executors have no misbehaviour.
fn check_experiment(arguments: &Provide, has_executors: bool) -> Result<(), Failure> {
    match has_executors && arguments.experiment.is_some() {
        true => {
            let message = "an experiment computes in the daemon: remove the table [executors]";
            Err(Failure::input("INVALID_POLICY", message))
        }
        false => Ok(()),
    }
}

fn print_prospects(found: &[OrderProspect], is_json: bool) -> anyhow::Result<Exit> {
    if is_json {
        let orders: Vec<Value> = found.iter().map(prospect_json).collect();
        show::json(&json!({ "orders": orders }))?;
        return Ok(Exit::Done);
    }
    if found.is_empty() {
        show::hint("No order takes bids now. The daemon waits for them: run it without --dry-run.");
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&[
        "order",
        "role",
        ">pay from, FLN",
        ">to, FLN",
        ">deposit, FLN",
        ">time",
        "left out",
    ]);
    for one in found {
        let number =
            |amount| if one.refusal.is_some() { "–".to_owned() } else { show::fln(amount) };
        let time = match one.refusal {
            Some(_) => "–".to_owned(),
            None => format!("{:.1} s", one.compute_ms as f64 / 1_000.0),
        };
        table.row([
            one.order.short().into(),
            one.role.into(),
            number(one.pay_least).into(),
            number(one.pay_most).into(),
            number(one.deposit).into(),
            time.into(),
            one.refusal.clone().unwrap_or_default().into(),
        ]);
    }
    table.print();
    anstream::println!();
    show::sentence(
        "A provider's pay is at least its own price and at most the order's; an auditor's is expected with the \
         auditors so far, and at most that of all drawn segments. Nothing was deposited.",
    );
    Ok(Exit::Done)
}

fn prospect_json(one: &OrderProspect) -> Value {
    json!({
        "order": one.order,
        "role": one.role,
        "left_out": one.refusal,
        "pay_least": show::units(one.pay_least),
        "pay_most": show::units(one.pay_most),
        "deposit": show::units(one.deposit),
        "compute_ms": one.compute_ms,
    })
}

/// Prints an event: a line, or an object.
pub(super) fn print_event(printer: &EventPrinter, event: &LeaseEvent) {
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

/// Prints what an account did in orders.
pub(super) fn summary(outcome: &LeaseSummary, printer: &EventPrinter) {
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
