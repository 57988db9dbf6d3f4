//! Random changes of images in training: a horizontal flip and a shifted crop.
//!
//! They are drawn for each row of each epoch from the seed of the training, so a training can be
//! repeated, on any engine. Evaluations, gradients of rows and private trainings use the rows as they
//! are.

use serde::{Deserialize, Serialize};

use crate::data::{Dataset, ImageShape};
use crate::rng::{Purpose, below, rng};
use crate::training::Training;

/// Largest number of pixels by which a crop is shifted.
pub const CROP_PADDING_MAX: usize = 64;
/// Words of the random stream of an epoch between two rows: one block of ChaCha.
const WORDS_PER_ROW: u128 = 16;

/// The random changes of a training. The features of an image come first in a row, and other numbers
/// behind them stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Augmentation {
    /// The image of a row.
    pub image: ImageShape,
    /// Whether half of the images are mirrored, left to right.
    pub flip: bool,
    /// The image is extended by this many zeros on each side, and a crop of its own size is taken from
    /// a random place; 0 to [`CROP_PADDING_MAX`].
    pub crop_padding: usize,
}

/// A row in an epoch of a training.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowPass {
    /// Seed of the training.
    pub(crate) seed: u64,
    /// The epoch, from 0.
    pub(crate) epoch: u32,
    /// The row, from 0.
    pub(crate) row: usize,
}

impl Augmentation {
    /// Whether it changes nothing.
    pub const fn is_empty(&self) -> bool {
        !self.flip && self.crop_padding == 0
    }

    /// Appends the changed row to `out`. The flip is drawn first, as 1 of 2, then the shifts down and
    /// to the right, as 0 to 2 · padding. A row that is shorter than the image is appended as it is.
    pub(crate) fn append(&self, row: &[f32], pass: RowPass, out: &mut Vec<f32>) {
        let ImageShape { height, width, .. } = self.image;
        let features = self.image.features();
        if row.len() < features {
            out.extend_from_slice(row);
            return;
        }
        let mut rng = rng(pass.seed, Purpose::Augmentation, pass.epoch);
        rng.set_word_pos(pass.row as u128 * WORDS_PER_ROW);
        let is_mirrored = self.flip && below(&mut rng, 2) == 1;
        let places = 2 * self.crop_padding as u64 + 1;
        let mut shift = || below(&mut rng, places) as isize - self.crop_padding as isize;
        let (down, right) = (shift(), shift());
        let (image, rest) = row.split_at(features);
        for channel in image.chunks_exact(height * width) {
            for y in 0..height {
                let line = y.checked_add_signed(down).filter(|line| *line < height);
                let line = line.map(|line| &channel[line * width..][..width]);
                out.extend((0..width).map(|x| {
                    let from = x.checked_add_signed(right).filter(|from| *from < width);
                    let from = from.map(|from| if is_mirrored { width - 1 - from } else { from });
                    line.zip(from).map_or(0.0, |(line, from)| line[from])
                }));
            }
        }
        out.extend_from_slice(rest);
    }
}

/// The rows of a training, as its steps see them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TrainingRows<'a> {
    pub(crate) data: &'a Dataset,
    /// The changes; `None` for none.
    pub(crate) augmentation: Option<Augmentation>,
    /// Seed of the training.
    pub(crate) seed: u64,
}

impl<'a> TrainingRows<'a> {
    /// The rows of a training with this seed.
    pub(crate) fn new(data: &'a Dataset, how: &Training, seed: u64) -> Self {
        let augmentation = how.augmentation.filter(|changes| !changes.is_empty());
        Self { data, augmentation, seed }
    }

    /// Replaces `out` by the features of the rows with these indices.
    pub(crate) fn gather(&self, rows: &[usize], epoch: u32, out: &mut Vec<f32>) {
        out.clear();
        self.data.will_need(rows);
        for &row in rows {
            let features = self.data.row(row);
            match &self.augmentation {
                Some(augmentation) => {
                    let pass = RowPass { seed: self.seed, epoch, row };
                    augmentation.append(features, pass, out);
                }
                None => out.extend_from_slice(features),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGE: ImageShape = ImageShape { channels: 2, height: 2, width: 3 };

    fn changed(augmentation: Augmentation, pass: RowPass) -> Vec<f32> {
        let row: Vec<f32> = (1..=13).map(|value| value as f32).collect();
        let mut out = Vec::new();
        augmentation.append(&row, pass, &mut out);
        out
    }

    fn passes() -> impl Iterator<Item = RowPass> {
        (0..200).map(|row| RowPass { seed: 7, epoch: 1, row })
    }

    #[test]
    fn half_of_the_rows_are_mirrored_and_targets_stay() {
        let flip = Augmentation { image: IMAGE, flip: true, crop_padding: 0 };
        let mirrored = [3.0, 2.0, 1.0, 6.0, 5.0, 4.0, 9.0, 8.0, 7.0, 12.0, 11.0, 10.0, 13.0];
        let plain: Vec<f32> = (1..=13).map(|value| value as f32).collect();
        let found: Vec<Vec<f32>> = passes().map(|pass| changed(flip, pass)).collect();
        let count = found.iter().filter(|row| **row == mirrored).count();
        assert!((70..130).contains(&count), "{count}");
        assert!(found.iter().all(|row| *row == mirrored || *row == plain));
    }

    #[test]
    fn crops_take_every_place_and_are_filled_with_zeros() {
        let crop = Augmentation { image: IMAGE, flip: false, crop_padding: 1 };
        let mut found: Vec<Vec<f32>> = passes().map(|pass| changed(crop, pass)).collect();
        found.sort_by(|a, b| a.partial_cmp(b).unwrap());
        found.dedup();
        assert_eq!(found.len(), 9, "three shifts down times three to the right");
        let down_right = [5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 11.0, 12.0, 0.0, 0.0, 0.0, 0.0, 13.0];
        assert!(found.contains(&down_right.to_vec()));
    }

    #[test]
    fn a_row_is_drawn_by_seed_epoch_and_row_alone() {
        let both = Augmentation { image: IMAGE, flip: true, crop_padding: 1 };
        let draw = |seed, epoch| -> Vec<Vec<f32>> {
            (0..20).map(|row| changed(both, RowPass { seed, epoch, row })).collect()
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        let last = RowPass { seed: 1, epoch: 0, row: 19 };
        assert_eq!(changed(both, last), draw(1, 0)[19], "without the rows before it");
    }

    /// A training must be repeatable by a later release.
    #[test]
    fn draws_match_the_recorded_ones() {
        let both = Augmentation { image: IMAGE, flip: true, crop_padding: 1 };
        let first: Vec<f32> =
            (0..4).map(|row| changed(both, RowPass { seed: 42, epoch: 0, row })[0]).collect();
        assert_eq!(first, RECORDED);
    }

    const RECORDED: [f32; 4] = [0.0, 5.0, 2.0, 2.0];
}
