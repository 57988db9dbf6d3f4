//! Why an account of a lease was paid or lost a deposit: which segment, by which auditor or referee, or by
//! silence in which phase.

use florin_compute::{ComputeAccount, Dispute, Lease, LeaseOutcome, Phase};
use florin_protocol::{Address, Amount};

use super::history::LeaseHistory;
use crate::show;

/// Most segments that a reason lists.
const SEGMENTS_SHOWN_MAX: usize = 8;

/// Why an account lost a deposit by the action between two states.
pub(super) fn loss_reason(
    history: &LeaseHistory,
    before: &Lease,
    after: &Lease,
    account: Address,
) -> String {
    let is_provider = before.award().is_some_and(|award| award.provider == account);
    let order = before.order();
    match before.phase().0 {
        Phase::Revealing if history.bid(account).is_some() => format!(
            "its bid could not win: it is above {} FLN, or a step is predicted to take more than {} µs",
            show::fln(order.price_max),
            order.step_us_max
        ),
        Phase::Revealing => "silence in the phase revealing: it did not open its bid".to_owned(),
        Phase::Funding => {
            "silence in the phase funding: it won and did not deposit its stake".to_owned()
        }
        Phase::Running => format!(
            "silence in the phase running: segment {} was not delivered by its deadline",
            before.leaves().len()
        ),
        Phase::Serving => format!(
            "silence in the phase serving: it did not serve the start of segment {}",
            lost_segment(after)
        ),
        Phase::Auditing => {
            let is_silent = |segment| !history.sealed.contains(&(segment, account));
            let asked = before.audited().filter(|(_, asked)| asked.contains(&account));
            let silent = asked.map(|(segment, _)| segment).filter(|segment| is_silent(*segment));
            format!("silence in the phase auditing: it sealed no end of {}", listed(silent))
        }
        Phase::Opening if is_provider => format!(
            "silence in the phase opening: it did not open the leaf of segment {}",
            lost_segment(after)
        ),
        Phase::Opening => {
            let sealed = history.sealed.iter().filter(|(_, auditor)| *auditor == account);
            let closed = sealed.filter(|pair| !history.opened.contains(*pair));
            let closed = closed.map(|(segment, _)| *segment);
            format!("silence in the phase opening: it did not open its end of {}", listed(closed))
        }
        phase => match before.dispute() {
            Some(dispute) => disputed(dispute, phase, account, before),
            None => format!("a default in the phase {}", phase.name()),
        },
    }
}

/// Why an account lost a deposit in a dispute.
fn disputed(dispute: &Dispute, phase: Phase, account: Address, before: &Lease) -> String {
    let Dispute { segment, auditor, .. } = dispute;
    if phase == Phase::Disputing {
        return format!(
            "silence in the phase disputing: it did not answer in the dispute over segment {segment}"
        );
    }
    let referee = before.order().referee.short();
    match account == *auditor {
        true => {
            format!("referee {referee} computed another state than its own in segment {segment}")
        }
        false => format!(
            "referee {referee} computed another state than its own in segment {segment}, which \
             auditor {} disputed",
            auditor.short()
        ),
    }
}

/// The segment over which a lease ended.
fn lost_segment(after: &Lease) -> String {
    match after.outcome() {
        Some(LeaseOutcome::Slashed { segment }) => segment.to_string(),
        _ => "?".to_owned(),
    }
}

/// Segments as a list of limited length.
pub(super) fn listed(segments: impl Iterator<Item = u32>) -> String {
    let all: Vec<String> = segments.map(|segment| segment.to_string()).collect();
    let plural = if all.len() == 1 { "segment" } else { "segments" };
    let more = if all.len() > SEGMENTS_SHOWN_MAX { ", …" } else { "" };
    let shown = all.len().min(SEGMENTS_SHOWN_MAX);
    format!("{plural} {}{more}", all.get(..shown).unwrap_or_default().join(", "))
}

/// Why an account is paid by the action between two states.
pub(super) fn gain_reason(before: &Lease, after: &Lease, account: Address, paid: Amount) -> String {
    let order = after.order();
    let delivered = after.leaves().len();
    if after.award().is_some_and(|award| award.provider == account) {
        return format!("{delivered} of {} segments delivered", order.segments);
    }
    let lost = |lease: &Lease, auditor| lease.books().balance(ComputeAccount::Forfeited(auditor));
    let was_right = |dispute: &&Dispute| {
        dispute.auditor == account
            && matches!(after.outcome(), Some(LeaseOutcome::Slashed { .. }))
            && before.phase().0 == Phase::Refereeing
            && lost(before, account) == lost(after, account)
    };
    let found = before.dispute().filter(was_right);
    let bounty = found.map_or(Amount::ZERO, |_| order.bounty());
    let fees = paid.minus(bounty).unwrap_or(paid);
    let audits = fees.units().checked_div(order.audit.fee.units()).unwrap_or_default();
    let audits_text = match audits {
        0 => String::new(),
        1 => format!("1 audit at {} FLN", show::fln(order.audit.fee)),
        many => format!("{many} audits at {} FLN", show::fln(order.audit.fee)),
    };
    match found {
        None => audits_text,
        Some(dispute) => {
            let bounty = format!(
                "the bounty of {} FLN: referee {} found its end of segment {} right",
                show::fln(bounty),
                order.referee.short(),
                dispute.segment
            );
            let parts = [audits_text, bounty];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            parts.join(", and ")
        }
    }
}
