//! Graphs of the suite's families with sizes that a seed draws: for checks on graphs that nothing was
//! fitted to.

use super::card::{CardError, data};
use super::suite::{SuiteCase, convolutions, elements, perceptron, transformer};
use crate::data::Dataset;
use crate::model::ModelSpec;
use crate::rng::{Purpose, below, rng};

/// Families of graphs.
const FAMILIES: u64 = 4;

/// A graph with the rows of one step.
#[derive(Debug, Clone)]
pub struct DrawnStep {
    /// The family with its sizes.
    pub name: String,
    /// The model.
    pub model: ModelSpec,
    /// Its parameters.
    pub start: Vec<f32>,
    /// The rows of a step.
    pub rows: Dataset,
}

impl DrawnStep {
    /// The graph of a seed.
    ///
    /// # Errors
    /// [`CardError`] if a graph of these sizes is refused.
    pub fn new(seed: u64) -> Result<Self, CardError> {
        let mut random = rng(seed, Purpose::Directions, 0);
        let mut draw = |least: u64, most: u64| least + below(&mut random, most - least + 1);
        let batch = draw(2, 96) as u32;
        let (name, case): (String, SuiteCase) = match draw(0, FAMILIES - 1) {
            0 => {
                let (width, depth) = (draw(8, 512), draw(1, 12) as usize);
                (format!("perceptron {width} x {depth}"), perceptron(width, depth, &[]))
            }
            1 => {
                let (channels, side) = (draw(2, 24), draw(4, 20));
                let (kernel, depth) = (1 + 2 * draw(0, 1), draw(1, 8) as usize);
                let name = format!("convolutions {channels} of {side}, {kernel} x {depth}");
                (name, convolutions(channels, side, kernel, depth, &[]))
            }
            2 => {
                let (heads, of_head) = (draw(1, 4), draw(4, 24));
                let (tokens, depth) = (draw(4, 48), draw(1, 4) as usize);
                let width = heads * of_head;
                let name = format!("transformer {width} of {tokens} x {depth}");
                (name, transformer(width, heads, tokens, depth, &[]))
            }
            _ => {
                let size = 16 * draw(1, 512);
                (format!("elements {size}"), elements(size, &[]))
            }
        };
        let (model, start) = case.model()?;
        let model = ModelSpec::Graph(Box::new(model));
        let name = format!("{name}, {batch} rows");
        Ok(Self { name, model, start, rows: data(&case, batch)? })
    }
}
