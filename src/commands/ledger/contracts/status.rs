//! `florin ledger status`: shows the state of a market's contracts.

use std::sync::Arc;

use florin_ledger_ethereum::Endpoint;
use florin_ledger_ethereum::verify::{MarketSnapshot, read_market};
use florin_protocol::Amount;
use serde_json::json;

use super::MarketContracts;
use crate::cli::LedgerStatus;
use crate::commands::now;
use crate::failure::Exit;
use crate::show::{self, TextTable};

/// The tokens by purpose.
struct Money {
    escrow: Amount,
    owed: Amount,
    bonds: Amount,
    stakes: Amount,
    treasury: Amount,
}

/// The numbers of tasks and settlements.
struct Counts {
    tasks: usize,
    open: usize,
    pending: usize,
}

pub(crate) fn run(arguments: &LedgerStatus) -> anyhow::Result<Exit> {
    let found = MarketContracts::from_args(&arguments.chain)?;
    let endpoint: Arc<dyn Endpoint> = found.endpoint.clone();
    let survey = read_market(&endpoint, &found.deployment, &found.settings)?;
    let (money, counts) = (money(&survey)?, counts(&survey));
    if arguments.json.json {
        as_json(&found, &survey, &money, &counts)?;
    } else {
        print(&found, &survey, &money, &counts);
    }
    Ok(Exit::Done)
}

fn money(survey: &MarketSnapshot) -> anyhow::Result<Money> {
    let books = &survey.market;
    let total =
        |parts: &mut dyn Iterator<Item = u128>| Amount::total(parts.map(Amount::from_units));
    let tasks = || books.tasks.values().map(|task| &task.state);
    Ok(Money {
        escrow: total(&mut tasks().flat_map(|t| [t.dataLocked, t.infrastructureLocked]))?,
        owed: total(&mut tasks().map(|t| t.owed))?,
        bonds: total(&mut books.accounts.values().map(|person| person.bond.amount))?,
        stakes: total(&mut books.providers.values().map(|provider| provider.stake.amount))?,
        treasury: Amount::from_units(books.treasury),
    })
}

fn counts(survey: &MarketSnapshot) -> Counts {
    let tasks = &survey.market.tasks;
    Counts {
        tasks: tasks.len(),
        open: tasks.values().filter(|task| !task.state.closed).count(),
        pending: tasks.values().map(|task| task.pending.len()).sum(),
    }
}

fn print(found: &MarketContracts, survey: &MarketSnapshot, money: &Money, counts: &Counts) {
    let (deployment, health) = (&found.deployment, found.endpoint.health());
    let age = now().ms_since(survey.time) / 1_000;
    let node = match &health.last_failure {
        Some(why) => {
            format!("{} of {} calls failed, the last: {why}", health.failures, health.calls)
        }
        None => format!("answered all {} calls", health.calls),
    };
    let depth = found.settings.confirmations;
    let mut table = TextTable::new(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.into(), value.into()]);
    row("chain", deployment.chain.to_string());
    row("block", format!("{}, mined {age} s ago ({depth} confirmations required)", survey.block));
    row("node", format!("{}: {node}", found.endpoint.name()));
    row("market", deployment.market.to_string());
    row("token", deployment.token.to_string());
    row("registry", deployment.registry.to_string());
    row("genesis", deployment.market().genesis.to_string());
    row("supply", format!("{} FLN", show::fln(survey.supply)));
    row("in the market", format!("{} FLN", show::fln(survey.market_balance)));
    row("  escrow", format!("{} FLN", show::fln(money.escrow)));
    row("  owed", format!("{} FLN", show::fln(money.owed)));
    row("  bonds", format!("{} FLN", show::fln(money.bonds)));
    row("  stakes", format!("{} FLN", show::fln(money.stakes)));
    row("  treasury", format!("{} FLN", show::fln(money.treasury)));
    row("tasks", format!("{}, {} of them open", counts.tasks, counts.open));
    row("settlements", format!("{} in their challenge windows", counts.pending));
    row("events", survey.market.events.to_string());
    table.print();
}

fn as_json(
    found: &MarketContracts,
    survey: &MarketSnapshot,
    money: &Money,
    counts: &Counts,
) -> anyhow::Result<()> {
    let (deployment, health) = (&found.deployment, found.endpoint.health());
    show::json(&json!({
        "chain": deployment.chain,
        "block": survey.block,
        "mined_at": survey.time,
        "confirmations": found.settings.confirmations,
        "node": {
            "name": found.endpoint.name(),
            "calls": health.calls,
            "failures": health.failures,
            "last_failure": health.last_failure,
        },
        "market": deployment.market,
        "token": deployment.token,
        "registry": deployment.registry,
        "genesis": deployment.market().genesis,
        "supply": show::units(survey.supply),
        "contract_balance": show::units(survey.market_balance),
        "escrow": show::units(money.escrow),
        "owed": show::units(money.owed),
        "bonds": show::units(money.bonds),
        "stakes": show::units(money.stakes),
        "treasury": show::units(money.treasury),
        "tasks": counts.tasks,
        "open": counts.open,
        "pending": counts.pending,
        "events": survey.market.events,
    }))
}
