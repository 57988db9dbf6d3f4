//! Ranks: the processes that compute one member's training together.
//!
//! A launcher (torchrun, srun, mpirun, a Kubernetes job) starts the same command several times and
//! states in the environment which rank each process is. Rank 0 is the member of the market; the others
//! serve its trainings. Before the first training all of them compare what they compute.

mod error;
mod place;
mod rows;
#[cfg(not(feature = "distributed"))]
mod without;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use error::{RankError, RankErrorCode};
pub use place::{PlaceError, RANKS_MAX, RankPlace};
pub use rows::{RankRows, RowsShape, data_fingerprint};
#[cfg(not(feature = "distributed"))]
pub use without::Ranks;

#[cfg(feature = "distributed")]
pub use crate::torch::ranks::Ranks;

use crate::memory::MemorySettings;
use crate::pipeline::{PartPlacement, PinnedCut};
use crate::reduction::{ReadyStep, ReductionPlan};
use crate::training::Training;
use crate::virtual_workers::Assignment;

/// Seconds that a rank waits for another one, unless the caller sets another limit.
pub const RANK_SECONDS: u64 = 300;

/// Seconds of a worker on any rank, at most.
#[cfg(feature = "distributed")]
const SPEED_SECONDS_MAX: f64 = 1e9;

/// How a rank joins the others.
#[derive(Debug, Clone)]
pub struct RankSettings {
    /// Where it is among them.
    pub place: RankPlace,
    /// The name of its engine, with the device.
    pub device: String,
    /// Network interface of the transfers, such as `eth0`; `None` is the one of this machine's host
    /// name.
    pub interface: Option<String>,
    /// The longest wait for another rank.
    pub limit: Duration,
    /// The ranges of virtual workers by rank; `None` follows measured speeds.
    pub pinned: Option<Vec<Range<u32>>>,
    /// The plan by which gradients are added; `None` is the one that takes least by measured links.
    pub reduction: Option<ReductionPlan>,
    /// Whether gradients and parameters travel while others are computed; `None` decides by measured links
    /// and speeds: on fast links it takes longer than it saves.
    pub overlaps: Option<bool>,
    /// The parts of a pipeline; `None` computes the whole graph on each rank.
    pub pipeline: Option<PipelineSettings>,
    /// The rows of this rank.
    pub rows: RankRows,
    /// Where the tensors of steps go that are larger than the memory.
    pub memory: MemorySettings,
    /// Bytes of this rank's memory for the tensors of a step; `None` is half of what is free.
    pub memory_bytes: Option<u64>,
}

/// A graph in parts, on the ranks of a pipeline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipelineSettings {
    /// Ranks of each pipeline; they divide the number of ranks.
    pub processes: u32,
    /// The ranks of the parts.
    pub placement: PartPlacement,
    /// The first nodes of the parts; `None` follows measured costs.
    pub cut: Option<PinnedCut>,
}

/// The place of a rank in its pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PipelinePlace {
    /// The number of the rank in its pipeline.
    pub process: u32,
    /// Ranks of each pipeline.
    pub processes: u32,
    /// The ranks of the parts.
    pub placement: PartPlacement,
    /// The number of its pipeline.
    pub replica: u32,
    /// Pipelines, each with virtual workers of its own.
    pub replicas: u32,
}

impl PipelinePlace {
    /// Parts of the graph.
    #[must_use]
    pub fn parts(&self) -> u32 {
        self.placement.parts(self.processes)
    }

    /// Whether rows, labels and both ends of the graph stay with rank 0.
    #[must_use]
    pub fn is_private(&self) -> bool {
        self.placement == PartPlacement::EndsTogether
    }
}

impl PipelineSettings {
    /// The place of rank `rank` of `size`: the ranks of a pipeline follow each other.
    ///
    /// # Errors
    /// [`RankErrorCode::PlanInvalid`] if the ranks are not whole pipelines, or several with rows of rank 0
    /// alone, or if the cut has other parts.
    pub fn place(&self, rank: u32, size: u32) -> Result<PipelinePlace, RankError> {
        let (processes, placement) = (self.processes, self.placement);
        let invalid = |why: String| Err(RankError::new(RankErrorCode::PlanInvalid, why));
        if processes < 2 || size == 0 || !size.is_multiple_of(processes) {
            return invalid(format!(
                "{size} ranks are not pipelines of {processes} ranks: start a multiple of \
                 --rank-pipeline, which is 2 or more"
            ));
        }
        let (process, replica, replicas) = (rank % processes, rank / processes, size / processes);
        let place = PipelinePlace { process, processes, placement, replica, replicas };
        if place.is_private() && replicas > 1 {
            return invalid(format!(
                "{size} ranks are {replicas} pipelines of {processes}, and with --rank-private there \
                 is one: start {processes} ranks, or state --rank-pipeline {size}"
            ));
        }
        let parts = place.parts();
        if let Some(cut) = &self.cut
            && cut.parts() != parts as usize
        {
            let found = cut.parts();
            return invalid(format!(
                "--rank-cut has {found} parts, and the graph is cut into {parts}: --rank-pipeline \
                 states them, and --rank-private adds one"
            ));
        }
        Ok(place)
    }
}

/// The values, by name, about which all ranks must agree.
pub type RankFacts = BTreeMap<String, String>;

/// The fact that has the fingerprint of the rows.
pub const DATA_FACT: &str = "data";
/// The fact that states whether rank 0 alone has the rows.
pub const PRIVATE_FACT: &str = "--rank-private";

/// The measurements of a rank when it joined, by rank 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankCard {
    /// The rank.
    pub rank: u32,
    /// Name of its host.
    pub host: String,
    /// The vector instructions that libtorch uses there. Where they differ, bits may too.
    pub capability: String,
    /// Seconds for a transfer without bytes from rank 0 and back, halved.
    pub alpha: f64,
    /// Seconds for each byte of it.
    pub beta: f64,
}

/// News of ranks, for display.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RankNews {
    /// All ranks have joined and agree.
    Joined {
        /// Each of them.
        cards: Vec<RankCard>,
    },
    /// Virtual workers were assigned.
    Assigned {
        /// Ranges of workers by rank.
        ranges: Vec<Range<u32>>,
        /// Seconds for the gradient of one worker, by rank.
        worker_seconds: Vec<f64>,
        /// The plan by which gradients are added.
        reduction: ReductionPlan,
        /// The seconds that it takes after the last backward pass, by the measured links.
        reduction_seconds: f64,
        /// Whether numbers travel while others are computed.
        overlaps: bool,
    },
    /// The graph was cut into the parts of pipelines.
    Pipelined {
        /// The nodes of each part.
        nodes: Vec<Range<usize>>,
        /// The ranks of the parts.
        placement: PartPlacement,
        /// Ranges of workers by pipeline.
        workers: Vec<Range<u32>>,
        /// Seconds of the slowest part for one worker, by measured costs; none for a stated cut.
        stage_seconds: Option<f64>,
        /// The share of the time in which a part waits for others, if all take the same.
        bubble: f64,
    },
}

impl fmt::Display for RankNews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joined { cards } => {
                write!(f, "{} ranks have joined:", cards.len())?;
                for card in cards {
                    let RankCard { rank, host, capability, .. } = card;
                    write!(f, "\n  rank {rank:<4} {host:<24} {capability:<10}")?;
                    if *rank > 0 {
                        let (us, rate) = (card.alpha * 1e6, 1e-6 / card.beta.max(1e-12));
                        write!(f, " {us:>7.0} µs and {rate:>6.0} MB/s from rank 0")?;
                    }
                }
                let mut capabilities: Vec<&str> =
                    cards.iter().map(|card| card.capability.as_str()).collect();
                capabilities.dedup();
                if capabilities.len() > 1 {
                    f.write_str(
                        "\n  These processors differ: the bits of an update depend on which of them \
                         computes what",
                    )?;
                }
                Ok(())
            }
            Self::Assigned { ranges, worker_seconds, reduction, reduction_seconds, overlaps } => {
                f.write_str("virtual workers:")?;
                for (rank, (own, seconds)) in ranges.iter().zip(worker_seconds).enumerate() {
                    let ms = seconds * 1e3;
                    let own = format!("{}..{}", own.start, own.end);
                    write!(f, "\n  rank {rank:<4} {own:<10} {ms:>9.2} ms each")?;
                }
                let ms = reduction_seconds * 1e3;
                let behind = if *overlaps { ", and during them" } else { "" };
                write!(f, "\n  reduction {reduction}: {ms:.2} ms after the backward passes{behind}")
            }
            Self::Pipelined { nodes, placement, workers, stage_seconds, bubble } => {
                let cut = nodes.iter().skip(1).map(|own| own.start.to_string());
                let cut: Vec<String> = cut.collect();
                let (parts, count) = (nodes.len(), workers.len());
                let noun = if count == 1 { "pipeline" } else { "pipelines" };
                write!(f, "{count} {noun} of {parts} parts, cut={}:", cut.join(","))?;
                if let Some(seconds) = stage_seconds {
                    write!(f, " {:.2} ms a worker,", seconds * 1e3)?;
                }
                write!(f, " {:.0} % of the time waits for other parts", bubble * 100.0)?;
                let private = *placement == PartPlacement::EndsTogether;
                let processes = if private { parts.saturating_sub(1) } else { parts };
                if private {
                    f.write_str("\n  rank 0 has the rows, and the first and the last part")?;
                }
                for (replica, own) in workers.iter().enumerate() {
                    let (first, last) = (replica * processes, (replica + 1) * processes - 1);
                    let ranks = format!("{first} to {last}");
                    write!(f, "\n  ranks {ranks:<10} workers {}..{}", own.start, own.end)?;
                }
                Ok(())
            }
        }
    }
}

/// The assignment that a plan states for `ranks` ranks and `workers` virtual workers.
///
/// # Errors
/// [`RankErrorCode::PlanInvalid`] for other numbers of them.
pub fn check_plan(plan: &[Range<u32>], ranks: u32, workers: u32) -> Result<Assignment, RankError> {
    let invalid = |why: String| RankError::new(RankErrorCode::PlanInvalid, why);
    if plan.len() != ranks as usize {
        let why = format!(
            "the plan has {} ranges, but there are {ranks} ranks, or pipelines of ranks: pin a plan of this \
             launch, or none",
            plan.len()
        );
        return Err(invalid(why));
    }
    Assignment::from_ranges(plan.to_vec(), workers)
        .map_err(|error| invalid(format!("the plan is for other virtual workers: {error}")))
}

/// Receives news of ranks.
pub type RankNotify = Box<dyn Fn(&RankNews) + Send + Sync>;

/// Work that rank 0 announces to the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[cfg_attr(not(feature = "distributed"), expect(dead_code, reason = "there are no ranks"))]
pub(crate) enum RankJob {
    /// A training.
    Train(RankTraining),
    /// No work follows.
    Finish,
}

/// The measured speed of a rank.
#[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "no rank is measured"))]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankSpeed {
    /// Seconds for the gradient of one worker.
    pub(crate) worker_seconds: f64,
    /// The elements of the gradient, as its backward pass computes them, in seconds from its begin.
    pub(crate) ready: Vec<ReadyStep>,
}

#[cfg(feature = "distributed")]
impl RankSpeed {
    /// The speed that a rank states, if it can be one.
    pub(crate) fn check(self, rank: u32) -> Result<Self, RankError> {
        let mut seconds = self.ready.iter().map(|step| step.seconds).chain([self.worker_seconds]);
        let is_time = |seconds: f64| (0.0..=SPEED_SECONDS_MAX).contains(&seconds);
        if self.worker_seconds > 0.0 && seconds.all(is_time) {
            return Ok(self);
        }
        let why = format!("rank {rank} states {} seconds for a worker", self.worker_seconds);
        Err(RankError::new(RankErrorCode::Failed, why))
    }
}

/// A training that ranks compute together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RankTraining {
    /// The hyperparameters.
    pub(crate) how: Training,
    /// Seed of the batches.
    pub(crate) seed: u64,
    /// Steps that were done before.
    pub(crate) first_step: u64,
    /// Whether each rank measures its speed before the first step.
    pub(crate) measures: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_training_round_trips_as_json() {
        let job = RankJob::Train(RankTraining {
            how: Training::sgd(2, 16, 0.1),
            seed: u64::MAX,
            first_step: 3,
            measures: true,
        });
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<RankJob>(&text).unwrap(), job);
    }

    #[test]
    fn ranks_of_a_pipeline_follow_each_other() {
        let settings = |processes, cut: Option<&str>| PipelineSettings {
            processes,
            placement: PartPlacement::Separate,
            cut: cut.map(|text| text.parse().unwrap()),
        };
        let place = settings(2, None).place(5, 6).unwrap();
        assert_eq!((place.process, place.parts(), place.replica, place.replicas), (1, 2, 2, 3));
        assert!(settings(2, Some("cut=7")).place(0, 4).is_ok());
        for (settings, size) in
            [(settings(1, None), 4), (settings(3, None), 4), (settings(2, Some("cut=7,9")), 4)]
        {
            assert_eq!(settings.place(0, size).unwrap_err().code, RankErrorCode::PlanInvalid);
        }
    }

    #[test]
    fn a_private_pipeline_is_alone_and_has_one_more_part() {
        let settings = |cut: Option<&str>| PipelineSettings {
            processes: 2,
            placement: PartPlacement::EndsTogether,
            cut: cut.map(|text| text.parse().unwrap()),
        };
        let place = settings(Some("cut=7,9")).place(1, 2).unwrap();
        assert_eq!((place.process, place.parts(), place.is_private()), (1, 3, true));
        for (settings, size) in [(settings(None), 4), (settings(Some("cut=7")), 2)] {
            assert_eq!(settings.place(0, size).unwrap_err().code, RankErrorCode::PlanInvalid);
        }
    }

    #[test]
    fn news_of_unequal_processors_warns() {
        let card = |rank, capability: &str| RankCard {
            rank,
            host: "a".to_owned(),
            capability: capability.to_owned(),
            alpha: 1e-4,
            beta: 1e-9,
        };
        let text = |cards| RankNews::Joined { cards }.to_string();
        assert!(!text(vec![card(0, "AVX2"), card(1, "AVX2")]).contains("differ"));
        let mixed = text(vec![card(0, "AVX2"), card(1, "AVX512")]);
        assert!(mixed.contains("differ") && mixed.contains("100 µs and   1000 MB/s"), "{mixed}");
    }
}
