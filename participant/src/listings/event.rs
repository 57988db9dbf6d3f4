//! News of a provider that lists devices.

use std::fmt;

use florin_compute::{Card, ListingOutcome};
use florin_protocol::{Amount, Digest, Timestamp};
use serde::Serialize;

use crate::event_json;

/// News. `Display` writes a line for people; the serialised form is an object for programs, whose key `event` has
/// the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ListingNews {
    /// The card is being measured.
    Measuring {
        /// Devices that work at once.
        devices: u32,
    },
    /// The card is measured.
    Measured {
        /// The card.
        card: Card,
    },
    /// The listing of an earlier run goes on, with its own terms.
    Resumed {
        /// The listing.
        listing: Digest,
    },
    /// Another listing of the account is open.
    Another {
        /// That listing.
        listing: Digest,
    },
    /// Fees and stake are on the ledger, and the listing is open.
    Opened {
        /// The listing.
        listing: Digest,
        /// The stake.
        #[serde(serialize_with = "event_json::amount")]
        stake: Amount,
        /// The fees of all probes.
        #[serde(serialize_with = "event_json::amount")]
        fees: Amount,
    },
    /// A probe began.
    Probing {
        /// Its number, from 1.
        number: u32,
        /// The milliseconds that it may take.
        limit_ms: u64,
    },
    /// A probe was computed.
    Computed {
        /// Its number.
        number: u32,
        /// The milliseconds that it took.
        ms: u64,
        /// The milliseconds that it may take.
        limit_ms: u64,
    },
    /// The coordinator has checked the links of a probe: bids count.
    Listed {
        /// The number of the probe.
        number: u32,
    },
    /// A lease was compared with its bid.
    LeaseMeasured {
        /// Number of measured leases.
        leases: usize,
        /// The sum in parts per million.
        drift: u64,
        /// The sum at which the stake is lost.
        limit: u64,
    },
    /// A probe failed; the listing goes on if there is time.
    ProbeFailed {
        /// The reason.
        why: String,
    },
    /// A request is sent again.
    Retrying {
        /// The reason.
        why: String,
    },
    /// The listing is over.
    Over {
        /// How it ended.
        outcome: ListingOutcome,
    },
    /// The stake returns later, so that a debit can still be proven.
    Locked {
        /// When it returns.
        until: Timestamp,
    },
    /// The stake has returned.
    Returned {
        /// The amount.
        #[serde(serialize_with = "event_json::amount")]
        amount: Amount,
    },
}

impl ListingNews {
    /// Whether it needs attention.
    #[must_use]
    pub const fn is_alarm(&self) -> bool {
        match self {
            Self::Over { outcome } => {
                matches!(outcome, ListingOutcome::Unproven | ListingOutcome::Contradicted { .. })
            }
            Self::ProbeFailed { .. } => true,
            _ => false,
        }
    }
}

impl fmt::Display for ListingNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Measuring { devices: 1 } => f.write_str("measuring a device"),
            Self::Measuring { devices } => write!(f, "measuring {devices} devices at once"),
            Self::Measured { card } => {
                let times: Vec<String> = (1..)
                    .map_while(|devices| card.links.on(devices))
                    .map(|us| us.to_string())
                    .collect();
                write!(f, "card: a link takes {} µs", times.join(", "))?;
                if times.len() > 1 {
                    write!(f, " with 1 to {} devices", times.len())?;
                }
                let (variation, storage) = (card.variation, card.storage_per_second);
                write!(f, "; variation {:.1} %", f64::from(variation) / 10_000.0)?;
                write!(
                    f,
                    "; {} ns and {} ps a byte between devices",
                    card.latency_ns, card.byte_ps
                )?;
                write!(f, "; storage {:.0} MB/s", storage as f64 / 1e6)
            }
            Self::Resumed { listing } => write!(
                f,
                "goes on with the stored terms of listing {}: changes of the file count for the next listing",
                listing.short()
            ),
            Self::Another { listing } => write!(
                f,
                "listing {} of this account is open, too, with a stake of its own: --unlist ends all",
                listing.short()
            ),
            Self::Opened { listing, stake, fees } => write!(
                f,
                "listing {} is open, with a stake of {stake} FLN and {fees} FLN for probes",
                listing.short()
            ),
            Self::Probing { number, limit_ms } => {
                write!(f, "probe {number}: all devices at once, within {limit_ms} ms")
            }
            Self::Computed { number, ms, limit_ms } => {
                write!(f, "probe {number}: computed in {ms} of {limit_ms} ms")
            }
            Self::Listed { number } => {
                write!(f, "probe {number} is proven: the devices are listed")
            }
            Self::LeaseMeasured { leases, drift, limit } => write!(
                f,
                "{leases} leases were compared with their bids: {:.1} of {:.1} %, at which the stake is lost",
                *drift as f64 / 10_000.0,
                *limit as f64 / 10_000.0
            ),
            Self::ProbeFailed { why } => write!(f, "the probe failed: {why}"),
            Self::Retrying { why } => write!(f, "retrying: {why}"),
            Self::Over { outcome } => write_outcome(f, *outcome),
            Self::Locked { until } => {
                write!(f, "the stake is locked until {until}, so that a debit can still be proven")
            }
            Self::Returned { amount } => write!(f, "{amount} FLN of the stake have returned"),
        }
    }
}

/// The end of a listing, in words.
fn write_outcome(f: &mut fmt::Formatter<'_>, outcome: ListingOutcome) -> fmt::Result {
    match outcome {
        ListingOutcome::Unproven => write!(
            f,
            "the listing is over: a probe was not proven in time. Start again to list anew, with fewer devices if \
                     the machine is busy; the stake of this listing returns meanwhile"
        ),
        ListingOutcome::Withdrawn => write!(f, "the listing is over: withdrawn"),
        ListingOutcome::Expired => {
            write!(f, "the listing is over: its life or its paid probes have ended")
        }
        ListingOutcome::Contradicted { order } => write!(
            f,
            "the listing is over and its stake is lost: leases took longer than their bids predicted, the last \
                     one of order {}",
            order.short()
        ),
    }
}
