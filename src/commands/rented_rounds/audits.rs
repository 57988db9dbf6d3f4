//! The audits of rented rounds on private rows, beside the participation.

use std::time::Duration;

use anyhow::Context;
use florin_compute::DataClass;
use florin_participant::leases::{LeaseEvent, serve_orders};
use florin_participant::{ProviderContext, Shutdown};
use florin_protocol::{Amount, Digest};

use super::{RentedTask, Renter};
use crate::cli::Participate;
use crate::commands::event_printer::EventPrinter;
use crate::commands::participate::state_folder;
use crate::commands::provide_orders::print_event;
use crate::commands::rent::audit::own_audits;
use crate::compose;
use crate::show::{BAD, NOTE};

/// The folder of the audits in the state folder.
const AUDITS: &str = "audits";
/// Pause before the audits begin anew after an error.
const PAUSE: Duration = Duration::from_secs(5);

/// Does work, and audits the own orders on private rows meanwhile. Behind it the orders that are left are settled.
///
/// # Errors
/// The system's, if there is no thread for the audits. Errors of the audits are printed.
pub(in crate::commands) fn beside<T, E>(
    task: Option<&RentedTask>,
    arguments: &Participate,
    (renter, shutdown): (Renter<'_>, &Shutdown),
    work: impl FnOnce() -> Result<T, E>,
) -> anyhow::Result<Result<T, E>> {
    let Some(task) = task.filter(|task| task.rounds.data_class == DataClass::Private) else {
        return Ok(work());
    };
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let is_over = Shutdown::new();
    let done = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("audits".to_owned());
        let audits = thread.spawn_scoped(scope, || {
            // An audit that is late costs a bond: after any error they begin anew.
            while !is_over.is_requested() {
                if let Err(error) = audit(task, arguments, renter, &is_over, None) {
                    printer.print_text(&format!("audits of rented rounds: {error:#}"), BAD);
                    is_over.wait(PAUSE);
                }
            }
        });
        audits.context("cannot start a thread for the audits")?;
        let done = work();
        is_over.request();
        Ok::<_, anyhow::Error>(done)
    })?;
    if done.is_ok() {
        settle(task, arguments, (renter, shutdown), &printer);
    }
    Ok(done)
}

/// Audits and settles orders that the participation has left open.
fn settle(
    task: &RentedTask,
    arguments: &Participate,
    (renter, shutdown): (Renter<'_>, &Shutdown),
    printer: &EventPrinter,
) {
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let unsettled = std::fs::read_dir(folder.join(AUDITS).join("leases"));
    let names = unsettled.into_iter().flatten().flatten().map(|entry| entry.file_name());
    let ids = names.filter_map(|name| name.to_str().and_then(|name| name.parse().ok()));
    for order in ids.collect::<Vec<Digest>>() {
        if shutdown.is_requested() {
            return;
        }
        let id = order.short();
        if !printer.is_json() {
            printer.print_text(&format!("waits for the settlement of order {id}"), NOTE);
        }
        if let Err(error) = audit(task, arguments, renter, shutdown, Some(order)) {
            printer.print_text(&format!("settlement of order {id}: {error:#}"), BAD);
        }
    }
}

/// Audits own orders on private rows: all of them until shutdown is requested, or one until it is settled.
fn audit(
    task: &RentedTask,
    arguments: &Participate,
    renter: Renter<'_>,
    shutdown: &Shutdown,
    only: Option<Digest>,
) -> anyhow::Result<()> {
    let mut engine = compose::engine(arguments.engine)?;
    let folder = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let bond_max = Amount::from_units(u128::MAX);
    let config = own_audits(folder.join(AUDITS), (task.rounds.referee, bond_max), only);
    let context = ProviderContext {
        wallet: renter.wallet,
        client: renter.market,
        ledger: renter.ledger,
        engine: &mut *engine,
    };
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    serve_orders(&config, context, shutdown, &mut |event: &LeaseEvent| {
        // The end of the participation ends the audits beside it: nothing is left to continue.
        if only.is_some() || *event != LeaseEvent::Stopped {
            print_event(&printer, event);
        }
    })?;
    Ok(())
}
