//! Rate limits: a client above its rate gets 429 with `Retry-After`, and cannot evade the limit
//! with forged headers.

use axum::http::StatusCode;
use florin_coordinator::Config;
use florin_protocol::*;
use tokio::io::AsyncWriteExt;

use crate::connection_limits::{TestServer, read_until_close, serve};
use crate::support::*;
use crate::test_coordinator::*;

/// One request per second and a burst of three, for loopback too.
fn few(config: &mut Config) {
    (config.rate.address_per_second, config.rate.address_burst) = (1, 3);
    config.rate.exempt.clear();
    config.header_ms = 10_000;
}

async fn ask(server: &TestServer, header: &str) -> String {
    let mut stream = server.connect().await;
    let question =
        format!("GET /v1/health HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
    stream.write_all(question.as_bytes()).await.unwrap();
    read_until_close(&mut stream).await
}

/// Sends a hundred requests, so that a delay of a second or two does not matter; returns how many
/// were served.
async fn answered(server: &TestServer, header: impl Fn(u32) -> String) -> usize {
    let mut answered = 0;
    for n in 0..100 {
        let answer = ask(server, &header(n)).await;
        if answer.contains("200 OK") {
            answered += 1;
            continue;
        }
        for part in ["429 Too Many Requests", "retry-after: 1\r\n", "RATE_LIMITED", "x-request-id"]
        {
            assert!(answer.contains(part), "{part}: {answer}");
        }
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_headers_do_not_evade_an_addresss_rate_limit() {
    for (lines, trusted) in [
        ("", false),
        ("x-forwarded-for: 11.0.0.@\r\n", false),
        ("x-forwarded-for: 11.0.0.@, 198.51.100.7\r\n", true),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let server = serve(dir.path(), |config| {
            few(config);
            if trusted {
                config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
            }
        })
        .await;
        let n = answered(&server, |n| lines.replace('@', &n.to_string())).await;
        assert!((3..50).contains(&n), "{lines:?}: {n} of 100 were served");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn senders_behind_a_trusted_proxy_have_separate_rate_limits() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        few(config);
        config.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    })
    .await;
    assert_eq!(answered(&server, |n| format!("x-forwarded-for: 11.0.0.{n}\r\n")).await, 100);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loopback_has_no_rate_limit_unless_it_forwards_requests() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        let exempt = config.rate.exempt.clone();
        few(config);
        config.rate.exempt = exempt;
    })
    .await;
    assert_eq!(answered(&server, |_| String::new()).await, 100);
    let proxied = answered(&server, |n| format!("x-forwarded-for: 11.0.0.{n}\r\n")).await;
    assert!(proxied < 50, "{proxied} of 100 were served");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_messages_do_not_use_up_a_wallets_rate() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open_with(dir.path(), digits_spec(), |config| {
        (config.rate.wallet_per_second, config.rate.wallet_burst) = (1, 3);
    });
    shop.publish().await;
    let (task, sender) = (shop.id, address(1));
    let enrol = EnrolRequest::without_invitation(market(), task, sender, Timestamp(1_000_000));
    let path = format!("tasks/{task}/enrol");
    for _ in 0..50 {
        let forged = serde_json::to_vec(&node(2).sign(enrol.clone())).unwrap();
        assert_eq!(shop.rejection_code("POST", &path, forged).await, ErrorCode::InvalidSignature);
    }
    let mut taken = 0;
    for _ in 0..50 {
        match shop.enrol(1).await {
            Ok(()) => taken += 1,
            Err(refused) => assert_eq!(refused.code, ErrorCode::RateLimited, "{refused}"),
        }
    }
    assert!((3..25).contains(&taken), "{taken} of 50 were accepted");
    shop.enrol(2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blob_fetches_of_a_provider_have_a_separate_rate_limit() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open_with(dir.path(), digits_spec(), |config| {
        (config.rate.wallet_per_second, config.rate.wallet_burst) = (1, 3);
        (config.rate.fetch_per_second, config.rate.fetch_burst) = (1, 30);
    });
    shop.publish().await;
    let (task, sender, expires) = (shop.id, address(PROVIDER), Timestamp(1_000_000));
    let digest = blob_digest(base_model());
    let ask = node(PROVIDER).sign(BlobRequest { market: market(), task, digest, sender, expires });
    let ask = serde_json::to_vec(&ask).unwrap();
    let mut fetched = 0;
    for _ in 0..100 {
        match shop.send("POST", "work/blob", ask.clone()).await.0 {
            StatusCode::OK => fetched += 1,
            refused => assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS),
        }
    }
    assert!((30..60).contains(&fetched), "{fetched} of 100 were fetched");
    // The fetches do not use up the provider's rate for messages.
    let query = WorkRequest { market: market(), task, provider: sender, expires };
    let query = serde_json::to_vec(&node(PROVIDER).sign(query)).unwrap();
    assert_eq!(shop.send("POST", "work/next", query).await.0, StatusCode::NO_CONTENT);
    shop.stop().await;
}
