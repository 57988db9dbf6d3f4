//! A uniform sample of the rows of a stream, of a fixed capacity.

use rand_chacha::ChaCha20Rng;

use super::{Dataset, DatasetError, FEATURES_MAX, ROWS_MAX, RowShape, check_shape};
use crate::rng::{Purpose, below, rng};

/// A sample of the rows seen so far in which each of them is with the same probability: algorithm R
/// of Vitter, "Random sampling with a reservoir", ACM TOMS 11(1), 1985.
///
/// The sample is a function of the rows in their order, the capacity and the seed.
#[derive(Debug, Clone)]
pub struct Reservoir {
    capacity: usize,
    shape: RowShape,
    /// Row-major features and labels of the sample.
    features: Vec<f32>,
    labels: Vec<u32>,
    seen: u64,
    rng: ChaCha20Rng,
}

impl Reservoir {
    /// An empty reservoir for `capacity` rows.
    ///
    /// # Errors
    /// [`DatasetError::TooLarge`] if a data set cannot have that many rows of this shape, and the
    /// errors of a shape.
    pub fn new(shape: RowShape, capacity: usize, seed: u64) -> Result<Self, DatasetError> {
        let RowShape { width, classes } = shape;
        check_shape(width, classes)?;
        let features = capacity.checked_mul(width).filter(|features| *features <= FEATURES_MAX);
        if features.is_none() || capacity > ROWS_MAX {
            return Err(DatasetError::TooLarge { rows: capacity, width });
        }
        let rng = rng(seed, Purpose::Reservoir, 0);
        Ok(Self { capacity, shape, features: Vec::new(), labels: Vec::new(), seen: 0, rng })
    }

    /// Adds rows, one after another.
    ///
    /// # Errors
    /// [`DatasetError::Shape`] for rows of another width, and [`DatasetError::Label`] for a label
    /// that is none of the classes; nothing is added then.
    pub fn add(&mut self, rows: &Dataset) -> Result<(), DatasetError> {
        let RowShape { width, classes } = self.shape;
        if rows.width() != width {
            let (features, rows) = (rows.features().len(), rows.rows());
            return Err(DatasetError::Shape { features, rows, width });
        }
        super::check_labels(rows.labels(), classes)?;
        for (row, label) in rows.labels().iter().enumerate() {
            self.add_row(rows.row(row), *label);
        }
        Ok(())
    }

    /// Row number n, from 1, replaces a random one of the sample with probability capacity / n.
    fn add_row(&mut self, row: &[f32], label: u32) {
        self.seen = self.seen.saturating_add(1);
        if self.labels.len() < self.capacity {
            self.features.extend_from_slice(row);
            self.labels.push(label);
            return;
        }
        let place = below(&mut self.rng, self.seen);
        let Some(place) = usize::try_from(place).ok().filter(|place| *place < self.capacity) else {
            return;
        };
        let width = self.shape.width;
        self.features[place * width..(place + 1) * width].copy_from_slice(row);
        self.labels[place] = label;
    }

    /// A copy of the sample.
    ///
    /// # Errors
    /// None of rows that were added; the constructor of a data set checks them again.
    pub fn snapshot(&self) -> Result<Dataset, DatasetError> {
        let RowShape { width, classes } = self.shape;
        Dataset::new(self.features.clone(), self.labels.clone(), width, classes)
    }

    /// Number of rows in the sample.
    pub fn rows(&self) -> usize {
        self.labels.len()
    }

    /// Number of rows that were added.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Largest number of rows in the sample.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: RowShape = RowShape { width: 1, classes: 1 };

    fn numbered(rows: std::ops::Range<usize>) -> Dataset {
        let labels = vec![0; rows.len()];
        Dataset::new(rows.map(|row| row as f32).collect(), labels, 1, 1).unwrap()
    }

    fn sample(rows: usize, capacity: usize, seed: u64) -> Vec<usize> {
        let mut reservoir = Reservoir::new(SHAPE, capacity, seed).unwrap();
        reservoir.add(&numbered(0..rows)).unwrap();
        let sampled = reservoir.snapshot().unwrap();
        sampled.features().iter().map(|row| *row as usize).collect()
    }

    /// Each of 40 rows is in a sample of 10 with probability 1/4: of 20,000 samples in 5,000, with a
    /// standard deviation of 61. The sum of squared deviations over the variance has 39 degrees of
    /// freedom; beyond 78 it has a probability of 2 in 10,000.
    #[test]
    fn every_row_is_in_the_sample_with_the_same_probability() {
        let (rows, capacity, samples, first) = (40, 10, 20_000_u64, 1_u64);
        println!("seeds {first} to {}", first + samples - 1);
        let mut counts = vec![0_u32; rows];
        for seed in first..first + samples {
            let mut found = sample(rows, capacity, seed);
            found.iter().for_each(|row| counts[*row] += 1);
            found.sort_unstable();
            found.dedup();
            assert_eq!(found.len(), capacity, "seed {seed}: a row is there twice");
        }
        let share = capacity as f64 / rows as f64;
        let expected = samples as f64 * share;
        // Counts of a sample without replacement are negatively correlated.
        let variance = expected * (1.0 - share) * rows as f64 / (rows - 1) as f64;
        let squares = counts.iter().map(|count| (f64::from(*count) - expected).powi(2));
        let statistic = squares.sum::<f64>() / variance;
        assert!(statistic < 78.0, "{statistic}: {counts:?}");
    }

    #[test]
    fn a_sample_is_a_function_of_rows_and_seed() {
        assert_eq!(sample(1_000, 16, 7), sample(1_000, 16, 7));
        assert_ne!(sample(1_000, 16, 7), sample(1_000, 16, 8));
        let mut parts = Reservoir::new(SHAPE, 16, 7).unwrap();
        for from in (0..1_000).step_by(125) {
            parts.add(&numbered(from..from + 125)).unwrap();
        }
        let found = parts.snapshot().unwrap();
        let found: Vec<usize> = found.features().iter().map(|row| *row as usize).collect();
        assert_eq!(found, sample(1_000, 16, 7), "the parts in which rows arrive do not matter");
        assert_eq!((parts.seen(), parts.rows(), parts.capacity()), (1_000, 16, 16));
    }

    #[test]
    fn fewer_rows_than_the_capacity_are_all_there() {
        assert_eq!(sample(5, 16, 7), [0, 1, 2, 3, 4]);
        assert!(sample(0, 16, 7).is_empty());
    }

    #[test]
    fn other_shapes_and_sizes_are_refused() {
        let mut reservoir = Reservoir::new(SHAPE, 4, 1).unwrap();
        let wide = Dataset::new(vec![0.0; 4], vec![0; 2], 2, 1).unwrap();
        assert!(matches!(reservoir.add(&wide), Err(DatasetError::Shape { width: 1, .. })));
        let other = Dataset::new(vec![0.0; 2], vec![0, 3], 1, 4).unwrap();
        assert!(matches!(reservoir.add(&other), Err(DatasetError::Label { label: 3, .. })));
        assert_eq!(reservoir.seen(), 0);
        for capacity in [ROWS_MAX + 1, FEATURES_MAX, usize::MAX] {
            let wide = RowShape { width: 2, classes: 1 };
            assert!(Reservoir::new(wide, capacity, 1).is_err(), "{capacity}");
        }
    }
}
