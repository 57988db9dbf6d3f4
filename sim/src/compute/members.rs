//! The members of a market for compute: machines, accounts, renters and auditors.

use std::collections::BTreeSet;

use florin_protocol::Address;

use super::lease_play::{AuditorConduct, PlannedAuditor};
use super::outcome::ComputeMember;
use super::scenario::{ComputeScenario, ProviderGroup, Role};
use super::strategy::{AuditorStrategy, ProviderStrategy};
use crate::random::{normal, stream};

/// First bytes of addresses, by what they belong to.
const PROVIDERS: u8 = 10;
const RENTERS: u8 = 11;
const AUDITORS: u8 = 12;
const SHILLS: u8 = 13;

/// An address of a simulated account.
fn address(role: u8, number: usize) -> Address {
    let mut bytes = [role; 20];
    bytes[12..].copy_from_slice(&(number as u64).to_be_bytes());
    Address(bytes)
}

/// An account of the renter's own for a bid.
pub(super) fn shill_account(renter: usize, level: usize) -> Address {
    address(SHILLS, renter << 16 | level)
}

/// The devices of a member.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) devices: u32,
    /// Leases that it accepts at once.
    pub(super) leases_max: u32,
    /// Microseconds of a step on a device.
    pub(super) step_us: f64,
    /// Florins of a device-hour.
    pub(super) cost_per_hour: f64,
    /// Milliseconds from and to which a lease takes a device, or a sealed bid keeps one.
    taken: Vec<TakenDevice>,
}

#[derive(Clone, Copy, Debug)]
struct TakenDevice {
    from: u64,
    to: u64,
    is_lease: bool,
}

impl Machine {
    fn taken_at(&self, ms: u64) -> impl Iterator<Item = &TakenDevice> {
        self.taken.iter().filter(move |taken| (taken.from..taken.to).contains(&ms))
    }

    /// Whether a device is free for a bid.
    pub(super) fn is_free(&self, ms: u64) -> bool {
        self.taken_at(ms).count() < self.leases_max as usize
    }

    /// Whether no lease is computed.
    pub(super) fn is_idle(&self, ms: u64) -> bool {
        self.taken_at(ms).all(|taken| !taken.is_lease)
    }

    /// Takes a device for a lease, or keeps it for a bid; what is over is forgotten.
    pub(super) fn take(&mut self, from: u64, to: u64, is_lease: bool) {
        self.taken.retain(|taken| taken.to > from);
        self.taken.push(TakenDevice { from, to, is_lease });
    }

    /// How much longer the steps of one more lease take because leases share devices.
    pub(super) fn sharing(&self, ms: u64) -> f64 {
        let leases = self.taken_at(ms).filter(|taken| taken.is_lease).count() + 1;
        (leases as f64 / f64::from(self.devices)).max(1.0)
    }
}

/// An account that bids.
#[derive(Clone, Debug)]
pub(super) struct BiddingAccount {
    pub(super) address: Address,
    /// Its member, and the machine that computes.
    pub(super) member: usize,
    pub(super) machine: usize,
    /// The member's number in its group.
    pub(super) place: u32,
    /// Its number among those of the member.
    pub(super) number: u32,
}

/// A renter.
#[derive(Clone, Debug)]
pub(super) struct RentingMember {
    pub(super) address: Address,
    pub(super) member: usize,
}

/// All members.
#[derive(Clone, Debug)]
pub(super) struct ComputeMembers {
    pub(super) members: Vec<ComputeMember>,
    pub(super) machines: Vec<Machine>,
    pub(super) accounts: Vec<BiddingAccount>,
    pub(super) renters: Vec<RentingMember>,
    /// Auditors with their members.
    pub(super) auditors: Vec<(PlannedAuditor, usize)>,
    /// Providers whose ends colluding auditors seal.
    pub(super) favoured: BTreeSet<Address>,
}

impl ComputeMembers {
    /// Draws all members of a scenario. A member's draws do not depend on its strategy.
    pub(super) fn draw(scenario: &ComputeScenario, seed: u64) -> Self {
        let mut all = Self {
            members: Vec::new(),
            machines: Vec::new(),
            accounts: Vec::new(),
            renters: Vec::new(),
            auditors: Vec::new(),
            favoured: BTreeSet::new(),
        };
        for (name, group) in &scenario.providers {
            for at in 0..group.count {
                all.add_provider(scenario, name, group, at, seed);
            }
        }
        for (name, group) in &scenario.renters {
            for _ in 0..group.count {
                let member = all.add_member(name, Role::Renter);
                let address = address(RENTERS, all.renters.len());
                all.renters.push(RentingMember { address, member });
            }
        }
        for (name, group) in &scenario.auditors {
            let conduct = match &group.strategy {
                AuditorStrategy::Honest => AuditorConduct::Computes,
                AuditorStrategy::MakesUp => AuditorConduct::MakesUp,
                AuditorStrategy::Copies => AuditorConduct::Copies,
                AuditorStrategy::Colludes { providers } => {
                    all.favour(providers);
                    AuditorConduct::Colludes
                }
                AuditorStrategy::Accuses => AuditorConduct::Accuses,
                AuditorStrategy::Silent => AuditorConduct::Silent,
            };
            let step_us = scenario.order.step_us();
            for _ in 0..group.count {
                let member = all.add_member(name, Role::Auditor);
                let account = address(AUDITORS, all.auditors.len());
                all.auditors.push((PlannedAuditor { account, conduct, step_us }, member));
            }
        }
        all
    }

    fn add_member(&mut self, group: &str, role: Role) -> usize {
        self.members.push(ComputeMember {
            group: group.to_owned(),
            role,
            earned: 0.0,
            cost: 0.0,
            works: 0,
            slashed: 0,
            defaulted: 0,
            device_hours: 0.0,
            is_listed: true,
        });
        self.members.len() - 1
    }

    fn add_provider(
        &mut self,
        scenario: &ComputeScenario,
        name: &str,
        group: &ProviderGroup,
        at: u32,
        seed: u64,
    ) {
        let member = self.add_member(name, Role::Provider);
        let mut rng = stream(seed, &format!("compute provider {name}"), [at.into(), 0]);
        let slowness = group.slowness * (group.spread * normal(&mut rng)).exp();
        let cost_per_hour = group.cost_per_hour * (group.cost_spread * normal(&mut rng)).exp();
        let strategy = &group.strategy;
        // Members that relay have one machine together.
        let is_shared = *strategy == ProviderStrategy::Relays && at > 0;
        if is_shared {
            if let Some(machine) = self.machines.last_mut() {
                machine.leases_max = machine.leases_max.saturating_add(group.devices);
            }
        } else {
            let leases_max = group.devices.saturating_mul(strategy.leases_of_device());
            let step_us = scenario.order.step_ms * 1e3 * slowness;
            let (devices, taken) = (group.devices, Vec::new());
            self.machines.push(Machine { devices, leases_max, step_us, cost_per_hour, taken });
        }
        let machine = self.machines.len() - 1;
        for number in 0..strategy.accounts() {
            let address = address(PROVIDERS, self.accounts.len());
            self.accounts.push(BiddingAccount { address, member, place: at, machine, number });
        }
    }

    fn favour(&mut self, providers: &str) {
        let favoured = self.accounts.iter().filter(|account| {
            self.members.get(account.member).is_some_and(|member| member.group == providers)
        });
        self.favoured.extend(favoured.map(|account| account.address));
    }

    /// The group of an account's member, and the member's number in it.
    pub(super) fn place(&self, account: &BiddingAccount) -> (&str, u64) {
        let group = self.members.get(account.member).map_or("", |member| member.group.as_str());
        (group, account.place.into())
    }

    /// The member behind a bidder or an auditor.
    pub(super) fn member_of(&self, account: Address) -> Option<usize> {
        let bidder = self.accounts.iter().find(|own| own.address == account);
        let auditor = self.auditors.iter().find(|(own, _)| own.account == account);
        let renter = self.renters.iter().find(|own| own.address == account);
        bidder
            .map(|own| own.member)
            .or_else(|| auditor.map(|(_, member)| *member))
            .or_else(|| renter.map(|own| own.member))
    }
}
