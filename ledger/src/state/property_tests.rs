//! Property tests of the rules under random histories: the supply is constant, and a stored state
//! equals the state that is read back.

use florin_protocol::{ChainId, Digest, LedgerReceipt, RoundNumber, TaskId, WalletSigner};
use proptest::prelude::*;

use super::LedgerState;
use super::tests::{
    ALICE, ARBITER, BUYER, COORDINATOR, PaidAndDebited, TASK, address, claim, continuing_totals,
    coordinator_signer, execute, in_units, settlement, settlement_with_totals,
    state_with_open_task, terms, units,
};
use crate::action::Action;
use crate::api::{ClaimOutcome, Objection, Settlement, Slash};
use crate::transaction::TransactionOutcome;

/// Mostly valid actions, with amounts that are sometimes invalid.
fn any_action() -> impl Strategy<Value = Action> {
    let task = prop_oneof![9 => Just(TASK), 1 => Just(TaskId([2; 32]))];
    let amount =
        prop_oneof![8 => 0u128..120, 1 => Just(u128::MAX), 1 => 900u128..1_100].prop_map(units);
    let account = (1u8..=6).prop_map(address);
    let round = 0u32..12;
    let sums = (0u128..330, 0u128..60).prop_map(|(paid, debited)| PaidAndDebited(paid, debited));
    prop_oneof![
        (account.clone(), amount.clone()).prop_map(|(to, amount)| Action::Transfer { to, amount }),
        task.clone().prop_map(|task| Action::OpenTask(terms(task))),
        (task.clone(), amount.clone()).prop_map(|(task, amount)| Action::Bond { task, amount }),
        task.clone().prop_map(|task| Action::Unbond { task }),
        task.clone().prop_map(|task| Action::WithdrawBond { task }),
        amount.clone().prop_map(|amount| Action::Stake { amount }),
        task.clone().prop_map(|task| Action::Pledge { task }),
        Just(Action::Unstake),
        Just(Action::WithdrawStake),
        (round.clone(), sums.clone())
            .prop_map(|(n, sums)| Action::Post(settlement_with_totals(n, sums))),
        (round.clone(), 0u128..330).prop_map(|(n, total)| Action::Post(settlement(n, total))),
        (task.clone(), round)
            .prop_map(|(task, n)| { Action::Cancel { task, payout: settlement(n, 0).payout } }),
        task.clone().prop_map(|task| Action::Finalize { task }),
        sums.prop_map(|PaidAndDebited(paid, debited)| Action::Claim(claim(PaidAndDebited(
            paid + 1,
            debited
        )))),
        task.clone().prop_map(|task| Action::Close { task }),
        task.clone().prop_map(|task| Action::AnnounceClose { task }),
        (0u32..4, any::<bool>()).prop_map(|(n, is_signed)| objection(n, is_signed)),
        (task, account, any::<bool>(), amount).prop_map(|(task, account, stake, amount)| {
            Action::Slash(Slash { task, account, stake, amount, evidence: Digest([1; 32]) })
        }),
    ]
}

/// An objection with a receipt for Alice's update, signed for this chain or another.
fn objection(round: u32, is_signed: bool) -> Action {
    let receipt = LedgerReceipt {
        task: TASK,
        round: RoundNumber(round),
        sender: address(ALICE),
        update: Digest([6; 32]),
    };
    let chain = ChainId(if is_signed { 1 } else { 2 });
    let hash = receipt.signing_hash(chain);
    let signature = coordinator_signer().sign_typed_data(hash).unwrap();
    Action::Object(Objection { receipt, signature })
}

/// The totals of Alice that give this root, for a known amount paid.
fn totals_of_root(root: Digest, paid: u128) -> PaidAndDebited {
    let sums = (0..450).map(|debited| PaidAndDebited(paid, debited));
    sums.into_iter().find(|sums| settlement_with_totals(1, *sums).root == root).unwrap()
}

/// The same action by an authorised account and with values that continue the current state.
/// Without this, most actions of a random history would be refused.
fn make_valid(state: &LedgerState, from: u8, action: Action) -> (u8, Action) {
    let Some(task) = state.task(TASK) else { return (from, action) };
    match action {
        Action::Post(wish) => {
            let last = task.pending.last().map(|pending| &pending.settlement);
            let (round, root, paid) = last.map_or((0, task.root, task.data_paid), |last| {
                (last.round.0, last.root, last.data_total)
            });
            let round = round.max(state.tasks[&TASK].round.map_or(0, |round| round.0)) + 1;
            let before = totals_of_root(root, in_units(paid));
            let more = in_units(wish.data_total);
            let sums = PaidAndDebited(before.0 + more % 25, before.1 + more % 16);
            let infrastructure_total = units(sums.0 / 4);
            let new = continuing_totals(before, settlement_with_totals(round, sums));
            (COORDINATOR, Action::Post(Settlement { infrastructure_total, ..new }))
        }
        Action::Claim(_) if task.root != Digest::default() => {
            (from, Action::Claim(claim(totals_of_root(task.root, in_units(task.data_paid)))))
        }
        // Alice is the account that the settlements debit, so she is the one who bonds.
        Action::Bond { .. } => (ALICE, action),
        // A close by the buyer becomes one by the coordinator; closes stay rare, since a closed
        // task ends a history.
        Action::Close { .. } if from == BUYER => (COORDINATOR, action),
        Action::AnnounceClose { .. } => (COORDINATOR, action),
        Action::Object(objection) => {
            let round = state.tasks[&TASK].round.map_or(0, |round| round.0);
            (from, self::objection(round + objection.receipt.round.0, true))
        }
        Action::Cancel { .. } | Action::Slash(_) => (ARBITER, action),
        Action::OpenTask(_) => (BUYER, action),
        other => (from, other),
    }
}

/// Executes a history; returns the kind of every executed action.
fn run_history(
    history: Vec<(u64, u8, bool, Action)>,
    state: &mut LedgerState,
) -> Vec<&'static str> {
    let (mut now, mut done) = (0, Vec::new());
    for (wait, from, guided, action) in history {
        now += wait;
        let (from, action) = if guided { make_valid(state, from, action) } else { (from, action) };
        let name = match &action {
            Action::Post(_) => "post",
            Action::Claim(_) => "claim",
            Action::Close { .. } => "close",
            Action::Slash(_) => "slash",
            Action::AnnounceClose { .. } => "announce close",
            Action::Object(_) => "object",
            _ => "other",
        };
        // `apply` checks conservation per task; `act` panics if it is violated.
        match execute(state, now, from, action) {
            Ok(TransactionOutcome::Claimed(ClaimOutcome { taken, .. })) if !taken.is_zero() => {
                done.push("debit")
            }
            Ok(_) => done.push(name),
            Err(_) => {}
        }
        assert_eq!(state.supply().unwrap(), units(5_000));
    }
    done
}

fn any_history() -> impl Strategy<Value = Vec<(u64, u8, bool, Action)>> {
    let step = (0u64..90, 1u8..=6, prop::bool::weighted(0.85), any_action());
    prop::collection::vec(step, 1..120)
}

#[test]
fn random_histories_execute_every_kind_of_action() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let mut done = std::collections::BTreeMap::new();
    for _ in 0..100 {
        let history = any_history().new_tree(&mut runner).unwrap().current();
        for name in run_history(history, &mut state_with_open_task()) {
            *done.entry(name).or_insert(0) += 1;
        }
    }
    let names = ["post", "claim", "debit", "close", "slash", "announce close", "object"];
    for name in names {
        assert!(done.get(name).is_some_and(|n| *n >= 10), "{done:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_supply_is_constant_in_every_history(history in any_history()) {
        let mut state = state_with_open_task();
        run_history(history, &mut state);
        let task = state.task(TASK).unwrap();
        prop_assert!(task.owed <= task.data_paid.plus(task.infrastructure_paid).unwrap());
    }

    #[test]
    fn a_stored_state_equals_the_state_read_back(history in any_history()) {
        let mut state = state_with_open_task();
        run_history(history, &mut state);
        let mut read = LedgerState::default();
        for (table, rows) in state.rows().unwrap() {
            for (key, value) in rows {
                read.restore(table, &key, &value.unwrap()).unwrap();
            }
        }
        prop_assert_eq!(read.digest().unwrap(), state.digest().unwrap());
        prop_assert_eq!(read.first_differing_table(&state), None);
    }
}
