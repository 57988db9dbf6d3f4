//! The ranks of a training on c10d: rank 0 announces trainings, the others serve them.
//!
//! ```text
//! facts of every rank ─▶ rank 0 compares ─▶ verdict          (store)
//! training ─▶ parameters ─▶ speeds ─▶ assignment             (store, broadcast)
//! step:  sums of subtrees ─▶ rank 0 ─▶ parameters            (send, broadcast)
//! ```

mod join;

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tch::{Device, Kind, Tensor};

use super::c10d::{C10dError, C10dFailure, ProcessGroup, TcpStore, Transfer};
use super::peers::Peers;
use super::{ENGINE, Torch};
use crate::data::Dataset;
use crate::engine::{InputError, TrainError};
use crate::model::ModelSpec;
use crate::ranks::{
    RankCard, RankError, RankErrorCode, RankJob, RankNews, RankNotify, RankPlace, RankSettings,
    RankTraining, check_plan, data_fingerprint,
};
use crate::select::{EngineKind, torch_engine};
use crate::virtual_workers::{Assignment, RankCost, TransferCost, assign};

/// Numbers of one transfer: a larger sum is added piece by piece as it arrives.
const CHUNK: i64 = 1 << 20;
/// Tags of the pieces of one sum.
const CHUNK_TAGS: u32 = 1 << 14;
/// The time between two looks for an announcement.
const POLL: Duration = Duration::from_millis(200);
/// The longest wait of rank 0 for the others to have read its last announcement.
const GOODBYE: Duration = Duration::from_secs(5);

/// This process among the ranks of a training.
pub struct Ranks {
    settings: RankSettings,
    store: TcpStore,
    group: ProcessGroup,
    cards: Vec<RankCard>,
    notify: RankNotify,
    /// Announcements so far.
    jobs: u64,
    assignment: Assignment,
    is_assigned: bool,
    /// By rank; empty before the first measurement.
    worker_seconds: Vec<f64>,
    sends: Vec<(u32, Transfer)>,
    /// Fingerprint of the rows that all ranks have.
    data: String,
}

impl Ranks {
    /// The place of this process.
    #[must_use]
    pub fn place(&self) -> &RankPlace {
        &self.settings.place
    }

    /// Serves the trainings that rank 0 announces, with a graph and rows that are loaded here, until it
    /// announces the end or `go_on` breaks, which is called again and again between them.
    ///
    /// # Errors
    /// [`TrainError`] if the engine is missing, if rank 0 is gone, or if a training fails here.
    pub fn serve(
        &mut self,
        kind: EngineKind,
        model: &ModelSpec,
        data: &Dataset,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let engine = torch_engine(kind, 1).map_err(|error| {
            RankError::new(RankErrorCode::Unsupported, format!("a rank needs libtorch: {error}"))
        })?;
        let engine = engine.on_gpu(self.settings.place.local);
        self.serve_on(&engine.with_memory(self.settings.memory.clone()), model, data, go_on)
    }

    fn serve_on(
        &mut self,
        engine: &Torch,
        model: &ModelSpec,
        data: &Dataset,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<(), TrainError> {
        let ModelSpec::Graph(graph) = model else {
            return Err(InputError::VirtualWorkers { engine: ENGINE }.into());
        };
        loop {
            let key = format!("job/{}", self.jobs);
            if !self.store.has(&key).map_err(|error| self.failed(Some(0), &error))? {
                if go_on().is_break() {
                    self.leave();
                    return Ok(());
                }
                std::thread::sleep(POLL);
                continue;
            }
            let limit = self.settings.limit;
            let job = self.store.get(&key, limit).map_err(|error| self.failed(Some(0), &error))?;
            self.jobs += 1;
            match parsed(&job)? {
                RankJob::Finish => {
                    self.leave();
                    return Ok(());
                }
                RankJob::Train(mut training) => {
                    training.how.execution.memory_bytes = self.settings.memory_bytes;
                    engine.serve_graph(graph, data, &training, self)?;
                }
            }
        }
    }

    /// States that this rank has ended. Rank 0 does not wait long for it.
    fn leave(&self) {
        let _ = self.store.set(&format!("gone/{}", self.rank()), b"");
    }

    /// Announces the end of all work, by rank 0.
    fn finish(&mut self) -> Result<(), C10dError> {
        let job = serde_json::to_vec(&RankJob::Finish).unwrap_or_default();
        self.store.set(&format!("job/{}", self.jobs), &job)?;
        if self.settings.place.serves {
            // The store ends with this process.
            for rank in 1..self.settings.place.size {
                self.store.get(&format!("gone/{rank}"), GOODBYE)?;
            }
        }
        Ok(())
    }

    /// The failure of a call that waited for a rank, or for all.
    fn failed(&self, rank: Option<u32>, error: &C10dError) -> RankError {
        let C10dError { why, kind } = error;
        let rank = rank.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
        let seconds = self.settings.limit.as_secs();
        match kind {
            C10dFailure::TimedOut => RankError::new(
                RankErrorCode::Stalled,
                format!(
                    "{rank}, or a rank that it waits for, has not answered within {seconds} \
                     seconds ({why}): look at its log; --rank-timeout sets the limit"
                ),
            ),
            C10dFailure::Closed => RankError::new(
                RankErrorCode::Lost,
                format!(
                    "{rank} is gone ({why}): look at the logs, and start all ranks again, or one process \
                     with the same --virtual-workers: a training of more than a minute continues from \
                     its stored state"
                ),
            ),
            C10dFailure::NoInterface | C10dFailure::Other => RankError::new(
                RankErrorCode::Failed,
                format!("a transfer with {rank} failed: {why}"),
            ),
        }
    }

    fn get<T: DeserializeOwned>(&self, key: &str, rank: u32) -> Result<T, RankError> {
        let bytes = self.store.get(key, self.settings.limit);
        parsed(&bytes.map_err(|error| self.failed(Some(rank), &error))?)
    }

    fn set(&self, key: &str, value: &impl serde::Serialize) -> Result<(), RankError> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| RankError::new(RankErrorCode::Failed, error.to_string()))?;
        self.store.set(key, &bytes).map_err(|error| self.failed(Some(0), &error))
    }

    /// The assignment by measured speeds, or the pinned one.
    fn planned(&self, workers: u32, bytes: u64) -> Result<Assignment, RankError> {
        let invalid = |why: String| RankError::new(RankErrorCode::PlanInvalid, why);
        if let Some(pinned) = &self.settings.pinned {
            return check_plan(pinned, self.settings.place.size, workers);
        }
        let costs: Vec<RankCost> = self
            .worker_seconds
            .iter()
            .map(|&worker_seconds| RankCost { worker_seconds, workers_max: workers })
            .collect();
        assign(workers, &costs, &self.links(), bytes).map_err(|error| invalid(error.to_string()))
    }

    /// The links of all pairs: of ranks on one host the shorter one to rank 0 of the two, else the longer.
    fn links(&self) -> Vec<Vec<TransferCost>> {
        let to_first = |card: &RankCard| TransferCost { alpha: card.alpha, beta: card.beta };
        let link = |a: &RankCard, b: &RankCard| {
            let (own, other) = (to_first(a), to_first(b));
            match (a.rank, b.rank) {
                (0, _) => other,
                (_, 0) => own,
                _ if a.host == b.host => TransferCost {
                    alpha: own.alpha.min(other.alpha),
                    beta: own.beta.min(other.beta),
                },
                _ => TransferCost {
                    alpha: own.alpha.max(other.alpha),
                    beta: own.beta.max(other.beta),
                },
            }
        };
        self.cards.iter().map(|a| self.cards.iter().map(|b| link(a, b)).collect()).collect()
    }
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranks").field("place", &self.settings.place).finish_non_exhaustive()
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if self.rank() == 0 {
            // Ranks that are gone do not read it.
            let _ = self.finish();
        }
    }
}

/// The pieces of a flat tensor, with their number.
fn pieces(flat: &Tensor) -> Result<Vec<(u32, Tensor)>, tch::TchError> {
    let length = flat.size1()?;
    let starts = (0..length).step_by(CHUNK as usize);
    let piece = |from: i64| flat.f_narrow(0, from, CHUNK.min(length - from));
    starts.enumerate().map(|(number, from)| Ok((number as u32, piece(from)?))).collect()
}

impl Peers for Ranks {
    fn rank(&self) -> u32 {
        self.settings.place.rank
    }

    fn announce(&mut self, training: &RankTraining, data: &Dataset) -> Result<(), TrainError> {
        if data_fingerprint(data) != self.data {
            let why = "the rows of this training are not those with which the ranks have started";
            return Err(RankError::new(RankErrorCode::Unsupported, why).into());
        }
        self.set(&format!("job/{}", self.jobs), &RankJob::Train(training.clone()))?;
        self.jobs += 1;
        Ok(())
    }

    fn needs_speeds(&self) -> bool {
        self.settings.pinned.is_none() && self.worker_seconds.is_empty()
    }

    fn assign(&mut self, seconds: Option<f64>, workers: u32, bytes: u64) -> Result<(), TrainError> {
        let (rank, size, job) = (self.rank(), self.settings.place.size, self.jobs);
        let plan = format!("plan/{job}");
        if rank > 0 {
            if let Some(seconds) = seconds {
                self.set(&format!("speed/{job}/{rank}"), &seconds)?;
            }
            let ranges: Vec<Range<u32>> = self.get(&plan, 0)?;
            self.assignment = Assignment::from_ranges(ranges, workers)
                .map_err(|error| RankError::new(RankErrorCode::Failed, error.to_string()))?;
            return Ok(());
        }
        if let Some(seconds) = seconds {
            let mut all = vec![seconds];
            for rank in 1..size {
                all.push(self.get(&format!("speed/{job}/{rank}"), rank)?);
            }
            self.worker_seconds = all;
        }
        let found = self.planned(workers, bytes)?;
        self.set(&plan, &found.ranges())?;
        if !self.is_assigned || found != self.assignment {
            self.is_assigned = true;
            let worker_seconds = self.worker_seconds.clone();
            (self.notify)(&RankNews::Assigned { ranges: found.ranges().to_vec(), worker_seconds });
        }
        self.assignment = found;
        Ok(())
    }

    fn own(&self, parts: usize) -> Range<usize> {
        self.assignment.own(self.rank(), parts)
    }

    fn owner(&self, part: usize) -> u32 {
        self.assignment.owner(part)
    }

    fn send(&mut self, sum: &Tensor, to: u32, part: usize) -> Result<(), TrainError> {
        for (number, piece) in pieces(&sum.f_to_device(Device::Cpu)?)? {
            let tag = part as u32 * CHUNK_TAGS + number;
            let sent = self.group.send(&piece, to, tag);
            self.sends.push((to, sent.map_err(|error| self.failed(Some(to), &error))?));
        }
        Ok(())
    }

    fn add_received(
        &mut self,
        sum: &Tensor,
        from: u32,
        part: usize,
        copies: bool,
    ) -> Result<Option<Tensor>, TrainError> {
        let buffer = Tensor::f_empty(sum.size1()?, (Kind::Float, Device::Cpu))?;
        let mut arriving = Vec::new();
        for (number, piece) in pieces(&buffer)? {
            let tag = part as u32 * CHUNK_TAGS + number;
            let transfer = self.group.receive(&piece, from, tag);
            arriving.push((piece, transfer.map_err(|error| self.failed(Some(from), &error))?));
        }
        for ((piece, transfer), (_, own)) in arriving.into_iter().zip(pieces(sum)?) {
            transfer.wait(self.settings.limit).map_err(|error| self.failed(Some(from), &error))?;
            let _ = own.shallow_clone().f_add_(&piece.f_to_device(sum.device())?)?;
        }
        Ok(copies.then_some(buffer))
    }

    fn finish_sends(&mut self) -> Result<(), TrainError> {
        for (to, sent) in std::mem::take(&mut self.sends) {
            sent.wait(self.settings.limit).map_err(|error| self.failed(Some(to), &error))?;
        }
        Ok(())
    }

    fn share(&mut self, params: &Tensor) -> Result<(), TrainError> {
        let host = params.f_to_device(Device::Cpu)?;
        // A rank waits for rank 0, and rank 0 for all others.
        let other = (self.rank() > 0).then_some(0);
        let limit = self.settings.limit;
        let shared = self.group.broadcast(&host, 0, limit).and_then(|sent| sent.wait(limit));
        shared.map_err(|error| self.failed(other, &error))?;
        if self.rank() > 0 && params.device() != Device::Cpu {
            params.shallow_clone().f_copy_(&host)?;
        }
        Ok(())
    }
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RankError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let why = format!("a message among the ranks cannot be read: {error}");
        RankError::new(RankErrorCode::Failed, why)
    })
}

#[cfg(test)]
mod tests;
