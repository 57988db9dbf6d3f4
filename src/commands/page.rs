//! `florin page`: the page of another coordinator's market, on this machine.

use std::sync::Arc;

use anyhow::Context;
use florin_coordinator::page_relay::{self, PublicDocuments};
use florin_ledger::rpc::LedgerRequest;
use florin_participant::{Client, ClientError, CoordinatorIdentity};
use florin_protocol::{ErrorCode, MarketInfo, Rejection};
use serde_json::json;

use super::coordinate::{listen, stop_signal};
use crate::cli::Page;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

/// The market behind the page. The client verifies that it is the market of the first contact.
struct RelayedMarket {
    client: Client,
    /// The market's address, for the commands that the page shows.
    url: String,
}

impl PublicDocuments for RelayedMarket {
    fn document(&self, path: &str) -> Result<Vec<u8>, Rejection> {
        let bytes = self.client.public_document(path).map_err(rejection)?;
        if path == "market" { self.pinned(&bytes) } else { Ok(bytes) }
    }

    fn ledger(&self, query: &LedgerRequest) -> Result<Vec<u8>, Rejection> {
        self.client.ledger_document(query).map_err(rejection)
    }
}

impl RelayedMarket {
    /// The market's description, with its address, if it is still that of the first contact.
    fn pinned(&self, bytes: &[u8]) -> Result<Vec<u8>, Rejection> {
        let changed = |why: &str| Rejection::new(ErrorCode::WrongMarket, why.to_owned());
        let info: MarketInfo =
            serde_json::from_slice(bytes).map_err(|error| changed(&error.to_string()))?;
        if CoordinatorIdentity::from(&info) != *self.client.coordinator() {
            return Err(changed("another coordinator answers at the market's address now"));
        }
        let mut document = json!(info);
        document["url"] = json!(self.url);
        Ok(document.to_string().into_bytes())
    }
}

fn rejection(error: ClientError) -> Rejection {
    match error {
        ClientError::Rejected(rejection) => rejection,
        error => Rejection::new(ErrorCode::StorageUnavailable, error.to_string()),
    }
}

pub(super) fn run(arguments: &Page) -> anyhow::Result<Exit> {
    if !arguments.listen.ip().is_loopback() {
        let message = format!(
            "{} is not an address of this machine alone: use 127.0.0.1. To serve a page to others, \
             run `florin coordinate`, or a proxy in front of this command",
            arguments.listen
        );
        return Err(Failure::input("NOT_LOOPBACK", message).into());
    }
    let market = MarketConnection::connect(&arguments.market)?;
    let url = arguments.market.market.trim_end_matches('/').to_owned();
    let documents = Arc::new(RelayedMarket { client: (*market).clone(), url });
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the async runtime")?;
    runtime.block_on(async {
        let listener = listen(arguments.listen)?;
        let stop = stop_signal()?;
        show::facts(&[
            ("page", format!("http://{}/", listener.local_addr()?)),
            ("market", arguments.market.market.clone()),
        ]);
        page_relay::serve(listener, documents, stop).await?;
        Ok(Exit::Done)
    })
}
