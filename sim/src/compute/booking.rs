//! The effects of a played lease: taken devices, pay and costs, measured times, and the rest of a job.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use florin_compute::{ComputeAccount, LeaseOutcome};
use florin_protocol::{Address, Timestamp};

use super::lease_play::{PlannedBid, PlayedLease};
use super::market::{ComputeMarket, Placement};
use super::members::shill_account;
use super::outcome::{ComputeLease, LeaseEnd};
use super::strategy::RenterStrategy;
use super::{ComputeError, HOUR_MS, florins};
use crate::market::amount_to_florins;

/// Florins of an hour in which a renter audits its private rows.
const OWN_AUDIT_COST: f64 = 1.0;

impl ComputeMarket<'_> {
    /// The winner's device is taken until it stops, and those of other bidders until the award.
    pub(super) fn book_devices(
        &mut self,
        placed: &Placement,
        bids: &[PlannedBid],
        played: &PlayedLease,
    ) {
        let provider = played.lease.award().map(|award| award.provider);
        // One device for an order, however many accounts of a machine bid for it.
        let mut taken = BTreeMap::<usize, bool>::new();
        for planned in bids {
            let account = self.members.accounts.iter().find(|own| own.address == planned.bidder);
            if let Some(account) = account {
                *taken.entry(account.machine).or_default() |= Some(planned.bidder) == provider;
            }
        }
        for (machine, is_lease) in taken {
            let until = if is_lease { played.ran.1 } else { played.awarded };
            if let Some(machine) = self.members.machines.get_mut(machine) {
                machine.take(placed.at_ms, until.0.max(played.awarded.0), is_lease);
            }
        }
        self.outcome.hours = self.outcome.hours.max(played.ended.0 as f64 / HOUR_MS as f64);
    }

    /// Books pay, debits and costs of all members.
    pub(super) fn book_money(
        &mut self,
        placed: &Placement,
        bids: &[PlannedBid],
        played: &PlayedLease,
    ) {
        let order = played.lease.order();
        let totals = played.lease.books().totals();
        let provider = played.lease.award().map(|award| award.provider);
        let mut debited = 0.0;
        for (account, totals) in &totals {
            debited += amount_to_florins(totals.debited);
            let shill = shill_account(placed.renter, 0).0[..12] == account.0[..12];
            let member = match shill {
                true => self.members.renters.get(placed.renter).map(|own| own.member),
                false => self.members.member_of(*account),
            };
            let Some(member) = member.and_then(|at| self.members.members.get_mut(at)) else {
                self.outcome.is_balanced = false;
                continue;
            };
            member.earned += florins(played.net(*account));
        }
        self.outcome.treasury += debited;
        if let Some(own) = self.members.renters.get(placed.renter).map(|own| own.member)
            && let Some(member) = self.members.members.get_mut(own)
        {
            member.earned -= amount_to_florins(played.spent());
            member.works += 1;
        }
        let hours = |step_us: f64, segments: u32| {
            step_us / 1e3 * f64::from(order.steps) * f64::from(segments) / HOUR_MS as f64
        };
        for (account, segments) in &played.computed {
            let Some(at) = self.members.member_of(*account) else { continue };
            let own = bids.iter().find(|planned| planned.bidder == *account);
            let (hours, cost) = match own.filter(|_| Some(*account) == provider) {
                Some(own) => {
                    let machine = self.members.accounts.iter().find(|of| of.address == *account);
                    let machine = machine.and_then(|of| self.members.machines.get(of.machine));
                    let cost = machine.map_or(0.0, |machine| machine.cost_per_hour);
                    (hours(own.plan.device_us as f64, *segments), cost)
                }
                None => (hours(self.scenario.order.step_ms * 1e3, *segments), self.audit_cost(at)),
            };
            if let Some(member) = self.members.members.get_mut(at) {
                member.cost += hours * cost;
                member.device_hours += if own.is_some() { hours } else { 0.0 };
            }
        }
        self.count_works(played, provider);
    }

    /// Florins of an hour in which a member computes audits.
    fn audit_cost(&self, member: usize) -> f64 {
        let group = self.members.members.get(member).map(|member| member.group.as_str());
        let group = group.and_then(|group| self.scenario.auditors.get(group));
        group.map_or(OWN_AUDIT_COST, |group| group.cost_per_hour)
    }

    fn count_works(&mut self, played: &PlayedLease, provider: Option<Address>) {
        let asked = played.asked.iter().map(|(_, auditor)| *auditor);
        for account in asked.chain(provider) {
            if let Some(at) = self.members.member_of(account)
                && let Some(member) = self.members.members.get_mut(at)
            {
                member.works += 1;
                if Some(account) == provider {
                    let outcome = played.lease.outcome();
                    member.slashed +=
                        u32::from(matches!(outcome, Some(LeaseOutcome::Slashed { .. })));
                    member.defaulted +=
                        u32::from(matches!(outcome, Some(LeaseOutcome::Defaulted { .. })));
                }
            }
        }
    }

    /// Compares the time of a lease with its bid, in the listing of its provider.
    pub(super) fn measure(&mut self, played: &PlayedLease) -> Result<(), ComputeError> {
        let (Some(listings), Some(award)) = (&mut self.listings, played.lease.award()) else {
            return Ok(());
        };
        let measured_us = played.lease.measured_us();
        let own = self.members.accounts.iter().position(|own| own.address == award.provider);
        let (Some(at), true) = (own, measured_us > 0) else { return Ok(()) };
        let times = (award.step_us, measured_us);
        listings.measure(at, played.lease.id(), times, played.ended)
    }

    pub(super) fn lease(
        &self,
        placed: &Placement,
        renter: &str,
        played: &PlayedLease,
    ) -> ComputeLease {
        let order = played.lease.order();
        let award = played.lease.award();
        let provider = award.map(|award| award.provider);
        let group = provider.and_then(|provider| self.members.member_of(provider));
        let group = group.and_then(|at| self.members.members.get(at)).map(|own| own.group.clone());
        let books = played.lease.books();
        let owed = |account| amount_to_florins(books.balance(ComputeAccount::Owed(account)));
        let paid = provider.map_or(0.0, owed);
        let spent = amount_to_florins(played.spent());
        let delivered = u32::try_from(played.lease.leaves().len()).unwrap_or(u32::MAX);
        let job_hours = self.scenario.order.step_ms * f64::from(order.steps) / HOUR_MS as f64
            * f64::from(delivered);
        let audits = played.computed.iter().filter(|(account, _)| Some(**account) != provider);
        ComputeLease {
            job: placed.job,
            renter: renter.to_owned(),
            provider: group.unwrap_or_default(),
            opened_hours: placed.at_ms as f64 / HOUR_MS as f64,
            hours: played.ran.1.ms_since(Timestamp(placed.at_ms)) as f64 / HOUR_MS as f64,
            end: match played.lease.outcome() {
                Some(LeaseOutcome::Settled) => LeaseEnd::Settled,
                Some(LeaseOutcome::Defaulted { .. }) => LeaseEnd::Defaulted,
                Some(LeaseOutcome::Slashed { .. }) => LeaseEnd::Slashed,
                Some(LeaseOutcome::Unawarded) | None => LeaseEnd::Unawarded,
            },
            delivered,
            audited: audits.map(|(_, segments)| segments).sum(),
            paid,
            audit_paid: spent - paid,
            price: (delivered > 0 && paid > 0.0).then(|| paid / job_hours),
        }
    }

    /// Counts a job that is done, or places what is left of it again.
    pub(super) fn place_again(
        &mut self,
        placed: &Placement,
        lease: &ComputeLease,
        played: &PlayedLease,
    ) {
        let done = match lease.end {
            LeaseEnd::Settled | LeaseEnd::Defaulted => placed.done.saturating_add(lease.delivered),
            LeaseEnd::Slashed | LeaseEnd::Unawarded => placed.done,
        };
        let is_fake = placed.is_fake || (done > placed.done && played.has_fakes);
        if done >= self.scenario.order.segments {
            self.complete(placed, played.ended.0, is_fake);
            return;
        }
        if placed.tries > 1 {
            let wait_ms = match lease.end {
                LeaseEnd::Unawarded => (self.scenario.order.retry_minutes * 60e3).round() as u64,
                _ => 0,
            };
            let at_ms = played.ended.0.saturating_add(wait_ms).saturating_add(1);
            let tries = placed.tries - 1;
            let next = Placement { at_ms, done, tries, is_fake, ..placed.clone() };
            self.waiting.push(Reverse(next));
        }
    }

    /// A result is worth the largest price of its order to a renter, and nothing to one that rents from itself. The
    /// members of a task are paid for their updates instead.
    fn complete(&mut self, placed: &Placement, ended_ms: u64, is_fake: bool) {
        self.outcome.jobs.1 += 1;
        let ordered = self.ordered_ms.get(placed.job as usize).copied().unwrap_or_default();
        let taken_ms = ended_ms.saturating_sub(ordered);
        self.outcome.completion_hours.push(taken_ms as f64 / HOUR_MS as f64);
        let Some((name, group)) = self.renter_group(placed.renter) else { return };
        if let Some(task) = self.scenario.task.as_ref().filter(|task| task.renters == name) {
            if taken_ms <= task.round_ms() && !is_fake {
                *self.in_time.entry(placed.renter).or_default() += 1;
            }
            return;
        }
        // A result that was not computed is worth nothing.
        if is_fake || matches!(group.strategy, RenterStrategy::Washes { .. }) {
            self.outcome.fake_results += u32::from(is_fake);
            return;
        }
        let terms = &self.scenario.order;
        let job_hours =
            terms.step_ms * f64::from(placed.steps) * f64::from(terms.segments) / HOUR_MS as f64;
        let own = self.members.renters.get(placed.renter).map(|own| own.member);
        if let Some(member) = own.and_then(|at| self.members.members.get_mut(at)) {
            member.earned += terms.price_max * job_hours;
            self.outcome.worth += terms.price_max * job_hours;
        }
    }
}
