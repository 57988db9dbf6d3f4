//! One walk over coalitions for a few tiles of rows: sums, layers, losses.

use pulp::{Simd, WithSimd};

use super::aligned::Aligned;
use super::kernel::{add_onto, apply, sum};
use super::layout::{LayerStack, TILE_ROWS};
use super::loss::{correct_predictions, losses, total};
use super::plan::{WalkPlan, WalkStep};
use super::window::TileWindow;

/// The quantity to compute for a coalition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    /// The sum of a tile's losses.
    Loss,
    /// The loss of each row of a tile.
    Rows,
    /// Number of correctly classified rows of a tile.
    CorrectPredictions,
}

impl Quantity {
    /// Number of results per tile.
    pub(super) fn results_per_tile(self) -> usize {
        match self {
            Self::Loss | Self::CorrectPredictions => 1,
            Self::Rows => TILE_ROWS,
        }
    }
}

/// A walk over the coalitions of `plan` for the tiles `tiles` of a window.
pub(super) struct Walk<'a> {
    pub(super) net: &'a LayerStack,
    /// The packed parameters of the deeper layers: the base's, then each player's.
    pub(super) deeper: &'a [Aligned],
    pub(super) window: &'a TileWindow,
    pub(super) tiles: std::ops::Range<usize>,
    pub(super) plan: &'a WalkPlan,
    pub(super) question: Quantity,
}

/// One level of the stack: the output of the first layer, tile after tile, and the parameters of
/// the deeper layers.
struct Level {
    first: Aligned,
    deeper: Aligned,
}

impl WithSimd for Walk<'_> {
    /// `[coalition of the plan][tile][result]`.
    type Output = Vec<f64>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<f64> {
        let tile = self.net.summed_width() * TILE_ROWS;
        let part = self.tiles.start * tile..self.tiles.end * tile;
        let level = || Level {
            first: Aligned::zeros(part.len()),
            deeper: Aligned::zeros(self.net.deeper_parameters()),
        };
        let mut levels: Vec<Level> = (0..self.plan.levels).map(|_| level()).collect();
        levels[0].first.copy_from_slice(&self.window.sums[0][part.clone()]);
        levels[0].deeper.copy_from_slice(&self.deeper[0]);
        let mut rooms = ActivationBuffers::new(self.net);
        let mut answers = Vec::new();
        let mut top = 0;
        for &step in &self.plan.steps {
            match step {
                WalkStep::Push(member) => {
                    let member = member as usize + 1;
                    let (below, above) = levels.split_at_mut(top + 1);
                    let (from, to) = (&below[top], &mut above[0]);
                    let own = &self.window.sums[member][part.clone()];
                    simd.vectorize(Sum(&from.first, own, &mut to.first));
                    simd.vectorize(Sum(&from.deeper, &self.deeper[member], &mut to.deeper));
                    top += 1;
                }
                WalkStep::Add(member) => {
                    let member = member as usize + 1;
                    let to = &mut levels[top];
                    let own = &self.window.sums[member][part.clone()];
                    simd.vectorize(AddOnto(own, &mut to.first));
                    simd.vectorize(AddOnto(&self.deeper[member], &mut to.deeper));
                }
                WalkStep::Pop(count) => top -= count as usize,
                WalkStep::Evaluate(_) => {
                    for at in self.tiles.clone() {
                        let retained =
                            &self.window.features[at * self.net.retained_width() * TILE_ROWS..];
                        let from = (at - self.tiles.start) * tile;
                        let first = &levels[top].first[from..from + tile];
                        let from = if self.net.first.is_some() { first } else { retained };
                        let logits = rooms.forward(simd, self.net, &levels[top].deeper, from);
                        let look =
                            TileLogits { logits, window: self.window, at, question: self.question };
                        simd.vectorize(AppendResult(look, &mut answers));
                    }
                }
            }
        }
        answers
    }
}

struct Sum<'a>(&'a [f32], &'a [f32], &'a mut [f32]);

impl WithSimd for Sum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        sum(self.0, self.1, self.2);
    }
}

struct AddOnto<'a>(&'a [f32], &'a mut [f32]);

impl WithSimd for AddOnto<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        add_onto(self.0, self.1);
    }
}

/// Buffers of a tile's activations in the deeper layers.
struct ActivationBuffers {
    layers: Vec<Aligned>,
}

impl ActivationBuffers {
    fn new(net: &LayerStack) -> Self {
        let room = |layer: &super::layout::Layer| Aligned::zeros(layer.lines * TILE_ROWS);
        Self { layers: net.deeper.iter().map(room).collect() }
    }

    /// The logits of a tile with the first-layer output `from`.
    #[inline(always)]
    fn forward<'a, S: Simd>(
        &'a mut self,
        simd: S,
        net: &LayerStack,
        parameters: &[f32],
        from: &'a [f32],
    ) -> &'a [f32] {
        let mut parameters = parameters;
        for (at, layer) in net.deeper.iter().enumerate() {
            let (own, rest) = parameters.split_at(layer.parameters());
            let (before, after) = self.layers.split_at_mut(at);
            let from = before.last().map_or(from, |before| before);
            let from = &from[..input_lines(layer) * TILE_ROWS];
            apply::<S, true>(simd, layer, own, from, &mut after[0]);
            parameters = rest;
        }
        self.layers.last().map_or(from, |last| last)
    }
}

/// Number of lines of a tile in a layer's input.
fn input_lines(layer: &super::layout::Layer) -> usize {
    match layer.kind {
        super::layout::LayerKind::Dense => layer.taps,
        super::layout::LayerKind::Convolution { channels, height, width } => {
            channels * height * width
        }
    }
}

/// The logits of one tile, and the quantity to compute.
struct TileLogits<'a> {
    logits: &'a [f32],
    window: &'a TileWindow,
    at: usize,
    question: Quantity,
}

struct AppendResult<'a>(TileLogits<'a>, &'a mut Vec<f64>);

impl WithSimd for AppendResult<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let TileLogits { logits, window, at, question } = self.0;
        let (labels, rows) = (&window.labels[at], window.rows_of(at));
        match question {
            Quantity::Loss => self.1.push(total(&losses(logits, labels), rows)),
            Quantity::CorrectPredictions => {
                self.1.push(total(&correct_predictions(logits, labels), rows))
            }
            Quantity::Rows => self.1.extend(losses(logits, labels)),
        }
    }
}
