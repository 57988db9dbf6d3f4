//! Resumable uploads: they resume after a broken connection, are rejected as early as possible, and
//! respect their disk quotas.

use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode};
use florin_coordinator::Config;
use florin_protocol::*;
use florin_store::uploads::{UploadKey, UploadOwner, UploadUsage};
use florin_work::{encode_parameters, initial_model, model_spec};
use hyper::body::Frame;
use tower::ServiceExt;

use crate::connection_limits::within_timeout;
use crate::support::*;
use crate::test_coordinator::*;

/// A task whose model has 600 KB: too large for a pack.
pub(crate) fn large_spec() -> TaskSpec {
    let mut spec = digits_spec();
    spec.model = ModelArchitecture::Mlp { inputs: 64, hidden: vec![2_000], classes: 10 };
    spec.base_model = blob_digest(&large_model());
    spec
}

pub(crate) fn large_model() -> Vec<u8> {
    initial_model(&ModelArchitecture::Mlp { inputs: 64, hidden: vec![2_000], classes: 10 }, 7)
        .unwrap()
}

/// Participant `i`'s update; its value does not matter.
pub(crate) fn delta(i: u8) -> Vec<u8> {
    let spec = large_spec();
    encode_parameters(&spec, &vec![1e-3 * f32::from(i); model_spec(&spec.model).parameters()])
}

/// A body that arrives in these pieces and then ends, breaks or stalls.
struct Pieces(Vec<Bytes>, BodyEnd);

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum BodyEnd {
    Well,
    Broken,
    Never,
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if !self.0.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.0.remove(0)))));
        }
        match self.1 {
            BodyEnd::Well => Poll::Ready(None),
            BodyEnd::Broken => Poll::Ready(Some(Err(std::io::Error::other("connection broken")))),
            BodyEnd::Never => Poll::Pending,
        }
    }
}

pub(crate) struct UploadResponse {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl UploadResponse {
    pub(crate) fn code(&self) -> ErrorCode {
        let text = String::from_utf8_lossy(&self.body);
        let rejection: Rejection = serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{} is not a rejection: {text}", self.status));
        rejection.code
    }

    pub(crate) fn offset(&self) -> Option<u64> {
        self.headers.get("upload-offset").map(|value| value.to_str().unwrap().parse().unwrap())
    }

    pub(crate) fn receipt(&self) -> UpdateReceipt {
        assert_eq!(self.status, StatusCode::OK, "{}", String::from_utf8_lossy(&self.body));
        serde_json::from_slice::<UploadReceipt>(&self.body).unwrap().receipt.body
    }
}

/// A coordinator whose round waits for the uploads of four participants.
pub(crate) struct UploadFixture {
    pub(crate) shop: TestCoordinator,
    headers: Vec<Signed<UpdateHeader>>,
}

impl UploadFixture {
    pub(crate) async fn open(folder: &Path, change: impl FnOnce(&mut Config)) -> Self {
        Self::open_for(folder, change, delta).await
    }

    async fn open_for(
        folder: &Path,
        change: impl FnOnce(&mut Config),
        bytes: impl Fn(u8) -> Vec<u8>,
    ) -> Self {
        let shop = TestCoordinator::open_with(folder, large_spec(), change);
        for i in 1..=4 {
            let () = shop.post("registrations", &registration(i, Role::Participant)).await.unwrap();
        }
        let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
        let model = format!("blobs/{}", shop.spec.base_model);
        let rows = format!("tasks/{}/holdout", shop.id);
        for (path, bytes) in [(model, large_model()), (rows, holdout())] {
            let (status, answer) = shop.send("PUT", &path, bytes).await;
            assert_eq!(status, StatusCode::NO_CONTENT, "{}", String::from_utf8_lossy(&answer));
        }
        for i in 1..=4 {
            shop.enrol(i).await.unwrap();
        }
        let offer = shop.wait_for_phase(TaskPhase::Committing).await.offer.unwrap().body;
        let mut headers = Vec::new();
        for i in 1..=4 {
            let bytes = bytes(i);
            let header = UpdateHeader {
                scope: offer.scope,
                sender: address(i),
                offer: offer.digest(),
                base_model: offer.base_model,
                rows: 200,
                update: blob_digest(&bytes),
                bytes: bytes.len() as u64,
                salt: Digest([i; 32]),
                expires: Timestamp(1_000_000),
            };
            shop.commit(&header, i).await.unwrap();
            headers.push(node(i).sign(header));
        }
        shop.wait_for_phase(TaskPhase::Revealing).await;
        Self { shop, headers }
    }

    pub(crate) fn header(&self, i: u8) -> &Signed<UpdateHeader> {
        &self.headers[usize::from(i) - 1]
    }

    fn path(&self) -> String {
        format!("tasks/{}/updates", self.shop.id)
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, String)],
        body: Body,
    ) -> UploadResponse {
        let mut request = Request::builder().method(method).uri(format!("/v1/{path}"));
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(body).unwrap();
        let answer = within_timeout(self.shop.router.clone().oneshot(request)).await.unwrap();
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec();
        UploadResponse { status, headers, body }
    }

    /// Sends these bytes of participant `i`'s update from `offset` on.
    pub(crate) async fn append(
        &self,
        i: u8,
        offset: usize,
        bytes: &[u8],
        end: BodyEnd,
    ) -> UploadResponse {
        let framed = Bytes::from(upload_body(self.header(i), bytes));
        // In pieces with arbitrary boundaries.
        let pieces = framed.chunks(70_001).map(Bytes::copy_from_slice).collect();
        let headers = [("upload-offset", offset.to_string())];
        self.send("POST", &self.path(), &headers, Body::new(Pieces(pieces, end))).await
    }

    /// The key of participant `i`'s upload.
    fn key(&self, i: u8) -> UploadKey {
        let header = &self.header(i).body;
        let whose = UploadOwner::Sender(header.scope.round, header.sender);
        UploadKey { task: header.scope.task, owner: whose, digest: header.update }
    }

    pub(crate) async fn stored_bytes(&self, i: u8) -> Result<u64, Rejection> {
        let path = format!("{}/offset", self.path());
        let state: UploadProgress = self.shop.post(&path, self.header(i)).await?;
        assert_eq!(state.bytes, self.header(i).body.bytes);
        Ok(state.offset)
    }
}

/// File names in the folder of incomplete uploads.
fn incomplete_uploads(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join("blobs/uploads")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_resumes_from_any_offset_also_after_a_restart_and_gets_the_same_receipt() {
    let dir = tempfile::tempdir().unwrap();
    let mut stand = UploadFixture::open(dir.path(), |_| {}).await;
    let (bytes, length) = (delta(1), delta(1).len());
    let header_end =
        8 + usize::try_from(u64::from_le_bytes(*bytes.first_chunk().unwrap())).unwrap();
    let cuts = [0, 1, 7, header_end - 1, header_end, 300_000, length - 1, length];
    let mut from = 0;
    for (number, cut) in cuts.into_iter().enumerate() {
        let answer = stand.append(1, from, &bytes[from..cut], BodyEnd::Broken).await;
        assert_eq!((answer.code(), answer.offset()), (ErrorCode::Truncated, Some(cut as u64)));
        if number % 3 == 2 {
            let headers = stand.headers;
            stand.shop.stop().await;
            stand =
                UploadFixture { shop: TestCoordinator::open(dir.path(), large_spec()), headers };
        }
        assert_eq!(stand.stored_bytes(1).await.unwrap(), cut as u64);
        from = cut;
    }
    assert_eq!(incomplete_uploads(dir.path()).len(), 1);
    let resumed = stand.append(1, length, &[], BodyEnd::Well).await.receipt();
    assert_eq!(stand.stored_bytes(1).await.unwrap(), length as u64);
    // An uninterrupted upload gets the same receipt, and another sender's has the same scope and
    // time.
    assert_eq!(stand.append(1, 0, &bytes, BodyEnd::Well).await.receipt(), resumed);
    let uncut = stand.append(2, 0, &delta(2), BodyEnd::Well).await.receipt();
    assert_eq!((uncut.scope, uncut.at), (resumed.scope, resumed.at));
    assert_eq!(stand.shop.host.blobs().read(blob_digest(&bytes)).unwrap(), bytes);
    assert!(incomplete_uploads(dir.path()).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_resumes_only_for_its_sender_and_only_at_its_offset() {
    let dir = tempfile::tempdir().unwrap();
    let stand = UploadFixture::open(dir.path(), |_| {}).await;
    let bytes = delta(1);
    stand.append(1, 0, &bytes[..100_000], BodyEnd::Broken).await;
    // Another sender has no access to the bytes.
    assert_eq!(stand.stored_bytes(2).await.unwrap(), 0);
    let answer = stand.append(2, 100_000, &bytes[100_000..], BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::WrongOffset, Some(0)));
    let forged = node(2).sign(stand.header(1).body.clone());
    let headers = [("upload-offset", "100000".to_owned())];
    let body = upload_body(&forged, &bytes[100_000..]);
    let answer = stand.send("POST", &stand.path(), &headers, body.into()).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::InvalidSignature, None));
    let path = format!("{}/offset", stand.path());
    let refused = stand.shop.post::<UploadProgress>(&path, &forged).await.unwrap_err();
    assert_eq!(refused.code, ErrorCode::InvalidSignature);
    for wrong in [1, 99_999, 100_001, usize::MAX] {
        let answer = stand.append(1, wrong, &bytes[100_000..], BodyEnd::Well).await;
        assert_eq!((answer.code(), answer.status), (ErrorCode::WrongOffset, StatusCode::CONFLICT));
        assert_eq!(answer.offset(), Some(100_000), "{wrong}");
    }
    let headers = [("upload-offset", "-1".to_owned())];
    let answer = stand.send("POST", &stand.path(), &headers, Body::empty()).await;
    assert_eq!(answer.code(), ErrorCode::Malformed);
    stand.append(1, 100_000, &bytes[100_000..], BodyEnd::Well).await.receipt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_connection_takes_over_an_upload_without_mixing_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let stand = UploadFixture::open(dir.path(), |config| config.body_ms = 600_000).await;
    let bytes = delta(1);
    let older = stand.append(1, 0, &bytes[..400_000], BodyEnd::Never);
    let newer = async {
        // Wait until the older connection has sent bytes.
        while stand.shop.host.partials().bytes_of(&stand.key(1)) == 0 {
            tokio::task::yield_now().await;
        }
        let answer = stand.append(1, 7, &bytes[7..], BodyEnd::Well).await;
        assert_eq!(answer.code(), ErrorCode::WrongOffset);
        let here = usize::try_from(answer.offset().unwrap()).unwrap();
        assert!((200_000..=400_000).contains(&here), "{here}");
        stand.append(1, here, &bytes[here..], BodyEnd::Well).await.receipt()
    };
    let (older, _) = tokio::join!(older, newer);
    assert_eq!(older.code(), ErrorCode::LimitReached);
    // Concurrent uploads lead to one receipt.
    let bytes = delta(2);
    let all = (0..4).map(|_| stand.append(2, 0, &bytes, BodyEnd::Well));
    let mut receipts = Vec::new();
    for answer in join_all(all).await {
        if answer.status == StatusCode::OK {
            receipts.push(answer.receipt());
        } else {
            assert_eq!(answer.code(), ErrorCode::LimitReached);
        }
    }
    receipts.push(stand.append(2, 0, &bytes, BodyEnd::Well).await.receipt());
    assert!(receipts.iter().all(|receipt| *receipt == receipts[0]));
    assert_eq!(stand.shop.host.blobs().read(blob_digest(&bytes)).unwrap(), bytes);
    assert!(incomplete_uploads(dir.path()).is_empty());
}

/// Polls all futures concurrently, like `join_all`.
async fn join_all<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut all: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|cx| {
        for (one, done) in &mut all {
            if done.is_none()
                && let Poll::Ready(value) = one.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        if all.iter().all(|(_, done)| done.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    all.into_iter().filter_map(|(_, done)| done).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_that_do_not_match_the_commitment_are_discarded() {
    let dir = tempfile::tempdir().unwrap();
    let stand = UploadFixture::open(dir.path(), |_| {}).await;
    let bytes = delta(1);
    stand.append(1, 0, &bytes[..100_000], BodyEnd::Broken).await;
    let mut wrong = bytes[100_000..].to_vec();
    *wrong.last_mut().unwrap() ^= 1;
    let answer = stand.append(1, 100_000, &wrong, BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::CommitMismatch, Some(0)));
    assert!(incomplete_uploads(dir.path()).is_empty());
    // Damaged on the coordinator's disk between two requests: the same; then the sender uploads it
    // again from offset 0.
    stand.append(1, 0, &bytes[..100_000], BodyEnd::Broken).await;
    let headers = stand.headers;
    stand.shop.stop().await;
    let file = dir.path().join("blobs/uploads").join(&incomplete_uploads(dir.path())[0]);
    let mut partial = std::fs::read(&file).unwrap();
    *partial.last_mut().unwrap() ^= 1;
    std::fs::write(&file, partial).unwrap();
    let stand = UploadFixture { shop: TestCoordinator::open(dir.path(), large_spec()), headers };
    let answer = stand.append(1, 100_000, &bytes[100_000..], BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::CommitMismatch, Some(0)));
    stand.append(1, 0, &bytes, BodyEnd::Well).await.receipt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_safetensors_header_is_rejected_before_the_rest_has_arrived() {
    let spoiled = |i| {
        let mut bytes = delta(i);
        let at = bytes.windows(5).position(|part| part == b"\"F32\"").unwrap();
        match i {
            1 => bytes[at + 1] = b'I',
            2 => bytes[..8].copy_from_slice(&99_000_000u64.to_le_bytes()),
            3 => *bytes.last_mut().unwrap() = 0x7f, // a value beyond the norm
            _ => {}
        }
        bytes
    };
    let dir = tempfile::tempdir().unwrap();
    let stand =
        UploadFixture::open_for(dir.path(), |config| config.body_ms = 600_000, spoiled).await;
    let table = [(1, ErrorCode::UpdateWrongSchema, 422), (2, ErrorCode::TooLarge, 413)];
    for (i, code, status) in table {
        // A tenth of the update, then silence: the response does not wait for the rest.
        let answer = stand.append(i, 0, &spoiled(i)[..60_000], BodyEnd::Never).await;
        assert_eq!((answer.code(), answer.status.as_u16()), (code, status));
        assert_eq!(answer.offset(), Some(0));
    }
    assert!(incomplete_uploads(dir.path()).is_empty());
    // A sender that missed the response gets it when it asks for the offset.
    assert_eq!(stand.stored_bytes(1).await.unwrap_err().code, ErrorCode::UpdateWrongSchema);
    // Also if the header arrives in two parts, and if only the values are wrong.
    stand.append(1, 0, &spoiled(1)[..20], BodyEnd::Broken).await;
    let answer = stand.append(1, 20, &spoiled(1)[20..60_000], BodyEnd::Never).await;
    assert_eq!(answer.code(), ErrorCode::UpdateWrongSchema);
    let answer = stand.append(3, 0, &spoiled(3), BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::UpdateNormTooLarge, Some(0)));
    assert!(incomplete_uploads(dir.path()).is_empty());
    stand.append(4, 0, &spoiled(4), BodyEnd::Well).await.receipt();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_respect_the_disk_and_task_quotas_and_release_them() {
    for quota in ["disk", "task"] {
        let dir = tempfile::tempdir().unwrap();
        let stand = UploadFixture::open(dir.path(), |config| {
            config.body_ms = 600_000;
            match quota {
                "disk" => config.uploads.disk_mib_max = 1,
                _ => config.uploads.task_mib_max = 1,
            }
        })
        .await;
        // The first upload has sent few bytes but reserves its whole size: two exceed a MiB.
        let bytes = delta(1);
        let first = stand.append(1, 0, &bytes[..20_000], BodyEnd::Never);
        let others = async {
            while stand.shop.host.partials().usage().uploads == 0 {
                tokio::task::yield_now().await;
            }
            let answer = stand.append(2, 0, &delta(2), BodyEnd::Well).await;
            assert_eq!((answer.code(), answer.status.as_u16()), (ErrorCode::QuotaExceeded, 507));
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(text.contains("of 1048576 bytes: finish"), "{text}");
            // Small requests need no quota.
            assert_eq!(stand.shop.view().await.phase, TaskPhase::Revealing);
        };
        tokio::select! {
            _ = first => panic!("a stalled upload has ended"),
            () = others => {}
        }
        // The connection is closed: only the bytes that arrived stay reserved.
        stand.append(2, 0, &delta(2), BodyEnd::Well).await.receipt();
        let here = usize::try_from(stand.stored_bytes(1).await.unwrap()).unwrap();
        stand.append(1, here, &bytes[here..], BodyEnd::Well).await.receipt();
        assert_eq!(stand.shop.host.partials().usage(), UploadUsage::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_above_its_quota_does_not_affect_other_senders() {
    let dir = tempfile::tempdir().unwrap();
    let stand = UploadFixture::open(dir.path(), |config| {
        config.body_ms = 600_000;
        config.uploads.sender_mib_max = 1;
    })
    .await;
    // Another upload of the first sender, in another task, as after a round that it left.
    let other = UploadKey {
        task: TaskId([9; 32]),
        owner: UploadOwner::Sender(RoundNumber(1), address(1)),
        digest: Digest([9; 32]),
    };
    let file = dir.path().join("blobs/uploads").join(other.file_name());
    let headers = stand.headers;
    stand.shop.stop().await;
    std::fs::write(file, vec![0; 700_000]).unwrap();
    let shop =
        TestCoordinator::open_with(dir.path(), large_spec(), |c| c.uploads.sender_mib_max = 1);
    let stand = UploadFixture { shop, headers };
    let answer = stand.append(1, 0, &delta(1), BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.status.as_u16()), (ErrorCode::QuotaExceeded, 507));
    stand.append(2, 0, &delta(2), BodyEnd::Well).await.receipt();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_a_507_leaves_no_partial_and_does_not_affect_later_uploads() {
    let dir = tempfile::tempdir().unwrap();
    let stand = UploadFixture::open(dir.path(), |_| {}).await;
    let file = dir.path().join("blobs/uploads").join(stand.key(1).file_name());
    std::os::unix::fs::symlink("/dev/full", file).unwrap();
    let answer = stand.append(1, 0, &delta(1), BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.status.as_u16()), (ErrorCode::StorageFull, 507));
    assert!(incomplete_uploads(dir.path()).is_empty());
    // The disk has space again.
    stand.append(1, 0, &delta(1), BodyEnd::Well).await.receipt();
    // If the disk has less space than `free_mib_min`, no byte is accepted.
    let headers = stand.headers;
    stand.shop.stop().await;
    let shop = TestCoordinator::open_with(dir.path(), large_spec(), |config| {
        config.uploads.free_mib_min = 1 << 30;
    });
    let stand = UploadFixture { shop, headers };
    let answer = stand.append(2, 0, &delta(2), BodyEnd::Well).await;
    assert_eq!((answer.code(), answer.status.as_u16()), (ErrorCode::StorageFull, 507));
    assert!(String::from_utf8_lossy(&answer.body).contains("stay free"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_upload_resumes_with_its_token_only() {
    let dir = tempfile::tempdir().unwrap();
    let shop = TestCoordinator::open(dir.path(), large_spec());
    let _: TaskView = shop.post("tasks", &shop.spec).await.unwrap();
    let mut stand = UploadFixture { shop, headers: Vec::new() };
    let (model, path) = (large_model(), format!("blobs/{}", large_spec().base_model));
    let headers = |token: u8, offset: usize| {
        [("upload-token", Digest([token; 32]).to_string()), ("upload-offset", offset.to_string())]
    };
    let cut =
        |bytes: &[u8]| Body::new(Pieces(vec![Bytes::copy_from_slice(bytes)], BodyEnd::Broken));
    let answer = stand.send("PUT", &path, &headers(1, 0), cut(&model[..400_000])).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::Truncated, Some(400_000)));
    // Without a token no bytes are stored.
    let answer = stand.send("PUT", &path, &[], cut(&model[..500_000])).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::Truncated, None));
    assert_eq!(incomplete_uploads(dir.path()).len(), 1);
    stand.shop.stop().await;
    stand.shop = TestCoordinator::open(dir.path(), large_spec());
    for (token, here) in [(1, 400_000), (2, 0)] {
        let answer = stand.send("HEAD", &path, &headers(token, 0)[..1], Body::empty()).await;
        assert_eq!((answer.status, answer.offset()), (StatusCode::NO_CONTENT, Some(here)));
    }
    let answer = stand.send("HEAD", &path, &[], Body::empty()).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let rest = || Body::from(model[400_000..].to_vec());
    let answer = stand.send("PUT", &path, &headers(2, 400_000), rest()).await;
    assert_eq!((answer.code(), answer.offset()), (ErrorCode::WrongOffset, Some(0)));
    let answer = stand.send("PUT", &path, &headers(1, 400_000), rest()).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert!(
        stand.shop.view().await.missing_blobs.is_empty()
            && incomplete_uploads(dir.path()).is_empty()
    );
}
