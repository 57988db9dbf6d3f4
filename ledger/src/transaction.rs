//! Transactions: an action, its account's nonce, and the account's signature.

use std::num::NonZeroUsize;
use std::thread;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{
    Address, Amount, Canonical, MarketId, SignError, TypedData, TypedValue, WalletSignature,
    WalletSigner, recover_wallet,
};
use serde::{Deserialize, Serialize};

use crate::action::Action;
use crate::api::{ClaimOutcome, PostOutcome, Refusal, TxId};
use crate::limits::TRANSACTION_BYTES_MAX;

/// An action of one account in one market. Its digest is its [`TxId`]: market, account and nonce
/// make it unique.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Transaction {
    /// Chain and market.
    pub market: MarketId,
    /// The sender.
    pub from: Address,
    /// The number of earlier transactions of this account.
    pub nonce: u64,
    /// The action to execute.
    pub action: Action,
}

impl Canonical for Transaction {
    const DOMAIN: &'static str = "florin v1 transaction";
}

impl Transaction {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> TxId {
        self.digest()
    }

    /// The EIP-712 hash that the sender signs:
    /// `Transaction(address from,uint64 nonce,string summary,bytes32 action)` in the market's
    /// domain.
    #[must_use]
    pub fn signing_hash(&self) -> [u8; 32] {
        self.typed_data().signing_hash(self.market)
    }

    /// The EIP-712 structure; wallets display its fields.
    fn typed_data(&self) -> TypedData {
        let fields = vec![
            ("from", TypedValue::Address(self.from)),
            ("nonce", TypedValue::Uint64(self.nonce)),
            ("summary", TypedValue::String(self.action.summary())),
            ("action", TypedValue::Bytes32(self.action.digest().0)),
        ];
        TypedData { primary_type: "Transaction", fields }
    }

    /// Signs the transaction.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(self, by: &dyn WalletSigner) -> Result<SignedTransaction, SignError> {
        let signature = by.sign_typed_data(self.signing_hash())?;
        Ok(SignedTransaction { transaction: self, signature })
    }
}

/// A transaction with an unverified signature: see [`SignedTransaction::verify`].
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct SignedTransaction {
    /// The transaction.
    pub transaction: Transaction,
    /// The signature of [`Transaction::signing_hash`].
    pub signature: WalletSignature,
}

impl Canonical for SignedTransaction {
    const DOMAIN: &'static str = "florin v1 signed transaction";
}

impl SignedTransaction {
    /// Verifies everything that does not depend on the ledger's state: market, size and signature.
    ///
    /// # Errors
    /// [`Refusal::WrongMarket`], [`Refusal::LimitExceeded`] or [`Refusal::InvalidSignature`].
    pub fn verify(self, market: MarketId) -> Result<VerifiedTransaction, Refusal> {
        if self.transaction.market != market {
            return Err(Refusal::WrongMarket);
        }
        let bytes = self.to_bytes().len();
        if bytes > TRANSACTION_BYTES_MAX {
            let limit =
                format!("a transaction of {bytes} bytes; the maximum is {TRANSACTION_BYTES_MAX}");
            return Err(Refusal::LimitExceeded(limit));
        }
        match recover_wallet(self.transaction.signing_hash(), &self.signature) {
            Ok(signed_by) if signed_by == self.transaction.from => {}
            _ => return Err(Refusal::InvalidSignature),
        }
        Ok(VerifiedTransaction::new_unchecked(self, bytes))
    }
}

/// A transaction whose signature, size and market have been verified: the state accepts no other
/// type.
#[derive(Clone, Debug)]
pub struct VerifiedTransaction {
    signed: SignedTransaction,
    id: TxId,
    bytes: usize,
}

impl VerifiedTransaction {
    /// For transactions that were verified before they were stored, and for benchmarks without
    /// signature verification.
    pub(crate) fn new_unchecked(signed: SignedTransaction, bytes: usize) -> Self {
        let id = signed.transaction.id();
        Self { signed, id, bytes }
    }

    /// The transaction's id.
    #[must_use]
    pub const fn id(&self) -> TxId {
        self.id
    }

    /// Length of the canonical bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The transaction.
    #[must_use]
    pub const fn transaction(&self) -> &Transaction {
        &self.signed.transaction
    }

    pub(crate) fn into_signed(self) -> SignedTransaction {
        self.signed
    }
}

/// Verifies transactions on `threads` threads; the results are in the order of the transactions.
pub(crate) fn verify_on_threads(
    market: MarketId,
    transactions: Vec<SignedTransaction>,
    threads: NonZeroUsize,
) -> Vec<Result<VerifiedTransaction, Refusal>> {
    let size = transactions.len().div_ceil(threads.get()).max(1);
    let mut rest = transactions.into_iter();
    let mut chunks = Vec::new();
    loop {
        let chunk: Vec<SignedTransaction> = rest.by_ref().take(size).collect();
        if chunk.is_empty() {
            break;
        }
        chunks.push(chunk);
    }
    let check = |chunk: Vec<SignedTransaction>| -> Vec<Result<VerifiedTransaction, Refusal>> {
        chunk.into_iter().map(|signed| signed.verify(market)).collect()
    };
    // This thread verifies the last chunk: a single transaction, or a single core, starts no
    // thread.
    let last = chunks.pop();
    thread::scope(|scope| {
        let others: Vec<_> = chunks
            .into_iter()
            .map(|chunk| (chunk.len(), scope.spawn(move || check(chunk))))
            .collect();
        let mine = last.map(check).unwrap_or_default();
        let mut answers = Vec::new();
        for (length, other) in others {
            // If a verifying thread panicked, its transactions count as unverified.
            let verdicts = other.join().unwrap_or_else(|_| {
                std::iter::repeat_with(|| Err(Refusal::InvalidSignature)).take(length).collect()
            });
            answers.extend(verdicts);
        }
        answers.extend(mine);
        answers
    })
}

/// Verifies transactions on all cores.
pub(crate) fn verify_all(
    market: MarketId,
    transactions: Vec<SignedTransaction>,
) -> Vec<Result<VerifiedTransaction, Refusal>> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    verify_on_threads(market, transactions, threads)
}

/// The result of a transaction.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum TransactionOutcome {
    /// Executed; there is no further result.
    Done,
    /// A settlement was posted, or had been posted before.
    Posted(PostOutcome),
    /// The number of settlements that became final.
    Finalised(u64),
    /// The amount moved: withdrawn, refunded or slashed.
    Moved(Amount),
    /// The amounts paid and debited by a claim.
    Claimed(ClaimOutcome),
}

/// The status of a sent transaction.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum TransactionStatus {
    /// It was executed.
    Executed(TransactionOutcome),
    /// Its nonce is still free: it was not executed, and still can be.
    NotExecuted,
    /// Its nonce is used and it is not among the last [`crate::limits::RECENT_MAX`] transactions:
    /// either another transaction used the nonce, or it was executed long ago.
    Unknown,
}

#[cfg(test)]
mod tests {
    use florin_protocol::{ChainId, Digest, TaskId};

    use super::*;
    use crate::conformance::TestSigner;

    #[test]
    fn the_eip712_type_of_a_transaction_matches_its_documentation() {
        let shown = "Transaction(address from,uint64 nonce,string summary,bytes32 action)";
        let amount = "100".parse().unwrap();
        let action = Action::Bond { task: TaskId([0xab; 32]), amount };
        let market = MarketId { chain: ChainId(1), genesis: Digest([2; 32]) };
        let from = Address([3; 20]);
        let transaction = Transaction { market, from, nonce: 5, action: action.clone() };
        assert_eq!(transaction.typed_data().encode_type(), shown);
        assert_eq!(action.summary(), "bond 100 FLN in task abababab…");
    }

    #[test]
    fn a_signature_is_valid_for_one_action_account_market_and_nonce_only() {
        let by = TestSigner::new(1).unwrap();
        let market = MarketId { chain: ChainId(1), genesis: Digest([2; 32]) };
        let action = Action::Transfer { to: Address([3; 20]), amount: Amount::from_units(4) };
        let good = Transaction { market, from: by.address(), nonce: 5, action };
        let signed = good.sign(&by).unwrap();
        assert!(signed.clone().verify(market).is_ok());
        let changes: [fn(&mut Transaction); 5] = [
            |t| t.market.chain = ChainId(9),
            |t| t.market.genesis = Digest([9; 32]),
            |t| t.from = Address([9; 20]),
            |t| t.nonce = 9,
            |t| t.action = Action::Transfer { to: Address([9; 20]), amount: Amount::from_units(4) },
        ];
        for change in changes {
            let mut moved = signed.clone();
            change(&mut moved.transaction);
            let market = moved.transaction.market;
            assert_eq!(moved.verify(market).unwrap_err(), Refusal::InvalidSignature);
        }
    }
}
