//! Converts the revert data of contracts to the trait's refusals.

use alloy_primitives::{U256, hex};
use alloy_sol_types::{Panic, Revert, SolError, SolInterface};
use florin_protocol::{Amount, Digest, Report, RoundNumber, TaskId, Timestamp};

use super::contracts::FlorinToken::FlorinTokenErrors as TokenErrors;
use super::contracts::Market::MarketErrors as Errors;
use crate::contracts::to_address;
use florin_ledger::Refusal;

/// The reason of a revert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RevertReason {
    /// The market refused the call.
    Refused(Refusal),
    /// An argument is outdated: another transaction was executed first.
    Stale,
    /// The market's allowance for the wallet is too small.
    InsufficientAllowance,
    /// The token reverted with an unknown error, or without one; a missing approval is a possible
    /// cause.
    TokenRevert(Refusal),
}

/// A contract's amount, saturated to the range of [`Amount`], which exceeds any supply.
pub(super) fn saturating_amount(units: U256) -> Amount {
    Amount::from_units(units.saturating_to())
}

/// Decodes revert data.
pub(super) fn decode_revert(data: &[u8]) -> RevertReason {
    match Errors::abi_decode(data) {
        Ok(error) => from_market_error(error),
        Err(_) => match TokenErrors::abi_decode(data) {
            Ok(TokenErrors::ERC20InsufficientAllowance(_)) => RevertReason::InsufficientAllowance,
            Ok(TokenErrors::ERC20InsufficientBalance(e)) => {
                RevertReason::Refused(Refusal::Insufficient {
                    account: to_address(e.sender),
                    available: saturating_amount(e.balance),
                    needed: saturating_amount(e.needed),
                })
            }
            _ => token_revert(data),
        },
    }
}

/// An unknown error, or none.
fn token_revert(data: &[u8]) -> RevertReason {
    let text = match (Revert::abi_decode(data), Panic::abi_decode(data)) {
        (Ok(revert), _) => revert.reason.chars().take(200).collect(),
        (_, Ok(panic)) => format!("{panic}"),
        _ if data.is_empty() => "without a reason".to_owned(),
        _ => format!("with 0x{}", hex::encode(data.get(..36).unwrap_or(data))),
    };
    RevertReason::TokenRevert(Refusal::InvalidArgument(format!(
        "a contract reverted the transaction: {text}"
    )))
}

fn task(id: alloy_primitives::B256) -> TaskId {
    TaskId(id.0)
}

fn from_market_error(error: Errors) -> RevertReason {
    RevertReason::Refused(match error {
        Errors::StaleHead(_) => return RevertReason::Stale,
        Errors::Insufficient(e) => Refusal::Insufficient {
            account: to_address(e.account),
            available: saturating_amount(e.available),
            needed: saturating_amount(e.needed),
        },
        Errors::InvalidSignature(_) => Refusal::InvalidSignature,
        Errors::UnknownTask(e) => Refusal::UnknownTask(task(e.task)),
        Errors::TaskExists(e) => Refusal::TaskExists(task(e.task)),
        Errors::TaskClosed(e) => Refusal::TaskClosed(task(e.task)),
        Errors::Unauthorized(e) => Refusal::Unauthorized {
            sender: to_address(e.sender),
            allowed: to_address(e.allowed).to_string(),
        },
        Errors::TooSmall(e) => Refusal::TooSmall {
            offered: saturating_amount(e.offered),
            smallest: saturating_amount(e.smallest),
        },
        Errors::TooEarly(e) => {
            Refusal::TooEarly { at: Timestamp(e.moment), now: Timestamp(e.current) }
        }
        Errors::WindowClosed(e) => Refusal::WindowClosed(Timestamp(e.moment)),
        Errors::SettlementsPending(e) => Refusal::SettlementsPending(e.count),
        Errors::ConflictingSettlement(e) => Refusal::ConflictingSettlement(Report::settlement_id(
            task(e.task),
            RoundNumber(e.round),
        )),
        Errors::InvalidSettlement(e) => {
            Refusal::InvalidSettlement { round: RoundNumber(e.round), reason: e.reason }
        }
        Errors::InvalidProof(_) => Refusal::InvalidProof,
        Errors::NothingToClaim(_) => Refusal::NothingToClaim,
        Errors::NotFound(e) => Refusal::NotFound(e.reason),
        Errors::InvalidArgument(e) => Refusal::InvalidArgument(e.reason),
        Errors::LimitExceeded(e) => Refusal::LimitExceeded(e.reason),
        Errors::SplitInvalid(e) => Refusal::SplitInvalid(e.reason),
        Errors::SplitFixed(e) => {
            Refusal::SplitFixed { task: task(e.task), account: to_address(e.account) }
        }
        Errors::SplitTooLate(e) => {
            Refusal::SplitTooLate { task: task(e.task), account: to_address(e.account) }
        }
        Errors::TransferAmountMismatch(e) => Refusal::InvalidArgument(format!(
            "the token moved {} units instead of {}: the market supports no token with transfer \
             fees",
            e.arrived, e.expected
        )),
        other => {
            let selector = hex::encode(Errors::selector(&other));
            Refusal::InvalidArgument(format!(
                "the market reverted the transaction with 0x{selector}"
            ))
        }
    })
}

/// A digest in the protocol's type.
pub(super) const fn digest(bytes: alloy_primitives::B256) -> Digest {
    Digest(bytes.0)
}

#[cfg(test)]
mod tests {
    use super::super::contracts::{FlorinToken, Market};
    use super::*;

    #[test]
    fn each_contract_error_maps_to_its_refusal_code() {
        let code = |data: Vec<u8>| match decode_revert(&data) {
            RevertReason::Refused(refusal) | RevertReason::TokenRevert(refusal) => refusal.code(),
            RevertReason::Stale => "stale",
            RevertReason::InsufficientAllowance => "allowance",
        };
        let id = alloy_primitives::B256::repeat_byte(1);
        let who = alloy_primitives::Address::repeat_byte(2);
        assert_eq!(code(Market::UnknownTask { task: id }.abi_encode()), "UNKNOWN_TASK");
        assert_eq!(code(Market::StaleHead { head: id }.abi_encode()), "stale");
        let fixed = Market::SplitFixed { task: id, account: who };
        assert_eq!(code(fixed.abi_encode()), "SPLIT_FIXED");
        let late = Market::SplitTooLate { task: id, account: who };
        assert_eq!(code(late.abi_encode()), "SPLIT_TOO_LATE");
        let invalid = Market::SplitInvalid { reason: String::new() };
        assert_eq!(code(invalid.abi_encode()), "SPLIT_INVALID");
        assert_eq!(code(Market::TooEarly { moment: 2, current: 1 }.abi_encode()), "TOO_EARLY");
        let token = FlorinToken::ERC20InsufficientAllowance {
            spender: who,
            allowance: U256::ZERO,
            needed: U256::from(1),
        };
        assert_eq!(code(token.abi_encode()), "allowance");
        assert_eq!(code(Vec::new()), "INVALID_ARGUMENT");
        let words = Revert { reason: "no".to_owned() };
        let RevertReason::TokenRevert(refusal) = decode_revert(&words.abi_encode()) else {
            panic!("its own error")
        };
        assert_eq!(refusal.to_string(), "a contract reverted the transaction: no");
    }
}
