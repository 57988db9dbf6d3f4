//! How much of one update another one contains, and whether the rest is somebody's own work.
//!
//! A cosine alone does not tell a copy from honest work: participants with many similar rows send nearly the same
//! update. Two more figures do. What a copy shares with the original *beyond what all share* is the original's own
//! part. And what a copy has *beyond* the original agrees with nobody, if it was drawn and not learned.

use super::Gram;
use super::gram::ROUNDING;

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

/// What one update has in common with an earlier vector. Each figure is computed when it is asked for: in a cohort of n
/// the cosine costs nothing, the agreement takes n steps and the own parts may take n².
#[derive(Debug, Clone, Copy)]
pub struct Likeness<'a> {
    gram: &'a Gram,
    beyond: &'a Gram,
    rows: &'a [u64],
    later: usize,
    earlier: usize,
}

/// Compares update `later` with `earlier`, an update or a public step. The updates are the first vectors of the matrix,
/// with these counted rows; `beyond` is the matrix of what all have beyond the public steps.
#[must_use]
pub fn likeness<'a>(
    gram: &'a Gram,
    beyond: &'a Gram,
    rows: &'a [u64],
    (later, earlier): (usize, usize),
) -> Likeness<'a> {
    Likeness { gram, beyond, rows, later, earlier }
}

impl Likeness<'_> {
    /// Cosine of the two.
    #[must_use]
    pub fn cosine(&self) -> f64 {
        self.gram.cosine(self.later, self.earlier)
    }

    /// Whether they are one update, whoever else is there.
    #[must_use]
    pub fn is_same(&self) -> bool {
        self.cosine() > same_cosine(self.gram)
    }

    /// Cosine of their own parts: what is left when the others' mean direction is taken from both, less what chance
    /// would give. `None` where nobody else resembles the pair.
    #[must_use]
    pub fn own(&self) -> Option<f64> {
        own(self.gram, &self.others(), self.later, self.earlier)
    }

    /// How well what the update has beyond the earlier one and the public steps agrees with what the others have beyond
    /// them, in standard deviations of a random direction: about 1 for noise, 0 where nothing is left. `None` where there
    /// are too few others, or the model has too few parameters.
    #[must_use]
    pub fn agreement(&self) -> Option<f64> {
        let rests = Rests { gram: self.gram, beyond: self.beyond, known: Some(self.earlier) };
        agreement(&rests, &self.others(), self.later)
    }

    fn others(&self) -> Vec<(usize, f64)> {
        let others = others(self.gram, self.rows, self.later);
        others.filter(|(k, _)| *k != self.earlier).collect()
    }
}

/// The cosine of update `later` with the nearest mixture of the public steps, and whether it is that mixture, whoever
/// else is there.
#[must_use]
pub fn mixture(gram: &Gram, beyond: &Gram, later: usize) -> (f64, bool) {
    let (whole, rest) = (gram.at(later, later), beyond.at(later, later));
    let share = if whole > 0.0 { (1.0 - rest / whole).clamp(0.0, 1.0) } else { 0.0 };
    let cosine = share.sqrt();
    (cosine, cosine > same_cosine(gram))
}

fn same_cosine(gram: &Gram) -> f64 {
    if gram.dimensions() < DIMENSIONS_MIN { SAME_COSINE_SMALL } else { SAME_COSINE }
}

/// The other updates that moved and have rows.
fn others<'a>(
    gram: &'a Gram,
    rows: &'a [u64],
    later: usize,
) -> impl Iterator<Item = (usize, f64)> + 'a {
    let all = rows.iter().enumerate();
    let counted = move |&(k, &rows): &(usize, &u64)| k != later && rows > 0 && gram.at(k, k) > 0.0;
    all.filter(counted).map(|(k, &rows)| (k, real(rows)))
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

/// The cosine between the rests of `later` and of the others, as large as [`QUORUM`] of the others do not exceed, by rows
/// or by heads, whichever is larger, times √d. By rows, because identities are cheap; by heads, because one member with
/// most of the rows must not decide alone that nobody agrees with an honest one.
fn agreement(rests: &Rests<'_>, others: &[(usize, f64)], later: usize) -> Option<f64> {
    let dimensions = rests.gram.dimensions();
    if others.len() < WITNESSES_MIN || dimensions < DIMENSIONS_MIN {
        return None;
    }
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
    let root = (dimensions as f64).sqrt();
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

/// Inner products of what vectors have beyond the public steps and one known update.
struct Rests<'a> {
    gram: &'a Gram,
    beyond: &'a Gram,
    known: Option<usize>,
}

impl Rests<'_> {
    fn product(&self, a: usize, b: usize) -> f64 {
        let product = self.beyond.at(a, b);
        match self.known {
            Some(known) if self.is_more_than_rounding(known, self.beyond.at(known, known)) => {
                let along = self.beyond.at(known, known);
                product - self.beyond.at(a, known) * self.beyond.at(b, known) / along
            }
            _ => product,
        }
    }

    /// The length of a rest; `None` where it is rounding.
    fn length(&self, k: usize) -> Option<f64> {
        let square = self.product(k, k);
        self.is_more_than_rounding(k, square).then(|| square.sqrt())
    }

    fn is_more_than_rounding(&self, k: usize, square: f64) -> bool {
        square > ROUNDING * self.gram.at(k, k)
    }
}
