//! `florin statement`: explains the payouts of an account.

use florin_participant::{Statements, statement_fields, statements};
use florin_protocol::nats;

use crate::cli;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show::{self, TextTable};

pub(super) fn run(arguments: &cli::Statement) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let all = statements(&market, task, account, None)?;
    if all.lines.is_empty() {
        let message = format!("no report of task {} mentions {account} yet", task.short());
        return Err(Failure::negative("NOT_FOUND", message).into());
    }
    if arguments.json.json {
        let rows: Vec<_> = all.lines.iter().map(statement_fields).collect();
        show::json(&rows)?;
    } else {
        print(&all)?;
    }
    Ok(Exit::Done)
}

fn print(all: &Statements) -> anyhow::Result<()> {
    let mut table = TextTable::new(&[
        ">round",
        ">score",
        ">± error",
        ">increment",
        ">paid, FLN",
        ">debited, FLN",
    ]);
    for statement in &all.lines {
        let score = |nano: Option<i128>| nano.map_or("–".to_owned(), nats);
        table.row([
            statement.round.into(),
            score(statement.score_nano.map(i128::from)).into(),
            score(statement.error_nano.map(i128::from)).into(),
            nats(statement.increment.try_into().unwrap_or(i128::MAX)).into(),
            show::fln(statement.payout.plus(statement.infrastructure)?).into(),
            show::fln(statement.debit).into(),
        ]);
    }
    anstream::println!("{}\n", all.account);
    table.print();
    anstream::println!();
    for statement in &all.lines {
        show::sentence(&format!("Round {}. {}", statement.round, statement.explanation));
    }
    anstream::println!();
    show::sentence(&format!(
        "Total: {} FLN for data, {} FLN for infrastructure, {} FLN debited.",
        show::fln(all.payout),
        show::fln(all.infrastructure),
        show::fln(all.debit)
    ));
    Ok(())
}
