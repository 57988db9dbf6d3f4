//! `florin openapi`: prints the OpenAPI description of the coordinator's interface, without a
//! coordinator.

use crate::cli::JsonArg;
use crate::failure::Exit;

/// The description is JSON, with and without the flag.
pub(super) fn run(_: JsonArg) -> anyhow::Result<Exit> {
    anstream::println!("{:#}", florin_coordinator::openapi());
    Ok(Exit::Done)
}
