//! `florin claim`: withdraws the earnings of a task and applies its debits, for any
//! account.

use std::path::Path;

use florin_ledger::Ledger;
use florin_participant::{
    ClaimSummary, claim, claim_fields, claim_from_reports, object_from_receipts, stored_tasks,
};
use florin_protocol::{Address, Amount, TaskId, WalletSigner};

use crate::cli::Claim;
use crate::commands::participate::state_folder;
use crate::commands::silo::print_split;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::{MarketConnection, find_task};
use crate::{ethereum, show};

pub(super) fn run(arguments: &Claim) -> anyhow::Result<Exit> {
    let (task, account, drawn, ledger) = match &arguments.from_state {
        Some(named) => {
            let folder = state_folder(named.as_deref(), &arguments.wallet.wallet);
            claim_from_state(arguments, &folder)?
        }
        None => {
            let market = connect(arguments)?;
            let task = market.find(&arguments.task)?;
            let wallet = wallet::open(&arguments.wallet)?;
            let ledger = market.signing_ledger(&wallet, &arguments.wallet)?;
            let account = arguments.account.unwrap_or(wallet.address());
            (task, account, claim(&market, &*ledger, &wallet, task, account)?, ledger)
        }
    };
    let balance = ledger.balance(account)?;
    let members = ledger.split_of(task, account)?.len();
    if arguments.json.json {
        let mut fields = claim_fields(&drawn);
        fields["account"] = account.to_string().into();
        fields["balance"] = show::units(balance).into();
        fields["members"] = members.into();
        show::json(&fields)?;
    } else {
        show::sentence(&summary(account, drawn, balance));
        print_split(members, task, account);
        if drawn.paid.is_zero() && drawn.taken.is_zero() {
            show::hint("A settlement can be claimed after its challenge window.");
        }
    }
    Ok(Exit::Done)
}

fn connect(arguments: &Claim) -> anyhow::Result<MarketConnection> {
    let Some(market) = arguments.market.market() else {
        let message = "no market: set its coordinator's URL with --market; without the \
            coordinator, give --from-state, --deployment and --rpc";
        return Err(Failure::input("NO_MARKET", message).into());
    };
    MarketConnection::connect(&market)
}

/// Claims with the reports in a participant's state folder. A deployment file names the contracts,
/// so the coordinator is not contacted; without one it gives access to its ledger, but no proof.
fn claim_from_state(
    arguments: &Claim,
    folder: &Path,
) -> anyhow::Result<(TaskId, Address, ClaimSummary, Box<dyn Ledger>)> {
    let task = find_task(&arguments.task, || Ok(stored_tasks(folder)?))?;
    let wallet = wallet::open(&arguments.wallet)?;
    let node = &arguments.market.node;
    let by = (&wallet, arguments.wallet.wallet.as_path());
    let ledger = match node.deployment.is_some() || arguments.market.market.is_none() {
        true => ethereum::ledger_without_coordinator(node, by)?,
        false => connect(arguments)?.signing_ledger(&wallet, &arguments.wallet)?,
    };
    if let Some(accepted) = object_from_receipts(&*ledger, &wallet, task, folder)?
        && !arguments.json.json
    {
        let taken = accepted.taken.short();
        let round = accepted.round;
        show::sentence(&format!(
            "Objected to the announced close of the task: round {round} is not settled. The \
             coordinator's bond of {taken} FLN went to the treasury."
        ));
    }
    let account = arguments.account.unwrap_or(wallet.address());
    let drawn = claim_from_reports(&*ledger, &wallet, (task, account), folder)?;
    Ok((task, account, drawn, ledger))
}

/// The result of a claim, in one sentence.
fn summary(account: Address, drawn: ClaimSummary, holds: Amount) -> String {
    let (paid, debited, holds) = (drawn.paid.short(), drawn.taken.short(), holds.short());
    match (drawn.paid.is_zero(), drawn.taken.is_zero()) {
        (true, true) => format!("{account} has nothing to claim now; its balance is {holds} FLN."),
        (false, true) => {
            format!("{paid} FLN were paid to {account}; its balance is {holds} FLN.")
        }
        (true, false) => format!(
            "{account} had no earnings to claim; {debited} FLN were debited from its bond. \
             Its balance is {holds} FLN."
        ),
        (false, false) => format!(
            "{paid} FLN were paid to {account}, and {debited} FLN were debited from its bond; \
             its balance is {holds} FLN."
        ),
    }
}
