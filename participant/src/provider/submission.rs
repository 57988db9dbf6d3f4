//! The submission of a work record, with the transcript of its valuation.

use florin_protocol::{ErrorCode, Signed, Timestamp, WorkAcceptance, WorkRecord};

use super::ProviderDaemon;
use crate::client::ClientError;
use crate::event::ParticipantEvent;
use crate::retry::retry_with_backoff;

/// Bytes of a transcript that a connection is taken to send in a second. A transcript that needs more than half of
/// the time to the deadline is not sent.
const BYTES_PER_SECOND: u64 = 1 << 20;
/// Time for the record itself; the coordinator does not wait for a transcript in the last two seconds.
const MARGIN_MS: u64 = 2_500;

impl ProviderDaemon<'_, '_> {
    /// Submits a work record, and repeats the request while the coordinator verifies it.
    pub(super) fn submit(
        &mut self,
        record: &Signed<WorkRecord>,
        due: Timestamp,
    ) -> Result<WorkAcceptance, ClientError> {
        if let Some(verdict) = self.submit_with_transcript(record, due) {
            return Ok(verdict);
        }
        let (client, shutdown) = (self.context.client, self.shutdown);
        loop {
            let on_event = &mut self.on_event;
            let on_retry = |error: &ClientError| {
                on_event(&ParticipantEvent::Retrying { why: error.to_string() })
            };
            let verdict = retry_with_backoff(self.config.backoff, shutdown, on_retry, || {
                client.submit_work(record)
            });
            match verdict {
                Err(ClientError::Rejected(rejection))
                    if rejection.code == ErrorCode::TooEarly && !shutdown.is_requested() =>
                {
                    self.pause();
                }
                verdict => return verdict,
            }
        }
    }

    /// Submits the record once with its transcript. `None` without a verdict: the record alone has the same
    /// verdict, and coordinators without the route take it, too.
    fn submit_with_transcript(
        &self,
        record: &Signed<WorkRecord>,
        due: Timestamp,
    ) -> Option<WorkAcceptance> {
        let client = self.context.client;
        let transcript = self.transcript.read(record.body.order)?;
        let bytes = u64::try_from(transcript.len()).unwrap_or(u64::MAX);
        let left_ms = due.0.saturating_sub(client.now().0);
        let needed_ms = bytes.saturating_mul(2_000) / BYTES_PER_SECOND + MARGIN_MS;
        if needed_ms > left_ms {
            return None;
        }
        let sent = client.submit_work_with_transcript(record, &transcript);
        sent.inspect_err(
            |error| tracing::debug!(%error, "no verdict on a record with a transcript"),
        )
        .ok()
    }
}
