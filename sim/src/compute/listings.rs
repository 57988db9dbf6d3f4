//! The listings of a simulated market: each account lists its devices, is probed, and is measured by its leases.

use std::collections::BTreeMap;

use florin_compute::{
    Card, Listing, ListingAction, ListingEvent, ListingOpening, ListingRecord, ListingTerms,
    ProbeShape, SignedMessage, StepTimes, draw_commitment,
};
use florin_participant::{Secret, Wallet};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, Digest, Timestamp, WalletSigner as _, blob_digest};

use super::members::ComputeMembers;
use super::scenario::{ComputeScenario, ListingSettings};
use super::strategy::ProviderStrategy;
use super::{ComputeError, HOUR_MS, units};
use crate::market::amount_to_florins;
use crate::random::{normal, stream};

/// Microseconds of a link on a device of median speed.
const LINK_US: f64 = 500.0;
/// The size of a probe: 15 s on a device of median speed.
const FILLED: u32 = 7_500;
const READS: u32 = 22_500;
const COORDINATOR: Address = Address([6; 20]);
/// A card states the measured times and this part of them more.
const MARGIN: f64 = 1.1;

/// The listing of an account.
#[derive(Debug)]
struct ListedAccount {
    listing: Listing,
    wallet: Wallet,
    /// Milliseconds of a probe by devices that compute nothing else.
    probe_ms: f64,
    /// Deviation of the logarithm of that time.
    variation: f64,
    member: usize,
    machine: usize,
    /// Listings of the account that are over: fees and stakes in florins, and how many its leases contradicted.
    past: (f64, f64, u32),
}

/// All listings, in the order of the accounts.
#[derive(Debug)]
pub(super) struct Listings {
    seed: u64,
    accounts: Vec<ListedAccount>,
    every_ms: u64,
    next_ms: u64,
    probes: u64,
}

impl Listings {
    /// Opens the listings of all accounts at the beginning. Each is probed by itself first.
    ///
    /// # Errors
    /// [`ComputeError`] for terms that the rules refuse.
    pub(super) fn open(
        scenario: &ComputeScenario,
        settings: &ListingSettings,
        members: &ComputeMembers,
        seed: u64,
    ) -> Result<Self, ComputeError> {
        let every_ms = ((settings.probe_minutes * 60e3).round() as u64).max(1);
        let mut all = Self { seed, accounts: Vec::new(), every_ms, next_ms: every_ms, probes: 0 };
        for at in 0..members.accounts.len() {
            all.accounts.push(open_one(scenario, settings, members, at)?);
        }
        for at in 0..all.accounts.len() {
            all.probe(&[at], 0)?;
        }
        Ok(all)
    }

    /// Probes all idle listings at once, as often as it was due until a moment.
    ///
    /// # Errors
    /// [`ComputeError`].
    pub(super) fn probe_until(
        &mut self,
        now_ms: u64,
        members: &ComputeMembers,
    ) -> Result<(), ComputeError> {
        while self.next_ms <= now_ms {
            let at = self.next_ms;
            let is_idle = |machine: usize| {
                members.machines.get(machine).is_some_and(|machine| machine.is_idle(at))
            };
            for own in &mut self.accounts {
                own.renew(at)?;
            }
            let idle = self.accounts.iter().enumerate().filter(|(_, own)| is_idle(own.machine));
            let idle: Vec<usize> = idle.map(|(number, _)| number).collect();
            self.probe(&idle, at)?;
            self.next_ms = at.saturating_add(self.every_ms);
        }
        Ok(())
    }

    /// Probes listings at one moment. Of several on one machine the first is computed, and the others after it.
    fn probe(&mut self, which: &[usize], ms: u64) -> Result<(), ComputeError> {
        self.probes = self.probes.saturating_add(1);
        let mut busy = BTreeMap::<usize, u64>::new();
        for &at in which {
            let Some(own) = self.accounts.get_mut(at) else { continue };
            if own.listing.outcome().is_some() {
                continue;
            }
            let mut rng = stream(self.seed, "compute probe", [self.probes, at as u64]);
            let noise = (own.variation * normal(&mut rng)).exp();
            let ended = busy.entry(own.machine).or_default();
            *ended = ended.saturating_add((own.probe_ms * noise).round() as u64);
            own.play_probe(Timestamp(ms), *ended, self.probes)?;
        }
        Ok(())
    }

    /// Whether bids of an account count.
    pub(super) fn covers(&self, account: usize) -> bool {
        self.accounts.get(account).is_some_and(|own| own.listing.covers(1))
    }

    /// Measures a lease of an account.
    ///
    /// # Errors
    /// [`ComputeError`].
    pub(super) fn measure(
        &mut self,
        account: usize,
        order: Digest,
        (predicted_us, measured_us): (u64, u64),
        at: Timestamp,
    ) -> Result<(), ComputeError> {
        let Some(own) = self.accounts.get_mut(account) else { return Ok(()) };
        let was_over = own.listing.is_contradicted() || !own.listing.measures_more();
        if was_over || own.listing.has_measured(order) || own.listing.probes().1 == 0 {
            return Ok(());
        }
        own.record(at, ListingEvent::Measured { order, predicted_us, measured_us })
    }

    /// Books the fees and lost stakes of all members, and returns their sum in florins.
    ///
    /// # Errors
    /// [`ComputeError`].
    pub(super) fn settle(&self, members: &mut ComputeMembers) -> Result<f64, ComputeError> {
        let (mut fees, mut stakes) = (0.0, 0.0);
        for own in &self.accounts {
            let (paid, debited, contradicted) = own.books()?;
            fees += paid;
            stakes += debited;
            if let Some(member) = members.members.get_mut(own.member) {
                member.earned -= paid + debited;
                member.slashed += contradicted;
                member.is_listed &= own.listing.covers(1);
            }
        }
        Ok(fees + stakes)
    }
}

impl ListedAccount {
    /// Fees, lost stakes and contradictions of all listings of the account.
    fn books(&self) -> Result<(f64, f64, u32), ComputeError> {
        let (paid, debited, contradicted) = self.past;
        let totals = self.listing.totals()?;
        let sum = |of: fn(&ClaimTotals) -> Amount| -> f64 {
            totals.values().map(|totals| amount_to_florins(of(totals))).sum()
        };
        Ok((
            paid + sum(|totals| totals.paid),
            debited + sum(|totals| totals.debited),
            contradicted + u32::from(self.listing.is_contradicted()),
        ))
    }

    /// Lists anew behind the end of a listing, with a new stake and from the first probe on.
    fn renew(&mut self, ms: u64) -> Result<(), ComputeError> {
        let now = Timestamp(ms).max(self.listing.last());
        if self.listing.outcome().is_none() && now > self.listing.phase().1 {
            self.record(now, ListingEvent::Expired)?;
        }
        if self.listing.outcome().is_some() {
            self.past = self.books()?;
            let terms = self.listing.terms();
            let terms =
                ListingTerms { nonce: terms.nonce.saturating_add(1 << 32), ..terms.clone() };
            let opening = ListingOpening { terms, coordinator: COORDINATOR, opened: now };
            self.listing = Listing::open(&opening)?;
        }
        Ok(())
    }

    fn record(&mut self, at: Timestamp, event: ListingEvent) -> Result<(), ComputeError> {
        // Events of leases and of probes are played in turns, and not in the order of their moments.
        let at = at.max(self.listing.last());
        Ok(self.listing.apply(&ListingRecord { at, event })?)
    }

    /// Plays a probe whose devices are ready after some time.
    fn play_probe(
        &mut self,
        at: Timestamp,
        after_ms: u64,
        number: u64,
    ) -> Result<(), ComputeError> {
        let id = self.listing.id();
        let secret = blob_digest(&[&id.0[..], &number.to_le_bytes()].concat());
        let (seed, root) = (blob_digest(&secret.0), Digest([7; 32]));
        let at = at.max(self.listing.last());
        self.record(at, ListingEvent::Probed { seed, draw: draw_commitment(id, secret) })?;
        if self.listing.outcome().is_some() {
            return Ok(());
        }
        let deadline = self.listing.phase().1;
        let done = at.saturating_add_ms(after_ms);
        if done > deadline {
            return self.record(deadline.saturating_add_ms(1), ListingEvent::Expired);
        }
        let message = SignedMessage::Computed { seed, root };
        let body = ListingAction { listing: id, by: self.wallet.address(), message };
        let signed = body.sign(self.listing.terms().market, &self.wallet);
        let signed = signed.map_err(|error| ComputeError::Wallet(error.to_string()))?;
        self.record(done, ListingEvent::Signed(signed))?;
        self.record(done, ListingEvent::Drawn(secret))?;
        self.record(done, ListingEvent::Shown(root))
    }
}

fn open_one(
    scenario: &ComputeScenario,
    settings: &ListingSettings,
    members: &ComputeMembers,
    at: usize,
) -> Result<ListedAccount, ComputeError> {
    let missing = || ComputeError::Wallet("an account without a machine".to_owned());
    let account = members.accounts.get(at).ok_or_else(missing)?;
    let machine = members.machines.get(account.machine).ok_or_else(missing)?;
    let member = members.members.get(account.member).ok_or_else(missing)?;
    let group = scenario.providers.get(&member.group).ok_or_else(missing)?;
    let key = Digest([1; 32]).0;
    let key = blob_digest(&[&key[..], &(at as u64).to_le_bytes()].concat());
    let wallet = Wallet::from_key(&Secret::new(key.to_string()))
        .map_err(|error| ComputeError::Wallet(error.to_string()))?;
    let links = f64::from(FILLED) + f64::from(READS);
    let slowness = machine.step_us / (scenario.order.step_ms * 1e3);
    let link_us = LINK_US * slowness;
    let stated_us = ((link_us * MARGIN).round() as u64).max(1);
    let devices = group.devices.saturating_mul(match &group.strategy {
        ProviderStrategy::Sells { times } => *times,
        _ => 1,
    });
    let hours_ms = u64::from(scenario.hours).saturating_add(24).saturating_mul(HOUR_MS);
    let example = ListingTerms::example()?;
    let terms = ListingTerms {
        provider: wallet.address(),
        nonce: at as u64,
        probe: ProbeShape { devices, filled: FILLED, reads: READS },
        card: Card { links: StepTimes::new(vec![stated_us; devices as usize])?, ..example.card },
        stake: units(settings.stake),
        fee: units(settings.fee),
        probes_max: florin_compute::PROBES_MAX,
        life_ms: hours_ms.min(florin_compute::LISTING_MS_MAX),
        ..example
    };
    let opening = ListingOpening { terms, coordinator: COORDINATOR, opened: Timestamp(0) };
    let probe_ms = links * link_us * group.strategy.probe_slowness() / 1e3;
    Ok(ListedAccount {
        listing: Listing::open(&opening)?,
        wallet,
        probe_ms,
        variation: group.variation,
        member: account.member,
        machine: account.machine,
        past: (0.0, 0.0, 0),
    })
}
