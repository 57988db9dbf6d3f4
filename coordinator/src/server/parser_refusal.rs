//! Responses to requests that hyper cannot parse. hyper answers them itself, with a status and an
//! empty body, and has no hook for it. Its response is recognised on its way to the client and
//! replaced by one with a code, a message and a request id, like every other rejection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use florin_protocol::{ErrorCode, Rejection};
use tokio::io::AsyncWrite;

use super::error::rejection_json;
use super::observe::{REQUEST_ID, RequestIds};

/// A response that is written instead of hyper's.
#[derive(Debug)]
pub(super) struct ParserRefusal {
    bytes: Vec<u8>,
    written: usize,
}

impl ParserRefusal {
    /// The response in the place of `head`; `None` if it is not a response of hyper itself. Call it
    /// only while no request is in flight.
    pub(super) fn replacing(head: &[u8], ids: &RequestIds) -> Option<Self> {
        let status_line = bare_status_line(head)?;
        let (code, message) = match status_line.split(' ').nth(1)? {
            "400" => (ErrorCode::Malformed, "the request is not valid HTTP/1.1"),
            "414" => (ErrorCode::TooLarge, "the request's path is too long"),
            "431" => (ErrorCode::TooLarge, "the request's headers are too large or too many"),
            _ => return None,
        };
        let id = ids.next();
        tracing::debug!(request_id = id, status_line, "a request cannot be parsed");
        let body = rejection_json(&Rejection::new(code, message), &id);
        let mut bytes = format!(
            "{status_line}\r\ncontent-type: application/json\r\n{REQUEST_ID}: {id}\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend_from_slice(&body);
        Some(Self { bytes, written: 0 })
    }

    /// Writes the rest of the response; then the `replaced` bytes count as written.
    pub(super) fn poll_write<S: AsyncWrite>(
        &mut self,
        cx: &mut Context<'_>,
        mut stream: Pin<&mut S>,
        replaced: usize,
    ) -> Poll<io::Result<usize>> {
        while let Some(rest) = self.bytes.get(self.written..).filter(|rest| !rest.is_empty()) {
            match ready!(stream.as_mut().poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.written = self.written.saturating_add(written),
            }
        }
        Poll::Ready(Ok(replaced))
    }
}

/// The status line of a response that has an empty body and no request id: every response of the
/// router has one. The response must be all of `head`.
fn bare_status_line(head: &[u8]) -> Option<&str> {
    let head = std::str::from_utf8(head).ok()?;
    let (status_line, rest) = head.strip_suffix("\r\n\r\n")?.split_once("\r\n")?;
    let mut is_empty = false;
    for line in rest.split("\r\n") {
        let (name, value) = line.split_once(": ")?;
        match name {
            "content-length" => is_empty = value == "0",
            "connection" | "date" => {}
            _ => return None,
        }
    }
    (status_line.starts_with("HTTP/1.") && is_empty).then_some(status_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_responses_are_replaced() {
        let ids = RequestIds::new();
        let head = "HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\
             content-length: 0\r\ndate: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\n";
        let refusal = ParserRefusal::replacing(head.as_bytes(), &ids).unwrap();
        let text = String::from_utf8(refusal.bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 431 "), "{text}");
        assert!(text.contains("\r\nx-request-id: ") && text.contains("\"code\":\"TOO_LARGE\""));
        let (_, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(text.contains(&format!("content-length: {}\r\n", body.len())));
        for other in [
            head.replace("431 Request", "204 Request"),
            head.replace("content-length: 0", "content-length: 3"),
            head.replace("date", "x-request-id"),
            format!("{head}more"),
            format!("more{head}"),
            "HTTP/1.1 100 Continue\r\n\r\n".to_owned(),
        ] {
            assert!(ParserRefusal::replacing(other.as_bytes(), &ids).is_none(), "{other}");
        }
    }
}
