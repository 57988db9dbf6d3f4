//! The auditor's own books: every executed transaction is repeated on the reference model of the
//! ledger, which is independent of the ledger's code, and must have the same outcome there.

use florin_ledger::model::{
    ACCOUNTS, Flaw, LedgerModel, ModelResult, Pending, Rules, SplitFlaw, SplitModel, TaskModel,
};
use florin_ledger::{
    Account, Action, Claim, ClaimOutcome, MemberShare, Pool, PostOutcome, Settlement, Terms,
    TransactionOutcome,
};
use florin_protocol::{Address, Amount, Digest, Report, TaskId, merkle};

use crate::ledger::{ExecutedTransaction, SimLedger};
use crate::setup::BUYER;

/// The number of the market's task in the model.
const TASK: usize = 0;

/// The balances of a market, in base units.
#[derive(Clone, Debug)]
pub(super) struct MoneyBooks {
    task: TaskId,
    model: LedgerModel<Digest>,
    /// The accounts, in the order of the model.
    accounts: Vec<Address>,
    supply: i128,
    /// Every settlement that the ledger accepted, in order.
    pub posted: Vec<Settlement>,
    /// When the task was closed, by the ledger's clock.
    pub closed_at: Option<u64>,
}

/// Base units as a number of the model. No amount of a market is larger than its supply; a larger
/// limit means none.
fn units(amount: Amount) -> i128 {
    i128::try_from(amount.units()).unwrap_or(i128::MAX)
}

/// A number of the model as an amount.
fn amount(units: i128) -> Result<Amount, String> {
    let units = u128::try_from(units).map_err(|_| format!("{units} units in the model"))?;
    Ok(Amount::from_units(units))
}

impl MoneyBooks {
    /// The books of a market with these balances and one task.
    #[must_use]
    pub(super) fn new(task: TaskId, money: &[(Address, Amount)]) -> Self {
        let (mut model, mut accounts) = (LedgerModel::default(), vec![BUYER]);
        accounts.extend(money.iter().map(|(who, _)| *who).filter(|who| *who != BUYER));
        for (who, has) in money {
            let number = accounts.iter().position(|account| account == who);
            model.wallets[number.expect("each account is in the list")] = units(*has);
        }
        let supply = model.supply();
        Self { task, model, accounts, supply, posted: Vec::new(), closed_at: None }
    }

    fn task(&self) -> &TaskModel<Digest> {
        &self.model.tasks[TASK]
    }

    /// The root of the last final settlement.
    #[must_use]
    pub(super) fn root(&self) -> Digest {
        self.task().totals
    }

    /// The claimed totals of an account: paid and debited.
    #[must_use]
    pub(super) fn claimed(&self, account: Address) -> [u128; 2] {
        let number = self.accounts.iter().position(|known| *known == account);
        let (paid, debited) = number.map_or((0, 0), |number| self.task().claimed[number]);
        [paid, debited].map(i128::unsigned_abs)
    }

    /// The number of an account in the model; a new account gets the next one.
    fn number(&mut self, account: Address) -> Result<usize, String> {
        if let Some(known) = self.accounts.iter().position(|known| *known == account) {
            return Ok(known);
        }
        if self.accounts.len() == ACCOUNTS {
            return Err(format!("{account} is one account more than the books can have"));
        }
        self.accounts.push(account);
        Ok(self.accounts.len() - 1)
    }

    /// Books an executed transaction.
    ///
    /// # Errors
    /// A description of the inconsistency.
    pub(super) fn book(&mut self, done: &ExecutedTransaction) -> Result<(), String> {
        self.model.now = i128::from(done.at.0);
        let (from, action) = (done.transaction.from, &done.transaction.action);
        let expected = self.execute(from, action)?;
        if matches!(action, Action::Close { .. }) {
            self.closed_at = Some(done.at.0);
        }
        if expected == done.outcome {
            return Ok(());
        }
        Err(format!("{action:?} of {from} had the outcome {:?}, not {expected:?}", done.outcome))
    }

    /// Executes a transaction on the model.
    fn execute(&mut self, from: Address, action: &Action) -> Result<TransactionOutcome, String> {
        let by = self.number(from)?;
        let refused = |code| format!("the model refuses {action:?} of {from}: {code}");
        let model = &mut self.model;
        let done = |result: ModelResult| result.map(|_| TransactionOutcome::Done).map_err(refused);
        let moved =
            |result: ModelResult| Ok(TransactionOutcome::Moved(amount(result.map_err(refused)?)?));
        match action {
            Action::OpenTask(terms) => {
                let rules = self.rules(terms)?;
                done(self.model.open_task(by, TASK, rules, Flaw::Nothing))
            }
            Action::Bond { amount, .. } => done(model.bond(by, TASK, units(*amount))),
            Action::Unbond { .. } => done(model.unbond(by, TASK)),
            Action::WithdrawBond { .. } => moved(model.withdraw_bond(by, TASK)),
            Action::Stake { amount } => done(model.stake(by, units(*amount))),
            Action::Pledge { .. } => done(model.pledge(by, TASK)),
            Action::Unstake => done(model.unstake(by)),
            Action::WithdrawStake => moved(model.withdraw_stake(by)),
            Action::Post(settlement) => self.post(by, settlement).map_err(refused),
            Action::Finalize { .. } => {
                let count = u64::try_from(model.settle(TASK)).map_err(|e| e.to_string())?;
                Ok(TransactionOutcome::Finalised(count))
            }
            Action::Claim(claim) => self.claim(claim),
            Action::Close { .. } => moved(model.close(by, TASK)),
            Action::AnnounceClose { .. } => done(model.announce_close(by, TASK)),
            Action::SetSplit { members, .. } => {
                let number =
                    |each: &MemberShare| Ok((self.number(each.member)?, each.share.0.into()));
                let members: SplitModel =
                    members.iter().map(number).collect::<Result<_, String>>()?;
                done(self.model.set_split(by, TASK, &members, SplitFlaw::Nothing))
            }
            other => Err(format!("unexpected action {other:?}")),
        }
    }

    fn rules(&mut self, terms: &Terms) -> Result<Rules, String> {
        Ok(Rules {
            coordinator: self.number(terms.coordinator)?,
            arbiter: self.number(terms.arbiter)?,
            data: units(terms.data),
            infrastructure: units(terms.infrastructure),
            rounds: terms.rounds.into(),
            per_nat_max: units(terms.per_nat_max),
            floor_share: i128::from(terms.floor_share.0),
            bond_min: units(terms.bond_min),
            debit_max: units(terms.debit_max),
            stake_min: units(terms.stake_min),
            window: terms.challenge_ms.into(),
            delay: terms.unbond_ms.into(),
            expires: terms.expires.0.into(),
        })
    }

    fn post(&mut self, by: usize, new: &Settlement) -> Result<TransactionOutcome, &'static str> {
        let round = i128::from(new.round.0);
        let of_round = new.payout == Report::settlement_id(self.task, new.round);
        let settlement = Pending {
            round,
            payout_round: if of_round { round } else { -1 },
            previous: new.previous_root,
            totals: new.root,
            data: units(new.data_total),
            infrastructure: units(new.infrastructure_total),
            score_pay: units(new.score_pay_total),
            improvement_nano: new.improvement_total_nano.into(),
            report: new.report,
            window: 0,
        };
        match self.model.post(by, TASK, &settlement)? {
            // A ledger executes no transaction for a settlement that it has.
            1 => Err("SETTLED_TWICE"),
            _ => {
                self.posted.push(*new);
                Ok(TransactionOutcome::Posted(PostOutcome::Posted))
            }
        }
    }

    fn claim(&mut self, claim: &Claim) -> Result<TransactionOutcome, String> {
        let Claim { account, totals, proof, .. } = claim;
        let who = self.number(*account)?;
        let root = self.root();
        let proven = merkle::verify(root, *account, *totals, proof).then_some(root);
        let totals = (units(totals.paid), units(totals.debited));
        let moved = self.model.claim(TASK, who, totals, proven);
        let moved = moved.map_err(|code| format!("the model refuses {claim:?}: {code}"))?;
        let (paid, taken) = (amount(moved.paid)?, amount(moved.taken)?);
        Ok(TransactionOutcome::Claimed(ClaimOutcome { paid, taken }))
    }

    /// Checks that money is conserved, and that every account of the ledger has the same balance as
    /// these books.
    ///
    /// # Errors
    /// A description of the first difference.
    pub(super) fn check_against(&self, bank: &SimLedger) -> Result<(), String> {
        let (total, task) = (self.model.supply(), self.task());
        if total != self.supply {
            return Err(format!("{total} units are booked, but the supply is {}", self.supply));
        }
        let deposited = task.rules.data + task.rules.infrastructure;
        let out: i128 = task.paid.iter().chain(&task.locked).sum::<i128>() + task.refunded;
        if out != deposited {
            return Err(format!("{deposited} units were deposited, but {out} are accounted for"));
        }
        let state = bank.state();
        let same = |what: &dyn std::fmt::Display, ours: i128, account| {
            let theirs = units(state.account_balance(account));
            if ours == theirs {
                Ok(())
            } else {
                Err(format!("{what}: {ours} here, {theirs} on the ledger"))
            }
        };
        for (number, who) in self.accounts.iter().copied().enumerate() {
            let wallet = self.model.wallets[number];
            same(&format_args!("wallet of {who}"), wallet, Account::Wallet(who))?;
            let bond = task.bonds[number];
            same(&format_args!("bond of {who}"), bond, Account::Bond(self.task, who))?;
            let stake = self.model.stakes[number];
            same(&format_args!("stake of {who}"), stake, Account::Stake(who))?;
        }
        for (ours, pool) in task.locked.into_iter().zip([Pool::Data, Pool::Infrastructure]) {
            same(&"escrow", ours, Account::Escrow(self.task, pool))?;
        }
        same(&"the task's debt", task.owed, Account::Owed(self.task))?;
        same(&"the treasury", self.model.treasury, Account::Treasury)
    }

    /// Final checks: the task is closed, all pay is claimed, and all bonds and stakes are returned.
    ///
    /// # Errors
    /// A description of the first failed check.
    pub(super) fn check_settled(&self) -> Result<(), String> {
        if self.closed_at.is_none() {
            return Err("the escrow is not refunded: the task is open".to_owned());
        }
        let task = self.task();
        if task.owed != 0 {
            return Err(format!("{} units are owed and were never claimed", task.owed));
        }
        for (number, who) in self.accounts.iter().enumerate() {
            let (bond, stake) = (task.bonds[number], self.model.stakes[number]);
            if (bond, stake) != (0, 0) {
                return Err(format!(
                    "{who} did not get back {bond} units of its bond and {stake} of its stake"
                ));
            }
        }
        Ok(())
    }
}
