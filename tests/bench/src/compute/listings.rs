//! Listings of devices: real probes of honest and of cheating providers on the cores of this machine, and the drift of
//! their leases over simulated noise.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use florin_compute::{
    DrawnProbe, Drift, Factor, ListingTerms, PROBE_POOL, ProbeLink, ProbeShape, StepTimes,
    drawn_links, first_state, pool_matrix, state_leaf, step,
};
use florin_learning::EngineKind;
use florin_learning::field_products::FieldProducts;
use florin_learning::select::field_products;
use florin_protocol::Digest;
use florin_random::{chacha20, uniform};
use florin_work::{CardMeasurement, ComputedProbe, ProbeDevices, ProbeProgress, measure_card};

use crate::Measurement;
use crate::arguments::BenchPay;

/// The least duration of a probe by its card: the default of the coordinator.
const PROBE_MS: u64 = 15_000;
/// A short probe: one device sold as eight needs no longer one.
const SHORT_MS: u64 = 1_000;
/// Real probes of each kind.
const PROBES: u64 = 6;
/// Filled states of a device: 16 MiB.
const FILLED: u32 = 256;
/// Draws of the links of a probe some of whose states are made up.
const DRAWS: u64 = 10_000;
/// Providers of each seed, and their leases.
const PROVIDERS: u64 = 1_000;
const LEASES: u32 = 100;
/// Leases after which a card that is inflated by half must be contradicted.
const LEASES_BAR: u32 = 3;
/// A bid states this multiple of the measured time of a step.
const BID_MARGIN: f64 = 1.25;
const STREAM: u64 = 86;

fn products() -> anyhow::Result<Box<dyn FieldProducts>> {
    Ok(field_products(EngineKind::Auto)?())
}

/// One device that several chains share.
struct SharedDevice(Arc<Mutex<Box<dyn FieldProducts>>>);

impl FieldProducts for SharedDevice {
    fn multiply_add(&mut self, before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8> {
        let mut device = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        device.multiply_add(before, factor, added)
    }
}

/// A listing whose probe takes a time by its card.
fn listing(devices: u32, links: &StepTimes, claimed: f64, ms: u64) -> anyhow::Result<ListingTerms> {
    let scaled = (1..=devices).map(|n| links.on(n.min(count(links))).unwrap_or(1));
    let scaled: Vec<u64> = scaled.map(|us| (us as f64 / claimed).ceil() as u64).collect();
    let us = scaled.last().copied().unwrap_or(1).max(1);
    let example = ListingTerms::example()?;
    let card = florin_compute::Card { links: StepTimes::new(scaled)?, ..example.card };
    let reads = (ms * 1_000 / us).saturating_sub(FILLED.into()).max(u64::from(3 * FILLED));
    let probe = ProbeShape { devices, filled: FILLED, reads: u32::try_from(reads)? };
    let terms = ListingTerms { probe, card, ..example };
    terms.check()?;
    Ok(terms)
}

fn count(links: &StepTimes) -> u32 {
    (1..).take_while(|n| links.on(*n).is_some()).last().unwrap_or(1)
}

/// Milliseconds of a probe.
fn probe_ms(
    terms: &ListingTerms,
    seed: u64,
    devices: &mut ProbeDevices,
) -> anyhow::Result<(u64, ComputedProbe)> {
    let seed = Digest(florin_protocol::blob_digest(&seed.to_le_bytes()).0);
    let began = Instant::now();
    let computed = ComputedProbe::compute(seed, terms.probe, devices, &ProbeProgress::default());
    let computed = computed.context("the probe has as many devices as its shape")?;
    Ok((u64::try_from(began.elapsed().as_millis())?, computed))
}

pub(super) fn run(seeds: &BenchPay) -> anyhow::Result<Vec<Measurement>> {
    let cores = u32::try_from(florin_learning::cores())?.min(4);
    let make = field_products(EngineKind::Auto)?;
    let sample = std::time::Duration::from_millis(500);
    let how = CardMeasurement { products: &make, devices: cores, sample, progress: &|_| {} };
    let card = measure_card(&how)?;
    let mut rows = vec![
        Measurement::plain(
            "a link on one device",
            card.links.on(1).unwrap_or_default() as f64,
            "µs",
        ),
        Measurement::plain(
            format!("a link on {cores} devices at once"),
            card.links.on(cores).unwrap_or_default() as f64,
            "µs",
        ),
        Measurement::plain("variation of a card", f64::from(card.variation) / 1e4, "%"),
    ];
    rows.extend(honest_probes(cores, &card.links, seeds.first_seed)?);
    rows.extend(cheating_probes(cores, &card.links, seeds.first_seed)?);
    rows.extend(partial_memory(&card.links)?);
    rows.extend(made_up_states());
    rows.extend(drifts(seeds));
    Ok(rows)
}

/// Honest probes, and the time of their verification.
fn honest_probes(cores: u32, links: &StepTimes, first: u64) -> anyhow::Result<Vec<Measurement>> {
    let terms = listing(cores, links, 1.0, PROBE_MS)?;
    let (mut in_time, mut slowest, mut checked, mut computed_ms) = (0_u64, 0_u64, 0.0, 0.0);
    for seed in first..first + PROBES {
        let mut devices: ProbeDevices = (0..cores).map(|_| products()).collect::<Result<_, _>>()?;
        let (ms, computed) = probe_ms(&terms, seed, &mut devices)?;
        in_time += u64::from(ms <= terms.probe_ms());
        slowest = slowest.max(ms);
        let secret = Digest([7; 32]);
        let shown = computed.show(secret, products()?.as_mut()).context("the links are shown")?;
        let seed = Digest(florin_protocol::blob_digest(&seed.to_le_bytes()).0);
        let drawn = DrawnProbe { shape: terms.probe, seed, root: computed.root(), secret };
        let began = Instant::now();
        shown.check(&drawn)?;
        checked += began.elapsed().as_secs_f64() * 1e3;
        computed_ms += ms as f64 * f64::from(cores);
    }
    let percent = 100.0 * in_time as f64 / PROBES as f64;
    Ok(vec![
        Measurement::at_least(
            format!("honest probes of {cores} devices in time"),
            percent,
            "%",
            100.0,
        ),
        Measurement::plain(
            "the slowest, of its limit",
            100.0 * slowest as f64 / terms.probe_ms() as f64,
            "%",
        ),
        Measurement::plain("verification of a probe", checked / PROBES as f64, "ms"),
        Measurement::plain(
            "verification, of the device time of the probe",
            100.0 * checked / computed_ms,
            "%",
        ),
    ])
}

/// Probes of a device that is sold several times, and of a card that is inflated by half.
fn cheating_probes(cores: u32, links: &StepTimes, first: u64) -> anyhow::Result<Vec<Measurement>> {
    let mut rows = Vec::new();
    for (sold, ms) in [(8_u32, SHORT_MS), (2, PROBE_MS)] {
        // Each of the sold devices is as fast as the only one.
        let alone = StepTimes::new(vec![links.on(1).unwrap_or(1)])?;
        let terms = listing(sold, &alone, 1.0, ms)?;
        let mut found = 0_u64;
        for seed in first..first + PROBES {
            let device = Arc::new(Mutex::new(products()?));
            let mut devices: ProbeDevices = (0..sold)
                .map(|_| Box::new(SharedDevice(Arc::clone(&device))) as Box<dyn FieldProducts>)
                .collect();
            found += u64::from(probe_ms(&terms, seed, &mut devices)?.0 > terms.probe_ms());
        }
        let percent = 100.0 * found as f64 / PROBES as f64;
        let name = format!("one device sold as {sold}, probes of {} s: found", ms / 1_000);
        rows.push(Measurement::at_least(name, percent, "%", 100.0));
    }
    let terms = listing(cores, links, 1.5, PROBE_MS)?;
    let mut found = 0_u64;
    for seed in first..first + PROBES {
        let mut devices: ProbeDevices = (0..cores).map(|_| products()).collect::<Result<_, _>>()?;
        found += u64::from(probe_ms(&terms, seed, &mut devices)?.0 > terms.probe_ms());
    }
    let percent = 100.0 * found as f64 / PROBES as f64;
    rows.push(Measurement::at_least(
        "a card inflated by half: found by the probe",
        percent,
        "%",
        100.0,
    ));
    Ok(rows)
}

/// A device that stores each `stride`-th filled state, and computes the others again when they are read: the time of
/// a link, of that of a device with all its memory.
fn partial_memory(links: &StepTimes) -> anyhow::Result<Vec<Measurement>> {
    let terms = listing(1, links, 1.0, 3_000)?;
    let mut rows = Vec::new();
    let whole = partial_ms(&terms.probe, 1)?;
    for stride in [2, 3] {
        let ratio = partial_ms(&terms.probe, stride)? / whole;
        let long = listing(1, links, 1.0, PROBE_MS)?;
        // The card states 110 % of the measured time.
        let limit = 1.1 * long.probe_ms() as f64 / long.predicted_ms() as f64;
        let name =
            format!("one of {stride} filled states in memory: time of a probe, of an honest one");
        rows.push(Measurement::at_least(name, ratio, "", limit));
    }
    Ok(rows)
}

fn partial_ms(shape: &ProbeShape, stride: usize) -> anyhow::Result<f64> {
    let seed = Digest([5; 32]);
    let mut device = products()?;
    let pool: Vec<Vec<u8>> =
        (0..PROBE_POOL).map(|number| pool_matrix(seed, number as u8)).collect();
    let first = first_state(seed, 0);
    let began = Instant::now();
    // The leaves are small: all of them stay in memory, and choose the matrices.
    let (mut stored, mut leaves) = (Vec::new(), Vec::<Digest>::new());
    let mut state = first;
    let next =
        |device: &mut dyn FieldProducts, state: &[u8], position: usize, leaves: &[Digest]| {
            let link = ProbeLink { device: 0, position: position as u32 };
            let leaf = position.checked_sub(1).and_then(|before| leaves.get(before)).copied();
            let step = step(seed, shape, link, leaf);
            let Factor::Pool(number) = step.factor else { return Vec::new() };
            device.multiply_add(state, &pool[usize::from(number)], &pool[usize::from(step.added)])
        };
    for position in 0..shape.filled as usize {
        state = next(device.as_mut(), &state, position, &leaves);
        leaves.push(state_leaf(ProbeLink { device: 0, position: position as u32 }, &state));
        if position % stride == 0 {
            stored.push(state.clone());
        }
    }
    for read in 0..shape.reads {
        let link = ProbeLink { device: 0, position: shape.filled + read };
        let step = step(seed, shape, link, leaves.last().copied());
        let Factor::Filled(wanted) = step.factor else { continue };
        let wanted = wanted.position as usize;
        let mut factor = stored[wanted / stride].clone();
        for position in wanted / stride * stride..wanted {
            factor = next(device.as_mut(), &factor, position + 1, &leaves);
        }
        state = device.multiply_add(&state, &factor, &pool[usize::from(step.added)]);
        leaves.push(state_leaf(link, &state));
    }
    Ok(began.elapsed().as_secs_f64() * 1e3)
}

/// How often a probe with a share of made-up states is found by its drawn links.
fn made_up_states() -> Vec<Measurement> {
    let shape = ProbeShape { devices: 8, filled: 1_024, reads: 10_000 };
    let made_up = |share: u32| {
        let found = (0..DRAWS).filter(|number| {
            let secret = Digest(florin_protocol::blob_digest(&number.to_le_bytes()).0);
            let drawn = drawn_links(&shape, secret, Digest([1; 32]));
            drawn.iter().any(|link| link.position % 100 < share)
        });
        let percent = 100.0 * found.count() as f64 / DRAWS as f64;
        Measurement::plain(format!("{share} of 100 states made up: found"), percent, "%")
    };
    [1, 10, 25].map(made_up).to_vec()
}

/// How often honest providers lose their stake, and inflated cards are contradicted in time.
fn drifts(seeds: &BenchPay) -> Vec<Measurement> {
    let mut rows = Vec::new();
    for deviation in [0.05, 0.1, 0.2] {
        let (mut slashed, mut in_time, mut all) = (0_u64, 0_u64, 0_u64);
        for seed in seeds.first_seed..seeds.first_seed + seeds.tasks {
            let mut rng = chacha20(seed, STREAM);
            let mut noise = || {
                let (u, v) = (1.0 - uniform(&mut rng), uniform(&mut rng));
                let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                (deviation * normal).exp()
            };
            for _ in 0..PROVIDERS {
                all += 1;
                slashed += u64::from(contradicted(LEASES, || noise() / BID_MARGIN).is_some());
                let found = contradicted(LEASES_BAR, || 1.5 * noise());
                in_time += u64::from(found.is_some());
            }
        }
        let noise = format!("times of leases vary by {:.0} %", 100.0 * deviation);
        let percent = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
        let name = format!("{noise}: honest providers slashed in {LEASES} leases");
        rows.push(Measurement::at_most(name, percent(slashed), "%", 1.0));
        let name = format!("{noise}: cards inflated by half slashed within {LEASES_BAR} leases");
        rows.push(match deviation < 0.15 {
            true => Measurement::at_least(name, percent(in_time), "%", 99.0),
            false => Measurement::plain(name, percent(in_time), "%"),
        });
    }
    rows
}

/// The lease that contradicts a card, whose leases take multiples of the predicted time.
fn contradicted(leases: u32, mut ratio: impl FnMut() -> f64) -> Option<u32> {
    let mut drift = Drift::default();
    (1..=leases).find(|_| {
        drift = drift.after(1_000_000, (1e6 * ratio()) as u64);
        drift.contradicts()
    })
}
