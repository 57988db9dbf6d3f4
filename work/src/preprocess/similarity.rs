//! Similarity of two updates: distinguishes a copy under noise from independent work.
//!
//! The cosine alone is not sufficient: participants with many similar rows send nearly the same
//! update. Two more statistics are needed. The *own part* of an update is what remains after
//! removing the direction that all updates share; a copy has the own part of the original. The
//! *residual* of an update beyond the original agrees with other members' residuals if it was
//! learned from data, but not if it is random noise.

use super::Gram;
use super::gram::ROUNDING_SHARE;

/// Smallest cosine of a third update with both updates of a pair to contribute to their common
/// direction. Random directions stay below it in every model of more than about 600 parameters
/// (five standard deviations).
const WITNESS_COSINE_MIN: f64 = 0.2;
/// Share of the other members' rows that must not agree with an update's residual before the
/// residual counts as noise. To disguise a copy, an attacker has to own more than the remaining
/// share.
const WITNESS_QUANTILE: f64 = 0.75;

/// Fewest other members: a single one may have learned something different by chance.
const WITNESSES_MIN: usize = 2;

/// In fewer dimensions random directions are often similar to learned ones by chance, and honest
/// updates may be nearly equal.
const DIMENSIONS_MIN: usize = 400;

/// Above this cosine two updates are the same, independent of other updates: the residual is at
/// most one per cent of the norm.
pub const SAME_COSINE: f64 = 0.999_95;
/// The threshold for a model of fewer than 400 parameters: only a rescaled copy exceeds it.
pub const SAME_COSINE_SMALL: f64 = 1.0 - 1e-9;

/// Similarity of an update with an earlier vector. Each statistic is computed on request: in a
/// cohort of n the cosine takes O(1), the agreement O(n) and the own parts O(n²).
#[derive(Debug, Clone, Copy)]
pub struct Similarity<'a> {
    gram: &'a Gram,
    beyond: &'a Gram,
    rows: &'a [u64],
    later: usize,
    earlier: usize,
}

/// Compares update `later` with `earlier`, an update or a global model delta. The updates are the
/// first vectors of the matrix, with `rows` counted rows; `beyond` is the Gram matrix of the
/// residuals after projecting out the global model deltas.
#[must_use]
pub fn similarity<'a>(
    gram: &'a Gram,
    beyond: &'a Gram,
    rows: &'a [u64],
    (later, earlier): (usize, usize),
) -> Similarity<'a> {
    Similarity { gram, beyond, rows, later, earlier }
}

impl Similarity<'_> {
    /// Cosine of the two vectors.
    #[must_use]
    pub fn cosine(&self) -> f64 {
        self.gram.cosine(self.later, self.earlier)
    }

    /// Whether they are the same update up to scale, independent of other updates.
    #[must_use]
    pub fn is_equal_up_to_scale(&self) -> bool {
        self.cosine() > same_cosine(self.gram)
    }

    /// Cosine of their own parts: of the residuals after subtracting the mean direction of the
    /// other members, corrected for its expectation under independence. `None` if no other member
    /// is similar to the pair.
    #[must_use]
    pub fn own_part_cosine(&self) -> Option<f64> {
        own_part_cosine(self.gram, &self.others(), self.later, self.earlier)
    }

    /// Agreement of the update's residual, beyond the earlier vector and the global model deltas,
    /// with the other members' residuals, in standard deviations of a random direction: about 1 for
    /// noise, 0 for a zero residual. `None` if there are too few other members or too few
    /// parameters.
    #[must_use]
    pub fn residual_agreement(&self) -> Option<f64> {
        let rests =
            Residuals { gram: self.gram, beyond: self.beyond, projected_out: Some(self.earlier) };
        residual_agreement(&rests, &self.others(), self.later)
    }

    fn others(&self) -> Vec<(usize, f64)> {
        let others = others(self.gram, self.rows, self.later);
        others.filter(|(k, _)| *k != self.earlier).collect()
    }
}

/// The cosine of update `later` with the nearest linear combination of the global model deltas, and
/// whether the update equals that combination up to scale.
#[must_use]
pub fn nearest_combination(gram: &Gram, beyond: &Gram, later: usize) -> (f64, bool) {
    let (whole, rest) = (gram.at(later, later), beyond.at(later, later));
    let share = if whole > 0.0 { (1.0 - rest / whole).clamp(0.0, 1.0) } else { 0.0 };
    let cosine = share.sqrt();
    (cosine, cosine > same_cosine(gram))
}

fn same_cosine(gram: &Gram) -> f64 {
    if gram.dimensions() < DIMENSIONS_MIN { SAME_COSINE_SMALL } else { SAME_COSINE }
}

/// The other updates with a nonzero norm and counted rows.
fn others<'a>(
    gram: &'a Gram,
    rows: &'a [u64],
    later: usize,
) -> impl Iterator<Item = (usize, f64)> + 'a {
    let all = rows.iter().enumerate();
    let counted = move |&(k, &rows): &(usize, &u64)| k != later && rows > 0 && gram.at(k, k) > 0.0;
    all.filter(counted).map(|(k, &rows)| (k, to_f64(rows)))
}

#[expect(clippy::cast_precision_loss, reason = "a share of the rows, not an account of them")]
fn to_f64(rows: u64) -> f64 {
    rows as f64
}

/// Cosine of the own parts. Let u be the unit vectors, and m the mean of the members similar to the
/// pair, weighted by rows and similarity: the cosine of `u_later − m` and `u_earlier − m`.
/// Independent own parts share only the error of m, which gives `s / (1 + s)` in expectation, where
/// s is the sum of the squared weights. The result is rescaled so that this value becomes 0, and 1
/// stays 1.
fn own_part_cosine(
    gram: &Gram,
    others: &[(usize, f64)],
    later: usize,
    earlier: usize,
) -> Option<f64> {
    let mut weights: Vec<(usize, f64)> = others
        .iter()
        .map(|&(k, rows)| (k, rows, gram.cosine(k, later).min(gram.cosine(k, earlier))))
        .filter(|&(.., near)| near > WITNESS_COSINE_MIN)
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
    if lengths <= ROUNDING_SHARE * ROUNDING_SHARE {
        return None;
    }
    let cosine = (gram.cosine(later, earlier) - a - b + mean) / lengths.sqrt();
    let squares: f64 = weights.iter().map(|(_, w)| w * w).sum();
    let chance = squares / (1.0 + squares);
    Some((cosine - chance) / (1.0 - chance))
}

/// The quantile at [`WITNESS_QUANTILE`] of the absolute cosines between the residual of `later` and the other
/// members' residuals, times √d. The quantile is weighted by rows or by members, whichever is
/// larger: by rows because identities are cheap; by members because a single member with most of
/// the rows must not decide alone that an honest residual agrees with no other.
fn residual_agreement(rests: &Residuals<'_>, others: &[(usize, f64)], later: usize) -> Option<f64> {
    let dimensions = rests.gram.dimensions();
    if others.len() < WITNESSES_MIN || dimensions < DIMENSIONS_MIN {
        return None;
    }
    let Some(whole) = rests.norm(later) else { return Some(0.0) };
    let mut seen: Vec<(f64, f64)> = others
        .iter()
        .map(|&(k, rows)| {
            let of = |other| rests.product(later, k) / (whole * other);
            (rests.norm(k).map_or(0.0, of).abs(), rows)
        })
        .collect();
    seen.sort_by(|a, b| a.0.total_cmp(&b.0));
    let by_rows = weighted_quantile(&seen)?;
    seen.iter_mut().for_each(|(_, rows)| *rows = 1.0);
    let cosine = by_rows.max(weighted_quantile(&seen)?);
    #[expect(clippy::cast_precision_loss, reason = "a model has far fewer than 2^53 parameters")]
    let root = (dimensions as f64).sqrt();
    Some(cosine * root)
}

/// The weighted quantile at [`WITNESS_QUANTILE`] of the ascending values.
fn weighted_quantile(seen: &[(f64, f64)]) -> Option<f64> {
    let needed = WITNESS_QUANTILE * seen.iter().map(|(_, weight)| weight).sum::<f64>();
    let mut sum = 0.0;
    let reached = seen.iter().find(|(_, weight)| {
        sum += weight;
        sum >= needed
    });
    reached.map(|(value, _)| *value)
}

/// Inner products of residuals, beyond the global model deltas and one known update.
struct Residuals<'a> {
    gram: &'a Gram,
    beyond: &'a Gram,
    projected_out: Option<usize>,
}

impl Residuals<'_> {
    fn product(&self, a: usize, b: usize) -> f64 {
        let product = self.beyond.at(a, b);
        match self.projected_out {
            Some(known) if self.is_more_than_rounding(known, self.beyond.at(known, known)) => {
                let along = self.beyond.at(known, known);
                product - self.beyond.at(a, known) * self.beyond.at(b, known) / along
            }
            _ => product,
        }
    }

    /// Norm of a residual; `None` if it is rounding error.
    fn norm(&self, k: usize) -> Option<f64> {
        let square = self.product(k, k);
        self.is_more_than_rounding(k, square).then(|| square.sqrt())
    }

    fn is_more_than_rounding(&self, k: usize, square: f64) -> bool {
        square > ROUNDING_SHARE * self.gram.at(k, k)
    }
}
