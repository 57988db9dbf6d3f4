//! Operations that can be executed on a ledger and on the model.

use florin_ledger::{ClaimOutcome, Ledger, LedgerError, PostOutcome, Refusal, Slash};
use florin_protocol::Digest;

use super::accounts::{TestAccounts, in_units, payout, task_id, units};
use super::model::{
    AllTotals, Flaw, LedgerModel, ModelResult, Pending, Rules, SplitFlaw, SplitModel,
};

/// Added to the result of a claim whose account has a split.
const OF_A_SILO: i128 = 1_000_000_000;

/// An operation with its sender.
#[derive(Clone, Debug)]
pub struct Operation {
    pub from: usize,
    pub act: Act,
}

/// One write of the trait, in the model's units.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "a test has few operations at a time")]
pub enum Act {
    Transfer {
        to: usize,
        amount: i128,
    },
    OpenTask {
        t: usize,
        rules: Rules,
        flaw: Flaw,
    },
    Bond {
        t: usize,
        amount: i128,
    },
    Unbond {
        t: usize,
    },
    WithdrawBond {
        t: usize,
    },
    Stake {
        amount: i128,
    },
    Pledge {
        t: usize,
    },
    Unstake,
    WithdrawStake,
    Post {
        t: usize,
        new: Pending,
    },
    Cancel {
        t: usize,
        round: i128,
    },
    Finalize {
        t: usize,
    },
    Claim {
        t: usize,
        who: usize,
        totals: (i128, i128),
        tree: AllTotals,
    },
    Close {
        t: usize,
    },
    AnnounceClose {
        t: usize,
    },
    /// With a receipt that `signer` signed.
    Object {
        t: usize,
        round: i128,
        signer: usize,
    },
    Slash {
        t: usize,
        who: usize,
        stake: bool,
        amount: i128,
    },
    SetSplit {
        t: usize,
        members: SplitModel,
        flaw: SplitFlaw,
    },
}

/// The result of an operation on a ledger.
pub type LedgerResult = Result<i128, Refusal>;

/// The part of a result that the model knows: the number or the refusal's code.
pub fn code_result(answer: &LedgerResult) -> ModelResult {
    answer.as_ref().map(|value| *value).map_err(Refusal::code)
}

/// A result without its texts: ledgers must agree on the amounts, times and names in it.
pub fn without_texts(answer: &LedgerResult) -> LedgerResult {
    answer.clone().map_err(|refusal| match refusal {
        Refusal::Unauthorized { sender, .. } => {
            Refusal::Unauthorized { sender, allowed: String::new() }
        }
        Refusal::InvalidSettlement { round, .. } => {
            Refusal::InvalidSettlement { round, reason: String::new() }
        }
        Refusal::NotFound(_) => Refusal::NotFound(String::new()),
        Refusal::InvalidArgument(_) => Refusal::InvalidArgument(String::new()),
        Refusal::LimitExceeded(_) => Refusal::LimitExceeded(String::new()),
        Refusal::SplitInvalid(_) => Refusal::SplitInvalid(String::new()),
        other => other,
    })
}

fn to_result<T>(answer: Result<T, LedgerError>, value: impl Fn(T) -> i128) -> LedgerResult {
    match answer {
        Ok(answer) => Ok(value(answer)),
        Err(LedgerError::Refused(refusal)) => Err(refusal),
        Err(other) => panic!("{other}"),
    }
}

impl Operation {
    /// The operation's name in tables.
    pub fn verb(&self) -> &'static str {
        match self.act {
            Act::Transfer { .. } => "transfer",
            Act::OpenTask { .. } => "open",
            Act::Bond { .. } => "bond",
            Act::Unbond { .. } => "unbond",
            Act::WithdrawBond { .. } => "withdraw bond",
            Act::Stake { .. } => "stake",
            Act::Pledge { .. } => "pledge",
            Act::Unstake => "unstake",
            Act::WithdrawStake => "withdraw stake",
            Act::Post { .. } => "post",
            Act::Cancel { .. } => "cancel",
            Act::Finalize { .. } => "finalize",
            Act::Claim { .. } => "claim",
            Act::Close { .. } => "close",
            Act::AnnounceClose { .. } => "announce close",
            Act::Object { .. } => "object",
            Act::SetSplit { .. } => "split",
            Act::Slash { stake: true, .. } => "slash stake",
            Act::Slash { stake: false, .. } => "slash bond",
        }
    }

    /// The outcome's name in tables.
    pub fn outcome(&self, verdict: ModelResult) -> &'static str {
        match (&self.act, verdict) {
            (_, Err(code)) => code,
            (Act::Post { .. }, Ok(1)) => "already",
            (Act::Finalize { .. }, Ok(0)) => "nothing due",
            (Act::Claim { .. }, Ok(moved)) if moved >= OF_A_SILO => "of a silo",
            (Act::Claim { .. }, Ok(0)) => "debited too late",
            (Act::Claim { .. }, Ok(moved)) if moved % 1_000 == 0 => "debited",
            (Act::Claim { .. }, Ok(moved)) if moved > 1_000 => "paid and debited",
            _ => "done",
        }
    }

    /// The task that it affects.
    pub fn task(&self) -> Option<usize> {
        match self.act {
            Act::Transfer { .. } | Act::Stake { .. } | Act::Unstake | Act::WithdrawStake => None,
            Act::OpenTask { t, .. }
            | Act::Bond { t, .. }
            | Act::Unbond { t }
            | Act::WithdrawBond { t }
            | Act::Pledge { t }
            | Act::Post { t, .. }
            | Act::Cancel { t, .. }
            | Act::Finalize { t }
            | Act::Claim { t, .. }
            | Act::Close { t }
            | Act::AnnounceClose { t }
            | Act::Object { t, .. }
            | Act::Slash { t, .. }
            | Act::SetSplit { t, .. } => Some(t),
        }
    }

    /// The account, besides the sender, whose balance it may change.
    pub fn counterparty(&self) -> Option<usize> {
        match self.act {
            Act::Transfer { to: who, .. } | Act::Claim { who, .. } | Act::Slash { who, .. } => {
                Some(who)
            }
            Act::Close { .. } => Some(super::model::BUYER),
            Act::Object { signer, .. } => Some(signer),
            _ => None,
        }
    }

    pub fn on_model(&self, model: &mut LedgerModel) -> ModelResult {
        let from = self.from;
        match &self.act {
            Act::Transfer { to, amount } => model.transfer(from, *to, *amount),
            Act::OpenTask { t, rules, flaw } => model.open_task(from, *t, *rules, *flaw),
            Act::Bond { t, amount } => model.bond(from, *t, *amount),
            Act::Unbond { t } => model.unbond(from, *t),
            Act::WithdrawBond { t } => model.withdraw_bond(from, *t),
            Act::Stake { amount } => model.stake(from, *amount),
            Act::Pledge { t } => model.pledge(from, *t),
            Act::Unstake => model.unstake(from),
            Act::WithdrawStake => model.withdraw_stake(from),
            Act::Post { t, new } => model.post(from, *t, new),
            Act::Cancel { t, round } => model.cancel(from, *t, *round),
            Act::Finalize { t } => model.open(*t).map(|()| model.settle(*t)),
            Act::Claim { t, who, totals, tree } => {
                let proven = (tree[*who] == *totals).then_some(*tree);
                let silo = if model.tasks[*t].splits[*who].is_empty() { 0 } else { OF_A_SILO };
                let claimed = model.claim(*t, *who, *totals, proven);
                claimed.map(|moved| moved.paid + 1_000 * moved.taken + silo)
            }
            Act::Close { t } => model.close(from, *t),
            Act::AnnounceClose { t } => model.announce_close(from, *t),
            Act::Object { t, round, signer } => model.object(*t, *round, *signer),
            Act::Slash { t, who, stake, amount } => model.slash(from, *t, *who, *stake, *amount),
            Act::SetSplit { t, members, flaw } => model.set_split(from, *t, members, *flaw),
        }
    }

    pub fn on_ledger(&self, ledger: &dyn Ledger, cast: &TestAccounts) -> LedgerResult {
        let by = &cast.people[self.from];
        let done = |_| 0;
        match &self.act {
            Act::Transfer { to, amount } => {
                to_result(ledger.transfer(by, cast.address(*to), units(*amount)), done)
            }
            Act::OpenTask { t, rules, flaw } => {
                to_result(ledger.open_task(by, &cast.terms(*t, *rules, *flaw)), done)
            }
            Act::Bond { t, amount } => {
                to_result(ledger.bond(by, task_id(*t), units(*amount)), done)
            }
            Act::Unbond { t } => to_result(ledger.unbond(by, task_id(*t)), done),
            Act::WithdrawBond { t } => to_result(ledger.withdraw_bond(by, task_id(*t)), in_units),
            Act::Stake { amount } => to_result(ledger.stake(by, units(*amount)), done),
            Act::Pledge { t } => to_result(ledger.pledge(by, task_id(*t)), done),
            Act::Unstake => to_result(ledger.unstake(by), done),
            Act::WithdrawStake => to_result(ledger.withdraw_stake(by), in_units),
            Act::Post { t, new } => {
                let posted = ledger.post(by, &cast.settlement(*t, new));
                to_result(posted, |posted| i128::from(posted == PostOutcome::AlreadyPosted))
            }
            Act::Cancel { t, round } => {
                to_result(ledger.cancel(by, task_id(*t), payout(*t, *round)), done)
            }
            Act::Finalize { t } => to_result(ledger.finalize(by, task_id(*t)), |n| n as i128),
            Act::Claim { t, who, totals, tree } => {
                let split = ledger.split_of(task_id(*t), cast.address(*who)).unwrap();
                let silo = if split.is_empty() { 0 } else { OF_A_SILO };
                let both = |moved: ClaimOutcome| {
                    in_units(moved.paid) + 1_000 * in_units(moved.taken) + silo
                };
                to_result(ledger.claim(by, &cast.claim(*t, *who, *totals, tree)), both)
            }
            Act::Close { t } => to_result(ledger.close(by, task_id(*t)), in_units),
            Act::AnnounceClose { t } => to_result(ledger.announce_close(by, task_id(*t)), done),
            Act::Object { t, round, signer } => {
                let chain = ledger.market().chain;
                to_result(ledger.object(by, &cast.objection(*t, *round, *signer, chain)), in_units)
            }
            Act::Slash { t, who, stake, amount } => {
                let slash = Slash {
                    task: task_id(*t),
                    account: cast.address(*who),
                    stake: *stake,
                    amount: units(*amount),
                    evidence: Digest([4; 32]),
                };
                to_result(ledger.slash(by, &slash), in_units)
            }
            Act::SetSplit { t, members, flaw } => {
                to_result(ledger.set_split(by, task_id(*t), &cast.split(members, *flaw)), done)
            }
        }
    }
}
