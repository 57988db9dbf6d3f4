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

/// In fewer dimensions random directions agree too often by chance to be told from learned ones, and honest updates may
/// be nearly the same.
const DIMENSIONS_MIN: usize = 400;

/// Beyond this cosine two updates are one, whoever else is there: the rest is at most one per cent of the length.
pub const SAME_COSINE: f64 = 0.999_95;
/// The same in a model of fewer than 400 parameters: only the same update at another length.
pub const SAME_COSINE_SMALL: f64 = 1.0 - 1e-9;

/// What one update has in common with an earlier vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likeness {
    /// Cosine of the two.
    pub cosine: f64,
    /// Whether they are one update, whoever else is there.
    pub same: bool,
    /// Cosine of their own parts: what is left when the others' mean direction is taken from both, less what chance
    /// would give. `None` where nobody else resembles the pair.
    pub own: Option<f64>,
    /// How well what the update has beyond the earlier vector and the public step agrees with what the others have beyond
    /// them, in standard deviations of a random direction: about 1 for noise, 0 where nothing is left. `None` where there
    /// are too few others, or the model has too few parameters.
    pub agreement: Option<f64>,
}

/// Compares update `later` with `earlier`, an update or another vector of the matrix. The updates are its first
/// vectors, with these counted rows; `step` is the number of the public step of the round before.
#[must_use]
pub fn likeness(
    gram: &Gram,
    rows: &[u64],
    step: Option<usize>,
    (later, earlier): (usize, usize),
) -> Likeness {
    let others: Vec<(usize, f64)> = rows
        .iter()
        .enumerate()
        .filter(|&(k, &rows)| k != later && k != earlier && rows > 0 && gram.at(k, k) > 0.0)
        .map(|(k, &rows)| (k, real(rows)))
        .collect();
    let cosine = gram.cosine(later, earlier);
    let small = gram.dimensions() < DIMENSIONS_MIN;
    Likeness {
        cosine,
        same: cosine > if small { SAME_COSINE_SMALL } else { SAME_COSINE },
        own: own(gram, &others, later, earlier),
        agreement: agreement(gram, &others, later, [Some(earlier), step]),
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

/// The cosine between the rests of `later` and of the others beyond what is `known`, as large as [`QUORUM`] of the others
/// do not exceed, by rows or by heads, whichever is larger, times √d. By rows, because identities are cheap; by heads,
/// because one member with most of the rows must not decide alone that nobody agrees with an honest one.
fn agreement(
    gram: &Gram,
    others: &[(usize, f64)],
    later: usize,
    known: [Option<usize>; 2],
) -> Option<f64> {
    if others.len() < WITNESSES_MIN || gram.dimensions() < DIMENSIONS_MIN {
        return None;
    }
    let rests = Rests::new(gram, known);
    let Some(whole) = rests.length(later) else { return Some(0.0) };
    let mut seen: Vec<(f64, f64)> = others
        .iter()
        .map(|&(k, rows)| {
            let of = |other| rests.product(later, k) / (whole * other);
            (rests.length(k).map_or(0.0, of).abs(), rows)
        })
        .collect();
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let by_rows = quorum(&seen)?;
    seen.iter_mut().for_each(|(_, rows)| *rows = 1.0);
    let cosine = by_rows.max(quorum(&seen)?);
    #[expect(clippy::cast_precision_loss, reason = "a model has far fewer than 2^53 parameters")]
    let root = (gram.dimensions() as f64).sqrt();
    Some(cosine * root)
}

/// The smallest of these ascending values that [`QUORUM`] of the weights do not exceed.
fn quorum(seen: &[(f64, f64)]) -> Option<f64> {
    let needed = QUORUM * seen.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let reached = seen.iter().find(|(_, weight)| {
        sum += weight;
        sum >= needed
    });
    reached.map(|(value, _)| *value)
}

/// Inner products of what vectors have beyond one or two known ones (Gram and Schmidt).
struct Rests<'a> {
    gram: &'a Gram,
    first: Option<usize>,
    second: Option<usize>,
}

impl<'a> Rests<'a> {
    fn new(gram: &'a Gram, [first, second]: [Option<usize>; 2]) -> Self {
        let mut rests = Self { gram, first, second: None };
        // What the second has beyond the first must be more than rounding.
        rests.second = second.filter(|&known| rests.length(known).is_some());
        rests
    }

    fn product(&self, a: usize, b: usize) -> f64 {
        let product = self.beyond_first(a, b);
        let Some(known) = self.second else { return product };
        let (a, b) = (self.beyond_first(a, known), self.beyond_first(b, known));
        product - a * b / self.beyond_first(known, known)
    }

    fn beyond_first(&self, a: usize, b: usize) -> f64 {
        let Some(known) = self.first else { return self.gram.at(a, b) };
        let along = self.gram.at(known, known);
        self.gram.at(a, b) - self.gram.at(a, known) * self.gram.at(b, known) / along
    }

    /// The length of a rest; `None` where it is rounding.
    fn length(&self, k: usize) -> Option<f64> {
        let square = self.product(k, k);
        (square > ROUNDING * self.gram.at(k, k)).then(|| square.sqrt())
    }
}
