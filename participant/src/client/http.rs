//! HTTP requests and responses with limits on time and size.

use std::io::Read;
use std::time::Duration;

use florin_ledger::TrustAnchors;
use florin_protocol::{ErrorCode, Rejection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder, SendBody};

use super::error::ClientError;

/// Longest JSON response that is read, in bytes: a report with ten thousand accounts has about 5
/// MB.
pub const JSON_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest rejection that is read, in bytes.
const REJECTION_BYTES_MAX: u64 = 64 * 1024;
/// Longest request id, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 64;
/// Longest response header section, in bytes.
const RESPONSE_HEADER_BYTES_MAX: usize = 16 * 1024;
/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Response timeout, in addition to the long-poll time.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Lower bound of the speed at which a coordinator verifies and stores received bytes.
pub(super) const VERIFIED_BYTES_PER_SECOND_MIN: u64 = 16 * 1024 * 1024;
/// Maximum number of attempts of a rate-limited request.
const RATE_LIMIT_TRIES_MAX: u32 = 10;
/// Upper bound of the wait that `Retry-After` may request, in seconds.
const RETRY_AFTER_S_MAX: u64 = 10;
/// Timeout of a stalled stream.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(super) struct Http {
    agent: Agent,
    base: String,
    is_confidential: bool,
}

/// A request with a streamed body.
pub(super) struct StreamedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(&'a str, String)],
    /// Body length in bytes.
    pub(super) length: u64,
    /// Bytes that the coordinator verifies after this request, including those of earlier requests.
    pub(super) verified_bytes: u64,
    /// The longest time of the whole request, if it has a limit of its own.
    pub(super) time: Option<Duration>,
}

/// A request's name for error messages, such as `GET tasks`, and its URL.
struct RequestTarget {
    name: String,
    url: String,
}

/// Whether a URL names this machine by a loopback address.
#[must_use]
pub fn is_local_market(url: &str) -> bool {
    url.parse::<ureq::http::Uri>().is_ok_and(|uri| uri.host().is_some_and(is_local))
}

fn is_local(host: &str) -> bool {
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

impl Http {
    pub(super) fn new(url: &str, trust: &TrustAnchors) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl { url: url.chars().take(200).collect() };
        let base = url.trim_end_matches('/');
        let uri: ureq::http::Uri = base.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(bad());
        }
        let local = is_local(host);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(RESPONSE_HEADER_BYTES_MAX)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .tls_config(trust.tls_config(base))
            .user_agent(concat!("florin/", env!("CARGO_PKG_VERSION")));
        if local {
            // Requests to this machine never use a proxy.
            config = config.proxy(None);
        }
        let is_confidential = local || uri.scheme_str() == Some("https");
        Ok(Self { agent: config.build().into(), base: format!("{base}/v1"), is_confidential })
    }

    fn request(&self, method: &str, path: &str) -> RequestTarget {
        RequestTarget { name: format!("{method} {path}"), url: format!("{}/{path}", self.base) }
    }

    /// `GET` with a JSON response; `wait_ms` is the long-poll time in the URL.
    pub(super) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        wait_ms: u64,
    ) -> Result<T, ClientError> {
        let request = self.request("GET", path);
        let answer = request.send_with_rate_limit(|| {
            with_total_timeout(self.agent.get(&request.url), wait_ms).call()
        });
        request.json(answer?)
    }

    /// `POST` of JSON; a method of [`HttpResponse`] reads the response.
    pub(super) fn post<B: Serialize>(
        &self,
        path: &str,
        body: &B,
        wait_ms: u64,
    ) -> Result<HttpResponse, ClientError> {
        let request = self.request("POST", path);
        let answer = request.send_with_rate_limit(|| {
            with_total_timeout(self.agent.post(&request.url), wait_ms).send_json(body)
        });
        Ok(HttpResponse { response: answer?, request })
    }

    /// Sends the bytes of a reader.
    pub(super) fn send(
        &self,
        sent: &StreamedRequest<'_>,
        bytes: &mut dyn Read,
    ) -> Result<HttpResponse, ClientError> {
        let request = self.request(sent.method, sent.path);
        let mut builder = match sent.method {
            "PUT" => self.agent.put(&request.url),
            _ => self.agent.post(&request.url),
        };
        for (name, value) in sent.headers {
            builder = builder.header(*name, value);
        }
        let checked = Duration::from_secs(sent.verified_bytes / VERIFIED_BYTES_PER_SECOND_MIN);
        let answer = builder
            .config()
            .timeout_per_write(Some(STALL_TIMEOUT))
            .timeout_recv_response(Some(RESPONSE_TIMEOUT + checked))
            .timeout_per_read(Some(STALL_TIMEOUT))
            .timeout_global(sent.time)
            .build()
            .content_type("application/octet-stream")
            .header("content-length", sent.length)
            .send(SendBody::from_reader(bytes));
        Ok(HttpResponse { response: request.check_response(answer)?, request })
    }

    /// `HEAD`; returns the number in one header of the response.
    pub(super) fn head_number(
        &self,
        path: &str,
        headers: &[(&str, String)],
        wanted: &str,
    ) -> Result<u64, ClientError> {
        let request = self.request("HEAD", path);
        let mut builder = self.agent.head(&request.url);
        for (name, value) in headers {
            builder = builder.header(*name, value);
        }
        let answer = with_total_timeout(builder, 0).call();
        let response = request.check_response(answer)?;
        let value = response.headers().get(wanted).and_then(|value| value.to_str().ok());
        value.and_then(|value| value.parse().ok()).ok_or_else(|| {
            request.invalid_response(format!("the header {wanted} is missing or not a number"))
        })
    }

    /// `GET` of raw bytes, at most `limit` of them.
    pub(super) fn get_bytes(
        &self,
        path: &str,
        headers: &[(&str, String)],
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        let request = self.request("GET", path);
        let answer = request.send_with_rate_limit(|| {
            let mut builder = self.agent.get(&request.url);
            for (name, value) in headers {
                builder = builder.header(*name, value);
            }
            with_stall_timeout(builder).call()
        });
        HttpResponse { response: answer?, request }.bytes(limit)
    }

    /// Whether no other machine reads along: over TLS, or on this machine.
    pub(super) const fn is_confidential(&self) -> bool {
        self.is_confidential
    }

    /// `POST` of JSON; returns raw bytes, at most `limit` of them.
    pub(super) fn post_for_bytes<B: Serialize>(
        &self,
        path: &str,
        body: &B,
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        let request = self.request("POST", path);
        let answer = request.send_with_rate_limit(|| {
            with_stall_timeout(self.agent.post(&request.url)).send_json(body)
        });
        HttpResponse { response: answer?, request }.bytes(limit)
    }
}

/// Total timeout of the response, plus the long-poll time.
fn with_total_timeout<Kind>(builder: RequestBuilder<Kind>, wait_ms: u64) -> RequestBuilder<Kind> {
    let time = RESPONSE_TIMEOUT + Duration::from_millis(wait_ms);
    builder.config().timeout_global(Some(time)).build()
}

/// Timeouts for a long response: one until it starts, and one for each stalled read.
fn with_stall_timeout<Kind>(builder: RequestBuilder<Kind>) -> RequestBuilder<Kind> {
    builder
        .config()
        .timeout_recv_response(Some(RESPONSE_TIMEOUT))
        .timeout_per_read(Some(STALL_TIMEOUT))
        .build()
}

/// The coordinator's id of the request, from the header `x-request-id`; ignored if it is too long.
fn request_id(response: &Response<Body>) -> Option<String> {
    let id = response.headers().get("x-request-id")?.to_str().ok()?;
    (id.len() <= REQUEST_ID_BYTES_MAX).then(|| id.to_owned())
}

/// A response that is not a rejection.
pub(super) struct HttpResponse {
    request: RequestTarget,
    response: Response<Body>,
}

impl HttpResponse {
    /// Expects no body.
    pub(super) fn discard(self) -> Result<(), ClientError> {
        Ok(())
    }

    /// Parses a JSON body.
    pub(super) fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        self.request.json(self.response)
    }

    /// Parses a JSON body; `None` for status 204.
    pub(super) fn json_if_any<T: DeserializeOwned>(self) -> Result<Option<T>, ClientError> {
        if self.response.status().as_u16() == 204 { Ok(None) } else { self.json().map(Some) }
    }

    fn bytes(mut self, limit: u64) -> Result<Vec<u8>, ClientError> {
        self.request.read(&mut self.response, limit)
    }
}

impl RequestTarget {
    /// Sends the request, and repeats it while it is rate-limited. A rate-limited request was not
    /// executed.
    fn send_with_rate_limit(
        &self,
        send: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ClientError> {
        for _ in 1..RATE_LIMIT_TRIES_MAX {
            match self.check_response(send()) {
                Err(ClientError::RateLimited { retry_after_s: after_s, .. }) => {
                    std::thread::sleep(Duration::from_secs(after_s));
                }
                other => return other,
            }
        }
        self.check_response(send())
    }

    /// Classifies the result: a response, a rejection, or a transient error.
    fn check_response(
        &self,
        result: Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ClientError> {
        let mut response = result.map_err(|error| self.transport(error))?;
        let status = response.status();
        if matches!(status.as_u16(), 200 | 204) {
            return Ok(response);
        }
        let body = self.read(&mut response, REJECTION_BYTES_MAX).unwrap_or_default();
        let mut rejection: Option<Rejection> = serde_json::from_slice(&body).ok();
        if let (Some(rejection), Some(id)) = (&mut rejection, request_id(&response)) {
            // The id lets an operator find the request.
            rejection.message = format!("{} (request {id})", rejection.message);
        }
        if let Some(limited) =
            rejection.as_ref().filter(|rejection| rejection.code == ErrorCode::RateLimited)
        {
            let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let after_s = after.and_then(|text| text.parse().ok()).unwrap_or(1);
            let (what, why) = (self.name.clone(), limited.message.clone());
            let after_s = u64::min(after_s, RETRY_AFTER_S_MAX);
            return Err(ClientError::RateLimited { what, why, retry_after_s: after_s });
        }
        // 429 and 5xx depend on the coordinator's state, not on the request.
        let is_limited = status.as_u16() == 429;
        if status.is_server_error() || (is_limited && rejection.is_none()) {
            let why = rejection.map_or_else(|| format!("status {status}"), |r| r.to_string());
            return Err(ClientError::Unavailable { what: self.name.clone(), why });
        }
        Err(match rejection {
            Some(rejection) if is_limited => ClientError::LimitReached(rejection),
            Some(rejection) => ClientError::Rejected(rejection),
            None => self.invalid_response(format!("status {status} without a code")),
        })
    }

    fn json<T: DeserializeOwned>(&self, mut response: Response<Body>) -> Result<T, ClientError> {
        let bytes = self.read(&mut response, JSON_BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|error| self.invalid_response(error.to_string()))
    }

    fn read(&self, response: &mut Response<Body>, limit: u64) -> Result<Vec<u8>, ClientError> {
        // The reader counts its probe for the end of the body as one more byte.
        let body = response.body_mut().with_config().limit(limit.saturating_add(1));
        body.read_to_vec().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => {
                self.invalid_response(format!("it is longer than the limit of {limit} bytes"))
            }
            error => self.transport(error),
        })
    }

    fn transport(&self, error: ureq::Error) -> ClientError {
        match error {
            // The error kind of rustls for an untrusted certificate or an incompatible peer.
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                ClientError::TlsNotTrusted { what: self.name.clone(), why: error.to_string() }
            }
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Protocol(_) => {
                ClientError::Unavailable { what: self.with_url(), why: error.to_string() }
            }
            error => self.invalid_response(error.to_string()),
        }
    }

    /// The method and the whole URL, which shows a mistyped host.
    fn with_url(&self) -> String {
        let method = self.name.split(' ').next().unwrap_or_default();
        format!("{method} {}", self.url)
    }

    fn invalid_response(&self, why: String) -> ClientError {
        ClientError::InvalidResponse { what: self.name.clone(), why }
    }
}
