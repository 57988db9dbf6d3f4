//! Derivatives of flat arrays in reverse mode: a tape of elementary steps, each in a fixed order of
//! additions (Griewank and Walther 2008, chapter 3).

use std::sync::Arc;

use crate::reference::matrix::{OutputMode, ProductSize, Strided, product};
use crate::reference::real::Real;

/// An array on the tape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Var(usize);

/// No element: the result of [`Tape::take`] is zero there.
pub(super) const NONE: u32 = u32::MAX;

/// Sizes of the products of matrices in two arrays. Product `n` multiplies block `n` of each array,
/// counted again from the first block after the last one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    /// Number of products.
    pub(super) count: usize,
    /// Blocks of the left array, each of `rows` × `depth`.
    pub(super) left: usize,
    /// Blocks of the right array, each of `depth` × `columns`.
    pub(super) right: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    /// Whether blocks of the right array are stored as `columns` × `depth`.
    pub(super) is_transposed: bool,
}

/// The way an array was computed.
enum TapeStep<T> {
    Leaf,
    /// Elements of the source by their index.
    Take {
        source: Var,
        index: Arc<Vec<u32>>,
    },
    /// Arrays one after another.
    Join(Vec<Var>),
    /// A function of the elements at one place; with its derivative by each source.
    Pointwise(Vec<(Var, Vec<T>)>),
    /// A number for each `inner` elements; with its derivative by each of them, if that is not 1.
    Reduce {
        source: Var,
        inner: usize,
        slopes: Option<Vec<T>>,
    },
    /// The sums of the first elements of each `inner` ones.
    RunningSum {
        source: Var,
        inner: usize,
    },
    Product {
        left: Var,
        right: Var,
        blocks: Blocks,
    },
}

struct Entry<T> {
    numbers: Arc<Vec<T>>,
    step: TapeStep<T>,
    /// Whether it depends on a leaf whose derivative is requested.
    is_active: bool,
}

/// Arrays in the order of their computation.
pub(super) struct Tape<T> {
    entries: Vec<Entry<T>>,
}

impl<T: Real> Tape<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new() }
    }

    fn push(&mut self, numbers: Arc<Vec<T>>, step: TapeStep<T>, is_active: bool) -> Var {
        // Without a derivative, the way to a number is not needed.
        let step = if is_active { step } else { TapeStep::Leaf };
        self.entries.push(Entry { numbers, step, is_active });
        Var(self.entries.len() - 1)
    }

    /// An array that is given; `is_active` requests the derivative by it.
    pub(super) fn leaf(&mut self, numbers: Vec<T>, is_active: bool) -> Var {
        self.push(Arc::new(numbers), TapeStep::Leaf, is_active)
    }

    /// The same of numbers that others share.
    pub(super) fn shared(&mut self, numbers: Arc<Vec<T>>, is_active: bool) -> Var {
        self.push(numbers, TapeStep::Leaf, is_active)
    }

    /// The same numbers without derivatives.
    pub(super) fn detach(&mut self, source: Var) -> Var {
        let numbers = self.numbers(source);
        self.push(numbers, TapeStep::Leaf, false)
    }

    pub(super) fn numbers(&self, Var(at): Var) -> Arc<Vec<T>> {
        Arc::clone(&self.entries[at].numbers)
    }

    pub(super) fn is_active(&self, Var(at): Var) -> bool {
        self.entries[at].is_active
    }

    /// The elements of `source` at the indices; zero for [`NONE`].
    pub(super) fn take(&mut self, source: Var, index: Arc<Vec<u32>>) -> Var {
        let from = self.numbers(source);
        let at = |&index: &u32| if index == NONE { T::ZERO } else { from[index as usize] };
        let numbers = Arc::new(index.iter().map(at).collect());
        let is_active = self.is_active(source);
        self.push(numbers, TapeStep::Take { source, index }, is_active)
    }

    /// The arrays one after another.
    pub(super) fn join(&mut self, sources: &[Var]) -> Var {
        let mut numbers = Vec::new();
        for source in sources {
            numbers.extend_from_slice(&self.numbers(*source));
        }
        let is_active = sources.iter().any(|source| self.is_active(*source));
        self.push(Arc::new(numbers), TapeStep::Join(sources.to_vec()), is_active)
    }

    /// `function` of each element: the value and its derivative.
    pub(super) fn map(&mut self, source: Var, mut function: impl FnMut(T) -> (T, T)) -> Var {
        let from = self.numbers(source);
        let is_active = self.is_active(source);
        let mut slopes = Vec::with_capacity(if is_active { from.len() } else { 0 });
        let numbers = from.iter().map(|&x| {
            let (y, slope) = function(x);
            if is_active {
                slopes.push(slope);
            }
            y
        });
        let numbers = Arc::new(numbers.collect());
        self.push(numbers, TapeStep::Pointwise(vec![(source, slopes)]), is_active)
    }

    /// `function` of the elements at one place: the value and the derivative by each.
    pub(super) fn zip(
        &mut self,
        a: Var,
        b: Var,
        mut function: impl FnMut(T, T) -> (T, T, T),
    ) -> Var {
        let (left, right) = (self.numbers(a), self.numbers(b));
        let (a_active, b_active) = (self.is_active(a), self.is_active(b));
        let (mut by_a, mut by_b) = (Vec::new(), Vec::new());
        let numbers = left.iter().zip(right.iter()).map(|(&x, &y)| {
            let (z, slope_a, slope_b) = function(x, y);
            if a_active {
                by_a.push(slope_a);
            }
            if b_active {
                by_b.push(slope_b);
            }
            z
        });
        let numbers = Arc::new(numbers.collect());
        let sources = [(a, by_a, a_active), (b, by_b, b_active)];
        let sources = sources.into_iter().filter(|(_, _, is_active)| *is_active);
        let step = TapeStep::Pointwise(sources.map(|(source, by, _)| (source, by)).collect());
        self.push(numbers, step, a_active || b_active)
    }

    /// A number for each `inner` elements: `function` returns it, and writes the derivative by each
    /// element.
    pub(super) fn reduce(
        &mut self,
        source: Var,
        inner: usize,
        mut function: impl FnMut(&[T], &mut [T]) -> T,
    ) -> Var {
        let from = self.numbers(source);
        let mut slopes = vec![T::ZERO; from.len()];
        let parts = from.chunks_exact(inner.max(1)).zip(slopes.chunks_exact_mut(inner.max(1)));
        let numbers = Arc::new(parts.map(|(from, slopes)| function(from, slopes)).collect());
        let is_active = self.is_active(source);
        self.push(numbers, TapeStep::Reduce { source, inner, slopes: Some(slopes) }, is_active)
    }

    /// The sum of each `inner` elements, in order.
    pub(super) fn sum(&mut self, source: Var, inner: usize) -> Var {
        let from = self.numbers(source);
        let sum = |part: &[T]| part.iter().fold(T::ZERO, |sum, &x| sum + x);
        let numbers = Arc::new(from.chunks_exact(inner.max(1)).map(sum).collect());
        let is_active = self.is_active(source);
        self.push(numbers, TapeStep::Reduce { source, inner, slopes: None }, is_active)
    }

    /// The sums of the first elements of each `inner` ones.
    pub(super) fn running_sum(&mut self, source: Var, inner: usize) -> Var {
        let mut numbers = self.numbers(source).to_vec();
        for part in numbers.chunks_exact_mut(inner.max(1)) {
            for at in 1..part.len() {
                part[at] = part[at - 1] + part[at];
            }
        }
        let is_active = self.is_active(source);
        self.push(Arc::new(numbers), TapeStep::RunningSum { source, inner }, is_active)
    }

    /// Products of matrices, one after another.
    pub(super) fn product(&mut self, left: Var, right: Var, blocks: Blocks) -> Var {
        let (a, b) = (self.numbers(left), self.numbers(right));
        let Blocks { rows, columns, depth, is_transposed, .. } = blocks;
        let b = if is_transposed { Arc::new(transpose(&b, columns, depth)) } else { b };
        let mut numbers = vec![T::ZERO; blocks.count * rows * columns];
        for (at, c) in numbers.chunks_exact_mut((rows * columns).max(1)).enumerate() {
            let a = Strided::rows(blocks.left_of(&a, at), depth);
            let size = ProductSize { rows, columns, depth };
            product(size, a, blocks.right_of(&b, at), OutputMode::Accumulate, c);
        }
        let is_active = self.is_active(left) || self.is_active(right);
        self.push(Arc::new(numbers), TapeStep::Product { left, right, blocks }, is_active)
    }

    /// The derivatives of the inner product of `output` and `pull` by each of `wanted`; `None` for an
    /// array that it does not depend on.
    pub(super) fn gradients(
        &self,
        output: Var,
        pull: Vec<T>,
        wanted: &[Var],
    ) -> Vec<Option<Vec<T>>> {
        let mut pulls = Pulls(self.entries.iter().map(|_| None).collect());
        if self.is_active(output) {
            pulls.0[output.0] = Some(pull);
        }
        for (at, entry) in self.entries.iter().enumerate().take(output.0 + 1).rev() {
            if matches!(entry.step, TapeStep::Leaf) {
                continue;
            }
            if let Some(pull) = pulls.0[at].take() {
                self.pull_back(&entry.step, &pull, &mut pulls);
            }
        }
        wanted.iter().map(|Var(at)| pulls.0[*at].clone()).collect()
    }

    fn pull_back(&self, step: &TapeStep<T>, pull: &[T], pulls: &mut Pulls<T>) {
        let length = |Var(at): Var| self.entries[at].numbers.len();
        match step {
            TapeStep::Leaf => {}
            TapeStep::Take { source, index } => {
                let sums = pulls.of(*source, length(*source));
                for (&index, &pull) in index.iter().zip(pull).filter(|(at, _)| **at != NONE) {
                    sums[index as usize] += pull;
                }
            }
            TapeStep::Join(sources) => {
                let mut from = 0;
                for source in sources {
                    let own = &pull[from..from + length(*source)];
                    from += own.len();
                    if self.is_active(*source) {
                        pulls.add(*source, own.iter().copied());
                    }
                }
            }
            TapeStep::Pointwise(sources) => {
                for (source, slopes) in sources {
                    pulls.add(*source, pull.iter().zip(slopes).map(|(&pull, &slope)| pull * slope));
                }
            }
            TapeStep::Reduce { source, inner, slopes: None } => {
                let spread = pull.iter().flat_map(|&pull| std::iter::repeat_n(pull, *inner));
                pulls.add(*source, spread);
            }
            TapeStep::Reduce { source, inner, slopes: Some(slopes) } => {
                let spread = pull.iter().flat_map(|&pull| std::iter::repeat_n(pull, *inner));
                pulls.add(*source, spread.zip(slopes).map(|(pull, &slope)| pull * slope));
            }
            TapeStep::RunningSum { source, inner } => {
                let mut sums = pull.to_vec();
                for part in sums.chunks_exact_mut((*inner).max(1)) {
                    for at in (1..part.len()).rev() {
                        part[at - 1] += part[at];
                    }
                }
                pulls.add(*source, sums.into_iter());
            }
            TapeStep::Product { left, right, blocks } => {
                self.pull_product(*left, *right, *blocks, pull, pulls);
            }
        }
    }

    fn pull_product(
        &self,
        left: Var,
        right: Var,
        blocks: Blocks,
        pull: &[T],
        pulls: &mut Pulls<T>,
    ) {
        let Blocks { rows, columns, depth, is_transposed, .. } = blocks;
        let (a, b) = (self.numbers(left), self.numbers(right));
        let parts = || pull.chunks_exact((rows * columns).max(1)).enumerate();
        let onto = OutputMode::Accumulate;
        if self.is_active(left) {
            let b = if is_transposed {
                Arc::clone(&b)
            } else {
                Arc::new(transpose(&b, depth, columns))
            };
            let size = ProductSize { rows, columns: depth, depth: columns };
            let sums = pulls.of(left, a.len());
            for (at, pull) in parts() {
                let from = at % blocks.left * rows * depth;
                let own = &mut sums[from..from + rows * depth];
                product(size, Strided::rows(pull, columns), blocks.right_of(&b, at), onto, own);
            }
        }
        if self.is_active(right) {
            let sums = pulls.of(right, b.len());
            for (at, pull) in parts() {
                let from = at % blocks.right * depth * columns;
                let own = &mut sums[from..from + depth * columns];
                let a = blocks.left_of(&a, at);
                if is_transposed {
                    let size = ProductSize { rows: columns, columns: depth, depth: rows };
                    product(size, Strided::transposed(pull, columns), a, onto, own);
                } else {
                    let size = ProductSize { rows: depth, columns, depth: rows };
                    product(size, Strided::transposed(a, depth), pull, onto, own);
                }
            }
        }
    }
}

impl Blocks {
    fn left_of<'a, T>(&self, all: &'a [T], at: usize) -> &'a [T] {
        let size = self.rows * self.depth;
        &all[at % self.left * size..][..size]
    }

    fn right_of<'a, T>(&self, all: &'a [T], at: usize) -> &'a [T] {
        let size = self.depth * self.columns;
        &all[at % self.right * size..][..size]
    }
}

/// The transpose of each block of `rows` × `columns`.
fn transpose<T: Real>(all: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut out = Vec::with_capacity(all.len());
    for block in all.chunks_exact((rows * columns).max(1)) {
        for column in 0..columns {
            out.extend((0..rows).map(|row| block[row * columns + column]));
        }
    }
    out
}

/// The derivatives so far.
struct Pulls<T>(Vec<Option<Vec<T>>>);

impl<T: Real> Pulls<T> {
    /// The sums of an array of this length.
    fn of(&mut self, Var(at): Var, length: usize) -> &mut Vec<T> {
        self.0[at].get_or_insert_with(|| vec![T::ZERO; length])
    }

    fn add(&mut self, Var(at): Var, pulls: impl Iterator<Item = T>) {
        match &mut self.0[at] {
            Some(sums) => sums.iter_mut().zip(pulls).for_each(|(sum, pull)| *sum += pull),
            none => *none = Some(pulls.collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the derivatives of a function of two arrays with differences of its values.
    fn check(function: impl Fn(&mut Tape<f64>, Var, Var) -> Var, lengths: [usize; 2]) {
        let numbers = |length: usize, salt: usize| -> Vec<f64> {
            (0..length).map(|at| ((at * 37 + salt) % 19) as f64 / 7.0 - 1.2).collect()
        };
        let inputs = lengths.map(|length| numbers(length, length));
        let run = |inputs: &[Vec<f64>; 2]| {
            let mut tape = Tape::new();
            let vars = [0, 1].map(|at: usize| tape.leaf(inputs[at].clone(), true));
            let output = function(&mut tape, vars[0], vars[1]);
            let values = tape.numbers(output);
            let pull = numbers(values.len(), 5);
            let total: f64 = values.iter().zip(&pull).map(|(value, pull)| value * pull).sum();
            (total, tape.gradients(output, pull, &vars))
        };
        let gradients = run(&inputs).1;
        const STEP: f64 = 1e-6;
        for which in 0..2 {
            let Some(gradient) = &gradients[which] else { continue };
            for at in 0..lengths[which] {
                let moved = |by: f64| {
                    let mut inputs = inputs.clone();
                    inputs[which][at] += by;
                    run(&inputs).0
                };
                let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                assert!((slope - gradient[at]).abs() < 1e-7, "{which} {at}: {slope} {gradient:?}");
            }
        }
    }

    #[test]
    fn derivatives_of_each_step_are_those_of_its_values() {
        let index = Arc::new(vec![2, 0, NONE, 2, 1]);
        check(|tape, a, _| tape.take(a, Arc::clone(&index)), [3, 1]);
        check(|tape, a, b| tape.join(&[a, b, a]), [3, 2]);
        check(|tape, a, _| tape.map(a, |x| (x * x, x + x)), [4, 1]);
        check(|tape, a, b| tape.zip(a, b, |x, y| (x * y, y, x)), [4, 4]);
        check(|tape, a, _| tape.zip(a, a, |x, y| (x * y, y, x)), [4, 1]);
        check(|tape, a, _| tape.sum(a, 3), [6, 1]);
        check(|tape, a, _| tape.running_sum(a, 3), [6, 1]);
        let squares = |part: &[f64], slopes: &mut [f64]| {
            slopes.iter_mut().zip(part).for_each(|(slope, x)| *slope = 2.0 * x);
            part.iter().map(|x| x * x).sum()
        };
        check(|tape, a, _| tape.reduce(a, 2, squares), [6, 1]);
    }

    #[test]
    fn derivatives_of_products_are_those_of_their_values() {
        for is_transposed in [false, true] {
            for (count, left, right) in [(1, 1, 1), (4, 4, 4), (4, 2, 4), (4, 1, 4), (4, 4, 1)] {
                let (rows, columns, depth) = (2, 3, 4);
                let blocks = Blocks { count, left, right, rows, columns, depth, is_transposed };
                let lengths = [left * rows * depth, right * depth * columns];
                check(|tape, a, b| tape.product(a, b, blocks), lengths);
            }
        }
    }

    #[test]
    fn a_product_is_the_sum_of_its_terms() {
        let mut tape = Tape::new();
        let a = tape.leaf(vec![1.0, 2.0, 3.0, 4.0], false);
        let b = tape.leaf(vec![5.0, 6.0, 7.0, 8.0], false);
        let of = |is_transposed| Blocks {
            count: 1,
            left: 1,
            right: 1,
            rows: 2,
            columns: 2,
            depth: 2,
            is_transposed,
        };
        let plain = tape.product(a, b, of(false));
        assert_eq!(*tape.numbers(plain), [19.0, 22.0, 43.0, 50.0]);
        let transposed = tape.product(a, b, of(true));
        assert_eq!(*tape.numbers(transposed), [17.0, 23.0, 39.0, 53.0]);
        assert_eq!(tape.gradients(plain, vec![1.0; 4], &[a]), [None], "no derivative is requested");
    }
}
