//! Functions of sizes, with the semantics of Python's integers and floats.

/// A size, or a number computed from sizes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
    Bool(bool),
}

impl Number {
    fn float(self) -> f64 {
        match self {
            Self::Int(integer) => integer as f64,
            Self::Float(number) => number,
            Self::Bool(holds) => f64::from(u8::from(holds)),
        }
    }

    fn int(self) -> Option<i64> {
        match self {
            Self::Int(integer) => Some(integer),
            Self::Float(_) => None,
            Self::Bool(holds) => Some(holds.into()),
        }
    }
}

/// The value of a function; `None` for an unknown one, operands of another type, an overflow and a
/// division by zero.
pub(super) fn evaluate(name: &str, operands: &[Number]) -> Option<Number> {
    match operands {
        [a] => of_one(name, *a),
        [a, b] => match (a.int(), b.int()) {
            (Some(a), Some(b)) => {
                of_integers(name, a, b).or_else(|| of_floats(name, a as f64, b as f64))
            }
            _ => of_floats(name, a.float(), b.float()),
        },
        _ => None,
    }
}

fn of_one(name: &str, a: Number) -> Option<Number> {
    Some(match (name, a) {
        ("neg", Number::Int(a)) => Number::Int(a.checked_neg()?),
        ("neg", a) => Number::Float(-a.float()),
        ("sym_not", a) => Number::Bool(a.float() == 0.0),
        ("sym_float", a) => Number::Float(a.float()),
        ("sym_int" | "trunc", a) => Number::Int(whole(a.float().trunc())?),
        ("ceil", a) => Number::Int(whole(a.float().ceil())?),
        ("floor", a) => Number::Int(whole(a.float().floor())?),
        _ => return None,
    })
}

fn of_integers(name: &str, a: i64, b: i64) -> Option<Number> {
    Some(match name {
        "add" => Number::Int(a.checked_add(b)?),
        "sub" => Number::Int(a.checked_sub(b)?),
        "mul" => Number::Int(a.checked_mul(b)?),
        "floordiv" => Number::Int(floor_div(a, b)?),
        "mod" => Number::Int(a.checked_sub(floor_div(a, b)?.checked_mul(b)?)?),
        "pow" => Number::Int(a.checked_pow(u32::try_from(b).ok()?)?),
        "sym_max" => Number::Int(a.max(b)),
        "sym_min" => Number::Int(a.min(b)),
        "and_" => Number::Bool(a != 0 && b != 0),
        "or_" => Number::Bool(a != 0 || b != 0),
        _ => return None,
    })
}

/// Rounded towards negative infinity, as Python divides integers.
pub(crate) fn floor_div(a: i64, b: i64) -> Option<i64> {
    let quotient = a.checked_div(b)?;
    Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
}

fn of_floats(name: &str, a: f64, b: f64) -> Option<Number> {
    Some(match name {
        "add" => Number::Float(a + b),
        "sub" => Number::Float(a - b),
        "mul" => Number::Float(a * b),
        "truediv" if b != 0.0 => Number::Float(a / b),
        "floordiv" if b != 0.0 => Number::Float((a / b).floor()),
        "pow" => Number::Float(a.powf(b)),
        "sym_max" => Number::Float(a.max(b)),
        "sym_min" => Number::Float(a.min(b)),
        "eq" => Number::Bool(a == b),
        "ne" => Number::Bool(a != b),
        "lt" => Number::Bool(a < b),
        "le" => Number::Bool(a <= b),
        "gt" => Number::Bool(a > b),
        "ge" => Number::Bool(a >= b),
        _ => return None,
    })
}

fn whole(number: f64) -> Option<i64> {
    (number.abs() < 9e15).then_some(number as i64)
}
