//! The library half of the program `florin`.
//!
//! [`program`] is the command line. The programs in `tests/bench` and `tests/fuzz` use the public
//! modules: the task file, printing, failures, the log, traces, and the demonstration's plan and data. The
//! library has no other users, and its interface may change with every commit.
//!
//! Inside, `cli` is the command tree, `commands` has one file per command, and `compose` selects the
//! engine and the ledger. The library never computes scores or moves money: the crates that it calls
//! do.

mod anvil;
mod cli;
mod commands;
mod compose;
pub mod demo;
#[cfg(feature = "ethereum")]
mod ethereum;
#[cfg(not(feature = "ethereum"))]
#[path = "without_ethereum.rs"]
mod ethereum;
mod evaluation;
mod exit_with_parent;
pub mod failure;
mod file_size_limit;
mod genesis_file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
#[cfg(not(feature = "kubernetes"))]
#[path = "without_kubernetes.rs"]
mod kubernetes;
mod kubernetes_plan;
pub mod log;
mod loss_text;
mod machine_facts;
mod market;
pub mod open_files;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(not(feature = "otlp"))]
#[path = "without_otlp.rs"]
mod otlp;
pub mod program;
pub mod progress;
mod rent;
pub mod show;
mod small_file;
pub mod task_file;
mod toml_words;
pub mod trace;
mod usage;

use mimalloc::MiMalloc;

/// The allocator of every program on this library, so that benchmarks measure the allocator that
/// the market uses. The default allocator retains freed memory per thread, so a coordinator's
/// resident memory grew: decision 33.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
