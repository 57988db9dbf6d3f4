//! The result of a demonstration: the values behind the table, the JSON and the HTML report.

use std::collections::BTreeMap;

use florin_ledger::TaskState;
use florin_protocol::{Address, Amount, Digest, PayReason, Report, Statement, TaskId};
use serde_json::{Value, json};

use super::ethereum::OnChain;
use super::plan::Behaviour;
use crate::show;

/// Nano-nats per nat.
pub(super) const NANO: f64 = 1e9;

/// The results of one participant.
#[derive(Debug)]
pub(super) struct ParticipantResult {
    pub(super) name: &'static str,
    pub(super) behaviour: Behaviour,
    /// Number of rows of its shard.
    pub(super) rows: u64,
    /// Number of rounds whose report contains its update.
    pub(super) rounds: u32,
    /// Sum of its scores in nano-nats, including excluded updates.
    pub(super) score_nano: i128,
    /// Sum of its weights in nano-nats.
    pub(super) weight: u128,
    /// Amount claimed from the task.
    pub(super) earned: Amount,
    /// Its bond after all debits.
    pub(super) bond: Amount,
    /// Its results per round.
    pub(super) parts: Vec<ParticipantRound>,
    /// The counts of the reasons, and the statement with the most frequent reason.
    pub(super) summary: String,
    pub(super) explanation: String,
}

/// The results of one participant in one round.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ParticipantRound {
    pub(super) score_nano: i64,
    pub(super) error_nano: u64,
    pub(super) payout: Amount,
    pub(super) debit: Amount,
    pub(super) reason: Option<PayReason>,
}

/// The initial and the final model, measured on rows that no party of the market has.
#[derive(Debug, Clone, Copy)]
pub(super) struct ModelResult {
    /// Digest of the initial model.
    pub(super) initial: Digest,
    /// Digest of the final model.
    pub(super) trained: Digest,
    /// Number of test rows.
    pub(super) rows: u32,
    /// Number of rows that the initial model predicts correctly.
    pub(super) correct_before: u32,
    /// Number of rows that the final model predicts correctly.
    pub(super) correct_after: u32,
}

/// All results of a demonstration.
#[derive(Debug)]
pub(super) struct DemoOutcome {
    pub(super) seed: u64,
    pub(super) task: TaskId,
    pub(super) rounds: u32,
    pub(super) reports: Vec<Report>,
    pub(super) earners: Vec<ParticipantResult>,
    /// The provider's paid units, and the amount it claimed.
    pub(super) provider: (u64, Amount),
    pub(super) books: TaskState,
    pub(super) treasury: Amount,
    pub(super) model: ModelResult,
    /// Number of recomputed rounds, and the mismatches.
    pub(super) audit: (u32, Vec<String>),
    /// The results about the Ethereum chain, if there is one.
    pub(super) on_chain: Option<OnChain>,
    pub(super) seconds: f64,
}

/// The terms of the balance equation of the task's escrow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Money {
    pub(super) deposited: Amount,
    pub(super) data_paid: Amount,
    pub(super) infrastructure_paid: Amount,
    pub(super) refunded: Amount,
    pub(super) locked: Amount,
}

impl ParticipantResult {
    /// Collects the results of one participant from the reports.
    pub(super) fn from_reports(
        (name, behaviour): (&'static str, Behaviour),
        account: Address,
        rows: u64,
        earned: Amount,
        reports: &[Report],
    ) -> anyhow::Result<Self> {
        let parts: Vec<ParticipantRound> =
            reports.iter().map(|report| participant_round(report, account)).collect();
        let mut debited = Amount::ZERO;
        for part in &parts {
            debited = debited.plus(part.debit)?;
        }
        let weights = reports.iter().filter_map(|report| report.line(account)).map(|l| l.increment);
        let (summary, why) = summarise_reasons(account, reports);
        Ok(Self {
            name,
            behaviour,
            rows,
            rounds: u32::try_from(parts.iter().filter(|p| p.reason.is_some()).count())?,
            score_nano: parts.iter().map(|part| i128::from(part.score_nano)).sum(),
            weight: weights.sum(),
            earned,
            bond: first_bond(account, reports).minus(debited)?,
            parts,
            summary,
            explanation: why,
        })
    }
}

/// An account's bond in its first round, before any debit.
fn first_bond(account: Address, reports: &[Report]) -> Amount {
    let entries = reports.iter().flat_map(|report| &report.entries);
    entries.into_iter().find(|entry| entry.sender == account).map_or(Amount::ZERO, |e| e.bond)
}

fn participant_round(report: &Report, account: Address) -> ParticipantRound {
    let (score_nano, error_nano) =
        report.score(account).map_or((0, 0), |score| (score.score_nano, score.error_nano));
    let line = report.line(account);
    ParticipantRound {
        score_nano,
        error_nano,
        payout: line.map_or(Amount::ZERO, |line| line.payout),
        debit: line.map_or(Amount::ZERO, |line| line.debit),
        reason: line.map(|line| line.reason),
    }
}

/// The count of each reason, and the last statement with the most frequent reason.
fn summarise_reasons(account: Address, reports: &[Report]) -> (String, String) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let reasons: Vec<Option<PayReason>> =
        reports.iter().map(|report| report.line(account).map(|line| line.reason)).collect();
    for reason in reasons.iter().flatten() {
        *counts.entry(show::reason(*reason)).or_default() += 1;
    }
    let mut ordered: Vec<(&str, usize)> = counts.into_iter().collect();
    ordered.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let summary: Vec<String> =
        ordered.iter().map(|(reason, count)| format!("{reason} {count}×")).collect();
    let most = ordered.first().map(|(reason, _)| *reason);
    let why = reports
        .iter()
        .zip(&reasons)
        .rev()
        .find(|(_, reason)| reason.map(show::reason) == most)
        .and_then(|(report, _)| Statement::from_report(report, account))
        .map_or(String::new(), |statement| {
            format!("Round {}: {}", statement.round, statement.explanation)
        });
    (summary.join(", "), why)
}

impl DemoOutcome {
    /// The terms of the balance equation.
    pub(super) fn money(&self) -> anyhow::Result<Money> {
        let books = &self.books;
        Ok(Money {
            deposited: books.terms.data.plus(books.terms.infrastructure)?,
            data_paid: books.data_paid,
            infrastructure_paid: books.infrastructure_paid,
            refunded: books.refunded,
            locked: books.data_locked.plus(books.infrastructure_locked)?,
        })
    }

    /// Whether `deposited = data paid + infrastructure paid + refunded + locked`, exactly.
    pub(super) fn balances(&self) -> anyhow::Result<bool> {
        let m = self.money()?;
        let parts = [m.data_paid, m.infrastructure_paid, m.refunded, m.locked];
        Ok(Amount::total(parts)? == m.deposited)
    }

    /// Accuracy on the test rows before and after, from 0 to 1.
    pub(super) fn accuracy(&self) -> (f64, f64) {
        let of = |correct: u32| f64::from(correct) / f64::from(self.model.rows.max(1));
        (of(self.model.correct_before), of(self.model.correct_after))
    }

    /// The buyer's cost of one percentage point of accuracy on the test rows: all payments, for data
    /// and for infrastructure, divided by the gain, rounded down to a base unit. `None` if the
    /// accuracy did not rise.
    pub(super) fn price_per_point(&self) -> anyhow::Result<Option<Amount>> {
        let ModelResult { rows, correct_before, correct_after, .. } = self.model;
        let paid = self.books.data_paid.plus(self.books.infrastructure_paid)?;
        let gain = u128::from(correct_after.saturating_sub(correct_before));
        match gain {
            0 => Ok(None),
            // gain / rows · 100 percentage points.
            gain => Ok(Some(paid.mul_div_down(u128::from(rows), 100 * gain)?)),
        }
    }

    /// The title of the last section; it must be correct for every seed.
    pub(super) fn dishonest_title(&self) -> &'static str {
        let earned = |earner: &ParticipantResult| {
            earner.behaviour != Behaviour::Honest && !earner.earned.is_zero()
        };
        if self.earners.iter().any(earned) {
            "Results of the dishonest participants"
        } else {
            "Why three participants earned nothing"
        }
    }

    /// The result as JSON: amounts as integer strings of base units, scores in nats, weights in
    /// nano-nats.
    pub(super) fn to_json(&self) -> anyhow::Result<Value> {
        let money = self.money()?;
        let (before, after) = self.accuracy();
        let participants: Vec<Value> = self
            .earners
            .iter()
            .map(|earner| {
                json!({
                    "name": earner.name,
                    "behaviour": earner.behaviour.experiment().unwrap_or("honest"),
                    "rows": earner.rows,
                    "rounds": earner.rounds,
                    "score": nats(earner.score_nano),
                    "weight": earner.weight.to_string(),
                    "earned": show::units(earner.earned),
                    "bond": show::units(earner.bond),
                })
            })
            .collect();
        Ok(json!({
            "accuracy": { "before": before, "after": after },
            "participants": participants,
            "provider": { "units": self.provider.0, "earned": show::units(self.provider.1) },
            "money": {
                "deposited": show::units(money.deposited),
                "data_paid": show::units(money.data_paid),
                "infrastructure_paid": show::units(money.infrastructure_paid),
                "refunded": show::units(money.refunded),
                "locked": show::units(money.locked),
            },
            "ethereum": self.on_chain.as_ref().map(OnChain::to_json),
            "audit": { "rounds": self.audit.0, "differences": self.audit.1.len() },
            "seconds": (self.seconds * 10.0).round() / 10.0,
        }))
    }
}

/// Converts nano-nats to nats.
#[expect(
    clippy::cast_precision_loss,
    reason = "for output and plots; reports have the exact integer"
)]
pub(super) fn nats(nano: i128) -> f64 {
    nano as f64 / NANO
}

/// A number of nats with four decimals; 0 has no sign.
pub(super) fn nats_text(nano: i128) -> String {
    let text = format!("{:.4}", nats(nano));
    if text == "-0.0000" { "0.0000".to_owned() } else { text }
}
