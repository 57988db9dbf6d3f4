//! The history of a lease: its verified record, folded, with the reason of each payment and each loss.

use std::collections::BTreeSet;

use florin_compute::{
    Bid, ComputeAccount, ComputeAction, Lease, LeaseError, LeaseOpening, LeaseOutcome, LeaseRecord,
    ObservedLease, Phase, RecordedAction, RecordedLease,
};
use florin_protocol::{Address, Amount, Timestamp};

use super::reasons::{gain_reason, listed, loss_reason};
use crate::show;

/// A payment from the escrow to an account, or a deposit that it lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseTransfer {
    /// When it was decided.
    pub(crate) at: Timestamp,
    /// The account.
    pub(crate) account: Address,
    /// The amount.
    pub(crate) amount: Amount,
    /// Whether the account lost it.
    pub(crate) is_loss: bool,
    /// Why, as a clause.
    pub(crate) reason: String,
}

/// The effect of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseNews {
    /// When the action was accepted.
    pub(crate) at: Timestamp,
    /// The account that acted; `None` for the coordinator.
    pub(crate) by: Option<Address>,
    /// The action, in a few words.
    pub(crate) action: String,
    /// The phase after it, if it is another one than before.
    pub(crate) phase: Option<(Phase, Timestamp)>,
    /// Payments and losses.
    pub(crate) transfers: Vec<LeaseTransfer>,
    /// How the lease ended, if it did.
    pub(crate) outcome: Option<LeaseOutcome>,
}

/// The record of a lease, folded.
#[derive(Debug, Clone)]
pub(crate) struct LeaseHistory {
    observed: ObservedLease,
    /// All accounts of the order.
    accounts: BTreeSet<Address>,
    auditors: BTreeSet<Address>,
    /// Ends that auditors sealed and opened, by segment.
    pub(super) sealed: BTreeSet<(u32, Address)>,
    pub(super) opened: BTreeSet<(u32, Address)>,
    transfers: Vec<LeaseTransfer>,
}

impl LeaseHistory {
    /// The history before the first action.
    ///
    /// # Errors
    /// [`LeaseError`] for an invalid order.
    pub(crate) fn open(opening: LeaseOpening) -> Result<Self, LeaseError> {
        let accounts = [opening.order.renter, opening.order.referee].into();
        Ok(Self {
            observed: ObservedLease::open(opening)?,
            accounts,
            auditors: BTreeSet::new(),
            sealed: BTreeSet::new(),
            opened: BTreeSet::new(),
            transfers: Vec::new(),
        })
    }

    /// Adds the next record, whose signature and rules are checked, or changes nothing.
    ///
    /// # Errors
    /// [`LeaseError`].
    pub(crate) fn push(&mut self, record: &LeaseRecord) -> Result<LeaseNews, LeaseError> {
        let before = self.lease().clone();
        self.observed.push(record)?;
        let after = self.lease().clone();
        let by = match &record.action {
            RecordedAction::Signed(signed) => Some(signed.body.by),
            RecordedAction::Beacon(_)
            | RecordedAction::Expired
            | RecordedAction::Resumed
            | RecordedAction::Checkpoints(_) => None,
        };
        if let RecordedAction::Signed(signed) = &record.action {
            self.note(signed.body.by, &signed.body.action);
        }
        let transfers = self.moved(&before, record, &after)?;
        self.transfers.extend(transfers.iter().cloned());
        let phase = Some(after.phase()).filter(|(phase, _)| *phase != before.phase().0);
        let action = action_text(record, &before, &after);
        Ok(LeaseNews { at: record.at, by, action, phase, transfers, outcome: after.outcome() })
    }

    fn note(&mut self, by: Address, action: &ComputeAction) {
        self.accounts.insert(by);
        match action {
            ComputeAction::JoinAudit => drop(self.auditors.insert(by)),
            ComputeAction::SealEnd { segment, .. } => drop(self.sealed.insert((*segment, by))),
            ComputeAction::OpenEnd { segment, .. } => drop(self.opened.insert((*segment, by))),
            _ => {}
        }
    }

    /// The payments and losses between two states.
    fn moved(
        &self,
        before: &Lease,
        record: &LeaseRecord,
        after: &Lease,
    ) -> Result<Vec<LeaseTransfer>, LeaseError> {
        let mut moved = Vec::new();
        for &account in &self.accounts {
            let grown =
                |of: ComputeAccount| after.books().balance(of).minus(before.books().balance(of));
            let (paid, lost) =
                (grown(ComputeAccount::Owed(account))?, grown(ComputeAccount::Forfeited(account))?);
            let at = record.at;
            if !lost.is_zero() {
                let reason = loss_reason(self, before, after, account);
                moved.push(LeaseTransfer { at, account, amount: lost, is_loss: true, reason });
            }
            if !paid.is_zero() {
                let reason = gain_reason(before, after, account, paid);
                moved.push(LeaseTransfer { at, account, amount: paid, is_loss: false, reason });
            }
        }
        Ok(moved)
    }

    /// The lease.
    pub(crate) const fn lease(&self) -> &Lease {
        self.observed.lease()
    }

    /// The folded record.
    pub(crate) const fn recorded(&self) -> &RecordedLease {
        self.observed.recorded()
    }

    /// The lease with its bids and its award.
    pub(crate) const fn observed(&self) -> &ObservedLease {
        &self.observed
    }

    /// All accounts of the order.
    pub(crate) const fn accounts(&self) -> &BTreeSet<Address> {
        &self.accounts
    }

    /// The opened bid of an account.
    pub(crate) fn bid(&self, account: Address) -> Option<&Bid> {
        self.observed.bid(account)
    }

    /// Accounts that sealed a bid.
    pub(crate) const fn bidders(&self) -> &BTreeSet<Address> {
        self.observed.bidders()
    }

    /// How the lease ended, in a few words, with the reason if it was not awarded; `None` while it runs.
    pub(crate) fn ended(&self) -> Option<String> {
        let order = self.lease().order();
        // The lease has no auditors once it is over.
        let (found, wanted) = (self.auditors.len(), order.audit.auditors);
        let has_auditors = u32::try_from(found).is_ok_and(|found| found >= wanted);
        Some(match self.lease().outcome()? {
            LeaseOutcome::Unawarded if has_auditors => "not awarded: no provider".to_owned(),
            LeaseOutcome::Unawarded => format!("not awarded: {found} of {wanted} auditors"),
            outcome => outcome_text(outcome, order.segments),
        })
    }

    /// Accounts that joined as auditors.
    pub(crate) const fn auditors(&self) -> &BTreeSet<Address> {
        &self.auditors
    }

    /// Payments and losses, in their order.
    pub(crate) fn transfers(&self) -> &[LeaseTransfer] {
        &self.transfers
    }
}

/// An action, in a few words.
fn action_text(record: &LeaseRecord, before: &Lease, after: &Lease) -> String {
    let signed = match &record.action {
        RecordedAction::Signed(signed) => &signed.body.action,
        RecordedAction::Beacon(_) => {
            let drawn = after.audited().map(|(segment, _)| segment);
            return format!("the audits are drawn: {}", listed(drawn));
        }
        RecordedAction::Expired => {
            return format!("the deadline of the phase {} passed", before.phase().0.name());
        }
        RecordedAction::Checkpoints(_) => {
            let phase = before.phase().0;
            let done = match (phase, before.dispute()) {
                (Phase::Serving, _) => "the coordinator serves the starts".to_owned(),
                (Phase::Disputing, Some(dispute)) => {
                    format!("the referee rules on the rest of segment {}", dispute.segment)
                }
                _ => "the coordinator opens the leaves".to_owned(),
            };
            return format!(
                "the deadline of the phase {} passed: {done}, by the checkpoints that the provider left",
                phase.name()
            );
        }
        RecordedAction::Resumed => {
            let (phase, deadline) = after.phase();
            let until = show::date(deadline);
            return format!("the coordinator started again: {} until {until}", phase.name());
        }
    };
    let order = after.order();
    match signed {
        ComputeAction::OpenBid { bid, .. } => {
            let price = bid
                .price(order)
                .map_or("too much".to_owned(), |price| format!("{} FLN", show::fln(price)));
            let devices = if bid.devices == 1 { "device" } else { "devices" };
            format!("opens its bid: {price} for the order on {} {devices}", bid.devices)
        }
        ComputeAction::SealBid(_) => "seals a bid".to_owned(),
        ComputeAction::JoinAudit => "joins as an auditor".to_owned(),
        ComputeAction::Fund => {
            format!("deposits its stake, {} FLN", show::fln(order.deposits.stake))
        }
        ComputeAction::Deliver { segment, .. } => {
            let count = u64::from(*segment) + 1;
            format!("delivers segment {segment}: {count} of {}", order.segments)
        }
        ComputeAction::Serve { segment, .. } => format!("serves the start of segment {segment}"),
        ComputeAction::SealEnd { segment, .. } => format!("seals its end of segment {segment}"),
        ComputeAction::OpenLeaf { segment, .. } => format!("opens the leaf of segment {segment}"),
        ComputeAction::OpenEnd { segment, .. } => format!("opens its end of segment {segment}"),
        ComputeAction::Answer(_) => "answers in the dispute".to_owned(),
        ComputeAction::Rule(_) => "rules on the disputed step".to_owned(),
        other => other.name().to_owned(),
    }
}

/// How a lease ended, in a few words.
pub(crate) fn outcome_text(outcome: LeaseOutcome, segments: u32) -> String {
    match outcome {
        LeaseOutcome::Unawarded => "not awarded: no provider, or too few auditors".to_owned(),
        LeaseOutcome::Settled => "all segments delivered".to_owned(),
        LeaseOutcome::Defaulted { delivered } => {
            format!("stopped after {delivered} of {segments} segments")
        }
        LeaseOutcome::Slashed { segment } => format!("stake lost over segment {segment}"),
    }
}
