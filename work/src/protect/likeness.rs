//! How much of one update another one contains, and whether the rest is somebody's own work.
//!
//! A cosine alone does not tell a copy from honest work: participants with many similar rows send nearly the same
//! update. Two more figures do. What a copy shares with the original *beyond what all share* is the original's own
//! part. And what a copy has *beyond* the original agrees with nobody, if it was drawn and not learned.

use super::Gram;

/// A rest of so little squared length, as a share of the whole, is rounding.
const ROUNDING: f64 = 1e-6;
/// Cosine from which a third update says something about what is common to a pair. Random directions stay below it in
/// every model of more than some 600 parameters (five standard deviations).
const NEAR: f64 = 0.2;
/// The part of the others' rows that must find nothing in an update's rest before it counts as drawn: whoever backs up
/// a disguise has to own more than what is left.
const QUORUM: f64 = 0.75;

/// One other member alone may happen to have learned something else.
const WITNESSES_MIN: usize = 2;

/// In fewer dimensions random directions agree too often by chance to be told from learned ones.
const DIMENSIONS_MIN: usize = 400;

/// What one update has in common with an earlier vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likeness {
    /// Cosine of the two.
    pub cosine: f64,
    /// Cosine of their own parts: what is left when the others' mean direction is taken from both, less what chance
    /// would give. `None` where nobody else resembles the pair.
    pub own: Option<f64>,
    /// How well what the update has beyond the earlier vector agrees with what the others have beyond it, in standard
    /// deviations of a random direction: about 1 for noise. `None` where there is no such rest, too few others, or a model
    /// of too few parameters.
    pub agreement: Option<f64>,
}

/// Compares update `later` with `earlier`, an update or another vector of the matrix. The updates are its first
/// vectors, with these counted rows.
#[must_use]
pub fn likeness(gram: &Gram, rows: &[u64], later: usize, earlier: usize) -> Likeness {
    let others: Vec<(usize, f64)> = rows
        .iter()
        .enumerate()
        .filter(|&(k, &rows)| k != later && k != earlier && rows > 0 && gram.at(k, k) > 0.0)
        .map(|(k, &rows)| (k, real(rows)))
        .collect();
    Likeness {
        cosine: gram.cosine(later, earlier),
        own: own(gram, &others, later, earlier),
        agreement: agreement(gram, &others, later, earlier),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share of the rows, not an account of them")]
fn real(rows: u64) -> f64 {
    rows as f64
}

/// With unit vectors u, and m the mean of those that resemble the pair, weighted by rows and resemblance: the cosine
/// of `u_later − m` and `u_earlier − m`. Independent own parts share only the error of m, which gives `s / (1 + s)` for
/// weights of squared sum s; the result is rescaled so that this is 0, and 1 stays 1.
fn own(gram: &Gram, others: &[(usize, f64)], later: usize, earlier: usize) -> Option<f64> {
    let mut weights: Vec<(usize, f64)> = others
        .iter()
        .map(|&(k, rows)| (k, rows, gram.cosine(k, later).min(gram.cosine(k, earlier))))
        .filter(|&(.., near)| near > NEAR)
        .map(|(k, rows, near)| (k, rows * near))
        .collect();
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    weights.iter_mut().for_each(|(_, weight)| *weight /= total);
    if weights.is_empty() {
        return None;
    }
    let to = |i: usize| weights.iter().map(|&(k, w)| w * gram.cosine(i, k)).sum::<f64>();
    let (a, b) = (to(later), to(earlier));
    let mean: f64 = weights.iter().map(|&(k, w)| w * to(k)).sum();
    let lengths = (1.0 - 2.0 * a + mean) * (1.0 - 2.0 * b + mean);
    if lengths <= ROUNDING * ROUNDING {
        return None;
    }
    let cosine = (gram.cosine(later, earlier) - a - b + mean) / lengths.sqrt();
    let squares: f64 = weights.iter().map(|(_, w)| w * w).sum();
    let chance = squares / (1.0 + squares);
    Some((cosine - chance) / (1.0 - chance))
}

/// The cosine between the rests of `later` and of the others, as large as [`QUORUM`] of the others' rows do not exceed,
/// times √d.
fn agreement(gram: &Gram, others: &[(usize, f64)], later: usize, earlier: usize) -> Option<f64> {
    let along = gram.at(earlier, earlier);
    let rests =
        |a: usize, b: usize| gram.at(a, b) - gram.at(a, earlier) * gram.at(b, earlier) / along;
    let length = |k: usize| {
        let square = rests(k, k);
        (square > ROUNDING * gram.at(k, k)).then(|| square.sqrt())
    };
    let told = others.len() >= WITNESSES_MIN && gram.dimensions() >= DIMENSIONS_MIN;
    let whole = length(later).filter(|_| told)?;
    let mut seen: Vec<(f64, f64)> = others
        .iter()
        .map(|&(k, rows)| {
            let cosine = length(k).map_or(0.0, |other| rests(later, k) / (whole * other));
            (cosine.abs(), rows)
        })
        .collect();
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let quorum = QUORUM * seen.iter().map(|(_, rows)| rows).sum::<f64>();
    let mut sum = 0.0;
    let (cosine, _) = seen.iter().find(|(_, rows)| {
        sum += rows;
        sum >= quorum
    })?;
    #[expect(clippy::cast_precision_loss, reason = "a model has far fewer than 2^53 parameters")]
    let root = (gram.dimensions() as f64).sqrt();
    Some(cosine * root)
}
