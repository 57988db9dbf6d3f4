//! The number types of a network, as scalars and in SIMD registers.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub, SubAssign};

use pulp::Simd;

/// The number types of a network.
pub(super) trait Real:
    'static
    + Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    const ZERO: Self;
    const ONE: Self;

    /// The exponential, with the same bits on every machine.
    fn exp(self) -> Self;
    /// The natural logarithm; that of `1 + self`; and `eˣ − 1`.
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn exp_m1(self) -> Self;
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    fn sine(self) -> Self;
    fn cosine(self) -> Self;
    fn power(self, exponent: Self) -> Self;
    fn root(self) -> Self;
    fn magnitude(self) -> Self;
    fn floor(self) -> Self;
    fn to_f64(self) -> f64;
    fn from_f64(value: f64) -> Self;

    /// A register of the widest size on the machine.
    type Register<S: Simd>: Copy;

    /// Number of elements of a register.
    fn lanes<S: Simd>() -> usize;
    /// One value in every lane.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Register<S>;
    /// The slice as whole registers.
    fn registers<S: Simd>(from: &[Self]) -> &[Self::Register<S>];
    /// The slice as whole mutable registers.
    fn registers_mut<S: Simd>(to: &mut [Self]) -> &mut [Self::Register<S>];
    /// Loads at most as many elements as there are lanes, followed by zeros.
    fn load_part<S: Simd>(simd: S, from: &[Self]) -> Self::Register<S>;
    /// Stores the first lanes, as many as `to` has elements.
    fn store_part<S: Simd>(simd: S, to: &mut [Self], value: Self::Register<S>);
    /// `sum + a · b` in every lane; the product is rounded before the sum, as in scalar code.
    fn add_product<S: Simd>(
        simd: S,
        sum: Self::Register<S>,
        a: Self::Register<S>,
        b: Self::Register<S>,
    ) -> Self::Register<S>;
    /// `from − a · b` in every lane, rounded in the same way.
    fn subtract_product<S: Simd>(
        simd: S,
        from: Self::Register<S>,
        a: Self::Register<S>,
        b: Self::Register<S>,
    ) -> Self::Register<S>;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn exp(self) -> Self {
        libm::expf(self)
    }

    fn ln(self) -> Self {
        libm::logf(self)
    }

    fn ln_1p(self) -> Self {
        libm::log1pf(self)
    }

    fn exp_m1(self) -> Self {
        libm::expm1f(self)
    }

    fn tanh(self) -> Self {
        libm::tanhf(self)
    }

    fn erf(self) -> Self {
        libm::erff(self)
    }

    fn sine(self) -> Self {
        libm::sinf(self)
    }

    fn cosine(self) -> Self {
        libm::cosf(self)
    }

    fn root(self) -> Self {
        libm::sqrtf(self)
    }

    fn magnitude(self) -> Self {
        libm::fabsf(self)
    }

    fn floor(self) -> Self {
        libm::floorf(self)
    }

    fn power(self, exponent: Self) -> Self {
        libm::powf(self, exponent)
    }

    fn to_f64(self) -> f64 {
        self.into()
    }

    fn from_f64(value: f64) -> Self {
        value as Self
    }

    type Register<S: Simd> = S::f32s;

    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F32_LANES
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: Self) -> S::f32s {
        simd.splat_f32s(value)
    }

    #[inline(always)]
    fn registers<S: Simd>(from: &[Self]) -> &[S::f32s] {
        S::as_simd_f32s(from).0
    }

    #[inline(always)]
    fn registers_mut<S: Simd>(to: &mut [Self]) -> &mut [S::f32s] {
        S::as_mut_simd_f32s(to).0
    }

    #[inline(always)]
    fn load_part<S: Simd>(simd: S, from: &[Self]) -> S::f32s {
        simd.partial_load_f32s(from)
    }

    #[inline(always)]
    fn store_part<S: Simd>(simd: S, to: &mut [Self], value: S::f32s) {
        simd.partial_store_f32s(to, value);
    }

    #[inline(always)]
    fn add_product<S: Simd>(simd: S, sum: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.add_f32s(sum, simd.mul_f32s(a, b))
    }

    #[inline(always)]
    fn subtract_product<S: Simd>(simd: S, from: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.sub_f32s(from, simd.mul_f32s(a, b))
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn exp(self) -> Self {
        libm::exp(self)
    }

    fn ln(self) -> Self {
        libm::log(self)
    }

    fn ln_1p(self) -> Self {
        libm::log1p(self)
    }

    fn exp_m1(self) -> Self {
        libm::expm1(self)
    }

    fn tanh(self) -> Self {
        libm::tanh(self)
    }

    fn erf(self) -> Self {
        libm::erf(self)
    }

    fn sine(self) -> Self {
        libm::sin(self)
    }

    fn cosine(self) -> Self {
        libm::cos(self)
    }

    fn root(self) -> Self {
        libm::sqrt(self)
    }

    fn magnitude(self) -> Self {
        libm::fabs(self)
    }

    fn floor(self) -> Self {
        libm::floor(self)
    }

    fn power(self, exponent: Self) -> Self {
        libm::pow(self, exponent)
    }

    fn to_f64(self) -> f64 {
        self
    }

    fn from_f64(value: f64) -> Self {
        value
    }

    type Register<S: Simd> = S::f64s;

    #[inline(always)]
    fn lanes<S: Simd>() -> usize {
        S::F64_LANES
    }

    #[inline(always)]
    fn splat<S: Simd>(simd: S, value: Self) -> S::f64s {
        simd.splat_f64s(value)
    }

    #[inline(always)]
    fn registers<S: Simd>(from: &[Self]) -> &[S::f64s] {
        S::as_simd_f64s(from).0
    }

    #[inline(always)]
    fn registers_mut<S: Simd>(to: &mut [Self]) -> &mut [S::f64s] {
        S::as_mut_simd_f64s(to).0
    }

    #[inline(always)]
    fn load_part<S: Simd>(simd: S, from: &[Self]) -> S::f64s {
        simd.partial_load_f64s(from)
    }

    #[inline(always)]
    fn store_part<S: Simd>(simd: S, to: &mut [Self], value: S::f64s) {
        simd.partial_store_f64s(to, value);
    }

    #[inline(always)]
    fn add_product<S: Simd>(simd: S, sum: S::f64s, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.add_f64s(sum, simd.mul_f64s(a, b))
    }

    #[inline(always)]
    fn subtract_product<S: Simd>(simd: S, from: S::f64s, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.sub_f64s(from, simd.mul_f64s(a, b))
    }
}
