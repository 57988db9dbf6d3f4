//! Fault parameters of a seed: the kinds of faults, their rates, and the time at which everything
//! heals.

use rand_chacha::ChaCha8Rng;

use super::disk::DiskFaults;
use florin_sim::draw::{below, stream};

/// One in this many seeds has no faults.
const FAIR: u64 = 16;

/// The faults of a seed. Rates are in thousandths, times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weather {
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
    pub clogs: u64,
    /// Faults of the coordinator's disk.
    pub disk: DiskFaults,
    /// Crashes that are power failures, and not the end of a process only: 0 to 1,000.
    pub power: u64,
    /// Periods in which the coordinator's disk is full: 0 to 3.
    pub full: u64,
    /// Steps of a participant or provider at which it crashes: 0 to 30.
    pub crashes: u64,
    /// Requests to the ledger that are lost: 0 to 200.
    pub ledger_unheard: u64,
    /// Responses of the ledger that are lost: 0 to 200.
    pub ledger_unanswered: u64,
    /// Transactions that reach the ledger after their sender's timeout: 0 to 100.
    pub ledger_late: u64,
    /// Ledger outages: 0 to 2.
    pub ledger_away: u64,
    /// Maximum offset of a clock in either direction: 0 to 3,000.
    pub skew: u64,
    /// Jumps of the coordinator's clock: 0 to 3.
    pub jumps: u64,
}

impl Weather {
    /// Draws the faults of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Self {
        let rng = &mut stream(seed, "weather", [0, 0]);
        let heals_at = 8_000 + below(rng, 42_000);
        let delay = 5 + below(rng, 60);
        if below(rng, FAIR) == 0 {
            return Self { heals_at, delay, ..Self::default() };
        }
        Self {
            heals_at,
            loss: some(rng, 300),
            duplicates: some(rng, 500),
            delay: delay + some(rng, 335),
            slow: some(rng, 100),
            partitions: some(rng, 3),
            clogs: some(rng, 2),
            disk: DiskFaults {
                dies: some(rng, 40),
                sync_fails: some(rng, 15),
                drops: some(rng, 1_000),
            },
            power: below(rng, 1_001),
            full: some(rng, 3),
            crashes: some(rng, 30),
            ledger_unheard: some(rng, 200),
            ledger_unanswered: some(rng, 200),
            ledger_late: some(rng, 100),
            ledger_away: some(rng, 2),
            skew: some(rng, 3_000),
            jumps: some(rng, 3),
        }
    }
}

/// Zero in two of five seeds, otherwise 1 to `most`.
fn some(rng: &mut ChaCha8Rng, most: u64) -> u64 {
    let there = below(rng, 5) >= 2;
    let much = 1 + below(rng, most);
    if there { much } else { 0 }
}
