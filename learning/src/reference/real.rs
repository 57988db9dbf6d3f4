//! The numbers a net computes with, one by one and in registers.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Sub, SubAssign};

use pulp::Simd;

/// The numbers a net computes with.
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

    fn exp(self) -> Self;
    fn to_f64(self) -> f64;

    /// A register of so many numbers as the machine has room for.
    type Register<S: Simd>: Copy;

    /// How many numbers a register has.
    fn lanes<S: Simd>() -> usize;
    /// One number in every lane.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Register<S>;
    /// The whole registers that numbers fill.
    fn registers<S: Simd>(from: &[Self]) -> &[Self::Register<S>];
    /// The same, to write to.
    fn registers_mut<S: Simd>(to: &mut [Self]) -> &mut [Self::Register<S>];
    /// At most as many numbers as there are lanes; zeros behind them.
    fn load_part<S: Simd>(simd: S, from: &[Self]) -> Self::Register<S>;
    /// As many of the lanes as there is room for.
    fn store_part<S: Simd>(simd: S, to: &mut [Self], value: Self::Register<S>);
    /// `sum + a · b` in every lane: the product is rounded, and then the sum, as without registers.
    fn add_product<S: Simd>(
        simd: S,
        sum: Self::Register<S>,
        a: Self::Register<S>,
        b: Self::Register<S>,
    ) -> Self::Register<S>;
    /// `from − a · b` in every lane, rounded likewise.
    fn less_product<S: Simd>(
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
        self.exp()
    }

    fn to_f64(self) -> f64 {
        self.into()
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
    fn less_product<S: Simd>(simd: S, from: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        simd.sub_f32s(from, simd.mul_f32s(a, b))
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;

    fn exp(self) -> Self {
        self.exp()
    }

    fn to_f64(self) -> f64 {
        self
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
    fn less_product<S: Simd>(simd: S, from: S::f64s, a: S::f64s, b: S::f64s) -> S::f64s {
        simd.sub_f64s(from, simd.mul_f64s(a, b))
    }
}
