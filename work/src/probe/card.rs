//! The measurement of a card: probes of the machine's own, on one device and on more of them.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use florin_compute::{ProbeShape, StepTimes};
use florin_learning::field_products::FieldProducts;
use florin_protocol::Digest;

use super::{ComputedProbe, ProbeDevices, ProbeProgress};

/// Filled states of a measured probe.
const FILLED: u32 = 16;
/// Reads of it for each filled state.
const READS: u32 = 3;
/// Probes that are measured for each number of devices.
const SAMPLES: usize = 5;
/// The margin of a card over the measured time, in percent: a probe is a second measurement.
const MARGIN_PERCENT: u64 = 10;
/// Bytes of the larger message between two devices.
const LARGE_BYTES: usize = 4 << 20;
/// Messages of each size.
const MESSAGES: usize = 64;

/// The settings of a measurement.
pub struct CardMeasurement<'a> {
    /// Makes the products of a device.
    pub products: &'a dyn Fn() -> Box<dyn FieldProducts>,
    /// Devices.
    pub devices: u32,
    /// The least time of each sample.
    pub sample: Duration,
    /// Called with the number of devices that were measured, after each of them.
    pub progress: &'a dyn Fn(u32),
}

/// A measured card, but for its class and its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeasuredCard {
    /// Microseconds of a link while 1, 2, … devices work.
    pub links: StepTimes,
    /// Coefficient of variation of the samples with all devices, in parts per million.
    pub variation: u32,
    /// Nanoseconds from a device to another one before the first byte.
    pub latency_ns: u64,
    /// Picoseconds for each further byte.
    pub byte_ps: u64,
}

/// Measures a card. The seeds of its probes are its own, so that nothing of a market's probe is known before.
///
/// # Errors
/// [`florin_compute::LeaseError`] for a number of devices that no listing has.
pub fn measure_card(how: &CardMeasurement<'_>) -> Result<MeasuredCard, florin_compute::LeaseError> {
    let mut times = Vec::new();
    let mut variation = 0;
    ProbeShape { devices: how.devices, filled: FILLED, reads: FILLED * READS }.check()?;
    for devices in 1..=how.devices {
        let shape = ProbeShape { devices, filled: FILLED, reads: FILLED * READS };
        let mut products: ProbeDevices = (0..devices).map(|_| (how.products)()).collect();
        // The first probe prepares caches and libraries, and gives the number of reads of a sample.
        let rough = link_seconds(shape, &mut products, 0);
        let reads = (how.sample.as_secs_f64() / rough.max(1e-9)) as u32;
        let shape = ProbeShape { reads: reads.max(shape.reads), ..shape };
        let mut samples: Vec<f64> =
            (1..=SAMPLES).map(|number| link_seconds(shape, &mut products, number as u8)).collect();
        samples.sort_by(f64::total_cmp);
        let median = samples.get(SAMPLES / 2).copied().unwrap_or(rough);
        let us = (median * 1e6 * (100 + MARGIN_PERCENT) as f64 / 100.0).ceil() as u64;
        times.push(us.max(1));
        variation = variation_of(&samples);
        (how.progress)(devices);
    }
    let (latency_ns, byte_ps) = link_of_devices();
    Ok(MeasuredCard { links: StepTimes::new(times)?, variation, latency_ns, byte_ps })
}

/// Seconds of a link of one device.
fn link_seconds(shape: ProbeShape, devices: &mut ProbeDevices, number: u8) -> f64 {
    let began = Instant::now();
    let computed =
        ComputedProbe::compute(Digest([number; 32]), shape, devices, &ProbeProgress::default());
    drop(computed);
    began.elapsed().as_secs_f64() / shape.links() as f64
}

/// The coefficient of variation in parts per million.
fn variation_of(samples: &[f64]) -> u32 {
    let count = samples.len().max(1) as f64;
    let mean = samples.iter().sum::<f64>() / count;
    let squares = samples.iter().map(|sample| (sample - mean).powi(2)).sum::<f64>();
    (squares.sqrt() / count.sqrt() / mean.max(f64::MIN_POSITIVE) * 1e6) as u32
}

/// Latency in nanoseconds and picoseconds of a byte between two cores: round trips of short and of long messages.
fn link_of_devices() -> (u64, u64) {
    let (to, received) = mpsc::channel::<Vec<u8>>();
    let (back, answers) = mpsc::channel::<Vec<u8>>();
    let echo = thread::spawn(move || {
        for message in received {
            // The other core reads and writes each byte.
            if back.send(message.iter().map(|byte| byte.wrapping_add(1)).collect()).is_err() {
                return;
            }
        }
    });
    let round_trip = |bytes: usize| {
        let mut times: Vec<u64> = (0..MESSAGES)
            .map(|_| {
                let began = Instant::now();
                let sent = to.send(vec![1; bytes]);
                let answer = sent.ok().and_then(|()| answers.recv().ok());
                drop(answer);
                u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)
            })
            .collect();
        times.sort_unstable();
        times.get(MESSAGES / 2).copied().unwrap_or_default()
    };
    let (short, long) = (round_trip(1), round_trip(LARGE_BYTES));
    drop(to);
    let _ended = echo.join();
    let bytes_ns = long.saturating_sub(short) / 2;
    (short / 2, bytes_ns.saturating_mul(1_000) / LARGE_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variation_is_that_of_the_samples() {
        assert_eq!(variation_of(&[1.0, 1.0, 1.0]), 0);
        assert_eq!(variation_of(&[0.9, 1.1]), 100_000);
    }

    #[test]
    fn messages_between_devices_take_time() {
        let (latency, byte) = link_of_devices();
        assert!(latency > 0 && byte > 0, "{latency} {byte}");
    }
}
