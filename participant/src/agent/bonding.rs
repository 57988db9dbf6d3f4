//! The bond: the quote and the consent before the first deposit, and top-ups after debits.
//!
//! The limit on the bond ([`ParticipantConfig::bond_max`](super::ParticipantConfig)) holds for all
//! deposits of a task together, so it is also the most that debits and slashes can take. Without a
//! limit, all deposits together are at most the bond that the rows require.

use florin_ledger::{LedgerError, Refusal};
use florin_protocol::{Amount, RoundNumber, TaskPhase, TaskView};

use super::joining::{BondBalance, required_bond, top_up_bond};
use super::quote::ParticipationQuote;
use super::{Agent, AgentError};
use crate::arbiter::describe_unaccepted;
use crate::client::ClientError;
use crate::event::ParticipantEvent;

/// The bonds that a participant wants, from its rows, its limit and the debits of its statements.
#[derive(Clone, Copy, Debug)]
struct BondRule {
    /// The bond for all rows.
    required: Amount,
    /// The task's minimum.
    least: Amount,
    /// The most to deposit in total.
    limit: Amount,
    /// All debits so far, also those that the ledger has not applied yet.
    debits: Amount,
}

impl BondRule {
    /// Debits that the ledger has not applied yet.
    fn pending(&self, applied: Amount) -> Amount {
        self.debits.minus(applied).unwrap_or(Amount::ZERO)
    }

    /// The bond to reach on the ledger, so that `at_risk` remains after all debits, as far as the
    /// limit allows. Debits that the ledger has applied count against the limit.
    fn target(&self, at_risk: Amount, applied: Amount) -> Amount {
        let most = self.limit.minus(applied).unwrap_or(Amount::ZERO);
        at_risk.plus(self.pending(applied)).unwrap_or(most).min(most)
    }

    /// Whether the limit allows a bond of at least the minimum; a smaller one is of no use.
    fn allows_the_minimum(&self) -> bool {
        self.limit.minus(self.debits).is_ok_and(|most| most >= self.least)
    }
}

impl Agent<'_, '_> {
    /// Emits the quote. Before the first deposit, checks it against the participant's policy and
    /// asks for consent.
    fn quote(&mut self) -> Result<(), AgentError> {
        let (ledger, task, me) = (self.context.ledger, self.config.task, self.me);
        let rows = self.bonded_rows();
        let (last, limit) = (self.last_report.as_ref(), self.config.bond_max);
        let arbiters = &self.config.arbiters;
        let quote = ParticipationQuote::new(&self.spec, last, rows, limit, arbiters)
            .map_err(|error| AgentError::InvalidTask { task, why: error.to_string() })?;
        let is_bonded = !self.with_ledger(|| ledger.bond_of(task, me))?.amount.is_zero();
        if !is_bonded {
            self.quote_training()?;
        }
        self.emit(&ParticipantEvent::Quoted { quote: quote.clone() });
        if is_bonded {
            return Ok(());
        }
        if !quote.is_arbiter_accepted && !self.config.asks_for_arbiter {
            let why = describe_unaccepted(&self.spec);
            return Err(AgentError::ArbiterNotAccepted { task, why });
        }
        let offered = quote.floor_share;
        if let Some(least) = self.config.pay_min.filter(|least| offered < *least) {
            return Err(AgentError::PayTooLow { task, offered, least });
        }
        if (self.context.consent)(&quote) { Ok(()) } else { Err(AgentError::Declined { task }) }
    }

    /// Bonds what all rows require, or as much as the limit allows, less the existing bond.
    pub(super) fn bond(&mut self) -> Result<(), AgentError> {
        self.quote()?;
        let (wallet, ledger, task) = (self.context.wallet, self.context.ledger, self.config.task);
        let me = self.me;
        let before = self.with_ledger(|| ledger.bond_of(task, me))?;
        if before.amount.is_zero() {
            let rule = self.bond_rule()?;
            if !rule.allows_the_minimum() {
                let limit = rule.limit.minus(rule.debits).unwrap_or(Amount::ZERO);
                return Err(AgentError::BondLimit { limit, least: rule.least });
            }
            let wanted = |applied| rule.target(rule.required, applied);
            // Each attempt reads the bond again: an attempt whose response was lost may have bonded.
            let (added, bond) = self.with_ledger(|| top_up_bond(ledger, wallet, task, wanted))?;
            self.record_bond(added, bond)?;
        } else {
            self.raise_bond()?;
        }
        let rows = self.bonded_rows();
        let bond = self.with_ledger(|| ledger.bond_of(task, me))?.amount;
        let covered = self.spec.rows_counted(rows, bond);
        let is_explained = self.small_bond.is_some();
        if bond == before.amount || covered < rows && !is_explained {
            self.emit(&ParticipantEvent::BondCoverage { bond, covered, rows });
        }
        Ok(())
    }

    fn record_bond(&mut self, added: Amount, bond: Amount) -> Result<(), AgentError> {
        self.store.bond_record().deposited(added, bond)?;
        self.emit(&ParticipantEvent::Bonded { added, bond });
        Ok(())
    }

    pub(super) fn record_returned_bond(&mut self, amount: Amount) -> Result<(), AgentError> {
        self.store.bond_record().returned(amount)?;
        self.emit(&ParticipantEvent::BondReturned { amount });
        Ok(())
    }

    /// The rule, with a limit that is lower by what an arbiter has slashed.
    fn bond_rule(&mut self) -> Result<BondRule, AgentError> {
        let overflow = |why| AgentError::InvalidTask { task: self.config.task, why };
        let debits = Amount::total(self.statements.iter().map(|statement| statement.debit))
            .map_err(|error| overflow(error.to_string()))?;
        let required = required_bond(&self.spec, self.bonded_rows(), None);
        let (ledger, task, me) = (self.context.ledger, self.config.task, self.me);
        let BondBalance { bond, applied } =
            self.with_ledger(|| BondBalance::read(ledger, task, me))?;
        let present = bond.amount.plus(applied).unwrap_or(bond.amount);
        let lost = self.store.bond_record().lost(present)?;
        let limit = self.config.bond_max.unwrap_or(required).minus(lost).unwrap_or(Amount::ZERO);
        Ok(BondRule { required, least: self.spec.budget.bond_min, limit, debits })
    }

    /// After the report of a round: raises a bond that a debit made too small, as far as the limit
    /// allows, and enrols with it.
    pub(super) fn restore_bond(
        &mut self,
        view: &TaskView,
        round: RoundNumber,
    ) -> Result<(), AgentError> {
        let is_latest = round.0 == view.reported && self.reported_at_enrolment.is_some();
        let is_over = matches!(view.phase, TaskPhase::Closing | TaskPhase::Done)
            || round.0 >= self.spec.rounds.count;
        let debited = self.statements.iter().any(|statement| !statement.debit.is_zero());
        if !is_latest || is_over || !debited {
            return Ok(());
        }
        if self.raise_bond()?.is_zero() {
            return Ok(());
        }
        match self.enrol_after_bonding() {
            Ok(()) => self.reported_at_enrolment = Some(view.reported),
            Err(AgentError::Client(ClientError::Rejected(rejection))) => {
                self.emit(&ParticipantEvent::NotEnrolled { task: self.config.task, rejection });
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Raises the bond to cover all rows, or else to the minimum. Returns the amount added. If the
    /// bond stays below what the rows require, emits the reason once.
    fn raise_bond(&mut self) -> Result<Amount, AgentError> {
        let (wallet, ledger, task) = (self.context.wallet, self.context.ledger, self.config.task);
        let rule = self.bond_rule()?;
        let mut added = Amount::ZERO;
        let mut has_funds = true;
        let steps = [rule.required, rule.least];
        for at_risk in steps.into_iter().filter(|_| rule.allows_the_minimum()) {
            let wanted = |applied| rule.target(at_risk, applied);
            match self.with_ledger(|| top_up_bond(ledger, wallet, task, wanted)) {
                Ok((more, bond)) => {
                    if !more.is_zero() {
                        self.record_bond(more, bond)?;
                    }
                    added = more;
                    break;
                }
                Err(LedgerError::Refused(Refusal::Insufficient { .. })) => has_funds = false,
                // The task has ended since the view was fetched.
                Err(LedgerError::Refused(Refusal::TaskClosed(_))) => return Ok(Amount::ZERO),
                Err(error) => return Err(error.into()),
            }
        }
        self.explain_small_bond(rule, has_funds)?;
        Ok(added)
    }

    /// Emits once why the bond is smaller than the rows require.
    fn explain_small_bond(&mut self, rule: BondRule, has_funds: bool) -> Result<(), AgentError> {
        let (ledger, task, me) = (self.context.ledger, self.config.task, self.me);
        let BondBalance { bond, applied } =
            self.with_ledger(|| BondBalance::read(ledger, task, me))?;
        let at_risk = bond.amount.minus(rule.pending(applied)).unwrap_or(Amount::ZERO);
        let rows = self.bonded_rows();
        let least = rule.least;
        let covered = match at_risk < least {
            true => 0,
            false => self.spec.rows_counted(rows, at_risk),
        };
        if covered == rows {
            self.small_bond = None;
            return Ok(());
        }
        let reason = (has_funds, covered);
        if self.small_bond != Some(reason) {
            self.small_bond = Some(reason);
            self.emit(&ParticipantEvent::BondNotRestored {
                bond: at_risk,
                covered,
                rows,
                least,
                has_funds,
            });
        }
        Ok(())
    }
}
