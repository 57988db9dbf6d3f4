//! The terms of a task: the part of its specification that the ledger enforces, and the limits of
//! its settlements.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Micro, NANO_PER_NAT, RoundNumber, TaskId, TaskSpec, Timestamp,
};
use serde::{Deserialize, Serialize};

/// The part of a task's specification that the ledger enforces.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Terms {
    /// The task's id.
    pub task: TaskId,
    /// The account that opens and funds the task and receives the refund.
    pub buyer: Address,
    /// The account that posts settlements.
    pub coordinator: Address,
    /// The account that may cancel a settlement within its challenge window, and slash.
    pub arbiter: Address,
    /// Amount locked for data.
    pub data: Amount,
    /// Amount locked for infrastructure services.
    pub infrastructure: Amount,
    /// Number of rounds; see [`Terms::spendable_after`].
    pub rounds: u32,
    /// The most that is paid for scores per nat of improvement; see [`Terms::score_pay_max`].
    pub per_nat_max: Amount,
    /// Share of the data pool that may be paid without improvement; see [`Terms::floor_max`].
    pub floor_share: Micro,
    /// Smallest bond.
    pub bond_min: Amount,
    /// The most that one round may debit from one bond; with `n` final settlements at most `n` times
    /// as much in total.
    pub debit_max: Amount,
    /// Smallest stake of a provider that serves the task, and the most that this task may slash
    /// from it.
    pub stake_min: Amount,
    /// Challenge window: how long a settlement can be cancelled, in milliseconds.
    pub challenge_ms: u64,
    /// How long a bond stays at risk after its owner has requested its return, in milliseconds.
    pub unbond_ms: u64,
    /// After this moment any account may close the task.
    pub expires: Timestamp,
}

impl Terms {
    /// The terms of a task, taken from its specification.
    #[must_use]
    pub fn from_spec(spec: &TaskSpec) -> Self {
        Self {
            task: spec.id(),
            buyer: spec.buyer,
            coordinator: spec.coordinator,
            arbiter: spec.arbiter,
            data: spec.budget.data,
            infrastructure: spec.budget.infrastructure,
            rounds: spec.rounds.count,
            per_nat_max: spec.budget.per_nat_max,
            floor_share: spec.budget.floor_share,
            bond_min: spec.budget.bond_min,
            debit_max: spec.budget.debit_max,
            stake_min: spec.budget.stake_min,
            challenge_ms: spec.budget.challenge_ms,
            unbond_ms: spec.budget.unbond_ms,
            expires: spec.expires,
        }
    }

    /// Whether the bond of an account covers pay: it is the coordinator's, and another account, the
    /// arbiter, can slash it.
    #[must_use]
    pub fn bond_covers_pay(&self, account: Address) -> bool {
        account == self.coordinator && self.arbiter != self.coordinator
    }

    /// The most that may be paid from a pool of this task up to a round: `⌊pool · round / rounds⌋`,
    /// and the whole pool from the last round on.
    #[must_use]
    pub fn spendable_after(&self, round: RoundNumber, pool: Amount) -> Amount {
        let (rounds, round) = (self.rounds.max(1), round.0.min(self.rounds));
        pool.mul_div_down(round.into(), rounds.into()).unwrap_or(pool)
    }

    /// The most that may be paid for scores with this improvement of the model in nano-nats:
    /// `⌊per_nat_max · improvement / 10⁹⌋`. A result beyond the range of an amount is no limit.
    #[must_use]
    pub fn score_pay_max(&self, improvement_nano: u64) -> Amount {
        let paid = self.per_nat_max.mul_div_down(improvement_nano.into(), NANO_PER_NAT);
        paid.unwrap_or(Amount::from_units(u128::MAX))
    }

    /// The most that may be paid for data without improvement up to a round:
    /// `⌊data · floor_share · round / rounds⌋`.
    #[must_use]
    pub fn floor_max(&self, round: RoundNumber) -> Amount {
        let (share, round) = (self.floor_share.min(Micro::ONE), round.0.min(self.rounds));
        let parts = u128::from(Micro::ONE.0).saturating_mul(self.rounds.max(1).into());
        let share = u128::from(share.0).saturating_mul(round.into());
        self.data.mul_div_down(share, parts).unwrap_or(self.data)
    }
}
