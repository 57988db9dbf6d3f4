//! Planted bugs, which test that the auditor detects bugs. Each changes the simulated process
//! around the production code, never that code.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Some journal writes are acknowledged but never executed.
    LostJournalWrite,
    /// A settlement whose response was lost is posted again as the next round's settlement.
    DoubleSettlement,
    /// The journal's disk acknowledges syncs that it does not execute.
    UnsyncedReceipt,
    /// Every payout is rounded up to a millionth of a florin.
    PayoutRounding,
    /// The coordinator's clock stops at the deadline while updates arrive.
    LateUpdateAccepted,
    /// Enrolments are applied and acknowledged, but not written to the journal.
    EnrolmentNotJournaled,
    /// A receipt is issued even if the journal write of the update failed.
    ReceiptWithoutRecord,
    /// The ledger responds before a transaction is durable, and loses the last ones on a restart.
    LedgerLosesTransactions,
    /// The coordinator never closes a finished task, so the buyer gets no refund.
    TaskNeverClosed,
    /// A round is removed from memory, but its archive blob is never written.
    RoundNotArchived,
    /// The ledger returns a bond before its delay and its last challenge windows are over.
    BondReturnedEarly,
}

impl Bug {
    /// All planted bugs.
    pub const ALL: [Self; 11] = [
        Self::LostJournalWrite,
        Self::DoubleSettlement,
        Self::UnsyncedReceipt,
        Self::PayoutRounding,
        Self::LateUpdateAccepted,
        Self::EnrolmentNotJournaled,
        Self::ReceiptWithoutRecord,
        Self::LedgerLosesTransactions,
        Self::TaskNeverClosed,
        Self::RoundNotArchived,
        Self::BondReturnedEarly,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostJournalWrite => "lost_journal_write",
            Self::DoubleSettlement => "double_settlement",
            Self::UnsyncedReceipt => "unsynced_receipt",
            Self::PayoutRounding => "payout_rounding",
            Self::LateUpdateAccepted => "late_update_accepted",
            Self::EnrolmentNotJournaled => "enrolment_not_journaled",
            Self::ReceiptWithoutRecord => "receipt_without_record",
            Self::LedgerLosesTransactions => "ledger_loses_transactions",
            Self::TaskNeverClosed => "task_never_closed",
            Self::RoundNotArchived => "round_not_archived",
            Self::BondReturnedEarly => "bond_returned_early",
        }
    }

    /// The auditor's rules that are meant to detect the bug. Detection by any other rule would be a
    /// coincidence.
    #[must_use]
    pub const fn detecting_rules(self) -> &'static [&'static str] {
        match self {
            Self::LostJournalWrite | Self::EnrolmentNotJournaled => {
                &["replay of the journal equals the live state"]
            }
            Self::DoubleSettlement => &["every round completes or is refunded"],
            Self::UnsyncedReceipt => &["the journal can be opened"],
            Self::PayoutRounding => &["pay follows from the scores"],
            Self::LateUpdateAccepted => &["no payout without an accepted update"],
            Self::ReceiptWithoutRecord => &["acknowledged messages survive a crash"],
            Self::LedgerLosesTransactions => &["money is conserved"],
            Self::TaskNeverClosed => &["every escrow and bond is returned"],
            Self::RoundNotArchived => &["every round can be read"],
            Self::BondReturnedEarly => &["every transfer follows the rules"],
        }
    }
}

impl std::str::FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|bug| bug.name() == name);
        found.ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|bug| bug.name()).collect();
            format!("{name}: unknown bug; use one of {}", all.join(", "))
        })
    }
}
