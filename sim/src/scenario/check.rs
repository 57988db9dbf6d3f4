//! Validates scenarios.

use super::{Availability, Group, PassCriterion, Scenario, ScenarioError, SeedRange};
use crate::measure::MEASURES;
use crate::mechanism::Mechanism;
use crate::strategy::Strategy;
use florin_protocol::limits::{COHORT_MAX, CROSS_CHECK_PAIRS_MAX};

/// Maximum number of seeds of one experiment.
pub(super) const SEEDS_MAX: u32 = 10_000;
/// Maximum number of rounds of one task.
pub(super) const ROUNDS_MAX: u32 = 10_000;
/// Maximum number of groups of a population.
pub(crate) const GROUPS_MAX: usize = 64;
/// Maximum number of members in a real simulation.
pub(super) const MEMBERS_MAX: u32 = 10_000;
/// Maximum number of members in a surrogate simulation.
const SURROGATES_MAX: u32 = 1_000_000;
/// Maximum number of members in all simulations of a surrogate together, including honest
/// counterfactuals: about three gigabytes.
const SURROGATE_GAMES_MAX: u64 = 20_000_000;
/// Maximum number of members of a small real simulation, and of its seeds.
const SMALL_MAX: u32 = 1_000;
/// Maximum number of tokens that a mechanism gives or takes.
const TOKENS_MAX: u64 = 1_000_000_000;
/// Maximum number of rows of all members together, including copies: half a gigabyte.
const ROWS_MAX: f64 = 2_000_000.0;
/// Maximum number of parameters in all updates of a round together: a gigabyte.
const NUMBERS_MAX: u64 = 250_000_000;
/// Maximum supply in florins: far below 2^128 base units.
const SUPPLY_MAX: f64 = 1e15;

pub(crate) struct Check;

impl Check {
    pub(crate) fn require(
        holds: bool,
        key: impl Into<String>,
        value: &impl ToString,
        right: &str,
    ) -> Result<(), ScenarioError> {
        if holds {
            return Ok(());
        }
        let (key, value, right) = (key.into(), value.to_string(), right.to_owned());
        Err(ScenarioError::Value { key, value, right })
    }

    pub(crate) fn require_range(
        key: impl Into<String>,
        value: f64,
        low: f64,
        high: f64,
    ) -> Result<(), ScenarioError> {
        let right = format!("must be {low} to {high}");
        Self::require((low..=high).contains(&value), key, &value, &right)
    }

    /// The name of a scenario.
    pub(crate) fn require_name(name: &String) -> Result<(), ScenarioError> {
        let holds = !name.is_empty()
            && name.len() <= 60
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        Self::require(holds, "name", name, "must be 1 to 60 letters, digits and hyphens")
    }

    pub(crate) fn require_seeds(seeds: SeedRange) -> Result<(), ScenarioError> {
        let count = seeds.count;
        let right = "must be 1 to 10000";
        Self::require((1..=SEEDS_MAX).contains(&count), "seeds.count", &count, right)?;
        // TOML has no larger integers.
        let room = i64::MAX as u64 - u64::from(count);
        let right = "must leave room for seeds.count below 2^63";
        Self::require(seeds.first <= room, "seeds.first", &seeds.first, right)
    }

    /// Criteria on known measures of known groups, with a bound each.
    pub(crate) fn require_criteria(
        criteria: &[PassCriterion],
        measures: &[(&str, &str)],
        has_group: impl Fn(&str) -> bool,
    ) -> Result<(), ScenarioError> {
        for (at, rule) in criteria.iter().enumerate() {
            let key = |what: &str| format!("criteria[{at}].{what}");
            let known = measures.iter().any(|(name, _)| *name == rule.measure);
            Self::require(known, key("measure"), &rule.measure, "unknown measure")?;
            let group = rule.group.as_deref();
            let name = group.unwrap_or_default();
            Self::require(group.is_none_or(&has_group), key("group"), &name, "unknown group")?;
            let bounded = [rule.at_least, rule.at_most].into_iter().flatten().any(f64::is_finite);
            let right = "a criterion needs at_least or at_most";
            Self::require(bounded, key("at_least"), &"none", right)?;
            let (least, most) =
                (rule.at_least.unwrap_or(f64::NEG_INFINITY), rule.at_most.unwrap_or(f64::INFINITY));
            let right = format!("no value is in the bounds: must be at most at_most = {most}");
            Self::require(least <= most, key("at_least"), &least, &right)?;
        }
        Ok(())
    }

    /// The name of a group.
    pub(crate) fn require_group_name(key: &str, name: &str) -> Result<(), ScenarioError> {
        let fine = !name.is_empty()
            && name.len() <= 60
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        Self::require(fine, key, &name, "a group's name has letters, digits and _ only")
    }
}

impl Scenario {
    /// Checks every value against its bounds, and related values against each other.
    ///
    /// # Errors
    /// The first [`ScenarioError::Value`].
    pub fn check(&self) -> Result<(), ScenarioError> {
        Check::require_name(&self.name)?;
        let right = "must be 1 to 10000";
        Check::require((1..=ROUNDS_MAX).contains(&self.rounds), "rounds", &self.rounds, right)?;
        Check::require_seeds(self.seeds)?;
        self.check_learning()?;
        self.check_terms()?;
        self.task.check_selection()?;
        let weighs = matches!(self.mechanism, Mechanism::Florin | Mechanism::CutAtZero);
        let right = "replaces the weights of mechanism.rule = florin or cut_at_zero alone";
        let has_rule = self.task.stale_weights.is_none() || weighs;
        Check::require(has_rule, "task.stale_weights", &"refl", right)?;
        let groups = self.population.len();
        let right = "must have 1 to 64 groups";
        Check::require((1..=GROUPS_MAX).contains(&groups), "population", &groups, right)?;
        for (name, group) in &self.population {
            check_group(name, group, self.members_max())?;
        }
        self.check_earlier_task()?;
        self.check_devices()?;
        self.check_selector()?;
        let members: u64 = self.population.values().map(|group| u64::from(group.count)).sum();
        let most = self.members_max();
        let right = format!("must have 2 to {most} members in all");
        let many = (2..=u64::from(most)).contains(&members);
        Check::require(many, "population", &members, &right)?;
        if !self.mode.is_real() {
            return self.check_surrogate();
        }
        self.check_rows()?;
        self.check_criteria()?;
        self.check_sizes()?;
        self.check_search()?;
        // The constraints of the task specification.
        self.task_spec(self.seeds.first).check().map_err(|error| ScenarioError::Value {
            key: format!("task ({})", error.key),
            value: error.value,
            right: error.expected,
        })
    }

    /// Maximum number of members in the scenario's mode.
    const fn members_max(&self) -> u32 {
        if self.mode.is_real() { MEMBERS_MAX } else { SURROGATES_MAX }
    }

    /// Rejects what only a real simulation supports, and checks the small real simulations.
    fn check_surrogate(&self) -> Result<(), ScenarioError> {
        let small = &self.surrogate;
        for (key, value, low) in [
            ("members", small.members, 8),
            ("rounds", small.rounds, 2),
            ("training_seeds", small.training_seeds, 1),
            ("held_out", small.held_out, 1),
        ] {
            let right = format!("must be {low} to {SMALL_MAX}");
            let fine = (low..=SMALL_MAX).contains(&value);
            Check::require(fine, format!("surrogate.{key}"), &value, &right)?;
        }
        Check::require_range("surrogate.error_max", small.error_max, 0.0, 10.0)?;
        let right = "mode = surrogate supports only mechanism.rule = florin: use mode = real for \
                     the others";
        let is_florin = matches!(self.mechanism, Mechanism::Florin);
        Check::require(is_florin, "mechanism.rule", &self.mechanism.name(), right)?;
        self.check_surrogate_selection()?;
        for (name, group) in &self.population {
            let adapts = matches!(group.strategy, Strategy::AdaptiveEffort | Strategy::Hoard)
                || group.outside_option.is_some();
            let right = "mode = surrogate supports no adaptive members and no members with \
                         several identities: use mode = real";
            let one = group.strategy.identities() == 1 && !adapts;
            Check::require(one, format!("population.{name}.strategy"), &name, right)?;
            let right =
                "mode = surrogate draws each round alone: use another pattern, or mode = real";
            let pattern = match group.online {
                Availability::Trace { .. } => "trace",
                Availability::Churn { .. } => "churn",
                _ => "",
            };
            let key = format!("population.{name}.online.pattern");
            Check::require(pattern.is_empty(), key, &pattern, right)?;
        }
        let members: u64 = self.population.values().map(|group| u64::from(group.count)).sum();
        let others = self.population.values().filter(|group| !group.strategy.is_honest()).count();
        let all = members * u64::from(self.seeds.count) * (1 + others as u64);
        let right = format!(
            "{members} members, and once more with each of {others} groups honest, are {all} in \
             all simulations: at most {SURROGATE_GAMES_MAX}; set fewer seeds or members"
        );
        let fine = all <= SURROGATE_GAMES_MAX;
        Check::require(fine, "seeds.count", &self.seeds.count, &right)?;
        let right = "a search needs mode = real: remove [search]";
        Check::require(self.search.is_none(), "search", &"[search]", right)?;
        self.check_criteria()?;
        self.scaled_down(1.0).check()
    }

    fn check_learning(&self) -> Result<(), ScenarioError> {
        let l = &self.learning;
        let right = "must be at most 4 layers of 1 to 4096 units";
        let fine = l.hidden.len() <= 4 && l.hidden.iter().all(|units| (1..=4_096).contains(units));
        Check::require(fine, "learning.hidden", &format!("{:?}", l.hidden), right)?;
        let right = "must be 1 to 1000";
        Check::require((1..=1_000).contains(&l.epochs), "learning.epochs", &l.epochs, right)?;
        let right = "must be 1 to 4096";
        Check::require((1..=4_096).contains(&l.batch), "learning.batch", &l.batch, right)?;
        Check::require_range("learning.learning_rate", l.learning_rate, 1e-6, 100.0)?;
        Check::require_range("learning.feature_noise", l.feature_noise, 0.0, 10.0)?;
        Check::require_range("learning.holdout_label_noise", l.holdout_label_noise, 0.0, 1.0)?;
        let right = "must be 2 to 1000";
        Check::require(
            (2..=1_000).contains(&l.holdout_rows_per_round),
            "learning.holdout_rows_per_round",
            &l.holdout_rows_per_round,
            right,
        )?;
        let right = "must be 10 to 1000";
        Check::require(
            (10..=1_000).contains(&l.test_rows),
            "learning.test_rows",
            &l.test_rows,
            right,
        )?;
        let needed = u64::from(l.holdout_rows_per_round) * u64::from(self.rounds);
        let right = format!(
            "each of {} rounds uses up learning.holdout_rows_per_round = {}: set at least \
             {needed}, or lower one of them",
            self.rounds, l.holdout_rows_per_round
        );
        Check::require(
            u64::from(l.holdout_rows) >= needed,
            "learning.holdout_rows",
            &l.holdout_rows,
            &right,
        )?;
        let right = "must be at most 1000000";
        Check::require(l.holdout_rows <= 1_000_000, "learning.holdout_rows", &l.holdout_rows, right)
    }

    fn check_terms(&self) -> Result<(), ScenarioError> {
        let t = &self.task;
        for (key, value) in [
            ("task.budget", t.budget),
            ("task.per_nat_max", t.per_nat_max),
            ("task.bond_min", t.bond_min),
            ("task.bond_per_row", t.bond_per_row),
            ("task.debit_max", t.debit_max),
        ] {
            Check::require_range(key, value, 0.001, 1e9)?;
        }
        Check::require_range("task.confidence_z", t.confidence_z, 0.0, 100.0)?;
        Check::require_range("task.floor_share", t.floor_share, 0.0, 1.0)?;
        let pairs = t.cross_check_pairs;
        let right = format!("must be 0 to {CROSS_CHECK_PAIRS_MAX}");
        Check::require(pairs <= CROSS_CHECK_PAIRS_MAX, "task.cross_check_pairs", &pairs, &right)?;
        Check::require_range("task.train_s", t.train_s, 0.001, 2_000_000.0)?;
        Check::require_range("task.reveal_s", t.reveal_s, 0.001, 2_000_000.0)?;
        let most = if self.mode.is_real() { COHORT_MAX } else { SURROGATES_MAX };
        let right = format!("must be 2 to {most}");
        Check::require((2..=most).contains(&t.cohort), "task.cohort", &t.cohort, &right)?;
        let right = "must be 2 to task.cohort";
        Check::require(
            (2..=t.cohort).contains(&t.cohort_min),
            "task.cohort_min",
            &t.cohort_min,
            right,
        )
    }

    /// An earlier task needs members, and a copy of it needs an earlier task.
    fn check_earlier_task(&self) -> Result<(), ScenarioError> {
        let copies = |group: &&Group| matches!(group.strategy, Strategy::CopyEarlierTask { .. });
        if self.task.earlier_task.is_none() {
            let right = "copies an earlier task: set task.earlier_task to ignored or continued";
            let copiers = self.population.values().filter(copies).count();
            return Check::require(copiers == 0, "population", &"copy_earlier_task", right);
        }
        let honest = self.population.values().filter(|group| group.strategy.is_honest());
        let members: u64 = honest.map(|group| u64::from(group.count)).sum();
        let right = "requires two honest members, and mode = real";
        let holds = members >= 2 && self.mode.is_real();
        Check::require(holds, "task.earlier_task", &members, right)
    }

    /// Criteria that cannot fail or cannot hold are mistakes.
    fn check_criteria(&self) -> Result<(), ScenarioError> {
        let has_group = |group: &str| self.population.contains_key(group);
        Check::require_criteria(&self.criteria, MEASURES, has_group)?;
        self.check_device_criteria()?;
        if let Mechanism::Tokenised(rules) = &self.mechanism {
            for (key, value) in
                [("mechanism.endowment", rules.endowment), ("mechanism.price", rules.price)]
            {
                let right = "must be at most 1000000000 tokens";
                Check::require(value <= TOKENS_MAX, key, &value, right)?;
            }
        }
        let identities = self
            .population
            .values()
            .map(|group| u64::from(group.count) * u64::from(group.strategy.identities()));
        let most = self.members_max();
        let right = format!("must have at most {most} identities in all");
        let all: u64 = identities.sum();
        Check::require(all <= u64::from(most), "population", &all, &right)
    }

    /// Without feature noise every row has at most one owner.
    fn check_rows(&self) -> Result<(), ScenarioError> {
        let l = &self.learning;
        let reserved = u64::from(l.test_rows) + u64::from(l.holdout_rows);
        let held: u64 =
            self.population.values().map(|g| u64::from(g.count) * u64::from(g.rows[1])).sum();
        let rows = self.learning.shape().rows;
        let (available, all) = (u64::from(rows), reserved + held);
        let right = format!(
            "members have up to {held} rows, test and holdout {reserved}, and the data set has \
             {available}: lower them, or set learning.feature_noise above 0 to draw rows with \
             replacement, each time with noise"
        );
        Check::require(
            l.feature_noise > 0.0 || all <= available,
            "learning.feature_noise",
            &l.feature_noise,
            &right,
        )?;
        let right = "test and holdout rows leave no rows for members: with feature noise, half of \
                     the data set is for evaluation";
        Check::require(
            l.test_rows < rows / 2 || l.feature_noise == 0.0,
            "learning.test_rows",
            &l.test_rows,
            right,
        )
    }
}

impl Scenario {
    /// Checks memory requirements, and that amounts fit into 128 bits.
    fn check_sizes(&self) -> Result<(), ScenarioError> {
        let groups = self.population.values();
        let rows: f64 = groups
            .map(|g| f64::from(g.count) * f64::from(g.rows[1]) * g.strategy.row_copies())
            .sum();
        let right = format!("members may have at most {ROWS_MAX} rows in total, including copies");
        Check::require(rows <= ROWS_MAX, "population", &rows, &right)?;
        let shape = self.learning.shape();
        let mut widths = vec![u64::from(shape.width)];
        widths.extend(self.learning.hidden.iter().map(|units| u64::from(*units)));
        widths.push(u64::from(shape.classes));
        let layers = widths.windows(2).map(|pair| (pair[0] + 1) * pair[1]);
        let parameters: u64 = layers.sum();
        let identities =
            |group: &Group| u64::from(group.count) * u64::from(group.strategy.identities());
        let all: u64 = self.population.values().map(identities).sum();
        let numbers = parameters * all.min(u64::from(self.task.cohort));
        let right = format!(
            "{parameters} parameters from each member of a cohort are too many numbers: at most \
             {NUMBERS_MAX}; lower task.cohort or train a smaller model"
        );
        Check::require(numbers <= NUMBERS_MAX, "learning.hidden", &numbers, &right)?;
        let t = &self.task;
        let endowment = match &self.mechanism {
            Mechanism::Tokenised(rules) => rules.endowment as f64,
            _ => 0.0,
        };
        let bonds = |group: &Group| {
            let rows = f64::from(group.rows[1]) * group.strategy.row_copies();
            let bond = (rows * t.bond_per_row).max(t.bond_min) + endowment;
            f64::from(group.count) * f64::from(group.strategy.identities()) * bond
        };
        let supply: f64 = t.budget + self.population.values().map(bonds).sum::<f64>();
        let right = format!(
            "budget, bonds and endowments total {supply:e} florins: at most {SUPPLY_MAX:e}; lower \
             task.bond_per_row"
        );
        Check::require(supply <= SUPPLY_MAX, "task.bond_per_row", &t.bond_per_row, &right)
    }
}

fn check_group(name: &str, group: &Group, most: u32) -> Result<(), ScenarioError> {
    let key = |what: &str| format!("population.{name}.{what}");
    Check::require_group_name("population", name)?;
    let right = format!("must be 1 to {most}");
    Check::require((1..=most).contains(&group.count), key("count"), &group.count, &right)?;
    let [low, high] = group.rows;
    let right = "must be two numbers from 2 to 1000000, the smaller one first";
    let fine = (2..=high).contains(&low) && high <= 1_000_000;
    Check::require(fine, key("rows"), &format!("{:?}", group.rows), right)?;
    if let Some(skew) = group.label_skew {
        Check::require_range(key("label_skew"), skew, 0.001, 1e6)?;
    }
    Check::require_range(key("label_noise"), group.label_noise, 0.0, 1.0)?;
    group.check_quote(name)?;
    let machine = &group.machine;
    Check::require_range(key("machine.steps_per_second"), machine.steps_per_second, 1e-6, 1e9)?;
    Check::require_range(
        key("machine.megabits_per_second"),
        machine.megabits_per_second,
        1e-6,
        1e9,
    )?;
    Check::require_range(key("machine.spread"), machine.spread, 0.0, 5.0)?;
    Check::require_range(key("machine.line_spread"), machine.line_spread(), 0.0, 5.0)?;
    match group.online {
        // A trace is validated when it is read.
        Availability::Always | Availability::Trace { .. } => {}
        Availability::Random { probability } => {
            Check::require_range(key("online.probability"), probability, 0.0, 1.0)?
        }
        Availability::Rounds { first, last } => {
            Check::require_range(key("online.first"), first as f64, 1.0, last as f64)?;
            Check::require_range(key("online.last"), last as f64, first as f64, ROUNDS_MAX.into())?;
        }
        Availability::Churn { online_hours, offline_hours } => {
            for (name, hours) in [("online_hours", online_hours), ("offline_hours", offline_hours)]
            {
                Check::require_range(key(&format!("online.{name}")), hours, 0.05, 1e6)?;
            }
        }
        Availability::Daily { low, high, peak, shift_hours } => {
            Check::require_range(key("online.low"), low, 0.0, 1.0)?;
            Check::require_range(key("online.high"), high, low, 1.0)?;
            Check::require_range(key("online.peak"), peak, 0.0, 24.0)?;
            Check::require_range(key("online.shift_hours"), shift_hours, 0.0, 24.0)?;
        }
    }
    if let Some(outside_option) = group.outside_option {
        Check::require_range(key("outside_option"), outside_option, -1e9, 1e9)?;
    }
    Check::require_range(key("cost.per_step"), group.cost.per_step, 0.0, 1e9)?;
    Check::require_range(key("cost.per_megabyte"), group.cost.per_megabyte, 0.0, 1e9)?;
    for (what, value, low, high) in group.strategy.bounds() {
        Check::require_range(key(&format!("strategy.{what}")), value, low, high)?;
    }
    Ok(())
}
