//! `florin task invite`: signs invitations to a task with the buyer's wallet. They are not sent to
//! the coordinator; each participant presents its own.

use florin_protocol::{
    Admission, Digest, Invitation, InvitationTerms, TaskId, Timestamp, WalletSigner,
};
use serde_json::json;

use crate::cli::TaskInvite;
use crate::commands::wallet;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show::{self, DIM};
use crate::task_file;

pub(super) fn run(arguments: &TaskInvite) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let task = market.find(&arguments.task)?;
    let spec = market.task(task)?.spec;
    let wallet = wallet::open(&arguments.wallet)?;
    if spec.buyer != wallet.address() {
        let message = format!("only the task's buyer, {}, can invite to it", spec.buyer);
        return Err(Failure::negative("UNAUTHORIZED", message).into());
    }
    if spec.admission != Admission::Invitation {
        let message = "the task requires no invitations: only one with members.admission = \
            \"invitation\" does";
        return Err(Failure::input("NO_INVITATIONS", message).into());
    }
    let expires = expiry(arguments, market.now(), spec.expires)?;
    let mut invitations = Vec::new();
    for _ in 0..arguments.count {
        let nonce = Digest(compose::random_bytes()?);
        let (market, account) = (spec.market, arguments.account);
        invitations.push(InvitationTerms { market, task, nonce, account, expires }.sign(&wallet)?);
    }
    print(arguments, task, &invitations)?;
    Ok(Exit::Done)
}

/// The expiry; not after the task's, which is also the default.
fn expiry(arguments: &TaskInvite, now: Timestamp, latest: Timestamp) -> anyhow::Result<Timestamp> {
    let Some(text) = &arguments.expires else {
        return Ok(latest);
    };
    let at = task_file::parse_moment(text, now)
        .map_err(|right| Failure::input("INVALID_ARGUMENT", format!("--expires: {right}")))?;
    if at <= now {
        let message =
            format!("--expires {text}: the invitation would have expired: use a later moment");
        return Err(Failure::input("INVALID_ARGUMENT", message).into());
    }
    Ok(at.min(latest))
}

fn print(arguments: &TaskInvite, task: TaskId, invitations: &[Invitation]) -> anyhow::Result<()> {
    if arguments.json.json {
        let of = |invitation: &Invitation| {
            json!({
                "invitation": invitation.to_string(),
                "task": invitation.task,
                "account": invitation.account,
                "expires": invitation.expires,
            })
        };
        return show::json(&invitations.iter().map(of).collect::<Vec<_>>());
    }
    for invitation in invitations {
        anstream::println!("{invitation}");
    }
    // On standard error, so that the invitations alone can be written to a file.
    anstream::eprintln!(
        "{DIM}Give each line to one participant, in private: the first account that uses it is \
         admitted.\nIt enrols with: florin participate --task {} --invitation TEXT{DIM:#}",
        task.short()
    );
    Ok(())
}
