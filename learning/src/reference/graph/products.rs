//! Products of matrices, and attention.

use std::sync::Arc;

use super::RunFailure;
use super::norms::softmax;
use super::run::{NodeCall, Results, Run};
use super::tape::{Blocks, Var};
use super::tensor::{Elements, Tensor, broadcast_strides, count, strided};
use crate::graph::RunMode;
use crate::reference::real::Real;

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let result = match node.base {
        "linear" => linear(run, node)?,
        "matmul" | "mm" | "bmm" | "mv" | "dot" => {
            let first = run.first(node)?;
            let other = ["other", "mat2", "vec", "tensor"];
            let other = other.into_iter().find_map(|name| run.optional(node, name));
            let other = other.ok_or_else(|| RunFailure::graph("a product with nothing"))?;
            matmul(run, &first, &other, &node.sizes)
        }
        "addmm" | "baddbmm" => {
            let names = if node.base == "addmm" { ["mat1", "mat2"] } else { ["batch1", "batch2"] };
            let (a, b) = (run.tensor(node, names[0])?, run.tensor(node, names[1])?);
            let product = matmul(run, &a, &b, &node.sizes);
            let factor = |name| super::elements::number(node, name).unwrap_or(1.0);
            let product = run.real(&product);
            let product = run.scale(product, factor("alpha"));
            let first = run.first(node)?;
            let first = run.spread_real(&first, &node.sizes);
            let first = run.scale(first, factor("beta"));
            Tensor::real(node.sizes.clone(), run.add(first, product))
        }
        "scaled_dot_product_attention" => attention(run, node)?,
        "einsum" => einsum(run, node)?,
        _ => return Ok(None),
    };
    Ok(Some(vec![result]))
}

/// `x Wᵀ + b`.
fn linear<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Tensor, RunFailure> {
    let (input, weight) = (run.tensor(node, "input")?, run.tensor(node, "weight")?);
    let depth = input.sizes.last().copied().unwrap_or(1);
    let rows = input.count() / depth.max(1);
    let columns = weight.count() / depth.max(1);
    let (left, right) = (run.real(&input), run.real(&weight));
    let blocks = Blocks { count: 1, left: 1, right: 1, rows, columns, depth, is_transposed: true };
    let product = run.tape.product(left, right, blocks);
    let result = Tensor::real(node.sizes.clone(), product);
    let Some(bias) = run.optional(node, "bias") else { return Ok(result) };
    let bias = run.spread_real(&bias, &node.sizes);
    Ok(Tensor::real(node.sizes.clone(), run.add(product, bias)))
}

/// A product of matrices whose outer dimensions are repeated to each other.
fn matmul<T: Real>(run: &mut Run<'_, T>, a: &Tensor, b: &Tensor, sizes: &[usize]) -> Tensor {
    // A vector is a matrix of one row, or of one column.
    let (a_sizes, b_sizes) = match (a.sizes.as_slice(), b.sizes.as_slice()) {
        ([depth], [_]) => (vec![1, *depth], vec![*depth, 1]),
        ([depth], _) => (vec![1, *depth], b.sizes.clone()),
        (_, [depth]) => (a.sizes.clone(), vec![*depth, 1]),
        _ => (a.sizes.clone(), b.sizes.clone()),
    };
    let (a_outer, a_inner) = a_sizes.split_at(a_sizes.len() - 2);
    let (b_outer, b_inner) = b_sizes.split_at(b_sizes.len() - 2);
    let (rows, depth, columns) = (a_inner[0], a_inner[1], b_inner[1]);
    let outer = common(a_outer, b_outer);
    let (left, right) = (run.real(a), run.real(b));
    let (left, left_blocks) = spread_blocks(run, left, a_outer, &outer, rows * depth);
    let (right, right_blocks) = spread_blocks(run, right, b_outer, &outer, depth * columns);
    let blocks = Blocks {
        count: count(&outer),
        left: left_blocks,
        right: right_blocks,
        rows,
        columns,
        depth,
        is_transposed: false,
    };
    // Many rows for one right block are one product.
    let blocks = match right_blocks == 1 && left_blocks == blocks.count {
        true => Blocks { count: 1, left: 1, rows: rows * blocks.count, ..blocks },
        false => blocks,
    };
    Tensor::real(sizes.to_vec(), run.tape.product(left, right, blocks))
}

/// Sizes of which one can be 1.
fn common(a: &[usize], b: &[usize]) -> Vec<usize> {
    let rank = a.len().max(b.len());
    let size = |sizes: &[usize], at: usize| match (at + sizes.len()).checked_sub(rank) {
        Some(at) => sizes[at],
        None => 1,
    };
    (0..rank).map(|at| if size(a, at) == 1 { size(b, at) } else { size(a, at) }).collect()
}

/// Blocks of matrices repeated to outer sizes, and their number; one block and all blocks stay.
fn spread_blocks<T: Real>(
    run: &mut Run<'_, T>,
    source: Var,
    own: &[usize],
    outer: &[usize],
    block: usize,
) -> (Var, usize) {
    let (own_count, wanted) = (count(own), count(outer));
    if own_count == wanted || own_count == 1 {
        return (source, own_count);
    }
    let starts = strided(outer, &broadcast_strides(own, outer), 0);
    let block = block as u32;
    let index = starts.iter().flat_map(|&start| start * block..(start + 1) * block);
    (run.tape.take(source, Arc::new(index.collect())), wanted)
}

/// Attention from its definition (Vaswani et al. 2017).
fn attention<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Tensor, RunFailure> {
    let (query, key, value) =
        (run.tensor(node, "query")?, run.tensor(node, "key")?, run.tensor(node, "value")?);
    let rank = query.sizes.len();
    if rank < 2 || key.sizes.len() != rank || value.sizes.len() != rank {
        return Err(RunFailure::graph("attention over tensors of different dimensions"));
    }
    let [rows, depth] = [query.sizes[rank - 2], query.sizes[rank - 1]];
    let keys = key.sizes[rank - 2];
    let (key, value) = match node.call.flag("enable_gqa") {
        true => (repeat_heads(run, &key, &query), repeat_heads(run, &value, &query)),
        false => (key, value),
    };
    let scale =
        super::elements::number(node, "scale").unwrap_or_else(|| 1.0 / libm::sqrt(depth as f64));
    let turned = turned(run, &key);
    let outer = common(&query.sizes[..rank - 2], &key.sizes[..rank - 2]);
    let sizes = [outer.as_slice(), &[rows, keys]].concat();
    let scores = matmul(run, &query, &turned, &sizes);
    let scores = run.real(&scores);
    let mut scores = run.scale(scores, scale);
    if node.call.flag("is_causal") {
        let is_later = |at: usize| at % keys > at / keys % rows;
        let mask = (0..count(&sizes)).map(|at| match is_later(at) {
            true => T::from_f64(f64::NEG_INFINITY),
            false => T::ZERO,
        });
        let mask = mask.collect();
        let mask = run.tape.leaf(mask, false);
        scores = run.add(scores, mask);
    }
    if let Some(mask) = run.optional(node, "attn_mask") {
        let mask = run.spread(&mask, &sizes);
        scores = match &mask.elements {
            Elements::Whole(holds) => {
                let never = run.constant(count(&sizes), f64::NEG_INFINITY);
                super::elements::choose(run, holds, scores, never)
            }
            Elements::Real(mask) => run.add(scores, *mask),
        };
    }
    let mut shares = softmax(run, scores, keys);
    let dropped = super::elements::number(node, "dropout_p").unwrap_or(0.0);
    if dropped > 0.0 && run.mode == RunMode::Training {
        shares = run.drop_out(shares, dropped);
    }
    let shares = Tensor::real(sizes, shares);
    Ok(matmul(run, &shares, &value, &node.sizes))
}

/// The transpose of the last two dimensions.
fn turned<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor) -> Tensor {
    let rank = tensor.sizes.len();
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    super::views::permuted(run, tensor, &order)
}

/// Heads of keys or values that several heads of queries share.
fn repeat_heads<T: Real>(run: &mut Run<'_, T>, tensor: &Tensor, query: &Tensor) -> Tensor {
    let Some(dim) = query.sizes.len().checked_sub(3) else { return tensor.clone() };
    let times = (query.sizes[dim] / tensor.sizes[dim].max(1)).max(1);
    super::views::interleaved(run, tensor, dim, times)
}

/// A sum of products of two tensors by an equation such as `btc,dc->btd`.
fn einsum<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Result<Tensor, RunFailure> {
    let refuse = || RunFailure::graph("this engine has no such sum of products");
    let Some(crate::graph::Argument::Text(equation)) = node.call.argument("equation") else {
        return Err(refuse());
    };
    let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (inputs, output) = equation.split_once("->").ok_or_else(refuse)?;
    let (a, b) = inputs.split_once(',').ok_or_else(refuse)?;
    let tensors: Vec<Tensor> = run.tensors(node, "tensors")?.into_iter().flatten().collect();
    let [left, right] = tensors.as_slice() else { return Err(refuse()) };
    let letters = |text: &str| text.chars().collect::<Vec<char>>();
    let (a, b, output) = (letters(a), letters(b), letters(output));
    let is_once = |list: &[char]| list.iter().enumerate().all(|(at, c)| !list[..at].contains(c));
    if !is_once(&a) || !is_once(&b) || a.contains(&',') || b.contains(&',') {
        return Err(refuse());
    }
    let of = |from: &[char], holds: &dyn Fn(char) -> bool| -> Vec<char> {
        from.iter().copied().filter(|&letter| holds(letter)).collect()
    };
    let outer = of(&a, &|c| b.contains(&c) && output.contains(&c));
    let rows = of(&a, &|c| !b.contains(&c) && output.contains(&c));
    let columns = of(&b, &|c| !a.contains(&c) && output.contains(&c));
    let summed = of(&a, &|c| b.contains(&c) && !output.contains(&c));
    if a.len() != outer.len() + rows.len() + summed.len()
        || b.len() != outer.len() + columns.len() + summed.len()
    {
        return Err(refuse());
    }
    let arranged =
        |run: &mut Run<'_, T>, tensor: &Tensor, own: &[char], wanted: &[Vec<char>; 3]| {
            let place = |letter: &char| own.iter().position(|c| c == letter);
            let order: Option<Vec<usize>> = wanted.iter().flatten().map(place).collect();
            let tensor = super::views::permuted(run, tensor, &order.unwrap_or_default());
            let mut sizes = tensor.sizes.iter();
            let sizes = wanted.each_ref().map(|part| sizes.by_ref().take(part.len()).product());
            (run.real(&tensor), sizes)
        };
    let wanted = [outer.clone(), rows.clone(), summed.clone()];
    let (left_var, [blocks, m, depth]) = arranged(run, left, &a, &wanted);
    let wanted = [outer.clone(), summed, columns.clone()];
    let (right_var, [_, _, n]): (Var, [usize; 3]) = arranged(run, right, &b, &wanted);
    let blocks = Blocks {
        count: blocks,
        left: blocks,
        right: blocks,
        rows: m,
        columns: n,
        depth,
        is_transposed: false,
    };
    let product = run.tape.product(left_var, right_var, blocks);
    let found = [outer, rows, columns].concat();
    let size_of = |letter: &char| output.iter().position(|c| c == letter).map(|at| node.sizes[at]);
    let sizes: Vec<usize> = found.iter().filter_map(size_of).collect();
    let place = |letter: &char| found.iter().position(|c| c == letter);
    let order: Option<Vec<usize>> = output.iter().map(place).collect();
    let product = Tensor::real(sizes, product);
    Ok(super::views::permuted(run, &product, &order.ok_or_else(refuse)?))
}
