//! Executors in threads of the test's process, with the toy engine and faults.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{ExecutorBackend, ExecutorError, ExecutorStart, ExecutorState, LoadedWork, WorkFolder};
use crate::leases::toy_engine::ToyEngine;

/// A fault of one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leases) enum ThreadFault {
    /// None: it computes.
    Sound,
    /// It ends without a result behind its first segment.
    Lost,
    /// The start fails.
    Refused,
    /// It computes nothing, and gives a reason.
    Failed,
    /// Its first state has other bytes than its name states.
    Damaged,
    /// It waits for ever.
    Stuck,
}

/// The starts that tests see, and the faults that they arrange.
#[derive(Debug, Default)]
pub(in crate::leases) struct ThreadPlan {
    /// The faults of the next starts.
    pub(in crate::leases) faults: VecDeque<ThreadFault>,
    /// The number of devices of each start.
    pub(in crate::leases) starts: Vec<usize>,
    /// Executors that were cancelled.
    pub(in crate::leases) cancelled: usize,
}

/// A thread, and what asks it to stop.
type RunningThread = (Arc<AtomicBool>, Option<JoinHandle<()>>);

/// The backend.
#[derive(Clone, Debug, Default)]
pub(in crate::leases) struct ThreadBackend {
    pub(in crate::leases) plan: Arc<Mutex<ThreadPlan>>,
    threads: Arc<Mutex<BTreeMap<String, RunningThread>>>,
}

impl ExecutorBackend for ThreadBackend {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        let mut plan = self.plan.lock().unwrap();
        plan.starts.push(start.devices.len());
        let fault = plan.faults.pop_front();
        if fault == Some(ThreadFault::Refused) {
            return Err(ExecutorError::Program { program: "start".into(), why: "refused".into() });
        }
        let stopped = Arc::new(AtomicBool::new(false));
        let (asked, folder) = (Arc::clone(&stopped), start.folder.to_owned());
        let devices = start.devices.len() as u32;
        let thread = std::thread::spawn(move || compute(&folder, devices, fault, &asked));
        let handle = format!("thread-{}", plan.starts.len());
        let mut threads = self.threads.lock().unwrap();
        threads.insert(handle.clone(), (stopped, Some(thread)));
        Ok(handle)
    }

    fn state(&mut self, handle: &str, _: &Path) -> Result<ExecutorState, ExecutorError> {
        let threads = self.threads.lock().unwrap();
        let running = threads.get(handle).and_then(|(_, thread)| thread.as_ref());
        Ok(match running {
            Some(thread) if !thread.is_finished() => ExecutorState::Running,
            _ => ExecutorState::Ended("the end of its log".to_owned()),
        })
    }

    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError> {
        self.plan.lock().unwrap().cancelled += 1;
        if let Some((stopped, thread)) = self.threads.lock().unwrap().get_mut(handle) {
            stopped.store(true, Ordering::Relaxed);
            if let Some(thread) = thread.take() {
                thread.join().unwrap();
            }
        }
        Ok(())
    }

    fn cancel_by_name(&mut self, _: &str) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn outlives_daemon(&self) -> bool {
        false
    }
}

fn compute(folder: &Path, devices: u32, fault: Option<ThreadFault>, stopped: &AtomicBool) {
    let work = WorkFolder::new(folder.to_owned());
    let is_stopped = || stopped.load(Ordering::Relaxed);
    match fault {
        Some(ThreadFault::Stuck) => {
            while !is_stopped() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Some(ThreadFault::Failed) => {
            let error = Some(("SEGMENT_FAILED".to_owned(), "no device".to_owned()));
            work.write_result(&super::work::ExecutorResult { step_us: None, error }).unwrap();
        }
        Some(ThreadFault::Damaged) => {
            let states = work.states().states().unwrap();
            let last = states.keys().next_back().copied().unwrap_or(0);
            let digest = florin_protocol::Digest([9; 32]);
            work.states().write_state(last + 1, digest, b"damaged").unwrap();
        }
        fault => {
            let before = work.states().states().unwrap().len();
            let is_lost = || {
                let segments = work.states().states().map_or(0, |states| states.len());
                fault == Some(ThreadFault::Lost) && segments > before
            };
            let loaded = LoadedWork::load(folder).unwrap();
            let ends = || is_stopped() || is_lost();
            loaded.execute(&mut ToyEngine::default(), devices, &ends).unwrap();
            if fault == Some(ThreadFault::Lost) {
                std::fs::remove_file(folder.join("result.json")).unwrap();
            }
        }
    }
}
