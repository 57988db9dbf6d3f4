//! A complete market over TLS, with a self-signed certificate that only its participants trust.

use crate::support::{On, TestMarket, TestPlan, florin};

#[test]
fn a_task_is_trained_paid_and_audited_over_tls() {
    let market = TestMarket::open(TestPlan { tls: true, ..TestPlan::honest(On::Embedded, 1) });
    assert!(market.url.starts_with("https://"), "{}", market.url);
    assert!(market.coordinator.log().contains("SHA-256"), "{}", market.coordinator.log());
    let task = market.run();
    let output =
        market.run_command(&["audit", &task.to_string(), "--engine", "reference"]).expect(0);
    assert!(output.err.is_empty(), "{output:?}");
    market.run_command_as("ann", &["claim", &task.to_string()]).expect(0);
}

#[test]
fn an_untrusted_certificate_is_refused() {
    let market = TestMarket::open(TestPlan { tls: true, ..TestPlan::honest(On::Embedded, 1) });
    let list = |more: &[&str]| {
        let mut call = vec!["task", "list"];
        call.extend(more);
        florin(&call)
    };
    // Without the certificate, with another one, and with a certificate for an unencrypted market.
    list(&["--market", &market.url]).refused(2, "TLS_NOT_TRUSTED");
    let other =
        TestMarket::open(TestPlan { tls: true, seed: 2, ..TestPlan::honest(On::Embedded, 1) });
    let others = other.file("coordinator/tls/certificate.pem");
    let ours = market.file("coordinator/tls/certificate.pem");
    list(&["--market", &market.url, "--certificate", &others]).refused(2, "TLS_NOT_TRUSTED");
    list(&["--market", &market.url, "--certificate", &ours]).expect(0);
    let plain = market.url.replace("https://", "http://");
    list(&["--market", &plain, "--certificate", &ours]).refused(2, "CERTIFICATE_NOT_NEEDED");
    let output = list(&["--market", &plain]);
    assert!(output.code != 0 && output.err.contains("use https://"), "{output:?}");
    let key = market.file("coordinator/tls/key.pem");
    list(&["--market", &market.url, "--certificate", &key]).refused(2, "CERTIFICATE_MALFORMED");
    let none = market.file("task.toml");
    list(&["--market", &market.url, "--certificate", &none]).refused(2, "CERTIFICATE_MISSING");
}

#[test]
fn invalid_tls_files_are_refused_with_a_precise_code() {
    let market = TestMarket::open(TestPlan { tls: true, ..TestPlan::honest(On::Embedded, 1) });
    let (certificate, key) =
        (market.file("coordinator/tls/certificate.pem"), market.file("coordinator/tls/key.pem"));
    let data = market.file("second");
    let start = |more: &[&str]| {
        let mut call = vec!["coordinate", "--engine", "reference", "--listen", "127.0.0.1:0"];
        let (wallet, passphrase) = (market.file("coordinator.json"), market.file("passphrase"));
        let genesis = market.file("genesis.toml");
        call.extend(["--data", &data, "--genesis", &genesis, "--wallet", &wallet]);
        call.extend(["--passphrase-file", &passphrase]);
        call.extend(more);
        florin(&call)
    };
    start(&["--tls-certificate", &certificate]).expect(2);
    let swapped = ["--tls-certificate", &key, "--tls-key", &certificate];
    start(&swapped).refused(2, "CERTIFICATE_MISSING");
    let gone = ["--tls-certificate", "/gone.pem", "--tls-key", &key];
    start(&gone).refused(2, "CERTIFICATE_UNREADABLE");
    let settings = market.file("settings.toml");
    std::fs::write(&settings, "[tls]\nkey = \"k\"\n").unwrap();
    start(&["--settings", &settings]).refused(2, "INVALID_TLS_SETTINGS");
}
