//! The limits of a cluster and of its queue. Within them no product of the crate overflows.

/// Most nodes of a provider.
pub const NODES_MAX: usize = 4_096;
/// Most devices of a node.
pub const NODE_DEVICES_MAX: u32 = 64;
/// Most orders that wait or run.
pub const ORDERS_MAX: usize = 100_000;
/// Longest step, in nanoseconds: eleven days.
pub const STEP_NANO_MAX: u64 = 1_000_000_000_000_000;
/// Most steps of an order.
pub const STEPS_MAX: u64 = 1_000_000_000_000;
/// Longest pause of an order that gets other devices, in nanoseconds: a day.
pub const RESCALE_NANO_MAX: u64 = 86_400_000_000_000;
/// Most rows of a table of packed rates.
pub const PACKINGS_MAX: usize = 100_000;
/// Most events of a simulation.
pub const SIMULATED_EVENTS_MAX: u64 = 10_000_000;
/// Parts of a whole in which efficiencies and rates are given.
pub const MILLI: u64 = 1_000;
/// Parts of a step in which remaining work is counted.
pub const MICRO: u64 = 1_000_000;
