//! The number types of a network, as scalars and in SIMD registers.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub, SubAssign};

use pulp::Simd;

/// The number types of a network.
pub(super) trait Real:
    Copy
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
