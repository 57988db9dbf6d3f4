//! The outcome of a market for compute: what each account earned and lost, from verified records, and whether every
//! token is somewhere.

use florin_compute::{ComputeAccount, LeaseOutcome, OrderView};
use florin_ledger::lease_task;
use florin_protocol::{Address, Amount};
use serde_json::{Value, json};

use super::stage::ComputeStage;
use crate::market::MarketConnection;
use crate::rent::LeaseHistory;
use crate::rent::records::history;
use crate::show::{self, BAD, Cell, GOOD, TextTable};

/// An account's part in all leases.
#[derive(Debug, Default)]
struct AccountLine {
    name: &'static str,
    role: &'static str,
    won: u32,
    delivered: u32,
    slashed: u32,
    earned: Amount,
    lost: Amount,
}

/// The outcome of all orders.
pub(super) struct ComputeOutcome {
    accounts: Vec<AccountLine>,
    orders: usize,
    /// Leases that were slashed although their provider is honest.
    wrongly_slashed: u32,
    /// The name of the provider that cheats, the leases that it won, and those in which it lost its stake.
    cheat: Option<(&'static str, u32, u32)>,
    treasury: Amount,
    /// All balances and the treasury.
    found: Amount,
    supply: Amount,
}

/// Whether every account has claimed what the records owe it, and has its bonds back.
pub(super) fn is_paid_out(
    market: &MarketConnection,
    stage: &ComputeStage,
    views: &[OrderView],
) -> anyhow::Result<bool> {
    let ledger = market.ledger()?;
    for view in views {
        let task = lease_task(&view.order);
        let Some(history) = history(market, view)? else { continue };
        for account in &stage.accounts {
            let owed = history.lease().books().balance(ComputeAccount::Owed(*account));
            let paid = ledger.claimed_totals(task, *account)?.paid;
            if paid != owed || !ledger.bond_of(task, *account)?.amount.is_zero() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

impl ComputeOutcome {
    /// Folds the records of all orders, and reads all balances.
    pub(super) fn collect(market: &MarketConnection, stage: &ComputeStage) -> anyhow::Result<Self> {
        let views = market.orders()?;
        let mut histories = Vec::with_capacity(views.len());
        for view in &views {
            histories.extend(history(market, view)?);
        }
        let providers = stage.providers.iter().map(|one| (one.name, "provider", one.account));
        let auditors = stage.auditors.iter().map(|(name, account)| (*name, "auditor", *account));
        let mut accounts = Vec::new();
        for (name, role, account) in providers.chain(auditors) {
            let line = AccountLine { name, role, ..AccountLine::default() };
            accounts.push(count(line, account, &histories)?);
        }
        let honest =
            |account| stage.providers.iter().any(|one| one.account == account && !one.is_lazy);
        let wrong = histories.iter().filter(|history| {
            let provider = history.lease().award().map(|award| award.provider);
            let slashed = matches!(history.lease().outcome(), Some(LeaseOutcome::Slashed { .. }));
            slashed && provider.is_some_and(honest)
        });
        let wrongly_slashed = u32::try_from(wrong.count())?;
        let lazy = stage.providers.iter().find(|one| one.is_lazy).map(|one| one.name);
        let cheat = accounts.iter().find(|line| Some(line.name) == lazy);
        let cheat = cheat.map(|line| (line.name, line.won, line.slashed));
        let ledger = market.ledger()?;
        let treasury = ledger.treasury()?;
        let mut found = treasury;
        for account in &stage.accounts {
            found = found.plus(ledger.balance(*account)?)?;
        }
        let (orders, supply) = (views.len(), stage.supply);
        Ok(Self { accounts, orders, wrongly_slashed, cheat, treasury, found, supply })
    }

    /// Whether every token is somewhere, and no honest provider lost its stake.
    pub(super) fn is_clean(&self) -> bool {
        self.found == self.supply && self.wrongly_slashed == 0
    }

    /// Prints tables and sums.
    pub(super) fn print(&self) {
        let mut table = TextTable::new(&[
            "account",
            "role",
            ">won",
            ">delivered",
            ">slashed",
            ">earned, FLN",
            ">lost, FLN",
        ]);
        for line in &self.accounts {
            let lost = if line.lost.is_zero() { anstyle::Style::new() } else { BAD };
            let earned = if line.earned.is_zero() { anstyle::Style::new() } else { GOOD };
            table.row([
                line.name.into(),
                line.role.into(),
                line.won.into(),
                line.delivered.into(),
                line.slashed.into(),
                Cell::styled(show::fln(line.earned), earned),
                Cell::styled(show::fln(line.lost), lost),
            ]);
        }
        anstream::println!();
        table.print();
        let balances = self.found == self.supply;
        let (mark, style) = if balances { ("exactly", GOOD) } else { ("NOT EQUAL", BAD) };
        anstream::println!();
        show::labelled(
            "Money",
            &format!(
                "{} FLN allocated = {} FLN in wallets and treasury ({style}{mark}{style:#}), of which {} FLN \
                 are lost stakes and bonds",
                self.supply,
                self.found,
                show::fln(self.treasury)
            ),
        );
        let (style, wrong) =
            (if self.wrongly_slashed == 0 { GOOD } else { BAD }, self.wrongly_slashed);
        self.print_cheat();
        show::labelled(
            "Audit",
            &format!(
                "{} records recomputed, every signature checked; {style}{wrong} honest providers{style:#} lost \
                 a stake",
                self.orders
            ),
        );
    }

    /// The fate of the provider that cheats.
    fn print_cheat(&self) {
        let Some((name, won, slashed)) = self.cheat else { return };
        let text = match (won, slashed) {
            (0, _) => format!(
                "{name} counts every second segment without training it, and won no order here: try another --seed"
            ),
            (_, 0) => format!(
                "{name} counts every second segment without training it, and no audit was drawn on one of them"
            ),
            (_, _) => format!(
                "{name} counts every second segment without training it: it lost its stake in {BAD}{slashed} of \
                 {won} orders{BAD:#}, and another provider computed them"
            ),
        };
        show::labelled("Cheat", &text);
    }

    /// The outcome as JSON, with amounts in base units.
    pub(super) fn to_json(&self) -> Value {
        let accounts = self.accounts.iter().map(|line| {
            json!({
                "name": line.name,
                "role": line.role,
                "won": line.won,
                "delivered": line.delivered,
                "slashed": line.slashed,
                "earned": show::units(line.earned),
                "lost": show::units(line.lost),
            })
        });
        json!({
            "accounts": accounts.collect::<Vec<_>>(),
            "orders": self.orders,
            "honest_providers_slashed": self.wrongly_slashed,
            "treasury": show::units(self.treasury),
            "allocated": show::units(self.supply),
            "found": show::units(self.found),
        })
    }
}

fn count(
    mut line: AccountLine,
    account: Address,
    histories: &[LeaseHistory],
) -> anyhow::Result<AccountLine> {
    for history in histories {
        let lease = history.lease();
        let books = lease.books();
        line.earned = line.earned.plus(books.balance(ComputeAccount::Owed(account)))?;
        line.lost = line.lost.plus(books.balance(ComputeAccount::Forfeited(account)))?;
        if lease.award().map(|award| award.provider) == Some(account) {
            line.won += 1;
            line.delivered += u32::from(lease.outcome() == Some(LeaseOutcome::Settled));
            let slashed = matches!(lease.outcome(), Some(LeaseOutcome::Slashed { .. }));
            line.slashed += u32::from(slashed);
        }
    }
    Ok(line)
}
