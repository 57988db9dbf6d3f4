//! Gram matrix of a round's updates: the inner products from which rescaling and similarity are
//! computed.

use std::ops::Range;

use florin_learning::{cores, gram_matrix};

/// A residual whose squared norm is at most this share of the whole is rounding error.
pub(super) const ROUNDING_SHARE: f64 = 1e-6;

/// The symmetric matrix of all inner products.
#[derive(Debug, Clone)]
pub struct Gram {
    size: usize,
    products: Vec<f64>,
    dimensions: usize,
}

impl Gram {
    /// The Gram matrix of `vectors`, which have equal length.
    #[must_use]
    pub fn new(vectors: &[&[f32]]) -> Self {
        Self::without_last_block(vectors, 0)
    }

    /// The Gram matrix without the inner products among the last `apart` vectors. If they are half
    /// of all vectors, it takes three quarters of the time.
    #[must_use]
    pub fn without_last_block(vectors: &[&[f32]], apart: usize) -> Self {
        let dimensions = vectors.first().map_or(0, |vector| vector.len());
        Self { size: vectors.len(), products: gram_matrix(vectors, apart, cores()), dimensions }
    }

    /// The Gram matrix of the residuals after projecting out the `known` vectors (modified
    /// Gram–Schmidt). The residual of a known vector is zero; a known vector that depends linearly
    /// on the preceding ones is skipped.
    #[must_use]
    pub fn project_out(&self, known: Range<usize>) -> Self {
        let mut rest = self.clone();
        for k in known {
            let square = rest.at(k, k);
            if square <= ROUNDING_SHARE * self.at(k, k) {
                continue;
            }
            let along: Vec<f64> = (0..self.size).map(|i| rest.at(i, k)).collect();
            for i in 0..self.size {
                for j in 0..self.size {
                    rest.products[i * self.size + j] -= along[i] * along[j] / square;
                }
            }
        }
        rest
    }

    /// Whether the product of two vectors was computed; a product of zero counts as missing.
    pub(super) fn has_product(&self, i: usize, j: usize) -> bool {
        self.at(i, j).abs() > 0.0
    }

    /// Sets a product that was not computed.
    pub(super) fn set_product(&mut self, (i, j): (usize, usize), product: f64) {
        self.products[i * self.size + j] = product;
        self.products[j * self.size + i] = product;
    }

    /// The submatrix of these vectors, in this order.
    pub(super) fn submatrix(&self, of: &[usize]) -> Self {
        let products = of.iter().flat_map(|&i| of.iter().map(move |&j| self.at(i, j))).collect();
        Self { size: of.len(), products, dimensions: self.dimensions }
    }

    /// Number of elements of a vector.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The inner product of vectors `i` and `j`.
    #[must_use]
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.products[i * self.size + j]
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
