//! What a contract reverted with, in the words of the trait.

use alloy_primitives::{U256, hex};
use alloy_sol_types::{Panic, Revert, SolError, SolInterface};
use florin_protocol::{Address, Amount, Digest, Report, Round, TaskId, Tick};

use super::contracts::FlorinToken::FlorinTokenErrors as TokenErrors;
use super::contracts::Market::MarketErrors as Errors;
use florin_ledger::Refusal;

/// Why a call would fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reverted {
    /// A refusal of the market.
    Refused(Refusal),
    /// What was passed along is not what stands any more: another transaction came first.
    Stale,
    /// The market may not take so much from the wallet yet.
    Allowance,
    /// The token's own words, or none: it may be for want of an approval.
    Foreign(Refusal),
}

/// Amounts of a contract, cut to what an [`Amount`] can say: more than any supply either way.
pub(super) fn amount(units: U256) -> Amount {
    Amount::from_units(units.saturating_to())
}

/// Reads the bytes of a revert.
pub(super) fn read(data: &[u8]) -> Reverted {
    match Errors::abi_decode(data) {
        Ok(error) => of_market(error),
        Err(_) => match TokenErrors::abi_decode(data) {
            Ok(TokenErrors::ERC20InsufficientAllowance(_)) => Reverted::Allowance,
            Ok(TokenErrors::ERC20InsufficientBalance(e)) => {
                Reverted::Refused(Refusal::Insufficient {
                    account: e.sender.into(),
                    available: amount(e.balance),
                    needed: amount(e.needed),
                })
            }
            _ => foreign(data),
        },
    }
}

/// A token's own words, or none.
fn foreign(data: &[u8]) -> Reverted {
    let text = match (Revert::abi_decode(data), Panic::abi_decode(data)) {
        (Ok(revert), _) => revert.reason.chars().take(200).collect(),
        (_, Ok(panic)) => format!("{panic}"),
        _ if data.is_empty() => "without a reason".to_owned(),
        _ => format!("with 0x{}", hex::encode(data.get(..36).unwrap_or(data))),
    };
    Reverted::Foreign(Refusal::Meaningless(format!("a contract stops the transaction: {text}")))
}

fn task(id: alloy_primitives::B256) -> TaskId {
    TaskId(id.0)
}

fn of_market(error: Errors) -> Reverted {
    Reverted::Refused(match error {
        Errors::Stale(_) => return Reverted::Stale,
        Errors::Insufficient(e) => Refusal::Insufficient {
            account: e.account.into(),
            available: amount(e.available),
            needed: amount(e.needed),
        },
        Errors::BadSignature(_) => Refusal::BadSignature,
        Errors::UnknownTask(e) => Refusal::UnknownTask(task(e.task)),
        Errors::TaskExists(e) => Refusal::TaskExists(task(e.task)),
        Errors::TaskClosed(e) => Refusal::TaskClosed(task(e.task)),
        Errors::NotAllowed(e) => Refusal::NotAllowed {
            sender: e.sender.into(),
            allowed: Address::from(e.allowed).to_string(),
        },
        Errors::TooSmall(e) => {
            Refusal::TooSmall { offered: amount(e.offered), smallest: amount(e.smallest) }
        }
        Errors::TooEarly(e) => Refusal::TooEarly { at: Tick(e.moment), now: Tick(e.current) },
        Errors::WindowClosed(e) => Refusal::WindowClosed(Tick(e.moment)),
        Errors::Pending(e) => Refusal::Pending(e.count),
        Errors::ConflictingSettlement(e) => {
            Refusal::ConflictingSettlement(Report::payout_id(task(e.task), Round(e.round)))
        }
        Errors::BadSettlement(e) => Refusal::BadSettlement { round: Round(e.round), what: e.what },
        Errors::BadProof(_) => Refusal::BadProof,
        Errors::NothingToClaim(_) => Refusal::NothingToClaim,
        Errors::Missing(e) => Refusal::Missing(e.what),
        Errors::Meaningless(e) => Refusal::Meaningless(e.what),
        Errors::Limit(e) => Refusal::Limit(e.what),
        Errors::WrongArrival(e) => Refusal::Meaningless(format!(
            "the token moved {} units where {} were asked for: the market takes no token that \
             charges for transfers",
            e.arrived, e.expected
        )),
        other => {
            let selector = hex::encode(Errors::selector(&other));
            Refusal::Meaningless(format!("the market stops the transaction with 0x{selector}"))
        }
    })
}

/// A digest as Rust has it.
pub(super) const fn digest(bytes: alloy_primitives::B256) -> Digest {
    Digest(bytes.0)
}

#[cfg(test)]
mod tests {
    use super::super::contracts::{FlorinToken, Market};
    use super::*;

    #[test]
    fn each_refusal_of_a_contract_has_its_code() {
        let code = |data: Vec<u8>| match read(&data) {
            Reverted::Refused(refusal) | Reverted::Foreign(refusal) => refusal.code(),
            Reverted::Stale => "stale",
            Reverted::Allowance => "allowance",
        };
        let id = alloy_primitives::B256::repeat_byte(1);
        let who = alloy_primitives::Address::repeat_byte(2);
        assert_eq!(code(Market::UnknownTask { task: id }.abi_encode()), "UNKNOWN_TASK");
        assert_eq!(code(Market::Stale { head: id }.abi_encode()), "stale");
        assert_eq!(code(Market::TooEarly { moment: 2, current: 1 }.abi_encode()), "TOO_EARLY");
        let token = FlorinToken::ERC20InsufficientAllowance {
            spender: who,
            allowance: U256::ZERO,
            needed: U256::from(1),
        };
        assert_eq!(code(token.abi_encode()), "allowance");
        assert_eq!(code(Vec::new()), "MEANINGLESS");
        let words = Revert { reason: "no".to_owned() };
        let Reverted::Foreign(refusal) = read(&words.abi_encode()) else { panic!("its own words") };
        assert_eq!(refusal.to_string(), "a contract stops the transaction: no");
    }
}
