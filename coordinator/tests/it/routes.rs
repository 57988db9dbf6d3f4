//! The routes, without sockets: a whole task on the digits data set, and the rejections of each
//! route.

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use florin_engine::Event;
use florin_learning::EngineKind;
use florin_protocol::*;
use florin_work::{AuditInputs, EarlierUpdateBlobs, ValuationInputs, audit_round};

use crate::support::*;
use crate::test_coordinator::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_task_is_run_settled_proven_and_audited() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    shop.publish().await;
    let info: MarketInfo = shop.get("market").await.unwrap();
    assert_eq!((info.market, info.node_key), (market(), node(COORDINATOR).key()));
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    for _ in 1..=2 {
        for receipt in shop.play_round().await {
            receipt.receipt.verify(info.node_key).unwrap();
            receipt.verify_wallet(info.coordinator).unwrap();
        }
    }
    let view = shop.wait_for_phase(TaskPhase::Done).await;
    assert_eq!((view.reported, view.finalised, view.holdout_missing), (2, 2, false));
    check_reports(&shop, info.node_key).await;
    let proof: ClaimProof =
        shop.get(&format!("tasks/{}/proof/{}", shop.id, address(1))).await.unwrap();
    assert!(merkle::verify(proof.root, address(1), proof.totals, &proof.proof));
    assert_eq!(
        shop.ledger.state.lock().unwrap().final_settlements.last().unwrap().root,
        proof.root
    );
    let tasks: Vec<TaskSummary> = shop.get("tasks").await.unwrap();
    assert_eq!(tasks.len(), 1);
    shop.stop().await;
}

/// Checks that every report is signed and chained, and that an audit of the public bytes finds no
/// mismatch.
async fn check_reports(shop: &TestCoordinator, key: NodeKey) {
    let mut before: Option<Report> = None;
    let (mut shown, mut named, mut last) = (EarlierUpdates::default(), Vec::new(), Vec::new());
    let (mut earlier, mut previous, mut exposed) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=2 {
        let path = |what: &str| format!("tasks/{}/rounds/{round}/{what}", shop.id);
        let report: Signed<Report> = shop.get(&path("report")).await.unwrap();
        let offer: Signed<Offer> = shop.get(&path("offer")).await.unwrap();
        let headers: Vec<Signed<UpdateHeader>> = shop.get(&path("headers")).await.unwrap();
        let report = report.verify(key).unwrap().clone();
        offer.verify(key).unwrap();
        let mut updates = Vec::new();
        for entry in &report.entries {
            updates.push(blob(shop, entry.update).await);
        }
        let base = blob(shop, report.base_model).await;
        let (status, rows) = shop.send("GET", &path("holdout"), Body::empty()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(blob_digest(&blob(shop, report.model).await), report.model);
        let headers: Vec<UpdateHeader> = headers.into_iter().map(|header| header.body).collect();
        let inputs = AuditInputs {
            round: ValuationInputs {
                spec: &shop.spec,
                graph: None,
                base: &base,
                row_indices: &report.holdout.rows,
                disclosed_rows: &rows,
                entries: &report.entries,
                updates: &updates,
                previous_models: &previous,
                earlier_updates: EarlierUpdateBlobs { ids: &named, bytes: &last },
                earlier_rows: &florin_work::NO_BLOBS,
                scratch_space: &florin_learning::mapped::UNLIMITED_MEMORY,
            },
            offer: &offer.body,
            report: &report,
            previous_report: before.as_ref(),
            earlier_models: &earlier,
            earlier_updates: &shown,
            used_rows: &exposed,
            headers: &headers,
        };
        let mut engine = florin_learning::engine(EngineKind::Reference, 1).unwrap();
        let differences = audit_round(&inputs, engine.as_mut()).unwrap();
        assert!(differences.is_empty(), "{differences:?}");
        assert!(!report.data_total.is_zero());
        exposed.extend(&report.holdout.rows);
        earlier.insert(0, report.base_model);
        previous.insert(0, base);
        shown.add_report(&report);
        // In the order of the commits.
        let mut sent: Vec<(UpdateEntry, Vec<u8>)> =
            report.entries.iter().cloned().zip(updates).collect();
        sent.sort_by_key(|(entry, _)| entry.commit_position);
        (named, last) = sent.into_iter().map(|(of, bytes)| ((of.sender, of.update), bytes)).unzip();
        before = Some(report);
    }
}

async fn blob(shop: &TestCoordinator, digest: Digest) -> Vec<u8> {
    let (status, bytes) = shop.send("GET", &format!("blobs/{digest}"), Body::empty()).await;
    assert_eq!(status, StatusCode::OK);
    bytes
}

/// A coordinator with round 1 open and four participants enrolled.
async fn open_shop(folder: &std::path::Path) -> TestCoordinator {
    let shop = TestCoordinator::open(folder, digits_spec());
    shop.publish().await;
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    shop.wait_for_phase(TaskPhase::Committing).await;
    shop
}

/// Like [`open_shop`], with commits closed; also returns the committed updates.
async fn revealing_shop(
    folder: &std::path::Path,
) -> (TestCoordinator, Vec<(UpdateHeader, Vec<u8>)>) {
    let shop = open_shop(folder).await;
    let mut updates = Vec::new();
    for i in 1..=4 {
        updates.push(shop.update(i).await);
    }
    for (i, (header, _)) in (1..).zip(&updates) {
        shop.commit(header, i).await.unwrap();
    }
    shop.wait_for_phase(TaskPhase::Revealing).await;
    (shop, updates)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixty_four_concurrent_identical_commits_have_one_effect() {
    let dir = tempfile::tempdir().unwrap();
    let shop = std::sync::Arc::new(open_shop(dir.path()).await);
    let before = shop.view().await.sequence;
    let (header, _) = shop.update(1).await;
    let all: Vec<_> = (0..64)
        .map(|_| {
            let (shop, header) = (shop.clone(), header.clone());
            tokio::spawn(async move { shop.commit(&header, 1).await })
        })
        .collect();
    for one in all {
        one.await.unwrap().unwrap();
    }
    let after = shop.view().await;
    assert_eq!((after.committed, after.sequence), (1, before + 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_uploads_are_rejected_with_their_codes_and_a_good_one_is_still_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, updates) = revealing_shop(dir.path()).await;
    let (header, bytes) = &updates[0];
    let path = format!("tasks/{}/updates", shop.id);
    let signed = node(1).sign(header.clone());
    let mut long = bytes.clone();
    long.push(0);
    let mut nan = bytes.clone();
    let end = nan.len();
    nan[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    let hostile_header = [u32::MAX.to_le_bytes().to_vec(), vec![b'{'; 100]].concat();
    let table = [
        ("longer than its limit", ErrorCode::TooLarge, upload_body(&signed, &long)),
        ("truncated", ErrorCode::Truncated, upload_body(&signed, &bytes[..bytes.len() - 1])),
        ("no bytes", ErrorCode::Truncated, upload_body(&signed, &[])),
        (
            "truncated in its header",
            ErrorCode::Truncated,
            upload_body(&signed, &[])[..100].to_vec(),
        ),
        ("a header of 4 GB", ErrorCode::TooLarge, hostile_header),
        ("other bytes", ErrorCode::CommitMismatch, upload_body(&signed, &nan)),
        (
            "another's signature",
            ErrorCode::InvalidSignature,
            upload_body(&node(2).sign(header.clone()), bytes),
        ),
        ("a malformed header", ErrorCode::Malformed, framed_junk()),
    ];
    for (name, code, body) in table {
        assert_eq!(shop.rejection_code("POST", &path, body).await, code, "{name}");
    }
    let elsewhere = format!("tasks/{}/updates", TaskId([3; 32]));
    let body = upload_body(&signed, bytes);
    assert_eq!(shop.rejection_code("POST", &elsewhere, body).await, ErrorCode::WrongTask);
    let receipt = shop.upload(header, bytes, 1).await.unwrap();
    assert_eq!(shop.upload(header, bytes, 1).await.unwrap(), receipt);
    assert_eq!(shop.view().await.revealed, 1);
    // No partial file is left.
    assert_eq!(std::fs::read_dir(dir.path().join("blobs/partial")).unwrap().count(), 0);
}

fn framed_junk() -> Vec<u8> {
    let mut body = 50u32.to_le_bytes().to_vec();
    body.extend_from_slice(&[7; 50]);
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_tensors_exclude_only_their_senders_and_the_report_has_the_codes() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open_shop(dir.path()).await;
    let honest: Vec<_> = [shop.update(1).await, shop.update(2).await].into();
    let offer = shop.view().await.offer.unwrap().body;
    // The commitments match, but the committed values are not finite, or too large.
    let mut bad = Vec::new();
    for (i, value) in [(3, f32::INFINITY), (4, 1e30)] {
        let (header, mut bytes) = shop.update(i).await;
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
        bad.push((UpdateHeader { update: blob_digest(&bytes), ..header }, bytes));
    }
    let all: Vec<_> = (1..).zip(honest.iter().chain(&bad)).collect();
    for (i, (header, _)) in &all {
        shop.commit(header, *i).await.unwrap();
    }
    for (i, (header, bytes)) in &all {
        let answer = shop.upload(header, bytes, *i).await.map_err(|refused| refused.code);
        match i {
            3 => assert_eq!(answer.unwrap_err(), ErrorCode::UpdateNotFinite),
            4 => assert_eq!(answer.unwrap_err(), ErrorCode::UpdateNormTooLarge),
            _ => assert!(answer.is_ok()),
        }
    }
    shop.clock.set(offer.reveal_by.saturating_add_ms(1));
    shop.host.wake().await;
    while shop.view().await.reported == 0 {
        tokio::task::yield_now().await;
    }
    let path = format!("tasks/{}/rounds/1/report", shop.id);
    let report: Signed<Report> = shop.get(&path).await.unwrap();
    let entries: Vec<Address> = report.body.entries.iter().map(|entry| entry.sender).collect();
    let mut expected = vec![address(1), address(2)];
    expected.sort();
    assert_eq!(entries, expected);
    for (i, code) in [(3, ErrorCode::UpdateNotFinite), (4, ErrorCode::UpdateNormTooLarge)] {
        assert!(report.body.missing.contains(&(address(i), MissingReason::Rejected(code))));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_is_paid_for_work_that_the_coordinator_recomputes() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open_shop(dir.path()).await;
    let (task, provider) = (shop.id, address(PROVIDER));
    let expires = Timestamp(1_000_000);
    let query = node(PROVIDER).sign(WorkRequest { market: market(), task, provider, expires });
    let (status, _) = shop.send("POST", "work/next", serde_json::to_vec(&query).unwrap()).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    shop.play_round().await;
    let order: Signed<WorkOrder> = shop.post("work/next?wait_ms=5000", &query).await.unwrap();
    let order = order.verify(node(COORDINATOR).key()).unwrap().clone();
    let fetch = |digest| {
        let sender = address(PROVIDER);
        let ask = BlobRequest { market: market(), task, digest, sender, expires };
        serde_json::to_vec(&node(PROVIDER).sign(ask)).unwrap()
    };
    // The updates are not public yet, but the order references them; the rows are public from now
    // on.
    let update = format!("blobs/{}", order.entries[0].update);
    assert_eq!(shop.rejection_code("GET", &update, Body::empty()).await, ErrorCode::NotYetPublic);
    let rows = format!("tasks/{task}/rounds/1/holdout");
    let (status, rows) = shop.send("GET", &rows, Body::empty()).await;
    assert_eq!((status, blob_digest(&rows)), (StatusCode::OK, order.disclosed_rows));
    let mut updates = Vec::new();
    for entry in &order.entries {
        updates.push(shop.send("POST", "work/blob", fetch(entry.update)).await.1);
    }
    let result = value_order(&shop.spec, &order, (&rows, &updates));
    let units = result.valuation.units;
    let record = WorkRecord { market: market(), order: order.digest(), provider, result };
    let signed = node(PROVIDER).sign(record);
    let verdict: WorkAcceptance = shop.post("work", &signed).await.unwrap();
    assert_eq!(verdict.units, units);
    assert_eq!(shop.post::<WorkAcceptance>("work", &signed).await.unwrap(), verdict);
    let path = format!("tasks/{task}/rounds/1/report");
    let report: Signed<Report> = shop.get(&path).await.unwrap();
    assert_eq!(report.body.infrastructure[0].provider, provider);
    let records: Vec<Signed<WorkRecord>> =
        shop.get(&format!("tasks/{task}/rounds/1/records")).await.unwrap();
    assert_eq!(records, [signed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rounds_holdout_rows_are_public_once_drawn_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, updates) = revealing_shop(dir.path()).await;
    let path = |round: u32| format!("tasks/{}/rounds/{round}/holdout", shop.id);
    for round in [1, 2] {
        let code = shop.rejection_code("GET", &path(round), Body::empty()).await;
        assert_eq!(code, ErrorCode::NotYetPublic, "round {round} while updates arrive");
    }
    let whole = format!("blobs/{}", blob_digest(&holdout()));
    assert_eq!(shop.rejection_code("GET", &whole, Body::empty()).await, ErrorCode::NotFound);
    for (i, (header, bytes)) in (1..).zip(&updates) {
        shop.upload(header, bytes, i).await.unwrap();
    }
    shop.wait_for_phase(TaskPhase::Committing).await;
    let (status, first) = shop.send("GET", &path(1), Body::empty()).await;
    assert_eq!(status, StatusCode::OK);
    let first = DisclosedRows::from_bytes(&first).unwrap().rows;
    let Holdout { root, rows, rows_per_round } = shop.spec.holdout;
    assert_eq!(first.len(), rows_per_round as usize);
    assert!(first.iter().all(|row| row.verify(root, rows)));
    assert_eq!(shop.rejection_code("GET", &path(2), Body::empty()).await, ErrorCode::NotYetPublic);
    assert_eq!(shop.rejection_code("GET", &whole, Body::empty()).await, ErrorCode::NotFound);
    shop.play_round().await;
    shop.wait_for_phase(TaskPhase::Done).await;
    let (_, second) = shop.send("GET", &path(2), Body::empty()).await;
    let second = DisclosedRows::from_bytes(&second).unwrap().rows;
    assert!(second.iter().all(|row| first.iter().all(|before| before.index != row.index)));
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_committed_holdout_is_accepted_and_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let path = format!("tasks/{}/holdout", shop.id);
    let mut forged = holdout();
    let last = forged.len() - 4;
    forged[last] ^= 1;
    assert_eq!(shop.rejection_code("PUT", &path, forged.clone()).await, ErrorCode::InvalidTask);
    assert!(shop.view().await.holdout_missing);
    let nowhere = format!("tasks/{}/holdout", TaskId([9; 32]));
    assert_eq!(shop.rejection_code("PUT", &nowhere, holdout()).await, ErrorCode::UnknownTask);
    assert_eq!(shop.send("PUT", &path, holdout()).await.0, StatusCode::NO_CONTENT);
    assert!(!shop.view().await.holdout_missing);
    // The holdout is stored: a second upload is not inspected, and the response does not accept it.
    let (status, text) = shop.send("PUT", &path, forged).await;
    assert_eq!(status, StatusCode::OK);
    assert!(String::from_utf8_lossy(&text).contains("stored before"));
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_without_a_pledged_stake_cannot_fetch_updates_early() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, updates) = revealing_shop(dir.path()).await;
    shop.ledger.state.lock().unwrap().stakes.clear();
    let (task, sender) = (shop.id, address(PROVIDER));
    let digest = updates[0].0.update;
    let ask = BlobRequest { market: market(), task, digest, sender, expires: Timestamp(1_000_000) };
    let body = serde_json::to_vec(&node(PROVIDER).sign(ask.clone())).unwrap();
    assert_eq!(shop.rejection_code("POST", "work/blob", body).await, ErrorCode::StakeTooSmall);
    let stale = BlobRequest { expires: Timestamp(1), ..ask };
    let body = serde_json::to_vec(&node(PROVIDER).sign(stale)).unwrap();
    assert_eq!(shop.rejection_code("POST", "work/blob", body).await, ErrorCode::DeadlinePassed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_without_a_valid_signature_have_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open_shop(dir.path()).await;
    let (header, _) = shop.update(1).await;
    let path = format!("tasks/{}/commits", shop.id);
    let commit = Commit {
        scope: header.scope,
        sender: header.sender,
        offer: header.offer,
        commitment: header.commitment(),
    };
    let body = |signed: &Signed<Commit>| serde_json::to_vec(signed).unwrap();
    let forged = node(2).sign(commit.clone());
    assert_eq!(
        shop.rejection_code("POST", &path, body(&forged)).await,
        ErrorCode::InvalidSignature
    );
    let mut changed = node(1).sign(commit.clone());
    changed.body.commitment = Digest([4; 32]);
    assert_eq!(
        shop.rejection_code("POST", &path, body(&changed)).await,
        ErrorCode::InvalidSignature
    );
    let mut elsewhere = commit.clone();
    elsewhere.scope.market.chain = ChainId(1);
    assert_eq!(
        shop.rejection_code("POST", &path, body(&node(1).sign(elsewhere))).await,
        ErrorCode::WrongMarket
    );
    let stranger = Commit { sender: address(77), ..commit };
    assert_eq!(
        shop.rejection_code("POST", &path, body(&node(77).sign(stranger))).await,
        ErrorCode::NotRegistered
    );
    let mut weak = registration(9, Role::Participant);
    weak.node_key = NodeKey([0; 32]);
    let answer =
        shop.rejection_code("POST", "registrations", serde_json::to_vec(&weak).unwrap()).await;
    assert!(matches!(answer, ErrorCode::InvalidSignature | ErrorCode::WeakKey));
    assert_eq!(shop.view().await.committed, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_without_its_escrow_is_not_published() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    let unfunded = TaskSpec { salt: 9, ..digits_spec() };
    let body = |spec: &TaskSpec| serde_json::to_vec(spec).unwrap();
    assert_eq!(shop.rejection_code("POST", "tasks", body(&unfunded)).await, ErrorCode::NotFunded);
    let mut poor = digits_spec();
    poor.budget.data = fln("1");
    let mut state = shop.ledger.state.lock().unwrap().tasks[&shop.id].clone();
    state.terms.data = fln("2");
    shop.ledger.state.lock().unwrap().tasks.insert(poor.id(), state);
    assert_eq!(shop.rejection_code("POST", "tasks", body(&poor)).await, ErrorCode::NotFunded);
    let mut broken = digits_spec();
    broken.rounds.count = 0;
    assert_eq!(shop.rejection_code("POST", "tasks", body(&broken)).await, ErrorCode::InvalidTask);
    let unknown = String::from_utf8(body(&digits_spec())).unwrap().replacen("{", "{\"x\":1,", 1);
    assert_eq!(shop.rejection_code("POST", "tasks", unknown).await, ErrorCode::Malformed);
    shop.ledger.state.lock().unwrap().is_unavailable = true;
    assert_eq!(
        shop.rejection_code("POST", "tasks", body(&digits_spec())).await,
        ErrorCode::Internal
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_blobs_that_a_task_waits_for_are_accepted_and_only_if_they_fit() {
    let dir = tempfile::tempdir().unwrap();
    let mut spec = digits_spec();
    let mut junk = [&[8u8, 0, 0, 0, 0, 0, 0, 0][..], &[7; 500]].concat();
    junk.resize(base_model().len(), 7);
    spec.base_model = blob_digest(&junk);
    let shop = TestCoordinator::open(dir.path(), spec);
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let path = |bytes: &[u8]| format!("blobs/{}", blob_digest(bytes));
    assert_eq!(
        shop.rejection_code("PUT", &path(b"else"), b"else".to_vec()).await,
        ErrorCode::NotFound
    );
    assert_eq!(
        shop.rejection_code("PUT", &path(&junk), junk[1..].to_vec()).await,
        ErrorCode::Truncated
    );
    let mut other = junk.clone();
    other[100] ^= 1;
    assert_eq!(shop.rejection_code("PUT", &path(&junk), other).await, ErrorCode::Malformed);
    let hostile = [
        ErrorCode::UpdateWrongSchema,
        ErrorCode::Malformed,
        ErrorCode::Truncated,
        ErrorCode::TooLarge,
    ];
    assert!(hostile.contains(&shop.rejection_code("PUT", &path(&junk), junk.clone()).await));
    let big = vec![0u8; 100_000];
    assert_eq!(shop.rejection_code("PUT", &path(&junk), big).await, ErrorCode::TooLarge);
    assert_eq!(shop.view().await.missing_blobs.len(), 1);
    assert_eq!(
        shop.rejection_code("GET", &path(&junk), Body::empty()).await,
        ErrorCode::NotYetPublic
    );
    assert_eq!(
        shop.rejection_code("GET", &path(b"else"), Body::empty()).await,
        ErrorCode::NotFound
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_routes_and_malformed_ids_get_the_same_error_format() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), digits_spec());
    assert_eq!(shop.rejection_code("GET", "nothing", Body::empty()).await, ErrorCode::NotFound);
    assert_eq!(
        shop.rejection_code("DELETE", "tasks", Body::empty()).await,
        ErrorCode::MethodNotAllowed
    );
    assert_eq!(shop.rejection_code("GET", "tasks/abc", Body::empty()).await, ErrorCode::Malformed);
    let path = format!("tasks/{}", TaskId([1; 32]));
    assert_eq!(shop.rejection_code("GET", &path, Body::empty()).await, ErrorCode::UnknownTask);
    assert_eq!(
        shop.rejection_code("GET", &format!("{path}?aftr=1"), Body::empty()).await,
        ErrorCode::Malformed
    );
    let path = format!("registrations/{}", address(1));
    assert_eq!(shop.rejection_code("GET", &path, Body::empty()).await, ErrorCode::NotRegistered);
    assert_eq!(
        shop.rejection_code("POST", "tasks", vec![b' '; 1_100_000]).await,
        ErrorCode::TooLarge
    );
    assert_eq!(shop.send("GET", "health", Body::empty()).await.1, b"ok");
    assert_eq!(shop.send("POST", "ledger", "{}").await.1, b"{}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_buyer_can_close_its_task() {
    let dir = tempfile::tempdir().unwrap();
    let shop = open_shop(dir.path()).await;
    let path = format!("tasks/{}/close", shop.id);
    let wish = |n| CloseRequest::sign(market(), &SeededWallet::number(n), shop.id).unwrap();
    let body = serde_json::to_vec(&wish(1)).unwrap();
    assert_eq!(shop.rejection_code("POST", &path, body).await, ErrorCode::InvalidSignature);
    let () = shop.post(&path, &wish(BUYER)).await.unwrap();
    shop.play_round().await;
    // Round 1, and a last report that pays what round 1 withheld.
    assert_eq!(shop.wait_for_phase(TaskPhase::Done).await.reported, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_poll_completes_on_a_change_and_not_before() {
    let dir = tempfile::tempdir().unwrap();
    let shop = std::sync::Arc::new(TestCoordinator::open(dir.path(), digits_spec()));
    shop.publish().await;
    let view = shop.view().await;
    let waiting = {
        let shop = shop.clone();
        let path = format!("tasks/{}?after={}&wait_ms=30000", shop.id, view.sequence);
        tokio::spawn(async move { shop.get::<TaskView>(&path).await.unwrap() })
    };
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    shop.enrol(1).await.unwrap();
    assert_eq!(waiting.await.unwrap().enrolled, 1);
    let event = Event::Tick;
    assert!(shop.host.write(event).await.is_ok());
    let path = format!("tasks/{}?after=1000000&wait_ms=1", shop.id);
    assert_eq!(shop.get::<TaskView>(&path).await.unwrap().enrolled, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_endless_body_is_rejected_at_its_limit() {
    let dir = tempfile::tempdir().unwrap();
    let (shop, updates) = revealing_shop(dir.path()).await;
    let (header, _) = &updates[0];
    let head = upload_body(&node(1).sign(header.clone()), &[]);
    let body = Body::new(Endless { head: Some(head.into()), sent: 0 });
    let path = format!("tasks/{}/updates", shop.id);
    assert_eq!(shop.rejection_code("POST", &path, body).await, ErrorCode::TooLarge);
}

/// A body without a content length that never ends.
struct Endless {
    head: Option<Bytes>,
    sent: u64,
}

impl axum::body::HttpBody for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        let bytes = self.head.take().unwrap_or_else(|| Bytes::from_static(&[0; 65_536]));
        self.sent += bytes.len() as u64;
        assert!(self.sent < 64 * 1024 * 1024, "the server did not stop the body");
        std::task::Poll::Ready(Some(Ok(hyper::body::Frame::data(bytes))))
    }
}
