//! Bugs that are planted to see that they are found. Each changes the simulated process around the market's code, never
//! that code.

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// Some writes of the journal are answered and never done.
    LostJournalWrite,
    /// A settlement whose answer was lost is posted once more under the next round's name.
    DoubleSettlement,
    /// The journal's disk says that it has synced and has not.
    UnsyncedReceipt,
    /// Every payout is rounded up to a millionth of a florin.
    PayoutRounding,
    /// The coordinator's clock stands still at the deadline while updates come in.
    LateUpdateAccepted,
    /// Enrolments are applied and answered, and left out of the journal.
    EnrolmentForgotten,
    /// A receipt is given also for an update that the journal could not take.
    ReceiptWithoutRecord,
    /// The ledger answers before a transaction is durable, and loses the last ones when it restarts.
    LedgerForgets,
    /// A closed task is not paid back to its buyer.
    NeverCloses,
    /// A round leaves the memory, and the blob that it is kept as is never written.
    RoundNotKept,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::LostJournalWrite,
        Self::DoubleSettlement,
        Self::UnsyncedReceipt,
        Self::PayoutRounding,
        Self::LateUpdateAccepted,
        Self::EnrolmentForgotten,
        Self::ReceiptWithoutRecord,
        Self::LedgerForgets,
        Self::NeverCloses,
        Self::RoundNotKept,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LostJournalWrite => "lost_journal_write",
            Self::DoubleSettlement => "double_settlement",
            Self::UnsyncedReceipt => "unsynced_receipt",
            Self::PayoutRounding => "payout_rounding",
            Self::LateUpdateAccepted => "late_update_accepted",
            Self::EnrolmentForgotten => "enrolment_forgotten",
            Self::ReceiptWithoutRecord => "receipt_without_record",
            Self::LedgerForgets => "ledger_forgets",
            Self::NeverCloses => "never_closes",
            Self::RoundNotKept => "round_not_kept",
        }
    }

    /// The rules of the auditor that are there for such a bug. Whatever else notices it would notice it by luck.
    #[must_use]
    pub const fn found_by(self) -> &'static [&'static str] {
        match self {
            Self::LostJournalWrite | Self::EnrolmentForgotten => {
                &["replay of the journal equals live"]
            }
            Self::DoubleSettlement => &["every round completes or refunds"],
            Self::UnsyncedReceipt => &["the journal can be opened"],
            Self::PayoutRounding => &["pay is what the scores come to"],
            Self::LateUpdateAccepted => &["no payout without an accepted update"],
            Self::ReceiptWithoutRecord => &["what was acknowledged survives"],
            Self::LedgerForgets => &["the money equation"],
            Self::NeverCloses => &["every escrow and bond comes back"],
            Self::RoundNotKept => &["every round can be read"],
        }
    }
}

impl std::str::FromStr for Bug {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|bug| bug.name() == name);
        found.ok_or_else(|| {
            let all: Vec<&str> = Self::ALL.iter().map(|bug| bug.name()).collect();
            format!("{name}: no bug has this name; use one of {}", all.join(", "))
        })
    }
}
