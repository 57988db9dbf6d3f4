//! Checks receipts against reports: the updates that the coordinator accepted, and the entries that
//! it counted.

use florin_protocol::{Mismatch, NodeKey, Report, Signed, UpdateReceipt};

/// Returns the receipts of the report's round whose update is not among its entries, and those that
/// the coordinator did not sign. Receipts of other tasks and rounds are ignored.
pub(super) fn unhonoured_receipts(
    report: &Report,
    receipts: &[Signed<UpdateReceipt>],
    coordinator: NodeKey,
) -> Vec<Mismatch> {
    let mut found = Vec::new();
    for receipt in receipts.iter().filter(|receipt| receipt.body.scope == report.scope) {
        let UpdateReceipt { sender, update, commit_position, at, .. } = receipt.body;
        let line = |what: &str| format!("receipts[{sender}].{what}");
        if let Err(error) = receipt.verify(coordinator) {
            // Such a receipt proves nothing; report that to its holder.
            found.push(Mismatch::new(line("signature"), &"the coordinator's", &error));
            continue;
        }
        let entry = report.entries.iter().find(|entry| entry.sender == sender);
        if entry.is_none_or(|entry| entry.header != update) {
            let reported = entry.map_or("no entry".to_owned(), |entry| entry.header.to_string());
            found.push(Mismatch::new(line("update"), &reported, &update));
        }
        let place = report.entries.iter().position(|entry| entry.sender == sender);
        let stated = place.and_then(|place| report.times.updates.get(place));
        if let Some(stated) = stated.filter(|stated| **stated != at) {
            found.push(Mismatch::new(line("at"), stated, &at));
        }
        if let Some(entry) = entry.filter(|entry| entry.commit_position != commit_position) {
            found.push(Mismatch::new(
                line("commit_position"),
                &entry.commit_position,
                &commit_position,
            ));
        }
    }
    found
}
