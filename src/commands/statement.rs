//! `florin statement`: explains the payouts of an account.

use florin_learning::privacy::Delta;
use florin_participant::{
    RoundPrivacy, Statements, recorded_privacy, statement_fields, statements,
};
use florin_protocol::{Statement, TaskId, nats};
use serde_json::{Value, json};

use crate::cli;
use crate::commands::participate::state_folder;
use crate::commands::silo::print_split;
use crate::commands::wallet;
use crate::failure::{Exit, Failure, classify};
use crate::market::MarketConnection;
use crate::show::{self, TextTable};

/// The code of an id that names no task.
const UNKNOWN_TASK: &str = "UNKNOWN_TASK";

pub(super) fn run(arguments: &cli::Statement) -> anyhow::Result<Exit> {
    let account = wallet::account(arguments.account, arguments.wallet.as_deref())?;
    let market = MarketConnection::connect(&arguments.market)?;
    let text = &arguments.task;
    let found = market.find(text).and_then(|task| {
        let all = statements(&market, task, account, None)?;
        Ok((task, all))
    });
    let (task, all) = match found {
        Err(error) if classify(&error).0 == UNKNOWN_TASK && market.find_order(text).is_ok() => {
            let message = format!(
                "{text} is an order of the market for compute: `florin rent statement {text}` explains it"
            );
            return Err(Failure::negative(UNKNOWN_TASK, message).into());
        }
        found => found?,
    };
    if all.lines.is_empty() {
        let message = format!("no report of task {} mentions {account} yet", task.short());
        return Err(Failure::negative("NOT_FOUND", message).into());
    }
    let privacy = privacy(arguments, task)?;
    if arguments.json.json {
        let rows: Vec<_> = all.lines.iter().map(|line| json_row(line, &privacy)).collect();
        show::json(&rows)?;
    } else {
        print(&all)?;
        // Without a node of the ledger the statement is still right.
        let members = market.ledger().and_then(|ledger| Ok(ledger.split_of(task, account)?.len()));
        print_split(members.unwrap_or_default(), task, account);
        print_privacy(&privacy);
    }
    Ok(Exit::Done)
}

/// ε of each round, by the record in the state folder of a participation; none without a folder.
fn privacy(arguments: &cli::Statement, task: TaskId) -> anyhow::Result<Vec<RoundPrivacy>> {
    let delta = Delta::try_from(arguments.delta)
        .map_err(|error| Failure::input("INVALID_NOISE", error.to_string()))?;
    let beside = || arguments.wallet.as_deref().map(|wallet| state_folder(None, wallet));
    match arguments.state.clone().or_else(beside) {
        Some(folder) => Ok(recorded_privacy(&folder, task, delta)?),
        None => Ok(Vec::new()),
    }
}

/// A statement, and ε of its round where the state folder has it.
fn json_row(statement: &Statement, privacy: &[RoundPrivacy]) -> Value {
    let mut row = statement_fields(statement);
    if let Some(of_round) = privacy.iter().rfind(|of_round| of_round.round == statement.round) {
        row["epsilon_round_micro"] = json!(of_round.epsilon_round);
        row["epsilon_micro"] = json!(of_round.epsilon);
        row["delta"] = json!(of_round.delta);
    }
    row
}

/// The private part of the statement: no public report has it.
fn print_privacy(privacy: &[RoundPrivacy]) {
    let Some(RoundPrivacy { delta, .. }) = privacy.first() else { return };
    anstream::println!();
    show::sentence(&format!(
        "Clip and noise, by the record in the state folder, which only you have: ε for one row (δ \
         {delta})."
    ));
    anstream::println!();
    let mut table = TextTable::new(&[">round", ">ε in this round", ">ε in total"]);
    for RoundPrivacy { round, epsilon_round, epsilon, .. } in privacy {
        let (alone, total) = (epsilon_round.to_string(), epsilon.to_string());
        table.row([(*round).into(), alone.into(), total.into()]);
    }
    table.print();
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
