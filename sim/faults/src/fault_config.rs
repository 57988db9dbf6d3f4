//! Fault parameters of a seed: the kinds of faults, their rates, and the time at which everything
//! heals.

use rand_chacha::ChaCha8Rng;

use super::disk::DiskFaults;
use florin_sim::random::{stream, uniform_below};

/// One in this many seeds has no faults.
const FAULT_FREE_ONE_IN: u64 = 16;

/// The faults of a seed. Rates are in thousandths, times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// Time at which everything heals.
    pub heals_at: u64,
    /// Lost messages: 0 to 300.
    pub loss: u64,
    /// Duplicated messages: 0 to 500.
    pub duplicates: u64,
    /// Maximum normal delay of a message: 5 to 400.
    pub delay: u64,
    /// Messages that take up to twenty times as long, and are overtaken by later ones: 0 to 100.
    pub slow: u64,
    /// Number of partitions: 0 to 3.
    pub partitions: u64,
    /// Number of swizzle-clogs, in which processes are stalled one by one and released in another
    /// order: 0 to 2.
    pub stalls: u64,
    /// Faults of the coordinator's disk.
    pub disk: DiskFaults,
    /// Crashes that are power failures, and not the end of a process only: 0 to 1,000.
    pub power_failures: u64,
    /// Periods in which the coordinator's disk is full: 0 to 3.
    pub disk_full_periods: u64,
    /// Steps of a participant or provider at which it crashes: 0 to 30.
    pub crashes: u64,
    /// Requests to the ledger that are lost: 0 to 200.
    pub ledger_request_loss: u64,
    /// Responses of the ledger that are lost: 0 to 200.
    pub ledger_response_loss: u64,
    /// Transactions that reach the ledger after their sender's timeout: 0 to 100.
    pub ledger_late: u64,
    /// Ledger outages: 0 to 2.
    pub ledger_outages: u64,
    /// Maximum offset of a clock in either direction: 0 to 3,000.
    pub skew: u64,
    /// Jumps of the coordinator's clock: 0 to 3.
    pub clock_jumps: u64,
}

impl FaultConfig {
    /// Draws the faults of a seed.
    #[must_use]
    pub fn draw(seed: u64) -> Self {
        let rng = &mut stream(seed, "weather", [0, 0]);
        let heals_at = 8_000 + uniform_below(rng, 42_000);
        let delay = 5 + uniform_below(rng, 60);
        if uniform_below(rng, FAULT_FREE_ONE_IN) == 0 {
            return Self { heals_at, delay, ..Self::default() };
        }
        Self {
            heals_at,
            loss: zero_or_up_to(rng, 300),
            duplicates: zero_or_up_to(rng, 500),
            delay: delay + zero_or_up_to(rng, 335),
            slow: zero_or_up_to(rng, 100),
            partitions: zero_or_up_to(rng, 3),
            stalls: zero_or_up_to(rng, 2),
            disk: DiskFaults {
                crashes: zero_or_up_to(rng, 40),
                sync_fails: zero_or_up_to(rng, 15),
                lost_writes: zero_or_up_to(rng, 1_000),
            },
            power_failures: uniform_below(rng, 1_001),
            disk_full_periods: zero_or_up_to(rng, 3),
            crashes: zero_or_up_to(rng, 30),
            ledger_request_loss: zero_or_up_to(rng, 200),
            ledger_response_loss: zero_or_up_to(rng, 200),
            ledger_late: zero_or_up_to(rng, 100),
            ledger_outages: zero_or_up_to(rng, 2),
            skew: zero_or_up_to(rng, 3_000),
            clock_jumps: zero_or_up_to(rng, 3),
        }
    }
}

/// Zero in two of five seeds, otherwise 1 to `most`.
fn zero_or_up_to(rng: &mut ChaCha8Rng, most: u64) -> u64 {
    let there = uniform_below(rng, 5) >= 2;
    let much = 1 + uniform_below(rng, most);
    if there { much } else { 0 }
}
