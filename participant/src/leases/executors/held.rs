//! A work that an executor computes, or will.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use florin_protocol::Digest;
use florin_scheduler::DeviceSet;

use super::RequestedWork;
use super::pairs::DEVICE_LEASES_MAX;
use super::work::{ExecutorWork, WorkFolder, WorkKind};
use crate::leases::measuring::job_shape;

/// An executor that adds no segment for this many times the predicted one, and the time of some starts, is replaced.
const STALL_SEGMENTS: u64 = 3;
const STALL_STARTS: u64 = 4;

/// A work with its executor.
#[derive(Debug)]
pub(super) struct HeldWork {
    pub(super) folder: WorkFolder,
    pub(super) kind: WorkKind,
    /// Smaller numbers came first.
    pub(super) number: u64,
    /// The shape of the job: jobs that differ in the seed alone have one.
    pub(super) shape: Digest,
    /// Steps that were left when the work was requested, and those of a segment.
    steps: u64,
    steps_of_segment: u32,
    /// The predicted time until the first step, in milliseconds.
    start_ms: u64,
    /// The virtual workers of the job: more devices have nothing to compute.
    pub(super) most_devices: u32,
    pub(super) handle: Option<String>,
    pub(super) devices: DeviceSet,
    /// Asked to end behind its segment.
    pub(super) is_ending: bool,
    /// It waits for its first device, or in a queue, since this moment.
    pub(super) waits_since: Option<Instant>,
    /// It has ended: its states are read, then the folder is removed.
    pub(super) ended: Option<String>,
    /// Lines of its file of times that were read.
    pub(super) times_read: usize,
    /// The shape of the lease that shared its device at the last look.
    partner: Option<Digest>,
    /// Whether that changed within its current segment.
    is_mixed: bool,
    /// Its last progress, since it runs.
    pub(super) progress_at: Option<Instant>,
    /// Why it was replaced without progress.
    pub(super) stalled: Option<&'static str>,
    /// It wrote a state with other bytes than its digest.
    pub(super) is_damaged: bool,
    /// It ends because its devices change.
    pub(super) is_moved: bool,
}

impl HeldWork {
    pub(super) fn requested(
        folder: WorkFolder,
        requested: &RequestedWork<'_>,
        number: u64,
    ) -> Self {
        let RequestedWork { work, shape, steps, .. } = requested;
        let most_devices = match work.kind {
            WorkKind::Measure => 1,
            WorkKind::Segments => work.job.virtual_workers,
        };
        Self {
            folder,
            kind: work.kind,
            number,
            shape: *shape,
            steps: *steps,
            steps_of_segment: work.order.steps,
            start_ms: work.start_ms,
            most_devices,
            handle: None,
            devices: DeviceSet::default(),
            is_ending: false,
            waits_since: Some(Instant::now()),
            ended: None,
            times_read: 0,
            partner: None,
            is_mixed: false,
            progress_at: None,
            stalled: None,
            is_damaged: false,
            is_moved: false,
        }
    }

    /// The work of an executor that outlived an earlier daemon.
    pub(super) fn adopted(
        folder: WorkFolder,
        work: &ExecutorWork,
        number: u64,
        handle: String,
    ) -> Self {
        let steps = work.order.steps_before(work.order.segments);
        let requested = RequestedWork {
            work: work.clone(),
            shape: job_shape(&work.job),
            steps,
            step_us: None,
            blobs: &[],
            start: None,
        };
        let held = Self::requested(folder, &requested, number);
        Self { handle: Some(handle), waits_since: None, ..held }
    }

    /// Steps that are left, by the segments that were computed.
    pub(super) fn steps_left(&self) -> u64 {
        let segments = u64::try_from(self.times_read).unwrap_or(u64::MAX);
        let done = segments.saturating_mul(self.steps_of_segment.into());
        self.steps.saturating_sub(done).max(1)
    }

    /// Whether it had this partner, or none, in its whole last segments. `has_added` is whether some ended now.
    pub(super) fn had_partner(&mut self, partner: Option<Digest>, has_added: bool) -> bool {
        self.is_mixed |= partner != self.partner;
        self.partner = partner;
        let is_mixed = self.is_mixed;
        self.is_mixed &= !has_added;
        !is_mixed
    }

    /// Whether its executor has devices.
    pub(super) const fn runs(&self) -> bool {
        self.handle.is_some() && self.ended.is_none()
    }

    pub(super) const fn is_waiting(&self) -> bool {
        self.handle.is_none() && self.ended.is_none()
    }

    /// Whether its executor runs, and has added no segment for much longer than predicted. A count of devices that is
    /// tried for the first time has the time of one device: behind it, one device still has the rest of the window
    /// that the bid has left. The devices of a batch system are never tried.
    pub(super) fn is_stalled(&self, times: Option<&BTreeMap<u32, u64>>, is_batch: bool) -> bool {
        let (Some(times), Some(at)) = (times, self.progress_at) else { return false };
        let count = self.devices.len();
        let is_try = count > 1 && !times.contains_key(&count) && !is_batch;
        let (predicted, segments, starts) = match is_try {
            true => (times.get(&1), 1, 1),
            false => (times.values().max(), STALL_SEGMENTS, STALL_STARTS),
        };
        let Some(us) = predicted else { return false };
        // Beside another lease a step may take as many times as long as a device has leases.
        let leases = if self.partner.is_some() { u64::from(DEVICE_LEASES_MAX) } else { 1 };
        let us = us.saturating_mul(leases);
        let segment_us = us.saturating_mul(self.steps_of_segment.into());
        let segments_ms = segment_us.div_ceil(1_000).saturating_mul(segments);
        let starts_ms = self.start_ms.saturating_mul(starts);
        at.elapsed() > Duration::from_millis(segments_ms.saturating_add(starts_ms))
    }

    /// Whether it has waited for a start for longer than its bid left time for.
    pub(super) fn is_late(&self) -> bool {
        let limit = Duration::from_millis(self.start_ms);
        self.kind == WorkKind::Segments
            && self.waits_since.is_some_and(|since| since.elapsed() > limit)
    }
}
