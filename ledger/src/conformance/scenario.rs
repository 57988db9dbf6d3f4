//! A test ledger with its signers by role; the conservation of money is checked after every step.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use florin_protocol::merkle::{ClaimTotals, ClaimTree};
use florin_protocol::{
    Address, Amount, Digest, LedgerReceipt, Micro, Report, RoundNumber, TaskId, Timestamp,
    WalletSigner,
};

use crate::api::{
    BondState, Claim, Ledger, LedgerError, MemberShare, Objection, Refusal, Settlement, StakeState,
    TaskState, Terms,
};
use crate::conformance::{INITIAL_BALANCE, SIGNER_COUNT, TestLedger};

/// Challenge window of the test tasks.
pub(super) const CHALLENGE_MS: u64 = 600_000;
/// Time that bonds stay at risk after unbonding in the test tasks.
pub(super) const UNBOND_MS: u64 = 1_200_000;
/// Time until the test tasks expire.
pub(super) const LIFE_MS: u64 = 36_000_000;
/// Smallest bond, in florins.
pub(super) const BOND_MIN: u64 = 10;
/// Most that one round debits from a bond, in florins.
pub(super) const DEBIT_MAX: u64 = 8;
/// Smallest stake, in florins.
pub(super) const STAKE_MIN: u64 = 50;
/// In escrow for data, in florins.
pub(super) const DATA: u64 = 300;
/// In escrow for infrastructure, in florins.
pub(super) const INFRASTRUCTURE: u64 = 100;
/// Rounds of the test tasks: each adds 50 florins to the spendable part of [`DATA`].
pub(super) const ROUNDS: u32 = 6;
/// The most that is paid for scores per nat of improvement, in florins.
pub(super) const PER_NAT_MAX: u64 = 100;
/// The improvement that covers one florin of pay for scores, in nano-nats.
pub(super) const NANO_PER_FLORIN: u64 = 10_000_000;
/// Share of [`DATA`] that may be paid without improvement: 10 florins a round.
pub(super) const FLOOR_SHARE: Micro = Micro(200_000);

/// An amount of `n` florins.
pub(super) fn fln(n: u64) -> Amount {
    Amount::from_units(u128::from(n).saturating_mul(1_000_000_000_000_000_000))
}

/// The first and second task of a case, and one that is never opened.
pub(super) const TASK: TaskId = TaskId([0xa1; 32]);
pub(super) const OTHER_TASK: TaskId = TaskId([0xb2; 32]);
pub(super) const NO_TASK: TaskId = TaskId([0xc3; 32]);

/// Every readable value except the time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Snapshot {
    balances: Vec<Amount>,
    treasury: Amount,
    stakes: Vec<StakeState>,
    tasks: Vec<Option<TaskState>>,
    /// Per task and signer.
    bonds: Vec<(BondState, bool, ClaimTotals)>,
    /// Per task and signer.
    splits: Vec<Vec<MemberShare>>,
}

/// The totals of one account, paid and debited, in florins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TotalsInFlorins {
    pub(super) paid: u64,
    pub(super) debited: u64,
}

/// The totals of an account that was only paid.
pub(super) const fn paid(paid: u64) -> TotalsInFlorins {
    TotalsInFlorins { paid, debited: 0 }
}

/// The totals of an account that was only debited.
pub(super) const fn debited(debited: u64) -> TotalsInFlorins {
    TotalsInFlorins { paid: 0, debited }
}

impl TotalsInFlorins {
    pub(super) fn totals(self) -> ClaimTotals {
        ClaimTotals { paid: fln(self.paid), debited: fln(self.debited) }
    }
}

/// A test ledger with its signers by role.
pub(super) struct Scenario {
    test_ledger: TestLedger,
    last: Mutex<Option<Snapshot>>,
}

/// Fails unless two values are equal.
#[expect(clippy::needless_pass_by_value, reason = "an assertion is shorter without references")]
pub(super) fn expect_equal<T: PartialEq + Debug>(
    what: &str,
    got: T,
    expected: T,
) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, expected {expected:?}")) }
}

/// The value of a read, which must succeed.
fn expect_read<T>(answer: Result<T, LedgerError>) -> Result<T, String> {
    answer.map_err(|error| format!("a read failed: {error}"))
}

impl Scenario {
    pub(super) fn new(world: TestLedger) -> Result<Self, String> {
        let stage = Self { test_ledger: world, last: Mutex::new(None) };
        expect_equal("signers", stage.test_ledger.signers.len(), SIGNER_COUNT)?;
        let snapshot = stage.snapshot()?;
        let funded = snapshot.balances.iter().all(|balance| *balance == INITIAL_BALANCE);
        expect_equal("every signer is funded", funded, true)?;
        stage.check_conservation(&snapshot)?;
        stage.store_snapshot(snapshot);
        Ok(stage)
    }

    /// Announces the close of a task, waits for its moment, and closes the task. Returns the refund.
    pub(super) fn close_after_window(&self, task: TaskId) -> Result<Amount, String> {
        let coordinator = self.coordinator()?;
        self.ok(self.ledger().announce_close(coordinator, task))?;
        self.advance_past(CHALLENGE_MS);
        self.ok(self.ledger().close(coordinator, task))
    }

    /// The coordinator's receipt for an update of Alice in a round, as an objection.
    pub(super) fn objection(&self, task: TaskId, round: u32) -> Result<Objection, String> {
        let (sender, update) = (self.alice()?.address(), Digest([0x77; 32]));
        let receipt = LedgerReceipt { task, round: RoundNumber(round), sender, update };
        let hash = receipt.signing_hash(self.ledger().market().chain);
        let signature = self.coordinator()?.sign_typed_data(hash).map_err(|e| e.to_string())?;
        Ok(Objection { receipt, signature })
    }

    pub(super) fn ledger(&self) -> &dyn Ledger {
        self.test_ledger.ledger.as_ref()
    }

    fn signer(&self, position: usize) -> Result<&dyn WalletSigner, String> {
        let signer = self.test_ledger.signers.get(position);
        signer.map(AsRef::as_ref).ok_or_else(|| format!("the test ledger has no signer {position}"))
    }

    pub(super) fn buyer(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(0)
    }
    pub(super) fn coordinator(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(1)
    }
    pub(super) fn arbiter(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(2)
    }
    pub(super) fn alice(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(3)
    }
    pub(super) fn bob(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(4)
    }
    pub(super) fn provider(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(5)
    }
    pub(super) fn stranger(&self) -> Result<&dyn WalletSigner, String> {
        self.signer(6)
    }

    pub(super) fn advance(&self, ms: u64) {
        (self.test_ledger.advance)(ms);
    }

    /// Advances past the end of a delay that begins now.
    pub(super) fn advance_past(&self, delay_ms: u64) {
        self.advance(delay_ms.saturating_add(60_000));
    }

    /// Advances to the last moment before `at`, or a little earlier if the clock runs by itself.
    pub(super) fn advance_to_just_before(&self, at: Timestamp) -> Result<(), String> {
        let left = at.ms_since(self.now()?);
        let exact = left.saturating_sub(1);
        let early = left.saturating_sub(30_000).checked_div(1_000).unwrap_or_default();
        self.advance(if self.test_ledger.is_clock_exact {
            exact
        } else {
            early.saturating_mul(1_000)
        });
        expect_equal("the moment is still in the future", self.now()? < at, true)
    }

    /// Advances to that moment exactly, or to a little later if the clock runs by itself.
    pub(super) fn advance_to(&self, at: Timestamp) -> Result<(), String> {
        let left = at.ms_since(self.now()?);
        let seconds = left.div_ceil(1_000).saturating_mul(1_000);
        self.advance(if self.test_ledger.is_clock_exact { left } else { seconds });
        let now = self.now()?;
        expect_equal(
            "time reached",
            if self.test_ledger.is_clock_exact { now == at } else { now >= at },
            true,
        )
    }

    /// Checks that a bond can be withdrawn from exactly that moment on.
    pub(super) fn expect_withdrawable_at(
        &self,
        owner: &dyn WalletSigner,
        at: Timestamp,
    ) -> Result<(), String> {
        let early = |answer: Result<Amount, LedgerError>| match &answer {
            Err(LedgerError::Refused(Refusal::TooEarly { at: refused_until, .. })) => {
                expect_equal("the moment in the refusal", *refused_until, at)?;
                self.expect_refused("TOO_EARLY", answer)
            }
            other => Err(format!("expected TOO_EARLY, got {other:?}")),
        };
        early(self.ledger().withdraw_bond(owner, TASK))?;
        self.advance_to_just_before(at)?;
        early(self.ledger().withdraw_bond(owner, TASK))?;
        self.advance_to(at)
    }

    /// An upper bound of the time for which the clock runs by itself in a few steps, and at least the
    /// resolution of the clock.
    pub(super) fn clock_drift_ms(&self) -> u64 {
        if self.test_ledger.is_clock_exact { 1 } else { 60_000 }
    }

    pub(super) fn now(&self) -> Result<Timestamp, String> {
        expect_read(self.ledger().now())
    }

    pub(super) fn balance(&self, account: Address) -> Result<Amount, String> {
        expect_read(self.ledger().balance(account))
    }

    /// Checks the balance of an account that has gained this amount since the start.
    pub(super) fn expect_gained(&self, account: Address, gain: Amount) -> Result<(), String> {
        let expected = INITIAL_BALANCE.plus(gain).map_err(|error| error.to_string())?;
        expect_equal("balance after a gain", self.balance(account)?, expected)
    }

    pub(super) fn expect_lost(&self, account: Address, loss: Amount) -> Result<(), String> {
        let expected = INITIAL_BALANCE.minus(loss).map_err(|error| error.to_string())?;
        expect_equal("balance after a loss", self.balance(account)?, expected)
    }

    pub(super) fn task(&self, task: TaskId) -> Result<TaskState, String> {
        expect_read(self.ledger().task(task))?.ok_or_else(|| format!("task {task} does not exist"))
    }

    pub(super) fn bond_amount(&self, task: TaskId, account: Address) -> Result<Amount, String> {
        Ok(expect_read(self.ledger().bond_of(task, account))?.amount)
    }

    pub(super) fn expect_read<T>(&self, answer: Result<T, LedgerError>) -> Result<T, String> {
        expect_read(answer)
    }

    /// The value of a write that must succeed; money must be conserved.
    pub(super) fn ok<T>(&self, answer: Result<T, LedgerError>) -> Result<T, String> {
        let value = answer.map_err(|error| format!("refused, expected success: {error}"))?;
        let snapshot = self.snapshot()?;
        self.check_conservation(&snapshot)?;
        self.store_snapshot(snapshot);
        Ok(value)
    }

    /// Checks that a write was refused with this code and changed nothing.
    pub(super) fn expect_refused<T: Debug>(
        &self,
        code: &str,
        answer: Result<T, LedgerError>,
    ) -> Result<(), String> {
        match answer {
            Err(LedgerError::Refused(refusal)) => {
                expect_equal("refused with", refusal.code(), code)?
            }
            other => return Err(format!("expected {code}, got {other:?}")),
        }
        let snapshot = self.snapshot()?;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref() != Some(&snapshot) {
            return Err(format!("{code} changed the state: {last:?} became {snapshot:?}"));
        }
        Ok(())
    }

    fn store_snapshot(&self, snapshot: Snapshot) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(snapshot);
    }

    fn snapshot(&self) -> Result<Snapshot, String> {
        let ledger = self.ledger();
        let owners: Vec<Address> = self.test_ledger.signers.iter().map(|s| s.address()).collect();
        let mut snapshot = Snapshot {
            balances: Vec::new(),
            treasury: expect_read(ledger.treasury())?,
            stakes: Vec::new(),
            tasks: Vec::new(),
            bonds: Vec::new(),
            splits: Vec::new(),
        };
        for owner in &owners {
            snapshot.balances.push(expect_read(ledger.balance(*owner))?);
            snapshot.stakes.push(expect_read(ledger.stake_of(*owner))?);
        }
        for task in [TASK, OTHER_TASK] {
            snapshot.tasks.push(expect_read(ledger.task(task))?);
            for owner in &owners {
                let bond = expect_read(ledger.bond_of(task, *owner))?;
                snapshot.splits.push(expect_read(ledger.split_of(task, *owner))?);
                let pledged = expect_read(ledger.is_pledged(task, *owner))?;
                snapshot.bonds.push((
                    bond,
                    pledged,
                    expect_read(ledger.claimed_totals(task, *owner))?,
                ));
            }
        }
        Ok(snapshot)
    }

    /// Checks that the total of all accounts equals the supply, and that the conservation equation
    /// of each task holds.
    fn check_conservation(&self, snapshot: &Snapshot) -> Result<(), String> {
        let Snapshot { balances, treasury, stakes, tasks, bonds, .. } = snapshot;
        let mut all = balances.clone();
        all.push(*treasury);
        all.extend(stakes.iter().map(|stake| stake.amount));
        all.extend(bonds.iter().map(|(bond, ..)| bond.amount));
        let owners = self.test_ledger.signers.len();
        for (task, bonds) in tasks.iter().zip(bonds.chunks(owners.max(1))) {
            let Some(task) = task else { continue };
            let paid = [task.data_paid, task.infrastructure_paid];
            let locked = [task.data_locked, task.infrastructure_locked];
            all.extend(locked);
            all.push(task.owed);
            let accounted = total(paid.into_iter().chain(locked).chain([task.refunded]))?;
            let deposited = total([task.terms.data, task.terms.infrastructure])?;
            expect_equal("paid + refunded + locked", accounted, deposited)?;
            let claimed = bonds.iter().map(|(_, _, claimed)| claimed.paid);
            expect_equal("owed + claimed", total(claimed.chain([task.owed]))?, total(paid)?)?;
        }
        let supply = total(std::iter::repeat_n(INITIAL_BALANCE, owners))?;
        expect_equal("total of all accounts", total(all)?, supply)
    }

    /// The terms of the test tasks.
    pub(super) fn terms(&self, task: TaskId) -> Result<Terms, String> {
        Ok(Terms {
            task,
            buyer: self.buyer()?.address(),
            coordinator: self.coordinator()?.address(),
            arbiter: self.arbiter()?.address(),
            data: fln(DATA),
            infrastructure: fln(INFRASTRUCTURE),
            rounds: ROUNDS,
            per_nat_max: fln(PER_NAT_MAX),
            floor_share: FLOOR_SHARE,
            bond_min: fln(BOND_MIN),
            debit_max: fln(DEBIT_MAX),
            stake_min: fln(STAKE_MIN),
            challenge_ms: CHALLENGE_MS,
            unbond_ms: UNBOND_MS,
            expires: self.now()?.saturating_add_ms(LIFE_MS),
        })
    }

    /// Opens [`TASK`]; the coordinator's bond covers the whole deposit.
    pub(super) fn open_task(&self) -> Result<(), String> {
        self.open_task_without_bond()?;
        let all = fln(DATA.saturating_add(INFRASTRUCTURE));
        self.ok(self.ledger().bond(self.coordinator()?, TASK, all)).map(|_| ())
    }

    /// Opens [`TASK`].
    pub(super) fn open_task_without_bond(&self) -> Result<(), String> {
        let terms = self.terms(TASK)?;
        self.ok(self.ledger().open_task(self.buyer()?, &terms)).map(|_| ())
    }

    /// The root that the next settlement of [`TASK`] must continue.
    fn latest_root(&self) -> Result<Digest, String> {
        let Some(task) = expect_read(self.ledger().task(TASK))? else {
            return Ok(Digest::default());
        };
        Ok(task.pending.last().map_or(task.root, |pending| pending.settlement.root))
    }

    /// A settlement of [`TASK`] with these total payouts, in florins, all for scores that the model's
    /// improvement just covers. It continues the latest settlement: see [`continuing`].
    pub(super) fn settlement(
        &self,
        round: u32,
        alice: u64,
        bob: u64,
    ) -> Result<Settlement, String> {
        self.settlement_with_totals(round, paid(alice), paid(bob))
    }

    /// The same with debits.
    pub(super) fn settlement_with_totals(
        &self,
        round: u32,
        alice: TotalsInFlorins,
        bob: TotalsInFlorins,
    ) -> Result<Settlement, String> {
        let tree = self.tree(alice, bob)?;
        let (paid, florins) =
            (total([fln(alice.paid), fln(bob.paid)])?, alice.paid.saturating_add(bob.paid));
        Ok(Settlement {
            task: TASK,
            payout: Report::settlement_id(TASK, RoundNumber(round)),
            round: RoundNumber(round),
            report: Digest([0x55; 32]),
            previous_root: self.latest_root()?,
            root: tree.root(),
            data_total: paid,
            score_pay_total: paid,
            infrastructure_total: Amount::ZERO,
            improvement_total_nano: florins.saturating_mul(NANO_PER_FLORIN),
        })
    }

    fn tree(&self, alice: TotalsInFlorins, bob: TotalsInFlorins) -> Result<ClaimTree, String> {
        let leaves = [(self.alice()?, alice), (self.bob()?, bob)];
        let leaves = leaves.map(|(account, sums)| (account.address(), sums.totals()));
        Ok(ClaimTree::new(leaves.into_iter().filter(|(_, totals)| !totals.is_zero())))
    }

    /// Posts a settlement with these totals and finalises it.
    pub(super) fn settle(
        &self,
        round: u32,
        alice: TotalsInFlorins,
        bob: TotalsInFlorins,
    ) -> Result<(), String> {
        let settlement = self.settlement_with_totals(round, alice, bob)?;
        self.ok(self.ledger().post(self.coordinator()?, &settlement))?;
        self.advance_past(CHALLENGE_MS);
        expect_equal("due", self.ok(self.ledger().finalize(self.stranger()?, TASK))?, 1)
    }

    /// The moment at which the latest pending settlement was posted.
    pub(super) fn last_posted_at(&self) -> Result<Timestamp, String> {
        let task = self.task(TASK)?;
        let last = task.pending.last().ok_or("no settlement is pending")?;
        Ok(Timestamp(last.final_at.ms_since(Timestamp(CHALLENGE_MS))))
    }

    /// Alice's or Bob's claim under the totals of a settlement.
    pub(super) fn claim(&self, account: Address, alice: u64, bob: u64) -> Result<Claim, String> {
        self.claim_with_totals(account, paid(alice), paid(bob))
    }

    /// The same with debits.
    pub(super) fn claim_with_totals(
        &self,
        account: Address,
        alice: TotalsInFlorins,
        bob: TotalsInFlorins,
    ) -> Result<Claim, String> {
        let own = if account == self.alice()?.address() { alice } else { bob };
        let proof = self.tree(alice, bob)?.proof(account, own.totals());
        let proof = proof.ok_or_else(|| format!("{account} is not in the tree"))?;
        Ok(Claim { task: TASK, account, totals: own.totals(), proof })
    }
}

/// The settlement with another one as its predecessor, independently of the ledger's state.
pub(super) fn continuing(settlement: Settlement, previous: &Settlement) -> Settlement {
    Settlement { previous_root: previous.root, ..settlement }
}

pub(super) fn total(amounts: impl IntoIterator<Item = Amount>) -> Result<Amount, String> {
    Amount::total(amounts).map_err(|error| error.to_string())
}

/// The text of an error.
pub(super) fn failed(error: impl Into<Box<dyn std::error::Error>>) -> String {
    error.into().to_string()
}
