//! Products of square matrices over a prime field, for probes of devices.
//!
//! The elements are below a prime that is so small that each sum of products is below 2²⁴. Such sums are exact in
//! `f32` in any order, so that every implementation has the same result.

use crate::reference::square_product;

/// Rows and columns of a matrix.
pub const FIELD_SIDE: usize = 256;
/// Elements of the field: 256 · 250² + 250 is below 2²⁴.
pub const FIELD_PRIME: u8 = 251;

/// Products on one device.
pub trait FieldProducts: Send {
    /// `before · factor + added` over the field. All matrices have [`FIELD_SIDE`]² elements, row by row.
    fn multiply_add(&mut self, before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8>;
}

/// The plain implementation, on the thread that calls it.
#[derive(Debug, Default)]
pub struct PlainFieldProducts {
    sum: Vec<f32>,
}

impl FieldProducts for PlainFieldProducts {
    fn multiply_add(&mut self, before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8> {
        self.sum.clear();
        self.sum.extend(added.iter().copied().map(f32::from));
        square_product(FIELD_SIDE, &floats(before), &floats(factor), &mut self.sum);
        reduced(&self.sum)
    }
}

/// The elements as `f32`.
pub(crate) fn floats(matrix: &[u8]) -> Vec<f32> {
    matrix.iter().copied().map(f32::from).collect()
}

/// Exact sums, reduced to elements of the field.
pub(crate) fn reduced(sums: &[f32]) -> Vec<u8> {
    // Exact integers below 2²⁴.
    sums.iter().map(|sum| (*sum as u32 % u32::from(FIELD_PRIME)) as u8).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Matrices with the largest elements, and with mixed ones.
    pub(crate) fn matrices(kind: u32) -> Vec<u8> {
        let element = |at: u32| match kind {
            0 => FIELD_PRIME - 1,
            kind => (at.wrapping_mul(2_654_435_761).wrapping_add(kind) >> 7) as u8 % FIELD_PRIME,
        };
        (0..(FIELD_SIDE * FIELD_SIDE) as u32).map(element).collect()
    }

    pub(crate) fn by_definition(before: &[u8], factor: &[u8], added: &[u8]) -> Vec<u8> {
        let element = |at: usize| {
            let (row, column) = (at / FIELD_SIDE, at % FIELD_SIDE);
            let sum = (0..FIELD_SIDE).fold(u32::from(added[at]), |sum, k| {
                let product = u32::from(before[row * FIELD_SIDE + k]);
                sum + product * u32::from(factor[k * FIELD_SIDE + column])
            });
            (sum % u32::from(FIELD_PRIME)) as u8
        };
        (0..FIELD_SIDE * FIELD_SIDE).map(element).collect()
    }

    #[test]
    fn plain_products_are_those_of_the_definition() {
        for (a, b, c) in [(0, 0, 0), (1, 2, 3), (0, 4, 1)] {
            let [a, b, c] = [a, b, c].map(matrices);
            let found = PlainFieldProducts::default().multiply_add(&a, &b, &c);
            assert!(found == by_definition(&a, &b, &c));
        }
    }
}
