//! `florin rent …`: the renter's commands.

pub(super) mod audit;
mod check;
mod earlier;
mod earnings;
mod fetch;
pub(super) mod machine;
mod new;
mod order;
pub(crate) mod placing;
mod statement;
mod stored;
mod watch;

use florin_compute::{DataClass, LeaseError};

use crate::cli::{RentCommand, RentOrder};
use crate::failure::{Exit, Failure};
use crate::task_file::order::OrderSplit;

pub(super) fn run(command: RentCommand) -> anyhow::Result<Exit> {
    match command {
        RentCommand::New(arguments) => new::run(&arguments),
        RentCommand::Check(arguments) => check::run(&arguments),
        RentCommand::Order(arguments) => order::run(&arguments),
        RentCommand::Watch(arguments) => watch::run(&arguments),
        RentCommand::Fetch(arguments) => fetch::run(&arguments),
        RentCommand::Continue(arguments) => {
            let (file, place) = (arguments.file, arguments.place);
            order::run(&RentOrder { file, after: Some(arguments.order), place })
        }
        RentCommand::Audit(arguments) => audit::run(&arguments),
        RentCommand::Statement(arguments) => statement::run(&arguments),
    }
}

/// The readers of the rows of an order, or of the activations in their place, in sentences for its renter.
pub(super) fn readers(class: DataClass, split: Option<&OrderSplit>) -> String {
    let of_rows = match class {
        DataClass::Public => "All accounts of the market can read its model and its rows.",
        DataClass::Buyer => {
            "All accounts can read its model; the coordinator, the provider and drawn auditors its rows, and the \
             referee in a dispute."
        }
        DataClass::Private => {
            "All accounts can read its model; the coordinator and the provider its rows, and a referee those of one \
             step."
        }
    };
    match split {
        None => of_rows.to_owned(),
        Some(_) => format!(
            "{of_rows} The layers of split.at_home and your rows stay here: its model is the rest, and its rows are \
             activations with their labels and targets."
        ),
    }
}

/// An order that the rules of leases refuse.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn refused(error: LeaseError) -> Failure {
    Failure::input(error.code(), error.to_string())
}
