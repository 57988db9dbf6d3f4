//! Compiles the C++ beside `tch`, with the headers of the libtorch that `tch` links: the call of its
//! dispatcher, the tape of a step, copies beside computations, hooks of gradients, a backward pass from several
//! tensors, and c10d, its library of collectives.

#[path = "lazy_binding/mod.rs"]
mod lazy_binding;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The headers of Gloo that c10d includes and that libtorch's wheel lacks.
const GLOO_HEADERS: [&str; 6] = [
    "algorithm.h",
    "config.h",
    "context.h",
    "common/error.h",
    "rendezvous/store.h",
    "transport/device.h",
];

fn main() {
    println!("cargo::rerun-if-changed=src/torch/dispatch/dispatch.cpp");
    println!("cargo::rerun-if-changed=src/torch/backward/backward.cpp");
    println!("cargo::rerun-if-changed=src/torch/guarded.h");
    println!("cargo::rerun-if-changed=src/torch/gradient_hooks/gradient_hooks.cpp");
    println!("cargo::rerun-if-changed=src/torch/side_stream/side_stream.cpp");
    println!("cargo::rerun-if-changed=src/torch/tape/tape.cpp");
    println!("cargo::rerun-if-changed=src/torch/c10d");
    println!("cargo::rerun-if-changed=lazy_binding");
    println!("cargo::rerun-if-env-changed=LIBTORCH_STATIC");
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    println!("cargo::rustc-check-cfg=cfg(florin_lazy_torch)");
    if env::var_os("CARGO_FEATURE_TORCH").is_none() {
        return;
    }
    let Some(libtorch) = env::var_os("LIBTORCH").map(PathBuf::from) else {
        println!("cargo::error=LIBTORCH is not set: run `cargo xtask setup`");
        return;
    };
    let include = libtorch.join("include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .include(&include)
        .include(include.join("torch/csrc/api/include"))
        .include("src/torch")
        .warnings(false)
        .file("src/torch/dispatch/dispatch.cpp")
        .file("src/torch/gradient_hooks/gradient_hooks.cpp")
        .file("src/torch/side_stream/side_stream.cpp")
        .file("src/torch/tape/tape.cpp")
        .file("src/torch/backward/backward.cpp");
    if env::var_os("CARGO_FEATURE_DISTRIBUTED").is_some() {
        let headers = match gloo_headers() {
            Ok(folder) => folder,
            Err(error) => {
                println!("cargo::error=the declarations of Gloo cannot be written: {error}");
                return;
            }
        };
        build
            .define("USE_DISTRIBUTED", None)
            .define("USE_C10D_GLOO", None)
            .include("src/torch/c10d")
            .include(headers)
            .file("src/torch/c10d/c10d.cpp");
    }
    let is_lazy = lazy_binding::is_supported();
    if is_lazy {
        println!("cargo::rustc-cfg=florin_lazy_torch");
    }
    build.cargo_metadata(!is_lazy).pic(true).compile("florin_aten_dispatch");
    if is_lazy {
        let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
        let ours = out.join("libflorin_aten_dispatch.a");
        if let Err(error) = lazy_binding::bind(&libtorch, &out, &ours) {
            println!("cargo::error=libtorch cannot be bound: {error}");
        }
    }
}

/// A folder in which each header of Gloo is our own declarations.
fn gloo_headers() -> std::io::Result<PathBuf> {
    let out = env::var_os("OUT_DIR").unwrap_or_default();
    let folder = Path::new(&out).join("include");
    for header in GLOO_HEADERS {
        let file = folder.join("gloo").join(header);
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(file, "#include \"gloo.h\"\n")?;
    }
    Ok(folder)
}
