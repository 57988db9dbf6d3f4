//! `florin task list`: lists the tasks of a market.

use serde_json::json;

use crate::cli::TaskList;
use crate::failure::Exit;
use crate::market::MarketConnection;
use crate::show::{self, TextTable};

pub(super) fn run(arguments: &TaskList) -> anyhow::Result<Exit> {
    let tasks = MarketConnection::connect(&arguments.market)?.tasks()?;
    if arguments.json.json {
        let rows: Vec<_> = tasks
            .iter()
            .map(|task| {
                json!({
                    "id": task.id,
                    "name": task.name,
                    "phase": task.phase,
                    "round": task.round,
                    "rounds": task.rounds,
                    "enrolled": task.enrolled,
                    "data": show::units(task.data),
                    "infrastructure": show::units(task.infrastructure),
                })
            })
            .collect();
        show::json(&rows)?;
        return Ok(Exit::Done);
    }
    let mut table = TextTable::new(&[
        "task",
        "name",
        "phase",
        ">round",
        ">members",
        ">data, FLN",
        ">infrastructure, FLN",
    ]);
    for task in &tasks {
        table.row([
            task.id.short().into(),
            task.name.as_str().into(),
            show::phase(task.phase).into(),
            format!("{}/{}", task.round, task.rounds).into(),
            task.enrolled.into(),
            show::fln(task.data).into(),
            show::fln(task.infrastructure).into(),
        ]);
    }
    if table.is_empty() {
        show::hint(
            "No tasks yet. A buyer creates one with `florin task new` and `florin task publish`.",
        );
    } else {
        table.print();
    }
    Ok(Exit::Done)
}
