//! Compiles the C++ that calls libtorch's dispatcher, with the headers of the libtorch that `tch`
//! links.

use std::env;
use std::path::PathBuf;

fn main() {
    println!("cargo::rerun-if-changed=src/torch/dispatch/dispatch.cpp");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    if env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    let Some(libtorch) = env::var_os("LIBTORCH").map(PathBuf::from) else {
        println!("cargo::error=LIBTORCH is not set: run `cargo xtask setup`");
        return;
    };
    let include = libtorch.join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .warnings(false)
        .file("src/torch/dispatch/dispatch.cpp")
        .compile("florin_aten_dispatch");
}
