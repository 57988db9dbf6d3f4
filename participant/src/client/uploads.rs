//! Resumable uploads of models, holdouts and updates. An interrupted large upload resumes at the
//! coordinator's offset, a bounded number of times.

use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

use florin_protocol::limits::HEADER_BYTES_MAX;
use florin_protocol::{
    Canonical, Digest, ErrorCode, Signed, TaskId, UpdateHeader, UploadProgress, UploadReceipt,
    WorkAcceptance, WorkRecord, blob_digest,
};
use rand::TryRng;
use rand::rngs::SysRng;

use super::http::{StreamedRequest, VERIFIED_BYTES_PER_SECOND_MIN};
use super::{Client, ClientError, VERDICT_MS_MAX};
use crate::retry::Transient;

/// Largest body sent in one request: the coordinator does not store a partial one.
const SINGLE_REQUEST_BYTES_MAX: u64 = 128 * 1024;
/// Maximum number of consecutive interruptions without progress.
const STALLED_TRIES_MAX: u32 = 8;
/// Progress that resets the count of interruptions.
const PROGRESS_BYTES_MIN: u64 = 1024 * 1024;
/// Base of the exponential back-off between attempts.
const BACKOFF_BASE_MS: u64 = 50;
/// Longest wait between attempts.
const BACKOFF_MAX_MS: u64 = 5_000;
/// Header with the offset at which an upload resumes.
const UPLOAD_OFFSET: &str = "upload-offset";
/// Header with a random secret that identifies the uploader of a model or a holdout.
const UPLOAD_TOKEN: &str = "upload-token";

impl Client {
    /// Uploads a blob that a task requires.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn put_blob(&self, bytes: &[u8]) -> Result<Digest, ClientError> {
        let digest = blob_digest(bytes);
        self.put(&format!("blobs/{digest}"), bytes)?;
        Ok(digest)
    }

    /// Uploads all rows of a task's holdout, in canonical encoding. Idempotent.
    ///
    /// # Errors
    /// A rejection, or those of any request.
    pub fn put_holdout(&self, task: TaskId, bytes: &[u8]) -> Result<(), ClientError> {
        self.put(&format!("tasks/{task}/holdout"), bytes)
    }

    fn put(&self, path: &str, bytes: &[u8]) -> Result<(), ClientError> {
        let send = |headers: &[(&str, String)], mut rest: &[u8]| {
            let (length, checked) = (length(rest), length(bytes));
            let sent = StreamedRequest {
                method: "PUT",
                path,
                headers,
                length,
                verified_bytes: checked,
                time: None,
            };
            self.http.send(&sent, &mut rest)?.discard()
        };
        if length(bytes) <= SINGLE_REQUEST_BYTES_MAX {
            return send(&[], bytes);
        }
        let mut token = [0; 32];
        SysRng.try_fill_bytes(&mut token).map_err(|error| ClientError::Unavailable {
            what: format!("PUT {path}"),
            why: format!("the operating system provides no random bytes: {error}"),
        })?;
        let token = (UPLOAD_TOKEN, Digest(token).to_string());
        let ask = || match self.http.head_number(path, std::slice::from_ref(&token), UPLOAD_OFFSET)
        {
            // The blob is no longer required, or no partial upload is stored: the PUT request
            // returns the reason.
            Err(ClientError::Rejected(_) | ClientError::InvalidResponse { .. }) => Ok(0),
            other => other,
        };
        resume_until_complete(length(bytes), sleep, ask, |offset| {
            let headers = [token.clone(), (UPLOAD_OFFSET, offset.to_string())];
            send(&headers, bytes_from(bytes, offset))
        })
    }

    /// Uploads an update and returns its receipt. An identical upload gets the same receipt. A
    /// large one resumes where an earlier call or connection was interrupted.
    ///
    /// # Errors
    /// [`ClientError::NotSigned`] or [`ClientError::UnexpectedContent`] for a receipt of another update;
    /// a rejection; those of any request.
    pub fn upload(
        &self,
        header: &Signed<UpdateHeader>,
        bytes: &[u8],
    ) -> Result<UploadReceipt, ClientError> {
        let receipt = if length(bytes) <= SINGLE_REQUEST_BYTES_MAX {
            self.send_update(header, bytes, 0)?
        } else {
            let ask = || self.upload_state(header).map(|state| state.offset);
            resume_until_complete(length(bytes), sleep, ask, |offset| {
                self.send_update(header, bytes, offset)
            })?
        };
        let scope = header.body.scope;
        self.verify_signature(&receipt.receipt, "the receipt")?;
        let body = &receipt.receipt.body;
        self.check_scope(body.scope, scope, "the receipt")?;
        let (sender, update) = (body.sender, body.update);
        if sender != header.body.sender || update != header.body.digest() {
            return Err(ClientError::UnexpectedContent {
                what: "the receipt".to_owned(),
                why: format!("it is for update {update} of {sender}, not for the one sent"),
            });
        }
        // A ledger accepts no other signature.
        receipt.verify_wallet(self.coordinator.account).map_err(|error| {
            let (what, why) = ("the receipt's signature for the ledger".to_owned(), error);
            ClientError::UnexpectedContent { what, why: why.to_string() }
        })?;
        Ok(receipt)
    }

    /// The offset of an update's upload.
    ///
    /// # Errors
    /// The rejection that its upload would get; those of any request.
    pub fn upload_state(
        &self,
        header: &Signed<UpdateHeader>,
    ) -> Result<UploadProgress, ClientError> {
        let path = format!("tasks/{}/updates/offset", header.body.scope.task);
        self.http.post(&path, header, 0)?.json()
    }

    /// Submits a work record with the transcript of its valuation. The verdict is that of
    /// [`submit_work`](Self::submit_work).
    ///
    /// # Errors
    /// As [`submit_work`](Self::submit_work).
    pub fn submit_work_with_transcript(
        &self,
        record: &Signed<WorkRecord>,
        transcript: &[u8],
    ) -> Result<WorkAcceptance, ClientError> {
        let head = record.to_bytes();
        let head_length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut reader = head_length.chain(head.as_slice()).chain(transcript);
        let sent = StreamedRequest {
            method: "POST",
            path: "work/transcripts",
            headers: &[],
            length: 4 + length(&head) + length(transcript),
            // As long as the verdict may take.
            verified_bytes: VERDICT_MS_MAX / 1_000 * VERIFIED_BYTES_PER_SECOND_MIN,
            time: None,
        };
        self.http.send(&sent, &mut reader)?.json()
    }

    fn send_update(
        &self,
        header: &Signed<UpdateHeader>,
        bytes: &[u8],
        offset: u64,
    ) -> Result<UploadReceipt, ClientError> {
        let head = header.to_bytes();
        debug_assert!(head.len() <= HEADER_BYTES_MAX, "all fields of a header have fixed length");
        let head_length = u32::try_from(head.len()).unwrap_or(u32::MAX).to_le_bytes();
        let rest = bytes_from(bytes, offset);
        let mut reader = head_length.chain(head.as_slice()).chain(rest);
        let path = format!("tasks/{}/updates", header.body.scope.task);
        let headers = [(UPLOAD_OFFSET, offset.to_string())];
        let sent = StreamedRequest {
            method: "POST",
            path: &path,
            headers: if offset == 0 { &[] } else { &headers },
            length: length(&head_length) + length(&head) + length(rest),
            verified_bytes: length(bytes),
            time: None,
        };
        self.http.send(&sent, &mut reader)?.json()
    }
}

/// Sends from the coordinator's offset, and retries after transient errors while the upload makes
/// progress.
fn resume_until_complete<T>(
    bytes: u64,
    wait: impl Fn(Duration),
    fetch_offset: impl Fn() -> Result<u64, ClientError>,
    send: impl Fn(u64) -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    let (mut tries, mut reached) = (0, 0);
    loop {
        let tried = fetch_offset().and_then(|offset| {
            if offset >= PROGRESS_BYTES_MIN.saturating_add(reached) {
                (tries, reached) = (0, offset);
            }
            send(offset.min(bytes))
        });
        let error = match tried {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let elsewhere =
            error.rejection().is_some_and(|rejection| rejection.code == ErrorCode::WrongOffset);
        tries += 1;
        if tries >= STALLED_TRIES_MAX || !(elsewhere || error.is_transient()) {
            return Err(error);
        }
        tracing::debug!(%error, tries, "an upload was interrupted; resuming");
        let wait_ms = BACKOFF_BASE_MS.saturating_mul(1 << tries).min(BACKOFF_MAX_MS);
        wait(Duration::from_millis(wait_ms));
    }
}

fn bytes_from(bytes: &[u8], offset: u64) -> &[u8] {
    usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default()
}

fn length(bytes: &[u8]) -> u64 {
    bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn unavailable() -> ClientError {
        ClientError::Unavailable { what: "POST".to_owned(), why: "cut".to_owned() }
    }

    /// Number of requests of an upload of `bytes` that advances by `step` each time.
    fn count_requests(bytes: u64, step: u64) -> (u32, Result<(), ClientError>) {
        let state = RefCell::new((0, 0));
        let ask = || Ok(state.borrow().1);
        let result = resume_until_complete(
            bytes,
            |_| (),
            ask,
            |offset| {
                let mut state = state.borrow_mut();
                state.0 += 1;
                state.1 = offset + step;
                if state.1 >= bytes { Ok(()) } else { Err(unavailable()) }
            },
        );
        (state.into_inner().0, result)
    }

    #[test]
    fn an_upload_resumes_as_long_as_it_makes_progress() {
        let (times, result) = count_requests(12 * PROGRESS_BYTES_MIN, PROGRESS_BYTES_MIN);
        assert!(result.is_ok() && times == 12, "{times}");
        let (times, result) = count_requests(12 * PROGRESS_BYTES_MIN, 10);
        assert_eq!(
            (times, result.unwrap_err().code()),
            (STALLED_TRIES_MAX, "COORDINATOR_UNAVAILABLE")
        );
    }

    #[test]
    fn a_rejected_upload_is_not_retried_except_for_a_wrong_offset() {
        for (code, expected) in
            [(ErrorCode::UpdateWrongSchema, 1), (ErrorCode::WrongOffset, STALLED_TRIES_MAX)]
        {
            let times = RefCell::new(0);
            let refused = resume_until_complete(
                10,
                |_| (),
                || Ok(0),
                |_| -> Result<(), _> {
                    *times.borrow_mut() += 1;
                    Err(florin_protocol::Rejection::new(code, "no").into())
                },
            );
            assert_eq!(refused.unwrap_err().code(), code.as_str());
            assert_eq!(times.into_inner(), expected);
        }
    }
}
