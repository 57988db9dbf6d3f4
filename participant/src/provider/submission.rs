//! The submission of a work record, with the transcript of its valuation.

use florin_protocol::{ErrorCode, Signed, WorkAcceptance, WorkRecord};

use super::ProviderDaemon;
use crate::client::ClientError;
use crate::event::ParticipantEvent;
use crate::retry::retry_with_backoff;

impl ProviderDaemon<'_, '_> {
    /// Submits a work record, and repeats the request while the coordinator verifies it.
    pub(super) fn submit(
        &mut self,
        record: &Signed<WorkRecord>,
    ) -> Result<WorkAcceptance, ClientError> {
        let (client, shutdown) = (self.context.client, self.shutdown);
        // The first request has the transcript. Later ones only ask for the verdict.
        let mut transcript = self.transcript.read(record.body.order);
        loop {
            let on_event = &mut self.on_event;
            let on_retry = |error: &ClientError| {
                on_event(&ParticipantEvent::Retrying { why: error.to_string() })
            };
            let had_transcript = transcript.is_some();
            let verdict =
                retry_with_backoff(self.config.backoff, shutdown, on_retry, || match &transcript {
                    Some(bytes) => client.submit_work_with_transcript(record, bytes),
                    None => client.submit_work(record),
                });
            transcript = None;
            match verdict {
                // A coordinator of an earlier version takes records alone.
                Err(ClientError::Rejected(rejection))
                    if had_transcript && rejection.code == ErrorCode::NotFound => {}
                Err(ClientError::Rejected(rejection))
                    if rejection.code == ErrorCode::TooEarly && !shutdown.is_requested() =>
                {
                    self.pause();
                }
                verdict => return verdict,
            }
        }
    }
}
