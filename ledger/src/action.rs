//! The actions that an account can submit to the ledger: one action per write method of the trait.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, Canonical, SettlementId, TaskId};
use serde::{Deserialize, Serialize};

use crate::api::{Claim, MemberShare, Objection, Settlement, Slash, Terms};

/// One write. Each variant corresponds to a method of [`crate::Ledger`], which documents its effect
/// and its refusals.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Action {
    /// [`crate::Ledger::transfer`]
    Transfer {
        /// The recipient.
        to: Address,
        /// The amount to transfer.
        amount: Amount,
    },
    /// [`crate::Ledger::open_task`]
    OpenTask(Terms),
    /// [`crate::Ledger::bond`]
    Bond {
        /// The task.
        task: TaskId,
        /// The amount to add to the bond.
        amount: Amount,
    },
    /// [`crate::Ledger::unbond`]
    Unbond {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::withdraw_bond`]
    WithdrawBond {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::stake`]
    Stake {
        /// The amount to add to the stake.
        amount: Amount,
    },
    /// [`crate::Ledger::pledge`]
    Pledge {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::unstake`]
    Unstake,
    /// [`crate::Ledger::withdraw_stake`]
    WithdrawStake,
    /// [`crate::Ledger::post`]
    Post(Settlement),
    /// [`crate::Ledger::cancel`]
    Cancel {
        /// The task.
        task: TaskId,
        /// The first settlement to cancel.
        payout: SettlementId,
    },
    /// [`crate::Ledger::finalize`]
    Finalize {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::claim`]
    Claim(Claim),
    /// [`crate::Ledger::close`]
    Close {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::slash`]
    Slash(Slash),
    /// [`crate::Ledger::announce_close`]
    AnnounceClose {
        /// The task.
        task: TaskId,
    },
    /// [`crate::Ledger::object`]
    Object(Objection),
    /// [`crate::Ledger::set_split`]
    SetSplit {
        /// The task.
        task: TaskId,
        /// The members with their shares.
        members: Vec<MemberShare>,
    },
}

impl Canonical for Action {
    const DOMAIN: &'static str = "florin v1 action";
}

impl Canonical for Settlement {
    const DOMAIN: &'static str = "florin v1 settlement";
}

impl Action {
    /// The summary that a wallet displays before it signs. It depends on the action alone. The
    /// action's digest, which is signed with it, covers every field that the summary omits.
    ///
    /// The text is part of the signed EIP-712 structure: a change of wording changes every
    /// signature.
    #[must_use]
    pub fn summary(&self) -> String {
        let of = |task: &TaskId| format!("task {}…", task.short());
        match self {
            Self::Transfer { to, amount } => format!("transfer {amount} FLN to {to}"),
            Self::OpenTask(terms) => format!(
                "open {} with {} FLN for data and {} FLN for infrastructure",
                of(&terms.task),
                terms.data,
                terms.infrastructure
            ),
            Self::Bond { task, amount } => format!("bond {amount} FLN in {}", of(task)),
            Self::Unbond { task } => {
                format!("request the return of the bond in {}", of(task))
            }
            Self::WithdrawBond { task } => format!("withdraw the bond from {}", of(task)),
            Self::Stake { amount } => format!("stake {amount} FLN"),
            Self::Pledge { task } => format!("pledge the stake to {}", of(task)),
            Self::Unstake => "request the return of the stake".to_owned(),
            Self::WithdrawStake => "withdraw the stake".to_owned(),
            Self::Post(s) => format!(
                "post the settlement of round {} of {}: {} FLN for data and {} FLN for \
                 infrastructure so far",
                s.round,
                of(&s.task),
                s.data_total,
                s.infrastructure_total
            ),
            Self::Cancel { task, payout } => {
                format!("cancel settlement {}… of {} and all later ones", payout.short(), of(task))
            }
            Self::Finalize { task } => format!("finalise the settlements of {}", of(task)),
            Self::Claim(c) => claim_summary(c),
            Self::Close { task } => format!("close {} and refund the rest", of(task)),
            Self::Slash(s) => format!(
                "slash {} FLN of the {} of {} in {}",
                s.amount,
                if s.stake { "stake" } else { "bond" },
                s.account,
                of(&s.task)
            ),
            Self::AnnounceClose { task } => format!("announce the close of {}", of(task)),
            Self::Object(o) => format!(
                "object to the close of {}: {} has a receipt for an update of round {}",
                of(&o.receipt.task),
                o.receipt.sender,
                o.receipt.round
            ),
            Self::SetSplit { task, members } => split_summary(*task, members),
        }
    }
}

/// The summary of a split: its members and their shares.
fn split_summary(task: TaskId, members: &[MemberShare]) -> String {
    let each = members.iter().map(|each| format!("{} {}", each.member, each.share));
    let members = each.collect::<Vec<_>>().join(", ");
    format!("split all pay from task {}… among {members}", task.short())
}

/// The summary of a claim: a claim both pays an account and debits its bond.
fn claim_summary(claim: &Claim) -> String {
    let Claim { task, account, totals: ClaimTotals { paid, debited }, .. } = claim;
    let task = task.short();
    match (paid.is_zero(), debited.is_zero()) {
        (_, true) => format!("claim {paid} FLN in total for {account} from task {task}…"),
        (true, false) => {
            format!("debit {debited} FLN in total from the bond of {account} in task {task}…")
        }
        (false, false) => format!(
            "claim {paid} FLN in total for {account} from task {task}…, and debit {debited} FLN in \
             total from its bond"
        ),
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::Micro;

    use super::*;

    #[test]
    fn the_summary_of_a_split_names_every_member() {
        let task = TaskId([0xab; 32]);
        let of = |byte: u8, share| MemberShare { member: Address([byte; 20]), share: Micro(share) };
        let members = vec![of(0x11, 250_000), of(0x22, 750_000)];
        let (first, second) = (members[0].member, members[1].member);
        assert_eq!(
            Action::SetSplit { task, members }.summary(),
            format!("split all pay from task abababab… among {first} 0.25, {second} 0.75")
        );
    }

    #[test]
    fn summaries_of_returns_and_claims_state_what_they_move() {
        let task = TaskId([0xab; 32]);
        let account = Address([0x11; 20]);
        let claim = |paid: u128, debited: u128| {
            let (paid, debited) = (Amount::from_units(paid), Amount::from_units(debited));
            let totals = ClaimTotals { paid, debited };
            Action::Claim(Claim { task, account, totals, proof: Vec::new() })
        };
        let fln = 10u128.pow(18);
        let table = [
            (
                Action::Unbond { task },
                "request the return of the bond in task abababab…".to_owned(),
            ),
            (Action::Unstake, "request the return of the stake".to_owned()),
            (claim(7 * fln, 0), format!("claim 7 FLN in total for {account} from task abababab…")),
            (
                claim(0, 2 * fln),
                format!("debit 2 FLN in total from the bond of {account} in task abababab…"),
            ),
            (
                claim(7 * fln, 2 * fln),
                format!(
                    "claim 7 FLN in total for {account} from task abababab…, and debit 2 FLN in \
                     total from its bond"
                ),
            ),
        ];
        for (action, summary) in table {
            assert_eq!(action.summary(), summary);
        }
    }
}
