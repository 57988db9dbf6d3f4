//! Health, readiness, request ids and metrics.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::limits_hold::{rest, serve};
use crate::shop::{Shop, digits_spec};

const SOON: std::time::Duration = std::time::Duration::from_secs(20);

async fn get(shop: &Shop, path: &str) -> (StatusCode, String, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = shop.router.clone().oneshot(request).await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, id, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn every_answer_has_an_id_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), digits_spec());
    let (status, first, _) = get(&shop, "/healthz").await;
    assert_eq!(status, StatusCode::OK);
    let (status, second, body) = get(&shop, "/v1/no/such/route").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("NOT_FOUND"), "{body}");
    assert_ne!(first, second);
    shop.stop().await;
}

#[tokio::test]
async fn readiness_ends_with_the_engine() {
    let dir = tempfile::tempdir().unwrap();
    let shop = Shop::open(dir.path(), digits_spec());
    assert_eq!(get(&shop, "/readyz").await.0, StatusCode::OK);
    shop.host.stop().await;
    // It answers what was asked before it ends.
    let ended = async {
        loop {
            let answer = get(&shop, "/readyz").await;
            if answer.0 != StatusCode::OK {
                return answer;
            }
        }
    };
    let (status, _, why) = tokio::time::timeout(SOON, ended).await.expect("it takes too long");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(why.contains("the engine does not answer"), "{why}");
    assert_eq!(get(&shop, "/healthz").await.0, StatusCode::OK, "the process is there still");
    shop.stop().await;
}

#[tokio::test]
async fn metrics_are_on_an_address_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve(dir.path(), |config| config.metrics_listen = Some(free)).await;
    let ask = async |mut stream: TcpStream, path: &str| {
        let question = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.unwrap();
        rest(&mut stream).await
    };
    let answer = ask(server.connect().await, "/v1/tasks/nonsense").await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let hidden = ask(server.connect().await, "/metrics").await;
    assert!(hidden.starts_with("HTTP/1.1 404"), "{hidden}");
    let shown = ask(TcpStream::connect(free).await.unwrap(), "/metrics").await;
    for line in [
        "florin_http_answers_total{route=\"/v1/tasks/{id}\",status=\"400\"} 1",
        "florin_rejections_total{code=\"MALFORMED\"} 1",
        "florin_tasks{phase=\"enrolling\"} 0",
        "# EOF",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    server.stop().await;
}
