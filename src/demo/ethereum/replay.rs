//! A replay of an Ethereum market on an embedded ledger: every event is replayed, with newly built
//! proofs, and all balances are compared.
//!
//! Two demonstrations on two ledgers cannot be compared directly: the holdout rows of a round
//! depend on the task's commitments and on the ledger's identity. Therefore one run supplies the
//! scores, and both ledgers pay by them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, bail};
use florin_engine::claim_proof;
use florin_ledger::{
    Claim, EmbeddedChain, Genesis, Ledger, LedgerClock, Settlement, SettlementStatus, Terms,
};
use florin_ledger_ethereum::MarketContract::MarketEvents;
use florin_ledger_ethereum::verify::TimedEvent;
use florin_ledger_ethereum::{EthereumLedger, Settings, to_address};
use florin_participant::Wallet;
use florin_protocol::{Address, Amount, Digest, Report, RoundNumber, TaskId, Timestamp};

use super::chain::DemoChain;
use crate::demo::setup::DemoSetup;
use crate::ethereum::node;

/// The result of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LedgerReplay {
    /// Number of replayed events.
    pub(crate) events: usize,
    /// Number of compared values.
    pub(crate) compared: usize,
    /// Descriptions of the mismatches.
    pub(crate) differences: Vec<String>,
}

/// Replays all events of the chain on an embedded ledger, and compares the balances.
pub(crate) fn compare(
    (chain, happened): (&DemoChain, &[TimedEvent]),
    stage: &DemoSetup,
    task: TaskId,
    reports: &[Report],
) -> anyhow::Result<LedgerReplay> {
    let begun = happened.first().context("the chain has no events")?.made;
    let outbox = node::outbox(Path::new(&stage.path("observer.json")));
    let ethereum_ledger = EthereumLedger::open(
        node::endpoint(&chain.rpc)?,
        chain.deployment,
        Settings::default(),
        &outbox,
    )?;
    let wallets = stage.wallets()?;
    let again = Replayer::new(stage, wallets, begun, reports)?;
    for (at, one) in happened.iter().enumerate() {
        again.replay_event(one).with_context(|| format!("event {at}, in block {}", one.block))?;
    }
    again.compare(&ethereum_ledger, task, happened.len())
}

/// An embedded ledger that replays the events of another ledger.
struct Replayer<'a> {
    chain: EmbeddedChain,
    clock: Arc<AtomicU64>,
    wallets: BTreeMap<Address, Wallet>,
    reports: &'a [Report],
}

fn task_id(task: impl Into<[u8; 32]>) -> TaskId {
    TaskId(task.into())
}

impl<'a> Replayer<'a> {
    fn new(
        stage: &DemoSetup,
        wallets: BTreeMap<Address, Wallet>,
        begun: Timestamp,
        reports: &'a [Report],
    ) -> anyhow::Result<Self> {
        let coordinator = wallets.get(&stage.coordinator).context("no coordinator")?;
        let genesis = Genesis {
            chain_id: crate::genesis_file::DEFAULT_CHAIN_ID,
            operator: stage.coordinator,
            operator_key: coordinator.node_signer().key(),
            allocations: stage.balances.iter().filter(|(_, p)| !p.is_zero()).copied().collect(),
            created: begun,
        };
        let path = stage.path("replay.redb");
        EmbeddedChain::create(Path::new(&path), &genesis)?;
        let clock = Arc::new(AtomicU64::new(begun.0));
        let now: LedgerClock = {
            let clock = Arc::clone(&clock);
            Arc::new(move || Timestamp(clock.load(Ordering::SeqCst)))
        };
        let chain = EmbeddedChain::open(Path::new(&path), coordinator.node_signer(), now)?;
        Ok(Self { chain, clock, wallets, reports })
    }

    fn wallet(&self, account: Address) -> anyhow::Result<&Wallet> {
        self.wallets
            .get(&account)
            .with_context(|| format!("no wallet of the demonstration has the account {account}"))
    }

    fn replay_event(&self, one: &TimedEvent) -> anyhow::Result<()> {
        self.clock.store(one.made.0, Ordering::SeqCst);
        let chain = &self.chain;
        match &one.event {
            MarketEvents::TaskOpened(e) => {
                let terms = Terms::from(&e.terms);
                chain.open_task(self.wallet(terms.buyer)?, &terms)?;
            }
            MarketEvents::Bonded(e) => {
                let amount = Amount::from_units(e.amount);
                chain.bond(self.wallet(to_address(e.account))?, task_id(e.task), amount)?;
            }
            MarketEvents::Unbonding(e) => {
                chain.unbond(self.wallet(to_address(e.account))?, task_id(e.task))?;
            }
            MarketEvents::BondWithdrawn(e) => {
                chain.withdraw_bond(self.wallet(to_address(e.account))?, task_id(e.task))?;
            }
            MarketEvents::Staked(e) => {
                chain.stake(self.wallet(to_address(e.provider))?, Amount::from_units(e.amount))?;
            }
            MarketEvents::Pledged(e) => {
                chain.pledge(self.wallet(to_address(e.provider))?, task_id(e.task))?;
            }
            MarketEvents::SettlementPosted(_)
            | MarketEvents::SettlementFinalised(_)
            | MarketEvents::TaskSettled(_) => self.settle(&one.event)?,
            MarketEvents::Claimed(e) => self.claim(task_id(e.task), to_address(e.account))?,
            MarketEvents::Debited(e) => self.claim(task_id(e.task), to_address(e.account))?,
            MarketEvents::CloseAnnounced(e) => {
                let task = task_id(e.task);
                self.chain
                    .announce_close(self.wallet(self.books(task)?.terms.coordinator)?, task)?;
            }
            // These events follow from others.
            MarketEvents::PledgeEnded(_) | MarketEvents::HeadCheckpointed(_) => {}
            other => bail!("unexpected event in a demonstration: {other:?}"),
        }
        Ok(())
    }

    fn books(&self, task: TaskId) -> anyhow::Result<florin_ledger::TaskState> {
        self.chain.task(task)?.context("the task was never opened")
    }

    fn settle(&self, event: &MarketEvents) -> anyhow::Result<()> {
        match event {
            MarketEvents::SettlementPosted(e) => {
                let (task, round) = (task_id(e.task), RoundNumber(e.round));
                let books = self.books(task)?;
                let last = books.pending.last().map(|pending| pending.settlement.root);
                let settlement = Settlement {
                    task,
                    payout: Report::settlement_id(task, round),
                    round,
                    report: Digest(e.report.0),
                    previous_root: last.unwrap_or(books.root),
                    root: Digest(e.root.0),
                    data_total: Amount::from_units(e.dataTotal),
                    score_pay_total: Amount::from_units(e.scorePayTotal),
                    infrastructure_total: Amount::from_units(e.infrastructureTotal),
                    improvement_total_nano: e.improvementTotalNano,
                };
                self.chain.post(self.wallet(books.terms.coordinator)?, &settlement)?;
            }
            MarketEvents::SettlementFinalised(e) => {
                let task = task_id(e.task);
                let payout = Report::settlement_id(task, RoundNumber(e.round));
                if self.chain.settlement_status(task, payout)? != SettlementStatus::Final {
                    let by = self.wallet(self.books(task)?.terms.coordinator)?;
                    self.chain.finalize(by, task)?;
                }
            }
            MarketEvents::TaskSettled(e) => {
                let task = task_id(e.task);
                self.chain.close(self.wallet(self.books(task)?.terms.coordinator)?, task)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// A claim can emit two events, so the second one is skipped.
    fn claim(&self, task: TaskId, account: Address) -> anyhow::Result<()> {
        let root = self.books(task)?.root;
        let report = self.reports.iter().find(|report| report.root == root);
        let proof = claim_proof(report.context("no report has the final root")?, account)?;
        if self.chain.claimed_totals(task, account)? == proof.totals {
            return Ok(());
        }
        let claim = Claim { task, account, totals: proof.totals, proof: proof.proof };
        self.chain.claim(self.wallet(account)?, &claim)?;
        Ok(())
    }

    fn compare(
        &self,
        there: &dyn Ledger,
        task: TaskId,
        events: usize,
    ) -> anyhow::Result<LedgerReplay> {
        let mut twin = LedgerReplay { events, compared: 0, differences: Vec::new() };
        let mut compare_value = |what: String, ethereum: String, embedded: String| {
            twin.compared += 1;
            if ethereum != embedded {
                let words =
                    format!("{what}: {ethereum} on Ethereum, {embedded} on the embedded ledger");
                twin.differences.push(words);
            }
        };
        let here: &dyn Ledger = &self.chain;
        for account in self.wallets.keys().copied() {
            let lines = |ledger: &dyn Ledger| -> anyhow::Result<[(&str, String); 4]> {
                Ok([
                    ("wallet", ledger.balance(account)?.to_string()),
                    ("bond", format!("{:?}", ledger.bond_of(task, account)?)),
                    ("stake", format!("{:?}", ledger.stake_of(account)?)),
                    ("claimed", format!("{:?}", ledger.claimed_totals(task, account)?)),
                ])
            };
            for ((what, ethereum), (_, embedded)) in lines(there)?.into_iter().zip(lines(here)?) {
                compare_value(format!("{what} of {account}"), ethereum, embedded);
            }
        }
        let books =
            |ledger: &dyn Ledger| Ok::<_, anyhow::Error>(format!("{:?}", ledger.task(task)?));
        compare_value("the task's state".to_owned(), books(there)?, books(here)?);
        let treasury = |ledger: &dyn Ledger| Ok::<_, anyhow::Error>(ledger.treasury()?.to_string());
        compare_value("treasury".to_owned(), treasury(there)?, treasury(here)?);
        Ok(twin)
    }
}
