//! The fault schedule: partitions, stalls, full disks, ledger outages, clock jumps, and the healing
//! of all faults.

use std::collections::BTreeSet;

use rand_chacha::ChaCha8Rng;

use super::bugs::Bug;
use super::disk::{DiskFaults, Machine};
use super::network::Node;
use super::weather::Weather;
use super::world::{Change, What, World};
use florin_sim::draw::{below, stream};

/// Maximum duration of a partition, a stall, an outage or a full disk, in milliseconds.
const LASTS_MS: u64 = 5_000;
/// Window before an outage in which a planted bug loses the ledger's transactions, in milliseconds.
const FORGETS_MS: u64 = 800;

/// The fault parameters of a seed, plus the minimum that a planted bug needs to show.
pub(super) fn of(seed: u64, bug: Option<Bug>) -> Weather {
    let mut weather = Weather::of(seed);
    match bug {
        Some(Bug::LedgerForgets) => weather.ledger_away = 3,
        Some(Bug::ReceiptWithoutRecord) => weather.full = 3,
        _ => {}
    }
    weather
}

/// Schedules all faults.
pub(super) fn plan(world: &mut World, members: usize) {
    let weather = world.weather.clone();
    let rng = &mut stream(world.cast.spec.salt, "storm", [0, 0]);
    let until = weather.heals_at;
    let mut all: Vec<Node> = (0..members).map(Node::Member).collect();
    all.extend([Node::Coordinator, Node::Buyer, Node::Provider]);
    for _ in 0..weather.partitions {
        let apart = some_of(rng, &all);
        lasting(world, rng, until, Change::Part(apart), Change::Join);
    }
    for _ in 0..weather.clogs {
        swizzle(world, rng, until, &all);
    }
    for _ in 0..weather.full {
        lasting(world, rng, until, Change::Full(true), Change::Full(false));
    }
    for _ in 0..weather.ledger_away {
        let at = below(rng, until);
        let before = at.saturating_sub(below(rng, FORGETS_MS));
        if world.bug == Some(Bug::LedgerForgets) {
            world.after(before, What::Weather(Change::Forget));
        }
        world.after(at, What::Weather(Change::Away(true)));
        world.after(at + below(rng, LASTS_MS), What::Weather(Change::Away(false)));
    }
    for _ in 0..weather.jumps {
        let by = i64::try_from(below(rng, 2 * weather.skew.max(500))).unwrap_or(0);
        let by = by - i64::try_from(weather.skew.max(500)).unwrap_or(0);
        world.after(below(rng, until), What::Weather(Change::Jump(by)));
    }
    world.after(until, What::Weather(Change::Heal));
}

fn lasting(world: &mut World, rng: &mut ChaCha8Rng, until: u64, begin: Change, end: Change) {
    let at = below(rng, until);
    world.after(at, What::Weather(begin));
    world.after(at + 1 + below(rng, LASTS_MS), What::Weather(end));
}

/// Stalls a random set of processes one after the other, and releases them in another order.
fn swizzle(world: &mut World, rng: &mut ChaCha8Rng, until: u64, all: &[Node]) {
    let begin = below(rng, until);
    for node in some_of(rng, all) {
        let at = begin + below(rng, LASTS_MS);
        let opens = begin + LASTS_MS + below(rng, LASTS_MS);
        world.after(at, What::Weather(Change::Clog(node, opens)));
    }
}

fn some_of(rng: &mut ChaCha8Rng, all: &[Node]) -> Vec<Node> {
    all.iter().copied().filter(|_| below(rng, 3) == 0).collect()
}

/// Applies a scheduled change.
pub(super) fn change(world: &mut World, machine: &Machine, change: Change) {
    world.trace.tell(world.now, "weather", format_args!("{change:?}"));
    match change {
        Change::Part(nodes) => world.network.part(nodes.into_iter().collect()),
        Change::Join => world.network.part(BTreeSet::new()),
        Change::Clog(node, until) => world.network.clog(node, until),
        Change::Full(full) => machine.set_full(full),
        Change::Away(away) => {
            let mut bank = world.bank();
            bank.set_away(away);
            if away {
                bank.forget();
            }
        }
        Change::Jump(by) => world.jump(Node::Coordinator, by),
        Change::Forget => world.bank().plant_forgetting(),
        Change::Heal => {
            let (heals_at, skew) = (world.weather.heals_at, world.weather.skew);
            // Clock offsets remain.
            world.weather = Weather { heals_at, skew, delay: 20, ..Weather::default() };
            world.network.heal();
            machine.set_faults(DiskFaults::default());
            machine.set_full(false);
            world.bank().set_away(false);
        }
    }
    world.set_ledger_line();
}
