//! The relay passes queries on, and nothing else.

use axum::body::Body;
use axum::http::Method;
use tower::ServiceExt as _;

use super::*;

/// A market that repeats what it is asked.
struct Echo;

impl PublicDocuments for Echo {
    fn document(&self, path: &str) -> Result<Vec<u8>, Rejection> {
        match path {
            "tasks/none" => Err(Rejection::new(ErrorCode::UnknownTask, "no such task")),
            path => Ok(format!("\"{path}\"").into_bytes()),
        }
    }

    fn ledger(&self, query: &LedgerRequest) -> Result<Vec<u8>, Rejection> {
        Ok(serde_json::to_vec(query).unwrap())
    }
}

async fn ask(method: Method, path: &str, host: &str, body: &str) -> (u16, String) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, host)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(body.to_owned()))
        .unwrap();
    let response = router(Arc::new(Echo)).oneshot(request).await.unwrap();
    let status = response.status().as_u16();
    let bytes = axum::body::to_bytes(response.into_body(), 1_000_000).await.unwrap();
    (status, String::from_utf8_lossy(&bytes).into_owned())
}

#[tokio::test]
async fn documents_and_queries_pass() {
    let home = "127.0.0.1:7780";
    let (status, body) = ask(Method::GET, "/v1/tasks?after=3", home, "").await;
    assert_eq!((status, body.as_str()), (200, "\"tasks?after=3\""));
    let (status, body) = ask(Method::POST, "/v1/ledger", home, "\"treasury\"").await;
    assert_eq!((status, body.as_str()), (200, "\"treasury\""));
    let (status, body) = ask(Method::GET, "/v1/tasks/none", home, "").await;
    assert!(status == 404 && body.contains("UNKNOWN_TASK"), "{status} {body}");
    let (status, body) = ask(Method::GET, "/tasks/0x12", "localhost", "").await;
    assert!(status == 200 && body.contains("/page/main.js"), "{status} {body}");
}

#[tokio::test]
async fn messages_events_and_other_hosts_do_not_pass() {
    let home = "localhost:7780";
    assert_eq!(ask(Method::POST, "/v1/tasks", home, "{}").await.0, 405);
    assert_eq!(ask(Method::PUT, "/v1/blobs/1", home, "").await.0, 405);
    assert_eq!(ask(Method::GET, "/v1/events", home, "").await.0, 404);
    let submit = ask(Method::POST, "/v1/ledger", home, "{\"submit\":{}}").await;
    assert!(matches!(submit.0, 405 | 422), "{submit:?}");
    for path in ["/v1/x%2F..%2F..%2Fmetrics", "/v1/x%3Fy", "/v1/tasks/..", "/v1/a.b"] {
        assert_eq!(ask(Method::GET, path, home, "").await.0, 404, "{path}");
    }
    for host in ["127.0.0.2:7780", "[::1]", "[::1]:7780", "localhost"] {
        assert_eq!(ask(Method::GET, "/v1/tasks", host, "").await.0, 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example:7780", ""] {
        assert_eq!(ask(Method::GET, "/v1/tasks", host, "").await.0, 421, "{host}");
        assert_eq!(ask(Method::GET, "/", host, "").await.0, 421, "{host}");
    }
}
