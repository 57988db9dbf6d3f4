//! One process of a training that several compute, as this benchmark starts it.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;
use florin_learning::memory::MemorySettings;
use florin_learning::pipeline::PartPlacement;
use florin_learning::ranks::{
    PipelineSettings, RANK_SECONDS, RankFacts, RankPlace, RankRows, RankSettings, Ranks,
};
use florin_learning::reduction::ReductionPlan;
use florin_learning::select::{EngineOptions, engine_with};
use florin_learning::{EngineKind, Execution, Training, TrainingStep};
use serde::{Deserialize, Serialize};

use crate::models::ExportedModel;

/// The work of each process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RankWork {
    /// Folder with the exported models.
    pub(crate) folder: PathBuf,
    pub(crate) model: String,
    pub(crate) workers: u32,
    pub(crate) steps: u32,
    /// Ranges of workers by rank; by measured speeds if empty.
    pub(crate) pinned: Vec<Range<u32>>,
    /// The plan of the reduction; by measured links if there is none.
    pub(crate) reduction: Option<ReductionPlan>,
    /// Whether numbers travel while others are computed; by measured links if there is none.
    pub(crate) overlaps: Option<bool>,
    /// Parts of the graph; none for whole graphs.
    pub(crate) parts: Option<u32>,
    /// Rows of a batch, which are all rows, instead of the model's own.
    pub(crate) batch: Option<u32>,
    /// Bytes for the tensors of a step.
    pub(crate) memory_bytes: Option<u64>,
    /// Whether to compute on GPUs.
    pub(crate) cuda: bool,
}

impl RankWork {
    fn pipeline(&self) -> Option<PipelineSettings> {
        let placement = PartPlacement::Separate;
        self.parts.map(|processes| PipelineSettings { processes, placement, cut: None })
    }
}

/// The line that rank 0 prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RankResult {
    /// Digest of the parameters.
    pub(crate) digest: String,
    /// Milliseconds of the fastest half of the steps, as their mean.
    pub(crate) milliseconds: f64,
}

/// Trains as rank 0 or alone, or serves rank 0.
pub(crate) fn run(work: &str) -> anyhow::Result<Option<RankResult>> {
    let work: RankWork = serde_json::from_str(work).context("the work of a rank")?;
    let mut case = ExportedModel::load(&work.folder, &work.model)?;
    if let Some(batch) = work.batch {
        let all = case.rows.rows();
        case.rows =
            case.rows.subset(&(0..batch as usize).map(|row| row % all).collect::<Vec<_>>())?;
        case.batch = batch;
    }
    let kind = if work.cuda { EngineKind::Cuda } else { EngineKind::Torch };
    let facts = RankFacts::new();
    let mut ranks = None;
    if let Some(place) = RankPlace::from_environment(|name| std::env::var(name).ok())? {
        let settings = RankSettings {
            place,
            device: "CPU".to_owned(),
            interface: Some("lo".to_owned()),
            limit: Duration::from_secs(RANK_SECONDS),
            pinned: Some(work.pinned.clone()).filter(|pinned| !pinned.is_empty()),
            reduction: work.reduction,
            overlaps: work.overlaps,
            pipeline: work.pipeline(),
            rows: RankRows::shared(&case.rows),
            memory: MemorySettings::default(),
            memory_bytes: None,
        };
        let notify = Box::new(|news: &_| eprintln!("{news}"));
        let mut joined = Ranks::join(settings, &facts, notify)?;
        if joined.place().rank > 0 {
            let go_on = &mut || ControlFlow::Continue(());
            joined.serve(kind, &case.model, Some(&case.rows), go_on)?;
            return Ok(None);
        }
        ranks = Some(joined);
    }
    let mut engine = engine_with(kind, 1, EngineOptions { ranks, ..EngineOptions::default() })?;
    let steps_of_epoch = case.rows.rows().div_ceil(case.batch as usize) as u32;
    let execution = Execution {
        virtual_workers: Some(work.workers),
        memory_bytes: work.memory_bytes,
        ..Execution::default()
    };
    let epochs = work.steps.div_ceil(steps_of_epoch);
    let how = Training { execution, ..Training::sgd(epochs, case.batch, 0.01) };
    let mut ends = Vec::new();
    let go_on = &mut |_: TrainingStep| {
        ends.push(Instant::now());
        ControlFlow::Continue(())
    };
    let trained = engine.train(&case.model, &case.start, &case.rows, &how, 1, go_on)?;
    let bytes: Vec<u8> = trained.params.iter().flat_map(|number| number.to_le_bytes()).collect();
    let mut times: Vec<f64> =
        ends.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect();
    times.sort_by(f64::total_cmp);
    times.truncate(times.len().div_ceil(2));
    let milliseconds = 1_000.0 * times.iter().sum::<f64>() / times.len().max(1) as f64;
    let digest = florin_protocol::blob_digest(&bytes).to_string();
    Ok(Some(RankResult { digest, milliseconds }))
}
