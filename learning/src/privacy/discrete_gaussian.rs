//! The discrete Gaussian distribution, sampled exactly: integer arithmetic on uniform integers, and
//! no number in floating point (Canonne, Kamath, Steinke 2020, algorithms 1 to 3).

use rand_chacha::rand_core::Rng;

use crate::rng::below;

/// An integer y with probability proportional to `exp(−y² / 2·deviation²)`. The deviation is from 1
/// to 2³⁰, so that squares stay within 128 bits.
pub(super) fn discrete_gaussian(rng: &mut impl Rng, deviation: u64) -> i64 {
    let wide = u128::from(deviation);
    loop {
        let proposed = discrete_laplace(rng, deviation);
        let away = u128::from(proposed.unsigned_abs()).abs_diff(wide);
        if happens_exp(rng, Ratio { of: away * away, to: 2 * wide * wide }) {
            return proposed;
        }
    }
}

/// An integer y with probability proportional to `exp(−|y| / scale)`.
fn discrete_laplace(rng: &mut impl Rng, scale: u64) -> i64 {
    loop {
        let rest = below(rng, scale);
        if !happens_exp_below_one(rng, Ratio { of: rest.into(), to: scale.into() }) {
            continue;
        }
        let mut whole = 0_u64;
        while happens_exp_below_one(rng, Ratio::ONE) {
            whole += 1;
        }
        // Each further whole has the probability 1/e: no run of the program sees 2³³ of them.
        let size = (rest + scale * whole) as i64;
        match rng.next_u32() & 1 == 1 {
            false => return size,
            true if size > 0 => return -size,
            // Zero has one sign.
            true => {}
        }
    }
}

/// A rational number that is not negative.
#[derive(Clone, Copy)]
struct Ratio {
    of: u128,
    to: u128,
}

impl Ratio {
    const ONE: Self = Self { of: 1, to: 1 };
}

/// True with probability `exp(−ratio)`.
fn happens_exp(rng: &mut impl Rng, ratio: Ratio) -> bool {
    let Ratio { mut of, to } = ratio;
    while of > to {
        if !happens_exp_below_one(rng, Ratio::ONE) {
            return false;
        }
        of -= to;
    }
    happens_exp_below_one(rng, Ratio { of, to })
}

/// True with probability `exp(−ratio)`, for a ratio of at most one: the number of successes with
/// probabilities ratio/1, ratio/2, … before the first failure is even.
fn happens_exp_below_one(rng: &mut impl Rng, ratio: Ratio) -> bool {
    let mut tries = 1;
    while below_wide(rng, ratio.to * tries) < ratio.of {
        tries += 1;
    }
    tries % 2 == 1
}

/// A uniform integer below `bound`, without bias.
fn below_wide(rng: &mut impl Rng, bound: u128) -> u128 {
    if let Ok(bound) = u64::try_from(bound) {
        return below(rng, bound).into();
    }
    let mask = u128::MAX >> bound.leading_zeros();
    loop {
        let drawn = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())) & mask;
        if drawn < bound {
            return drawn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: [u8; 32] = [7; 32];

    #[test]
    fn small_deviations_have_the_exact_probabilities() {
        const COUNT: u32 = 50_000;
        const SEEDS: u8 = 20;
        for deviation in [1, 2, 5] {
            let limit = 3 * deviation as i64;
            let weight = |y: i64| (-((y * y) as f64) / (2 * deviation * deviation) as f64).exp();
            let total: f64 = (-60..=60).map(weight).sum();
            let chi_square = |seed: u8| {
                let mut rng = florin_random::chacha20_of_secret(&[seed; 32]);
                let mut found = vec![0.0; 2 * limit as usize + 1];
                for _ in 0..COUNT {
                    let drawn = discrete_gaussian(&mut rng, deviation) + limit;
                    if let Some(cell) = usize::try_from(drawn).ok().and_then(|at| found.get_mut(at))
                    {
                        *cell += 1.0;
                    }
                }
                let term = |(y, found): (i64, &f64)| {
                    let expected = f64::from(COUNT) * weight(y) / total;
                    (found - expected).powi(2) / expected
                };
                (-limit..=limit).zip(&found).map(term).sum::<f64>()
            };
            let sum: f64 = (0..SEEDS).map(chi_square).sum();
            // The mean of its distribution, and six standard deviations.
            let freedom = f64::from(SEEDS) * (2 * limit + 1) as f64;
            let most = freedom + 6.0 * (2.0 * freedom).sqrt();
            assert!(sum < most, "seeds 0 to {SEEDS}, deviation {deviation}: {sum} > {most}");
        }
    }

    #[test]
    fn large_deviations_have_the_moments_of_a_gaussian() {
        const COUNT: usize = 40_000;
        for deviation in [1_u64 << 20, 3 << 28, 1_000 << 20] {
            let mut rng = florin_random::chacha20_of_secret(&SEED);
            let unit = deviation as f64;
            let drawn: Vec<f64> =
                (0..COUNT).map(|_| discrete_gaussian(&mut rng, deviation) as f64 / unit).collect();
            let moment =
                |power: i32| drawn.iter().map(|y| y.powi(power)).sum::<f64>() / COUNT as f64;
            assert!(moment(1).abs() < 0.025, "{deviation}: {}", moment(1));
            assert!((moment(2) - 1.0).abs() < 0.04, "{deviation}: {}", moment(2));
            assert!(moment(3).abs() < 0.1, "{deviation}: {}", moment(3));
            assert!((moment(4) - 3.0).abs() < 0.3, "{deviation}: {}", moment(4));
        }
    }

    #[test]
    fn a_wide_bound_is_reached_and_not_exceeded() {
        let mut rng = florin_random::chacha20_of_secret(&SEED);
        let bound = (1_u128 << 64) + (1 << 62);
        let drawn: Vec<u128> = (0..2_000).map(|_| below_wide(&mut rng, bound)).collect();
        assert!(drawn.iter().all(|drawn| *drawn < bound));
        let above = drawn.iter().filter(|drawn| **drawn >= 1 << 64).count();
        assert!((300..500).contains(&above), "a fifth of 2,000: {above}");
    }
}
