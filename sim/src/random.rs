//! Reproducible random streams: every purpose has its own stream, so that extra draws for one
//! purpose do not shift another.

pub use florin_random::uniform;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// The random generator of `seed` for one purpose. `at` selects a sub-stream, for example a member
/// and a round.
#[must_use]
pub fn stream(seed: u64, purpose: &str, at: [u64; 2]) -> ChaCha8Rng {
    let mut hasher = stream_preimage(purpose);
    for number in [seed, at[0], at[1]] {
        hasher.extend_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(florin_protocol::blob_digest(&hasher).0)
}

fn stream_preimage(purpose: &str) -> Vec<u8> {
    let mut bytes = b"florin sim stream ".to_vec();
    bytes.extend_from_slice(purpose.as_bytes());
    bytes.push(0);
    bytes
}

/// A uniform integer below `bound`, which must not be zero. The bias is at most 2⁻⁶⁴.
pub fn uniform_below(rng: &mut impl Rng, bound: u64) -> u64 {
    debug_assert!(bound > 0, "the bound must not be zero");
    let product = u128::from(rng.next_u64()) * u128::from(bound);
    (product >> 64) as u64
}

/// Shuffles `items` uniformly (Fisher and Yates).
pub fn shuffle<T>(rng: &mut impl Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, uniform_below(rng, last as u64 + 1) as usize);
    }
}

/// A standard normal number (G. E. P. Box and M. E. Muller, 1958).
pub fn normal(rng: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - uniform(rng)).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(rng)).cos()
}

/// A draw from a symmetric Dirichlet distribution with `parts` components, which sum to one.
pub fn dirichlet(rng: &mut impl Rng, alpha: f64, parts: usize) -> Vec<f64> {
    let mut shares: Vec<f64> = (0..parts).map(|_| gamma(rng, alpha)).collect();
    let sum: f64 = shares.iter().sum();
    if sum > 0.0 {
        shares.iter_mut().for_each(|share| *share /= sum);
    } else {
        // All components underflowed, as for a tiny alpha: one component gets everything.
        let at = uniform_below(rng, parts.max(1) as u64) as usize;
        shares.iter_mut().enumerate().for_each(|(i, share)| *share = f64::from(u8::from(i == at)));
    }
    shares
}

/// A gamma distributed number with scale 1 (G. Marsaglia and W. W. Tsang, 2000).
fn gamma(rng: &mut impl Rng, shape: f64) -> f64 {
    if shape < 1.0 {
        let boost = (1.0 - uniform(rng)).powf(1.0 / shape);
        return gamma(rng, shape + 1.0) * boost;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(rng);
        let v = (1.0 + c * x).powi(3);
        if v > 0.0 && (1.0 - uniform(rng)).ln() < 0.5 * x * x + d - d * v + d * v.ln() {
            return d * v;
        }
    }
}

/// A random direction: a vector with `dimensions` components and Euclidean norm `length`.
pub fn random_direction(rng: &mut impl Rng, dimensions: usize, length: f64) -> Vec<f32> {
    let mut out: Vec<f64> = (0..dimensions).map(|_| normal(rng)).collect();
    let norm = out.iter().map(|x| x * x).sum::<f64>().sqrt().max(f64::MIN_POSITIVE);
    out.iter_mut().for_each(|x| *x *= length / norm);
    out.into_iter().map(|x| x as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_independent() {
        let first = |seed, purpose, at| stream(seed, purpose, at).next_u64();
        assert_eq!(first(1, "a", [0, 0]), first(1, "a", [0, 0]));
        let all = [
            first(1, "a", [0, 0]),
            first(2, "a", [0, 0]),
            first(1, "b", [0, 0]),
            first(1, "a", [1, 0]),
            first(1, "a", [0, 1]),
        ];
        let different: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn sample_moments_match_the_distributions() {
        let rng = &mut stream(3, "test", [0, 0]);
        let n = 20_000;
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        let normals: Vec<f64> = (0..n).map(|_| normal(rng)).collect();
        assert!(mean(&normals).abs() < 0.03);
        let squares: Vec<f64> = normals.iter().map(|x| x * x).collect();
        assert!((mean(&squares) - 1.0).abs() < 0.05);
        for shape in [0.3, 1.0, 4.0] {
            let gammas: Vec<f64> = (0..n).map(|_| gamma(rng, shape)).collect();
            assert!((mean(&gammas) - shape).abs() < 0.06 * (1.0 + shape), "{shape}");
        }
        for alpha in [0.01, 0.5, 10.0] {
            let shares = dirichlet(rng, alpha, 7);
            assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        }
        let counts = (0..30_000).fold([0u32; 3], |mut counts, _| {
            counts[uniform_below(rng, 3) as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|n| (9_700..10_300).contains(n)), "{counts:?}");
    }
}
