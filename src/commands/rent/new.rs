//! `florin rent new`: writes an order file.

use std::path::Path;

use serde_json::json;

use super::readers;
use crate::cli::RentNew;
use crate::commands::out_file::create_text;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::show;
use crate::task_file::NewGraph;
use crate::task_file::order::{NewOrder, order_for_graph};

pub(super) fn run(arguments: &RentNew) -> anyhow::Result<Exit> {
    let path = &arguments.file;
    let shown = path.display();
    let RentNew { loss, buffers, trainable, .. } = arguments;
    let graph = NewGraph {
        file: &arguments.model,
        loss: *loss,
        loss_bound: None,
        trainable,
        buffers: *buffers,
        image: arguments.image.map(|image| image.0),
        tokens: None,
    };
    if arguments.price.is_zero() {
        let message = "--price 0: use more than 0, at least one base unit for each segment";
        return Err(Failure::input("INVALID_ORDER", message).into());
    }
    let order = NewOrder {
        referee: arguments.referee,
        price_max: arguments.price,
        segments: arguments.segments,
        data_class: arguments.data_class,
        nonce: compose::random_number()?,
        seed: compose::random_number()?,
        at_home: &arguments.at_home,
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let (written, split) = order_for_graph(&graph, &arguments.data, folder, &order)?;
    create_text(path, &written.text)?;
    let notes = [written.notes, vec![readers(arguments.data_class, split.as_ref())]].concat();
    if arguments.json.json {
        show::json(&json!({ "file": path, "notes": notes }))?;
        return Ok(Exit::Done);
    }
    show::sentence(&format!("Wrote {shown}; it explains every key."));
    notes.iter().for_each(|note| show::sentence(note));
    show::hint(&format!("Run: florin rent check {shown}"));
    Ok(Exit::Done)
}
