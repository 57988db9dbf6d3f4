//! Gram matrix of a round's updates: the inner products from which rescaling and similarity are
//! computed.

use std::ops::Range;

use florin_learning::{cores, products};

/// A residual whose squared norm is at most this share of the whole is rounding error.
pub(super) const ROUNDING: f64 = 1e-6;

/// The symmetric matrix of all inner products.
#[derive(Debug, Clone)]
pub struct Gram {
    side: usize,
    products: Vec<f64>,
    dimensions: usize,
}

impl Gram {
    /// The Gram matrix of `vectors`, which have equal length.
    #[must_use]
    pub fn of(vectors: &[&[f32]]) -> Self {
        Self::apart(vectors, 0)
    }

    /// The Gram matrix without the inner products among the last `apart` vectors. If they are half
    /// of all vectors, it takes three quarters of the time.
    #[must_use]
    pub fn apart(vectors: &[&[f32]], apart: usize) -> Self {
        let dimensions = vectors.first().map_or(0, |vector| vector.len());
        Self { side: vectors.len(), products: products(vectors, apart, cores()), dimensions }
    }

    /// The Gram matrix of the residuals after projecting out the `known` vectors (modified
    /// Gram–Schmidt). The residual of a known vector is zero; a known vector that depends linearly
    /// on the preceding ones is skipped.
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

    /// Whether the product of two vectors was computed; a product of zero counts as missing.
    pub(super) fn has(&self, i: usize, j: usize) -> bool {
        self.at(i, j).abs() > 0.0
    }

    /// Sets a product that was not computed.
    pub(super) fn set(&mut self, (i, j): (usize, usize), product: f64) {
        self.products[i * self.side + j] = product;
        self.products[j * self.side + i] = product;
    }

    /// The submatrix of these vectors, in this order.
    pub(super) fn part(&self, of: &[usize]) -> Self {
        let products = of.iter().flat_map(|&i| of.iter().map(move |&j| self.at(i, j))).collect();
        Self { side: of.len(), products, dimensions: self.dimensions }
    }

    /// Number of elements of a vector.
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
