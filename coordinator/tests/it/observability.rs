//! Liveness and readiness probes, request ids and metrics.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use florin_coordinator::config::JournalSettings;
use florin_coordinator::host::HostThreads;
use florin_coordinator::{App, Config, DataFolder, Host, router};
use florin_engine::Event;
use florin_protocol::Role;
use florin_store::Volume;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tower::ServiceExt;

use crate::connection_limits::{read_until_close, serve};
use crate::crash_recovery::{new_ledger, parts};
use crate::support::*;
use crate::test_coordinator::{TestCoordinator, digits_spec};
use florin_store::faulty_volume::{FaultyVolume, InjectedFault, VolumeOp};

const SOON: std::time::Duration = std::time::Duration::from_secs(20);

async fn get(shop: &TestCoordinator, path: &str) -> (StatusCode, String, String) {
    let request = Request::get(path).body(Body::empty()).unwrap();
    let answer = shop.router.clone().oneshot(request).await.unwrap();
    let id = answer.headers()["x-request-id"].to_str().unwrap().to_owned();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, id, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn every_response_has_a_unique_request_id() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
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
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    assert_eq!(get(&shop, "/readyz").await.0, StatusCode::OK);
    shop.host.stop().await;
    // The engine answers the commands queued before the stop.
    let ended = async {
        loop {
            let answer = get(&shop, "/readyz").await;
            if answer.0 != StatusCode::OK {
                return answer;
            }
        }
    };
    let (status, _, why) = tokio::time::timeout(SOON, ended).await.expect("it stays ready");
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(why.contains("the engine does not respond"), "{why}");
    assert_eq!(get(&shop, "/healthz").await.0, StatusCode::OK, "the process is still alive");
    shop.stop().await;
}

#[tokio::test]
async fn metrics_are_served_only_on_the_operators_listener() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let server = serve(dir.path(), |config| config.metrics_listen = Some(free)).await;
    let ask = async |mut stream: TcpStream, path: &str| {
        let question = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.unwrap();
        read_until_close(&mut stream).await
    };
    let answer = ask(server.connect().await, "/v1/tasks/nonsense").await;
    assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    let hidden = ask(server.connect().await, "/metrics").await;
    assert!(hidden.starts_with("HTTP/1.1 404"), "{hidden}");
    let shown = ask(TcpStream::connect(free).await.unwrap(), "/metrics").await;
    for line in [
        "florin_http_responses_total{route=\"/v1/tasks/{id}\",status=\"400\"} 1",
        "florin_rejections_total{code=\"MALFORMED\"} 1",
        "florin_tasks{phase=\"enrolling\"} 0",
        "# EOF",
    ] {
        assert!(shown.contains(line), "{line} is not in\n{shown}");
    }
    server.stop().await;
}

/// Registers participant `i`, then requests the readiness probe.
async fn register_and_probe(router: &axum::Router, host: &Host, i: u8) -> (StatusCode, String) {
    let _ = host.write(Event::Registered(registration(i, Role::Participant))).await;
    let request = Request::get("/readyz").body(Body::empty()).unwrap();
    let answer = router.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn on_volume(
    folder: &std::path::Path,
    volume: Arc<dyn Volume>,
) -> (axum::Router, Host, HostThreads) {
    let ledger = new_ledger();
    let held = DataFolder::open(folder).unwrap();
    let (host, running) =
        Host::start_on(held, parts(&ledger, 0), &JournalSettings::default(), volume).unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), folder.to_owned());
    config.arbiters = vec![address(ARBITER)];
    let (node, wallet) = (node(COORDINATOR), address(COORDINATOR));
    let app = App::new(host.clone(), config, ledger, node, wallet, echo());
    (router(app), host, running)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_ends_readiness_and_free_space_restores_it() {
    let dir = tempfile::tempdir().unwrap();
    let room = Arc::new(Mutex::new(4_000));
    let (router, host, running) =
        on_volume(dir.path(), FaultyVolume::with_free_space(dir.path(), room.clone()));
    let mut asked = register_and_probe(&router, &host, 1).await;
    assert_eq!(asked.0, StatusCode::OK);
    for i in 2..=100 {
        if asked.0 != StatusCode::OK {
            break;
        }
        asked = register_and_probe(&router, &host, i).await;
    }
    assert_eq!(asked.0, StatusCode::SERVICE_UNAVAILABLE);
    assert!(asked.1.contains("the disk is full"), "{}", asked.1);
    *room.lock().unwrap() = 10_000_000;
    assert_eq!(register_and_probe(&router, &host, 1).await.0, StatusCode::OK);
    host.stop().await;
    drop((router, host));
    tokio::task::spawn_blocking(move || running.join()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_journal_ends_readiness_until_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let fails = Arc::new(AtomicBool::new(false));
    let armed = fails.clone();
    let volume = FaultyVolume::intercept(dir.path(), move |doing| match doing {
        VolumeOp::Sync("journal") if armed.load(Ordering::Relaxed) => {
            Err(InjectedFault(0, std::io::Error::other("EIO")))
        }
        _ => Ok(()),
    });
    let (router, host, running) = on_volume(dir.path(), volume);
    assert_eq!(register_and_probe(&router, &host, 1).await.0, StatusCode::OK);
    fails.store(true, Ordering::Relaxed);
    let (status, why) = register_and_probe(&router, &host, 2).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(why.contains("until a restart"), "{why}");
    // The disk's content is unknown after a failed sync, even if the disk works again.
    fails.store(false, Ordering::Relaxed);
    assert_eq!(register_and_probe(&router, &host, 3).await.0, StatusCode::SERVICE_UNAVAILABLE);
    host.stop().await;
    drop((router, host));
    tokio::task::spawn_blocking(move || running.join()).await.unwrap();
}
