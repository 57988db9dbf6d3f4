//! What goes wrong in a seed, and how often: drawn from the seed, each kind within its range, and until everything heals.

use rand_chacha::ChaCha8Rng;

use super::disk::DiskFaults;
use florin_sim::draw::{below, stream};

/// One in so many seeds has no faults at all.
const FAIR: u64 = 16;

/// The faults of a seed. Chances are in thousandths, times in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// When everything heals.
    pub heals_at: u64,
    /// Messages that are lost: 0 to 300.
    pub loss: u64,
    /// Messages that arrive twice: 0 to 500.
    pub duplicates: u64,
    /// Longest usual delay of a message: 5 to 400.
    pub delay: u64,
    /// Messages that take up to twenty times as long, and so overtake nobody: 0 to 100.
    pub slow: u64,
    /// Times at which some processes cannot reach the others: 0 to 3.
    pub partitions: u64,
    /// Swizzle-clogs: processes are cut off one by one, and come back in another order: 0 to 2.
    pub clogs: u64,
    /// The coordinator's disk.
    pub disk: DiskFaults,
    /// Crashes that are power cuts, and not the end of a process alone.
    pub power: u64,
    /// Times at which the coordinator's disk is full: 0 to 3.
    pub full: u64,
    /// Steps of a participant or provider at which it crashes: 0 to 30.
    pub crashes: u64,
    /// Requests to the ledger that are lost before it hears of them: 0 to 200.
    pub ledger_unheard: u64,
    /// Answers of the ledger that are lost: 0 to 200.
    pub ledger_unanswered: u64,
    /// Transactions that reach the ledger later than their sender waits: 0 to 100.
    pub ledger_late: u64,
    /// Times at which the ledger is away: 0 to 2.
    pub ledger_away: u64,
    /// Farthest that a clock is off, either way: 0 to 3,000.
    pub skew: u64,
    /// Times at which the coordinator's clock jumps: 0 to 3.
    pub jumps: u64,
}

impl Weather {
    /// The faults of a seed.
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

/// Nothing in two seeds of five, otherwise 1 to `most`.
fn some(rng: &mut ChaCha8Rng, most: u64) -> u64 {
    let there = below(rng, 5) >= 2;
    let much = 1 + below(rng, most);
    if there { much } else { 0 }
}
