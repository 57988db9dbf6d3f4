//! Inner products of a round's updates: all that clipping and likeness need to know of them.

use std::ops::Range;

use florin_learning::{cores, products};

/// A rest of so little squared length, as a share of the whole, is rounding.
pub(super) const ROUNDING: f64 = 1e-6;

/// The symmetric matrix of all inner products.
#[derive(Debug, Clone)]
pub struct Gram {
    side: usize,
    products: Vec<f64>,
    dimensions: usize,
}

impl Gram {
    /// Of these vectors, all of one length.
    #[must_use]
    pub fn of(vectors: &[&[f32]]) -> Self {
        Self::apart(vectors, 0)
    }

    /// The same where nobody asks for the products of the last `apart` vectors with each other, which takes a quarter of
    /// the time where they are half of all.
    #[must_use]
    pub fn apart(vectors: &[&[f32]], apart: usize) -> Self {
        let dimensions = vectors.first().map_or(0, |vector| vector.len());
        Self { side: vectors.len(), products: products(vectors, apart, cores()), dimensions }
    }

    /// The matrix of what all vectors have beyond the `known` ones (Gram and Schmidt, one after the other; what is left of
    /// a known one is nothing, and one that had nothing left is passed over).
    #[must_use]
    pub fn beyond(&self, known: Range<usize>) -> Self {
        let mut rest = self.clone();
        for k in known {
            let square = rest.at(k, k);
            if square <= ROUNDING * self.at(k, k) {
                continue;
            }
            let along: Vec<f64> = (0..self.side).map(|i| rest.at(i, k)).collect();
            for i in 0..self.side {
                for j in 0..self.side {
                    rest.products[i * self.side + j] -= along[i] * along[j] / square;
                }
            }
        }
        rest
    }

    /// Whether the product of two vectors is there; one that is nothing counts as missing.
    pub(super) fn has(&self, i: usize, j: usize) -> bool {
        self.at(i, j).abs() > 0.0
    }

    /// Puts in the product of two vectors, which was left out.
    pub(super) fn set(&mut self, (i, j): (usize, usize), product: f64) {
        self.products[i * self.side + j] = product;
        self.products[j * self.side + i] = product;
    }

    /// The matrix of these vectors alone, in this order.
    pub(super) fn part(&self, of: &[usize]) -> Self {
        let products = of.iter().flat_map(|&i| of.iter().map(move |&j| self.at(i, j))).collect();
        Self { side: of.len(), products, dimensions: self.dimensions }
    }

    /// How many numbers a vector has.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The inner product of vectors `i` and `j`.
    #[must_use]
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.products[i * self.side + j]
    }

    /// The Euclidean norm of vector `i`.
    #[must_use]
    pub fn norm(&self, i: usize) -> f64 {
        self.at(i, i).sqrt()
    }

    /// The cosine between vectors `i` and `j`; 0 where one of them is zero.
    #[must_use]
    pub fn cosine(&self, i: usize, j: usize) -> f64 {
        let norms = self.norm(i) * self.norm(j);
        if norms > 0.0 { self.at(i, j) / norms } else { 0.0 }
    }
}
