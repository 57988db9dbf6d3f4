//! The population of one seed: each member's rows, machine, bandwidth and daily rhythm, drawn from
//! the distributions of its group.

use florin_learning::Dataset;
use florin_learning::data::{DatasetError, LoadError};
use rand_chacha::ChaCha8Rng;

use crate::devices::{DeviceRound, DeviceVerdict, member_devices};
use crate::random::{dirichlet, normal, shuffle, stream, uniform, uniform_below};
use crate::scenario::{Availability, Group, Scenario, TableScales};
use crate::strategy::Strategy;

/// Hours per virtual day.
const HOURS: f64 = 24.0;
/// Milliseconds per hour.
const HOUR_MS: f64 = 3_600_000.0;
/// Most spells online and offline of a member with churn.
const SPELLS_MAX: usize = 100_000;
/// Attempts to draw a row with a given label before any row is accepted.
const TRIES_MAX: usize = 64;

/// One member of the population.
#[derive(Clone, Debug)]
pub struct Member {
    /// Index in the population, from 0.
    pub number: usize,
    /// Index of its group among the group names.
    pub group: usize,
    /// Index within its group, from 0.
    pub index_in_group: usize,
    /// Its strategy.
    pub strategy: Strategy,
    /// Its training rows.
    pub rows: Dataset,
    /// Training steps per second.
    pub steps_per_second: f64,
    /// Bytes per second, in each direction.
    pub bytes_per_second: f64,
    /// Hours by which its daily rhythm is shifted.
    pub day_shift_hours: f64,
    /// Its honest work by its devices, which replace machine and bandwidth; `None` without devices.
    pub devices: Option<DeviceRound>,
}

/// Everything that a seed draws before the first round.
#[derive(Clone, Debug)]
pub struct Population {
    /// Names of the groups.
    pub groups: Vec<String>,
    /// All members, group by group.
    pub members: Vec<Member>,
    /// The buyer's holdout rows, on which rounds are valued.
    pub holdout: Dataset,
    /// The test rows, on which accuracy is measured.
    pub test: Dataset,
}

/// Error of drawing a population.
#[derive(Debug, thiserror::Error)]
pub enum PopulationError {
    /// The digits dataset cannot be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The rows do not form a valid dataset.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The rows cannot be divided among members.
    #[error(transparent)]
    Partition(#[from] florin_learning::partition::PartitionError),
}

impl Population {
    /// Draws the population of `scenario` for `seed`.
    ///
    /// # Errors
    /// [`PopulationError`].
    pub fn draw(scenario: &Scenario, seed: u64) -> Result<Self, PopulationError> {
        let learning = &scenario.learning;
        let rows = learning.rows()?;
        let mut deck = RowSampler::shuffled(&rows, scenario, seed);
        let mut test = deck.draw_rows(learning.test_rows as usize, RowUse::Evaluation)?;
        let mut holdout = deck.draw_rows(learning.holdout_rows as usize, RowUse::Evaluation)?;
        let mut members = Vec::new();
        for (at, group) in scenario.population.values().enumerate() {
            for place in 0..group.count as usize {
                let member = deck.member(members.len(), [at, place], group, seed)?;
                members.push(member);
            }
        }
        draw_devices(scenario, seed, &mut members);
        if let Some(scales) = TableScales::new(learning.table.as_ref(), &holdout) {
            test = scales.apply(&test)?;
            holdout = scales.apply(&holdout)?;
            for member in &mut members {
                member.rows = scales.apply(&member.rows)?;
            }
        }
        let rng = &mut stream(seed, "holdout labels", [0, 0]);
        holdout = mislabelled(&holdout, learning.holdout_label_noise, rng)?;
        let groups = scenario.population.keys().cloned().collect();
        Ok(Self { groups, members, holdout, test })
    }
}

/// The use of a row: evaluation (holdout and test) or training by a member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RowUse {
    Evaluation,
    Training,
}

/// The data set in a shuffled order of the seed. Without jitter each row is drawn once. With jitter
/// rows are drawn with replacement, but the evaluation rows and the members' rows come from
/// disjoint halves.
struct RowSampler<'a> {
    data: &'a Dataset,
    order: Vec<usize>,
    /// Number of rows drawn so far.
    drawn: usize,
    feature_noise: f64,
    /// First index of the members' half when rows are drawn with replacement.
    members_from: usize,
    noise: ChaCha8Rng,
}

impl<'a> RowSampler<'a> {
    fn shuffled(data: &'a Dataset, scenario: &Scenario, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..data.rows()).collect();
        shuffle(&mut stream(seed, "deck", [0, 0]), &mut order);
        let members_from = data.rows() / 2;
        let noise = stream(seed, "jitter", [0, 0]);
        Self {
            data,
            order,
            drawn: 0,
            feature_noise: scenario.learning.feature_noise,
            members_from,
            noise,
        }
    }

    /// The index of the next row for this use.
    fn next_index(&mut self, side: RowUse) -> usize {
        let at = if self.feature_noise > 0.0 {
            let (from, to) = match side {
                RowUse::Evaluation => (0, self.members_from),
                RowUse::Training => (self.members_from, self.order.len()),
            };
            from + uniform_below(&mut self.noise, (to - from) as u64) as usize
        } else {
            self.drawn % self.order.len()
        };
        self.drawn += 1;
        self.order[at]
    }

    fn row(&mut self, row: usize, features: &mut Vec<f32>) {
        if self.feature_noise == 0.0 {
            features.extend_from_slice(self.data.row(row));
            return;
        }
        for value in self.data.row(row) {
            let noise = self.feature_noise * normal(&mut self.noise);
            features.push((f64::from(*value) + noise) as f32);
        }
    }

    fn draw_rows(&mut self, rows: usize, side: RowUse) -> Result<Dataset, DatasetError> {
        let (mut features, mut labels) = (Vec::new(), Vec::with_capacity(rows));
        for _ in 0..rows {
            let row = self.next_index(side);
            self.row(row, &mut features);
            labels.push(self.data.labels()[row]);
        }
        Dataset::new(features, labels, self.data.width(), self.data.classes())
    }

    /// Rows whose labels follow the group's Dirichlet skew: each drawn label is searched for among
    /// the rows that are left.
    fn draw_skewed_rows(
        &mut self,
        rows: usize,
        skew: f64,
        rng: &mut ChaCha8Rng,
    ) -> Result<Dataset, DatasetError> {
        let shares = dirichlet(rng, skew, self.data.classes());
        let (mut features, mut labels) = (Vec::new(), Vec::with_capacity(rows));
        for _ in 0..rows {
            let wanted = sample_category(&shares, uniform(rng)) as u32;
            let row = self.find(wanted);
            self.row(row, &mut features);
            labels.push(self.data.labels()[row]);
        }
        Dataset::new(features, labels, self.data.width(), self.data.classes())
    }

    /// A row with the label `wanted`, if one is found soon; it is swapped with the next row in the
    /// order.
    fn find(&mut self, wanted: u32) -> usize {
        let label = |row: usize| self.data.labels()[row];
        if self.feature_noise > 0.0 {
            let mut row = self.next_index(RowUse::Training);
            for _ in 0..TRIES_MAX {
                if self.data.labels()[row] == wanted {
                    break;
                }
                row = self.next_index(RowUse::Training);
            }
            return row;
        }
        let from = self.drawn % self.order.len();
        let found = self.order[from..].iter().position(|row| label(*row) == wanted);
        if let Some(ahead) = found {
            self.order.swap(from, from + ahead);
        }
        self.next_index(RowUse::Training)
    }

    fn member(
        &mut self,
        number: usize,
        [at, place]: [usize; 2],
        group: &Group,
        seed: u64,
    ) -> Result<Member, DatasetError> {
        let rng = &mut stream(seed, "member", [number as u64, 0]);
        let [low, high] = group.rows;
        let rows = low as usize + uniform_below(rng, u64::from(high - low) + 1) as usize;
        let data = match group.label_skew {
            None => self.draw_rows(rows, RowUse::Training)?,
            Some(skew) => self.draw_skewed_rows(rows, skew, rng)?,
        };
        let machine = &group.machine;
        let mut around = |median: f64, spread: f64| median * (spread * normal(rng)).exp();
        let steps_per_second = around(machine.steps_per_second, machine.spread);
        let bytes_per_second =
            around(machine.megabits_per_second, machine.line_spread()) * 125_000.0;
        let shift = match group.online {
            Availability::Daily { shift_hours, .. } => shift_hours * (uniform(rng) - 0.5),
            Availability::Always
            | Availability::Random { .. }
            | Availability::Churn { .. }
            | Availability::Rounds { .. }
            | Availability::Trace { .. } => 0.0,
        };
        let rows = mislabelled(&data, group.label_noise, rng)?;
        Ok(Member {
            number,
            group: at,
            index_in_group: place,
            strategy: group.strategy,
            rows,
            steps_per_second,
            bytes_per_second,
            day_shift_hours: shift,
            devices: None,
        })
    }
}

/// Draws the devices of all members.
fn draw_devices(scenario: &Scenario, seed: u64, members: &mut [Member]) {
    let learning = &scenario.learning;
    let groups: Vec<&Group> = scenario.population.values().collect();
    for member in members {
        let Some(devices) = &groups[member.group].devices else { continue };
        let batches = (member.rows.rows() as u64).div_ceil(learning.batch.into());
        let steps = batches * u64::from(learning.epochs);
        let times = member_devices(scenario, devices, seed, member.number as u64);
        member.devices = times.map(|times| times.round(steps, &scenario.task));
    }
}

/// The category into which a number in [0, 1) falls, given the category probabilities.
fn sample_category(shares: &[f64], at: f64) -> usize {
    let mut sum = 0.0;
    let found = shares.iter().position(|share| {
        sum += share;
        at < sum
    });
    found.unwrap_or(shares.len().saturating_sub(1))
}

/// The rows with a fraction `share` of their labels replaced by another label.
pub(crate) fn mislabelled(
    data: &Dataset,
    share: f64,
    rng: &mut ChaCha8Rng,
) -> Result<Dataset, DatasetError> {
    let classes = data.classes() as u64;
    let moved = |label: &u32| {
        if share > 0.0 && classes > 1 && uniform(rng) < share {
            return ((u64::from(*label) + 1 + uniform_below(rng, classes - 1)) % classes) as u32;
        }
        *label
    };
    let labels = data.labels().iter().map(moved).collect();
    Dataset::new(data.features().to_vec(), labels, data.width(), data.classes())
}

impl Member {
    /// Whether a step fits into none of its devices. Such a member takes part in no round.
    #[must_use]
    pub fn sends_nothing(&self) -> bool {
        self.devices.is_some_and(|round| round.verdict == DeviceVerdict::TooSmall)
    }

    /// Whether the member is online when a round opens at this moment of virtual time.
    #[must_use]
    pub fn is_online(&self, online: &Availability, round: u64, at_ms: u64, seed: u64) -> bool {
        if self.sends_nothing() {
            return false;
        }
        if let Availability::Churn { online_hours, offline_hours } = *online {
            return self.is_in_spell(online_hours, offline_hours, at_ms, seed);
        }
        let probability = self.probability_online(online, round, at_ms);
        uniform(&mut stream(seed, "online", [self.number as u64, round])) < probability
    }

    /// Whether the member is in one of its spells online: an alternating renewal process from the beginning of virtual time, in
    /// its stationary state.
    fn is_in_spell(&self, online_hours: f64, offline_hours: f64, at_ms: u64, seed: u64) -> bool {
        let rng = &mut stream(seed, "churn", [self.number as u64, 0]);
        let mut is_online = uniform(rng) < online_hours / (online_hours + offline_hours);
        let mut left = at_ms as f64 / HOUR_MS;
        for _ in 0..SPELLS_MAX {
            let mean = if is_online { online_hours } else { offline_hours };
            left -= -mean * (1.0 - uniform(rng)).ln();
            if left < 0.0 {
                break;
            }
            is_online = !is_online;
        }
        is_online
    }

    /// The probability that the member is online when a round opens at this moment of virtual time.
    #[must_use]
    pub fn probability_online(&self, online: &Availability, round: u64, at_ms: u64) -> f64 {
        let certain = |is_online: bool| f64::from(u8::from(is_online));
        match online {
            Availability::Always => 1.0,
            Availability::Rounds { first, last } => certain((*first..=*last).contains(&round)),
            Availability::Random { probability } => *probability,
            Availability::Churn { online_hours, offline_hours } => {
                online_hours / (online_hours + offline_hours)
            }
            Availability::Trace { trace, .. } => {
                let seconds = at_ms as f64 / 1e3;
                certain(
                    trace
                        .as_ref()
                        .is_some_and(|trace| trace.is_online(self.index_in_group, seconds)),
                )
            }
            Availability::Daily { low, high, peak, .. } => {
                let hour = at_ms as f64 / HOUR_MS + self.day_shift_hours - peak;
                let swing = (hour / HOURS * std::f64::consts::TAU).cos();
                low + (high - low) * (1.0 + swing) / 2.0
            }
        }
    }

    /// The probability that a member that is online when a round opens is also online when one opens
    /// `later_ms` later.
    #[must_use]
    pub fn probability_still_online(
        &self,
        online: &Availability,
        round: u64,
        at_ms: u64,
        later_ms: u64,
    ) -> f64 {
        let later = self.probability_online(
            online,
            round.saturating_add(1),
            at_ms.saturating_add(later_ms),
        );
        let Availability::Churn { online_hours, offline_hours } = *online else { return later };
        // The spells are those of a Markov chain with two states.
        let hours = later_ms as f64 / HOUR_MS;
        let forgotten = (-hours * (online_hours.recip() + offline_hours.recip())).exp();
        later + (1.0 - later) * forgotten
    }
}
