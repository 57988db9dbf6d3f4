//! TLS on the coordinator's port: certificates and their renewal, plain HTTP requests, handshake
//! timeouts.

use std::path::Path;
use std::sync::Arc;

use florin_coordinator::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

use crate::connection_limits::{TestServer, read_until_close, serve, within_timeout};

pub(crate) fn self_signed(config: &mut Config) {
    config.tls.self_signed = true;
    config.tls.handshake_ms = 1_000;
}

/// A client that trusts only the certificate in the data folder and offers these ALPN protocols.
fn connector(folder: &Path, offers: &[&str]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    let file = folder.join("tls/certificate.pem");
    roots.add(CertificateDer::from_pem_file(file).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = offers.iter().map(|offer| offer.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

async fn tls_handshake(
    server: &TestServer,
    folder: &Path,
    name: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    tls_handshake_with_alpn(server, folder, name, &[]).await
}

pub(crate) async fn tls_handshake_with_alpn(
    server: &TestServer,
    folder: &Path,
    name: &str,
    offers: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = server.connect().await;
    within_timeout(connector(folder, offers).connect(name, stream)).await
}

pub(crate) async fn wait_for_certificate(folder: &Path) {
    within_timeout(async {
        while !folder.join("tls/certificate.pem").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_self_signed_certificate_is_valid_for_each_of_its_names_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), |config| {
        self_signed(config);
        config.tls.names = vec!["market.example".to_owned()];
    })
    .await;
    wait_for_certificate(dir.path()).await;
    for name in ["localhost", "127.0.0.1", "market.example"] {
        let mut stream = tls_handshake(&server, dir.path(), name).await.unwrap();
        let ask = b"GET /v1/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        stream.write_all(ask).await.unwrap();
        let mut answer = String::new();
        within_timeout(stream.read_to_string(&mut answer)).await.unwrap();
        assert!(answer.contains("200 OK"), "{name}: {answer}");
    }
    assert!(tls_handshake(&server, dir.path(), "other.example").await.is_err());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plain_http_request_on_the_tls_port_gets_a_400_and_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), self_signed).await;
    let mut plain = server.connect().await;
    plain.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let answer = read_until_close(&mut plain).await;
    assert!(answer.contains("400 Bad Request") && answer.contains("use https://"), "{answer}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_handshake_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = serve(dir.path(), self_signed).await;
    wait_for_certificate(dir.path()).await;
    let mut all = tokio::task::JoinSet::new();
    let hello: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03";
    for number in 0..200 {
        let mut stream = server.connect().await;
        all.spawn(async move {
            let first: &[u8] = [b"", hello, b"\x16", b"\x16\x03\x01\x00\x05nohel"][number % 4];
            let _ = stream.write_all(first).await;
            let dribble = number % 8 < 4;
            let (mut read, mut write) = stream.split();
            let send = async {
                while dribble && write.write_all(&[0]).await.is_ok() {
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
                std::future::pending::<()>().await;
            };
            let mut bytes = Vec::new();
            tokio::select! {
                _ = within_timeout(read.read_to_end(&mut bytes)) => {}
                () = send => {}
            }
        });
    }
    let mut honest = tls_handshake(&server, dir.path(), "localhost").await.unwrap();
    honest.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    within_timeout(honest.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    // Silent after its handshake: the same timeouts apply as without TLS.
    let mut silent = tls_handshake(&server, dir.path(), "localhost").await.unwrap();
    let mut nothing = Vec::new();
    let _ = within_timeout(silent.read_to_end(&mut nothing)).await;
    while let Some(ended) = all.join_next().await {
        ended.unwrap();
    }
    server.stop().await;
}

/// Writes a new certificate for `localhost` and its key to the files in the settings.
fn renew(folder: &Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(folder.join("tls/key.pem"), key.serialize_pem()).unwrap();
    std::fs::write(folder.join("tls/certificate.pem"), params.self_signed(&key).unwrap().pem())
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_loaded_without_a_restart_and_an_invalid_one_is_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path();
    std::fs::create_dir(folder.join("tls")).unwrap();
    renew(folder);
    let server = serve(folder, |config| {
        config.tls.certificate = Some(config.data.join("tls/certificate.pem"));
        config.tls.key = Some(config.data.join("tls/key.pem"));
        config.tls.reload_ms = 100;
    })
    .await;
    tls_handshake(&server, folder, "localhost").await.unwrap();
    renew(folder);
    within_timeout(async {
        // The client trusts only the new certificate: until it is loaded, the handshake fails.
        while tls_handshake(&server, folder, "localhost").await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
    .await;
    std::fs::write(folder.join("tls/key.pem"), "no key").unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(400)).await;
    tls_handshake(&server, folder, "localhost").await.unwrap();
}
