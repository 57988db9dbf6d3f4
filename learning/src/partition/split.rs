//! Parts of a data set at random: train, holdout, test.

use thiserror::Error;

use crate::seed::{Purpose, rng, shuffle};

/// How much of a data set one part of a [`split`] takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Part {
    /// So many rows.
    Rows(usize),
    /// This fraction of all rows, 0 to 1, rounded down.
    Fraction(f64),
    /// What the other parts leave. At most one part may say so.
    Rest,
}

/// Why a split cannot be made.
#[derive(Debug, Error, PartialEq)]
pub enum SplitError {
    /// A fraction that is none.
    #[error("part {part} is the fraction {fraction}: must be 0 to 1")]
    Fraction {
        /// Which part, from 0.
        part: usize,
        /// What it asked for.
        fraction: f64,
    },
    /// Two parts want the rest.
    #[error("part {part} is the rest, and so is an earlier one: at most one may be")]
    TwoRests {
        /// The second of them, from 0.
        part: usize,
    },
    /// The parts want more than there is.
    #[error("the parts take {taken} rows: there are {rows}")]
    TooManyRows {
        /// Rows asked for.
        taken: u128,
        /// Rows there are.
        rows: usize,
    },
}

/// Deals `rows` rows at random into disjoint parts, each ascending: train, holdout, test. Rows that
/// no part asks for are in none.
pub fn split(rows: usize, seed: u64, parts: &[Part]) -> Result<Vec<Vec<usize>>, SplitError> {
    let mut sizes = Vec::with_capacity(parts.len());
    let mut rest = None;
    for (at, part) in parts.iter().enumerate() {
        sizes.push(match *part {
            Part::Rows(count) => count,
            Part::Fraction(fraction) if (0.0..=1.0).contains(&fraction) => {
                (fraction * rows as f64) as usize
            }
            Part::Fraction(fraction) => return Err(SplitError::Fraction { part: at, fraction }),
            Part::Rest if rest.is_some() => return Err(SplitError::TwoRests { part: at }),
            Part::Rest => {
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
