//! JSON-RPC over HTTP. Queries are retried after a pause; `eth_sendRawTransaction` is not: the
//! outbox decides about that.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoint::{Endpoint, EndpointError};
use crate::limits::RPC_RETRIES_MAX;
use florin_ledger::LedgerError;
use florin_ledger::limits::RESPONSE_BYTES_MAX;

/// Connection timeout.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Response timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// The error message of a response timeout.
const TIMEOUT_MESSAGE: &str = "no response within 30 s";
/// Pause before the first retry; doubled each time.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// JSON-RPC's error code for too many calls.
const LIMIT_EXCEEDED: i64 = -32_005;
/// Parts of a URL from this length on may be an access key.
const SECRET_MIN: usize = 6;
/// Longest part of a node's message that is passed on.
const TEXT_MAX: usize = 300;

/// The reliability of a node so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Calls sent.
    pub calls: u64,
    /// Calls without a response, including retries.
    pub failures: u64,
    /// Consecutive failures since the last response.
    pub consecutive_failures: u64,
    /// The message of the last failure.
    pub last_failure: Option<String>,
}

/// A node at a URL such as `http://127.0.0.1:8545`.
pub struct HttpEndpoint {
    agent: ureq::Agent,
    url: String,
    name: String,
    /// Parts of the URL that may be an access key.
    secrets: Vec<String>,
    calls: AtomicU64,
    failures: AtomicU64,
    failing: AtomicU64,
    last_failure: Mutex<Option<String>>,
}

impl fmt::Debug for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpEndpoint({})", self.name)
    }
}

#[derive(Deserialize)]
struct RpcResponse {
    /// A null result is valid; a missing one is not.
    #[serde(default, deserialize_with = "present")]
    result: Option<Value>,
    error: Option<RpcError>,
}

fn present<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    #[serde(default)]
    message: String,
    data: Option<Value>,
}

impl HttpEndpoint {
    /// A node at this URL. Sends no request.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] for an invalid URL.
    pub fn new(url: &str) -> Result<Self, LedgerError> {
        let Some(name) = public_name(url) else {
            let what = "the node's URL is invalid: use the form http://127.0.0.1:8545".to_owned();
            return Err(LedgerError::Unavailable(what));
        };
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(RESPONSE_TIMEOUT))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Ok(Self {
            agent: ureq::Agent::new_with_config(config),
            url: url.to_owned(),
            secrets: secrets(url),
            name,
            calls: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            failing: AtomicU64::new(0),
            last_failure: Mutex::new(None),
        })
    }

    /// The reliability of the node so far.
    #[must_use]
    pub fn health(&self) -> Health {
        let last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        Health {
            calls: self.calls.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            consecutive_failures: self.failing.load(Ordering::Relaxed),
            last_failure: last.clone(),
        }
    }

    /// A node's message, shortened and without parts that may be an access key.
    fn redact(&self, text: &str) -> String {
        let text = text.replace(&self.url, &self.name);
        truncate(&self.secrets.iter().fold(text, |text, secret| text.replace(secret, "…")))
    }

    fn call_once(&self, method: &str, params: &Value) -> Result<Value, EndpointError> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let answer = self.exchange(method, params);
        match &answer {
            Err(EndpointError::Unreachable(why)) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                let before = self.failing.fetch_add(1, Ordering::Relaxed);
                if before == 0 {
                    tracing::warn!(node = self.name, method, why, "the node is unreachable");
                }
                *self.last_failure.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(why.clone());
            }
            _ => {
                if self.failing.swap(0, Ordering::Relaxed) > 0 {
                    tracing::info!(node = self.name, "the node is reachable again");
                }
            }
        }
        answer
    }

    fn exchange(&self, method: &str, params: &Value) -> Result<Value, EndpointError> {
        let lost = |what: String| EndpointError::Unreachable(what);
        let question = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        // The URL may contain an access key: errors are reported without it.
        let to_unreachable = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => lost(TIMEOUT_MESSAGE.to_owned()),
            error => lost(self.redact(&error.to_string())),
        };
        let mut response =
            self.agent.post(&self.url).send_json(&question).map_err(to_unreachable)?;
        let status = response.status();
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX);
        let text = body.read_to_string().map_err(to_unreachable)?;
        let reply: RpcResponse = match serde_json::from_str(&text) {
            Ok(reply) => reply,
            Err(_) => {
                let what = format!("status {status}: {}", self.redact(text.trim()));
                return Err(lost(what.trim_end_matches([':', ' ']).to_owned()));
            }
        };
        match reply.error {
            Some(c) if c.code == LIMIT_EXCEEDED || status == 429 => {
                Err(lost(format!("too many calls: {}", self.redact(&c.message))))
            }
            Some(RpcError { code, message, data }) => Err(EndpointError::ErrorResponse {
                code,
                message: self.redact(&message),
                data: data.as_ref().and_then(revert_data),
            }),
            None => reply.result.ok_or_else(|| {
                let what =
                    format!("status {status} without a result: {}", self.redact(text.trim()));
                lost(what.trim_end_matches([':', ' ']).to_owned())
            }),
        }
    }
}

/// The data of a revert: a string in most nodes, inside an object in some.
fn revert_data(data: &Value) -> Option<Vec<u8>> {
    let text = data.as_str().or_else(|| data.get("data").and_then(Value::as_str))?;
    let digits = text.strip_prefix("Reverted ").unwrap_or(text);
    digits.parse::<alloy_primitives::Bytes>().ok().map(|bytes| bytes.to_vec())
}

fn truncate(text: &str) -> String {
    text.chars().take(TEXT_MAX).collect()
}

/// Path, query and user of a URL, which may be secret.
fn secrets(url: &str) -> Vec<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let user = authority.rsplit_once('@').map(|(user, _)| user);
    let parts = path.split(['/', '?', '#', '&', '=']).chain(user);
    parts.filter(|part| part.len() >= SECRET_MIN).map(str::to_owned).collect()
}

/// Scheme, host and port, which are not secret.
fn public_name(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    if scheme != "http" && scheme != "https" {
        return None;
    }
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit('@').next().filter(|host| !host.is_empty())?;
    Some(format!("{scheme}://{host}"))
}

impl Endpoint for HttpEndpoint {
    fn call(&self, method: &str, params: Value) -> Result<Value, EndpointError> {
        let mut pause = RETRY_PAUSE;
        let mut retries = 0u32;
        loop {
            let answer = self.call_once(method, &params);
            // A call that timed out is not retried: callers have timeouts of their own.
            let lost =
                matches!(&answer, Err(EndpointError::Unreachable(why)) if why != TIMEOUT_MESSAGE);
            if !lost || method == "eth_sendRawTransaction" || retries >= RPC_RETRIES_MAX {
                return answer;
            }
            retries = retries.saturating_add(1);
            std::thread::sleep(pause);
            pause = pause.saturating_mul(2);
        }
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_without_its_access_key() {
        let name = |url: &str| public_name(url);
        assert_eq!(name("https://a.example/v3/0123secret").unwrap(), "https://a.example");
        assert_eq!(name("http://me:secret@10.0.0.1:8545/?k=1").unwrap(), "http://10.0.0.1:8545");
        for wrong in ["127.0.0.1:8545", "ws://127.0.0.1", "http://", "http:///path"] {
            assert_eq!(name(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_nodes_message_is_redacted() {
        let endpoint =
            HttpEndpoint::new("http://me:hunter22@10.0.0.1/v3/0123secret?k=abcdefg").unwrap();
        let shown = endpoint.redact("Cannot POST /v3/0123secret?k=abcdefg for me:hunter22");
        assert_eq!(shown, "Cannot POST /v3/…?k=… for …");
    }

    #[test]
    fn a_missing_result_is_an_error_and_a_null_result_is_valid() {
        let result = |text: &str| serde_json::from_str::<RpcResponse>(text).unwrap().result;
        assert_eq!(result(r#"{"result": null}"#), Some(Value::Null));
        assert_eq!(result(r#"{"message": "not in your plan"}"#), None);
    }

    #[test]
    fn revert_data_is_found_in_every_form_that_nodes_use() {
        for data in [json!("0x0102"), json!({ "data": "0x0102" }), json!("Reverted 0x0102")] {
            assert_eq!(revert_data(&data), Some(vec![1, 2]), "{data}");
        }
        assert_eq!(revert_data(&json!("none")), None);
    }
}
