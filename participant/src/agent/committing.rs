//! Commit and reveal: send a commitment while updates are still secret, and upload the update when
//! the commit phase is over. The signing guard records every signature before it is made.

use florin_protocol::{
    Canonical, Digest, ErrorCode, Offer, RoundNumber, RoundScope, UpdateHeader, blob_digest,
};

use super::state_machine::RoundStage;
use super::{Agent, AgentError};
use crate::client::ClientError;
use crate::event::ParticipantEvent;
use crate::guard::{GuardError, SignedUpdate};

/// Key-derivation context of the key for salts.
const SALT_CONTEXT: &str = "florin v1 salts of a wallet";

impl Agent<'_, '_> {
    /// Records and signs the update on disk, and sends its commit.
    pub(super) fn commit(&mut self, offer: &Offer) -> Result<(), AgentError> {
        let round = offer.scope.round;
        let limit = florin_work::update_bytes(&self.spec);
        let Some(bytes) = self.store.update(round, limit)? else {
            // Recorded, but the bytes are gone: only the same training can reproduce them.
            self.current.stage = RoundStage::NotStarted;
            return Ok(());
        };
        let late = self.store.late(round)?;
        let base_model = late.map_or(offer.base_model, |late| late.base_model);
        let Some(rows) = self.rows_of_update(round, blob_digest(&bytes))? else {
            // As without the bytes.
            self.current.stage = RoundStage::NotStarted;
            return Ok(());
        };
        let header = self.header(offer, base_model, &bytes, rows);
        let signed = match self.guard.sign_update(header) {
            Err(error @ GuardError::DoubleUpdate { .. }) => {
                self.fail_round(error.code(), &error);
                return Ok(());
            }
            other => other?,
        };
        self.current.stage = RoundStage::Signed;
        let client = self.context.client;
        self.trace_send("commit", round, 0);
        let commit = |agent: &mut Self| agent.with_client(|| client.commit(&signed.commit));
        match self.while_registered(commit)? {
            Ok(()) => {
                self.current.stage = RoundStage::Committed;
                self.emit(&ParticipantEvent::Committed { round });
                Ok(())
            }
            Err(ClientError::Rejected(rejection)) => {
                self.fail_round(rejection.code.as_str(), &rejection.message);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn header(&self, offer: &Offer, base_model: Digest, bytes: &[u8], rows: u64) -> UpdateHeader {
        let update = blob_digest(bytes);
        UpdateHeader {
            scope: offer.scope,
            sender: self.me,
            offer: offer.digest(),
            base_model,
            rows,
            update,
            bytes: bytes.len() as u64,
            salt: self.salt(offer, update),
            expires: offer.reveal_by,
        }
    }

    /// The salt of an update's commitment. It cannot be computed without the wallet before the
    /// reveal, and need not be stored: the same update of the same round always has the same salt.
    fn salt(&self, offer: &Offer, update: Digest) -> Digest {
        let key = self.context.wallet.derive_secret(SALT_CONTEXT);
        let mut hasher = blake3::Hasher::new_keyed(&key);
        let RoundScope { market, task, round } = offer.scope;
        hasher.update(&market.chain.0.to_le_bytes()).update(&market.genesis.0);
        hasher.update(&task.0).update(&round.0.to_le_bytes()).update(&update.0);
        Digest(*hasher.finalize().as_bytes())
    }

    /// Uploads the committed update, and stores the receipt.
    pub(super) fn reveal(&mut self, round: RoundNumber) -> Result<(), AgentError> {
        let Some(signed) = self.guard.signed_update_for(self.spec.market, self.config.task, round)
        else {
            self.fail_round("NOT_COMMITTED", &"no update was signed for this round");
            return Ok(());
        };
        let limit = florin_work::update_bytes(&self.spec);
        let bytes = self.store.update(round, limit)?.unwrap_or_default();
        if blob_digest(&bytes) != signed.header.body.update {
            let why = "the committed update is no longer on disk, so it cannot be uploaded";
            self.fail_round("NOT_FOUND", &why);
            return Ok(());
        }
        self.upload(round, &signed, &bytes)
    }

    fn upload(
        &mut self,
        round: RoundNumber,
        signed: &SignedUpdate,
        bytes: &[u8],
    ) -> Result<(), AgentError> {
        let client = self.context.client;
        self.trace_send("update", round, bytes.len() as u64);
        let upload = |agent: &mut Self| agent.with_client(|| client.upload(&signed.header, bytes));
        match self.while_registered(upload)? {
            Ok(receipt) => {
                self.store.write_receipt(round, &receipt)?;
                self.current.stage = RoundStage::ReceiptStored;
                let update = receipt.receipt.body.update;
                self.emit(&ParticipantEvent::ReceiptStored { round, update });
                Ok(())
            }
            // The view was older than the phase; the next view is newer.
            Err(ClientError::Rejected(rejection)) if rejection.code == ErrorCode::TooEarly => {
                Ok(())
            }
            Err(ClientError::Rejected(rejection)) => {
                self.fail_round(rejection.code.as_str(), &rejection.message);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}
