//! Student's distribution, for any number of degrees of freedom.
//!
//! The tail is a regularised incomplete beta function, by its continued fraction. Source: Abramowitz and Stegun,
//! "Handbook of Mathematical Functions", formulas 26.5.27 and 26.5.8.

/// The largest number of terms of the continued fraction. A few dozen are enough for all uses.
const MAX_TERMS: u32 = 500;

/// Returns the probability that the absolute value of a number of Student's distribution exceeds `t`, for `t >= 0`.
#[must_use]
pub(crate) fn two_sided_tail(t: f64, freedom: f64) -> f64 {
    incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
}

/// Returns the `t >= 0` that the absolute value exceeds with this probability, which is above 0 and below 1.
#[must_use]
pub(crate) fn two_sided_quantile(probability: f64, freedom: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while two_sided_tail(high, freedom) > probability && high < 1e300 {
        (low, high) = (high, high * 2.0);
    }
    // Each step halves the interval, until it is as small as the precision of its ends.
    for _ in 0..70 {
        let middle = f64::midpoint(low, high);
        if two_sided_tail(middle, freedom) > probability { low = middle } else { high = middle }
    }
    f64::midpoint(low, high)
}

/// Returns the regularised incomplete beta function `I_x(a, b)`.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    if x >= 1.0 {
        return 1.0;
    }
    let scale = libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * libm::log(x) + b * libm::log1p(-x);
    // The fraction converges quickly below the mean, and the function is symmetric.
    if x < (a + 1.0) / (a + b + 2.0) {
        libm::exp(scale) * beta_fraction(a, b, x) / a
    } else {
        1.0 - libm::exp(scale) * beta_fraction(b, a, 1.0 - x) / b
    }
}

/// Evaluates the continued fraction by Lentz's method.
#[expect(clippy::many_single_char_names, reason = "the names of the formula")]
fn beta_fraction(a: f64, b: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let nonzero = |value: f64| if value.abs() < TINY { TINY } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for term in 1..=MAX_TERMS {
        let m = f64::from(term);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / nonzero(1.0 + even * d);
        c = nonzero(1.0 + even / c);
        fraction *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / nonzero(1.0 + odd * d);
        c = nonzero(1.0 + odd / c);
        fraction *= d * c;
        if (d * c - 1.0).abs() < 1e-15 {
            break;
        }
    }
    fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (probability, freedom, expected) in [
            (0.02, 1.0, 31.820_516),
            (0.02, 2.0, 6.964_557),
            (0.05, 9.0, 2.262_157),
            (0.01, 19.0, 2.860_935),
            (0.001, 4.0, 8.610_302),
            (0.05, 1e6, 1.959_966),
        ] {
            let quantile = two_sided_quantile(probability, freedom);
            assert!((quantile - expected).abs() < 1e-5, "{probability} {freedom}: {quantile}");
        }
    }

    #[test]
    fn a_quantile_has_its_probability_for_tiny_probabilities_and_few_degrees_of_freedom() {
        for freedom in [1.0, 2.0, 3.0, 17.0, 200.0] {
            for probability in [0.9, 0.1, 1e-3, 1e-6, 1e-9] {
                let tail = two_sided_tail(two_sided_quantile(probability, freedom), freedom);
                assert!((tail / probability - 1.0).abs() < 1e-6, "{freedom} {probability}: {tail}");
            }
        }
    }

    #[test]
    fn with_one_degree_of_freedom_the_tail_is_that_of_cauchy() {
        for t in [0.0_f64, 0.5, 3.0, 100.0] {
            let exact = 1.0 - 2.0 / std::f64::consts::PI * t.atan();
            assert!((two_sided_tail(t, 1.0) - exact).abs() < 1e-12, "{t}");
        }
    }
}
