//! Says at once, and in our own words, that libtorch is missing: the crate that links it would say so much later, and
//! would advise something that this project does otherwise.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let wanted = std::env::var_os("CARGO_FEATURE_TORCH").is_some();
    let Some(folder) = std::env::var_os("LIBTORCH").filter(|_| wanted) else { return };
    let library = Path::new(&folder).join("lib/libtorch_cpu.so");
    if !library.exists() {
        println!(
            "cargo::error=[TORCH_MISSING] {} is not there: run `cargo xtask setup`, which fetches it, or point \
             LIBTORCH at a libtorch 2.11, or build with --no-default-features for the plain-Rust engine",
            library.display()
        );
    }
}
