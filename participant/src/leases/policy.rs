//! The policy of an account that computes orders: which ones it bids for, audits and referees, and
//! how much it deposits.

use std::collections::BTreeSet;

use florin_compute::{Bid, ComputeJob, ComputeOrder, DataClass, LeaseError, StepTimes};
use florin_ledger::Terms;
use florin_protocol::{Address, Amount, AmountError, Digest};

use super::executors::{DeviceSupply, check_supply};
use super::windows::{LEASE_WINDOW_MS, refuse_served_time, refuse_windows};
use crate::policy::DailyHours;

/// Shortest challenge window of an accepted order, unless the policy has another, in milliseconds:
/// ten minutes.
pub const LEASE_CHALLENGE_MS: u64 = 600_000;
/// Most segments of an accepted order, unless the policy has another number.
pub const LEASE_SEGMENTS_MAX: u32 = 10_000;
/// Largest blobs of an accepted job, together, unless the policy has another limit: 1 GiB.
pub const LEASE_JOB_BYTES: u64 = 1 << 30;
/// Largest states of an accepted order on disk, together, unless the policy has another limit: 16
/// GiB.
pub const LEASE_STATE_BYTES: u64 = 16 << 30;
/// Largest state that a provider leaves with the coordinator, unless the policy has another: 64 MiB.
const LEASE_CHECKPOINT_BYTES: u64 = 64 << 20;
/// Most leases that one provider computes at a time.
pub const LEASES_AT_ONCE_MAX: u32 = 8;
/// Most accepted referees.
pub const REFEREES_MAX: usize = 1_000;
/// A card states this many percent of the measured time of a step. A segment that takes longer than
/// its card and the order's slack allow costs a fine.
pub const CARD_MARGIN_PERCENT: u64 = 125;

const SECONDS_PER_HOUR: u128 = 3_600;

/// Which orders an account takes part in, and the limits of its deposits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasePolicy {
    /// The rule for bids; `None` bids for no order.
    pub bid: Option<BidRule>,
    /// The rule for audits; `None` audits no order.
    pub audit: Option<AuditRule>,
    /// The hours in which bids are sealed and audits joined; `None` for all. Leases that it has joined go on.
    pub hours: Option<DailyHours>,
    /// Whether the account computes the disputed step of orders that name it as their referee.
    pub referee: bool,
    /// The accepted referees. An order with another one is skipped.
    pub referees: Vec<Address>,
    /// Shortest challenge window of an order's task on the ledger, in milliseconds.
    pub challenge_min_ms: u64,
    /// Shortest window of an order for an action, in milliseconds.
    pub window_min_ms: u64,
    /// Most segments of an order.
    pub segments_max: u32,
    /// Most bytes of all blobs of a job.
    pub job_bytes_max: u64,
    /// The accepted data classes. An order of another one is skipped.
    pub data_classes: BTreeSet<DataClass>,
    /// Most bytes of all states of an order, which its provider stores until the lease is over.
    pub state_bytes_max: u64,
    /// Most bytes of a state that a provider leaves with the coordinator after each segment; 0 leaves none.
    pub checkpoint_bytes_max: u64,
    /// The devices of executors; `None` computes in the daemon.
    pub executors: Option<DeviceSupply>,
}

/// When an account bids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BidRule {
    /// Price of a useful hour of the device.
    pub per_hour: Amount,
    /// The most that all open stakes and bonds of bids are together, with those that were lost.
    pub stake_max: Amount,
    /// Leases that are computed at a time, from 1 to [`LEASES_AT_ONCE_MAX`].
    pub orders_max: u32,
}

/// When an account audits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditRule {
    /// The least pay for the audit of a segment.
    pub fee_min: Amount,
    /// The most that all open bonds of audits are together, with those that were lost.
    pub bond_max: Amount,
}

/// The part that an account would take in an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRole {
    /// It bids, and computes the segments if it wins.
    Provider,
    /// It computes drawn segments again.
    Auditor,
}

/// An order as a policy examines it.
#[derive(Clone, Copy, Debug)]
pub struct OfferedOrder<'a> {
    /// The order.
    pub order: &'a ComputeOrder,
    /// Its job.
    pub job: &'a ComputeJob,
    /// The terms of its task on the ledger.
    pub terms: &'a Terms,
    /// The class of this account's engine.
    pub class: Digest,
}

/// A policy is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {why}")]
pub struct LeasePolicyError {
    /// The key of the policy.
    pub key: &'static str,
    /// The value, and values that are valid.
    pub why: String,
}

impl LeasePolicy {
    /// A policy that takes part in no order.
    #[must_use]
    pub fn none() -> Self {
        Self {
            bid: None,
            audit: None,
            hours: None,
            referee: false,
            referees: Vec::new(),
            challenge_min_ms: LEASE_CHALLENGE_MS,
            window_min_ms: LEASE_WINDOW_MS,
            segments_max: LEASE_SEGMENTS_MAX,
            job_bytes_max: LEASE_JOB_BYTES,
            data_classes: [DataClass::Public, DataClass::Buyer, DataClass::Private].into(),
            state_bytes_max: LEASE_STATE_BYTES,
            checkpoint_bytes_max: LEASE_CHECKPOINT_BYTES,
            executors: None,
        }
    }

    /// Checks that the policy has a role, and that its numbers are in range.
    ///
    /// # Errors
    /// [`LeasePolicyError`] with the first key that is invalid.
    pub fn check(&self) -> Result<(), LeasePolicyError> {
        let wrong = |key, why: String| Err(LeasePolicyError { key, why });
        if self.bid.is_none() && self.audit.is_none() && !self.referee {
            return wrong("bid", "add [bid], [audit] or referee = true: it has no role".to_owned());
        }
        if let Some(BidRule { per_hour, stake_max, orders_max }) = self.bid {
            if per_hour.is_zero() || stake_max.is_zero() {
                return wrong("bid", "per_hour and stake_max must be more than 0".to_owned());
            }
            if !(1..=LEASES_AT_ONCE_MAX).contains(&orders_max) {
                let why = format!("{orders_max}: use 1 to {LEASES_AT_ONCE_MAX} leases");
                return wrong("bid.orders_max", why);
            }
        }
        if let Some(supply) = self.executors {
            let orders = self.bid.map(|rule| rule.orders_max);
            check_supply(supply, orders).or_else(|(key, why)| wrong(key, why))?;
        }
        if self.audit.is_some_and(|rule| rule.bond_max.is_zero()) {
            return wrong("audit.bond_max", "0: use more than 0".to_owned());
        }
        if self.referees.is_empty() && (self.bid.is_some() || self.audit.is_some()) {
            let why = "name the referees that you trust: a referee's ruling can take a deposit";
            return wrong("referees", why.to_owned());
        }
        if self.referees.len() > REFEREES_MAX {
            let why = format!("{} entries: use at most {REFEREES_MAX}", self.referees.len());
            return wrong("referees", why);
        }
        if self.data_classes.is_empty() {
            let why = "name at least one class: \"public\", \"buyer\", \"private\"";
            return wrong("data_classes", why.to_owned());
        }
        for (key, number) in [
            ("window_min", self.window_min_ms),
            ("segments_max", u64::from(self.segments_max)),
            ("job_bytes_max", self.job_bytes_max),
            ("state_bytes_max", self.state_bytes_max),
        ] {
            if number == 0 {
                return wrong(key, "0: use more than 0".to_owned());
            }
        }
        Ok(())
    }

    /// The devices of executors, as the leases of the policy use them.
    #[must_use]
    pub(in crate::leases) fn supply(&self) -> Option<DeviceSupply> {
        let orders = self.bid.map_or(0, |rule| rule.orders_max);
        self.executors.map(|supply| supply.for_leases(orders))
    }

    /// Leases that may share a device.
    #[must_use]
    pub fn sharing(&self) -> u32 {
        match (self.supply(), self.bid) {
            (Some(supply), _) => supply.leases_of_each(),
            (None, Some(rule)) => rule.orders_max,
            (None, None) => 1,
        }
    }

    /// Why the account takes no part of this kind in an order; `None` if it may.
    #[must_use]
    pub fn refuse(&self, role: LeaseRole, offer: &OfferedOrder<'_>) -> Option<String> {
        self.refuse_role(role, offer.order).or_else(|| self.refuse_order(offer))
    }

    /// The limits of a role.
    fn refuse_role(&self, role: LeaseRole, order: &ComputeOrder) -> Option<String> {
        match role {
            LeaseRole::Provider => {
                let Some(rule) = self.bid else {
                    return Some("the policy has no [bid]".to_owned());
                };
                let largest = order.deposits.stake.max(order.deposits.bid_bond);
                (largest > rule.stake_max).then(|| {
                    format!("its stake is {largest} FLN, and bid.stake_max {} FLN", rule.stake_max)
                })
            }
            LeaseRole::Auditor => {
                let Some(rule) = self.audit else {
                    return Some("the policy has no [audit]".to_owned());
                };
                let (fee, bond) = (order.audit.fee, order.deposits.audit_bond);
                if fee < rule.fee_min {
                    let least = rule.fee_min;
                    return Some(format!("its fee is {fee} FLN, and audit.fee_min {least} FLN"));
                }
                (bond > rule.bond_max).then(|| {
                    format!("its bond is {bond} FLN, and audit.bond_max {} FLN", rule.bond_max)
                })
            }
        }
    }

    /// The limits of every role.
    fn refuse_order(&self, offer: &OfferedOrder<'_>) -> Option<String> {
        let OfferedOrder { order, job, terms, class } = offer;
        if !self.referees.contains(&order.referee) {
            let referee = order.referee;
            return Some(format!("its referee {referee} is not one of the policy's referees"));
        }
        if !self.data_classes.contains(&order.data_class) {
            let class = order.data_class.name();
            return Some(format!(
                "its data class {class:?} is not one of the policy's data_classes"
            ));
        }
        if order.class != *class {
            let why = "its class is of another library, processor or vector instructions";
            return Some(format!("{why} than this engine's"));
        }
        if order.segments > self.segments_max {
            let (found, most) = (order.segments, self.segments_max);
            return Some(format!("it has {found} segments, and segments_max is {most}"));
        }
        if terms.challenge_ms < self.challenge_min_ms {
            let (found, least) = (terms.challenge_ms, self.challenge_min_ms);
            return Some(format!(
                "its challenge window is {found} ms, and challenge_min is {least} ms"
            ));
        }
        if let Some(why) = refuse_windows(order, self.window_min_ms) {
            return Some(why);
        }
        if let Some(why) = refuse_served_time(order, job) {
            return Some(why);
        }
        let (found, most) = (job.bytes(), self.job_bytes_max);
        if found > most {
            return Some(format!("its job has {found} bytes, and the policy allows {most}"));
        }
        let invalid = job.check().map_err(|error| error.to_string());
        invalid.and_then(|()| order.check_job(job).map_err(|error| error.to_string())).err()
    }
}

impl BidRule {
    /// The bid for a step that takes `step_us` on the device alone. Leases that share the device take that many
    /// times as long, each at that part of the price.
    ///
    /// # Errors
    /// [`LeaseError`] for a step that takes longer than a day.
    pub fn bid(&self, step_us: u64, sharing: u32) -> Result<Bid, LeaseError> {
        let us = step_us
            .saturating_mul(sharing.max(1).into())
            .saturating_mul(CARD_MARGIN_PERCENT)
            .div_ceil(100);
        let times = StepTimes::new(vec![us.max(1)])?;
        Ok(Bid { per_second: self.per_second(sharing)?, devices: 1, times })
    }

    /// The price of a second of one of the leases, rounded up.
    fn per_second(&self, sharing: u32) -> Result<Amount, AmountError> {
        let divisor = SECONDS_PER_HOUR.saturating_mul(sharing.max(1).into());
        Ok(Amount::from_units(self.per_hour.units().div_ceil(divisor)))
    }
}

/// Why a bid cannot win an order; `None` if it can.
#[must_use]
pub(super) fn refuse_bid(order: &ComputeOrder, bid: &Bid) -> Option<String> {
    if bid.can_win(order) {
        return None;
    }
    let us = bid.times.useful_us();
    if us > order.step_us_max {
        let most = order.step_us_max;
        return Some(format!("a step takes {us} µs here, and at most {most} µs in the order"));
    }
    let price = bid.price(order).map_or_else(|error| error.to_string(), |price| price.to_string());
    Some(format!("its price would be {price} FLN here, and price_max is {} FLN", order.price_max))
}

/// Why an auditor could be late, if all drawn segments are its own; `None` if there is enough time.
#[must_use]
pub(super) fn refuse_audit_time(order: &ComputeOrder, step_us: u64) -> Option<String> {
    let audited = u64::from(order.audited(order.segments));
    let steps = audited.saturating_mul(order.steps.into());
    let us = steps.saturating_mul(step_us).saturating_mul(CARD_MARGIN_PERCENT) / 100;
    let (needed, window) = (us.div_ceil(1_000), order.windows.audit);
    (needed > window).then(|| {
        format!("all its audits take up to {needed} ms here, and its window is {window} ms")
    })
}

#[cfg(test)]
#[path = "policy_tests.rs"]
pub(super) mod tests;
