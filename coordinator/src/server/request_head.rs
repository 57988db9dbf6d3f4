//! Rules of a request's head that hyper leaves to the server: one `Host`, and no compressed body.

use axum::extract::Request;
use axum::http::Version;
use axum::http::header::{CONTENT_ENCODING, HOST};
use florin_protocol::ErrorCode;

use super::error::{ApiError, ApiResult};

/// Checks the head. A request that did not arrive over a connection may lack a `Host`.
///
/// # Errors
/// [`ErrorCode::Malformed`] unless a request of HTTP/1.1 has exactly one `Host` (RFC 9112, 3.2);
/// [`ErrorCode::WrongContentType`] for a compressed body.
pub(super) fn check_head(request: &Request, over_connection: bool) -> ApiResult<()> {
    let hosts = request.headers().get_all(HOST).iter().count();
    let least = usize::from(over_connection && request.version() == Version::HTTP_11);
    if hosts < least || hosts > 1 {
        let message =
            format!("the request has {hosts} Host headers; HTTP/1.1 requires exactly one");
        return Err(ApiError::new(ErrorCode::Malformed, message));
    }
    let encodings = request.headers().get_all(CONTENT_ENCODING).iter();
    for encoding in encodings {
        if !encoding.as_bytes().eq_ignore_ascii_case(b"identity") {
            let named: String =
                String::from_utf8_lossy(encoding.as_bytes()).chars().take(80).collect();
            let message = format!(
                "Content-Encoding is {named:?}: send the body as it is, without compression"
            );
            return Err(ApiError::new(ErrorCode::WrongContentType, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn code(
        version: Version,
        over_connection: bool,
        headers: &[(&str, &str)],
    ) -> Option<ErrorCode> {
        let mut request = Request::builder().version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::empty()).unwrap();
        check_head(&request, over_connection).err().map(|error| error.0.code)
    }

    #[test]
    fn a_request_needs_one_host_and_a_plain_body() {
        let (http1, http2) = (Version::HTTP_11, Version::HTTP_2);
        let host = ("host", "a");
        let malformed = Some(ErrorCode::Malformed);
        let compressed = Some(ErrorCode::WrongContentType);
        for (version, connected, headers, expected) in [
            (http1, true, vec![host], None),
            (http1, true, vec![], malformed),
            (http1, true, vec![host, host], malformed),
            (Version::HTTP_10, true, vec![], None),
            (Version::HTTP_10, true, vec![host, host], malformed),
            (http2, true, vec![], None),
            (http1, false, vec![], None),
            (http1, true, vec![host, ("content-encoding", "gzip")], compressed),
            (http1, true, vec![host, ("content-encoding", "Identity")], None),
            (http1, false, vec![("content-encoding", "identity, br")], compressed),
        ] {
            assert_eq!(code(version, connected, &headers), expected, "{version:?} {headers:?}");
        }
    }
}
