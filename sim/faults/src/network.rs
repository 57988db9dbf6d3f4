//! The network between the processes: it loses, duplicates, delays and reorders messages, and
//! partitions processes.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;

use super::fault_config::FaultConfig;
use florin_sim::random::uniform_below;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProcessId {
    /// Runs the rounds.
    Coordinator,
    /// Publishes the task and pays.
    Buyer,
    /// Computes valuations.
    Provider,
    /// Trains; a participant.
    Member(usize),
}

impl std::fmt::Display for ProcessId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Coordinator => f.pad("coordinator"),
            Self::Buyer => f.pad("buyer"),
            Self::Provider => f.pad("provider"),
            Self::Member(number) => f.pad(&format!("member {number}")),
        }
    }
}

/// The arrival times of a message: none if it is lost, two if it is duplicated.
pub(super) type ArrivalTimes = Vec<u64>;

/// The connections between the processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    /// The processes on one side of a partition.
    partition: BTreeSet<ProcessId>,
    /// Stalled processes, and the time until which their messages wait.
    stalled_until: BTreeMap<ProcessId, u64>,
}

impl Network {
    /// Sets one side of a partition; an empty set ends it.
    pub(super) fn set_partition(&mut self, apart: BTreeSet<ProcessId>) {
        self.partition = apart;
    }

    /// The processes on one side of the partition.
    #[must_use]
    pub(super) const fn partition(&self) -> &BTreeSet<ProcessId> {
        &self.partition
    }

    /// Stalls all messages of a process until the given time.
    pub(super) fn stall(&mut self, node: ProcessId, until: u64) {
        self.stalled_until.insert(node, until);
    }

    /// Ends all partitions and stalls.
    pub(super) fn heal(&mut self) {
        self.partition.clear();
        self.stalled_until.clear();
    }

    /// The arrival times of a message that is sent now.
    pub(super) fn send(
        &self,
        now: u64,
        (from, to): (ProcessId, ProcessId),
        faults: &FaultConfig,
        rng: &mut ChaCha8Rng,
    ) -> ArrivalTimes {
        if self.partition.contains(&from) != self.partition.contains(&to) {
            return ArrivalTimes::new();
        }
        let copies = 1 + u64::from(uniform_below(rng, 1_000) < faults.duplicates);
        let mut arrivals = ArrivalTimes::new();
        for _ in 0..copies {
            if uniform_below(rng, 1_000) < faults.loss {
                continue;
            }
            let mut delay = 1 + uniform_below(rng, faults.delay.max(1));
            if uniform_below(rng, 1_000) < faults.slow {
                delay = delay.saturating_mul(1 + uniform_below(rng, 20));
            }
            let held = [from, to].into_iter().filter_map(|node| self.stalled_until.get(&node));
            let opens = held.copied().max().unwrap_or_default();
            arrivals.push(now.max(opens).saturating_add(delay));
        }
        arrivals
    }
}
