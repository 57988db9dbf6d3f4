//! The accounts of one order, by double entry: what was deposited is somewhere.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, AmountError};

/// An account of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
pub enum ComputeAccount {
    /// The renter's deposit.
    Escrow,
    /// A bidder's bond.
    BidBond(Address),
    /// The provider's stake.
    Stake(Address),
    /// An auditor's bond.
    AuditBond(Address),
    /// Pay, fees and bounties from the escrow that an account can claim.
    Owed(Address),
    /// Deposits and refunds that an account has back.
    Returned(Address),
    /// Deposits that an account lost: the treasury has them, and no other account of the order gains.
    Forfeited(Address),
}

/// The balances of an order. Amounts enter by deposits alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Books {
    deposited: Amount,
    balances: BTreeMap<ComputeAccount, Amount>,
}

impl Books {
    /// All that was deposited.
    #[must_use]
    pub const fn deposited(&self) -> Amount {
        self.deposited
    }

    /// The balance of an account.
    #[must_use]
    pub fn balance(&self, account: ComputeAccount) -> Amount {
        self.balances.get(&account).copied().unwrap_or_default()
    }

    /// The amount that is neither owed nor forfeited.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn locked(&self) -> Result<Amount, AmountError> {
        let ends = |account: &ComputeAccount| {
            matches!(
                account,
                ComputeAccount::Owed(_)
                    | ComputeAccount::Returned(_)
                    | ComputeAccount::Forfeited(_)
            )
        };
        let locked = self.balances.iter().filter(|(account, _)| !ends(account));
        Amount::total(locked.map(|(_, amount)| *amount))
    }

    /// All deposits that accounts lost.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn forfeited(&self) -> Result<Amount, AmountError> {
        let is_lost = |account: &ComputeAccount| matches!(account, ComputeAccount::Forfeited(_));
        let lost = self.balances.iter().filter(|(account, _)| is_lost(account));
        Amount::total(lost.map(|(_, amount)| *amount))
    }

    /// The bond that an account needs in the order: its deposits that are not returned.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn bond_needed(&self, account: Address) -> Result<Amount, AmountError> {
        use ComputeAccount::{AuditBond, BidBond, Forfeited, Stake};
        let deposits = [BidBond(account), Stake(account), AuditBond(account), Forfeited(account)];
        Amount::total(deposits.map(|deposit| self.balance(deposit)))
    }

    /// The pay of each account from the escrow, and the loss of its bond: the running totals of a
    /// settlement. Accounts without either are left out.
    #[must_use]
    pub fn totals(&self) -> BTreeMap<Address, ClaimTotals> {
        let mut totals: BTreeMap<Address, ClaimTotals> = BTreeMap::new();
        for (account, amount) in &self.balances {
            match *account {
                ComputeAccount::Owed(account) => totals.entry(account).or_default().paid = *amount,
                ComputeAccount::Forfeited(account) => {
                    totals.entry(account).or_default().debited = *amount;
                }
                _ => {}
            }
        }
        totals
    }

    /// Whether the balances are what was deposited.
    #[must_use]
    pub fn is_conserved(&self) -> bool {
        Amount::total(self.balances.values().copied()) == Ok(self.deposited)
    }

    pub(crate) fn deposit(
        &mut self,
        to: ComputeAccount,
        amount: Amount,
    ) -> Result<(), AmountError> {
        self.deposited = self.deposited.plus(amount)?;
        self.set(to, self.balance(to).plus(amount)?);
        Ok(())
    }

    /// Moves an amount.
    ///
    /// # Errors
    /// [`AmountError::Insufficient`].
    pub(crate) fn transfer(
        &mut self,
        from: ComputeAccount,
        to: ComputeAccount,
        amount: Amount,
    ) -> Result<(), AmountError> {
        self.set(from, self.balance(from).minus(amount)?);
        self.set(to, self.balance(to).plus(amount)?);
        Ok(())
    }

    /// Moves all of an account.
    pub(crate) fn transfer_all(
        &mut self,
        from: ComputeAccount,
        to: ComputeAccount,
    ) -> Result<(), AmountError> {
        self.transfer(from, to, self.balance(from))
    }

    /// Moves an amount, or all there is; returns what was moved.
    pub(crate) fn transfer_at_most(
        &mut self,
        from: ComputeAccount,
        to: ComputeAccount,
        amount: Amount,
    ) -> Result<Amount, AmountError> {
        let moved = amount.min(self.balance(from));
        self.transfer(from, to, moved)?;
        Ok(moved)
    }

    fn set(&mut self, account: ComputeAccount, amount: Amount) {
        match amount.is_zero() {
            true => self.balances.remove(&account),
            false => self.balances.insert(account, amount),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_from_nowhere_is_seen() {
        let mut books = Books::default();
        let one = Amount::from_units(1);
        books.deposit(ComputeAccount::Escrow, one).unwrap();
        assert!(books.is_conserved());
        let lost = ComputeAccount::Forfeited(Address([1; 20]));
        books.set(lost, one);
        assert!(!books.is_conserved());
        let more = Amount::from_units(2);
        let moved = books.transfer(ComputeAccount::Escrow, lost, more);
        assert!(moved.is_err());
        let escrow = ComputeAccount::Escrow;
        assert_eq!(books.transfer_at_most(escrow, lost, more), Ok(one));
    }
}
