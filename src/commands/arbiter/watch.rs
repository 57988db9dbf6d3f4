//! `florin arbiter watch`: audits settlements as they are posted, and cancels wrong ones.

use florin_participant::{ParticipantEvent, WatchConfig, WatchContext, WatchEvent, watch};
use serde_json::json;

use crate::cli::{ArbiterWatch, IfUnverifiable};
use crate::commands::audit::round_line;
use crate::commands::event_printer::EventPrinter;
use crate::commands::participate::{POLL_MS, state_folder, stop_on_request};
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, BAD, JsonEvent, NOTE};

pub(super) fn run(arguments: &ArbiterWatch) -> anyhow::Result<Exit> {
    let wallet = wallet::open(&arguments.wallet)?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut waiting = |event: &ParticipantEvent| printer.print(event);
    let at = &arguments.market;
    let market = MarketConnection::connect_with_retries(at, &shutdown, &mut waiting)?;
    let task = || arguments.task.as_ref().map(|task| market.find(task)).transpose();
    let task = with_retries(&shutdown, &mut waiting, task)?;
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut waiting, ledger)?;
    let state = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let secrets = [arguments.wallet.secrets(), vec![state]].concat();
    let host = arguments.trainers.host(secrets, std::env::temp_dir());
    compose::check_sandbox(&host)?;
    if let Some(task) = task {
        compose::check_trainer(&market.task(task)?.spec, &host)?;
    }
    let mut engine = compose::engine_with_trainers(arguments.engine, host)?;
    let config = WatchConfig {
        folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
        task,
        dry_run: arguments.dry_run,
        keeps_unverifiable: arguments.if_unverifiable == IfUnverifiable::Keep,
        poll_ms: POLL_MS,
    };
    let context =
        WatchContext { wallet: &wallet, client: &market, ledger: &*ledger, engine: &mut *engine };
    let mut print = |event: &WatchEvent| print_event(&printer, event);
    let outcome = watch(&config, context, &shutdown, &mut print)?;
    if printer.is_json() {
        let fields = json!({
            "rounds": outcome.rounds,
            "objections": outcome.objections,
            "cancelled": outcome.cancelled,
        });
        printer.print_json(&JsonEvent { event: "summary", fields });
    } else {
        show::sentence(&format!(
            "{} rounds audited, {} objections, {} settlements cancelled.",
            outcome.rounds, outcome.objections, outcome.cancelled
        ));
    }
    Ok(if outcome.finished && outcome.objections > 0 { Exit::Negative } else { Exit::Done })
}

fn print_event(printer: &EventPrinter, event: &WatchEvent) {
    if printer.is_json() {
        return printer.print_json(event);
    }
    match event {
        WatchEvent::RoundAudited { task, audit } => {
            anstream::println!("task {}   {}", task.short(), round_line(audit));
        }
        event => {
            let style = match event {
                event if event.is_alarm() => BAD,
                WatchEvent::Retrying { .. } => NOTE,
                _ => anstyle::Style::new(),
            };
            show::paragraph("", &event.to_string(), style);
        }
    }
}
