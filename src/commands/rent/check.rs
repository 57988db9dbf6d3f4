//! `florin rent check`: checks an order file, and shows the quote.

use serde_json::json;

use super::machine::{class_and_step, doubts_about, load, unknown_parties};
use super::{readers, refused};
use crate::cli::RentCheck;
use crate::failure::Exit;
use crate::rent::OrderQuote;
use crate::show::{self, NOTE};
use crate::task_file::order;

pub(super) fn run(arguments: &RentCheck) -> anyhow::Result<Exit> {
    let file = &arguments.file;
    let draft = order::read(file, arguments.engine)?;
    let machine = class_and_step(&draft, file, arguments.engine)?;
    let order = draft.order(file, &unknown_parties(), machine, None)?;
    let training = load(&draft, &order)?;
    let warnings = doubts_about(&draft, &order, &training, arguments.engine)?;
    let quote = OrderQuote::new(&order, &draft.job, draft.challenge_ms).map_err(refused)?;
    if arguments.json.json {
        let mut value = quote.to_json();
        value["job"] = json!(order.job);
        value["warnings"] = json!(warnings);
        value["readers"] = json!(readers(order.data_class, draft.split.as_ref()));
        value["split"] = draft.split.as_ref().map_or(json!(null), |split| {
            json!({
                "at_home": split.at_home,
                "nodes_at_home": split.nodes[0],
                "nodes": split.nodes[1],
                "numbers_at_home": split.numbers[0],
                "numbers_sent": split.numbers[1],
            })
        });
        show::json(&value)?;
        return Ok(Exit::Done);
    }
    show::facts(&quote.facts());
    for warning in &warnings {
        anstream::eprintln!("{NOTE}warning:{NOTE:#} {warning}");
    }
    if let Some(split) = &draft.split {
        let [first, all] = split.nodes;
        let [inputs, sent] = split.numbers;
        anstream::println!();
        show::facts(&[
            ("at home", format!("{first} of {all} nodes: {}", split.at_home.join(", "))),
            ("rows", format!("{sent} activations in place of {inputs} numbers of a row")),
        ]);
    }
    show::hint(&format!(
        "\nNothing was ordered. `florin rent order` locks the escrow, and uploads model and rows. {}",
        readers(order.data_class, draft.split.as_ref())
    ));
    Ok(Exit::Done)
}
