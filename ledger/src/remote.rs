//! Client of a remote ledger, over HTTP. Private keys stay on this side: only signed transactions
//! are sent.

use std::time::Duration;

use florin_protocol::MarketId;

use crate::api::LedgerError;
use crate::channel::{Channel, submit_over};
use crate::limits::ANSWER_BYTES_MAX;
use crate::local::{Block, Genesis, Head};
use crate::rpc::{Request, Response};
use crate::transaction::{Outcome, SignedTransaction};
use crate::trust::Trust;

/// The route at which a coordinator serves its ledger.
pub const PATH: &str = "/v1/ledger";
/// Connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Response timeout: a block takes one commit, and a busy disk takes time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// HTTP status of a request above the rate limit.
const TOO_OFTEN: u16 = 429;
/// Attempts of a request above the rate limit.
const TOO_OFTEN_TRIES: u32 = 10;
/// Pause before the next attempt.
const TOO_OFTEN_PAUSE: Duration = Duration::from_secs(1);

/// A [`crate::Ledger`] behind a coordinator's `POST /v1/ledger`.
///
/// It trusts the coordinator's responses. A client that does not can follow the chain with
/// [`RemoteLedger::genesis`] and [`RemoteLedger::block`] and verify it.
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
        Self::connect_trusting(base_url, &Trust::system())
    }

    /// Like [`RemoteLedger::connect`], with explicit trust anchors for an `https://` address.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn connect_trusting(base_url: &str, trust: &Trust) -> Result<Self, LedgerError> {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(ANSWER_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(trust.tls_config(base_url))
            .build();
        let agent = ureq::Agent::new_with_config(config);
        let url = format!("{}{PATH}", base_url.trim_end_matches('/'));
        match post(&agent, &url, &Request::Market)?.into_result()? {
            Response::Market(market) => Ok(Self { agent, url, market }),
            _ => Err(Self::confused()),
        }
    }

    fn confused() -> LedgerError {
        LedgerError::Unavailable("the response does not match the request".to_owned())
    }

    /// The chain's genesis, checked against the market.
    ///
    /// # Errors
    /// [`LedgerError`]; [`LedgerError::Corrupt`] for a genesis that is not the market's.
    pub fn genesis(&self) -> Result<Genesis, LedgerError> {
        match self.ask(Request::Genesis)? {
            Response::Genesis(genesis) if genesis.market() == self.market => Ok(*genesis),
            Response::Genesis(_) => {
                Err(LedgerError::Corrupt("the genesis belongs to another market".to_owned()))
            }
            _ => Err(Self::confused()),
        }
    }

    /// The newest block's number and hash, as the coordinator reports them.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn head(&self) -> Result<Head, LedgerError> {
        match self.ask(Request::Head)? {
            Response::Head(head) => Ok(head),
            _ => Err(Self::confused()),
        }
    }

    /// A block; `None` for a number beyond the newest.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub fn block(&self, number: u64) -> Result<Option<Block>, LedgerError> {
        match self.ask(Request::Block(number))? {
            Response::Block(block) => Ok(block.map(|block| *block)),
            _ => Err(Self::confused()),
        }
    }
}

fn post(agent: &ureq::Agent, url: &str, request: &Request) -> Result<Response, LedgerError> {
    let lost = |error: ureq::Error| LedgerError::Unavailable(format!("{url}: {error}"));
    let mut response = agent.post(url).send_json(request).map_err(lost)?;
    // A request above the rate limit was not executed; after the pause it is allowed again.
    for _ in 1..TOO_OFTEN_TRIES {
        if response.status() != TOO_OFTEN {
            break;
        }
        std::thread::sleep(TOO_OFTEN_PAUSE);
        response = agent.post(url).send_json(request).map_err(lost)?;
    }
    let status = response.status();
    if !status.is_success() {
        let body = response.body_mut().with_config().limit(1_024).read_to_string();
        let body = body.unwrap_or_default();
        return Err(LedgerError::Unavailable(format!("{url}: {status} {}", body.trim())));
    }
    response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_json().map_err(lost)
}

impl Channel for RemoteLedger {
    fn market(&self) -> MarketId {
        self.market
    }

    fn ask(&self, request: Request) -> Result<Response, LedgerError> {
        post(&self.agent, &self.url, &request)?.into_result()
    }

    fn submit(&self, transaction: SignedTransaction) -> Result<Outcome, LedgerError> {
        submit_over(&|request| self.ask(request), transaction)
    }
}
