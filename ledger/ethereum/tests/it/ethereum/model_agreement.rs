//! Equivalence of the implementations: random sequences of operations on the embedded chain, on the
//! contracts and on the model give the same outcomes, the same refusals and the same state.
//!
//! Time advances in whole seconds, the resolution of the contracts. `FLORIN_SEQUENCES` sets the
//! number of sequences; `FLORIN_SEED` reproduces a run and `FLORIN_SEQUENCE` one sequence of it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use alloy_sol_types::SolCall;
use florin_ledger::EmbeddedChain;
use florin_ledger_ethereum::MarketContract;
use florin_protocol::Address;

use super::market::{InProcessMarket, MarketTemplate};
use florin_testkit::ledger_model::accounts::{START, TestAccounts, task_id, units};
use florin_testkit::ledger_model::comparison::{Comparison, ModelMismatch};
use florin_testkit::ledger_model::coverage::Coverage;
use florin_testkit::ledger_model::generator::OperationGenerator;
use florin_testkit::ledger_model::model::{INITIAL_BALANCE, LedgerModel, PEOPLE};
use florin_testkit::ledger_model::operation::{Act, Operation, code_result, without_texts};
use florin_testkit::ledger_model::rng::{TestRng, env_number, seed};
use florin_testkit::ledger_model::{TestClock, fresh_model, genesis, operator};

/// Default number of sequences.
const SEQUENCES: u64 = 2_000;
/// Operations of a sequence, at least.
const STEPS: usize = 50;
/// Operations of a sequence in which the coordinator posts up to the limit of pending settlements.
const RAPID_POST_STEPS: usize = 100;
/// One sequence in this many is of that kind.
const RAPID_POST_PERIOD: u64 = 32;
/// The contracts get a new client, which has only the outbox, once in this many operations on
/// average.
const REOPEN_PERIOD: u64 = 30;
/// Number of initial operations that open and bond the first task: nearly all others need one.
const INITIAL_OPERATIONS: usize = 3;
/// Every readable value is compared after this many operations; the affected ones after each
/// operation.
const FULL_COMPARISON: usize = 25;

/// The outcomes of a run of the default length, each at least [`REQUIRED_COUNT`] times: every
/// outcome that the trait names, except a pledge beyond its limit, which takes 256 tasks.
const REQUIRED_OUTCOMES: [(&str, &[&str]); 23] = [
    ("bond", &["INSUFFICIENT_FUNDS", "TASK_CLOSED", "TOO_SMALL", "UNKNOWN_TASK", "done"]),
    ("cancel", &["NOT_FOUND", "UNAUTHORIZED", "UNKNOWN_TASK", "WINDOW_CLOSED", "done"]),
    ("claim", &["INVALID_PROOF", "INVALID_SETTLEMENT", "NOTHING_TO_CLAIM", "UNKNOWN_TASK"]),
    ("claim", &["done", "debited", "debited too late", "paid and debited", "of a silo"]),
    ("close", &["SETTLEMENT_PENDING", "TASK_CLOSED", "TOO_EARLY", "UNKNOWN_TASK", "done"]),
    ("finalize", &["UNKNOWN_TASK", "done", "nothing due"]),
    ("open", &["INSUFFICIENT_FUNDS", "INVALID_ARGUMENT", "LIMIT_EXCEEDED", "UNAUTHORIZED"]),
    ("open", &["TASK_EXISTS", "TOO_SMALL", "done"]),
    ("pledge", &["TASK_CLOSED", "TOO_SMALL", "UNKNOWN_TASK", "done"]),
    ("post", &["CONFLICTING_SETTLEMENT", "INVALID_SETTLEMENT", "LIMIT_EXCEEDED", "UNAUTHORIZED"]),
    ("post", &["TASK_CLOSED", "UNKNOWN_TASK", "already", "done"]),
    (
        "slash bond",
        &["INVALID_ARGUMENT", "NOT_FOUND", "TASK_CLOSED", "UNAUTHORIZED", "UNKNOWN_TASK"],
    ),
    ("slash bond", &["done"]),
    (
        "slash stake",
        &["INVALID_ARGUMENT", "NOT_FOUND", "TASK_CLOSED", "UNAUTHORIZED", "UNKNOWN_TASK"],
    ),
    ("slash stake", &["done"]),
    ("split", &["LIMIT_EXCEEDED", "SPLIT_FIXED", "SPLIT_INVALID", "SPLIT_TOO_LATE"]),
    ("split", &["TASK_CLOSED", "UNKNOWN_TASK", "done"]),
    ("stake", &["INSUFFICIENT_FUNDS", "INVALID_ARGUMENT", "done"]),
    ("transfer", &["INSUFFICIENT_FUNDS", "INVALID_ARGUMENT", "done"]),
    ("unbond", &["NOT_FOUND", "UNKNOWN_TASK", "done"]),
    ("unstake", &["NOT_FOUND", "done"]),
    ("withdraw bond", &["NOT_FOUND", "TOO_EARLY", "UNKNOWN_TASK", "done"]),
    ("withdraw stake", &["NOT_FOUND", "TOO_EARLY", "done"]),
];
/// The rarest of them occurs about forty times.
const REQUIRED_COUNT: u64 = 5;

/// The three implementations.
struct Implementations<'a> {
    cast: &'a TestAccounts,
    model: LedgerModel,
    clock: TestClock,
    chain: EmbeddedChain,
    market: InProcessMarket,
}

impl<'a> Implementations<'a> {
    fn new(cast: &'a TestAccounts, template: &MarketTemplate) -> Self {
        let clock = TestClock::default();
        clock.set(cast.tick(START));
        let seen = clock.to_ledger_clock();
        let chain = EmbeddedChain::in_memory(&genesis(cast), operator(), seen).unwrap();
        Self { cast, model: fresh_model(), clock, chain, market: template.market() }
    }

    fn wait(&mut self, seconds: i128) {
        self.model.now += seconds;
        self.clock.set(self.cast.tick(self.model.now));
        self.market.node.set_time(self.model.now as u64);
    }

    /// Executes an operation on all three.
    fn step(
        &mut self,
        operation: &Operation,
        coverage: &mut Coverage,
    ) -> Result<(), ModelMismatch> {
        let expected = operation.on_model(&mut self.model);
        coverage.record(operation, expected);
        let local = operation.on_ledger(&self.chain, self.cast);
        let contracts = operation.on_ledger(&self.market.ledger, self.cast);
        let agree =
            code_result(&local) == expected && without_texts(&local) == without_texts(&contracts);
        if agree {
            if let (Ok(_), Some(call)) = (expected, repeated_call(&operation.act)) {
                self.market.call_directly(&self.cast.people[operation.from], &call);
            }
            return Ok(());
        }
        Err(format!(
            "the model returns {expected:?}, the embedded chain {local:?}, the contracts {contracts:?}"
        ))
    }

    fn compare_each(
        &self,
        compare: impl Fn(&Comparison<'_>) -> Result<(), ModelMismatch>,
    ) -> Result<(), ModelMismatch> {
        let (model, cast) = (&self.model, self.cast);
        compare(&Comparison { ledger: &self.chain, model, cast })
            .map_err(|difference| format!("embedded chain, {difference}"))?;
        compare(&Comparison { ledger: &self.market.ledger, model, cast })
            .map_err(|difference| format!("contracts, {difference}"))
    }

    /// Compares the values that an operation may have changed.
    fn compare_affected(&self, operation: &Operation) -> Result<(), ModelMismatch> {
        self.compare_each(|side| {
            side.treasury()?;
            for n in [Some(operation.from), operation.counterparty()].into_iter().flatten() {
                side.wallet(n)?;
                operation.task().map_or(Ok(()), |t| side.account_in_task(n, t))?;
            }
            if let Act::Claim { t, who, .. } = operation.act
                && !self.model.tasks[t].splits[who].is_empty()
            {
                (0..PEOPLE).try_for_each(|n| side.wallet(n))?;
            }
            operation.task().map_or(Ok(()), |t| side.task(t))
        })
    }
}

/// The contract call of an operation whose repetition changes nothing.
fn repeated_call(act: &Act) -> Option<Vec<u8>> {
    match act {
        Act::Unbond { t } => {
            Some(MarketContract::unbondCall { id: task_id(*t).0.into() }.abi_encode())
        }
        Act::Pledge { t } => {
            Some(MarketContract::pledgeCall { id: task_id(*t).0.into() }.abi_encode())
        }
        Act::Unstake => Some(MarketContract::unstakeCall {}.abi_encode()),
        _ => None,
    }
}

/// One sequence, starting with a new market.
fn sequence(
    seed: u64,
    number: u64,
    cast: &TestAccounts,
    template: &MarketTemplate,
) -> Result<Coverage, ModelMismatch> {
    let mut dice = TestRng::for_run(seed, number);
    let mut sides = Implementations::new(cast, template);
    let mut coverage = Coverage::default();
    let mut story = Vec::new();
    let is_rushed = dice.once_in(RAPID_POST_PERIOD);
    let steps = if is_rushed { RAPID_POST_STEPS } else { STEPS };
    for n in 0..steps {
        let mut draw =
            OperationGenerator { dice: &mut dice, model: &sides.model, posts_rapidly: is_rushed };
        let (pause, operation) = match n {
            0..INITIAL_OPERATIONS => (0, draw.initial_operation(n)),
            _ => (draw.pause(), draw.operation()),
        };
        sides.wait(pause);
        if dice.once_in(REOPEN_PERIOD) {
            sides.market.reopen();
        }
        story.push(format!("{:>6} {operation:?}", sides.model.now));
        let is_full = n % FULL_COMPARISON == FULL_COMPARISON - 1 || n + 1 == steps;
        let step = sides.step(&operation, &mut coverage);
        let step = step.and_then(|()| match is_full {
            true => sides.compare_each(|side| side.all()),
            false => sides.compare_affected(&operation),
        });
        step.map_err(|difference| {
            let history = story.join("\n");
            format!(
                "{history}\n{difference}\nreproduce it with FLORIN_SEED={seed} FLORIN_SEQUENCE={number}"
            )
        })?;
    }
    Ok(coverage)
}

/// Runs sequences on all processors, until one fails.
fn run(seed: u64, numbers: std::ops::Range<u64>) -> Result<Coverage, ModelMismatch> {
    let cast = TestAccounts::new(1_000);
    let people: Vec<Address> = (0..PEOPLE).map(|n| cast.address(n)).collect();
    let template = MarketTemplate::new(&people, units(INITIAL_BALANCE), START as u64);
    let next = AtomicU64::new(numbers.start);
    let work = || -> Result<Coverage, ModelMismatch> {
        let mut coverage = Coverage::default();
        loop {
            let number = next.fetch_add(1, Ordering::SeqCst);
            if number >= numbers.end {
                return Ok(coverage);
            }
            let done = sequence(seed, number, &cast, &template);
            coverage.add(&done.inspect_err(|_| next.store(numbers.end, Ordering::SeqCst))?);
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut coverage = Coverage::default();
        for worker in workers {
            coverage.add(&worker.join().unwrap()?);
        }
        Ok(coverage)
    })
}

#[test]
fn model_embedded_chain_and_contracts_agree_under_random_histories() {
    let seed = seed();
    let numbers = match env_number("FLORIN_SEQUENCE") {
        Some(one) => one..one + 1,
        None => 0..env_number("FLORIN_SEQUENCES").unwrap_or(SEQUENCES),
    };
    let coverage = run(seed, numbers.clone()).unwrap_or_else(|difference| panic!("{difference}"));
    let (sequences, operations) = (numbers.end - numbers.start, coverage.total());
    println!("{sequences} sequences, {operations} operations\n{coverage}");
    if sequences >= SEQUENCES {
        coverage.assert_covered(&REQUIRED_OUTCOMES, REQUIRED_COUNT);
    }
}
