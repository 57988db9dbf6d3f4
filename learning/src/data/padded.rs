//! Data sets of which only some rows are known.

use super::{Dataset, DatasetError, FEATURES_MAX, Features, ROWS_MAX};

impl Dataset {
    /// Rows of zeros with label 0: they have the shape of other rows, so that steps on them take as long.
    ///
    /// # Errors
    /// [`DatasetError`] for a shape that no data set has.
    pub fn zeros(rows: usize, width: usize, classes: usize) -> Result<Self, DatasetError> {
        super::check_shape(width, classes)?;
        if rows > ROWS_MAX || rows.saturating_mul(width) > FEATURES_MAX {
            return Err(DatasetError::TooLarge { rows, width });
        }
        let features = Features::Owned(vec![0.0; rows * width]);
        Ok(Self { features, labels: vec![0; rows], width, classes })
    }

    /// A data set of `rows` rows: row `places[i]` is row `i` of this one, and the others are zeros with label 0.
    ///
    /// # Errors
    /// [`DatasetError::RowOutOfRange`] for a place beyond the rows, [`DatasetError::Shape`] for another number of
    /// places than rows, [`DatasetError::TooLarge`].
    pub fn padded(&self, rows: usize, places: &[usize]) -> Result<Self, DatasetError> {
        if places.len() != self.rows() {
            let features = self.features().len();
            return Err(DatasetError::Shape { features, rows: places.len(), width: self.width });
        }
        if let Some(&row) = places.iter().find(|&&row| row >= rows) {
            return Err(DatasetError::RowOutOfRange { row, rows });
        }
        let mut all = Self::zeros(rows, self.width, self.classes)?;
        if let Features::Owned(features) = &mut all.features {
            for (at, &row) in places.iter().enumerate() {
                features[row * self.width..][..self.width].copy_from_slice(self.row(at));
                all.labels[row] = self.labels[at];
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_at_their_places_and_the_others_are_zeros() {
        let given = Dataset::new(vec![1.0, 2.0, 3.0, 4.0], vec![2, 1], 2, 3).unwrap();
        let all = given.padded(4, &[3, 1]).unwrap();
        assert_eq!(all.features(), [0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
        assert_eq!(all.labels(), [0, 1, 0, 2]);
        assert_eq!((all.width(), all.classes()), (2, 3));
        assert_eq!(all.subset(&[3, 1]).unwrap(), given);
    }

    #[test]
    fn wrong_places_and_shapes_are_refused() {
        let given = Dataset::new(vec![1.0, 2.0], vec![0, 0], 1, 2).unwrap();
        let out_of_range = DatasetError::RowOutOfRange { row: 4, rows: 4 };
        assert_eq!(given.padded(4, &[0, 4]), Err(out_of_range));
        assert!(matches!(given.padded(4, &[0]), Err(DatasetError::Shape { rows: 1, .. })));
        let too_large = DatasetError::TooLarge { rows: usize::MAX, width: 1 };
        assert_eq!(Dataset::zeros(usize::MAX, 1, 2), Err(too_large));
        assert!(Dataset::zeros(1, 0, 2).is_err());
        assert!(Dataset::zeros(1, 1, 0).is_err());
    }
}
