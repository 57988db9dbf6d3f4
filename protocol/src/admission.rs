//! Admission to a task: which accounts may enrol, and the buyer's signed invitations.
//!
//! Weights are capped per account, so a further account is worth something. A task that anyone may
//! join pays one person with many accounts more than the same person with one.

use std::fmt;
use std::str::FromStr;

use borsh::{BorshDeserialize, BorshSerialize};
use serde::{Deserialize, Serialize};

use crate::bytes::{Canonical, DecodeError};
use crate::eip712::{TypedData, TypedValue};
use crate::id::{Address, Digest, MarketId, TaskId, hex_byte, write_hex};
use crate::limits::{ALLOW_LIST_MAX, INVITATION_BYTES_MAX};
use crate::signature::{SignError, VerifyError, WalletSignature, WalletSigner, verify_wallet};
use crate::spec_error::{SpecError, require, spec_error};
use crate::time::Timestamp;

/// Start of an invitation's text form.
const TEXT_PREFIX: &str = "florin-invitation-";

/// Which accounts may enrol in a task.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum Admission {
    /// Every registered account.
    #[default]
    Open,
    /// The accounts in a list.
    AllowList {
        /// The accounts, ascending; at most [`ALLOW_LIST_MAX`].
        accounts: Vec<Address>,
    },
    /// Accounts with an [`Invitation`] of the buyer.
    Invitation,
}

impl Admission {
    /// Whether `account` is admitted without an invitation.
    #[must_use]
    pub fn admits(&self, account: Address) -> bool {
        match self {
            Self::Open => true,
            Self::AllowList { accounts } => accounts.binary_search(&account).is_ok(),
            Self::Invitation => false,
        }
    }

    /// Checks the list of accounts; `cohort_min` is the fewest members of a round.
    pub(crate) fn check(&self, cohort_min: u32) -> Result<(), SpecError> {
        let Self::AllowList { accounts } = self else {
            return Ok(());
        };
        const KEY: &str = "members.accounts";
        let count = accounts.len();
        if count > ALLOW_LIST_MAX {
            let right = format!("use at most {ALLOW_LIST_MAX} accounts, or invitations");
            return Err(spec_error(KEY, format!("{count} accounts"), right));
        }
        let ascending = accounts.is_sorted_by(|a, b| a < b);
        require(ascending, KEY, "a list", "must be ascending, without repetition")?;
        if usize::try_from(cohort_min).is_ok_and(|needed| count >= needed) {
            return Ok(());
        }
        let right = format!("a round needs rounds.cohort_min = {cohort_min} members: list more");
        Err(spec_error(KEY, format!("{count} accounts"), right))
    }
}

/// A buyer's invitation to one task; signed by its wallet. One account can use it, once.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Invitation {
    /// Chain and market.
    pub market: MarketId,
    /// The task.
    pub task: TaskId,
    /// Random number that distinguishes the invitations of a task.
    pub nonce: Digest,
    /// The only account that can use it; `None` admits the first account that does.
    pub account: Option<Address>,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
    /// The buyer's signature.
    pub signature: WalletSignature,
}

/// The statement of an invitation, before it is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvitationTerms {
    /// Chain and market.
    pub market: MarketId,
    /// The task.
    pub task: TaskId,
    /// Random number that distinguishes the invitations of a task.
    pub nonce: Digest,
    /// The only account that can use it, or any one.
    pub account: Option<Address>,
    /// Expiry: not accepted after this time.
    pub expires: Timestamp,
}

impl InvitationTerms {
    /// The EIP-712 hash to sign. The address of an invitation for any account is zero.
    #[must_use]
    pub fn signing_hash(&self) -> [u8; 32] {
        let fields = vec![
            ("task", TypedValue::Bytes32(self.task.0)),
            ("nonce", TypedValue::Bytes32(self.nonce.0)),
            ("account", TypedValue::Address(self.account.unwrap_or_default())),
            ("expires", TypedValue::Uint64(self.expires.0)),
        ];
        TypedData { primary_type: "Invitation", fields }.signing_hash(self.market)
    }

    /// Signs the invitation.
    ///
    /// # Errors
    /// [`SignError`] from the wallet.
    pub fn sign(self, buyer: &dyn WalletSigner) -> Result<Invitation, SignError> {
        let signature = buyer.sign_typed_data(self.signing_hash())?;
        let Self { market, task, nonce, account, expires } = self;
        Ok(Invitation { market, task, nonce, account, expires, signature })
    }
}

impl Canonical for Invitation {
    const DOMAIN: &'static str = "florin v1 invitation";
}

impl Invitation {
    /// Its statement, without the signature.
    #[must_use]
    pub const fn terms(&self) -> InvitationTerms {
        let Self { market, task, nonce, account, expires, .. } = self;
        InvitationTerms {
            market: *market,
            task: *task,
            nonce: *nonce,
            account: *account,
            expires: *expires,
        }
    }

    /// Verifies that `buyer` signed it for `market`.
    ///
    /// # Errors
    /// [`VerifyError`].
    pub fn verify(&self, market: MarketId, buyer: Address) -> Result<(), VerifyError> {
        if self.market != market {
            return Err(VerifyError::WrongMarket);
        }
        verify_wallet(self.terms().signing_hash(), &self.signature, buyer)
    }
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(TEXT_PREFIX)?;
        write_hex(f, &self.to_bytes())
    }
}

/// Why a text is not an invitation.
#[derive(Debug, thiserror::Error)]
pub enum InvitationTextError {
    /// Another text, or an incomplete one.
    #[error(
        "not an invitation: the text begins with {TEXT_PREFIX} and continues with hexadecimal \
         digits; copy the whole line that `florin task invite` printed"
    )]
    NotAnInvitation,
    /// The bytes are not those of an invitation.
    #[error(
        "the invitation is damaged: {0}; copy the whole line that `florin task invite` printed"
    )]
    Damaged(#[from] DecodeError),
}

impl FromStr for Invitation {
    type Err = InvitationTextError;
    fn from_str(text: &str) -> Result<Self, InvitationTextError> {
        let digits = text.trim().strip_prefix(TEXT_PREFIX);
        let digits = digits.filter(|digits| digits.len() <= INVITATION_BYTES_MAX.saturating_mul(2));
        let bytes = digits.and_then(decode_hex).ok_or(InvitationTextError::NotAnInvitation)?;
        Ok(Self::from_bytes(&bytes)?)
    }
}

/// Hexadecimal digits as bytes; `None` for anything else.
fn decode_hex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|pair| hex_byte(*pair)).collect()
}

#[cfg(test)]
#[path = "admission_tests.rs"]
mod tests;
