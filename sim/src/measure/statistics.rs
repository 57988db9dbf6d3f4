//! Statistics: confidence intervals, ratios of means, Gini coefficient, AUROC and rank correlation.

use serde::{Deserialize, Serialize};

/// A quantile of Student's t distribution, by degrees of freedom.
struct StudentQuantile {
    /// For 1 to 30 degrees of freedom.
    exact: [f64; 30],
    /// For more: the normal quantile, and the first term of its expansion.
    normal: f64,
    expansion: f64,
}

/// 97.5 %: the bounds of a two-sided interval of 95 %.
const TWO_SIDED: StudentQuantile = StudentQuantile {
    exact: [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ],
    normal: 1.960,
    expansion: 2.372,
};

/// 95 %: a bound on one side.
const ONE_SIDED: StudentQuantile = StudentQuantile {
    exact: [
        6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771,
        1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706,
        1.703, 1.701, 1.699, 1.697,
    ],
    normal: 1.645,
    expansion: 1.524,
};

impl StudentQuantile {
    /// The quantile with `freedom` degrees of freedom, which must be at least one.
    fn of(&self, freedom: usize) -> f64 {
        let exact = self.exact.get(freedom.saturating_sub(1)).copied();
        exact.unwrap_or(self.normal + self.expansion / freedom as f64)
    }
}

/// A mean with its 95 % confidence interval over independent seeds, from Student's t distribution.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "IntervalJson", from = "IntervalJson")]
pub struct ConfidenceInterval {
    /// The mean.
    pub mean: f64,
    /// Bounds of the interval; `None` for a single seed, which gives no estimate of the variance.
    pub bounds: Option<ConfidenceBounds>,
    /// Number of seeds.
    pub count: usize,
}

/// Bounds of a confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConfidenceBounds {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// JSON form of an [`ConfidenceInterval`]: without an interval both bounds are null.
#[derive(Serialize, Deserialize)]
struct IntervalJson {
    mean: f64,
    low: Option<f64>,
    high: Option<f64>,
    count: usize,
}

impl From<ConfidenceInterval> for IntervalJson {
    fn from(interval: ConfidenceInterval) -> Self {
        let ConfidenceInterval { mean, count, .. } = interval;
        Self { mean, low: interval.low(), high: interval.high(), count }
    }
}

impl From<IntervalJson> for ConfidenceInterval {
    fn from(json: IntervalJson) -> Self {
        let IntervalJson { mean, low, high, count } = json;
        let ends =
            low.zip(high).filter(|_| count > 1).map(|(low, high)| ConfidenceBounds { low, high });
        Self { mean, bounds: ends, count }
    }
}

impl ConfidenceInterval {
    /// The lower bound, if there is an interval.
    #[must_use]
    pub fn low(&self) -> Option<f64> {
        self.bounds.map(|ends| ends.low)
    }

    /// The upper bound, if there is an interval.
    #[must_use]
    pub fn high(&self) -> Option<f64> {
        self.bounds.map(|ends| ends.high)
    }

    /// The interval of the values multiplied by `factor`.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Self {
        let scale = |ends: ConfidenceBounds| {
            let (a, b) = (ends.low * factor, ends.high * factor);
            ConfidenceBounds { low: a.min(b), high: a.max(b) }
        };
        Self { mean: self.mean * factor, bounds: self.bounds.map(scale), count: self.count }
    }

    /// The same with the bounds inside `range`; the mean stays as it is.
    #[must_use]
    pub fn within(&self, range: (f64, f64)) -> Self {
        let (low, high) = range;
        let cut = |bounds: ConfidenceBounds| ConfidenceBounds {
            low: bounds.low.clamp(low, high),
            high: bounds.high.clamp(low, high),
        };
        Self { bounds: self.bounds.map(cut), ..*self }
    }

    /// Whether both have an interval and the two intervals are disjoint.
    #[must_use]
    pub fn is_disjoint_from(&self, other: &Self) -> bool {
        let both = self.bounds.zip(other.bounds);
        both.is_some_and(|(own, other)| own.high < other.low || other.high < own.low)
    }
}

/// Mean and 95 % confidence interval of `values`.
#[must_use]
pub fn confidence_interval(values: &[f64]) -> ConfidenceInterval {
    let (mean, error) = mean_and_error(values);
    let bounds = error.map(|error| {
        let half = TWO_SIDED.of(values.len() - 1) * error;
        ConfidenceBounds { low: mean - half, high: mean + half }
    });
    ConfidenceInterval { mean, bounds, count: values.len() }
}

/// The upper bound of 95 % of the mean of `values`, on one side; `None` for fewer than two.
#[must_use]
pub fn upper_bound(values: &[f64]) -> Option<f64> {
    let (mean, error) = mean_and_error(values);
    error.map(|error| mean + ONE_SIDED.of(values.len() - 1) * error)
}

/// The mean of `values` and its standard error, which fewer than two do not have.
#[must_use]
pub fn mean_and_error(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n.max(1.0);
    if values.len() < 2 {
        return (mean, None);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, Some((variance / n).sqrt()))
}

/// The ratio of the means of paired values with its 95 % confidence interval (E. C. Fieller, 1954).
/// `None` if the mean of the denominators is not significantly positive, because the interval is
/// then unbounded.
#[must_use]
pub fn ratio(above: &[f64], below: &[f64]) -> Option<ConfidenceInterval> {
    let count = above.len().min(below.len());
    let n = count as f64;
    let mean = |values: &[f64]| values.iter().take(count).sum::<f64>() / n;
    if count == 0 || mean(below) <= 0.0 {
        return None;
    }
    let (y, x) = (mean(above), mean(below));
    let r = y / x;
    if count == 1 {
        return Some(ConfidenceInterval { mean: r, bounds: None, count });
    }
    let products = |a: &[f64], b: &[f64], ma: f64, mb: f64| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - ma) * (b - mb)).sum::<f64>() / (n - 1.0) / n
    };
    let (yy, xx, xy) =
        (products(above, above, y, y), products(below, below, x, x), products(below, above, x, y));
    let t = TWO_SIDED.of(count - 1);
    // The ratios r that a t-test of y − r·x does not reject lie between the roots of a quadratic
    // equation.
    let a = x * x - t * t * xx;
    let b = x * y - t * t * xy;
    let c = y * y - t * t * yy;
    if a <= 0.0 {
        return None;
    }
    let root = (b * b - a * c).max(0.0).sqrt();
    let ends = ConfidenceBounds { low: (b - root) / a, high: (b + root) / a };
    Some(ConfidenceInterval { mean: r, bounds: Some(ends), count })
}

/// The Gini coefficient of non-negative amounts (C. Gini, 1912); 0 if all amounts are zero.
#[must_use]
pub fn gini(amounts: &[f64]) -> f64 {
    let mut sorted = amounts.to_vec();
    sorted.sort_by(f64::total_cmp);
    let sum: f64 = sorted.iter().sum();
    if sum <= 0.0 {
        return 0.0;
    }
    let n = sorted.len() as f64;
    let weighted: f64 = sorted.iter().zip(1..).map(|(amount, at)| f64::from(at) * amount).sum();
    2.0 * weighted / (n * sum) - (n + 1.0) / n
}

/// The area under the ROC curve: the probability that a value drawn from `low` is below a value
/// drawn from `high`, with ties counted as one half (H. B. Mann and D. R. Whitney, 1947). `None` if
/// one of the two is empty.
#[must_use]
pub fn auroc(high: &[f64], low: &[f64]) -> Option<f64> {
    if high.is_empty() || low.is_empty() {
        return None;
    }
    // Ranks represent halves exactly, so the rank formula gives the same result as comparing all
    // pairs.
    let all: Vec<f64> = high.iter().chain(low).copied().collect();
    let places: f64 = ranks(&all).iter().take(high.len()).sum();
    let (h, l) = (high.len() as f64, low.len() as f64);
    Some((places - h * (h - 1.0) / 2.0) / (h * l))
}

/// Spearman's rank correlation; tied values share their mean rank. `None` if all values of one side
/// are equal.
#[must_use]
pub fn spearman(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let product = |x: &[f64], y: &[f64], mx: f64, my: f64| -> f64 {
        x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum()
    };
    let lengths = product(&a, &a, mean_a, mean_a) * product(&b, &b, mean_b, mean_b);
    (lengths > 0.0).then(|| product(&a, &b, mean_a, mean_b) / lengths.sqrt())
}

/// The rank of each value, from 0; tied values share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut places = vec![0.0; values.len()];
    for tied in order.chunk_by(|a, b| values[*a] == values[*b]).scan(0, |from, tied| {
        *from += tied.len();
        Some((*from - tied.len(), tied))
    }) {
        let (from, members) = tied;
        let place = from as f64 + (members.len() as f64 - 1.0) / 2.0;
        members.iter().for_each(|member| places[*member] = place);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-9, "{a} is not {b}");
    }

    fn covers(interval: &ConfidenceInterval, truth: f64) -> bool {
        interval.bounds.is_some_and(|ends| ends.low <= truth && truth <= ends.high)
    }

    #[test]
    fn a_negative_factor_swaps_the_bounds_of_an_interval() {
        let bounds = Some(ConfidenceBounds { low: -1.0, high: 5.0 });
        let interval = ConfidenceInterval { mean: 2.0, bounds, count: 3 };
        let swapped = Some(ConfidenceBounds { low: -10.0, high: 2.0 });
        let expected = ConfidenceInterval { mean: -4.0, bounds: swapped, count: 3 };
        assert_eq!(interval.scaled(-2.0), expected);
        assert_eq!(ConfidenceInterval { bounds: None, ..interval }.scaled(0.5).bounds, None);
    }

    #[test]
    fn one_seed_has_a_mean_without_interval_and_differs_significantly_from_nothing() {
        let (one, two) = (confidence_interval(&[7.0]), confidence_interval(&[1.0, 1.0]));
        near(one.mean, 7.0);
        assert_eq!((one.bounds, one.low(), one.high()), (None, None, None));
        assert_eq!(
            ratio(&[3.0], &[2.0]).unwrap(),
            ConfidenceInterval { mean: 1.5, bounds: None, count: 1 }
        );
        assert!(!one.is_disjoint_from(&two) && !two.is_disjoint_from(&one));
        assert!(two.is_disjoint_from(&confidence_interval(&[7.0, 7.0])));
        let json = serde_json::to_value(one).unwrap();
        assert_eq!(json, serde_json::json!({"mean": 7.0, "low": null, "high": null, "count": 1}));
        assert_eq!(serde_json::from_value::<ConfidenceInterval>(json).unwrap(), one);
        // As earlier versions wrote it: a degenerate interval, which counts as no interval.
        let point = serde_json::json!({"mean": 7.0, "low": 7.0, "high": 7.0, "count": 1});
        assert_eq!(serde_json::from_value::<ConfidenceInterval>(point).unwrap(), one);
        assert_eq!(
            serde_json::from_value::<ConfidenceInterval>(serde_json::json!(two)).unwrap(),
            two
        );
    }

    #[test]
    fn an_upper_bound_is_wider_with_fewer_values() {
        // The standard error of 1 and 3 is 1, that of eight times the same is 1 / √15.
        near(upper_bound(&[1.0, 3.0]).unwrap(), 2.0 + 6.314);
        near(upper_bound(&[1.0, 3.0].repeat(8)).unwrap(), 2.0 + 1.753 / 15_f64.sqrt());
        let many = upper_bound(&[1.0, 3.0].repeat(20)).unwrap();
        near(many, 2.0 + (1.645 + 1.524 / 39.0) / 39_f64.sqrt());
        assert_eq!(upper_bound(&[1.0]), None);
    }

    #[test]
    fn statistics_match_values_computed_by_hand() {
        let five = confidence_interval(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        near(five.mean, 3.0);
        near(five.high().unwrap() - five.mean, 2.776 * (2.5f64 / 5.0).sqrt());
        near(gini(&[1.0, 1.0, 1.0]), 0.0);
        near(gini(&[0.0, 0.0, 0.0, 1.0]), 0.75);
        near(gini(&[0.0]), 0.0);
        near(auroc(&[2.0, 3.0], &[1.0, 2.0]).unwrap(), 0.875);
        assert_eq!(auroc(&[], &[1.0]), None);
        near(spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 15.0]).unwrap(), 0.5);
        near(spearman(&[1.0, 2.0], &[2.0, 1.0]).unwrap(), -1.0);
        assert_eq!(spearman(&[1.0, 1.0], &[2.0, 1.0]), None);
    }

    #[test]
    fn a_ratio_divides_means_and_is_none_for_an_insignificant_denominator() {
        // Nine seeds have a ratio of 1 and the tenth of 100: the mean of the ratios is 10.9.
        let (mut above, mut below) = ([10.0; 10], [10.0; 10]);
        (above[9], below[9]) = (1.0, 0.01);
        near(ratio(&above, &below).unwrap().mean, 91.0 / 90.01);
        assert_eq!(ratio(&[1.0, 1.0], &[1.0, -3.0]), None, "negative");
        assert_eq!(ratio(&[1.0, 1.0], &[2.0, -1.0]), None, "positive, but not significant");
        assert_eq!(ratio(&[], &[]), None);
        // The denominators determine the numerators almost exactly (ratio 2), so the interval is
        // narrow.
        let exact = ratio(&[10.0, 11.0, 12.0], &[5.0, 5.5, 6.0]).unwrap();
        let ends = exact.bounds.unwrap();
        assert!((ends.high - ends.low).abs() < 1e-5, "{exact:?}");
    }

    #[test]
    fn ratio_intervals_have_nominal_coverage() {
        let rng = &mut crate::random::stream(12, "coverage of ratios", [0, 0]);
        let covered = (0..2_000).filter(|_| {
            let below: Vec<f64> = (0..8).map(|_| 5.0 + crate::random::normal(rng)).collect();
            let above: Vec<f64> =
                below.iter().map(|x| 2.0 * x + crate::random::normal(rng)).collect();
            ratio(&above, &below).is_some_and(|i| covers(&i, 2.0))
        });
        let covered = covered.count();
        assert!((1_860..1_940).contains(&covered), "{covered} of 2,000");
    }

    #[test]
    fn confidence_intervals_have_nominal_coverage() {
        let rng = &mut crate::random::stream(11, "coverage", [0, 0]);
        let covered = (0..2_000).filter(|_| {
            let values: Vec<f64> = (0..8).map(|_| crate::random::normal(rng)).collect();
            covers(&confidence_interval(&values), 0.0)
        });
        let covered = covered.count();
        assert!((1_860..1_940).contains(&covered), "{covered} of 2,000");
    }
}
