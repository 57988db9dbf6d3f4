//! The accounts of the tests, and the conversion of the model's small numbers to a ledger's.

use std::collections::BTreeMap;
use std::sync::Mutex;

use florin_ledger::conformance::TestSigner;
use florin_ledger::limits::SPLIT_MEMBERS_MAX;
use florin_ledger::model::{SplitFlaw, SplitModel};
use florin_ledger::{Claim, MemberShare, Objection, Settlement, Terms};
use florin_protocol::merkle::{self, ClaimTree};
use florin_protocol::{
    Address, Amount, ChainId, DATA_PER_ROUND_MIN, Digest, LedgerReceipt, Micro, Report,
    RoundNumber, SettlementId, TaskId, Timestamp, WalletSigner,
};

use super::model::{AllTotals, BUYER, Flaw, INITIAL_BALANCE, PEOPLE, Pending, Rules, UNBOUNDED};

/// The initial time of the model, in its ticks.
pub const START: i128 = 1_000;

/// The maximum of a window or delay, in milliseconds: 30 days.
const LONGEST_MS: u64 = 30 * 24 * 3_600 * 1_000;

/// Size of the cache of roots.
const ROOTS_MAX: usize = 1_000;

/// The keys of all accounts, and the length of a tick of the model.
pub struct TestAccounts {
    pub people: Vec<TestSigner>,
    tick_ms: u64,
    /// Cache: the same trees are needed repeatedly.
    roots: Mutex<BTreeMap<AllTotals, Digest>>,
}

/// Converts a number of the model, in units of the smallest data pool.
pub fn units(n: i128) -> Amount {
    if n == UNBOUNDED {
        return Amount::from_units(u128::MAX);
    }
    Amount::from_units(u128::try_from(n).unwrap() * DATA_PER_ROUND_MIN.units())
}

/// The inverse of [`units`].
pub fn in_units(amount: Amount) -> i128 {
    i128::try_from(amount.units() / DATA_PER_ROUND_MIN.units()).unwrap()
}

pub fn leaf((paid, debited): (i128, i128)) -> merkle::ClaimTotals {
    merkle::ClaimTotals { paid: units(paid), debited: units(debited) }
}

pub fn task_id(t: usize) -> TaskId {
    TaskId([t as u8 + 1; 32])
}

pub fn payout(t: usize, round: i128) -> SettlementId {
    Report::settlement_id(task_id(t), RoundNumber(u32::try_from(round).unwrap()))
}

impl TestAccounts {
    pub fn new(tick_ms: u64) -> Self {
        let people = (0..PEOPLE as u64).map(|n| TestSigner::new(n).unwrap()).collect();
        Self { people, tick_ms, roots: Mutex::default() }
    }

    pub fn address(&self, n: usize) -> Address {
        self.people[n].address()
    }

    pub fn tick(&self, moment: i128) -> Timestamp {
        if moment == UNBOUNDED { Timestamp::MAX } else { Timestamp(moment as u64 * self.tick_ms) }
    }

    pub fn tree(&self, all: &AllTotals) -> ClaimTree {
        let leaves = all.iter().zip(&self.people).filter(|(totals, _)| **totals != (0, 0));
        ClaimTree::new(leaves.map(|(totals, person)| (person.address(), leaf(*totals))))
    }

    pub fn root(&self, all: &AllTotals) -> Digest {
        let mut roots = self.roots.lock().unwrap();
        if let Some(root) = roots.get(all) {
            return *root;
        }
        if roots.len() == ROOTS_MAX {
            roots.clear();
        }
        *roots.entry(*all).or_insert_with(|| self.tree(all).root())
    }

    pub fn terms(&self, t: usize, rules: Rules, flaw: Flaw) -> Terms {
        let arbiter = match flaw {
            Flaw::BuyerIsArbiter => self.address(BUYER),
            Flaw::NoArbiter => Address::default(),
            _ => self.address(rules.arbiter),
        };
        let data = match flaw {
            Flaw::TooSmall => Amount::from_units(units(1).units() - 1),
            Flaw::TooExpensive => units(PEOPLE as i128 * INITIAL_BALANCE),
            _ => units(rules.data),
        };
        let ms = |ticks: i128, is_too_long: bool| {
            if is_too_long { LONGEST_MS + 1 } else { ticks as u64 * self.tick_ms }
        };
        Terms {
            task: task_id(t),
            buyer: self.address(BUYER),
            coordinator: self.address(rules.coordinator),
            arbiter,
            data,
            infrastructure: units(rules.infrastructure),
            rounds: if flaw == Flaw::NoRounds { 0 } else { u32::try_from(rules.rounds).unwrap() },
            per_nat_max: units(rules.per_nat_max),
            floor_share: match flaw {
                Flaw::LargeFloor => Micro(1_000_001),
                _ => Micro(u64::try_from(rules.floor_share).unwrap()),
            },
            bond_min: units(rules.bond_min),
            debit_max: units(rules.debit_max),
            stake_min: units(rules.stake_min),
            challenge_ms: match flaw {
                Flaw::NoWindow => 0,
                _ => ms(rules.window, flaw == Flaw::LongWindow),
            },
            unbond_ms: ms(rules.delay, flaw == Flaw::LongDelay),
            expires: match flaw {
                Flaw::LongLife => Timestamp::MAX,
                _ => self.tick(rules.expires),
            },
        }
    }

    pub fn settlement(&self, t: usize, new: &Pending) -> Settlement {
        Settlement {
            task: task_id(t),
            payout: payout(t, new.payout_round),
            round: RoundNumber(u32::try_from(new.round).unwrap()),
            report: new.report,
            previous_root: self.root(&new.previous),
            root: self.root(&new.totals),
            data_total: units(new.data),
            score_pay_total: units(new.score_pay),
            infrastructure_total: units(new.infrastructure),
            improvement_total_nano: u64::try_from(new.improvement_nano).unwrap(),
        }
    }

    /// The members of a split as a ledger has them, in the order of their addresses. The order is of
    /// no consequence for amounts in units of the model, which are whole turns.
    pub fn split(&self, members: &SplitModel, flaw: SplitFlaw) -> Vec<MemberShare> {
        let share = |(member, share): &(usize, i128)| MemberShare {
            member: self.address(*member),
            share: Micro(u64::try_from(*share).unwrap()),
        };
        let mut list: Vec<MemberShare> = members.iter().map(share).collect();
        list.sort_by_key(|each| each.member);
        match flaw {
            SplitFlaw::Nothing => {}
            SplitFlaw::Unordered => list.push(list[0]),
            SplitFlaw::Crowded => list = vec![list[0]; SPLIT_MEMBERS_MAX + 1],
        }
        list
    }

    /// An objection with a receipt for an update of the first account, which `signer` signed.
    pub fn objection(&self, t: usize, round: i128, signer: usize, chain: ChainId) -> Objection {
        let round = RoundNumber(u32::try_from(round).unwrap());
        let (sender, update) = (self.address(0), Digest([5; 32]));
        let receipt = LedgerReceipt { task: task_id(t), round, sender, update };
        let hash = receipt.signing_hash(chain);
        Objection { receipt, signature: self.people[signer].sign_typed_data(hash).unwrap() }
    }

    /// A claim with a proof from this tree, if there is one.
    pub fn claim(&self, t: usize, who: usize, totals: (i128, i128), tree: &AllTotals) -> Claim {
        let (account, totals) = (self.address(who), leaf(totals));
        let proof = self.tree(tree).proof(account, totals).unwrap_or_default();
        Claim { task: task_id(t), account, totals, proof }
    }
}
