//! The plan of a reduction: a number of chunks, and the rule of each level of the tree.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most chunks of a vector; a power of two.
pub const CHUNKS_MAX: u32 = 64;

/// The place of an addition whose two sums are at different ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReductionRule {
    /// Rank 0: both ranks send their sums to it.
    Root,
    /// The rank of the sum with the smaller number: the tree itself, binomial for equal ranges.
    Tree,
    /// Both ranks: they exchange halves of their elements. At the end the elements return to rank 0
    /// along the same pairs, in reverse order (Rabenseifner, ICCS 2004).
    Halving,
}

impl ReductionRule {
    const ALL: [(ReductionRule, &'static str); 3] = [
        (ReductionRule::Tree, "tree"),
        (ReductionRule::Halving, "halving"),
        (ReductionRule::Root, "root"),
    ];
}

impl fmt::Display for ReductionRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Self::ALL.iter().find(|(rule, _)| rule == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for ReductionRule {
    type Err = ReductionPlanError;

    fn from_str(text: &str) -> Result<Self, ReductionPlanError> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found
            .map(|(rule, _)| *rule)
            .ok_or_else(|| ReductionPlanError::UnknownRule { text: text.to_owned() })
    }
}

/// The rules of the levels of the tree. Level `l` has the additions of distance `2^l`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LevelRules {
    /// The rule of the levels below `inner_levels`: inside groups of near ranks.
    pub inner: ReductionRule,
    /// Levels of the inner rule.
    pub inner_levels: u32,
    /// The rule of all other levels: across groups.
    pub outer: ReductionRule,
}

impl LevelRules {
    /// One rule for all levels.
    #[must_use]
    pub const fn uniform(rule: ReductionRule) -> Self {
        Self { inner: rule, inner_levels: 0, outer: rule }
    }

    /// The rule of a level.
    #[must_use]
    pub fn at(self, level: u32) -> ReductionRule {
        if level < self.inner_levels { self.inner } else { self.outer }
    }
}

/// A text or a number is not a plan.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum ReductionPlanError {
    /// The number of chunks is out of bounds.
    #[error("a reduction has 1 to {CHUNKS_MAX} chunks, not {chunks}")]
    Chunks {
        /// The number.
        chunks: u32,
    },
    /// A word is not a rule.
    #[error("a rule is `root`, `tree` or `halving`, not `{text}`")]
    UnknownRule {
        /// The word.
        text: String,
    },
    /// The text does not have the form of a plan.
    #[error("a plan is `chunks=8,inner=halving,levels=3,outer=tree`, not `{text}`")]
    Malformed {
        /// The text.
        text: String,
    },
}

/// A plan of a reduction. Its text is `chunks=8,inner=halving,levels=3,outer=tree`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReductionPlan {
    chunks: u32,
    rules: LevelRules,
}

impl ReductionPlan {
    /// All ranks send whole vectors to rank 0.
    pub const FLAT: Self = Self { chunks: 1, rules: LevelRules::uniform(ReductionRule::Root) };
    /// Whole vectors along the tree.
    pub const TREE: Self = Self { chunks: 1, rules: LevelRules::uniform(ReductionRule::Tree) };

    /// A plan of `chunks` chunks.
    ///
    /// # Errors
    /// [`ReductionPlanError::Chunks`] unless there are 1 to [`CHUNKS_MAX`].
    pub fn new(chunks: u32, rules: LevelRules) -> Result<Self, ReductionPlanError> {
        if chunks == 0 || chunks > CHUNKS_MAX {
            return Err(ReductionPlanError::Chunks { chunks });
        }
        Ok(Self { chunks, rules })
    }

    /// Chunks of a vector; they differ by at most one element.
    #[must_use]
    pub fn chunks(self) -> u32 {
        self.chunks
    }

    /// The rules of the levels.
    #[must_use]
    pub fn rules(self) -> LevelRules {
        self.rules
    }

    /// The same rules without chunks.
    pub(super) fn with_one_chunk(self) -> Self {
        Self { chunks: 1, ..self }
    }

    /// All plans among which [`best`](super::best) chooses: for 1, 2, 4 … [`CHUNKS_MAX`] chunks,
    /// each rule alone, and each sensible pair of rules with a boundary below each of `levels` but
    /// the first. `levels` are the levels with additions between ranks, in ascending order.
    pub(super) fn family(levels: &[u32]) -> Vec<Self> {
        const PAIRS: [(ReductionRule, ReductionRule); 4] = [
            (ReductionRule::Tree, ReductionRule::Halving),
            (ReductionRule::Halving, ReductionRule::Tree),
            (ReductionRule::Tree, ReductionRule::Root),
            (ReductionRule::Halving, ReductionRule::Root),
        ];
        let mut rules: Vec<LevelRules> =
            ReductionRule::ALL.map(|(rule, _)| LevelRules::uniform(rule)).to_vec();
        for &inner_levels in levels.iter().skip(1) {
            rules.extend(PAIRS.map(|(inner, outer)| LevelRules { inner, inner_levels, outer }));
        }
        let counts = (0..=CHUNKS_MAX.ilog2()).map(|power| 1 << power);
        counts.flat_map(|chunks| rules.iter().map(move |&rules| Self { chunks, rules })).collect()
    }
}

impl fmt::Display for ReductionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LevelRules { inner, inner_levels, outer } = self.rules;
        write!(f, "chunks={},inner={inner},levels={inner_levels},outer={outer}", self.chunks)
    }
}

impl FromStr for ReductionPlan {
    type Err = ReductionPlanError;

    fn from_str(text: &str) -> Result<Self, ReductionPlanError> {
        let malformed = || ReductionPlanError::Malformed { text: text.to_owned() };
        let mut words = text.split(',');
        let mut value = |key: &str| {
            let word = words.next().and_then(|word| word.split_once('='));
            word.filter(|(found, _)| *found == key).map(|(_, value)| value).ok_or_else(malformed)
        };
        let chunks = value("chunks")?.parse().map_err(|_| malformed())?;
        let inner = value("inner")?.parse()?;
        let inner_levels = value("levels")?.parse().map_err(|_| malformed())?;
        let outer = value("outer")?.parse()?;
        if words.next().is_some() {
            return Err(malformed());
        }
        Self::new(chunks, LevelRules { inner, inner_levels, outer })
    }
}

impl TryFrom<String> for ReductionPlan {
    type Error = ReductionPlanError;

    fn try_from(text: String) -> Result<Self, ReductionPlanError> {
        text.parse()
    }
}

impl From<ReductionPlan> for String {
    fn from(plan: ReductionPlan) -> Self {
        plan.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_texts_are_refused() {
        let chunks = |chunks| ReductionPlanError::Chunks { chunks };
        let text = |chunks: u32| format!("chunks={chunks},inner=tree,levels=1,outer=halving");
        assert_eq!(text(0).parse::<ReductionPlan>(), Err(chunks(0)));
        assert_eq!(text(CHUNKS_MAX + 1).parse::<ReductionPlan>(), Err(chunks(CHUNKS_MAX + 1)));
        let unknown = "chunks=1,inner=chain,levels=1,outer=tree".parse::<ReductionPlan>();
        assert_eq!(unknown, Err(ReductionPlanError::UnknownRule { text: "chain".to_owned() }));
        for text in [
            "",
            "chunks=1",
            "chunks=x,inner=tree,levels=1,outer=tree",
            "chunks=1,inner=tree,levels=-1,outer=tree",
            "chunks=1,inner=tree,outer=tree,levels=1",
            "chunks=1,inner=tree,levels=1,outer=tree,",
        ] {
            let refused = text.parse::<ReductionPlan>();
            assert_eq!(refused, Err(ReductionPlanError::Malformed { text: text.to_owned() }));
        }
    }

    #[test]
    fn plans_have_a_text_and_a_json() {
        let family = ReductionPlan::family(&[0, 1, 4]);
        assert_eq!(family.len(), 7 * (3 + 2 * 4));
        for plan in family {
            assert_eq!(plan.to_string().parse(), Ok(plan));
            let json = serde_json::to_string(&plan).unwrap();
            assert_eq!(json, format!("\"{plan}\""));
            assert_eq!(serde_json::from_str::<ReductionPlan>(&json).unwrap(), plan);
        }
        let rules = LevelRules {
            inner: ReductionRule::Halving,
            inner_levels: 3,
            outer: ReductionRule::Tree,
        };
        let plan = ReductionPlan::new(8, rules).unwrap();
        assert_eq!(plan.to_string(), "chunks=8,inner=halving,levels=3,outer=tree");
        assert!(serde_json::from_str::<ReductionPlan>("\"chunks=0\"").is_err());
    }

    #[test]
    fn the_inner_rule_ends_below_its_number_of_levels() {
        let rules = LevelRules {
            inner: ReductionRule::Halving,
            inner_levels: 3,
            outer: ReductionRule::Tree,
        };
        assert_eq!(
            [0, 2, 3, 4].map(|level| rules.at(level) == rules.inner),
            [true, true, false, false]
        );
        assert_eq!(LevelRules::uniform(ReductionRule::Root).at(0), ReductionRule::Root);
    }

    #[test]
    fn the_family_has_each_plan_once_and_the_plain_ones() {
        let family = ReductionPlan::family(&[2, 3]);
        let distinct: std::collections::HashSet<_> = family.iter().collect();
        assert_eq!(distinct.len(), family.len());
        for plain in [ReductionPlan::FLAT, ReductionPlan::TREE] {
            assert!(family.contains(&plain));
        }
    }
}
