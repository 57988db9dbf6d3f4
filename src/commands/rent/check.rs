//! `florin rent check`: checks an order file, and shows the quote.

use serde_json::json;

use super::machine::{class_and_step, load, unknown_parties};
use super::{readers, refused};
use crate::cli::RentCheck;
use crate::failure::Exit;
use crate::rent::OrderQuote;
use crate::show;
use crate::task_file::order;

pub(super) fn run(arguments: &RentCheck) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let draft = order::read(file)?;
    let machine = class_and_step(&draft, file, arguments.engine)?;
    let order = draft.order(file, &unknown_parties(), machine, None)?;
    load(&draft, &order)?;
    let quote = OrderQuote::new(&order, &draft.job, draft.challenge_ms).map_err(refused)?;
    if arguments.json.json {
        let mut value = quote.to_json();
        value["job"] = json!(order.job);
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    show::facts(&quote.facts());
    show::hint(&format!(
        "\nNothing was ordered. `florin rent order` locks the escrow, and uploads model and rows. {}",
        readers(order.data_class)
    ));
    Ok(Exit::Done)
}
