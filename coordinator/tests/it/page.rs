//! The page, its events, and the operator's page.

use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use futures_util::StreamExt as _;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tower::ServiceExt as _;

use crate::connection_limits::{read_until_close, serve};
use crate::test_coordinator::{TestCoordinator, digits_spec};

const SOON: Duration = Duration::from_secs(20);

async fn get(shop: &TestCoordinator, path: &str) -> (StatusCode, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = shop.router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn every_view_is_the_document_unless_the_page_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    for path in ["/", "/tasks/1", "/tasks/1/rounds/2", "/accounts", "/accounts/0x1", "/compute"] {
        let (status, body) = get(&shop, path).await;
        assert!(status.is_success() && body.contains("/page/main.js"), "{path}: {body}");
    }
    assert_eq!(get(&shop, "/page/main.js").await.0, StatusCode::OK);
    assert_eq!(get(&shop, "/page/..%2fwasm").await.0, StatusCode::NOT_FOUND);
    assert_eq!(get(&shop, "/other").await.0, StatusCode::NOT_FOUND);
    for (path, is_page) in [("/tasks", true), ("/other", true), ("/v1/other", false)] {
        let request = Request::get(path).header(header::ACCEPT, "text/html,*/*;q=0.8");
        let request = request.body(Body::empty()).unwrap();
        let answer = shop.router.clone().oneshot(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8_lossy(&body);
        assert_eq!(text.contains("/page/main.js"), is_page, "{path}: {text}");
    }
    shop.stop().await;
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open_with(dir.path(), digits_spec(), |config| config.page = false);
    for path in ["/", "/page/main.js", "/compute"] {
        assert_eq!(get(&shop, path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(get(&shop, "/v1/events").await.0, StatusCode::OK, "events do not need the page");
    shop.stop().await;
}

/// The data of an event.
fn data(event: &str) -> Value {
    let text = event
        .strip_prefix("retry: 250\nevent: tasks\ndata: ")
        .unwrap()
        .strip_suffix("\n\n")
        .unwrap();
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn events_have_all_tasks_first_and_then_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    assert_eq!(data(&get(&shop, "/v1/events").await.1), serde_json::json!({}));
    let request = Request::get("/v1/events?wait_ms=30000").body(Body::empty()).unwrap();
    let answer = shop.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.headers()[header::CONTENT_TYPE], "text/event-stream");
    let mut stream = answer.into_body().into_data_stream();
    let mut next = async || {
        let bytes = timeout(SOON, stream.next()).await.unwrap().unwrap().unwrap();
        data(std::str::from_utf8(&bytes).unwrap())
    };
    assert_eq!(next().await, serde_json::json!({}));
    shop.publish_for(2).await;
    assert_eq!(next().await[shop.id.to_string()]["phase"], "enrolling");
    shop.enrol(1).await.unwrap();
    shop.enrol(2).await.unwrap();
    let id = shop.id.to_string();
    let seen = loop {
        let event = next().await;
        if event[&id]["enrolled"] == 2 {
            break event;
        }
    };
    let view = shop.view().await;
    let stated = data(&get(&shop, "/v1/events").await.1);
    assert_eq!(stated[&id]["sequence"], view.sequence, "a new stream begins with the present");
    assert_eq!(seen[&id]["round"], stated[&id]["round"]);
    assert_eq!(get(&shop, "/v1/events?wait_ms=x").await.0, StatusCode::BAD_REQUEST);
    shop.stop().await;
}

#[tokio::test]
async fn the_operators_page_needs_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve(dir.path(), |config| config.metrics_listen = Some(free)).await;
    let ask = async |token: &str| {
        let mut stream = TcpStream::connect(free).await.unwrap();
        let question = format!(
            "GET /operator/state HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\nconnection: \
             close\r\n\r\n"
        );
        stream.write_all(question.as_bytes()).await.unwrap();
        read_until_close(&mut stream).await
    };
    let mut public = server.connect().await;
    public
        .write_all(b"GET /operator/state HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        .await
        .unwrap();
    assert!(read_until_close(&mut public).await.starts_with("HTTP/1.1 404"));
    let token = std::fs::read_to_string(dir.path().join("operator-token")).unwrap();
    let shown = ask(token.trim()).await;
    assert!(shown.starts_with("HTTP/1.1 200") && shown.contains("florin_tasks"), "{shown}");
    for wrong in ["", "0", &token.trim()[1..]] {
        let refused = ask(wrong).await;
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(refused.contains("OPERATOR_TOKEN_WRONG") && !refused.contains("florin_tasks"));
    }
    server.stop().await;
}
