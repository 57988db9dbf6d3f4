//! The network between the processes: it loses, duplicates, delays and reorders messages, and
//! partitions processes.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;

use super::weather::Weather;
use florin_sim::draw::below;

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Node {
    /// Runs the rounds.
    Coordinator,
    /// Publishes the task and pays.
    Buyer,
    /// Computes valuations.
    Provider,
    /// Trains; a participant.
    Member(usize),
}

impl std::fmt::Display for Node {
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
pub(super) type Arrivals = Vec<u64>;

/// The connections between the processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Network {
    /// The processes on one side of a partition.
    apart: BTreeSet<Node>,
    /// Stalled processes, and the time until which their messages wait.
    clogged: BTreeMap<Node, u64>,
}

impl Network {
    /// Sets one side of a partition; an empty set ends it.
    pub(super) fn part(&mut self, apart: BTreeSet<Node>) {
        self.apart = apart;
    }

    /// The processes on one side of the partition.
    #[must_use]
    pub(super) const fn apart(&self) -> &BTreeSet<Node> {
        &self.apart
    }

    /// Stalls all messages of a process until the given time.
    pub(super) fn clog(&mut self, node: Node, until: u64) {
        self.clogged.insert(node, until);
    }

    /// Ends all partitions and stalls.
    pub(super) fn heal(&mut self) {
        self.apart.clear();
        self.clogged.clear();
    }

    /// The arrival times of a message that is sent now.
    pub(super) fn send(
        &self,
        now: u64,
        (from, to): (Node, Node),
        weather: &Weather,
        rng: &mut ChaCha8Rng,
    ) -> Arrivals {
        if self.apart.contains(&from) != self.apart.contains(&to) {
            return Arrivals::new();
        }
        let copies = 1 + u64::from(below(rng, 1_000) < weather.duplicates);
        let mut arrivals = Arrivals::new();
        for _ in 0..copies {
            if below(rng, 1_000) < weather.loss {
                continue;
            }
            let mut delay = 1 + below(rng, weather.delay.max(1));
            if below(rng, 1_000) < weather.slow {
                delay = delay.saturating_mul(1 + below(rng, 20));
            }
            let held = [from, to].into_iter().filter_map(|node| self.clogged.get(&node));
            let opens = held.copied().max().unwrap_or_default();
            arrivals.push(now.max(opens).saturating_add(delay));
        }
        arrivals
    }
}
