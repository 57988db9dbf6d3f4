//! Random splits of a data set: train, holdout, test.

use thiserror::Error;

use crate::rng::{Purpose, rng, shuffle};

/// The size of one part of a [`split`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SplitPart {
    /// A number of rows.
    Rows(usize),
    /// This fraction of all rows, 0 to 1, rounded down.
    Fraction(f64),
    /// The rows that the other parts leave. At most one part may be `Rest`.
    Rest,
}

/// The split cannot be made.
#[derive(Debug, Error, PartialEq)]
pub enum SplitError {
    /// A fraction is out of range.
    #[error("part {part} is the fraction {fraction}: must be 0 to 1")]
    Fraction {
        /// Index of the part, from 0.
        part: usize,
        /// The fraction.
        fraction: f64,
    },
    /// Two parts are the rest.
    #[error("part {part} is the rest, like an earlier part: at most one part may be the rest")]
    TwoRests {
        /// Index of the second one, from 0.
        part: usize,
    },
    /// The parts exceed the rows.
    #[error("the parts need {taken} rows, but there are {rows}")]
    TooManyRows {
        /// Rows requested.
        taken: u128,
        /// Rows available.
        rows: usize,
    },
}

/// Divides `rows` rows at random into disjoint parts, each ascending: train, holdout, test. Rows
/// beyond the requested sizes are in no part.
pub fn split(rows: usize, seed: u64, parts: &[SplitPart]) -> Result<Vec<Vec<usize>>, SplitError> {
    let mut sizes = Vec::with_capacity(parts.len());
    let mut rest = None;
    for (at, part) in parts.iter().enumerate() {
        sizes.push(match *part {
            SplitPart::Rows(count) => count,
            SplitPart::Fraction(fraction) if (0.0..=1.0).contains(&fraction) => {
                (fraction * rows as f64) as usize
            }
            SplitPart::Fraction(fraction) => {
                return Err(SplitError::Fraction { part: at, fraction });
            }
            SplitPart::Rest if rest.is_some() => return Err(SplitError::TwoRests { part: at }),
            SplitPart::Rest => {
                rest = Some(at);
                0
            }
        });
    }
    let taken: u128 = sizes.iter().map(|&size| size as u128).sum();
    if taken > rows as u128 {
        return Err(SplitError::TooManyRows { taken, rows });
    }
    if let Some(at) = rest {
        sizes[at] = rows - taken as usize;
    }
    let mut order: Vec<usize> = (0..rows).collect();
    shuffle(&mut rng(seed, Purpose::Split, 0), &mut order);
    let mut from = 0;
    Ok(sizes
        .into_iter()
        .map(|size| {
            let mut part = order[from..from + size].to_vec();
            part.sort_unstable();
            from += size;
            part
        })
        .collect())
}
