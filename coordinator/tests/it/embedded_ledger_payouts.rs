//! The coordinator on the embedded chain: the ledger's balances match the reports.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use florin_coordinator::host::archive;
use florin_coordinator::{
    App, Config, DataFolder, Host, HostParts, LedgerEndpoint, LedgerRpcHandler, SystemClock, host,
    router,
};
use florin_engine::{RoundLocation, claim_proof};
use florin_ledger::{Action, Claim, EmbeddedChain, Genesis, Ledger, Terms};
use florin_protocol::*;
use tower::ServiceExt;

use crate::support::*;
use crate::test_coordinator::*;

fn now() -> Timestamp {
    host::Clock::now(&SystemClock)
}

fn chain(folder: &std::path::Path) -> Arc<EmbeddedChain> {
    let genesis = Genesis {
        chain_id: ChainId(31_337),
        operator: address(COORDINATOR),
        operator_key: node(COORDINATOR).key(),
        allocations: (1..=4)
            .chain([BUYER, COORDINATOR])
            .map(|n| (address(n), fln("1000")))
            .collect(),
        created: now(),
    };
    let path = folder.join("ledger.redb");
    EmbeddedChain::create(&path, &genesis).unwrap();
    Arc::new(EmbeddedChain::open(&path, node(COORDINATOR), Arc::new(now)).unwrap())
}

/// The sum that the coordinator has bonded in a task, by the chain's blocks.
fn deposits(chain: &EmbeddedChain, id: TaskId) -> Amount {
    let blocks = (1..=chain.head().number).map(|number| chain.block(number).unwrap().unwrap());
    let signed = blocks.flat_map(|block| block.transactions);
    let amounts = signed.filter_map(|signed| match signed.transaction.action {
        Action::Bond { task, amount } if task == id => {
            (signed.transaction.from == address(COORDINATOR)).then_some(amount)
        }
        _ => None,
    });
    Amount::total(amounts).unwrap()
}

/// Sends one request to the router.
async fn post(router: &axum::Router, path: &str, body: Vec<u8>) -> (StatusCode, Vec<u8>) {
    let method =
        if path.starts_with("blobs") || path.ends_with("holdout") { "PUT" } else { "POST" };
    let request = axum::http::Request::builder().method(method).uri(format!("/v1/{path}"));
    let answer =
        router.clone().oneshot(request.body(axum::body::Body::from(body)).unwrap()).await.unwrap();
    let status = answer.status();
    (status, axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn payouts_claims_and_the_refund_add_up_to_the_last_unit() {
    let dir = tempfile::tempdir().unwrap();
    let chain = chain(dir.path());
    let market = Ledger::market(chain.as_ref());
    let mut spec = TaskSpec { market, expires: now().saturating_add_ms(600_000), ..digits_spec() };
    spec.budget.challenge_ms = 20;
    spec.budget.unbond_ms = spec.unbond_ms_min();
    let id = spec.id();
    chain.open_task(&SeededWallet::number(BUYER), &Terms::from_spec(&spec)).unwrap();
    for i in 1..=4 {
        chain.bond(&SeededWallet::number(i), id, fln("6")).unwrap();
    }
    let parts = HostParts {
        ledger: chain.clone(),
        wallet: Arc::new(SeededWallet::number(COORDINATOR)),
        node: node(COORDINATOR),
        valuers: vec![work_valuer()],
        clock: Arc::new(SystemClock),
        ledger_endpoint: echo(),
        ledger_copier: None,
    };
    let folder = DataFolder::open(&dir.path().join("coordinator")).unwrap();
    let (host, running) = Host::start(folder, parts).unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), dir.path().to_owned());
    config.arbiters = vec![address(ARBITER)];
    let door: LedgerRpcHandler = host::ledger_rpc_handler(chain.clone());
    let (signer, wallet) = (node(COORDINATOR), address(COORDINATOR));
    let place = LedgerEndpoint::Embedded(door);
    let app = App::new(host.clone(), config, chain.clone(), signer, wallet, place);
    let router = router(app);
    let (status, answer) = post(&router, "ledger", b"\"market\"".to_vec()).await;
    assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&answer));
    play(&router, &host, &spec).await;
    check_books(&chain, &host, &spec).await;
    // The coordinator deposited the bond that covered its settlements, and has it back.
    let returned = |host: Host| async move {
        let answer = host.read(move |engine, _| !engine.state().tasks[&id].awaits_bond).await;
        answer.unwrap()
    };
    while !returned(host.clone()).await {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(chain.balance(address(COORDINATOR)).unwrap(), fln("1000"));
    let deposits = deposits(&chain, id);
    assert!(!deposits.is_zero(), "no settlement was covered");
    host.stop().await;
    drop((router, host));
    tokio::task::spawn_blocking(move || running.join()).await.unwrap();
}

/// Publishes the task and plays its two rounds to the end.
async fn play(router: &axum::Router, host: &Host, spec: &TaskSpec) {
    let id = spec.id();
    let expires = now().saturating_add_ms(300_000);
    let send = |path: String, body: Vec<u8>| async move {
        let (status, answer) = post(router, &path, body).await;
        assert!(status.is_success(), "{path}: {}", String::from_utf8_lossy(&answer));
    };
    send("tasks".to_owned(), serde_json::to_vec(spec).unwrap()).await;
    send(format!("blobs/{}", blob_digest(base_model())), base_model().to_vec()).await;
    send(format!("tasks/{id}/holdout"), holdout()).await;
    for i in 1..=4 {
        let (wallet, node, role) = (SeededWallet::number(i), node(i), Role::Participant);
        let registration = Registration::sign(spec.market, &wallet, &node, role, expires).unwrap();
        send("registrations".to_owned(), serde_json::to_vec(&registration).unwrap()).await;
        let enrol = EnrolRequest::without_invitation(spec.market, id, address(i), expires);
        let body = serde_json::to_vec(&node.sign(enrol)).unwrap();
        send(format!("tasks/{id}/enrol"), body).await;
    }
    let mut changes = host.changes();
    let mut played = RoundNumber(0);
    loop {
        changes.mark_unchanged();
        let at = host.read(move |engine, _| {
            let task = &engine.state().tasks[&id];
            (task.phase(), task.running().map(|running| running.offer.clone()))
        });
        match at.await.unwrap() {
            (TaskPhase::Done, _) => return,
            (TaskPhase::Committing, Some(offer)) if offer.scope.round > played => {
                played = offer.scope.round;
                let base = host.blobs().read(offer.base_model).unwrap();
                let updates: Vec<_> = (1..=4).map(|i| update(spec, &offer, &base, i)).collect();
                for (i, (header, _)) in (1..).zip(&updates) {
                    let commit = Commit {
                        scope: header.scope,
                        sender: header.sender,
                        offer: header.offer,
                        commitment: header.commitment(),
                    };
                    let body = serde_json::to_vec(&node(i).sign(commit)).unwrap();
                    send(format!("tasks/{id}/commits"), body).await;
                }
                for (i, (header, bytes)) in (1..).zip(updates) {
                    let body = upload_body(&node(i).sign(header), &bytes);
                    send(format!("tasks/{id}/updates"), body).await;
                }
            }
            _ => {
                let change = changes.changed();
                tokio::time::timeout(Duration::from_secs(30), change).await.unwrap().unwrap();
            }
        }
    }
}

fn update(spec: &TaskSpec, offer: &Offer, base: &[u8], i: u8) -> (UpdateHeader, Vec<u8>) {
    let bytes = trained_update(spec, base, i);
    let header = UpdateHeader {
        scope: offer.scope,
        sender: address(i),
        offer: offer.digest(),
        base_model: offer.base_model,
        rows: 200,
        update: blob_digest(&bytes),
        bytes: bytes.len() as u64,
        salt: Digest([i; 32]),
        expires: offer.reveal_by,
    };
    (header, bytes)
}

/// Checks deposited = data paid + infrastructure paid + refunded + still locked, and claims every
/// payout.
async fn check_books(chain: &EmbeddedChain, host: &Host, spec: &TaskSpec) {
    let id = spec.id();
    let books = chain.task(id).unwrap().unwrap();
    assert!(books.closed && books.data_locked.is_zero() && books.infrastructure_locked.is_zero());
    let spent = Amount::total([books.data_paid, books.infrastructure_paid, books.refunded]);
    let deposited = spec.budget.data.plus(spec.budget.infrastructure).unwrap();
    assert_eq!(spent.unwrap(), deposited);
    let report =
        host.read(move |engine, _| match engine.reported_round(id, RoundNumber(2)).unwrap() {
            RoundLocation::InMemory(past) => Ok(past.report.clone()),
            RoundLocation::Archived(digest) => Err(digest),
        });
    let archived_report = |digest| archive::read(host.blobs(), digest).unwrap().report;
    let report = report.await.unwrap().unwrap_or_else(archived_report);
    assert_eq!((books.data_paid, books.root), (report.data_total, report.root));
    let mut claimed = Amount::ZERO;
    for i in 1..=4 {
        let account = address(i);
        let proof = claim_proof(&report, account).unwrap();
        if proof.totals.paid.is_zero() {
            continue;
        }
        let claim = Claim { task: id, account, totals: proof.totals, proof: proof.proof };
        let moved = chain.claim(&SeededWallet::number(i), &claim).unwrap();
        claimed = claimed.plus(moved.paid).unwrap();
    }
    assert!(!claimed.is_zero());
    assert_eq!(claimed, books.data_paid);
    assert!(chain.task(id).unwrap().unwrap().owed.is_zero());
}
