//! Client of a remote ledger, over HTTP. Private keys stay on this side: only signed transactions
//! are sent.

use std::time::Duration;

use florin_protocol::MarketId;

use crate::api::LedgerError;
use crate::embedded::{Block, BlockSource, ChainHead, Genesis};
use crate::limits::RESPONSE_BYTES_MAX;
use crate::rpc::{LedgerRequest, LedgerResponse};
use crate::transaction::{SignedTransaction, TransactionOutcome};
use crate::transport::{LedgerTransport, submit_remote};
use crate::trust_anchors::TrustAnchors;

/// The route at which a coordinator serves its ledger.
pub const LEDGER_PATH: &str = "/v1/ledger";
/// Connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Response timeout: a block takes one commit, and a busy disk takes time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP status of a request above the rate limit.
const TOO_MANY_REQUESTS: u16 = 429;
/// Attempts of a request above the rate limit.
const RATE_LIMIT_ATTEMPTS: u32 = 10;
/// Pause before the next attempt.
const RATE_LIMIT_BACKOFF: Duration = Duration::from_secs(1);

/// A [`crate::Ledger`] behind a coordinator's `POST /v1/ledger`.
///
/// It trusts the coordinator's responses. A client that does not can verify the chain with
/// [`crate::verify_served_chain`], and its newest head with [`crate::follow_head`].
#[derive(Debug)]
pub struct RemoteLedger {
    agent: ureq::Agent,
    url: String,
    market: MarketId,
}

impl RemoteLedger {
    /// Connects to a coordinator, such as `http://127.0.0.1:7070`, and requests its market.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn connect(base_url: &str) -> Result<Self, LedgerError> {
        Self::connect_with_trust_anchors(base_url, &TrustAnchors::from_system())
    }

    /// Like [`RemoteLedger::connect`], with explicit trust anchors for an `https://` address.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn connect_with_trust_anchors(
        base_url: &str,
        trust: &TrustAnchors,
    ) -> Result<Self, LedgerError> {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(RESPONSE_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(trust.tls_config(base_url))
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let url = format!("{}{LEDGER_PATH}", base_url.trim_end_matches('/'));
        match post(&agent, &url, &LedgerRequest::Market)?.into_result()? {
            LedgerResponse::Market(market) => Ok(Self { agent, url, market }),
            _ => Err(Self::unexpected_response()),
        }
    }

    fn unexpected_response() -> LedgerError {
        LedgerError::Unavailable("the response does not match the request".to_owned())
    }
}

impl BlockSource for RemoteLedger {
    // Checked against the market.
    fn genesis(&self) -> Result<Genesis, LedgerError> {
        match self.request(LedgerRequest::Genesis)? {
            LedgerResponse::Genesis(genesis) if genesis.market() == self.market => Ok(*genesis),
            LedgerResponse::Genesis(_) => {
                Err(LedgerError::Corrupt("the genesis belongs to another market".to_owned()))
            }
            _ => Err(Self::unexpected_response()),
        }
    }

    fn head(&self) -> Result<ChainHead, LedgerError> {
        match self.request(LedgerRequest::Head)? {
            LedgerResponse::Head(head) => Ok(head),
            _ => Err(Self::unexpected_response()),
        }
    }

    fn block(&self, number: u64) -> Result<Option<Block>, LedgerError> {
        match self.request(LedgerRequest::Block(number))? {
            LedgerResponse::Block(block) => Ok(block.map(|block| *block)),
            _ => Err(Self::unexpected_response()),
        }
    }
}

fn post(
    agent: &ureq::Agent,
    url: &str,
    request: &LedgerRequest,
) -> Result<LedgerResponse, LedgerError> {
    let lost = |error: ureq::Error| LedgerError::Unavailable(format!("{url}: {error}"));
    let mut response = agent.post(url).send_json(request).map_err(lost)?;
    // A request above the rate limit was not executed; after the pause it is allowed again.
    for _ in 1..RATE_LIMIT_ATTEMPTS {
        if response.status() != TOO_MANY_REQUESTS {
            break;
        }
        std::thread::sleep(RATE_LIMIT_BACKOFF);
        response = agent.post(url).send_json(request).map_err(lost)?;
    }
    let status = response.status();
    if !status.is_success() {
        let body = response.body_mut().with_config().limit(1_024).read_to_string();
        let body = body.unwrap_or_default();
        return Err(LedgerError::Unavailable(format!("{url}: {status} {}", body.trim())));
    }
    response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_json().map_err(lost)
}

impl LedgerTransport for RemoteLedger {
    fn market(&self) -> MarketId {
        self.market
    }

    fn request(&self, request: LedgerRequest) -> Result<LedgerResponse, LedgerError> {
        post(&self.agent, &self.url, &request)?.into_result()
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<TransactionOutcome, LedgerError> {
        submit_remote(&|request| self.request(request), transaction)
    }
}
