//! `florin silo`: the split of an account's pay in a task among members.

mod claim;
mod file;
mod show;
mod split;

use florin_ledger::{Ledger, MemberShare, split::member_payments};
use florin_protocol::{Address, Amount, TaskId};
use serde_json::{Value, json};

use crate::cli::{Participate, SiloCommand};
use crate::failure::{Exit, Failure};
use crate::show::{TextTable, fln, hint, units};

pub(super) fn run(command: SiloCommand) -> anyhow::Result<Exit> {
    match command {
        SiloCommand::Split(arguments) => split::run(&arguments),
        SiloCommand::Show(arguments) => show::run(&arguments),
        SiloCommand::Claim(arguments) => claim::run(&arguments),
    }
}

/// Names the number of members to which the pay of an account goes, if it has a split in the task.
pub(super) fn print_split(members: usize, task: TaskId, account: Address) {
    if members > 0 {
        let short = task.short();
        hint(&format!(
            "The pay of task {short} goes to {}: florin silo show --task {short} \
             --account {account}",
            counted_members(members)
        ));
    }
}

/// A number of members in words.
pub(super) fn counted_members(count: usize) -> String {
    if count == 1 { "1 member".to_owned() } else { format!("{count} members") }
}

/// The split of an account, which must have one.
///
/// # Errors
/// `NO_SPLIT`.
fn split_of(
    ledger: &dyn Ledger,
    task: TaskId,
    account: Address,
) -> anyhow::Result<Vec<MemberShare>> {
    let members = ledger.split_of(task, account)?;
    if members.is_empty() {
        let message = format!(
            "{account} has no split in task {}: all of its pay goes to the account. `florin silo \
             split` sets one before the account takes part",
            task.short()
        );
        return Err(Failure::negative("NO_SPLIT", message).into());
    }
    Ok(members)
}

/// The members' parts of an account's pay between two totals.
fn parts(
    members: &[MemberShare],
    before: Amount,
    after: Amount,
) -> anyhow::Result<Vec<(MemberShare, Amount)>> {
    let amounts = member_payments(members, before, after)?;
    Ok(members.iter().copied().zip(amounts).collect())
}

/// A list of members with their shares and one amount, for programs.
fn members_json(parts: &[(MemberShare, Amount)], name: &str) -> Value {
    let each = parts.iter().map(|(each, amount)| {
        let mut fields = json!({ "member": each.member, "share": each.share });
        fields[name] = units(*amount).into();
        fields
    });
    each.collect()
}

/// A table of members with their shares and one amount.
fn members_table(parts: &[(MemberShare, Amount)], title: &'static str) -> TextTable {
    let mut table = TextTable::new(&["member", ">share", title]);
    for (each, amount) in parts {
        table.row([each.member.into(), each.share.into(), fln(*amount).into()]);
    }
    table
}

/// The split of a participation's account, compared with the one that its command line expects.
///
/// # Errors
/// `SPLIT_DIFFERS`, before anything is deposited.
pub(super) fn check_participation(
    arguments: &Participate,
    ledger: &dyn Ledger,
    task: TaskId,
    account: Address,
) -> anyhow::Result<Vec<MemberShare>> {
    let members = ledger.split_of(task, account)?;
    let Some(path) = &arguments.split else { return Ok(members) };
    let expected = file::read(path)?;
    if members != expected {
        let (shown, short) = (path.display(), task.short());
        let held = match members.is_empty() {
            true => "has no split".to_owned(),
            false => format!("has another split, among {},", counted_members(members.len())),
        };
        let message = format!(
            "{account} {held} in task {short}, not that of {shown}: nothing was deposited. Set it \
             with `florin silo split --task {short} --file {shown}` from an account that has no \
             split and no bond in the task yet, or correct the file"
        );
        return Err(Failure::negative("SPLIT_DIFFERS", message).into());
    }
    Ok(members)
}
