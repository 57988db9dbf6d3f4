//! `florin provide`: deposits a stake and evaluates updates for pay.

use anyhow::Context;
use florin_participant::{
    ArbiterPolicy, Backoff, ParticipantEvent, ProviderConfig, ProviderContext, provide,
};
use florin_protocol::{Amount, Digest, TaskId};
use serde_json::json;

use super::event_printer::EventPrinter;
use super::participate::{POLL_MS, state_folder, stop_on_request};
use super::{provide_list, provide_orders};
use crate::cli::Provide;
use crate::commands::wallet;
use crate::compose;
use crate::failure::Exit;
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, JsonEvent};

/// The tasks that are served, and the limits of their stakes.
pub(super) struct ServedTasks {
    /// `None` for all that pay for work.
    pub(super) tasks: Option<Vec<TaskId>>,
    pub(super) stake_max: Amount,
    pub(super) arbiters: ArbiterPolicy,
    pub(super) accepted_trainers: Vec<Digest>,
}

impl ServedTasks {
    /// The configuration of a daemon that serves them: named ones until they are over.
    pub(super) fn config(self, arguments: &Provide) -> ProviderConfig {
        let Self { tasks, stake_max, arbiters, accepted_trainers } = self;
        ProviderConfig {
            folder: state_folder(arguments.state.as_deref(), &arguments.wallet.wallet),
            until_done: tasks.is_some(),
            tasks,
            stake_max,
            arbiters,
            accepted_trainers,
            poll_ms: POLL_MS,
            backoff: Backoff::default(),
        }
    }
}

pub(super) fn run(arguments: &Provide) -> anyhow::Result<Exit> {
    if let Some(policy) = &arguments.orders {
        return provide_orders::run(arguments, policy);
    }
    if let Some(file) = &arguments.list {
        return provide_list::run(arguments, file);
    }
    let stake_max = arguments.max_stake.context("clap requires --max-stake, --orders or --list")?;
    let wallet = wallet::open(&arguments.wallet)?;
    let shutdown = stop_on_request()?;
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    let mut print = |event: &ParticipantEvent| printer.print(event);
    let market = MarketConnection::connect_with_retries(&arguments.market, &shutdown, &mut print)?;
    let market = market.with_weights(&arguments.weights);
    let tasks = || arguments.task.iter().map(|task| market.find(task)).collect();
    let tasks: Vec<_> = with_retries(&shutdown, &mut print, tasks)?;
    let tasks = arguments.task.is_some().then_some(tasks);
    let ledger = || market.signing_ledger(&wallet, &arguments.wallet);
    let ledger = with_retries(&shutdown, &mut print, ledger)?;
    let state = state_folder(arguments.state.as_deref(), &arguments.wallet.wallet);
    let secrets = [arguments.wallet.secrets(), vec![state.clone()]].concat();
    let host = arguments.trainers.host(secrets, state);
    compose::check_sandbox(&host)?;
    let mut engine = compose::engine_with_trainers(arguments.engine, host)?;
    let served = ServedTasks {
        tasks,
        stake_max,
        arbiters: arguments.arbiters.policy(),
        accepted_trainers: arguments.trainers.accept_trainer.clone(),
    };
    let config = served.config(arguments);
    let parts = ProviderContext {
        wallet: &wallet,
        client: &market,
        ledger: &*ledger,
        engine: &mut *engine,
    };
    let outcome = provide(&config, parts, &shutdown, &mut print)?;
    if printer.is_json() {
        let fields = json!({
            "account": outcome.account,
            "orders": outcome.orders,
            "units": outcome.units,
            "withdrawn": show::units(outcome.claimed),
        });
        printer.print_json(&JsonEvent { event: "summary", fields });
        return Ok(Exit::Done);
    }
    anstream::println!();
    show::facts(&[
        ("account", outcome.account.to_string()),
        ("orders", outcome.orders.to_string()),
        ("units", outcome.units.to_string()),
        ("withdrawn", format!("{} FLN", show::fln(outcome.claimed))),
    ]);
    Ok(Exit::Done)
}
