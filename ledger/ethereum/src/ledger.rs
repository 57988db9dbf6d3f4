//! The trait [`Ledger`] on the contracts.

use std::path::Path;
use std::sync::Arc;

use alloy_primitives::U256;
use alloy_sol_types::{SolCall, SolEvent, SolEventInterface};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{
    Address, Amount, Canonical, Digest, MarketId as MarketName, Micro, SettlementId, TaskId,
    Timestamp, WalletSigner,
};

use super::check::check_deployment;
use super::contracts::Market::MarketEvents;
use super::contracts::{FlorinToken, Market, to_address};
use super::deployment::Deployment;
use super::endpoint::Endpoint;
use super::history::{HistoryCache, View};
use super::node::{BlockTag, NodeClient, TransactionReceipt};
use super::outbox::Intent;
use super::revert::{digest, saturating_amount};
use super::sender::{Execution, Sender};
use florin_ledger::Action;
use florin_ledger::TransactionOutcome;
use florin_ledger::ethereum::Settings;
use florin_ledger::limits::CONFIRMATIONS_MAX;
use florin_ledger::{
    BondState, Claim, ClaimOutcome, Ledger, LedgerError, MemberShare, Objection, PostOutcome,
    Settlement, SettlementStatus, Slash, StakeState, TaskState, Terms, TxId,
};

/// Characters of a market's genesis digest in an outbox.
const NAME_DIGITS: usize = 16;

/// The market's contracts behind a node, as a [`Ledger`].
///
/// Reads return the state of the newest block with [`Settings::confirmations`] confirmations, and
/// writes return once they have as many. Every write goes through an outbox, so that it is executed
/// once, despite crashes of this process and reorganisations of the chain.
pub struct EthereumLedger {
    pub(super) sender: Sender,
    pub(super) deployment: Deployment,
    market: MarketName,
    histories: HistoryCache,
}

impl std::fmt::Debug for EthereumLedger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("EthereumLedger");
        shown.field("node", &self.sender.node).field("deployment", &self.deployment);
        shown.finish_non_exhaustive()
    }
}

/// A contract's release time; zero means none.
fn release(ms: u64) -> Option<Timestamp> {
    (ms != 0).then_some(Timestamp(ms))
}

impl EthereumLedger {
    /// Opens the market of this deployment. `outbox` is a folder with one file for each account
    /// that writes.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`] if the node is unreachable, is on another chain, or does not
    /// have these contracts.
    pub fn open(
        endpoint: Arc<dyn Endpoint>,
        deployment: Deployment,
        settings: Settings,
        outbox: &Path,
    ) -> Result<Self, LedgerError> {
        if !(1..=CONFIRMATIONS_MAX).contains(&settings.confirmations) {
            return Err(LedgerError::Unavailable(format!(
                "confirmations = {}: set a value from 1 to {CONFIRMATIONS_MAX}",
                settings.confirmations
            )));
        }
        check_deployment(&endpoint, &deployment)?
            .map_err(|foreign| LedgerError::Unavailable(foreign.to_string()))?;
        let (node, chain) = (NodeClient(endpoint), deployment.chain.0);
        let market = deployment.market();
        let genesis = market.genesis.to_string();
        let genesis = genesis.trim_start_matches("0x").chars().take(NAME_DIGITS).collect();
        let sender = Sender::new(node, chain, settings, outbox, genesis)?;
        Ok(Self { sender, deployment, market, histories: HistoryCache::default() })
    }

    /// The addresses of the market's contracts.
    #[must_use]
    pub const fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// An account's balance for gas, in wei.
    ///
    /// # Errors
    /// [`LedgerError::Unavailable`].
    pub fn ether(&self, account: Address) -> Result<u128, LedgerError> {
        self.sender.node.ether(account)
    }

    /// Sends wei to an account, for its gas.
    ///
    /// # Errors
    /// [`LedgerError`]; `Gas` if the sender has too little.
    pub fn send_ether(
        &self,
        by: &dyn WalletSigner,
        to: Address,
        wei: u128,
    ) -> Result<TxId, LedgerError> {
        match self.sender.execute(by, &Intent::Ether(to, wei), self)? {
            Execution::Mined(receipt) => Ok(digest(receipt.transaction_hash)),
            Execution::Stands(_) => Ok(Digest::default()),
        }
    }

    pub(super) fn get<C: SolCall>(
        &self,
        getter: &C,
        at: BlockTag,
    ) -> Result<C::Return, LedgerError> {
        self.sender.node.call_getter(self.deployment.market, getter, at)
    }

    /// The confirmed state, always by block number: a lagging node returns an error rather than an
    /// older state.
    fn confirmed_tag(&self) -> Result<BlockTag, LedgerError> {
        self.sender.confirmed_block_monotonic().map(BlockTag::Block)
    }

    fn read<C: SolCall>(&self, getter: &C) -> Result<C::Return, LedgerError> {
        self.get(getter, self.confirmed_tag()?)
    }

    /// The split of an account's pay in the state of a block.
    pub(super) fn split_at(
        &self,
        task: TaskId,
        account: Address,
        at: BlockTag,
    ) -> Result<Vec<MemberShare>, LedgerError> {
        let getter = Market::splitOfCall { id: task.0.into(), account: account.0.into() };
        let share = |each: Market::MemberShare| MemberShare {
            member: to_address(each.member),
            share: Micro(each.share.into()),
        };
        Ok(self.get(&getter, at)?.into_iter().map(share).collect())
    }

    fn view(&self, task: TaskId, block: u64) -> Result<Option<View>, LedgerError> {
        let blocks = self.sender.settings.log_blocks_max;
        self.histories.view(&self.sender.node, &self.deployment, blocks, task, block)
    }

    /// A task in the newest state, on which its next transaction is executed.
    pub(super) fn latest_view(&self, task: TaskId) -> Result<Option<View>, LedgerError> {
        self.view(task, self.sender.node.latest_block_number()?)
    }

    fn confirmed_view(&self, task: TaskId) -> Result<Option<View>, LedgerError> {
        self.view(task, self.sender.confirmed_block_monotonic()?)
    }

    /// Fails while a reorganisation has removed transactions of this process that are being sent
    /// again: their effects are delayed, not absent.
    fn check_not_reorganised(&self) -> Result<(), LedgerError> {
        if self.sender.was_reorganised(self)? {
            let what = "the chain was reorganised; removed transactions are being sent again";
            return Err(LedgerError::Unavailable(what.to_owned()));
        }
        Ok(())
    }

    fn execute(
        &self,
        by: &dyn WalletSigner,
        action: Action,
    ) -> Result<(TxId, TransactionOutcome), LedgerError> {
        let id = action.digest();
        let intent = Intent::Act(action);
        let carried = self.sender.execute(by, &intent, self)?;
        let Intent::Act(action) = &intent else { return Ok((id, TransactionOutcome::Done)) };
        Ok(match carried {
            Execution::Stands(outcome) => (id, outcome),
            Execution::Mined(receipt) => {
                (digest(receipt.transaction_hash), self.outcome(action, &receipt))
            }
        })
    }

    fn execute_for_id(&self, by: &dyn WalletSigner, action: Action) -> Result<TxId, LedgerError> {
        self.execute(by, action).map(|(id, _)| id)
    }

    fn execute_for_amount(
        &self,
        by: &dyn WalletSigner,
        action: Action,
    ) -> Result<Amount, LedgerError> {
        match self.execute(by, action)?.1 {
            TransactionOutcome::Moved(amount) => Ok(amount),
            other => Err(unexpected_outcome(&other)),
        }
    }

    /// The outcome of a transaction, from its events.
    pub(super) fn outcome(
        &self,
        action: &Action,
        receipt: &TransactionReceipt,
    ) -> TransactionOutcome {
        let market = alloy_primitives::Address::from(self.deployment.market.0);
        let token = alloy_primitives::Address::from(self.deployment.token.0);
        let events = || {
            receipt
                .logs
                .iter()
                .filter(|log| log.address == market)
                .filter_map(|log| MarketEvents::decode_raw_log(&log.topics, &log.data).ok())
        };
        let moved = events().find_map(|event| match event {
            MarketEvents::BondWithdrawn(e) => Some(e.amount),
            MarketEvents::StakeWithdrawn(e) => Some(e.amount),
            MarketEvents::TaskSettled(e) => Some(e.refund),
            MarketEvents::Slashed(e) => Some(e.amount),
            MarketEvents::CloseObjected(e) => Some(e.taken),
            _ => None,
        });
        match action {
            Action::Post(_) => TransactionOutcome::Posted(PostOutcome::Posted),
            Action::Finalize { .. } => {
                let is_final = |e: &MarketEvents| matches!(e, MarketEvents::SettlementFinalised(_));
                let count = events().filter(is_final).count();
                TransactionOutcome::Finalised(u64::try_from(count).unwrap_or(u64::MAX))
            }
            Action::WithdrawBond { .. }
            | Action::WithdrawStake
            | Action::Close { .. }
            | Action::Slash(_)
            | Action::Object(_) => {
                TransactionOutcome::Moved(Amount::from_units(moved.unwrap_or_default()))
            }
            Action::Claim(_) => {
                // To the account, or to each member of its split.
                let payments = receipt.logs.iter().filter(|log| log.address == token);
                let payments = payments.filter_map(|log| {
                    FlorinToken::Transfer::decode_raw_log(log.topics.iter().copied(), &log.data)
                        .ok()
                        .filter(|sent| sent.from == market)
                        .map(|sent| sent.value)
                });
                let paid = payments.fold(U256::ZERO, U256::saturating_add);
                let taken = events().find_map(|event| match event {
                    MarketEvents::Debited(e) => Some(e.taken),
                    _ => None,
                });
                TransactionOutcome::Claimed(ClaimOutcome {
                    paid: saturating_amount(paid),
                    taken: Amount::from_units(taken.unwrap_or_default()),
                })
            }
            _ => TransactionOutcome::Done,
        }
    }
}

fn unexpected_outcome(outcome: &TransactionOutcome) -> LedgerError {
    LedgerError::Unavailable(format!("unexpected outcome of a transaction: {outcome:?}"))
}

impl Ledger for EthereumLedger {
    fn market(&self) -> MarketName {
        self.market
    }

    fn resume(&self, by: &dyn WalletSigner) -> Result<(), LedgerError> {
        self.sender.resume(by, self)
    }

    fn now(&self) -> Result<Timestamp, LedgerError> {
        // The next transaction is executed at a later time than the newest block's, never at an
        // earlier one.
        self.get(&Market::clockCall {}, BlockTag::Latest).map(Timestamp)
    }

    fn balance(&self, account: Address) -> Result<Amount, LedgerError> {
        let getter = FlorinToken::balanceOfCall { account: account.0.into() };
        let units =
            self.sender.node.call_getter(self.deployment.token, &getter, self.confirmed_tag()?)?;
        Ok(saturating_amount(units))
    }

    fn treasury(&self) -> Result<Amount, LedgerError> {
        self.read(&Market::treasuryCall {}).map(Amount::from_units)
    }

    fn task(&self, task: TaskId) -> Result<Option<TaskState>, LedgerError> {
        let view = self.confirmed_view(task)?;
        if view.is_none() {
            self.check_not_reorganised()?;
        }
        Ok(view.map(|view| view.to_state()))
    }

    fn bond_of(&self, task: TaskId, account: Address) -> Result<BondState, LedgerError> {
        let getter = Market::bondOfCall { id: task.0.into(), account: account.0.into() };
        let bond = self.read(&getter)?;
        self.check_not_reorganised()?;
        let (amount, release) = (Amount::from_units(bond.amount), release(bond.release));
        Ok(BondState { amount, release })
    }

    fn stake_of(&self, account: Address) -> Result<StakeState, LedgerError> {
        let stake = self.read(&Market::stakeOfCall { provider: account.0.into() })?;
        self.check_not_reorganised()?;
        let (amount, release) = (Amount::from_units(stake.amount), release(stake.release));
        Ok(StakeState { amount, release })
    }

    fn is_pledged(&self, task: TaskId, provider: Address) -> Result<bool, LedgerError> {
        self.read(&Market::pledgedCall { id: task.0.into(), provider: provider.0.into() })
    }

    fn claimed_totals(&self, task: TaskId, account: Address) -> Result<ClaimTotals, LedgerError> {
        let getter = Market::claimedCall { id: task.0.into(), account: account.0.into() };
        let claimed = self.read(&getter)?;
        let (paid, debited) =
            (Amount::from_units(claimed.paid), Amount::from_units(claimed.debited));
        Ok(ClaimTotals { paid, debited })
    }

    fn split_of(&self, task: TaskId, account: Address) -> Result<Vec<MemberShare>, LedgerError> {
        let members = self.split_at(task, account, self.confirmed_tag()?)?;
        if members.is_empty() {
            self.check_not_reorganised()?;
        }
        Ok(members)
    }

    fn settlement_status(
        &self,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<SettlementStatus, LedgerError> {
        let view = self.confirmed_view(task)?;
        let status = view.map_or(SettlementStatus::Unknown, |view| view.status(payout));
        if status != SettlementStatus::Final {
            self.check_not_reorganised()?;
        }
        if status == SettlementStatus::Unknown && self.sender.settings.confirmations > 1 {
            let at_tip = self.latest_view(task)?.map(|view| view.status(payout));
            if at_tip.is_some_and(|status| status != SettlementStatus::Unknown) {
                let what = "the settlement's block has too few confirmations yet";
                return Err(LedgerError::Unavailable(what.to_owned()));
            }
        }
        Ok(status)
    }

    fn transfer(
        &self,
        by: &dyn WalletSigner,
        to: Address,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Transfer { to, amount })
    }

    fn open_task(&self, by: &dyn WalletSigner, terms: &Terms) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::OpenTask(terms.clone()))
    }

    fn set_split(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        members: &[MemberShare],
    ) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::SetSplit { task, members: members.to_vec() })
    }

    fn bond(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        amount: Amount,
    ) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Bond { task, amount })
    }

    fn unbond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Unbond { task })
    }

    fn withdraw_bond(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        self.execute_for_amount(by, Action::WithdrawBond { task })
    }

    fn stake(&self, by: &dyn WalletSigner, amount: Amount) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Stake { amount })
    }

    fn pledge(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Pledge { task })
    }

    fn unstake(&self, by: &dyn WalletSigner) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Unstake)
    }

    fn withdraw_stake(&self, by: &dyn WalletSigner) -> Result<Amount, LedgerError> {
        self.execute_for_amount(by, Action::WithdrawStake)
    }

    fn post(
        &self,
        by: &dyn WalletSigner,
        settlement: &Settlement,
    ) -> Result<PostOutcome, LedgerError> {
        match self.execute(by, Action::Post(*settlement))?.1 {
            TransactionOutcome::Posted(posted) => Ok(posted),
            other => Err(unexpected_outcome(&other)),
        }
    }

    fn cancel(
        &self,
        by: &dyn WalletSigner,
        task: TaskId,
        payout: SettlementId,
    ) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::Cancel { task, payout })
    }

    fn finalize(&self, by: &dyn WalletSigner, task: TaskId) -> Result<u64, LedgerError> {
        match self.execute(by, Action::Finalize { task })?.1 {
            TransactionOutcome::Finalised(count) => Ok(count),
            other => Err(unexpected_outcome(&other)),
        }
    }

    fn claim(&self, by: &dyn WalletSigner, claim: &Claim) -> Result<ClaimOutcome, LedgerError> {
        match self.execute(by, Action::Claim(claim.clone()))?.1 {
            TransactionOutcome::Claimed(claimed) => Ok(claimed),
            other => Err(unexpected_outcome(&other)),
        }
    }

    fn close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<Amount, LedgerError> {
        self.execute_for_amount(by, Action::Close { task })
    }

    fn announce_close(&self, by: &dyn WalletSigner, task: TaskId) -> Result<TxId, LedgerError> {
        self.execute_for_id(by, Action::AnnounceClose { task })
    }

    fn object(&self, by: &dyn WalletSigner, objection: &Objection) -> Result<Amount, LedgerError> {
        self.execute_for_amount(by, Action::Object(*objection))
    }

    fn slash(&self, by: &dyn WalletSigner, slash: &Slash) -> Result<Amount, LedgerError> {
        self.execute_for_amount(by, Action::Slash(slash.clone()))
    }
}
