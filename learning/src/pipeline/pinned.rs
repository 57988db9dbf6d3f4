//! A cut that a user states: `cut=12,40` begins the second part at node 12 and the third at node 40.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use thiserror::Error;

use super::PARTS_MAX;

/// The beginning of a stated cut.
const PREFIX: &str = "cut=";

/// The first nodes of all parts of a pipeline but the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedCut(Vec<usize>);

/// A stated cut is not valid.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum PinnedCutError {
    /// It is not of the form of a cut.
    #[error(
        "`{text}` is not a cut: state the first node of each part but the first, as in cut=12,40"
    )]
    Form {
        /// The text.
        text: String,
    },
    /// The nodes do not grow.
    #[error("the nodes of a cut must grow from 1 on, and {after} follows {before}: order them")]
    Order {
        /// A node.
        before: usize,
        /// The one behind it.
        after: usize,
    },
    /// There are more parts than a pipeline may have.
    #[error("the cut has {parts} parts, and a pipeline has at most {PARTS_MAX}: state fewer nodes")]
    TooManyParts {
        /// Parts.
        parts: usize,
    },
    /// The cut has another number of parts than there are ranks.
    #[error("the cut has {found} parts for {wanted} ranks: state {} nodes", wanted - 1)]
    Parts {
        /// Parts of the cut.
        found: usize,
        /// Parts of the pipeline.
        wanted: usize,
    },
    /// The graph cannot be cut there.
    #[error("the graph cannot be cut in front of node {node}; the nearest position is {nearest}")]
    Position {
        /// The stated node.
        node: usize,
        /// The nearest position at which it can be cut; 0 if there is none.
        nearest: usize,
    },
}

impl PinnedCut {
    /// The number of parts.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.0.len() + 1
    }

    /// The nodes of each part of a graph that can be cut at the positions `can_cut`, which has one entry
    /// more than the graph has nodes.
    ///
    /// # Errors
    /// [`PinnedCutError::Parts`] and [`PinnedCutError::Position`].
    pub fn ranges(
        &self,
        can_cut: &[bool],
        parts: usize,
    ) -> Result<Vec<Range<usize>>, PinnedCutError> {
        let found = self.parts();
        if found != parts {
            return Err(PinnedCutError::Parts { found, wanted: parts.max(1) });
        }
        let nodes = can_cut.len().saturating_sub(1);
        let is_inner = |&node: &usize| node > 0 && node < nodes && can_cut[node];
        if let Some(&node) = self.0.iter().find(|node| !is_inner(node)) {
            let nearest = (1..nodes).filter(is_inner).min_by_key(|own| own.abs_diff(node));
            return Err(PinnedCutError::Position { node, nearest: nearest.unwrap_or(0) });
        }
        let starts = [0].into_iter().chain(self.0.iter().copied());
        let ends = self.0.iter().copied().chain([nodes]);
        Ok(starts.zip(ends).map(|(start, end)| start..end).collect())
    }
}

impl FromStr for PinnedCut {
    type Err = PinnedCutError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = || PinnedCutError::Form { text: text.to_owned() };
        let list = text.strip_prefix(PREFIX).ok_or_else(form)?;
        let nodes: Vec<usize> = match list {
            "" => Vec::new(),
            _ => list.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| form())?,
        };
        let mut before = 0;
        for &after in &nodes {
            if after <= before {
                return Err(PinnedCutError::Order { before, after });
            }
            before = after;
        }
        let parts = nodes.len() + 1;
        match parts > PARTS_MAX as usize {
            true => Err(PinnedCutError::TooManyParts { parts }),
            false => Ok(Self(nodes)),
        }
    }
}

impl fmt::Display for PinnedCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        write!(f, "{PREFIX}{}", nodes.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PinnedCut, PinnedCutError> {
        text.parse()
    }

    #[test]
    fn cuts_are_read_and_written() {
        for (text, nodes) in [("cut=", vec![]), ("cut=12", vec![12]), ("cut=12,40", vec![12, 40])] {
            assert_eq!(parse(text).unwrap(), PinnedCut(nodes));
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn wrong_cuts_are_refused() {
        for text in ["", "12,40", "cut=12,", "cut=,12", "cut=a", "cut=-1", "cut=12;40", "cut=1.5"] {
            assert_eq!(parse(text), Err(PinnedCutError::Form { text: text.to_owned() }));
        }
        assert_eq!(parse("cut=0"), Err(PinnedCutError::Order { before: 0, after: 0 }));
        assert_eq!(parse("cut=9,9"), Err(PinnedCutError::Order { before: 9, after: 9 }));
        assert_eq!(parse("cut=9,8"), Err(PinnedCutError::Order { before: 9, after: 8 }));
        let many: Vec<String> = (1..=PARTS_MAX).map(|node| node.to_string()).collect();
        let many = parse(&format!("cut={}", many.join(",")));
        assert_eq!(many, Err(PinnedCutError::TooManyParts { parts: 1_025 }));
    }

    #[test]
    fn a_cut_fits_its_graph_and_its_ranks() {
        let can_cut = [false, true, false, false, true, false];
        let ranges = |text, parts| parse(text).unwrap().ranges(&can_cut, parts);
        assert_eq!(ranges("cut=1,4", 3).unwrap(), [0..1, 1..4, 4..5]);
        assert_eq!(ranges("cut=", 1).unwrap(), std::iter::once(0..5).collect::<Vec<_>>());
        let other = ranges("cut=1,4", 2);
        assert_eq!(other, Err(PinnedCutError::Parts { found: 3, wanted: 2 }));
        assert_eq!(ranges("cut=3", 2), Err(PinnedCutError::Position { node: 3, nearest: 4 }));
        assert_eq!(ranges("cut=5", 2), Err(PinnedCutError::Position { node: 5, nearest: 4 }));
        let none = parse("cut=1").unwrap().ranges(&[false; 4], 2);
        assert_eq!(none, Err(PinnedCutError::Position { node: 1, nearest: 0 }));
    }
}
