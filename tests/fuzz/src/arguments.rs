//! The arguments of `florin-fuzz`.

use std::path::PathBuf;

use clap::Parser;
use florin::log::LogOptions;

/// Fuzzes the program's parsers with broken inputs.
#[derive(Debug, Parser)]
#[command(name = "florin-fuzz", version, max_term_width = 100)]
pub(crate) struct FuzzArgs {
    /// Duration in seconds, after the corpus
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub(crate) seconds: u32,
    /// Seed of the mutations
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Corpus: a folder with one folder of inputs per target; a failing input is added to it
    #[arg(long, value_name = "DIR", default_value = "tests/fuzz/corpus")]
    pub(crate) corpus: PathBuf,
    /// Add up to N small inputs with distinct behaviour to the corpus of each target
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) add: u32,
    /// Run only this target, in this process
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// With --target: treat an outcome that contains this text as a panic, to test that the fuzzer
    /// reaches it
    #[arg(long, value_name = "TEXT", requires = "target")]
    pub(crate) inject: Option<String>,
    /// With --target: write each input to this file before it is tried
    #[arg(long, value_name = "FILE", requires = "target")]
    pub(crate) input: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogOptions,
}
