//! Products of matrices, attention and recurrent layers.

use super::call::Call;
use super::elements::broadcast;
use super::{DIMENSIONS_MAX, GraphError, RuleResult, Shaped, TensorShape, mismatch, operators};

/// One tensor, each of whose elements is a sum of `terms` products.
fn product(shape: TensorShape, terms: u64) -> RuleResult {
    let flops = shape.elements().saturating_mul(terms).saturating_mul(2);
    Ok(Some((vec![Shaped::Tensor(shape)], flops)))
}

fn split_last(sizes: &[u64]) -> Result<(&[u64], u64), GraphError> {
    match sizes {
        [outer @ .., last] => Ok((outer, *last)),
        [] => Err(mismatch("a product with a number")),
    }
}

fn require(holds: bool, a: &TensorShape, b: &TensorShape) -> Result<(), GraphError> {
    match holds {
        true => Ok(()),
        false => Err(mismatch(format!("a product of {:?} and {:?}", a.sizes, b.sizes))),
    }
}

/// The sizes of a matrix product with broadcast outer dimensions, and the number of its terms.
fn matmul(a: &TensorShape, b: &TensorShape) -> Result<(Vec<u64>, u64), GraphError> {
    let (left, right) = (a.sizes.as_slice(), b.sizes.as_slice());
    let (left_outer, terms) = split_last(left)?;
    let (right_outer, rows, columns) = match right {
        [] => return Err(mismatch("a product with a number")),
        [only] => (&[][..], *only, None),
        [outer @ .., rows, columns] => (outer, *rows, Some(*columns)),
    };
    require(terms == rows, a, b)?;
    let (left_batch, left_rows) = match left_outer {
        [] => (&[][..], None),
        [batch @ .., rows] => (batch, Some(*rows)),
    };
    let mut sizes = broadcast(&[left_batch, right_outer])?;
    sizes.extend(left_rows);
    sizes.extend(columns);
    Ok((sizes, terms))
}

pub(super) fn rule(name: &str, call: &Call<'_>) -> RuleResult {
    match name {
        "linear" => {
            let (input, weight) = (call.tensor("input")?, call.tensor("weight")?);
            let (outer, terms) = split_last(&input.sizes)?;
            let (out, inner) = match weight.sizes.as_slice() {
                [out, inner] => (vec![*out], *inner),
                [inner] => (Vec::new(), *inner),
                _ => return Err(mismatch("a layer whose weight is no matrix")),
            };
            require(inner == terms, input, weight)?;
            product(input.with([outer, &out].concat()), terms)
        }
        "matmul" | "mm" | "bmm" | "mv" | "dot" => {
            let first = call.first()?;
            let other = ["other", "mat2", "vec", "tensor"];
            let other = other.iter().find_map(|name| call.optional_tensor(name));
            let other = other.ok_or_else(|| mismatch("a product with nothing"))?;
            let (sizes, terms) = matmul(first, other)?;
            product(first.with(sizes), terms)
        }
        "addmm" | "baddbmm" => {
            let names = if name == "addmm" { ["mat1", "mat2"] } else { ["batch1", "batch2"] };
            let (a, b) = (call.tensor(names[0])?, call.tensor(names[1])?);
            let (sizes, terms) = matmul(a, b)?;
            product(a.with(sizes), terms)
        }
        "outer" => {
            let (a, b) = (call.first()?, call.tensor("vec2")?);
            product(a.with([a.elements(), b.elements()]), 1)
        }
        "scaled_dot_product_attention" => {
            let (query, key, value) =
                (call.tensor("query")?, call.tensor("key")?, call.tensor("value")?);
            let (outer, width) = split_last(&query.sizes)?;
            let (key_outer, key_width) = split_last(&key.sizes)?;
            let (_, last) = split_last(&value.sizes)?;
            require(width == key_width, query, key)?;
            let keys = *key_outer.last().ok_or_else(|| mismatch("attention without positions"))?;
            let shape = query.with([outer, &[last][..]].concat());
            let rows: u64 = outer.iter().product();
            let flops = rows.saturating_mul(keys).saturating_mul(width.saturating_add(last));
            Ok(Some((vec![Shaped::Tensor(shape)], flops.saturating_mul(2))))
        }
        operators::GROUPED_PRODUCT => {
            let (rows, matrices) = (call.tensor("input")?, call.tensor("weight")?);
            let ([count, terms], [_, inner, columns]) =
                (rows.sizes.as_slice(), matrices.sizes.as_slice())
            else {
                return Err(mismatch("groups of rows of other dimensions"));
            };
            require(terms == inner, rows, matrices)?;
            product(rows.with([*count, *columns]), *terms)
        }
        "einsum" => einsum(call),
        "lstm.input" | "gru.input" | "rnn_tanh.input" | "rnn_relu.input" => recurrent(name, call),
        _ => Ok(None),
    }
}

/// The terms of an equation with a letter for each dimension of an ellipsis, counted from the last one.
fn without_ellipsis(
    terms: &[&str],
    ranks: impl Iterator<Item = usize>,
    output: &str,
) -> (Vec<String>, String) {
    const FIRST: u32 = 0xE000;
    let letters = |count: usize| -> String {
        (0..count as u32).rev().filter_map(|at| char::from_u32(FIRST + at)).collect()
    };
    let mut most = 0;
    let mut spelled = Vec::with_capacity(terms.len());
    for (term, rank) in terms.iter().zip(ranks) {
        let named = term.chars().filter(|letter| *letter != '.').count();
        let own = rank.saturating_sub(named).min(DIMENSIONS_MAX);
        if term.contains('.') {
            most = most.max(own);
        }
        spelled.push(term.replace("...", &letters(own)));
    }
    (spelled, output.replace("...", &letters(most)))
}

/// A sum of products by an equation such as `btc,dc->btd`.
fn einsum(call: &Call<'_>) -> RuleResult {
    let Some(super::Argument::Text(equation)) = call.argument("equation") else {
        return Err(mismatch("a sum of products without an equation"));
    };
    let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let Some((inputs, output)) = equation.split_once("->") else { return Ok(None) };
    let tensors: Vec<TensorShape> = call.tensors("tensors")?.into_iter().flatten().collect();
    let mut sizes: Vec<(char, u64)> = Vec::new();
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != tensors.len() {
        return Err(mismatch(format!("{} tensors for the equation {equation}", tensors.len())));
    }
    let ranks = tensors.iter().map(|tensor| tensor.sizes.len());
    let (terms, output) = without_ellipsis(&terms, ranks, output);
    for (letters, tensor) in terms.iter().zip(&tensors) {
        if letters.chars().count() != tensor.sizes.len() {
            return Err(mismatch(format!("the equation {equation} for {:?}", tensor.sizes)));
        }
        for (letter, &size) in letters.chars().zip(&tensor.sizes) {
            match sizes.iter_mut().find(|(own, _)| *own == letter) {
                None => sizes.push((letter, size)),
                Some((_, own)) if *own == size || size == 1 => {}
                Some((_, own)) if *own == 1 => *own = size,
                Some(_) => return Err(mismatch(format!("two sizes of {letter} in {equation}"))),
            }
        }
    }
    let of = |letter: char| {
        let found = sizes.iter().find(|(own, _)| *own == letter).map(|(_, size)| *size);
        found.ok_or_else(|| mismatch(format!("{letter} is in no tensor of {equation}")))
    };
    let result = output.chars().map(of).collect::<Result<Vec<u64>, _>>()?;
    let summed = sizes.iter().filter(|(letter, _)| !output.contains(*letter));
    let terms = summed.fold(1_u64, |product, (_, size)| product.saturating_mul(*size));
    let first = tensors.first().ok_or_else(|| mismatch("a sum of nothing"))?;
    product(first.with(result), terms)
}

/// A recurrent layer: its output for each step, and the last states.
fn recurrent(name: &str, call: &Call<'_>) -> RuleResult {
    let input = call.first()?;
    let is_lstm = name == "lstm.input";
    let states: Vec<TensorShape> = if is_lstm {
        call.tensors("hx")?.into_iter().flatten().collect()
    } else {
        vec![call.tensor("hx")?.clone()]
    };
    let first = states.first().ok_or_else(|| mismatch("a recurrent layer without a state"))?;
    let hidden = *first.sizes.last().ok_or_else(|| mismatch("a state without a size"))?;
    let both = if call.flag("bidirectional") { 2 } else { 1 };
    let layers = u64::try_from(call.int_or("num_layers", 1)).unwrap_or(1);
    let (outer, width) = split_last(&input.sizes)?;
    // With projections the output has the state's size, and the cell another one.
    let output = input.with([outer, &[hidden * both][..]].concat());
    let cell = states.get(1).and_then(|state| state.sizes.last()).copied().unwrap_or(hidden);
    let gates = match name {
        "lstm.input" => 4,
        "gru.input" => 3,
        _ => 1,
    };
    let steps: u64 = outer.iter().product();
    let inner = width.saturating_add((layers - layers.min(1)).saturating_mul(hidden * both));
    let each = gates * cell * both;
    let flops =
        steps.saturating_mul(each).saturating_mul(inner + layers * hidden).saturating_mul(2);
    let mut results = vec![Shaped::Tensor(output)];
    results.extend(states.into_iter().map(Shaped::Tensor));
    Ok(Some((results, flops)))
}
