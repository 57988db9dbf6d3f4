//! Executors that outlive their daemon, wait in a queue, or make no progress.

use std::sync::{Arc, Mutex};

use florin_compute::{ComputeJob, ComputeOrder};

use super::*;
use crate::leases::measuring::job_shape;
use crate::leases::policy::tests::job;

/// The requests to the backend, and the state of each of its executors.
#[derive(Debug, Default)]
struct Recorded {
    started: Vec<(String, usize)>,
    cancelled: Vec<String>,
    state: Option<ExecutorState>,
}

/// A batch system in memory.
#[derive(Clone, Debug, Default)]
struct RecordingBackend(Arc<Mutex<Recorded>>);

impl ExecutorBackend for RecordingBackend {
    fn name(&self) -> &'static str {
        "recording"
    }

    fn check(&mut self) -> Result<(), ExecutorError> {
        Ok(())
    }

    fn start(&mut self, start: &ExecutorStart<'_>) -> Result<String, ExecutorError> {
        let mut recorded = self.0.lock().unwrap();
        recorded.started.push((start.name.to_owned(), start.devices.len()));
        Ok(format!("job-{}", recorded.started.len()))
    }

    fn state(&mut self, _: &str, _: &Path) -> Result<ExecutorState, ExecutorError> {
        Ok(self.0.lock().unwrap().state.clone().unwrap_or(ExecutorState::Running))
    }

    fn cancel(&mut self, handle: &str) -> Result<(), ExecutorError> {
        self.0.lock().unwrap().cancelled.push(handle.to_owned());
        Ok(())
    }

    fn cancel_by_name(&mut self, name: &str) -> Result<(), ExecutorError> {
        self.cancel(name)
    }

    fn outlives_daemon(&self) -> bool {
        true
    }
}

const BATCH: DeviceSupply = DeviceSupply::Batch { of_each: 2, queue_ms: 50 };

fn work(nonce: u64, kind: WorkKind) -> ExecutorWork {
    let order = ComputeOrder { nonce, ..ComputeOrder::example() };
    ExecutorWork::new(order, job(), kind, EXECUTOR_START_MS).unwrap()
}

struct TestExecutors {
    folder: tempfile::TempDir,
    backend: RecordingBackend,
}

impl TestExecutors {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, backend: RecordingBackend::default() }
    }

    fn open(&self, supply: DeviceSupply) -> Executors {
        let root = self.folder.path().join("executors");
        Executors::open(supply, Box::new(self.backend.clone()), root).unwrap()
    }

    fn request(executors: &mut Executors, work: ExecutorWork) -> Digest {
        let (order, shape) = (work.order.id(), job_shape(&work.job));
        executors
            .request(&RequestedWork {
                work,
                shape,
                steps: 1_000_000,
                step_us: Some(1_000),
                blobs: &[],
                start: None,
            })
            .unwrap();
        order
    }

    fn recorded(&self) -> std::sync::MutexGuard<'_, Recorded> {
        self.backend.0.lock().unwrap()
    }
}

#[test]
fn a_new_daemon_finds_the_jobs_of_the_one_before() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    let events = executors.turn();
    assert!(matches!(&events[..], [LeaseEvent::ExecutorStarted { devices: 2, .. }]));
    // A daemon that was killed between the submission and its handle.
    let lost = TestExecutors::request(&mut executors, work(2, WorkKind::Segments));
    drop(executors);
    assert!(test.recorded().cancelled.is_empty(), "a job outlives its daemon");
    let mut again = test.open(BATCH);
    assert!(again.has_work(order) && !again.has_work(lost));
    let cancelled = test.recorded().cancelled.clone();
    let start = format!("florin-{}-", lost.short());
    assert!(
        cancelled.len() == 1 && cancelled[0].starts_with(&start) && cancelled[0].ends_with("-1")
    );
    assert!(again.turn().is_empty(), "it is not started twice");
    // Names are not used twice.
    TestExecutors::request(&mut again, work(3, WorkKind::Segments));
    again.turn();
    let names: Vec<String> = test.recorded().started.iter().map(|(name, _)| name.clone()).collect();
    assert!(names.len() == 2 && names[1].ends_with("-2"), "{names:?}");
    again.end_all();
    assert_eq!(std::fs::read_dir(test.folder.path().join("executors")).unwrap().count(), 0);
    assert_eq!(test.recorded().cancelled.len(), 3);
}

#[test]
fn a_long_queue_refuses_bids_until_it_is_forgotten() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    TestExecutors::request(&mut executors, work(1, WorkKind::Measure));
    test.recorded().state = Some(ExecutorState::Waiting("Resources".to_owned()));
    executors.turn();
    assert_eq!(executors.refuse_start(), None);
    std::thread::sleep(Duration::from_millis(60));
    executors.turn();
    assert!(executors.refuse_start().unwrap().contains("longer than queue_max, 50 ms"));
    executors.waited_at = Instant::now().checked_sub(QUEUE_MEMORY);
    test.recorded().state = Some(ExecutorState::Running);
    executors.turn();
    assert_eq!(executors.refuse_start(), None);
    let machine = DeviceSupply::Machine { devices: 1, launches: false, leases_of_each: 1 };
    executors.supply = machine;
    executors.waited_at = Some(Instant::now());
    assert_eq!(executors.refuse_start(), None, "a machine has no queue");
}

#[test]
fn an_executor_without_progress_is_replaced() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    executors.turn();
    // Three segments of ten steps of a millisecond, and four starts.
    let limit = Duration::from_millis(30 + 4 * EXECUTOR_START_MS);
    let set = |executors: &mut Executors, at: Option<Instant>| {
        executors.works.get_mut(&order).unwrap().progress_at = at;
    };
    set(&mut executors, Instant::now().checked_sub(limit - Duration::from_secs(1)));
    executors.turn();
    assert!(!executors.is_ended(order));
    // A segment is progress.
    executors.folder(order).unwrap().add_time(2, 900).unwrap();
    set(&mut executors, Instant::now().checked_sub(limit + Duration::from_secs(1)));
    executors.turn();
    assert!(!executors.is_ended(order));
    set(&mut executors, Instant::now().checked_sub(limit + Duration::from_secs(1)));
    executors.turn();
    assert!(executors.is_ended(order));
    assert_eq!(test.recorded().cancelled, ["job-1"]);
    assert_eq!(executors.take_ended(order).unwrap(), None);
    assert!(!executors.has_work(order));
}

#[test]
fn a_count_that_is_tried_has_the_time_of_one_device() {
    let test = TestExecutors::new();
    let mut executors =
        test.open(DeviceSupply::Machine { devices: 2, launches: true, leases_of_each: 1 });
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    executors.turn();
    // A segment of ten steps of a millisecond, and a start.
    let limit = Duration::from_millis(10 + EXECUTOR_START_MS);
    let set = |executors: &mut Executors, elapsed: Duration| {
        executors.works.get_mut(&order).unwrap().progress_at = Instant::now().checked_sub(elapsed);
    };
    set(&mut executors, limit - Duration::from_secs(1));
    executors.turn();
    assert!(!executors.is_ended(order));
    set(&mut executors, limit + Duration::from_secs(1));
    executors.turn();
    assert!(executors.is_ended(order));
}

#[test]
fn a_job_that_waits_longer_than_its_bid_expects_is_replaced() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    test.recorded().state = Some(ExecutorState::Waiting("Resources".to_owned()));
    executors.turn();
    executors.turn();
    assert!(!executors.is_ended(order));
    let long_ago = Instant::now().checked_sub(Duration::from_millis(EXECUTOR_START_MS + 1_000));
    executors.works.get_mut(&order).unwrap().waits_since = long_ago;
    executors.turn();
    let error = executors.take_ended(order).unwrap_err().to_string();
    assert!(error.contains("EXECUTOR_STALLED"), "{error}");
}

#[test]
fn a_new_daemon_waits_for_a_job_as_long_as_the_one_before() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    let patient = ExecutorWork { start_ms: 60_000, ..work(1, WorkKind::Segments) };
    let order = TestExecutors::request(&mut executors, patient);
    test.recorded().state = Some(ExecutorState::Waiting("Resources".to_owned()));
    executors.turn();
    drop(executors);
    let mut again = test.open(BATCH);
    again.turn();
    for (seconds, is_ended) in [(50, false), (61, true)] {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(seconds));
        again.works.get_mut(&order).unwrap().waits_since = long_ago;
        again.turn();
        assert_eq!(again.is_ended(order), is_ended, "{seconds} s");
    }
}

#[test]
fn an_executor_of_several_devices_that_computes_nothing_is_the_last_one() {
    let test = TestExecutors::new();
    let mut executors =
        test.open(DeviceSupply::Machine { devices: 4, launches: true, leases_of_each: 1 });
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    test.recorded().state = Some(ExecutorState::Ended("mpirun refuses root".to_owned()));
    executors.turn();
    let error = executors.take_ended(order).unwrap_err().to_string();
    assert!(error.contains("EXECUTOR_LOST") && error.contains("refuses root"), "{error}");
    test.recorded().state = None;
    TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    let counts: Vec<usize> = test.recorded().started.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [4, 1]);
}

#[test]
fn devices_of_an_executor_that_has_ended_are_free() {
    let test = TestExecutors::new();
    let mut executors =
        test.open(DeviceSupply::Machine { devices: 1, launches: false, leases_of_each: 1 });
    let first = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    let second = TestExecutors::request(&mut executors, work(2, WorkKind::Segments));
    executors.turn();
    assert_eq!(test.recorded().started.len(), 1, "one device");
    // The first lease has all its segments, and waits for its audits.
    executors.works.get_mut(&first).unwrap().ended = Some("done".to_owned());
    executors.turn();
    assert_eq!(test.recorded().started.len(), 2);
    assert!(executors.has_work(first) && !executors.is_ended(second));
}

#[test]
fn leases_on_one_device_have_times_of_their_own() {
    let test = TestExecutors::new();
    let machine = DeviceSupply::Machine { devices: 1, launches: false, leases_of_each: 2 };
    let mut executors = test.open(machine);
    let other = || ComputeJob { virtual_workers: 2, ..job() };
    let second = ExecutorWork { job: other(), ..work(2, WorkKind::Segments) };
    let shapes = [job_shape(&job()), job_shape(&other())];
    let one = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    let is_shared = |events: Vec<LeaseEvent>| -> Vec<bool> {
        let of = |event: &LeaseEvent| match event {
            LeaseEvent::ExecutorStarted { is_shared, .. } => Some(*is_shared),
            _ => None,
        };
        events.iter().filter_map(of).collect()
    };
    assert_eq!(is_shared(executors.turn()), [false]);
    let add = |executors: &Executors, order: Digest, times: &[u64]| {
        let folder = executors.folder(order).unwrap();
        times.iter().for_each(|us| folder.add_time(1, *us).unwrap());
    };
    add(&executors, one, &[1_000]);
    executors.turn();
    let two = TestExecutors::request(&mut executors, second);
    assert_eq!(is_shared(executors.turn()), [true]);
    // The first segments of both began before they had the device together.
    add(&executors, one, &[1_500]);
    add(&executors, two, &[3_000]);
    executors.turn();
    assert_eq!(executors.pairs, PairTimes::default());
    add(&executors, one, &[1_900, 2_000]);
    add(&executors, two, &[4_000]);
    executors.turn();
    executors.turn();
    let mut expected = PairTimes::default();
    expected.record(shapes[0], shapes[1], 2_000);
    expected.record(shapes[1], shapes[0], 4_000);
    assert_eq!(executors.pairs, expected);
    assert_eq!(executors.times[&shapes[0]], BTreeMap::from([(1, 1_000)]));
    // The first one is over: the next segment of the other began beside it.
    executors.works.get_mut(&one).unwrap().ended = Some("done".to_owned());
    add(&executors, two, &[3_500, 3_600]);
    executors.turn();
    add(&executors, two, &[900]);
    executors.turn();
    assert_eq!(executors.pairs, expected);
    assert_eq!(executors.times[&shapes[1]], BTreeMap::from([(1, 900)]));
}

#[test]
fn a_lease_beside_another_one_may_take_twice_the_time() {
    let test = TestExecutors::new();
    let machine = DeviceSupply::Machine { devices: 1, launches: false, leases_of_each: 2 };
    let mut executors = test.open(machine);
    let orders =
        [1, 2].map(|nonce| TestExecutors::request(&mut executors, work(nonce, WorkKind::Segments)));
    executors.turn();
    executors.turn();
    // Three segments of ten steps of two milliseconds, and four starts.
    let limit = Duration::from_millis(60 + 4 * EXECUTOR_START_MS);
    let mut set = |by: Duration| {
        executors.works.get_mut(&orders[1]).unwrap().progress_at = Instant::now().checked_sub(by);
        executors.turn();
        executors.is_ended(orders[1])
    };
    assert!(!set(limit - Duration::from_millis(20)));
    assert!(set(limit + Duration::from_millis(20)));
}

#[test]
fn one_measurement_runs_at_a_time_and_none_beside_a_lease_that_waits() {
    let test = TestExecutors::new();
    let mut executors = test.open(BATCH);
    assert!(executors.may_measure() && !executors.is_proven());
    let measured = TestExecutors::request(&mut executors, work(1, WorkKind::Measure));
    assert!(!executors.may_measure());
    executors.turn();
    executors
        .folder(measured)
        .unwrap()
        .write_result(&work::ExecutorResult { step_us: Some(9), error: None })
        .unwrap();
    test.recorded().state = Some(ExecutorState::Ended("done".to_owned()));
    executors.turn();
    assert_eq!(executors.take_ended(measured).unwrap(), Some(9));
    assert!(executors.may_measure() && executors.is_proven());
    test.recorded().state = None;
    TestExecutors::request(&mut executors, work(2, WorkKind::Segments));
    assert!(!executors.may_measure(), "it waits for a start");
    executors.turn();
    executors.turn();
    assert!(executors.may_measure(), "it runs");
    executors.supply = DeviceSupply::Machine { devices: 4, launches: false, leases_of_each: 1 };
    assert!(!executors.may_measure(), "devices of a machine must be idle");
}

#[test]
fn a_launcher_that_hangs_is_used_once() {
    let test = TestExecutors::new();
    let mut executors =
        test.open(DeviceSupply::Machine { devices: 2, launches: true, leases_of_each: 1 });
    let order = TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    executors.turn();
    let long_ago = Instant::now().checked_sub(Duration::from_secs(60));
    executors.works.get_mut(&order).unwrap().progress_at = long_ago;
    executors.turn();
    let error = executors.take_ended(order).unwrap_err().to_string();
    assert!(error.contains("EXECUTOR_STALLED"), "{error}");
    TestExecutors::request(&mut executors, work(1, WorkKind::Segments));
    executors.turn();
    let counts: Vec<usize> = test.recorded().started.iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [2, 1]);
}

#[test]
fn devices_of_a_policy_are_checked() {
    let machine = |devices| DeviceSupply::Machine { devices, launches: false, leases_of_each: 1 };
    let batch = |of_each, queue_ms| DeviceSupply::Batch { of_each, queue_ms };
    let shared = |devices, leases_of_each| DeviceSupply::Machine {
        devices,
        launches: false,
        leases_of_each,
    };
    for (supply, orders, key) in [
        (shared(2, 2), Some(4), None),
        (shared(2, 2), Some(5), Some("bid.orders_max")),
        (shared(2, 0), Some(1), Some("executors.leases_per_device")),
        (shared(2, 3), Some(1), Some("executors.leases_per_device")),
        (machine(1), Some(1), None),
        (machine(64), Some(8), None),
        (machine(0), None, Some("executors.devices")),
        (machine(65), None, Some("executors.devices")),
        (machine(2), Some(3), Some("bid.orders_max")),
        (batch(1, 1), Some(8), None),
        (batch(64, 1), None, None),
        (batch(0, 1), None, Some("executors.devices")),
        (batch(65, 1), None, Some("executors.devices")),
        (batch(1, 0), None, Some("executors.queue_max")),
    ] {
        let found = check_supply(supply, orders).err().map(|(key, _)| key);
        assert_eq!(found, key, "{supply:?} {orders:?}");
    }
}
