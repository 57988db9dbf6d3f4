//! A market for compute under virtual time: orders arrive, are leased, and are placed again until they have a result.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use florin_compute::ComputeOrder;
use florin_protocol::{Digest, Timestamp, blob_digest};

use super::lease_play::{HashWork, LeasePlan, play_lease};
use super::listings::Listings;
use super::members::ComputeMembers;
use super::outcome::ComputeOutcome;
use super::rented_task::TaskMembers;
use super::scenario::{ComputeScenario, RenterGroup};
use super::strategy::{CoordinatorStrategy, RenterStrategy};
use super::{ComputeError, HOUR_MS};
use crate::random::{stream, uniform};

/// Most arrivals of a group, with those that its load leaves out.
const ARRIVALS_MAX: u64 = 1_000_000;
/// The part of all florins that rounding may leave without an owner.
const LEFT_MAX: f64 = 1e-9;

/// A job that is waiting for a lease. The earliest comes first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Placement {
    pub(super) at_ms: u64,
    /// The job, by its group of renters and its number in the group's arrivals.
    pub(super) key: u64,
    pub(super) job: u32,
    pub(super) renter: usize,
    /// Steps of a segment.
    pub(super) steps: u32,
    /// Segments that are done, and the tries that are left.
    pub(super) done: u32,
    pub(super) tries: u32,
    /// Whether segments before were not computed.
    pub(super) is_fake: bool,
}

impl Placement {
    /// A number of the order, which does not depend on other jobs: draws for it are equal in all markets of a seed.
    pub(super) fn nonce(&self) -> u64 {
        self.key << 8 | u64::from(self.tries)
    }
}

/// A market of one seed.
pub(super) struct ComputeMarket<'a> {
    pub(super) scenario: &'a ComputeScenario,
    pub(super) seed: u64,
    pub(super) members: ComputeMembers,
    pub(super) listings: Option<Listings>,
    task: Option<TaskMembers>,
    /// Trainings of a task's members that ended before the next round, by renter.
    pub(super) in_time: BTreeMap<usize, u32>,
    pub(super) waiting: BinaryHeap<Reverse<Placement>>,
    /// When each job was ordered first.
    pub(super) ordered_ms: Vec<u64>,
    pub(super) outcome: ComputeOutcome,
}

impl<'a> ComputeMarket<'a> {
    /// Draws members and arrivals.
    ///
    /// # Errors
    /// [`ComputeError`] for listings that the rules refuse.
    pub(super) fn new(scenario: &'a ComputeScenario, seed: u64) -> Result<Self, ComputeError> {
        let members = ComputeMembers::draw(scenario, seed);
        let open = |settings| Listings::open(scenario, settings, &members, seed);
        let listings = scenario.listing.as_ref().map(open).transpose()?;
        let devices = scenario.providers.values().map(|group| group.count * group.devices).sum();
        let outcome = ComputeOutcome {
            seed,
            members: Vec::new(),
            leases: Vec::new(),
            jobs: (0, 0),
            completion_hours: Vec::new(),
            treasury: 0.0,
            worth: 0.0,
            data_paid: 0.0,
            fake_results: 0,
            trainings: 0,
            in_time: 0,
            hours: 0.0,
            devices,
            is_balanced: true,
        };
        let task = scenario.task.as_ref().map(|task| task.play(scenario, seed)).transpose()?;
        let (waiting, ordered_ms) = (BinaryHeap::new(), Vec::new());
        let mut market = Self {
            scenario,
            seed,
            members,
            listings,
            task,
            in_time: BTreeMap::new(),
            waiting,
            ordered_ms,
            outcome,
        };
        market.draw_arrivals();
        Ok(market)
    }

    /// Orders arrive as a Poisson process whose rate follows the group's load (thinning; P. A. W. Lewis and
    /// G. S. Shedler, 1979).
    fn draw_arrivals(&mut self) {
        let mut first = 0;
        let mut arrivals = Vec::new();
        for (number, group) in self.scenario.renters.values().enumerate() {
            let mut rng = stream(self.seed, "compute arrivals", [number as u64, 0]);
            let most = group.load.iter().copied().fold(1.0, f64::max);
            let rate = group.orders_per_hour * most;
            let (mut hours, mut index) = (0.0, 0_u64);
            loop {
                // Without orders the first one is infinitely late.
                hours += (-(1.0 - uniform(&mut rng)).ln()).max(f64::MIN_POSITIVE) / rate;
                if hours >= f64::from(self.scenario.hours) {
                    break;
                }
                let load = match group.load.len() {
                    0 => 1.0,
                    length => group.load.get(hours as usize % length).copied().unwrap_or(1.0),
                };
                let (keep, who) = (uniform(&mut rng), uniform(&mut rng));
                if keep * most < load {
                    let renter = first + (who * f64::from(group.count)) as usize;
                    let steps = match group.strategy {
                        // Short leases, of which each counts like a long one.
                        RenterStrategy::Washes { .. } => 1,
                        _ => self.scenario.order.steps,
                    };
                    let key = (number as u64) << 24 | index;
                    arrivals.push(((hours * HOUR_MS as f64) as u64, renter, steps, key));
                }
                index += 1;
                if index > ARRIVALS_MAX {
                    break;
                }
            }
            first += group.count as usize;
        }
        let first = self.first_task_member();
        let trainings = self.task.iter().flat_map(|task| &task.trainings);
        self.outcome.trainings = u32::try_from(trainings.clone().count()).unwrap_or(u32::MAX);
        let key = |number: u64| 1 << 40 | number;
        arrivals.extend(
            (0..).zip(trainings).map(|(number, (member, at_ms, steps))| {
                (*at_ms, first + member, *steps, key(number))
            }),
        );
        arrivals.sort_unstable();
        let tries = self.scenario.order.tries;
        for (job, (at_ms, renter, steps, key)) in (0..).zip(arrivals) {
            self.ordered_ms.push(at_ms);
            self.waiting.push(Reverse(Placement {
                at_ms,
                key,
                job,
                renter,
                steps,
                done: 0,
                tries,
                is_fake: false,
            }));
        }
    }

    /// The number of the renter that is the task's first member.
    fn first_task_member(&self) -> usize {
        let own = self.scenario.task.as_ref().map(|task| task.renters.as_str());
        let before =
            self.scenario.renters.iter().take_while(|(name, _)| Some(name.as_str()) != own);
        before.map(|(_, group)| group.count as usize).sum()
    }

    /// Pays the members of the task for their updates.
    fn pay_for_data(&mut self) {
        let first = self.first_task_member();
        let own = self.task.iter().flat_map(|task| task.paid.iter().zip(&task.rounds).enumerate());
        for (number, (earned, rounds)) in own {
            // An update that was not trained in time is not paid.
            let in_time = self.in_time.get(&(first + number)).copied().unwrap_or_default();
            let paid = earned * f64::from(in_time) / f64::from((*rounds).max(1));
            let renter = self.members.renters.get(first + number).map(|own| own.member);
            if let Some(member) = renter.and_then(|at| self.members.members.get_mut(at)) {
                member.earned += paid;
                self.outcome.worth += paid;
                self.outcome.data_paid += paid;
            }
        }
        self.outcome.in_time = self.in_time.values().sum();
    }

    /// Plays all orders.
    ///
    /// # Errors
    /// [`ComputeError`] if the rules refuse an action.
    pub(super) fn play(mut self) -> Result<ComputeOutcome, ComputeError> {
        while let Some(Reverse(placed)) = self.waiting.pop() {
            self.play_order(&placed)?;
        }
        if let Some(listings) = &self.listings {
            let lost = listings.settle(&mut self.members)?;
            self.outcome.treasury += lost;
        }
        self.pay_for_data();
        self.outcome.jobs.0 = u32::try_from(self.ordered_ms.len()).unwrap_or(u32::MAX);
        self.outcome.members = self.members.members;
        // All florins have an owner.
        let earned: f64 = self.outcome.members.iter().map(|member| member.earned).sum();
        let left = earned - self.outcome.worth + self.outcome.treasury;
        self.outcome.is_balanced &= left.abs() <= LEFT_MAX * (1.0 + self.outcome.worth);
        Ok(self.outcome)
    }

    fn play_order(&mut self, placed: &Placement) -> Result<(), ComputeError> {
        if let Some(listings) = &mut self.listings {
            listings.probe_until(placed.at_ms, &self.members)?;
        }
        let scenario = self.scenario;
        let Some((name, group)) = self.renter_group(placed.renter) else { return Ok(()) };
        if self.is_vain(placed, group) {
            return Ok(());
        }
        let order = self.order(placed, group)?;
        let bids = self.bids(placed, group, &order)?;
        let auditors = self.auditors(placed, group);
        let beacon = self.beacon(&order);
        let plan = LeasePlan {
            bids: &bids,
            auditors: &auditors,
            favoured: &self.members.favoured,
            beacon: (scenario.coordinator == CoordinatorStrategy::Honest).then_some(beacon),
        };
        let played = play_lease(&mut HashWork, order, plan, Timestamp(placed.at_ms))?;
        self.outcome.is_balanced &= played.is_balanced;
        self.book_devices(placed, &bids, &played);
        self.book_money(placed, &bids, &played);
        self.measure(&played)?;
        let lease = self.lease(placed, name, &played);
        self.place_again(placed, &lease, &played);
        self.outcome.leases.push(lease);
        Ok(())
    }

    /// Whether a renter that rents from itself has no provider whose bid would count.
    fn is_vain(&self, placed: &Placement, group: &RenterGroup) -> bool {
        let RenterStrategy::Washes { providers } = &group.strategy else { return false };
        !self.members.accounts.iter().enumerate().any(|(at, account)| {
            let member = self.members.members.get(account.member);
            member.is_some_and(|member| member.group == *providers)
                && self.accepts(at, account, placed.at_ms)
        })
    }

    /// The beacon of an order, which appears after its delivery.
    pub(super) fn beacon(&self, order: &ComputeOrder) -> Digest {
        blob_digest(&[&order.id().0[..], &self.seed.to_le_bytes()].concat())
    }

    pub(super) fn renter_group(&self, renter: usize) -> Option<(&'a str, &'a RenterGroup)> {
        let member = self.members.renters.get(renter)?.member;
        let name = self.members.members.get(member)?.group.as_str();
        let (name, group) = self.scenario.renters.get_key_value(name)?;
        Some((name, group))
    }
}
