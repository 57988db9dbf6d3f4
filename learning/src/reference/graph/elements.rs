//! Operators that work on each element.

use super::RunFailure;
use super::run::{NodeCall, Results, Run};
use super::selection::converted;
use super::tape::Var;
use super::tensor::{Tensor, count};
use crate::graph::RunMode;
use crate::graph::shapes::{Number, floor_div};
use crate::reference::real::Real;

/// A function of an element: its value and its derivative.
type Function<T> = Box<dyn Fn(T) -> (T, T)>;

pub(super) fn rule<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    if let Some(function) = function::<T>(node) {
        let first = run.first(node)?;
        let source = run.real(&first);
        let result = run.tape.map(source, function);
        let result = Tensor::real(node.sizes.clone(), result);
        return Ok(Some(vec![converted(run, node, result)]));
    }
    match node.base {
        "dropout" | "feature_dropout" => {
            let first = run.first(node)?;
            let source = run.real(&first);
            let share = number(node, "p").unwrap_or(0.5);
            let is_training = node.call.flag("train") && run.mode == RunMode::Training;
            // The draws of whole channels are the same for all their elements.
            let result = match is_training && share > 0.0 {
                true if node.base == "feature_dropout" => drop_channels(run, &first, source, share),
                true => run.drop_out(source, share),
                false => source,
            };
            Ok(Some(vec![Tensor::real(first.sizes, result)]))
        }
        "bernoulli" => {
            let first = run.first(node)?;
            let share = number(node, "p").unwrap_or(0.5);
            let draws: Vec<T> = match run.mode {
                RunMode::Evaluation => vec![T::from_f64(share); first.count()],
                RunMode::Training => (0..first.count())
                    .map(|_| match crate::rng::uniform(&mut run.random) < share {
                        true => T::ONE,
                        false => T::ZERO,
                    })
                    .collect(),
            };
            let draws = run.tape.leaf(draws, false);
            Ok(Some(vec![Tensor::real(first.sizes, draws)]))
        }
        "addcmul" | "addcdiv" => {
            let names = ["self", "tensor1", "tensor2"];
            let [first, a, b] = operands(run, node, names)?;
            let product =
                if node.base == "addcmul" { run.multiply(a, b) } else { run.divide(a, b) };
            let product = run.scale(product, number(node, "value").unwrap_or(1.0));
            let sum = run.add(first, product);
            Ok(Some(vec![Tensor::real(node.sizes.clone(), sum)]))
        }
        "lerp" => {
            let [from, to, weight] = operands(run, node, ["self", "end", "weight"])?;
            let way = run.subtract(to, from);
            let part = run.multiply(way, weight);
            let sum = run.add(from, part);
            Ok(Some(vec![Tensor::real(node.sizes.clone(), sum)]))
        }
        "glu" => {
            let first = run.first(node)?;
            let dim = node.call.dim("dim", -1, first.sizes.len())?;
            let [value, gate] = [0, node.sizes[dim]].map(|from| {
                let part = super::views::part(run, &first, dim, (from, 1), node.sizes.clone());
                run.real(&part)
            });
            let gate = run.tape.map(gate, sigmoid);
            Ok(Some(vec![Tensor::real(node.sizes.clone(), run.multiply(value, gate))]))
        }
        "where" => choice(run, node, ["condition", "self", "other"]),
        "masked_fill" => choice(run, node, ["mask", "value", "self"]),
        _ => two(run, node),
    }
}

/// A number of an argument.
pub(super) fn number(node: &NodeCall<'_>, name: &str) -> Option<f64> {
    node.call.number(name).map(|number| match number {
        Number::Int(integer) => integer as f64,
        Number::Float(number) => number,
        Number::Bool(holds) => f64::from(u8::from(holds)),
    })
}

fn text<'a>(node: &'a NodeCall<'_>, name: &str) -> &'a str {
    match node.call.argument(name) {
        Some(crate::graph::Argument::Text(text)) => text,
        _ => "",
    }
}

/// Real operands, repeated to the sizes of the result.
fn operands<T: Real, const N: usize>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    names: [&str; N],
) -> Result<[Var; N], RunFailure> {
    let mut all = [None; N];
    for (slot, name) in all.iter_mut().zip(names) {
        let tensor = run.tensor(node, name)?;
        *slot = Some(run.spread_real(&tensor, &node.sizes));
    }
    let missing = || RunFailure::graph("an argument is missing");
    all.iter()
        .copied()
        .collect::<Option<Vec<Var>>>()
        .and_then(|all| all.try_into().ok())
        .ok_or_else(missing)
}

fn drop_channels<T: Real>(run: &mut Run<'_, T>, first: &Tensor, source: Var, share: f64) -> Var {
    let channels = count(first.sizes.get(..2).unwrap_or(&first.sizes));
    let ones = run.constant(channels, 1.0);
    let draws = run.drop_out(ones, share);
    let draws = run.repeat(draws, first.count() / channels.max(1));
    run.multiply(source, draws)
}

/// Elements of the tensor `names[1]` where `names[0]` holds, those of `names[2]` elsewhere.
fn choice<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>, names: [&str; 3]) -> Results {
    let mut given = Vec::with_capacity(names.len());
    for name in names {
        let tensor = run.tensor(node, name)?;
        given.push(run.spread(&tensor, &node.sizes));
    }
    let [condition, a, b] = given.as_slice() else { return Ok(None) };
    let condition = run.whole(condition);
    if !node.is_real {
        let (a, b) = (run.whole(a), run.whole(b));
        let both = a.iter().zip(b.iter()).zip(condition.iter());
        let numbers = both.map(|((&a, &b), &holds)| if holds == 0 { b } else { a }).collect();
        return Ok(Some(vec![Tensor::whole(node.sizes.clone(), numbers)]));
    }
    let (a, b) = (run.real(a), run.real(b));
    Ok(Some(vec![Tensor::real(node.sizes.clone(), choose(run, &condition, a, b))]))
}

/// The elements of `a` where a condition holds, those of `b` elsewhere.
pub(super) fn choose<T: Real>(run: &mut Run<'_, T>, condition: &[i64], a: Var, b: Var) -> Var {
    let mut holds = condition.iter();
    run.tape.zip(a, b, |a, b| match holds.next() {
        Some(0) | None => (b, T::ZERO, T::ONE),
        Some(_) => (a, T::ONE, T::ZERO),
    })
}

/// Functions of two operands.
fn two<T: Real>(run: &mut Run<'_, T>, node: &NodeCall<'_>) -> Results {
    let exponent = node.base == "pow";
    if let Some(compare) = comparison(node.base) {
        let (a, b) = (run.first(node)?, run.optional(node, "other"));
        let a = run.spread_real(&a, &node.sizes);
        let b = match b {
            Some(b) => run.spread_real(&b, &node.sizes),
            None => run.constant(count(&node.sizes), 0.0),
        };
        let (a, b) = (run.tape.numbers(a), run.tape.numbers(b));
        let holds = a.iter().zip(b.iter()).map(|(a, b)| compare(a.to_f64(), b.to_f64()).into());
        return Ok(Some(vec![Tensor::whole(node.sizes.clone(), holds.collect())]));
    }
    let known = matches!(
        node.base,
        "add"
            | "sub"
            | "subtract"
            | "rsub"
            | "mul"
            | "multiply"
            | "div"
            | "divide"
            | "true_divide"
            | "maximum"
            | "minimum"
            | "floor_divide"
            | "remainder"
            | "pow"
    ) || matches!(node.name, "max.other" | "min.other");
    if !known {
        return Ok(None);
    }
    let (a, b) = (run.first(node)?, run.tensor(node, if exponent { "exponent" } else { "other" })?);
    let factor = number(node, "alpha").unwrap_or(1.0);
    if !node.is_real {
        return whole_pair(run, node, &a, &b, factor);
    }
    let (a, b) = (run.spread_real(&a, &node.sizes), run.spread_real(&b, &node.sizes));
    let result = match node.base {
        "add" | "sub" | "subtract" => {
            let b = if factor == 1.0 { b } else { run.scale(b, factor) };
            if node.base == "add" { run.add(a, b) } else { run.subtract(a, b) }
        }
        "rsub" => {
            let a = if factor == 1.0 { a } else { run.scale(a, factor) };
            run.subtract(b, a)
        }
        "mul" | "multiply" => run.multiply(a, b),
        "div" | "divide" | "true_divide" if text(node, "rounding_mode").is_empty() => {
            run.divide(a, b)
        }
        "maximum" | "max" => run.tape.zip(a, b, |a, b| larger(a, b)),
        "minimum" | "min" => run.tape.zip(a, b, |a, b| {
            let (least, by_a, by_b) = larger(T::ZERO - a, T::ZERO - b);
            (T::ZERO - least, by_a, by_b)
        }),
        "pow" => run.tape.zip(a, b, |x, y| {
            let value = x.power(y);
            (value, y * x.power(y - T::ONE), value * x.ln())
        }),
        _ => {
            return Err(RunFailure::graph(format!(
                "this engine has no {} of real numbers",
                node.name
            )));
        }
    };
    Ok(Some(vec![Tensor::real(node.sizes.clone(), result)]))
}

/// The larger of two numbers; equal ones share the derivative, as in PyTorch.
fn larger<T: Real>(a: T, b: T) -> (T, T, T) {
    let half = T::from_f64(0.5);
    match a.partial_cmp(&b) {
        Some(std::cmp::Ordering::Greater) => (a, T::ONE, T::ZERO),
        Some(std::cmp::Ordering::Less) => (b, T::ZERO, T::ONE),
        Some(std::cmp::Ordering::Equal) => (a, half, half),
        None => (a + b, half, half),
    }
}

fn whole_pair<T: Real>(
    run: &mut Run<'_, T>,
    node: &NodeCall<'_>,
    a: &Tensor,
    b: &Tensor,
    factor: f64,
) -> Results {
    let (a, b) = (run.spread(a, &node.sizes), run.spread(b, &node.sizes));
    let (a, b) = (run.whole(&a), run.whole(&b));
    let factor = factor as i64;
    let function = |a: i64, b: i64| -> Option<i64> {
        match (node.base, text(node, "rounding_mode")) {
            ("add", _) => a.checked_add(b.checked_mul(factor)?),
            ("sub" | "subtract", _) => a.checked_sub(b.checked_mul(factor)?),
            ("rsub", _) => b.checked_sub(a.checked_mul(factor)?),
            ("mul" | "multiply", _) => a.checked_mul(b),
            ("maximum" | "max", _) => Some(a.max(b)),
            ("minimum" | "min", _) => Some(a.min(b)),
            ("floor_divide", _) | ("div", "floor") => floor_div(a, b),
            ("div", "trunc") => a.checked_div(b),
            ("remainder", _) => a.checked_sub(floor_div(a, b)?.checked_mul(b)?),
            _ => None,
        }
    };
    let numbers = a.iter().zip(b.iter()).map(|(&a, &b)| function(a, b));
    let numbers = numbers.collect::<Option<Vec<i64>>>();
    let why = || RunFailure::Value(format!("{} of integers overflows or divides by 0", node.base));
    Ok(Some(vec![Tensor::whole(node.sizes.clone(), numbers.ok_or_else(why)?)]))
}

/// Comparisons and logic; a function of one operand has 0 as the second.
fn comparison(base: &str) -> Option<fn(f64, f64) -> bool> {
    Some(match base {
        "eq" => |a, b| a == b,
        "ne" => |a, b| a != b,
        "lt" => |a, b| a < b,
        "le" => |a, b| a <= b,
        "gt" => |a, b| a > b,
        "ge" => |a, b| a >= b,
        "logical_and" | "bitwise_and" | "__and__" => |a, b| a != 0.0 && b != 0.0,
        "logical_or" | "bitwise_or" | "__or__" => |a, b| a != 0.0 || b != 0.0,
        "logical_xor" | "bitwise_xor" => |a, b| (a != 0.0) != (b != 0.0),
        "logical_not" | "bitwise_not" => |a, _| a == 0.0,
        "isnan" => |a, _| a.is_nan(),
        "isinf" => |a, _| a.is_infinite(),
        _ => return None,
    })
}

/// Functions of one operand.
fn function<T: Real>(node: &NodeCall<'_>) -> Option<Function<T>> {
    let given = |name: &str, default: f64| T::from_f64(number(node, name).unwrap_or(default));
    let (zero, one) = (T::ZERO, T::ONE);
    Some(match node.base {
        "relu" => Box::new(move |x| if x <= zero { (zero, zero) } else { (x, one) }),
        "relu6" => clamp_open(zero, T::from_f64(6.0)),
        "hardtanh" => clamp_open(given("min_val", -1.0), given("max_val", 1.0)),
        "leaky_relu" => {
            let slope = given("negative_slope", 0.01);
            Box::new(move |x| if x > zero { (x, one) } else { (x * slope, slope) })
        }
        "elu" | "celu" => {
            let alpha = given("alpha", 1.0);
            let rate = if node.base == "celu" { one / alpha } else { given("input_scale", 1.0) };
            elu(alpha, given("scale", 1.0), rate)
        }
        "selu" => {
            elu(T::from_f64(1.673_263_242_354_377_2), T::from_f64(1.050_700_987_355_480_5), one)
        }
        "gelu" if text(node, "approximate") == "tanh" => Box::new(gelu_tanh),
        "gelu" => Box::new(gelu),
        "silu" => Box::new(|x| {
            let (share, slope) = sigmoid(x);
            (x * share, share + x * slope)
        }),
        "mish" => Box::new(|x| {
            let (share, _) = sigmoid(x);
            let (y, slope) = tanh(softplus(x));
            (x * y, y + x * slope * share)
        }),
        "sigmoid" => Box::new(sigmoid),
        "log_sigmoid" => Box::new(|x| {
            let (share, _) = sigmoid(T::ZERO - x);
            (T::ZERO - softplus(T::ZERO - x), share)
        }),
        "softplus" => {
            let (beta, most) = (given("beta", 1.0), given("threshold", 20.0));
            Box::new(move |x| match x * beta > most {
                true => (x, T::ONE),
                false => (softplus(x * beta) / beta, sigmoid(x * beta).0),
            })
        }
        "hardsigmoid" => Box::new(hard_gate),
        "hardswish" => Box::new(|x| {
            let (gate, slope) = hard_gate(x);
            (x * gate, gate + x * slope)
        }),
        "clamp" | "clip" | "clamp_min" | "clamp_max" => {
            if node.name.ends_with("Tensor") {
                return None;
            }
            clamp_closed(given("min", f64::NEG_INFINITY), given("max", f64::INFINITY))
        }
        "pow" if node.name.ends_with("Tensor_Scalar") || node.name == "pow_.Scalar" => {
            power(number(node, "exponent")?)
        }
        base => plain_function(base, node.is_real)?,
    })
}

/// Functions without further arguments.
fn plain_function<T: Real>(base: &str, is_real: bool) -> Option<Function<T>> {
    let (zero, one) = (T::ZERO, T::ONE);
    Some(match base {
        "neg" | "negative" => Box::new(move |x| (zero - x, zero - one)),
        "abs" | "absolute" => Box::new(move |x| (x.magnitude(), sign(x))),
        "sign" => Box::new(move |x| (sign(x), zero)),
        "square" => Box::new(|x| (x * x, x + x)),
        "exp" => Box::new(|x| (x.exp(), x.exp())),
        "expm1" => Box::new(|x| (x.exp_m1(), x.exp())),
        "log" => Box::new(move |x| (x.ln(), one / x)),
        "log1p" => Box::new(move |x| (x.ln_1p(), one / (one + x))),
        "sqrt" => Box::new(move |x| (x.root(), one / (x.root() + x.root()))),
        "rsqrt" => Box::new(move |x| {
            let y = one / x.root();
            (y, zero - y / (x + x))
        }),
        "reciprocal" => Box::new(move |x| (one / x, zero - one / (x * x))),
        "sin" => Box::new(|x| (x.sine(), x.cosine())),
        "cos" => Box::new(move |x| (x.cosine(), zero - x.sine())),
        "tanh" => Box::new(tanh),
        "erf" => Box::new(|x| (x.erf(), T::from_f64(2.0 * SQRT_1_PI) * (T::ZERO - x * x).exp())),
        "floor" if is_real => Box::new(move |x| (x.floor(), zero)),
        "ceil" if is_real => Box::new(move |x| (zero - (zero - x).floor(), zero)),
        _ => return None,
    })
}

/// `1 / √π`.
const SQRT_1_PI: f64 = 0.564_189_583_547_756_3;
/// `√(2 / π)`.
const SQRT_2_PI: f64 = 0.797_884_560_802_865_4;
/// The factor of the cube in the approximation of GELU (Hendrycks and Gimpel 2016).
const GELU_CUBE: f64 = 0.044_715;

pub(super) fn sign<T: Real>(x: T) -> T {
    if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ZERO - T::ONE
    } else {
        T::ZERO
    }
}

pub(super) fn sigmoid<T: Real>(x: T) -> (T, T) {
    let share = T::ONE / (T::ONE + (T::ZERO - x).exp());
    (share, share * (T::ONE - share))
}

fn tanh<T: Real>(x: T) -> (T, T) {
    let y = x.tanh();
    (y, T::ONE - y * y)
}

/// `ln(1 + eˣ)`, which does not overflow.
pub(super) fn softplus<T: Real>(x: T) -> T {
    let most = if x > T::ZERO { x } else { T::ZERO };
    most + (T::ZERO - x.magnitude()).exp().ln_1p()
}

fn gelu<T: Real>(x: T) -> (T, T) {
    let half = T::from_f64(0.5);
    let below = half * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf());
    let density = T::from_f64(0.5 * SQRT_2_PI) * (T::ZERO - half * x * x).exp();
    (x * below, below + x * density)
}

fn gelu_tanh<T: Real>(x: T) -> (T, T) {
    let (half, cube, rate) = (T::from_f64(0.5), T::from_f64(GELU_CUBE), T::from_f64(SQRT_2_PI));
    let (y, slope) = tanh(rate * (x + cube * x * x * x));
    let inner = rate * (T::ONE + T::from_f64(3.0) * cube * x * x);
    (half * x * (T::ONE + y), half * (T::ONE + y) + half * x * slope * inner)
}

/// `clamp(x + 3, 0, 6) / 6`.
fn hard_gate<T: Real>(x: T) -> (T, T) {
    let six = T::from_f64(6.0);
    let (gate, slope) = clamp_closed(T::ZERO, six)(x + T::from_f64(3.0));
    (gate / six, slope / six)
}

fn elu<T: Real>(alpha: T, scale: T, rate: T) -> Function<T> {
    Box::new(move |x| match x > T::ZERO {
        true => (scale * x, scale),
        false => {
            let below = scale * alpha;
            (below * (x * rate).exp_m1(), below * rate * (x * rate).exp())
        }
    })
}

/// A clamp whose derivative is 0 at its ends.
fn clamp_open<T: Real>(least: T, most: T) -> Function<T> {
    Box::new(move |x| {
        if x > least && x < most {
            (x, T::ONE)
        } else if x <= least {
            (least, T::ZERO)
        } else if x >= most {
            (most, T::ZERO)
        } else {
            (x, T::ZERO)
        }
    })
}

/// A clamp whose derivative is 1 at its ends.
fn clamp_closed<T: Real>(least: T, most: T) -> Function<T> {
    Box::new(move |x| {
        if x < least {
            (least, T::ZERO)
        } else if x > most {
            (most, T::ZERO)
        } else {
            (x, T::ONE)
        }
    })
}

fn power<T: Real>(exponent: f64) -> Function<T> {
    let given = T::from_f64(exponent);
    if exponent == 2.0 {
        return Box::new(|x| (x * x, x + x));
    }
    if exponent == 3.0 {
        return Box::new(|x| (x * x * x, T::from_f64(3.0) * x * x));
    }
    if exponent == 0.5 {
        return Box::new(|x| (x.root(), T::ONE / (x.root() + x.root())));
    }
    Box::new(move |x| match exponent == 0.0 {
        true => (T::ONE, T::ZERO),
        false => (x.power(given), given * x.power(given - T::ONE)),
    })
}
