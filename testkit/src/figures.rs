//! Figures that tests measure. `cargo xtask bench keys` names a file in the environment, runs the
//! tests and prints the figures.

use std::fs::OpenOptions;
use std::io::Write;

/// The variable that names the file. Without it, figures are not written.
const FILE: &str = "FLORIN_FIGURES";

/// The target of a figure.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    None,
    AtMost(f64),
    AtLeast(f64),
}

/// Appends a figure as one line of JSON.
pub fn figure(name: &str, value: f64, unit: &str, bar: Bar) {
    let Some(path) = std::env::var_os(FILE) else { return };
    let bar = match bar {
        Bar::None => String::new(),
        Bar::AtMost(most) => format!(",\"at_most\":{most}"),
        Bar::AtLeast(least) => format!(",\"at_least\":{least}"),
    };
    let line = format!("{{\"name\":{name:?},\"value\":{value},\"unit\":{unit:?}{bar}}}\n");
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    // One write, because tests run at the same time.
    file.write_all(line.as_bytes()).unwrap();
}
