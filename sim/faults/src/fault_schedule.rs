//! The fault schedule: partitions, stalls, full disks, ledger outages, clock jumps, and the healing
//! of all faults.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;

use super::bugs::Bug;
use super::context::{FaultChange, SimContext, SimEvent};
use super::disk::{DiskFaults, SimDisk};
use super::fault_config::FaultConfig;
use super::network::ProcessId;
use florin_sim::random::{stream, uniform_below};

/// Maximum duration of a partition, a stall, an outage or a full disk, in milliseconds.
const LASTS_MS: u64 = 5_000;
/// Window before an outage in which a planted bug loses the ledger's transactions, in milliseconds.
const FORGETS_MS: u64 = 800;

/// The fault parameters of a seed, plus the minimum that a planted bug needs to show.
pub(super) fn fault_config(seed: u64, bug: Option<Bug>) -> FaultConfig {
    let mut faults = FaultConfig::draw(seed);
    match bug {
        Some(Bug::LedgerLosesTransactions) => faults.ledger_outages = 3,
        Some(Bug::ReceiptWithoutRecord) => faults.disk_full_periods = 3,
        _ => {}
    }
    faults
}

/// Schedules all faults.
pub(super) fn schedule_faults(world: &mut SimContext, members: usize) {
    let faults = world.faults.clone();
    let rng = &mut stream(world.setup.spec.salt, "storm", [0, 0]);
    let until = faults.heals_at;
    let mut all: Vec<ProcessId> = (0..members).map(ProcessId::Member).collect();
    all.extend([ProcessId::Coordinator, ProcessId::Buyer, ProcessId::Provider]);
    for _ in 0..faults.partitions {
        let apart = random_subset(rng, &all);
        schedule_period(
            world,
            rng,
            until,
            FaultChange::StartPartition(apart),
            FaultChange::EndPartition,
        );
    }
    for _ in 0..faults.stalls {
        schedule_swizzle(world, rng, until, &all);
    }
    for _ in 0..faults.disk_full_periods {
        schedule_period(
            world,
            rng,
            until,
            FaultChange::DiskFull(true),
            FaultChange::DiskFull(false),
        );
    }
    for _ in 0..faults.ledger_outages {
        let at = uniform_below(rng, until);
        let before = at.saturating_sub(uniform_below(rng, FORGETS_MS));
        if world.bug == Some(Bug::LedgerLosesTransactions) {
            world.schedule(before, SimEvent::Fault(FaultChange::PlantLedgerLoss));
        }
        world.schedule(at, SimEvent::Fault(FaultChange::LedgerOutage(true)));
        world.schedule(
            at + uniform_below(rng, LASTS_MS),
            SimEvent::Fault(FaultChange::LedgerOutage(false)),
        );
    }
    for _ in 0..faults.clock_jumps {
        let by = i64::try_from(uniform_below(rng, 2 * faults.skew.max(500))).unwrap_or(0);
        let by = by - i64::try_from(faults.skew.max(500)).unwrap_or(0);
        world.schedule(uniform_below(rng, until), SimEvent::Fault(FaultChange::ClockJump(by)));
    }
    world.schedule(until, SimEvent::Fault(FaultChange::Heal));
}

fn schedule_period(
    world: &mut SimContext,
    rng: &mut ChaCha8Rng,
    until: u64,
    begin: FaultChange,
    end: FaultChange,
) {
    let at = uniform_below(rng, until);
    world.schedule(at, SimEvent::Fault(begin));
    world.schedule(at + 1 + uniform_below(rng, LASTS_MS), SimEvent::Fault(end));
}

/// Stalls a random set of processes one after the other, and releases them in another order.
fn schedule_swizzle(world: &mut SimContext, rng: &mut ChaCha8Rng, until: u64, all: &[ProcessId]) {
    let begin = uniform_below(rng, until);
    for node in random_subset(rng, all) {
        let at = begin + uniform_below(rng, LASTS_MS);
        let opens = begin + LASTS_MS + uniform_below(rng, LASTS_MS);
        world.schedule(at, SimEvent::Fault(FaultChange::Stall(node, opens)));
    }
}

fn random_subset(rng: &mut ChaCha8Rng, all: &[ProcessId]) -> Vec<ProcessId> {
    all.iter().copied().filter(|_| uniform_below(rng, 3) == 0).collect()
}

/// Applies a scheduled change.
pub(super) fn apply_change(world: &mut SimContext, machine: &SimDisk, change: FaultChange) {
    world.trace.log(world.now, "faults", format_args!("{change:?}"));
    match change {
        FaultChange::StartPartition(nodes) => {
            world.network.set_partition(nodes.into_iter().collect())
        }
        FaultChange::EndPartition => world.network.set_partition(BTreeSet::new()),
        FaultChange::Stall(node, until) => world.network.stall(node, until),
        FaultChange::DiskFull(full) => machine.set_full(full),
        FaultChange::LedgerOutage(away) => {
            let mut bank = world.ledger();
            bank.set_down(away);
            if away {
                bank.revert_planted();
            }
        }
        FaultChange::ClockJump(by) => world.move_clock(ProcessId::Coordinator, by),
        FaultChange::PlantLedgerLoss => world.ledger().plant_transaction_loss(),
        FaultChange::Heal => {
            let (heals_at, skew) = (world.faults.heals_at, world.faults.skew);
            // Clock offsets remain.
            world.faults = FaultConfig { heals_at, skew, delay: 20, ..FaultConfig::default() };
            world.network.heal();
            machine.set_faults(DiskFaults::default());
            machine.set_full(false);
            world.ledger().set_down(false);
        }
    }
    world.apply_ledger_faults();
}
