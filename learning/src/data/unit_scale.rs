//! Whether features are near unit scale, which training by gradient descent needs.

use super::Dataset;

/// Largest distance of a feature's mean from 0.
pub const FEATURE_MEAN_MAX: f64 = 10.0;
/// Largest standard deviation of a feature.
pub const FEATURE_SD_MAX: f64 = 10.0;
/// Least standard deviation of the feature that varies most.
pub const FEATURE_SD_MIN: f64 = 0.001;

/// A feature that is far from unit scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct UnscaledFeature {
    /// Feature, counted from 0.
    pub feature: usize,
    /// Its mean.
    pub mean: f64,
    /// Its standard deviation.
    pub sd: f64,
}

/// The feature that is farthest from unit scale; `None` if all are near it, or without rows.
pub fn unscaled_feature(data: &Dataset) -> Option<UnscaledFeature> {
    let (rows, width) = (data.rows(), data.width());
    if rows == 0 {
        return None;
    }
    let mut sums = vec![0.0_f64; width];
    let add = |sums: &mut Vec<f64>, value: &dyn Fn(usize, f64) -> f64| {
        for row in 0..rows {
            for (feature, x) in data.row(row).iter().enumerate() {
                sums[feature] += value(feature, f64::from(*x));
            }
        }
    };
    add(&mut sums, &|_, x| x);
    let means: Vec<f64> = sums.iter().map(|sum| sum / rows as f64).collect();
    let mut squares = vec![0.0; width];
    add(&mut squares, &|feature, x| (x - means[feature]) * (x - means[feature]));
    let all = means.iter().zip(&squares).enumerate().map(|(feature, (mean, squares))| {
        UnscaledFeature { feature, mean: *mean, sd: (squares / rows as f64).sqrt() }
    });
    let size = |f: &UnscaledFeature| (f.mean.abs() / FEATURE_MEAN_MAX).max(f.sd / FEATURE_SD_MAX);
    let largest = all.clone().max_by(|a, b| size(a).total_cmp(&size(b)))?;
    if size(&largest) > 1.0 {
        return Some(largest);
    }
    let widest = all.max_by(|a, b| a.sd.total_cmp(&b.sd))?;
    (widest.sd < FEATURE_SD_MIN && rows > 1).then_some(widest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(columns: [[f32; 4]; 2]) -> Dataset {
        let features = (0..4).flat_map(|row| [columns[0][row], columns[1][row]]).collect();
        Dataset::new(features, vec![0; 4], 2, 2).unwrap()
    }

    #[test]
    fn a_feature_far_from_unit_scale_is_found() {
        let near = [0.0, 1.0, -1.0, 5.0];
        assert_eq!(unscaled_feature(&data([near, [9.0, 9.5, 10.0, 10.5]])), None);
        let found = unscaled_feature(&data([near, [10.0, 10.0, 10.5, 10.5]])).unwrap();
        assert_eq!((found.feature, found.mean, found.sd), (1, 10.25, 0.25));
        let found = unscaled_feature(&data([[-21.0, 21.0, -21.0, 21.0], near])).unwrap();
        assert_eq!((found.feature, found.mean, found.sd), (0, 0.0, 21.0));
        let tiny = [0.0, 0.0001, 0.0, 0.0001];
        assert_eq!(unscaled_feature(&data([tiny, [0.0; 4]])).map(|f| f.feature), Some(0));
    }
}
