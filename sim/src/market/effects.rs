//! Executes the engine's effects immediately, and settles the task at its end.

use std::collections::VecDeque;

use florin_engine::{Effect, Event, ProofTree};
use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_ledger::limits::PENDING_MAX;
use florin_ledger::state::ApplyError;
use florin_ledger::{Action, Claim, Refusal, Settlement};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Digest, Rejection, RoundNumber, TaskId, Timestamp, blob_digest};
use florin_work::{EarlierUpdateBlobs, ValuationInputs, WorkError};

use super::{BUYER, COORDINATOR, MarketError, ParticipantAccount, SHOWN, SimulatedMarket};

enum ApplyFailure {
    Refused(Rejection),
    Failed(MarketError),
}

impl From<MarketError> for ApplyFailure {
    fn from(error: MarketError) -> Self {
        Self::Failed(error)
    }
}

impl SimulatedMarket {
    /// Applies an event that the engine must accept.
    pub(super) fn apply(&mut self, event: &Event) -> Result<(), MarketError> {
        let what: String = format!("{event:?}").chars().take(SHOWN).collect();
        self.apply_event(event).map_err(|unheard| match unheard {
            ApplyFailure::Refused(why) => MarketError::Engine { what, why },
            ApplyFailure::Failed(error) => error,
        })
    }

    /// Applies an event that the engine may refuse; returns whether the engine accepted it.
    pub(super) fn try_apply(&mut self, event: &Event) -> Result<bool, MarketError> {
        match self.apply_event(event) {
            Ok(()) => Ok(true),
            Err(ApplyFailure::Refused(_)) => Ok(false),
            Err(ApplyFailure::Failed(error)) => Err(error),
        }
    }

    /// Applies an event and executes the effects that follow from it.
    fn apply_event(&mut self, event: &Event) -> Result<(), ApplyFailure> {
        let applied = self.engine.apply(event, self.now).map_err(ApplyFailure::Refused)?;
        let mut wanted: VecDeque<Effect> = applied.effects.into();
        while let Some(effect) = wanted.pop_front() {
            let Some(answer) = self.execute_effect(effect)? else { continue };
            let applied = self.engine.apply(&answer, self.now).map_err(|why| {
                MarketError::Engine { what: format!("the event that answers {effect:?}"), why }
            })?;
            wanted.extend(applied.effects);
        }
        Ok(())
    }

    fn execute_effect(&mut self, effect: Effect) -> Result<Option<Event>, MarketError> {
        Ok(match effect {
            Effect::DiscloseRows { task, round } => {
                let rows = self.disclosed_rows()?;
                let shown = blob_digest(&rows);
                self.blobs.insert(shown, rows);
                Some(Event::RowsDisclosed { task, round, rows: shown })
            }
            Effect::ValueRound { task, round } => Some(self.value_round(task, round)?),
            Effect::PostSettlement { task, round } => {
                let state = self.engine.state().tasks.get(&task);
                let past = state.and_then(|state| state.reported_round(round));
                let past = past.ok_or(MarketError::Missing("the round's report"))?;
                let settlement = Settlement::from_report(&past.report, past.digest);
                self.post(settlement)?;
                Some(Event::SettlementPosted { task, round })
            }
            Effect::FinalizeSettlement { task, round } => self.queue_settlement(task, round)?,
            // Executed at the end of the task.
            Effect::CloseTask { .. } | Effect::ProveDebits { .. } | Effect::ReturnBond { .. } => {
                None
            }
            // The engine holds the reports until then.
            Effect::ArchiveRound { .. } => None,
        })
    }

    /// Posts a settlement. If too many settlements are in their challenge windows, as in a task
    /// with short rounds, this waits until the first of them is final, as a coordinator does.
    fn post(&mut self, settlement: Settlement) -> Result<(), MarketError> {
        let task = settlement.task;
        while let Some(first) = self.blocking_deadline(task) {
            self.now = self.now.max(first.saturating_add_ms(1));
            if let Some(last) = self.finalise(task)? {
                self.apply(&last)?;
            }
        }
        self.execute("a settlement", COORDINATOR, Action::Post(settlement)).map(drop)
    }

    /// When the first pending settlement becomes final, if the ledger accepts no further settlement
    /// before that.
    fn blocking_deadline(&self, task: TaskId) -> Option<Timestamp> {
        if self.pending_rounds.len() < PENDING_MAX {
            return None;
        }
        self.ledger.task(task)?.pending.first().map(|first| first.final_at)
    }

    /// Queues a settlement until its challenge window ends, and finalises earlier settlements that
    /// are due, so that the number of pending settlements stays small.
    fn queue_settlement(
        &mut self,
        task: TaskId,
        round: RoundNumber,
    ) -> Result<Option<Event>, MarketError> {
        self.pending_rounds.push_back(round);
        self.finalise(task)
    }

    /// Finalises the settlements that are due. Returns the event for the last finalised round.
    fn finalise(&mut self, task: TaskId) -> Result<Option<Event>, MarketError> {
        let due = self.ledger.finalizable_count(task, self.now).unwrap_or(0);
        if due == 0 {
            return Ok(None);
        }
        self.execute("the finalisation of settlements", COORDINATOR, Action::Finalize { task })?;
        let mut last = None;
        for _ in 0..due {
            last = self.pending_rounds.pop_front();
        }
        Ok(last.map(|round| Event::SettlementFinal { task, round }))
    }

    fn disclosed_rows(&self) -> Result<Vec<u8>, MarketError> {
        let task = self.engine.state().tasks.get(&self.id);
        let running = task.and_then(|task| task.running());
        let running = running.ok_or(MarketError::Missing("a round with drawn rows"))?;
        let shown = self.holdout.disclose(&running.drawn_rows);
        Ok(shown.ok_or(MarketError::Missing("a drawn row"))?.to_bytes())
    }

    fn value_round(&mut self, task: TaskId, round: RoundNumber) -> Result<Event, MarketError> {
        let state = self.engine.state().tasks.get(&task).ok_or(MarketError::Missing("the task"))?;
        let running = state.running().ok_or(MarketError::Missing("the round"))?;
        let order = running.work_order.as_ref().ok_or(MarketError::Missing("the order"))?;
        let blob = |digest: &Digest| {
            self.blobs.get(digest).map(Vec::as_slice).ok_or(MarketError::Missing("a blob"))
        };
        let updates = order.entries.iter().map(|entry| blob(&entry.update));
        let updates = updates.collect::<Result<Vec<&[u8]>, _>>()?;
        let previous = order.previous_models.iter().map(blob).collect::<Result<Vec<&[u8]>, _>>()?;
        let last = order.earlier_updates.iter().map(|(_, digest)| blob(digest));
        let last = last.collect::<Result<Vec<&[u8]>, _>>()?;
        let earlier = order.earlier_rows.iter().map(blob).collect::<Result<Vec<&[u8]>, _>>()?;
        let inputs = ValuationInputs {
            spec: &self.spec,
            graph: self.graph.as_ref(),
            base: blob(&order.base_model)?,
            row_indices: &running.drawn_rows,
            disclosed_rows: blob(&order.disclosed_rows)?,
            entries: &order.entries,
            updates: &updates.as_slice(),
            previous_models: &previous.as_slice(),
            earlier_updates: EarlierUpdateBlobs {
                ids: &order.earlier_updates,
                bytes: &last.as_slice(),
            },
            earlier_rows: &earlier.as_slice(),
            scratch_space: &UNLIMITED_MEMORY,
        };
        let valued = self.scorer.value(&inputs, &mut self.worker, self.seed);
        match valued {
            Ok(outcome) => {
                self.blobs.insert(outcome.result.model, outcome.model);
                let result = Box::new(outcome.result);
                Ok(Event::RoundValued {
                    task,
                    round,
                    result,
                    paid: None,
                    wrong_records: Vec::new(),
                })
            }
            Err(WorkError::Valuation(_) | WorkError::Aggregation(_) | WorkError::Loss(_)) => {
                Ok(Event::ValuationFailed { task, round })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Ends the task: all challenge windows end, all final pay and debits are claimed, the task is
    /// closed and bonds are returned.
    ///
    /// # Errors
    /// [`MarketError`].
    pub fn finish_task(&mut self, seats: &[ParticipantAccount]) -> Result<(), MarketError> {
        let task = self.id;
        self.now = self.now.saturating_add_ms(self.spec.budget.challenge_ms.saturating_add(1));
        if let Some(round) = self.pending_rounds.back().copied() {
            self.execute(
                "the finalisation of settlements",
                COORDINATOR,
                Action::Finalize { task },
            )?;
            self.pending_rounds.clear();
            self.apply(&Event::SettlementFinal { task, round })?;
        }
        self.claim_all()?;
        self.now = self.now.max(self.spec.expires).saturating_add_ms(1);
        self.execute("the closing of the task", BUYER, Action::Close { task })?;
        for seat in seats {
            self.execute_if_bonded(seat.account, Action::Unbond { task })?;
        }
        self.now = self.now.saturating_add_ms(self.spec.budget.unbond_ms.saturating_add(1));
        for seat in seats {
            self.execute_if_bonded(seat.account, Action::WithdrawBond { task })?;
        }
        Ok(())
    }

    fn claim_all(&mut self) -> Result<(), MarketError> {
        let task = self.id;
        let state = self.engine.state().tasks.get(&task).ok_or(MarketError::Missing("the task"))?;
        let last =
            state.final_rounds.iter().next_back().and_then(|round| state.reported_round(*round));
        let Some(past) = last else { return Ok(()) };
        let tree = ProofTree::from_report(&past.report).map_err(|why| MarketError::Engine {
            what: "the totals of the report".to_owned(),
            why,
        })?;
        let accounts: Vec<Address> = past.report.account_totals.keys().copied().collect();
        for account in accounts {
            let found = tree.proof(account);
            if found.proof.is_empty() && found.totals == ClaimTotals::default() {
                // No pay and no debit: there is nothing to claim.
                continue;
            }
            let claim = Claim { task, account, totals: found.totals, proof: found.proof };
            match self.try_execute(account, Action::Claim(claim)) {
                Ok(_) | Err(ApplyError::Refused(Refusal::NothingToClaim)) => {}
                Err(why) => return Err(MarketError::Ledger { what: "a claim", why }),
            }
        }
        Ok(())
    }

    /// Withdraws a bond, unless debits used it up.
    fn execute_if_bonded(&mut self, account: Address, action: Action) -> Result<(), MarketError> {
        if self.ledger.bond(self.id, account).amount.is_zero() {
            return Ok(());
        }
        self.execute("the return of a bond", account, action).map(drop)
    }
}
