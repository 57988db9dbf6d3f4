//! One work order: fetches its inputs, unless they are cached from the previous order, and executes
//! it.

use florin_protocol::limits::{BASELINE_ROUNDS_MAX, EARLIER_UPDATES_BYTES_MAX};
use florin_protocol::{
    BlobRequest, Digest, DrawError, RoundNumber, RoundScope, TaskId, WalletSigner, WorkOrder,
    draw_rows, round_seed,
};
use florin_work::{
    EarlierUpdateBlobs, RecordedRound, ValuationInputs, baseline_rows, disclosed_indices,
    model_bytes, update_bytes, value_and_record,
};

use super::{ORDER_BYTES_MAX, ProviderDaemon, ProviderError, ServedTask, scratch_space};
use crate::agent::EXPIRY_MS;
use crate::blob_cache::{CachedBlob, EMPTY_MODEL, byte_slices};
use crate::client::ClientError;

impl ProviderDaemon<'_, '_> {
    pub(super) fn execute_order(
        &mut self,
        order: &WorkOrder,
        served: &mut ServedTask,
    ) -> Result<Result<RecordedRound, String>, ProviderError> {
        let drawn = match self.draw_rows_for(order, served)? {
            Ok(drawn) => drawn,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if let Err(why) = self.load_graph(served)? {
            return Ok(Err(why));
        }
        let spec = &served.spec;
        let (model, update) = (model_bytes(spec), update_bytes(spec));
        let models = model.saturating_mul(order.previous_models.len() as u64);
        // A decoded update has the length of a model.
        let decoded = model.max(update);
        let total = decoded.saturating_mul(order.entries.len() as u64).saturating_add(models);
        let last = model.saturating_mul(order.earlier_updates.len() as u64);
        if total > ORDER_BYTES_MAX || last > EARLIER_UPDATES_BYTES_MAX {
            let why = format!(
                "its updates and models have {total} bytes: the limit is {ORDER_BYTES_MAX}"
            );
            return Ok(Err(why));
        }
        let limit = spec.holdout.disclosed_bytes_max(spec.data.width);
        let rows = self.context.client.blob(order.disclosed_rows, limit)?;
        let earlier = match self.fetch_earlier_rows(order, served)? {
            Ok(earlier) => earlier,
            Err(why) => return Ok(Err(why)),
        };
        let earlier_rows = byte_slices(&earlier);
        let task = spec.id();
        let began = [order.base_model].into_iter().chain(order.previous_models.iter().copied());
        let models = self
            .models
            .get_or_fetch(began, |_, digest| self.fetch(task, digest, model).map(Some))?;
        let sent = order.entries.iter().map(|entry| entry.update);
        let sent = sent.chain(order.earlier_updates.iter().map(|(_, update)| *update));
        let updates = self
            .updates
            .get_or_fetch(sent, |_, digest| self.fetch(task, digest, update).map(Some))?;
        let (began, sent) = (byte_slices(&models), byte_slices(&updates));
        let (base, previous) = began.split_first().unwrap_or((&EMPTY_MODEL, &[]));
        let (own, last) = sent.split_at(order.entries.len());
        let inputs = ValuationInputs {
            spec,
            graph: served.graph.as_ref(),
            base,
            row_indices: &drawn,
            disclosed_rows: &rows,
            entries: &order.entries,
            updates: &own,
            previous_models: &previous,
            earlier_updates: EarlierUpdateBlobs { ids: &order.earlier_updates, bytes: &last },
            earlier_rows: &earlier_rows,
            scratch_space: &scratch_space(&self.config.folder),
        };
        let outcome = value_and_record(&inputs, self.context.engine);
        let better = outcome.as_ref().is_ok_and(|done| done.output.result.valuation.total_nano > 0);
        // After a round that did not improve the model, the next one is compared with the same
        // earlier updates and with those of this round.
        let wanted = if better { order.entries.len() } else { updates.len() };
        self.models.replace(&models);
        self.earlier_rows.replace(&earlier);
        self.updates.replace(updates.get(..wanted).unwrap_or_default());
        Ok(outcome.map_err(|error| error.to_string()))
    }

    /// Loads the task's graph, if its model is one. The inner error is the reason why it is invalid.
    fn load_graph(&self, served: &mut ServedTask) -> Result<Result<(), String>, ProviderError> {
        if served.graph.is_none() {
            served.graph = match self.context.client.graph(&served.spec) {
                Err(ClientError::Rejected(why)) => return Ok(Err(why.to_string())),
                loaded => loaded?,
            };
        }
        Ok(Ok(()))
    }

    /// Fetches the rows of earlier rounds that train the public baseline. The inner error is the
    /// reason why they are not the rows of these rounds.
    fn fetch_earlier_rows(
        &self,
        order: &WorkOrder,
        served: &ServedTask,
    ) -> Result<Result<Vec<CachedBlob>, String>, ProviderError> {
        let (spec, rounds) = (&served.spec, order.earlier_rows.len());
        if rounds > BASELINE_ROUNDS_MAX {
            return Ok(Err(format!(
                "it names the rows of {rounds} earlier rounds: the limit is {BASELINE_ROUNDS_MAX}"
            )));
        }
        let limit = spec.holdout.disclosed_bytes_max(spec.data.width);
        let digests = order.earlier_rows.iter().copied();
        let earlier = self
            .earlier_rows
            .get_or_fetch(digests, |_, digest| self.context.client.blob(digest, limit).map(Some))?;
        let expected = baseline_rows(spec, &served.disclosed_rows);
        Ok(match disclosed_indices(&byte_slices(&earlier)) {
            Ok(rows) if rows == expected => Ok(earlier),
            _ => Err("it names other rows than those of the earlier rounds".to_owned()),
        })
    }

    /// Draws the holdout rows of the order's round. Work on other rows is not paid. The inner error
    /// is the reason why no rows can be drawn.
    fn draw_rows_for(
        &self,
        order: &WorkOrder,
        served: &mut ServedTask,
    ) -> Result<Result<Vec<u32>, DrawError>, ProviderError> {
        let RoundScope { task, round, .. } = order.scope;
        while served.reports_read.saturating_add(1) < round.0 {
            let next = RoundNumber(served.reports_read.saturating_add(1));
            let report = self.context.client.report(task, next)?.body;
            served.disclosed_rows.extend(&report.holdout.rows);
            served.reports_read = next.0;
        }
        let seed = round_seed(order.scope, &order.commits, &order.entries);
        Ok(draw_rows(&served.spec.holdout, &served.disclosed_rows, seed))
    }

    fn fetch(&self, task: TaskId, digest: Digest, limit: u64) -> Result<Vec<u8>, ProviderError> {
        let client = self.context.client;
        let (market, sender) = (client.coordinator().market, self.context.wallet.address());
        Ok(client.with_expiry(EXPIRY_MS, |expires| {
            let request = BlobRequest { market, task, digest, sender, expires };
            client.work_blob(&self.guard.sign(request), limit)
        })?)
    }
}
