//! Blobs in an S3 bucket with signature checks: every acknowledged blob is in the bucket, a folder
//! that lost its blobs recovers them, and an unavailable bucket costs only time.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use florin_coordinator::backup::{self, BackupError, BackupFolders};
use florin_coordinator::check::check;
use florin_coordinator::config::BucketSettings;
use florin_coordinator::{Bucket, BucketError, Valuer, ValuerError};
use florin_protocol::*;
use florin_store::BlobStore as Store;
use florin_work::ValuationOutput;

use crate::resumable_uploads::{BodyEnd, UploadFixture, delta};
use crate::s3_service::{TcpProxy, service};
use crate::test_coordinator::*;

fn opened(settings: &BucketSettings) -> Result<Option<Bucket>, BucketError> {
    Bucket::open(settings, |name| service().credential(name))
}

/// Waits until a condition holds.
async fn wait_until(what: impl Fn() -> bool) {
    let waiting = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the condition holds");
}

/// The blobs that the state references after the first round.
async fn public(shop: &TestCoordinator) -> Vec<Digest> {
    let report: Signed<Report> =
        shop.get(&format!("tasks/{}/rounds/1/report", shop.id)).await.unwrap();
    assert!(matches!(report.body.outcome, RoundOutcome::Settled), "{:?}", report.body.outcome);
    let (task, model) = (shop.id, report.body.model);
    let needed = shop.host.read(|engine, _| engine.state().required_blobs()).await.unwrap();
    assert!(needed.contains(&model) && needed.len() > 4, "{task}: {needed:?}");
    needed.into_iter().collect()
}

async fn first_report(shop: &TestCoordinator) {
    let id = shop.id;
    let mut changes = shop.host.changes();
    let wait = async {
        loop {
            changes.mark_unchanged();
            let past = shop.host.read(move |engine, _| {
                engine.state().tasks.get(&id).map_or(0, |task| task.rounds.len())
            });
            if past.await.unwrap() > 0 {
                return;
            }
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap();
}

async fn enrolled(
    folder: &Path,
    settings: BucketSettings,
    valuer: Box<dyn Valuer>,
) -> TestCoordinator {
    let spec = digits_spec();
    let ledger = funded(&spec);
    let shop =
        TestCoordinator::with(folder, spec, ledger, valuer, |config| config.blobs = settings);
    shop.publish().await;
    for i in 1..=4 {
        shop.enrol(i).await.unwrap();
    }
    shop
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_data_folder_that_lost_its_blobs_recovers_them_from_the_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let settings = service().settings("lost");
    let shop = enrolled(dir.path(), settings.clone(), work_valuer()).await;
    shop.play_round().await;
    first_report(&shop).await;
    let needed = public(&shop).await;
    // Longer than a part: a multipart upload.
    let long = vec![3; 9 * 1_024 * 1_024];
    let long_digest = shop.host.blobs().put(&long).unwrap();
    let (spec, ledger) = (shop.spec.clone(), shop.ledger.clone());
    shop.stop().await;
    fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    let bucket = opened(&settings).unwrap().unwrap();
    let there = bucket.list().unwrap();
    assert!(needed.iter().all(|digest| there.contains(digest)), "{needed:?} in {there:?}");
    // The check reports missing blobs unless it can query the bucket.
    let found = check(dir.path(), None, None).unwrap();
    assert!(found.parts.iter().any(|part| part.code == "BLOB_MISSING"), "{found:?}");
    let ask = |digest| Ok(there.contains(&digest));
    let found = check(dir.path(), None, Some(&ask)).unwrap();
    assert!(found.is_intact(), "{found:?}");
    // The same holds for a restore.
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    backup::backup_offline(BackupFolders { data: dir.path(), backup: &dest }).unwrap();
    backup::restore(BackupFolders { data: &again, backup: &dest }, |copy, _| {
        assert!(check(copy, None, Some(&ask)).unwrap().is_intact());
        Ok::<(), BackupError>(())
    })
    .unwrap();
    let shop = TestCoordinator::with(&again, spec, ledger, work_valuer(), |config| {
        config.blobs = settings
    });
    for digest in needed {
        let visible = shop.host.read(move |engine, _| engine.visibility(digest)).await.unwrap();
        let (status, bytes) = shop.send("GET", &format!("blobs/{digest}"), Body::empty()).await;
        match visible {
            florin_engine::Visibility::Public => {
                assert_eq!((status, blob_digest(&bytes)), (StatusCode::OK, digest));
            }
            _ => assert_eq!(blob_digest(&shop.host.blobs().read(digest).unwrap()), digest),
        }
    }
    assert_eq!(shop.host.blobs().read(long_digest).unwrap(), long);
    // The next round continues from there.
    shop.play_round().await;
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_while_the_bucket_is_down_is_a_503_and_is_resumed_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let door = TcpProxy::new(service());
    let settings = door.settings(service(), "down");
    let stand = UploadFixture::open(dir.path(), |config| config.blobs = settings).await;
    let (bytes, length) = (delta(1), delta(1).len());
    door.shut();
    let answer = stand.append(1, 0, &bytes, BodyEnd::Well).await;
    assert_eq!(answer.code(), ErrorCode::StorageUnavailable);
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.offset(), Some(length as u64), "every byte is stored for a retry");
    assert_eq!(stand.stored_bytes(1).await.unwrap(), length as u64);
    // Other requests are served meanwhile.
    assert_eq!(stand.shop.view().await.phase, TaskPhase::Revealing);
    let again = stand.append(1, length, &[], BodyEnd::Well).await;
    assert_eq!(again.code(), ErrorCode::StorageUnavailable);
    door.open();
    let receipt = stand.append(1, length, &[], BodyEnd::Well).await.receipt();
    let update = blob_digest(&bytes);
    assert_eq!(receipt.update, stand.header(1).body.digest());
    stand.shop.stop().await;
    let bucket = opened(&service().settings("down")).unwrap().unwrap();
    assert!(bucket.list().unwrap().contains(&update), "an update with a receipt is in the bucket");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_update_gets_its_receipt_only_once_it_is_in_the_bucket() {
    let dir = tempfile::tempdir().unwrap();
    let door = TcpProxy::new(service());
    let shop = enrolled(dir.path(), door.settings(service(), "small"), work_valuer()).await;
    shop.wait_for_phase(TaskPhase::Committing).await;
    let mut updates = Vec::new();
    for i in 1..=4 {
        updates.push((i, shop.update(i).await));
    }
    for (i, (header, _)) in &updates {
        shop.commit(header, *i).await.unwrap();
    }
    let (i, (header, bytes)) = &updates[0];
    door.shut();
    let refused = shop.upload(header, bytes, *i).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::StorageUnavailable);
    assert!(!refused.message.contains("127.0.0.1"), "{refused}");
    let taken = shop.host.read(|engine, _| engine.state().required_blobs()).await.unwrap();
    assert!(!taken.contains(&header.update), "a rejected update has no effect");
    door.open();
    shop.upload(header, bytes, *i).await.unwrap();
    let bucket = opened(&service().settings("small")).unwrap().unwrap();
    assert!(bucket.list().unwrap().contains(&header.update));
    shop.stop().await;
}

/// A valuer that shuts the proxy to the bucket before its first round.
struct ShuttingValuer(Box<dyn Valuer>, Arc<TcpProxy>, bool);

impl Valuer for ShuttingValuer {
    fn value_and_aggregate(
        &mut self,
        order: &WorkOrder,
        drawn: &[u32],
        spec: &TaskSpec,
        blobs: &Store,
    ) -> Result<ValuationOutput, ValuerError> {
        if !std::mem::replace(&mut self.2, true) {
            self.1.shut();
        }
        self.0.value_and_aggregate(order, drawn, spec, blobs)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_waits_for_an_unavailable_bucket_and_is_not_abandoned() {
    let dir = tempfile::tempdir().unwrap();
    let door = Arc::new(TcpProxy::new(service()));
    let valuer = Box::new(ShuttingValuer(work_valuer(), Arc::clone(&door), false));
    let shop = enrolled(dir.path(), door.settings(service(), "waits"), valuer).await;
    shop.play_round().await;
    let seen = shop.host.blobs().bucket_metrics();
    wait_until(|| seen.number("put", "failed") > 0).await;
    assert_eq!(shop.view().await.phase, TaskPhase::Valuing);
    door.open();
    first_report(&shop).await;
    public(&shop).await;
    shop.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_in_the_bucket_are_an_internal_error_and_are_never_served() {
    let dir = tempfile::tempdir().unwrap();
    let settings = service().settings("wrong");
    let shop = enrolled(dir.path(), settings.clone(), work_valuer()).await;
    let (spec, ledger) = (shop.spec.clone(), shop.ledger.clone());
    shop.stop().await;
    fs::remove_dir_all(dir.path().join("blobs")).unwrap();
    let model = blob_digest(base_model());
    overwrite(&settings, model, b"something else").await;
    let shop = TestCoordinator::with(dir.path(), spec, ledger, work_valuer(), |config| {
        config.blobs = settings
    });
    assert_eq!(
        shop.rejection_code("GET", &format!("blobs/{model}"), Body::empty()).await,
        ErrorCode::Internal
    );
    assert_eq!(shop.host.blobs().bucket_metrics().number("get", "digest_mismatch"), 1);
    // A new upload of the right bytes repairs the blob.
    shop.host.blobs().put(base_model()).unwrap();
    let (status, bytes) = shop.send("GET", &format!("blobs/{model}"), Body::empty()).await;
    assert_eq!((status, blob_digest(&bytes)), (StatusCode::OK, model));
    shop.stop().await;
}

/// Overwrites a blob in the bucket, bypassing the coordinator.
async fn overwrite(settings: &BucketSettings, digest: Digest, bytes: &[u8]) {
    use object_store::ObjectStoreExt;
    let service = service();
    let store = object_store::aws::AmazonS3Builder::new()
        .with_endpoint(&service.endpoint)
        .with_allow_http(true)
        .with_bucket_name(&service.bucket)
        .with_access_key_id(&service.key)
        .with_secret_access_key(&service.secret)
        .build()
        .unwrap();
    let (_, prefix) = settings.url.as_ref().unwrap().rsplit_once('/').unwrap();
    let key = object_store::path::Path::from(format!("{prefix}/{digest}"));
    store.head(&key).await.expect("the blob is in the bucket");
    store.put(&key, bytes.to_vec().into()).await.unwrap();
}

#[test]
fn bucket_errors_are_reported_at_startup_without_any_credential() {
    let fine = service().settings("start");
    opened(&fine).unwrap();
    let open_error = |settings: &BucketSettings, key: &str, secret: &str| {
        let error = Bucket::open(settings, |name| match name {
            "AWS_ACCESS_KEY_ID" => Some(key.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some(secret.to_owned()),
            _ => None,
        });
        let text = format!("{0} {0:?}", error.unwrap_err());
        assert!(!text.contains(key) && !text.contains(secret), "{text}");
        text
    };
    let (key, secret) = (&service().key, &service().secret);
    let elsewhere = BucketSettings { url: Some("s3://missing".to_owned()), ..fine.clone() };
    let text = open_error(&elsewhere, key, secret);
    assert!(text.contains("bucket s3://missing/") && text.contains("[BUCKET_MISSING]"));
    for (key, secret) in [(key.as_str(), "anotherSecret"), ("AKIAUNKNOWN", secret.as_str())] {
        let text = open_error(&fine, key, secret);
        assert!(text.contains("rejects the credentials") && text.contains("BUCKET_FORBIDDEN"));
    }
    let door = TcpProxy::new(service());
    door.shut();
    let text = open_error(&door.settings(service(), "start"), key, secret);
    assert!(text.contains("cannot be reached") && text.contains("BUCKET_UNREACHABLE"), "{text}");
}
