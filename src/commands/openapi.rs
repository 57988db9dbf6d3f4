//! `florin openapi`: prints the OpenAPI description of the coordinator's interface, without a
//! coordinator.

use crate::failure::Exit;

pub(super) fn run() -> anyhow::Result<Exit> {
    anstream::println!("{:#}", florin_coordinator::openapi());
    Ok(Exit::Done)
}
