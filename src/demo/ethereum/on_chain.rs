//! The Ethereum part of a demonstration: the gas per role, the check of the contracts against their
//! events, and the replay of all payments on an embedded ledger.

use std::collections::BTreeMap;

use anyhow::Context;
use florin_ledger_ethereum::MarketContract::MarketEvents;
use florin_ledger_ethereum::verify::{TimedEvent, history};
use florin_ledger_ethereum::{Deployment, Settings, transaction_costs};
use florin_protocol::{Address, Digest, Report, RoundNumber, SettlementId, TaskId};
use serde_json::{Value, json};

use super::chain::DemoChain;
use super::replay::{self, LedgerReplay};
use crate::demo::children::Children;
use crate::demo::setup::DemoSetup;
use crate::demo::words;
use crate::show::{self, BAD, GOOD, TextTable};

/// The transactions and the gas of one role.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Gas {
    pub(crate) transactions: u64,
    pub(crate) gas: u64,
    pub(crate) wei: u128,
}

/// The settlement of a round, from the market's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RoundSettlement {
    pub(crate) round: RoundNumber,
    pub(crate) payout: SettlementId,
    /// The block that posted it, and the block that finalised it.
    pub(crate) posted: u64,
    pub(crate) finalised: Option<u64>,
    /// Merkle root of the accounts' running totals.
    pub(crate) root: Digest,
}

/// All results about the chain.
#[derive(Debug)]
pub(crate) struct OnChain {
    /// The chain and its contracts.
    pub(crate) deployment: Deployment,
    /// The task's settlements, by round.
    pub(crate) settled: Vec<RoundSettlement>,
    /// By role, in the order of the table.
    pub(crate) gas: Vec<(&'static str, Gas)>,
    /// The numbers of compared and of mismatching values from `florin ledger verify`.
    pub(crate) verified: (u64, u64),
    pub(crate) replay: LedgerReplay,
}

const ROLES: [&str; 5] =
    ["deployment, funding", "coordinator", "buyer", "participants", "provider"];

impl OnChain {
    /// Examines the chain after the last claim.
    pub(crate) fn collect(
        chain: &DemoChain,
        (stage, children): (&DemoSetup, &mut Children),
        task: TaskId,
        reports: &[Report],
    ) -> anyhow::Result<Self> {
        let file = stage.path("deployment.toml");
        let call =
            words(&["ledger", "verify", "--json", "--rpc", &chain.rpc, "--deployment", &file]);
        let json = crate::demo::run_json(children, "verification", &call)?;
        let number =
            |key: &str| json[key].as_u64().context("`ledger verify` returned no such number");
        let verified = (number("compared")?, number("mismatching")?);
        let happened = history(&chain.endpoint()?, &chain.deployment, &Settings::default())?;
        let twin = replay::compare((chain, &happened), stage, task, reports)?;
        Ok(Self {
            deployment: chain.deployment,
            settled: settled(&happened, task, reports),
            gas: gas(chain, stage)?,
            verified,
            replay: twin,
        })
    }

    /// Whether there is no mismatch.
    pub(crate) fn is_clean(&self) -> bool {
        self.verified.1 == 0 && self.replay.differences.is_empty()
    }

    /// Prints the results below the table of participants.
    pub(crate) fn print(&self) {
        let (compared, differing) = self.verified;
        let style = |clean: bool| if clean { GOOD } else { BAD };
        let mark = style(differing == 0);
        let events = format!(
            "state rebuilt from events: {compared} values of the contracts compared, \
             {mark}{differing} mismatches{mark:#}"
        );
        show::labelled("Events", &events);
        let LedgerReplay { events, compared, differences } = &self.replay;
        let mark = style(differences.is_empty());
        let replay = format!(
            "{events} events replayed on an embedded ledger: {compared} balances compared, \
             {mark}{} mismatches{mark:#}",
            differences.len()
        );
        show::labelled("Replay", &replay);
        for line in differences {
            show::labelled("", &format!("{BAD}{line}{BAD:#}"));
        }
        let mut table = TextTable::new(&[
            "gas by role",
            ">transactions",
            ">gas",
            ">at 1 gwei, ETH",
            ">paid here, ETH",
        ]);
        for (role, gas) in &self.gas {
            table.row([
                (*role).into(),
                gas.transactions.into(),
                show::thousands(&gas.gas.to_string()).into(),
                show::ether(u128::from(gas.gas) * 1_000_000_000).into(),
                show::ether(gas.wei).into(),
            ]);
        }
        anstream::println!();
        table.print();
    }

    /// The results as JSON.
    pub(crate) fn to_json(&self) -> Value {
        let gas: serde_json::Map<String, Value> = self
            .gas
            .iter()
            .map(|(role, gas)| {
                let row = json!({
                    "transactions": gas.transactions,
                    "gas": gas.gas,
                    "wei": gas.wei.to_string(),
                });
                ((*role).to_owned(), row)
            })
            .collect();
        let settled = self.settled.iter().map(|one| {
            json!({
                "round": one.round,
                "payout": one.payout,
                "posted": one.posted,
                "final": one.finalised,
                "root": one.root,
            })
        });
        json!({
            "deployment": self.deployment,
            "settlements": settled.collect::<Vec<_>>(),
            "gas": gas,
            "verified": { "compared": self.verified.0, "differing": self.verified.1 },
            "twin": {
                "events": self.replay.events,
                "compared": self.replay.compared,
                "differences": self.replay.differences,
            },
        })
    }
}

/// The settlements of a task: the last settlement posted for each round, and the block that
/// finalised it.
fn settled(happened: &[TimedEvent], task: TaskId, reports: &[Report]) -> Vec<RoundSettlement> {
    let mut rounds: BTreeMap<RoundNumber, RoundSettlement> = BTreeMap::new();
    let payouts: BTreeMap<RoundNumber, SettlementId> =
        reports.iter().map(|report| (report.scope.round, report.settlement_id)).collect();
    for one in happened {
        match &one.event {
            MarketEvents::SettlementPosted(e) if TaskId(e.task.into()) == task => {
                let round = RoundNumber(e.round);
                let payout = payouts.get(&round).copied().unwrap_or_default();
                let root = Digest(e.root.into());
                let (posted, finalised) = (one.block, None);
                rounds.insert(round, RoundSettlement { round, payout, posted, finalised, root });
            }
            // The event names only the last of the settlements that were finalised together.
            MarketEvents::SettlementFinalised(e) if TaskId(e.task.into()) == task => {
                for (_, settled) in rounds.range_mut(..=RoundNumber(e.round)) {
                    settled.finalised.get_or_insert(one.block);
                }
            }
            _ => {}
        }
    }
    rounds.into_values().collect()
}

fn gas(chain: &DemoChain, stage: &DemoSetup) -> anyhow::Result<Vec<(&'static str, Gas)>> {
    let endpoint = chain.endpoint()?;
    let last = florin_ledger_ethereum::verify::read_market(
        &endpoint,
        &chain.deployment,
        &Settings::default(),
    )?;
    let mut roles: BTreeMap<Address, &'static str> = BTreeMap::new();
    roles.extend(stage.participants.iter().map(|actor| (actor.account, ROLES[3])));
    roles.insert(chain.deployer, ROLES[0]);
    roles.insert(stage.coordinator, ROLES[1]);
    roles.insert(stage.buyer, ROLES[2]);
    roles.insert(stage.provider, ROLES[4]);
    let mut sums: BTreeMap<&'static str, Gas> = BTreeMap::new();
    for one in transaction_costs(&endpoint, 0, last.block)? {
        let role = roles.get(&one.sender).context("an unknown account has spent gas")?;
        let sum = sums.entry(role).or_default();
        sum.transactions += 1;
        sum.gas += one.gas;
        sum.wei += one.wei;
    }
    Ok(ROLES.iter().map(|role| (*role, sums.remove(role).unwrap_or_default())).collect())
}
