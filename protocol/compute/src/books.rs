//! The accounts of one order, by double entry: what was deposited is somewhere.

use std::collections::BTreeMap;

use borsh::{BorshDeserialize, BorshSerialize};
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
    /// Pay, fees, bounties, refunds and returned deposits that an account can claim.
    Owed(Address),
    /// Forfeited deposits.
    Treasury,
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
            matches!(account, ComputeAccount::Owed(_) | ComputeAccount::Treasury)
        };
        let locked = self.balances.iter().filter(|(account, _)| !ends(account));
        Amount::total(locked.map(|(_, amount)| *amount))
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
        books.set(ComputeAccount::Treasury, one);
        assert!(!books.is_conserved());
        let more = Amount::from_units(2);
        let moved = books.transfer(ComputeAccount::Escrow, ComputeAccount::Treasury, more);
        assert!(moved.is_err());
        let escrow = ComputeAccount::Escrow;
        assert_eq!(books.transfer_at_most(escrow, ComputeAccount::Treasury, more), Ok(one));
    }
}
