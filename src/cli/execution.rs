//! Arguments about how the devices of a participant train a graph.

use std::ops::Range;

use clap::Args;
use florin_learning::pipeline::{PARTS_MAX, PartPlacement, PinnedCut};
use florin_learning::ranks::{PipelineSettings, RANK_SECONDS};
use florin_learning::reduction::ReductionPlan;
use florin_learning::virtual_workers::VIRTUAL_WORKERS_MAX;
use florin_learning::{Execution, Precision};

/// Help heading of the options about several processes.
const RANKS: &str = "Several processes (started by torchrun, srun or mpirun)";
/// Virtual workers of several processes, at least, unless a number is given.
const DEFAULT_WORKERS: u32 = 8;

/// How the device trains a graph.
#[derive(Debug, Args)]
pub(crate) struct ExecutionArg {
    /// Type of products in the training of a graph: f32, bf16 or f16. The update has 32 bits
    #[arg(long, value_name = "TYPE", default_value_t = Precision::F32, env = "FLORIN_PRECISION",
          conflicts_with = "noise")]
    pub(crate) precision: Precision,
    /// Memory for the intermediate results of a step of a graph, in GiB: a larger batch is computed in
    /// parts, or its tensors leave the memory and return [default: half of the free memory, or nine
    /// tenths of what the GPU has free]
    #[arg(long, value_name = "GIB", value_parser = parse_gib)]
    pub(crate) memory: Option<MemoryBytes>,
    /// Share each batch of a graph among N virtual workers, which any number of processes compute: the
    /// bits of the update do not depend on them, and a stopped training continues where it was
    /// [default: none for one process; for several 8, or the next power of two]
    #[arg(long, value_name = "N", help_heading = RANKS, conflicts_with_all = ["noise", "trainer"],
          value_parser = clap::value_parser!(u32).range(1..=i64::from(VIRTUAL_WORKERS_MAX)))]
    pub(crate) virtual_workers: Option<u32>,
    /// The longest wait for another process of the training
    #[arg(long, value_name = "SECONDS", help_heading = RANKS, default_value_t = RANK_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) rank_timeout: u64,
    /// Network interface on which the processes reach each other [default: that of the host name]
    #[arg(long, value_name = "NAME", help_heading = RANKS, env = "GLOO_SOCKET_IFNAME")]
    pub(crate) rank_interface: Option<String>,
    /// The virtual workers of each process, in the order of their ranks, such as 0..5,5..8
    /// [default: by measured speeds]
    #[arg(long, value_name = "A..B,…", help_heading = RANKS, value_parser = parse_worker_ranges)]
    pub(crate) rank_plan: Option<WorkerRanges>,
    /// The plan by which the gradients of the processes are added, as it was printed, such as
    /// chunks=8,inner=halving,levels=3,outer=tree [default: the fastest by measured links]
    #[arg(long, value_name = "PLAN", help_heading = RANKS)]
    pub(crate) rank_reduction: Option<ReductionPlan>,
    /// Cut the graph into P parts, each on a process of its own: they form pipelines of P processes, and the
    /// bits of the update stay the same [default: each process has the whole graph]
    #[arg(long, value_name = "P", help_heading = RANKS, conflicts_with = "rank_reduction",
          value_parser = clap::value_parser!(u32).range(2..=i64::from(PARTS_MAX)))]
    pub(crate) rank_pipeline: Option<u32>,
    /// The first nodes of all parts but the first, as they were printed, such as cut=12,40
    /// [default: by measured costs]
    #[arg(long, value_name = "CUT", help_heading = RANKS, requires = "rank_pipeline")]
    pub(crate) rank_cut: Option<PinnedCut>,
    /// Let rank 0 alone have the rows and their labels: it computes the first and the last of P + 1 parts,
    /// and the other processes of the one pipeline need no data
    #[arg(long, help_heading = RANKS)]
    pub(crate) rank_private: bool,
}

/// Virtual workers of several processes, unless a number is given: the same for 2 to 8 processes.
fn default_workers(ranks: u32) -> u32 {
    ranks.max(DEFAULT_WORKERS).next_power_of_two().min(VIRTUAL_WORKERS_MAX)
}

/// A size of memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemoryBytes(pub(crate) u64);

/// Most memory of an argument, in GiB.
const GIB_MAX: f64 = 65_536.0;

fn parse_gib(text: &str) -> Result<MemoryBytes, String> {
    let gib = text.parse::<f64>().ok().filter(|gib| *gib > 0.0 && *gib <= GIB_MAX);
    let bytes = gib.map(|gib| MemoryBytes((gib * 1_073_741_824.0) as u64));
    bytes
        .ok_or_else(|| format!("use a number of GiB above 0 and up to {GIB_MAX}, such as 2 or 0.5"))
}

/// The virtual workers of each rank.
#[derive(Debug, Clone)]
pub(crate) struct WorkerRanges(pub(crate) Vec<Range<u32>>);

fn parse_worker_ranges(text: &str) -> Result<WorkerRanges, String> {
    let range = |text: &str| {
        let (from, to) = text.trim().split_once("..")?;
        Some(from.parse::<u32>().ok()?..to.parse::<u32>().ok()?)
    };
    let ranges: Option<Vec<Range<u32>>> = text.split(',').map(range).collect();
    ranges.map(WorkerRanges).ok_or_else(|| "use a range for each process: 0..5,5..8".to_owned())
}

impl ExecutionArg {
    /// The parts of a pipeline.
    pub(crate) fn pipeline(&self) -> Option<PipelineSettings> {
        let cut = self.rank_cut.clone();
        let placement = match self.rank_private {
            true => PartPlacement::EndsTogether,
            false => PartPlacement::Separate,
        };
        self.rank_pipeline.map(|processes| PipelineSettings { processes, placement, cut })
    }

    /// The settings of a training on this number of processes, if there are several.
    pub(crate) fn settings(&self, ranks: Option<u32>) -> Execution {
        let memory_bytes = self.memory.map(|memory| memory.0);
        let virtual_workers = self.virtual_workers.or(ranks.map(default_workers));
        Execution { precision: self.precision, memory_bytes, virtual_workers }
    }
}
