//! Compares this crate's graphs with PyTorch: reads FOLDER/NAME.pt2, and the inputs, labels, loss and
//! gradients that PyTorch computed, from FOLDER/NAME.safetensors; prints a line for each model.
//!
//! ```text
//! python learning/data/graphs/make.py FOLDER
//! cargo run --release --example exported_graph -- FOLDER
//! ```

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use florin_learning::graph::{InputRole, Interpreter, RunMode, graph_cost, read_archive};
use safetensors::{Dtype, SafeTensors};
use tch::{Kind, Reduction, Tensor};

/// The seed of the random numbers, as in the script.
const SEED: i64 = 7;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: exported_graph FOLDER")?);
    tch::set_num_threads(1);
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)?
        .map(|file| file.map(|file| file.path()))
        .collect::<Result<_, _>>()?;
    names.retain(|name| name.extension().is_some_and(|end| end == "pt2"));
    names.sort_unstable();
    for archive in names {
        let name = archive.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        match compare(&archive) {
            Ok(line) => println!("{name}: {line}"),
            Err(error) => println!("{name}: REFUSED {error}"),
        }
    }
    Ok(())
}

fn compare(archive: &Path) -> Result<String, Box<dyn Error>> {
    let begun = Instant::now();
    let (graph, weights) = read_archive(archive)?;
    let read = begun.elapsed();
    let bytes = std::fs::read(archive.with_extension("safetensors"))?;
    let expected = SafeTensors::deserialize(&bytes)?;
    let expected: BTreeMap<String, Tensor> =
        expected.iter().map(|(name, view)| (name.to_owned(), tensor_of(&view))).collect();
    let interpreter = Interpreter::new(&graph, "cpu")?;
    let (mut inputs, mut parameters, mut own) = (Vec::new(), Vec::new(), weights.tensors.iter());
    for (at, input) in graph.inputs.iter().enumerate() {
        inputs.push(match &input.role {
            InputRole::User => expected["input"].shallow_clone(),
            InputRole::Parameter(name) => {
                let weight = own.next().ok_or("a weight is missing")?.to_tensor()?;
                parameters.push((name.clone(), at));
                weight.set_requires_grad(true)
            }
            _ => own.next().ok_or("a weight is missing")?.to_tensor()?,
        });
    }
    tch::manual_seed(SEED);
    let begun = Instant::now();
    let logits = interpreter.run(&inputs, RunMode::Training)?.remove(0);
    let (logits, labels) = (logits.f_flatten(0, -2)?, expected["labels"].f_flatten(0, -1)?);
    let loss = logits.f_cross_entropy_loss(&labels, None::<&Tensor>, Reduction::Mean, -100, 0.0)?;
    let of: Vec<&Tensor> = parameters.iter().map(|(_, at)| &inputs[*at]).collect();
    let gradients = Tensor::f_run_backward(&[&loss], &of, false, false)?;
    let step = begun.elapsed();
    let loss_error = difference(&loss.f_detach()?.f_reshape([1])?, &expected["loss"])?;
    let (mut differ, mut elements) = (0, 0);
    for ((name, _), gradient) in parameters.iter().zip(&gradients) {
        let Some(wanted) = expected.get(&format!("gradient.{name}")) else { continue };
        let (here, all) = difference(gradient, wanted)?;
        differ += here;
        elements += all;
    }
    let cost = match graph_cost(&graph, &[2; 16], u64::MAX) {
        Ok(cost) => format!("{:.2} GFLOP", cost.flops as f64 / 1e9),
        Err(error) => format!("NO COST ({error})"),
    };
    let verdict = if loss_error.0 + differ == 0 { "EXACT" } else { "DIFFERS" };
    Ok(format!(
        "{verdict} {} nodes, {differ} of {elements} elements of gradients differ, read {} ms, step {} ms, {cost}",
        graph.nodes.len(),
        read.as_millis(),
        step.as_millis()
    ))
}

fn tensor_of(view: &safetensors::tensor::TensorView<'_>) -> Tensor {
    let kind = match view.dtype() {
        Dtype::I64 => Kind::Int64,
        Dtype::BOOL => Kind::Bool,
        _ => Kind::Float,
    };
    let sizes: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
    Tensor::from_data_size(view.data(), &sizes, kind)
}

/// Elements that differ in a bit, and all elements.
fn difference(found: &Tensor, wanted: &Tensor) -> Result<(usize, usize), Box<dyn Error>> {
    let bits = |tensor: &Tensor| -> Result<Vec<u32>, Box<dyn Error>> {
        let values = Vec::<f32>::try_from(tensor.f_flatten(0, -1)?)?;
        Ok(values.into_iter().map(f32::to_bits).collect())
    };
    let (found, wanted) = (bits(found)?, bits(wanted)?);
    let differ = found.iter().zip(&wanted).filter(|(a, b)| a != b).count();
    Ok((differ + found.len().abs_diff(wanted.len()), wanted.len()))
}
