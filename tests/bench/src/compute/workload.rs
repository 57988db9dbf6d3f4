//! The orders of one seed: jobs of the tables, with random sizes and arrivals.

use std::collections::BTreeMap;

use florin_random::{below, chacha20, uniform};
use florin_scheduler::{
    ClusterState, DeviceNode, OrderArrival, OrderId, SchedulePolicy, SimulationLog, StepProfile,
    TrainingOrder, simulate,
};

use super::gavel::GavelTable;

pub(super) const SECOND: u64 = 1_000_000_000;
const MINUTE_NANO: f64 = 60e9;
/// Orders of a simulation.
const ORDERS: u64 = 100;
/// Nodes, and devices of each.
const NODES: usize = 4;
const NODE_DEVICES: u32 = 4;
/// Minutes of an order on one device, before a factor of 0.5 to 1.5.
const MINUTES: [f64; 5] = [2.0, 4.0, 8.0, 16.0, 32.0];
const MINUTES_MEAN: f64 = 12.4;
/// The pause of an order that gets other devices or is restored: it writes and reads a checkpoint.
pub(super) const RESCALE_NANO: u64 = 30 * SECOND;
/// The stream of the seed's random numbers.
const STREAM: u64 = 81;

/// Orders that arrive in a minute.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) per_minute: f64,
}

impl Load {
    pub(super) const ALL: [Self; 3] = [
        Self { name: "low load", per_minute: 0.2 },
        Self { name: "medium load", per_minute: 0.6 },
        Self { name: "heavy load", per_minute: 1.5 },
    ];

    /// The work that arrives, in percent of the work that all devices do with one order each.
    pub(super) fn percent(self) -> f64 {
        let devices = NODES as f64 * f64::from(NODE_DEVICES);
        100.0 * self.per_minute * MINUTES_MEAN / devices
    }
}

/// How orders are served.
#[derive(Debug, Clone, Copy)]
pub(super) enum Serving {
    /// By a policy; an order leaves devices idle that slow it.
    Policy(SchedulePolicy),
    /// On whole nodes, and all devices of a node work, even if fewer are faster.
    AllOfTheNode,
}

/// The orders of one seed.
#[derive(Debug, Clone)]
pub(super) struct Workload {
    state: ClusterState,
    arrivals: Vec<OrderArrival>,
    /// The same orders, whose steps have the time of four devices that all work.
    on_all_four: Vec<OrderArrival>,
    /// Nanoseconds of all orders, if each had its fastest count of devices from its arrival on.
    fastest_nano: u128,
    /// Nanoseconds of all orders on one device each.
    work_nano: u128,
}

/// The sums of one or more simulations.
#[derive(Debug, Clone, Default)]
pub(super) struct ScheduleFigures {
    /// Minutes from arrival to completion of each order.
    pub(super) minutes: Vec<f64>,
    occupied_nano: u128,
    useful_nano: u128,
    available_nano: u128,
    interruptions: u64,
}

impl Workload {
    pub(super) fn draw(table: &GavelTable, load: Load, seed: u64) -> anyhow::Result<Self> {
        let kind = table.kind.device();
        let node = DeviceNode { kind, devices: NODE_DEVICES, memory_bytes: 0 };
        let state = ClusterState::new(vec![node; NODES], table.packing.clone(), RESCALE_NANO)?;
        let mut rng = chacha20(seed, STREAM);
        let (mut arrivals, mut on_all_four) = (Vec::new(), Vec::new());
        let (mut fastest_nano, mut work_nano, mut minutes) = (0, 0, 0.0);
        for id in 0..ORDERS {
            minutes -= (1.0 - uniform(&mut rng)).ln() / load.per_minute;
            let job = &table.jobs[below(&mut rng, table.jobs.len() as u64) as usize];
            let size = MINUTES[below(&mut rng, MINUTES.len() as u64) as usize];
            let nano = size * (0.5 + uniform(&mut rng)) * MINUTE_NANO;
            let steps = (nano / job.profile.step_nano(1) as f64).ceil() as u64;
            let at_nano = (minutes * MINUTE_NANO) as u128;
            let arrival = |profile: &StepProfile| {
                let profiles = BTreeMap::from([(kind, profile.clone())]);
                let order = TrainingOrder::new(OrderId(id), profiles, steps)?.with_class(job.class);
                anyhow::Ok(OrderArrival { at_nano, order })
            };
            let arrived = arrival(&job.profile)?;
            work_nano += arrived.order.remaining_nano(job.profile.step_nano(1));
            fastest_nano += arrived.order.remaining_nano(job.profile.step_nano(NODE_DEVICES));
            arrivals.push(arrived);
            on_all_four.push(arrival(&job.on_all_four)?);
        }
        Ok(Self { state, arrivals, on_all_four, fastest_nano, work_nano })
    }

    fn run(&self, serving: &Serving) -> anyhow::Result<SimulationLog> {
        let (policy, arrivals) = match serving {
            Serving::Policy(policy) => (*policy, &self.arrivals),
            Serving::AllOfTheNode => (SchedulePolicy::Exclusive, &self.on_all_four),
        };
        Ok(simulate(self.state.clone(), &policy, arrivals)?)
    }

    /// The mean minutes of an order that never waits and always has its fastest count of devices: no
    /// policy is faster.
    pub(super) fn fastest_minutes(&self) -> f64 {
        self.fastest_nano as f64 / MINUTE_NANO / ORDERS as f64
    }
}

impl ScheduleFigures {
    pub(super) fn measure(workloads: &[Workload], serving: &Serving) -> anyhow::Result<Self> {
        let mut figures = Self::default();
        for workload in workloads {
            let log = workload.run(serving)?;
            let minutes = log
                .outcomes
                .iter()
                .map(|outcome| (outcome.finished_nano - outcome.arrived_nano) as f64 / MINUTE_NANO);
            figures.minutes.extend(minutes);
            figures.occupied_nano += log.occupied_nano;
            figures.useful_nano += workload.work_nano;
            let devices: u32 = workload.state.nodes().iter().map(|node| node.devices).sum();
            figures.available_nano += log.end_nano * u128::from(devices);
            figures.interruptions += log.interruptions;
        }
        figures.minutes.sort_by(f64::total_cmp);
        Ok(figures)
    }

    pub(super) fn mean(&self) -> f64 {
        self.minutes.iter().sum::<f64>() / self.minutes.len() as f64
    }

    /// The time within which 99 % of the orders complete.
    pub(super) fn p99(&self) -> f64 {
        let at = (self.minutes.len() * 99).div_ceil(100).max(1) - 1;
        self.minutes.get(at).copied().unwrap_or(f64::NAN)
    }

    /// The share of the devices' time in which they have an order, in percent.
    pub(super) fn occupied(&self) -> f64 {
        100.0 * self.occupied_nano as f64 / self.available_nano as f64
    }

    /// The work done, as the time that one device alone takes for it, over the devices' time, in percent.
    pub(super) fn useful(&self) -> f64 {
        100.0 * self.useful_nano as f64 / self.available_nano as f64
    }

    /// Rescales and preemptions for each order.
    pub(super) fn interruptions(&self) -> f64 {
        self.interruptions as f64 / self.minutes.len() as f64
    }

    /// How much longer the mean completion takes than another one, in percent.
    pub(super) fn beyond(&self, other: &Self) -> f64 {
        100.0 * (self.mean() / other.mean() - 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::gavel::GavelKind;

    #[test]
    fn a_seed_has_one_workload_and_every_order_completes() {
        let table = GavelTable::read(GavelKind::K80).unwrap();
        let minutes = |seed| {
            let workload = Workload::draw(&table, Load::ALL[2], seed).unwrap();
            let serving = Serving::Policy(SchedulePolicy::Exclusive);
            let figures =
                ScheduleFigures::measure(std::slice::from_ref(&workload), &serving).unwrap();
            assert!(figures.mean() > workload.fastest_minutes());
            assert!(figures.p99() >= figures.mean() && figures.occupied() <= 100.0);
            figures.minutes
        };
        assert_eq!(minutes(1).len(), 100);
        assert_eq!(minutes(1), minutes(1));
        assert_ne!(minutes(1), minutes(2));
    }

    #[test]
    fn loads_are_parts_of_the_work_of_all_devices() {
        assert_eq!(Load::ALL.map(|load| load.percent().round()), [16.0, 47.0, 116.0]);
    }
}
