//! `florin provide`: deposits a stake and evaluates updates for pay.

use florin_participant::{Backoff, Provider, ProviderConfig, provide};

use super::participate::{POLL_MS, say, state_folder, stop_on_request};
use crate::cli::Provide;
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::Market;
use crate::show;

pub(super) fn run(arguments: &Provide) -> anyhow::Result<Exit> {
    let shutdown = stop_on_request()?;
    let market = Market::connect_patiently(&arguments.market, &shutdown, &mut say)?;
    let tasks = match &arguments.task {
        Some(task) => Some(vec![market.find(task)?]),
        None => None,
    };
    let wallet = wallet::open(&arguments.wallet)?;
    let by = (&wallet, &arguments.wallet);
    let ledger = market.ledger_patiently(by, &shutdown, &mut say)?;
    let mut engine = compose::engine(arguments.engine)?;
    let config = ProviderConfig {
        folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
        until_done: tasks.is_some(),
        tasks,
        stake_max: arguments.stake,
        poll_ms: POLL_MS,
        patience: Backoff::default(),
    };
    let parts =
        Provider { wallet: &wallet, client: &market, ledger: &*ledger, engine: &mut *engine };
    let outcome = provide(&config, parts, &shutdown, &mut say)?;
    anstream::println!();
    show::facts(&[
        ("account", outcome.account.to_string()),
        ("orders", outcome.orders.to_string()),
        ("units", outcome.units.to_string()),
        ("withdrawn", format!("{} FLN", show::fln(outcome.claimed))),
    ]);
    Ok(Exit::Done)
}
