//! Events of the daemon that takes part in leases.

use std::fmt;

use florin_protocol::{Address, Amount, Digest, Timestamp};
use serde::Serialize;

use super::policy::LeaseRole;
use crate::event_json;

/// One event. `Display` writes a line for people. The serialised form is an object for programs:
/// the key `event` has the name, amounts are in base units, and the names of events and keys are
/// stable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum LeaseEvent {
    /// The daemon runs an experimental behaviour.
    Experiment {
        /// The behaviour's name.
        behaviour: &'static str,
    },
    /// The daemon waits for orders.
    Serving {
        /// The account.
        account: Address,
        /// The class of its engine.
        class: Digest,
    },
    /// The account takes no part in an order.
    OrderSkipped {
        /// The order.
        order: Digest,
        /// The reason.
        reason: String,
    },
    /// A deposit in an order was raised.
    Deposited {
        /// The order.
        order: Digest,
        /// The amount added.
        #[serde(serialize_with = "event_json::amount")]
        added: Amount,
        /// The resulting bond.
        #[serde(serialize_with = "event_json::amount")]
        bond: Amount,
    },
    /// A bid is sealed.
    BidSealed {
        /// The order.
        order: Digest,
        /// Price of the order.
        #[serde(serialize_with = "event_json::amount")]
        price: Amount,
        /// The stated microseconds of a step.
        step_us: u64,
    },
    /// The bid is opened.
    BidOpened {
        /// The order.
        order: Digest,
    },
    /// The order is awarded to this account.
    Awarded {
        /// The order.
        order: Digest,
    },
    /// The stake is deposited, and the segments begin.
    Funded {
        /// The order.
        order: Digest,
    },
    /// An executor of the order's segments started.
    ExecutorStarted {
        /// The order.
        order: Digest,
        /// The kind of place where it runs.
        backend: &'static str,
        /// Its handle there: the number of a process or of a job.
        handle: String,
        /// Its devices.
        devices: u32,
        /// Whether another lease has its device, too.
        #[serde(rename = "shared")]
        is_shared: bool,
    },
    /// The end of a segment is left with the coordinator.
    CheckpointLeft {
        /// The order.
        order: Digest,
        /// The segment, from 0.
        segment: u32,
    },
    /// A segment is delivered.
    SegmentDelivered {
        /// The order.
        order: Digest,
        /// The segment, from 0.
        segment: u32,
        /// Segments of the order.
        of: u32,
    },
    /// The start of a drawn segment is served.
    StartServed {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
    },
    /// The state before the disputed step is uploaded for the referee.
    StepShown {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
        /// Steps of the segment before the state.
        step: u32,
    },
    /// The leaf of a segment is opened.
    LeafOpened {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
    },
    /// The account stands ready as an auditor.
    AuditJoined {
        /// The order.
        order: Digest,
    },
    /// The end of an audited segment is sealed.
    AuditSealed {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
    },
    /// The end of an audited segment is opened.
    AuditOpened {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
    },
    /// An answer in a dispute.
    DisputeAnswered {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
        /// The step after which the state was asked for, from 1.
        step: u32,
    },
    /// A ruling as the referee.
    Ruled {
        /// The order.
        order: Digest,
        /// The segment.
        segment: u32,
        /// The step, from 1.
        step: u32,
    },
    /// The lease is over for all accounts.
    LeaseOver {
        /// The order.
        order: Digest,
        /// How it ended, in words.
        outcome: String,
    },
    /// A deposit of this account is lost.
    Slashed {
        /// The order.
        order: Digest,
        /// The role in which it was lost.
        role: &'static str,
        /// The amount.
        #[serde(serialize_with = "event_json::amount")]
        amount: Amount,
    },
    /// The pay of a lease is in the wallet.
    Paid {
        /// The order.
        order: Digest,
        /// The amount.
        #[serde(serialize_with = "event_json::amount")]
        amount: Amount,
    },
    /// The return of the bond is requested.
    BondLocked {
        /// The order.
        order: Digest,
        /// The earliest moment of its return.
        until: Timestamp,
    },
    /// The bond is back in the wallet.
    BondReturned {
        /// The order.
        order: Digest,
        /// The amount.
        #[serde(serialize_with = "event_json::amount")]
        amount: Amount,
    },
    /// A step of an order failed, and is repeated.
    OrderRetrying {
        /// The order.
        order: Digest,
        /// The stable code of the error.
        code: &'static str,
        /// The error.
        #[serde(rename = "message")]
        why: String,
    },
    /// The coordinator or the ledger does not answer.
    Retrying {
        /// The error.
        #[serde(rename = "message")]
        why: String,
    },
    /// The daemon stopped on request.
    Stopped,
}

impl LeaseEvent {
    /// Whether a deposit is lost.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        matches!(self, Self::Slashed { .. })
    }

    /// Whether the event deserves attention without being a loss.
    #[must_use]
    pub const fn is_notice(&self) -> bool {
        matches!(self, Self::Experiment { .. } | Self::Retrying { .. } | Self::OrderRetrying { .. })
    }

    fn order(&self) -> Option<Digest> {
        match *self {
            Self::OrderSkipped { order, .. }
            | Self::Deposited { order, .. }
            | Self::BidSealed { order, .. }
            | Self::BidOpened { order }
            | Self::Awarded { order }
            | Self::Funded { order }
            | Self::ExecutorStarted { order, .. }
            | Self::CheckpointLeft { order, .. }
            | Self::SegmentDelivered { order, .. }
            | Self::StartServed { order, .. }
            | Self::StepShown { order, .. }
            | Self::LeafOpened { order, .. }
            | Self::AuditJoined { order }
            | Self::AuditSealed { order, .. }
            | Self::AuditOpened { order, .. }
            | Self::DisputeAnswered { order, .. }
            | Self::Ruled { order, .. }
            | Self::LeaseOver { order, .. }
            | Self::Slashed { order, .. }
            | Self::Paid { order, .. }
            | Self::BondLocked { order, .. }
            | Self::BondReturned { order, .. }
            | Self::OrderRetrying { order, .. } => Some(order),
            Self::Experiment { .. }
            | Self::Serving { .. }
            | Self::Retrying { .. }
            | Self::Stopped => None,
        }
    }
}

impl LeaseRole {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Provider => "provider",
            Self::Auditor => "auditor",
        }
    }
}

impl fmt::Display for LeaseEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(order) = self.order() {
            write!(f, "order {}: ", order.short())?;
        }
        match self {
            Self::OrderSkipped { reason, .. } => write!(f, "skipped: {reason}"),
            Self::Deposited { added, bond, .. } => {
                write!(f, "deposited {} FLN; {} FLN at risk", added.short(), bond.short())
            }
            Self::BidSealed { price, step_us, .. } => {
                write!(f, "sealed a bid of {} FLN, {step_us} µs a step", price.short())
            }
            Self::BidOpened { .. } => f.write_str("opened the bid"),
            Self::Awarded { .. } => f.write_str("awarded to this provider"),
            Self::Funded { .. } => f.write_str("funded; computing the segments"),
            Self::ExecutorStarted { backend, handle, devices, is_shared, .. } => {
                let plural = if *devices == 1 { "" } else { "s" };
                let beside = if *is_shared { ", beside another lease" } else { "" };
                write!(
                    f,
                    "started executor {handle} ({backend}) on {devices} device{plural}{beside}"
                )
            }
            Self::CheckpointLeft { segment, .. } => {
                write!(f, "left the end of segment {segment} with the coordinator")
            }
            Self::SegmentDelivered { segment, of, .. } => {
                let count = segment.saturating_add(1);
                write!(f, "delivered segment {segment}: {count} of {of}")
            }
            Self::StartServed { segment, .. } => {
                write!(f, "served the start of the drawn segment {segment}")
            }
            Self::StepShown { segment, step, .. } => write!(
                f,
                "showed the referee the state after step {step} of segment {segment}, which both sides have"
            ),
            Self::LeafOpened { segment, .. } => write!(f, "opened the leaf of segment {segment}"),
            Self::AuditJoined { .. } => f.write_str("stands ready as an auditor"),
            Self::AuditSealed { segment, .. } => write!(f, "sealed its end of segment {segment}"),
            Self::AuditOpened { segment, .. } => write!(f, "opened its end of segment {segment}"),
            Self::DisputeAnswered { segment, step, .. } => {
                write!(
                    f,
                    "answered in the dispute of segment {segment}: the state after step {step}"
                )
            }
            Self::Ruled { segment, step, .. } => {
                write!(f, "ruled on step {step} of segment {segment}")
            }
            Self::LeaseOver { outcome, .. } => write!(f, "the lease is over: {outcome}"),
            Self::Slashed { role, amount, .. } => {
                write!(f, "ALARM: lost {} FLN as {role}", amount.short())
            }
            Self::Paid { amount, .. } => write!(f, "claimed {} FLN", amount.short()),
            Self::BondLocked { until, .. } => {
                write!(f, "the bond is locked until {until}, so that debits can still be applied")
            }
            Self::BondReturned { amount, .. } => {
                write!(f, "withdrew the bond of {} FLN", amount.short())
            }
            Self::OrderRetrying { code, why, .. } => write!(f, "retrying: {why} [{code}]"),
            other => other.fmt_daemon(f),
        }
    }
}

impl LeaseEvent {
    fn fmt_daemon(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Experiment { behaviour } => write!(f, "experiment: {behaviour}"),
            Self::Serving { account, class } => {
                write!(f, "{account} waits for orders of class {}", class.short())
            }
            Self::Retrying { why } => write!(f, "retrying: {why}"),
            Self::Stopped => f.write_str("stopped; run the same command again to continue"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_has_its_name_first_and_amounts_in_base_units() {
        let order = Digest([7; 32]);
        let amount = Amount::from_units(5);
        let delivered = LeaseEvent::SegmentDelivered { order, segment: 2, of: 9 };
        let skipped = LeaseEvent::OrderSkipped { order, reason: "no".to_owned() };
        for (event, expected) in [
            (
                LeaseEvent::Paid { order, amount },
                json!({ "event": "paid", "order": order, "amount": "5" }),
            ),
            (
                delivered.clone(),
                json!({ "event": "segment_delivered", "order": order, "segment": 2, "of": 9 }),
            ),
            (skipped, json!({ "event": "order_skipped", "order": order, "reason": "no" })),
            (LeaseEvent::Stopped, json!({ "event": "stopped" })),
        ] {
            let text = serde_json::to_string(&event).unwrap();
            let name = expected["event"].as_str().unwrap();
            assert!(text.starts_with(&format!("{{\"event\":\"{name}\"")), "{text}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), expected);
        }
        assert!(delivered.to_string().ends_with(": delivered segment 2: 3 of 9"), "{delivered}");
    }
}
