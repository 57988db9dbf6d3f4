//! Operations that can be executed on a ledger and on the model.

use florin_ledger::{Claimed, Ledger, LedgerError, Posted, Refusal, Slash};
use florin_protocol::Digest;

use super::books::{Flaw, Model, Pending, Rules, Totals, Verdict};
use super::cast::{Cast, number, payout, task_id, units};

/// An operation with its sender.
#[derive(Clone, Debug)]
pub struct Operation {
    pub from: usize,
    pub act: Act,
}

/// One write of the trait, in the model's units.
#[derive(Clone, Debug)]
pub enum Act {
    Transfer { to: usize, amount: i64 },
    OpenTask { t: usize, rules: Rules, flaw: Flaw },
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

/// The result of an operation on a ledger.
pub type Answer = Result<i64, Refusal>;

/// The part of a result that the model knows: the number or the refusal's code.
pub fn verdict(answer: &Answer) -> Verdict {
    answer.as_ref().map(|value| *value).map_err(Refusal::code)
}

/// A result without its texts: ledgers must agree on the amounts, times and names in it.
pub fn facts(answer: &Answer) -> Answer {
    answer.clone().map_err(|refusal| match refusal {
        Refusal::NotAllowed { sender, .. } => {
            Refusal::NotAllowed { sender, allowed: String::new() }
        }
        Refusal::BadSettlement { round, .. } => {
            Refusal::BadSettlement { round, what: String::new() }
        }
        Refusal::Missing(_) => Refusal::Missing(String::new()),
        Refusal::Meaningless(_) => Refusal::Meaningless(String::new()),
        Refusal::Limit(_) => Refusal::Limit(String::new()),
        other => other,
    })
}

fn answer<T>(answer: Result<T, LedgerError>, value: impl Fn(T) -> i64) -> Answer {
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
            Act::Slash { stake: true, .. } => "slash stake",
            Act::Slash { stake: false, .. } => "slash bond",
        }
    }

    /// The outcome's name in tables.
    pub fn outcome(&self, verdict: Verdict) -> &'static str {
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
            | Act::Slash { t, .. } => Some(t),
        }
    }

    /// The account, besides the sender, whose balance it may change.
    pub fn other(&self) -> Option<usize> {
        match self.act {
            Act::Transfer { to: who, .. } | Act::Claim { who, .. } | Act::Slash { who, .. } => {
                Some(who)
            }
            Act::Close { .. } => Some(super::books::BUYER),
            _ => None,
        }
    }

    pub fn on_model(&self, model: &mut Model) -> Verdict {
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
            Act::Claim { t, who, totals, tree } => model.claim(*t, *who, *totals, tree),
            Act::Close { t } => model.close(from, *t),
            Act::Slash { t, who, stake, amount } => model.slash(from, *t, *who, *stake, *amount),
        }
    }

    pub fn on_ledger(&self, ledger: &dyn Ledger, cast: &Cast) -> Answer {
        let by = &cast.people[self.from];
        let done = |_| 0;
        match &self.act {
            Act::Transfer { to, amount } => {
                answer(ledger.transfer(by, cast.address(*to), units(*amount)), done)
            }
            Act::OpenTask { t, rules, flaw } => {
                answer(ledger.open_task(by, &cast.terms(*t, *rules, *flaw)), done)
            }
            Act::Bond { t, amount } => answer(ledger.bond(by, task_id(*t), units(*amount)), done),
            Act::Unbond { t } => answer(ledger.unbond(by, task_id(*t)), done),
            Act::WithdrawBond { t } => answer(ledger.withdraw_bond(by, task_id(*t)), number),
            Act::Stake { amount } => answer(ledger.stake(by, units(*amount)), done),
            Act::Pledge { t } => answer(ledger.pledge(by, task_id(*t)), done),
            Act::Unstake => answer(ledger.unstake(by), done),
            Act::WithdrawStake => answer(ledger.withdraw_stake(by), number),
            Act::Post { t, new } => {
                let posted = ledger.post(by, &cast.settlement(*t, new));
                answer(posted, |posted| i64::from(posted == Posted::Already))
            }
            Act::Cancel { t, round } => {
                answer(ledger.cancel(by, task_id(*t), payout(*t, *round)), done)
            }
            Act::Finalize { t } => answer(ledger.finalize(by, task_id(*t)), |n| n as i64),
            Act::Claim { t, who, totals, tree } => {
                let both = |moved: Claimed| number(moved.paid) + 1_000 * number(moved.taken);
                answer(ledger.claim(by, &cast.claim(*t, *who, *totals, tree)), both)
            }
            Act::Close { t } => answer(ledger.close(by, task_id(*t)), number),
            Act::Slash { t, who, stake, amount } => {
                let slash = Slash {
                    task: task_id(*t),
                    account: cast.address(*who),
                    stake: *stake,
                    amount: units(*amount),
                    evidence: Digest([4; 32]),
                };
                answer(ledger.slash(by, &slash), number)
            }
        }
    }
}
