//! Requests and answers over HTTP, bounded in time and size.

use std::io::Read;
use std::time::Duration;

use florin_ledger::Trust;
use florin_protocol::{Code, Rejection};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder, SendBody};

use super::error::ClientError;

/// Longest JSON answer that is read, in bytes: a report with ten thousand standings has about 5 MB.
pub const JSON_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Longest rejection that is read, in bytes.
const REJECTION_BYTES_MAX: u64 = 64 * 1024;
/// Longest name of a request, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 64;
/// Longest head of an answer, in bytes.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long a connection may take to open.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take beyond what it was asked to wait.
const ANSWER: Duration = Duration::from_secs(30);
/// How fast a coordinator checks what it was sent and brings it to its disk, at least.
const CHECKED_BYTES_PER_SECOND: u64 = 16 * 1024 * 1024;
/// How often a request is sent that the coordinator calls one too many.
const TOO_OFTEN_TRIES: u32 = 10;
/// Longest wait before it is sent again, in seconds, whatever the coordinator says.
const TOO_OFTEN_S_MAX: u64 = 10;
/// How long a stream may stand still.
const STALL: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub(super) struct Http {
    agent: Agent,
    base: String,
}

/// What goes up.
pub(super) struct Sent<'a> {
    pub(super) method: &'a str,
    pub(super) path: &'a str,
    pub(super) headers: &'a [(&'a str, String)],
    /// Bytes of this request.
    pub(super) length: u64,
    /// Bytes that the coordinator checks when they are there, those of earlier requests included.
    pub(super) checked: u64,
}

/// A request's name for errors, `GET tasks`, and its address.
struct Request {
    what: String,
    url: String,
}

impl Http {
    pub(super) fn new(url: &str, trust: &Trust) -> Result<Self, ClientError> {
        let bad = || ClientError::BadUrl { url: url.chars().take(200).collect() };
        let base = url.trim_end_matches('/');
        let uri: ureq::http::Uri = base.parse().map_err(|_| bad())?;
        let host = uri.host().ok_or_else(bad)?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.query().is_some() {
            return Err(bad());
        }
        let local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_response_header_size(HEAD_BYTES_MAX)
            .timeout_connect(Some(CONNECT))
            .tls_config(trust.tls_config(base))
            .user_agent(concat!("florin/", env!("CARGO_PKG_VERSION")));
        if local {
            // What is on this machine is never asked for through a proxy.
            config = config.proxy(None);
        }
        Ok(Self { agent: config.build().into(), base: format!("{base}/v1") })
    }

    fn request(&self, method: &str, path: &str) -> Request {
        Request { what: format!("{method} {path}"), url: format!("{}/{path}", self.base) }
    }

    /// `GET`, answered in JSON; `wait_ms` is what the address asks the coordinator to wait.
    pub(super) fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        wait_ms: u64,
    ) -> Result<T, ClientError> {
        let request = self.request("GET", path);
        let answer = request.answer_in_time(|| soon(self.agent.get(&request.url), wait_ms).call());
        request.json(answer?)
    }

    /// `POST` of JSON; the answer is read by one of the methods of [`Answer`].
    pub(super) fn post<B: Serialize>(
        &self,
        path: &str,
        body: &B,
        wait_ms: u64,
    ) -> Result<Answer, ClientError> {
        let request = self.request("POST", path);
        let answer =
            request.answer_in_time(|| soon(self.agent.post(&request.url), wait_ms).send_json(body));
        Ok(Answer { response: answer?, request })
    }

    /// Sends the bytes of a reader.
    pub(super) fn send(
        &self,
        sent: &Sent<'_>,
        bytes: &mut dyn Read,
    ) -> Result<Answer, ClientError> {
        let request = self.request(sent.method, sent.path);
        let mut builder = match sent.method {
            "PUT" => self.agent.put(&request.url),
            _ => self.agent.post(&request.url),
        };
        for (name, value) in sent.headers {
            builder = builder.header(*name, value);
        }
        let checked = Duration::from_secs(sent.checked / CHECKED_BYTES_PER_SECOND);
        let answer = builder
            .config()
            .timeout_per_write(Some(STALL))
            .timeout_recv_response(Some(ANSWER + checked))
            .timeout_per_read(Some(STALL))
            .build()
            .content_type("application/octet-stream")
            .header("content-length", sent.length)
            .send(SendBody::from_reader(bytes));
        Ok(Answer { response: request.answer(answer)?, request })
    }

    /// `HEAD`, and the number in one header of its answer.
    pub(super) fn number(
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
        let answer = soon(builder, 0).call();
        let response = request.answer(answer)?;
        let value = response.headers().get(wanted).and_then(|value| value.to_str().ok());
        value.and_then(|value| value.parse().ok()).ok_or_else(|| {
            request.not_understood(format!("the header {wanted} is missing or no number"))
        })
    }

    /// `GET` of raw bytes, at most `limit` of them.
    pub(super) fn bytes(&self, path: &str, limit: u64) -> Result<Vec<u8>, ClientError> {
        let request = self.request("GET", path);
        let answer = request.answer_in_time(|| steadily(self.agent.get(&request.url)).call());
        Answer { response: answer?, request }.bytes(limit)
    }

    /// `POST` of JSON, answered with raw bytes, at most `limit` of them.
    pub(super) fn post_for_bytes<B: Serialize>(
        &self,
        path: &str,
        body: &B,
        limit: u64,
    ) -> Result<Vec<u8>, ClientError> {
        let request = self.request("POST", path);
        let answer =
            request.answer_in_time(|| steadily(self.agent.post(&request.url)).send_json(body));
        Answer { response: answer?, request }.bytes(limit)
    }
}

/// The whole answer within its time, beyond what the coordinator is asked to wait.
fn soon<Kind>(builder: RequestBuilder<Kind>, wait_ms: u64) -> RequestBuilder<Kind> {
    let time = ANSWER + Duration::from_millis(wait_ms);
    builder.config().timeout_global(Some(time)).build()
}

/// An answer that may be long: it begins in time, and goes on.
fn steadily<Kind>(builder: RequestBuilder<Kind>) -> RequestBuilder<Kind> {
    builder.config().timeout_recv_response(Some(ANSWER)).timeout_per_read(Some(STALL)).build()
}

/// By which name the coordinator knows the request. What is too long to be one is none.
fn request_id(response: &Response<Body>) -> Option<String> {
    let id = response.headers().get("x-request-id")?.to_str().ok()?;
    (id.len() <= REQUEST_ID_BYTES_MAX).then(|| id.to_owned())
}

/// An answer that is no rejection.
pub(super) struct Answer {
    request: Request,
    response: Response<Body>,
}

impl Answer {
    /// Nothing more is expected.
    pub(super) fn done(self) -> Result<(), ClientError> {
        Ok(())
    }

    /// As JSON.
    pub(super) fn json<T: DeserializeOwned>(self) -> Result<T, ClientError> {
        self.request.json(self.response)
    }

    /// As JSON, or nothing where the answer is 204.
    pub(super) fn json_if_any<T: DeserializeOwned>(self) -> Result<Option<T>, ClientError> {
        if self.response.status().as_u16() == 204 { Ok(None) } else { self.json().map(Some) }
    }

    fn bytes(mut self, limit: u64) -> Result<Vec<u8>, ClientError> {
        self.request.read(&mut self.response, limit)
    }
}

impl Request {
    /// Asks, and asks again where the coordinator says that it was too often: it was not carried out then.
    fn answer_in_time(
        &self,
        ask: impl Fn() -> Result<Response<Body>, ureq::Error>,
    ) -> Result<Response<Body>, ClientError> {
        for _ in 1..TOO_OFTEN_TRIES {
            match self.answer(ask()) {
                Err(ClientError::TooOften { after_s, .. }) => {
                    std::thread::sleep(Duration::from_secs(after_s));
                }
                other => return other,
            }
        }
        self.answer(ask())
    }

    /// Sorts what came back: an answer, a rejection, or something that passes.
    fn answer(
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
            // Whoever complains to the operator can name it.
            rejection.message = format!("{} (request {id})", rejection.message);
        }
        if let Some(said) = rejection.as_ref().filter(|said| said.code == Code::RateLimited) {
            let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
            let after_s = after.and_then(|text| text.parse().ok()).unwrap_or(1);
            let (what, why) = (self.what.clone(), said.message.clone());
            let after_s = u64::min(after_s, TOO_OFTEN_S_MAX);
            return Err(ClientError::TooOften { what, why, after_s });
        }
        // "Too many" and everything from 500 on is about the coordinator's state, not about us.
        if status.is_server_error() || status.as_u16() == 429 {
            let why = rejection.map_or_else(|| format!("status {status}"), |r| r.to_string());
            return Err(ClientError::Unavailable { what: self.what.clone(), why });
        }
        Err(match rejection {
            Some(rejection) => ClientError::Rejected(rejection),
            None => self.not_understood(format!("status {status} without a code")),
        })
    }

    fn json<T: DeserializeOwned>(&self, mut response: Response<Body>) -> Result<T, ClientError> {
        let bytes = self.read(&mut response, JSON_BYTES_MAX)?;
        serde_json::from_slice(&bytes).map_err(|error| self.not_understood(error.to_string()))
    }

    fn read(&self, response: &mut Response<Body>, limit: u64) -> Result<Vec<u8>, ClientError> {
        // The reader looks for the end after the last byte, and counts that look as one more.
        let body = response.body_mut().with_config().limit(limit.saturating_add(1));
        body.read_to_vec().map_err(|error| match error {
            ureq::Error::BodyExceedsLimit(_) => {
                self.not_understood(format!("it is longer than {limit} bytes"))
            }
            error => self.transport(error),
        })
    }

    fn transport(&self, error: ureq::Error) -> ClientError {
        match error {
            // How rustls says that it does not believe the other side, or does not understand it.
            ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                ClientError::NotTrusted { what: self.what.clone(), why: error.to_string() }
            }
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Protocol(_) => {
                ClientError::Unavailable { what: self.what.clone(), why: error.to_string() }
            }
            error => self.not_understood(error.to_string()),
        }
    }

    fn not_understood(&self, why: String) -> ClientError {
        ClientError::NotUnderstood { what: self.what.clone(), why }
    }
}
