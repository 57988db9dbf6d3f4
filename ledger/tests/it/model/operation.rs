//! What can be asked of a ledger, and the same of the model.

use florin_ledger::{Claimed, Ledger, LedgerError, Posted, Slash};
use florin_protocol::Digest;

use super::books::{Flaw, Model, Pending, Totals, Verdict};
use super::cast::{Cast, number, payout, task_id, units};

/// Somebody asks for something.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) from: usize,
    pub(crate) act: Act,
}

/// One write of the trait, in the model's words.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Transfer { to: usize, amount: i64 },
    OpenTask { t: usize, expires: i64, flaw: Flaw },
    Bond { t: usize, amount: i64 },
    Unbond { t: usize },
    WithdrawBond { t: usize },
    Stake { amount: i64 },
    Pledge { t: usize },
    Unstake,
    WithdrawStake,
    Post { t: usize, new: Pending },
    Cancel { t: usize, round: i64 },
    Finalize { t: usize },
    Claim { t: usize, who: usize, totals: (i64, i64), tree: Totals },
    Close { t: usize },
    Slash { t: usize, who: usize, stake: bool, amount: i64 },
}

fn verdict<T>(answer: Result<T, LedgerError>, value: impl Fn(T) -> i64) -> Verdict {
    match answer {
        Ok(answer) => Ok(value(answer)),
        Err(LedgerError::Refused(refusal)) => Err(refusal.code()),
        Err(other) => panic!("{other}"),
    }
}

impl Operation {
    /// The word for it in tables.
    pub(crate) fn verb(&self) -> &'static str {
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
            Act::Slash { stake: true, .. } => "slash stake",
            Act::Slash { stake: false, .. } => "slash bond",
        }
    }

    /// The word for what it came to, in tables.
    pub(crate) fn outcome(&self, verdict: Verdict) -> &'static str {
        match (&self.act, verdict) {
            (_, Err(code)) => code,
            (Act::Post { .. }, Ok(1)) => "already",
            (Act::Finalize { .. }, Ok(0)) => "nothing due",
            (Act::Claim { .. }, Ok(0)) => "debited too late",
            (Act::Claim { .. }, Ok(moved)) if moved % 1_000 == 0 => "debited",
            (Act::Claim { .. }, Ok(moved)) if moved > 1_000 => "paid and debited",
            _ => "done",
        }
    }

    /// Which task it concerns.
    pub(crate) fn task(&self) -> Option<usize> {
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
            | Act::Slash { t, .. } => Some(t),
        }
    }

    /// Whose money it may move, besides the sender's.
    pub(crate) fn other(&self) -> Option<usize> {
        match self.act {
            Act::Transfer { to: who, .. } | Act::Claim { who, .. } | Act::Slash { who, .. } => {
                Some(who)
            }
            Act::Close { .. } => Some(super::books::BUYER),
            _ => None,
        }
    }

    pub(crate) fn on_model(&self, model: &mut Model) -> Verdict {
        let from = self.from;
        match &self.act {
            Act::Transfer { to, amount } => model.transfer(from, *to, *amount),
            Act::OpenTask { t, expires, flaw } => model.open_task(from, *t, *expires, *flaw),
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
            Act::Claim { t, who, totals, tree } => model.claim(*t, *who, *totals, tree),
            Act::Close { t } => model.close(from, *t),
            Act::Slash { t, who, stake, amount } => model.slash(from, *t, *who, *stake, *amount),
        }
    }

    pub(crate) fn on_ledger(&self, ledger: &dyn Ledger, cast: &Cast) -> Verdict {
        let by = &cast.people[self.from];
        let done = |_| 0;
        match &self.act {
            Act::Transfer { to, amount } => {
                verdict(ledger.transfer(by, cast.address(*to), units(*amount)), done)
            }
            Act::OpenTask { t, expires, flaw } => {
                verdict(ledger.open_task(by, &cast.terms(*t, *expires, *flaw)), done)
            }
            Act::Bond { t, amount } => verdict(ledger.bond(by, task_id(*t), units(*amount)), done),
            Act::Unbond { t } => verdict(ledger.unbond(by, task_id(*t)), done),
            Act::WithdrawBond { t } => verdict(ledger.withdraw_bond(by, task_id(*t)), number),
            Act::Stake { amount } => verdict(ledger.stake(by, units(*amount)), done),
            Act::Pledge { t } => verdict(ledger.pledge(by, task_id(*t)), done),
            Act::Unstake => verdict(ledger.unstake(by), done),
            Act::WithdrawStake => verdict(ledger.withdraw_stake(by), number),
            Act::Post { t, new } => {
                let answer = ledger.post(by, &cast.settlement(*t, new));
                verdict(answer, |posted| i64::from(posted == Posted::Already))
            }
            Act::Cancel { t, round } => {
                verdict(ledger.cancel(by, task_id(*t), payout(*t, *round)), done)
            }
            Act::Finalize { t } => verdict(ledger.finalize(by, task_id(*t)), |n| n as i64),
            Act::Claim { t, who, totals, tree } => {
                let both = |moved: Claimed| number(moved.paid) + 1_000 * number(moved.taken);
                verdict(ledger.claim(by, &cast.claim(*t, *who, *totals, tree)), both)
            }
            Act::Close { t } => verdict(ledger.close(by, task_id(*t)), number),
            Act::Slash { t, who, stake, amount } => {
                let slash = Slash {
                    task: task_id(*t),
                    account: cast.address(*who),
                    stake: *stake,
                    amount: units(*amount),
                    evidence: Digest([4; 32]),
                };
                verdict(ledger.slash(by, &slash), number)
            }
        }
    }
}
