//! The terms of a task in the reference model, and the errors that they may contain.

/// The roles of a task, and the numbers in its terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The account that posts settlements.
    pub coordinator: usize,
    /// The account that cancels and slashes.
    pub arbiter: usize,
    /// The escrow for data.
    pub data: i128,
    /// The escrow for infrastructure.
    pub infrastructure: i128,
    /// Number of rounds.
    pub rounds: i128,
    /// Maximum pay for scores per nat of improvement.
    pub per_nat_max: i128,
    /// Share of the data that may be paid without improvement, in millionths.
    pub floor_share: i128,
    /// Minimum of a bond.
    pub bond_min: i128,
    /// Maximum debit per final settlement.
    pub debit_max: i128,
    /// Minimum of a stake with a pledge.
    pub stake_min: i128,
    /// Duration of a challenge window.
    pub window: i128,
    /// Duration between a request for a bond or stake and its withdrawal.
    pub delay: i128,
    /// When the task ends without its coordinator.
    pub expires: i128,
}

/// An error in the terms of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The terms are valid.
    Nothing,
    /// The buyer is the arbiter.
    BuyerIsArbiter,
    /// The arbiter is the zero address.
    NoArbiter,
    /// The escrow is below the minimum.
    TooSmall,
    /// There are no rounds.
    NoRounds,
    /// The floor share exceeds one.
    LargeFloor,
    /// There is no challenge window.
    NoWindow,
    /// The challenge window is above the maximum.
    LongWindow,
    /// The delay is above the maximum.
    LongDelay,
    /// The task expires too late.
    LongLife,
    /// The escrow exceeds the supply.
    TooExpensive,
}

impl Rules {
    /// Whether the bond of an account covers pay that is posted and not final.
    #[must_use]
    pub const fn is_cover(&self, who: usize) -> bool {
        who == self.coordinator && self.arbiter != self.coordinator
    }
}
