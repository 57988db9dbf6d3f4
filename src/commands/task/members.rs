//! The admission to a task, and the reason why a task waits, in sentences.

use florin_protocol::{Admission, Amount, TaskEnd, TaskView, WaitingStatus};

use crate::show;

/// The accounts that may enrol; of an open task also the risk for its buyer.
pub(super) fn admission(admission: &Admission) -> String {
    match admission {
        Admission::Open => "open: any account may enrol; weights are capped per account, so one \
            person with several accounts can earn more than with one"
            .to_owned(),
        Admission::AllowList { accounts } => {
            format!("the {} accounts of the task's allow list", accounts.len())
        }
        Admission::Invitation => "accounts with an invitation of the buyer".to_owned(),
    }
}

/// Eligible participants that a waiting task still needs.
pub(super) fn missing(view: &TaskView) -> u32 {
    view.waiting.as_ref().map_or(0, |status| status.needed.saturating_sub(status.eligible))
}

/// The reason why the task waits; `None` if it waits for nothing or is about to start.
pub(super) fn waiting(view: &TaskView) -> Option<String> {
    let status = view.waiting.as_ref()?;
    let missing = missing(view);
    if missing == 0 {
        return None;
    }
    let reasons = reasons(status, view.enrolled, view.spec.budget.bond_min);
    let minimum = match view.now < status.target_until {
        true => format!(
            " From {} on, {} are enough.",
            show::date(status.target_until),
            view.spec.rounds.cohort_min
        ),
        false => String::new(),
    };
    Some(format!(
        "waits for {missing} more eligible {}: {reasons}.{minimum} Without them the task ends at \
         {}, and the rest of its budget is refunded.",
        plural(missing, "participant", "participants"),
        show::date(status.ends)
    ))
}

/// Why enrolled participants are not eligible.
fn reasons(status: &WaitingStatus, enrolled: u32, bond_min: Amount) -> String {
    let of = |count: u32| format!("{count} of {enrolled} enrolled");
    let mut reasons = Vec::new();
    if status.bond_too_small > 0 {
        let has = plural(status.bond_too_small, "has", "have");
        let count = of(status.bond_too_small);
        reasons.push(format!("{count} {has} a bond below {bond_min} FLN"));
    }
    if status.inactive > 0 {
        reasons.push(format!("{} missed a commit or an upload", of(status.inactive)));
    }
    match reasons.is_empty() {
        true => format!("{enrolled} enrolled, {} needed", status.needed),
        false => reasons.join(", "),
    }
}

const fn plural<'a>(count: u32, one: &'a str, many: &'a str) -> &'a str {
    if count == 1 { one } else { many }
}

/// Why no more rounds start.
pub(super) const fn end(why: TaskEnd) -> &'static str {
    match why {
        TaskEnd::Completed => "every round has a report",
        TaskEnd::ClosedByBuyer => "the buyer closed it",
        TaskEnd::SettlementInvalid => "a settlement was cancelled or rejected",
        TaskEnd::Expired => "no further round fits before it expires",
        TaskEnd::Stalled => "it had too few eligible participants for the time in rounds.stall",
        TaskEnd::RoundsAbandoned => "too many rounds in a row were abandoned",
        TaskEnd::ClosedOnLedger => "it was closed on the ledger",
        TaskEnd::Fault => "a fault of the coordinator; its log has the cause",
        TaskEnd::BlobsMissing => "its model or holdout did not arrive in time",
        TaskEnd::GaveWay => "the market was full, and it made room for a task with more money",
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::Timestamp;

    use super::*;

    #[test]
    fn the_reason_for_waiting_counts_participants() {
        let status = WaitingStatus {
            needed: 4,
            eligible: 2,
            bond_too_small: 1,
            inactive: 0,
            target_until: Timestamp(0),
            ends: Timestamp(1),
        };
        let least = "10".parse().unwrap();
        let text = |status: WaitingStatus, enrolled| reasons(&status, enrolled, least);
        assert_eq!(text(status, 3), "1 of 3 enrolled has a bond below 10 FLN");
        let several = WaitingStatus { bond_too_small: 2, inactive: 1, ..status };
        assert_eq!(
            text(several, 5),
            "2 of 5 enrolled have a bond below 10 FLN, 1 of 5 enrolled missed a commit or an upload"
        );
        let none = WaitingStatus { bond_too_small: 0, ..status };
        assert_eq!(text(none, 2), "2 enrolled, 4 needed");
    }
}
