//! Leases under attack: what each deviation earns beyond honest work, by the rules that a market would apply.
//!
//! Thousands of leases are played with auctions, audits and disputes. A gain is that of the deviating account
//! alone, in percent of the order's price; computing a segment costs 70 % of its price.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use florin_compute::{Bid, ComputeOrder, LeaseOutcome, StepTimes, award};
use florin_protocol::{Address, Amount, Digest, blob_digest};
use florin_random::{below, chacha20, shuffle};

use super::played::{
    Conduct, FEE, PRICE, PROVIDER, Played, RENTER, SEGMENTS, SHARE, auditor, order, play,
    private_order,
};
use crate::arguments::BenchPay;
use crate::{Measurement, mean_and_std};

/// Leases of each attack and seed.
const LEASES: u64 = 200;
/// Leases with one fake segment.
const FAKES: u64 = 10_000;
/// Orders that are awarded, and bids for each.
const ORDERS: u64 = 5_000;
const BIDS: u64 = 20;
/// Deviations of a bid, in percent of the cost.
const DEVIATIONS: [u64; 9] = [50, 70, 80, 90, 95, 105, 110, 125, 150];
/// Levels of a renter's own bids, in base units for a useful second; and the distance of the seeds that choose one.
const LEVELS: [u64; 8] = [1_100, 1_200, 1_300, 1_400, 1_600, 1_800, 2_000, 2_500];
const CHOOSING_BEYOND: u64 = 10_000;
const STREAM: u64 = 83;
/// The cost of a segment to its provider, and of an audit to its auditor.
const SEGMENT_COST: i128 = FEE as i128 * 7 / 10;

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = vec![detection(seeds.first_seed)?];
    let one = |fakes: u32| Attack {
        name: format!("{fakes} of {SEGMENTS} segments not computed"),
        fakes,
        ..Attack::default()
    };
    let collude = |fakes: u32, colluding: u8| Attack {
        name: format!("{fakes} segments not computed, {colluding} of 60 auditors collude"),
        colluding,
        ..one(fakes)
    };
    let mut attacks: Vec<Attack> = [1, 10, 50, 100].into_iter().map(one).collect();
    attacks.extend([collude(1, 20), collude(20, 20)]);
    attacks.push(Attack { name: "stops after half".into(), leaves: true, ..Attack::default() });
    attacks.push(Attack {
        name: "all segments computed, leaves of another order".into(),
        replays: true,
        ..Attack::default()
    });
    attacks.push(Attack {
        name: "an auditor that does not compute".into(),
        lazy: true,
        ..Attack::default()
    });
    attacks.push(Attack {
        name: "an auditor that copies the end of an honest provider".into(),
        lazy: true,
        copies: true,
        ..Attack::default()
    });
    for attack in &attacks {
        rows.extend(attack.measure(seeds)?);
    }
    for fakes in [1, 20, 100] {
        let name = format!("private rows: {fakes} of {SEGMENTS} segments not computed");
        let attack = Attack { name, fakes, is_private: true, ..Attack::default() };
        rows.extend(attack.measure(seeds)?);
    }
    let disputes = Attack {
        name: "private rows: a renter that disputes each audited segment for nothing".into(),
        is_private: true,
        disputes: true,
        ..Attack::default()
    };
    rows.extend(disputes.measure(seeds)?);
    rows.push(undrawn()?);
    rows.extend(bids(seeds));
    Ok(rows)
}

/// The beacon of a lease.
pub(super) fn beacon(seed: u64, lease: u64) -> Digest {
    blob_digest(&[seed.to_le_bytes(), lease.to_le_bytes()].concat())
}

/// Distinct segments.
pub(super) fn draw_fakes(count: u32, seed: u64, lease: u64) -> BTreeSet<u32> {
    let mut all: Vec<u32> = (0..SEGMENTS).collect();
    shuffle(&mut chacha20(seed ^ lease << 20, STREAM), &mut all);
    all.into_iter().take(count as usize).collect()
}

/// How often one fake segment is found, against the share that is audited.
fn detection(seed: u64) -> anyhow::Result<Measurement> {
    let mut found = 0_u64;
    for lease in 0..FAKES {
        let fakes = draw_fakes(1, seed, lease);
        let conduct = Conduct { fakes, ..Conduct::default() };
        let played = play(order(lease), beacon(seed, lease), &conduct)?;
        let is_slashed = matches!(played.lease.outcome(), Some(LeaseOutcome::Slashed { .. }));
        anyhow::ensure!(
            is_slashed || played.lease.outcome() == Some(LeaseOutcome::Settled),
            "a lease neither settled nor slashed"
        );
        found += u64::from(is_slashed);
    }
    let stated = f64::from(SHARE) / 10_000.0;
    let away = 100.0 * found as f64 / FAKES as f64 - stated;
    let name = format!("one fake segment of {SEGMENTS}: found beyond the stated {stated} %");
    Ok(Measurement {
        holds: Some(away.abs() <= 2.0),
        ..Measurement::at_most(name, away, "points", 2.0)
    })
}

/// A deviation of one account.
#[derive(Default)]
struct Attack {
    name: String,
    fakes: u32,
    colluding: u8,
    leaves: bool,
    replays: bool,
    lazy: bool,
    /// A lazy auditor gets the end from the provider.
    copies: bool,
    /// The rows are private, and their renter audits.
    is_private: bool,
    /// The renter disputes each audited segment.
    disputes: bool,
}

impl Attack {
    fn conduct(&self, seed: u64, lease: u64) -> Conduct {
        Conduct {
            fakes: draw_fakes(self.fakes, seed, lease),
            colluding: self.colluding,
            // Each auditor is asked by every sixth lease.
            lazy: (self.lazy && !self.copies).then_some((lease % 60) as u8),
            leaves_after: self.leaves.then_some(SEGMENTS / 2),
            undrawn: false,
            replays: self.replays,
            disputes: self.disputes,
        }
    }

    /// The gain of the deviating accounts beyond that of honest work, and what the renter pays to a provider that
    /// stops, beyond the delivered segments.
    fn measure(&self, seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
        let (mut gains, mut losses) = (Vec::new(), Vec::new());
        for seed in seeds.first_seed..seeds.first_seed + seeds.tasks {
            for lease in 0..LEASES {
                let conduct = self.conduct(seed, lease);
                let order = || if self.is_private { private_order(lease) } else { order(lease) };
                let own = play(order(), beacon(seed, lease), &conduct)?;
                // The same order by honest parties; other leaves draw other segments.
                let honest = play(order(), beacon(seed, lease), &Conduct::default())?;
                let own_profit = self.profit(&own, &conduct, lease, false);
                let honest_profit = self.profit(&honest, &Conduct::default(), lease, true);
                gains.push(own_profit - honest_profit);
                losses.push(paid_beyond(&own));
            }
        }
        let name = format!("{}: gain beyond honest work, upper bound", self.name);
        let mut rows = vec![Measurement::below(name, upper_bound(&gains), "% of the price", 0.0)];
        if self.leaves {
            let most = losses.iter().copied().fold(0.0, f64::max);
            let name = format!("{}: paid by the renter beyond the delivered segments", self.name);
            rows.push(Measurement::at_most(name, most, "segments", 1.0));
        }
        Ok(rows)
    }

    /// The profit of the deviating accounts in percent of the price.
    fn profit(&self, played: &Played, conduct: &Conduct, lease: u64, is_honest: bool) -> f64 {
        let audits = |number: u8| {
            played.asked.iter().filter(|(_, own)| *own == auditor(number)).count() as i128
        };
        let earned = if self.disputes {
            let audited = played.asked.len() as i128;
            let computed = if is_honest { audited } else { 0 };
            played.earned(RENTER) - computed * SEGMENT_COST
        } else if self.lazy {
            let number = (lease % 60) as u8;
            let computed = if is_honest { audits(number) } else { 0 };
            played.earned(auditor(number)) - computed * SEGMENT_COST
        } else {
            let delivered = played.lease.leaves().len() as i128;
            let computed = delivered - conduct.fakes.len() as i128;
            // Colluding auditors compute nothing, and share their pay with the provider.
            let helpers = (0..conduct.colluding).map(|number| played.earned(auditor(number)));
            played.earned(PROVIDER) - computed * SEGMENT_COST + helpers.sum::<i128>()
        };
        100.0 * earned as f64 / PRICE as f64
    }
}

/// Segments that the renter paid for beyond the delivered ones, without the audits.
fn paid_beyond(played: &Played) -> f64 {
    let paid = -played.earned(RENTER);
    let audits = played.asked.len() as i128 * FEE as i128;
    let delivered = played.lease.leaves().len() as i128 * FEE as i128;
    (paid - audits - delivered).max(0) as f64 / FEE as f64
}

/// The upper end of a confidence interval of 95 % of a mean.
fn upper_bound(values: &[f64]) -> f64 {
    let (mean, std) = mean_and_std(values);
    mean + 1.96 * std / (values.len() as f64).sqrt()
}

/// A provider whose audits are never drawn is paid after the deadline.
fn undrawn() -> anyhow::Result<Measurement> {
    let conduct = Conduct { undrawn: true, ..Conduct::default() };
    let played = play(order(0), beacon(0, 0), &conduct)?;
    let paid = 100.0 * played.earned(PROVIDER) as f64 / PRICE as f64;
    Ok(Measurement::at_least("audits that are not drawn: the provider is paid", paid, "%", 100.0))
}

/// A bidder: its cost of a useful second, and its times of a step on one device and on two.
#[derive(Clone, Copy)]
struct Bidder {
    cost: u64,
    step_us: u64,
}

fn account(number: usize) -> Address {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&(number as u64 + 1).to_le_bytes());
    Address(bytes)
}

fn bid(bidder: Bidder, percent: u64) -> Bid {
    let per_second = Amount::from_units(u128::from(bidder.cost * percent / 100).max(1));
    let times = StepTimes::new(vec![1_000_000, bidder.step_us]);
    Bid { per_second, devices: 2, times: times.unwrap_or_else(|error| unreachable!("{error}")) }
}

fn draw_bidders(seed: u64, order: u64) -> Vec<Bidder> {
    let rng = &mut chacha20(seed.wrapping_mul(1_000_003) ^ order, STREAM + 1);
    let one =
        |_| Bidder { cost: 1_000 + below(rng, 3_000), step_us: 500_000 + below(rng, 500_000) };
    (0..BIDS).map(one).collect()
}

fn book(bidders: &[Bidder]) -> BTreeMap<Address, Bid> {
    bidders.iter().enumerate().map(|(at, own)| (account(at), bid(*own, 100))).collect()
}

/// The saving of a renter that seals bids of its own at all levels and reads the others before it opens any: it
/// opens the one that lowers the second score most, and loses the bonds of the rest. In percent of the price.
fn ladder_saving(order: &ComputeOrder, bidders: &[Bidder], levels: &[u64]) -> f64 {
    let mut all = book(bidders);
    let price = |bids: &BTreeMap<Address, Bid>| {
        award(order, bids).map_or(0, |won| won.price(order, 0).units())
    };
    let (honest, winner) = (price(&all), award(order, &all).map(|won| won.provider));
    let name = account(bidders.len());
    let mut least = honest;
    for &level in levels {
        all.insert(name, bid(Bidder { cost: level, step_us: 500_000 }, 100));
        if award(order, &all).map(|won| won.provider) == winner {
            least = least.min(price(&all));
        }
    }
    let opened = u128::from(least < honest);
    let bonds = order.deposits.bid_bond.units() * (levels.len() as u128 - opened);
    100.0 * (honest as f64 - least as f64 - bonds as f64) / PRICE as f64
}

/// The renter's best levels on seeds that measure nothing, and its saving on the others.
fn ladder(order: &ComputeOrder, seeds: &BenchPay) -> Measurement {
    let of_seeds = |seeds: std::ops::Range<u64>, levels: &[u64]| -> Vec<f64> {
        let pairs = seeds.flat_map(|seed| (0..LEASES).map(move |number| (seed, number)));
        let draws = pairs.map(|(seed, number)| draw_bidders(seed, number));
        draws.map(|bidders| ladder_saving(order, &bidders, levels)).collect()
    };
    let choosing = seeds.first_seed + CHOOSING_BEYOND..seeds.first_seed + CHOOSING_BEYOND + 10;
    let mut best: (f64, &[u64]) = (f64::MIN, &[]);
    for from in 0..LEVELS.len() {
        for to in from + 1..=LEVELS.len() {
            let levels = &LEVELS[from..to];
            let (gain, _) = mean_and_std(&of_seeds(choosing.clone(), levels));
            if gain > best.0 {
                best = (gain, levels);
            }
        }
    }
    let gains = of_seeds(seeds.first_seed..seeds.first_seed + seeds.tasks, best.1);
    let name = format!("a renter's own bids at {:?}, opened last: saving, upper bound", best.1);
    Measurement::at_most(name, upper_bound(&gains), "% of the price", 1.0)
}

/// The best deviation of a bid, a second name, and the time of the awards.
fn bids(seeds: &BenchPay) -> Vec<Measurement> {
    let order = order(0);
    let profit =
        |order: &ComputeOrder, bids: &BTreeMap<Address, Bid>, names: &[Address], own: Bidder| {
            let cost = bid(own, 100).price(order).map_or(0, Amount::units) as f64;
            match award(order, bids) {
                Some(won) if names.contains(&won.provider) => {
                    won.price(order, own.step_us).units() as f64 - cost
                }
                _ => 0.0,
            }
        };
    let mut gains: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for seed in seeds.first_seed..seeds.first_seed + seeds.tasks {
        for number in 0..LEASES {
            let bidders = draw_bidders(seed, number);
            let mut all = book(&bidders);
            let (own, rival) = (bidders[0], account(bidders.len()));
            let honest = profit(&order, &all, &[account(0)], own);
            for percent in DEVIATIONS {
                all.insert(account(0), bid(own, percent));
                let gain = profit(&order, &all, &[account(0)], own) - honest;
                let name = format!("a bid of {percent} % of the cost");
                gains.entry(name).or_default().push(100.0 * gain / PRICE as f64);
            }
            for percent in [50, 90] {
                let claimed = Bidder { step_us: own.step_us * percent / 100, ..own };
                all.insert(account(0), bid(claimed, 100));
                let gain = profit(&order, &all, &[account(0)], own) - honest;
                let name = format!("a card that claims {percent} % of the time");
                gains.entry(name).or_default().push(100.0 * gain / PRICE as f64);
            }
            all.insert(account(0), bid(own, 100));
            for percent in [90, 110] {
                all.insert(rival, bid(own, percent));
                let gain = profit(&order, &all, &[account(0), rival], own) - honest;
                let name = format!("a second name at {percent} %");
                gains.entry(name).or_default().push(100.0 * gain / PRICE as f64);
            }
        }
    }
    let mut rows: Vec<Measurement> = gains
        .iter()
        .map(|(name, gains)| {
            let name = format!("{name}: gain, upper bound");
            Measurement::at_most(name, upper_bound(gains), "% of the price", 1.0)
        })
        .collect();
    rows.push(ladder(&order, seeds));
    let books: Vec<_> =
        (0..ORDERS).map(|number| book(&draw_bidders(seeds.first_seed, number))).collect();
    let since = Instant::now();
    let awarded = books.iter().filter(|bids| award(&order, bids).is_some()).count();
    let seconds = since.elapsed().as_secs_f64();
    let name = format!("{awarded} of {ORDERS} orders with {BIDS} bids awarded");
    rows.push(Measurement::below(name, seconds, "s", 1.0));
    rows
}
