//! Resampling of a line of pixels by a triangle filter, whose support grows with the reduction: the
//! bilinear filter with antialiasing of Pillow and torchvision, without their rounding between the two
//! directions. All sums are in `f64` and in ascending order.

use std::ops::Range;

/// The weights of one position of the result: consecutive pixels of the source.
#[derive(Debug, PartialEq)]
pub(super) struct Window {
    /// The first pixel.
    pub(super) first: usize,
    /// The weights of it and those behind it; their sum is 1.
    pub(super) weights: Vec<f64>,
}

impl Window {
    /// The pixels that have a weight.
    pub(super) fn range(&self) -> Range<usize> {
        self.first..self.first + self.weights.len()
    }

    /// The weighted sum.
    pub(super) fn sum(&self, pixel: impl Fn(usize) -> f64) -> f64 {
        let terms = self.weights.iter().zip(self.first..);
        terms.fold(0.0, |sum, (weight, at)| sum + weight * pixel(at))
    }
}

/// The windows of the positions `crop` of a line of `source` pixels that is resized to `size` pixels.
pub(super) fn windows(source: usize, size: usize, crop: Range<usize>) -> Vec<Window> {
    let scale = source as f64 / size as f64;
    let support = scale.max(1.0);
    let window = |at: usize| {
        let centre = (at as f64 + 0.5) * scale;
        let first = (centre - support).floor().max(0.0) as usize;
        let end = ((centre + support).ceil() as usize).min(source);
        let weight =
            |pixel: usize| (1.0 - ((pixel as f64 + 0.5 - centre) / support).abs()).max(0.0);
        let weights: Vec<f64> = (first..end).map(weight).collect();
        let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
        Window { first, weights: weights.iter().map(|weight| weight / sum).collect() }
    };
    crop.map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_equal_size_is_unchanged() {
        for window in windows(5, 5, 0..5) {
            let ones = window.weights.iter().filter(|weight| **weight == 1.0).count();
            assert_eq!((ones, window.sum(|_| 1.0)), (1, 1.0));
        }
    }

    #[test]
    fn half_the_size_weighs_neighbours_by_a_triangle() {
        // The centre of the second pixel is 3 in the source, and the support 2.
        let window = &windows(6, 3, 1..2)[0];
        assert_eq!(window.range(), 1..5);
        assert_eq!(window.weights, [0.125, 0.375, 0.375, 0.125]);
    }

    #[test]
    fn twice_the_size_interpolates_and_repeats_the_edge() {
        let line = [10.0, 20.0];
        let found: Vec<f64> =
            windows(2, 4, 0..4).iter().map(|window| window.sum(|at| line[at])).collect();
        assert_eq!(found, [10.0, 12.5, 17.5, 20.0]);
    }
}
