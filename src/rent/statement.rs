//! The statement of a lease: what each of its accounts deposited, earned and lost, and why.

use florin_compute::ComputeAccount;
use florin_protocol::{Address, Amount, AmountError};
use serde_json::{Value, json};

use super::history::{LeaseHistory, LeaseTransfer};
use crate::show;

/// The lines of one account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AccountStatement {
    /// The account.
    pub(crate) account: Address,
    /// Its parts in the order.
    pub(crate) roles: Vec<&'static str>,
    /// All of its deposits.
    pub(crate) deposited: Amount,
    /// Pay from the escrow.
    pub(crate) paid: Amount,
    /// Deposits that it lost.
    pub(crate) lost: Amount,
    /// Deposits that it has back.
    pub(crate) returned: Amount,
    /// Deposits that are still locked.
    pub(crate) locked: Amount,
    /// The part of the escrow that others were paid.
    pub(crate) spent: Amount,
    /// The reason of each payment and each loss.
    pub(crate) transfers: Vec<LeaseTransfer>,
}

/// The statements of all accounts of a lease, the renter first.
///
/// # Errors
/// [`AmountError`].
pub(crate) fn account_statements(
    history: &LeaseHistory,
) -> Result<Vec<AccountStatement>, AmountError> {
    let renter = history.lease().order().renter;
    let mut statements = vec![account_statement(history, renter)?];
    for &account in history.accounts().iter().filter(|account| **account != renter) {
        statements.push(account_statement(history, account)?);
    }
    Ok(statements)
}

/// The statement of one account of a lease.
///
/// # Errors
/// [`AmountError`].
pub(super) fn account_statement(
    history: &LeaseHistory,
    account: Address,
) -> Result<AccountStatement, AmountError> {
    let (lease, order) = (history.lease(), history.lease().order());
    let books = lease.books();
    let is_provider = lease.award().is_some_and(|award| award.provider == account);
    let has_stake = is_provider && history.observed().ran().is_some();
    // The bond of a bid becomes a part of the stake, which is one bond on the ledger.
    let (bid_bond, returned_bond) = match has_stake {
        true => (Amount::ZERO, order.deposits.bid_bond),
        false => (order.deposits.bid_bond, Amount::ZERO),
    };
    let parts = [
        ("renter", account == order.renter, order.escrow()?),
        ("referee", account == order.referee, Amount::ZERO),
        ("bidder", history.bidders().contains(&account), bid_bond),
        ("provider", has_stake, order.deposits.stake),
        ("auditor", history.auditors().contains(&account), order.deposits.audit_bond),
    ];
    let parts = parts.into_iter().filter(|(_, has_part, _)| *has_part);
    let (roles, deposits): (Vec<&str>, Vec<Amount>) =
        parts.map(|(role, _, deposit)| (role, deposit)).unzip();
    let deposited = Amount::total(deposits)?;
    let balances = [
        ComputeAccount::BidBond(account),
        ComputeAccount::Stake(account),
        ComputeAccount::AuditBond(account),
    ];
    let own = Amount::total(balances.map(|balance| books.balance(balance)))?;
    let escrow = match account == order.renter {
        true => books.balance(ComputeAccount::Escrow),
        false => Amount::ZERO,
    };
    let (lost, locked) = (books.balance(ComputeAccount::Forfeited(account)), own.plus(escrow)?);
    let returned = books.balance(ComputeAccount::Returned(account)).minus(returned_bond)?;
    let spent = Amount::total([lost, locked, returned])?;
    let paid = books.balance(ComputeAccount::Owed(account));
    // Of private rows the renter is its own auditor.
    let own_fee = if account == order.renter { paid } else { Amount::ZERO };
    let own_transfers = history.transfers().iter().filter(|transfer| transfer.account == account);
    Ok(AccountStatement {
        account,
        roles,
        deposited,
        paid,
        lost,
        returned,
        locked,
        spent: deposited.minus(spent)?.minus(own_fee)?,
        transfers: own_transfers.cloned().collect(),
    })
}

impl AccountStatement {
    /// A sentence for each payment and each loss, and one for what the renter spent.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let spent = (!self.spent.is_zero()).then(|| {
            let (account, spent) = (self.account.short(), show::fln(self.spent));
            format!("{account} spent {spent} FLN of its escrow: the pay of provider and auditors.")
        });
        self.reasons().into_iter().chain(spent).collect()
    }

    /// A sentence for each payment and each loss.
    pub(crate) fn reasons(&self) -> Vec<String> {
        let sentence = |transfer: &LeaseTransfer| {
            let verb = if transfer.is_loss { "loses" } else { "earns" };
            let (at, amount) = (show::date(transfer.at), show::fln(transfer.amount));
            format!("{at}: {} {verb} {amount} FLN: {}.", self.account.short(), transfer.reason)
        };
        self.transfers.iter().map(sentence).collect()
    }

    /// The statement as JSON, with amounts in base units.
    pub(crate) fn to_json(&self) -> Value {
        let transfers: Vec<Value> = self.transfers.iter().map(LeaseTransfer::to_json).collect();
        json!({
            "account": self.account,
            "roles": self.roles,
            "deposited": show::units(self.deposited),
            "paid": show::units(self.paid),
            "lost": show::units(self.lost),
            "returned": show::units(self.returned),
            "locked": show::units(self.locked),
            "spent": show::units(self.spent),
            "reasons": transfers,
        })
    }
}

impl LeaseTransfer {
    /// The payment or loss as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "at": self.at,
            "account": self.account,
            "kind": if self.is_loss { "loss" } else { "pay" },
            "amount": show::units(self.amount),
            "reason": self.reason,
        })
    }
}
