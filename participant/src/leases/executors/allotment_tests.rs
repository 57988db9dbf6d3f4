//! Devices are divided, tried and taken back.

use super::*;

fn demand(number: u64, devices: DeviceSet) -> LeaseDemand {
    let times = BTreeMap::from([(1, 10_000)]);
    let (steps, most) = (100_000, 64);
    LeaseDemand { number, times, steps, most, granted: None, devices, is_ending: false }
}

fn none() -> DeviceSet {
    DeviceSet::default()
}

fn first(count: u32) -> DeviceSet {
    DeviceSet::first(count)
}

fn of(devices: u32, demands: &[LeaseDemand]) -> Vec<ExecutorChange> {
    changes((devices, true), demands, 1_000)
}

/// Executors on a machine, under the real times of their leases.
struct PlayedMachine {
    devices: u32,
    launches: bool,
    demands: Vec<LeaseDemand>,
    /// Microseconds of a step on 1, 2, … devices.
    real: Vec<u64>,
    changes: usize,
}

impl PlayedMachine {
    fn new(devices: u32, leases: u64, real: &[u64]) -> Self {
        let demands = (0..leases).map(|number| demand(number, none())).collect();
        Self { devices, launches: true, demands, real: real.to_vec(), changes: 0 }
    }

    /// One turn: executors that are asked to end have ended, and each adds a segment.
    fn turn(&mut self) {
        for demand in &mut self.demands {
            if std::mem::take(&mut demand.is_ending) {
                demand.devices = none();
            }
        }
        for change in changes((self.devices, self.launches), &self.demands, 1_000) {
            self.changes += 1;
            let (ExecutorChange::Start(number, _)
            | ExecutorChange::Resize(number, _)
            | ExecutorChange::Interrupt(number)) = change;
            let used = self.demands.iter().fold(none(), |all, one| all.union(one.devices));
            let demand = &mut self.demands[number as usize];
            match change {
                ExecutorChange::Start(_, devices) => {
                    assert!(used.intersection(devices).is_empty(), "a device has two executors");
                    (demand.devices, demand.granted) = (devices, None);
                }
                ExecutorChange::Resize(_, count) => {
                    (demand.is_ending, demand.granted) = (true, Some(count));
                }
                ExecutorChange::Interrupt(_) => demand.devices = none(),
            }
        }
        for demand in &mut self.demands {
            let count = demand.devices.len();
            if let Some(us) = (count as usize).checked_sub(1).and_then(|at| self.real.get(at)) {
                demand.times.insert(count, *us);
            }
        }
    }

    /// The devices of each lease once nothing changes, and the number of changes until then.
    #[track_caller]
    fn settled(&mut self) -> (Vec<u32>, usize) {
        let before = self.changes;
        for _ in 0..60 {
            self.turn();
        }
        let at = self.changes;
        for _ in 0..60 {
            self.turn();
        }
        assert_eq!(self.changes, at, "executors start anew for ever: {:?}", self.demands);
        (self.demands.iter().map(|demand| demand.devices.len()).collect(), at - before)
    }
}

#[test]
fn a_count_that_was_not_measured_is_ideal_until_it_is_measured() {
    let guess = profile(&BTreeMap::from([(1, 12)]), 4).unwrap();
    assert_eq!([1, 2, 3, 4].map(|n| guess.step_nano(n)), [12_000, 6_000, 4_000, 3_000]);
    let measured = profile(&BTreeMap::from([(1, 12), (2, 11)]), 4).unwrap();
    assert_eq!([1, 2, 3, 4].map(|n| measured.step_nano(n)), [12_000, 11_000, 7_334, 5_500]);
    assert!(profile(&BTreeMap::from([(2, 11)]), 4).is_none(), "one device is always measured");
}

#[test]
fn a_lease_alone_gets_all_devices_and_shares_them_with_the_next_one() {
    assert_eq!(of(4, &[demand(1, none())]), [ExecutorChange::Start(1, first(4))]);
    let both = [demand(1, first(4)), demand(2, none())];
    assert_eq!(of(4, &both), [ExecutorChange::Interrupt(1)]);
    let mut machine = PlayedMachine::new(4, 2, &[10_000, 5_000, 4_000, 3_000]);
    assert_eq!(machine.settled().0, [2, 2]);
}

#[test]
fn each_of_as_many_leases_as_devices_gets_one() {
    for launches in [false, true] {
        let real = [10_000, 6_000, 5_000, 4_000];
        let mut machine = PlayedMachine { launches, ..PlayedMachine::new(4, 4, &real) };
        assert_eq!(machine.settled().0, [1, 1, 1, 1], "launches: {launches}");
    }
}

#[test]
fn the_rest_of_an_unequal_division_is_granted_once() {
    let mut machine = PlayedMachine::new(3, 2, &[10_000, 5_500, 4_000]);
    let (mut counts, changes) = machine.settled();
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
    assert!(changes <= 4, "two starts, and one grant: {changes}");
}

#[test]
fn a_try_that_is_slower_is_taken_back() {
    // Ranks cost more than they compute.
    let mut machine = PlayedMachine::new(4, 1, &[10_000, 14_000, 15_000, 16_000]);
    assert_eq!(machine.settled().0, [1]);
    let running =
        LeaseDemand { times: BTreeMap::from([(1, 10_000), (2, 11_000)]), ..demand(1, first(2)) };
    assert_eq!(of(2, std::slice::from_ref(&running)), [], "within the noise");
    let slower = LeaseDemand { times: BTreeMap::from([(1, 10_000), (2, 11_001)]), ..running };
    assert_eq!(of(2, &[slower]), [ExecutorChange::Resize(1, 1)]);
}

#[test]
fn a_lease_gets_no_more_devices_than_it_has_virtual_workers() {
    let one = LeaseDemand { most: 1, ..demand(1, none()) };
    assert_eq!(of(4, &[one]), [ExecutorChange::Start(1, first(1))]);
    let two = LeaseDemand { most: 2, ..demand(1, none()) };
    assert_eq!(of(4, &[two]), [ExecutorChange::Start(1, first(2))]);
}

#[test]
fn without_a_launcher_each_lease_has_one_device() {
    let started = changes((4, false), &[demand(1, none())], 1_000);
    assert_eq!(started, [ExecutorChange::Start(1, first(1))]);
    assert_eq!(changes((4, false), &[demand(1, first(1))], 1_000), []);
}

#[test]
fn a_lease_grows_if_that_saves_more_than_the_start_anew() {
    let one = first(1);
    assert_eq!(of(4, &[demand(1, one)]), [ExecutorChange::Resize(1, 4)]);
    let short = LeaseDemand { steps: 100, ..demand(1, one) };
    assert_eq!(of(4, &[short]), [], "a second of work saves no second");
    let slower = BTreeMap::from([(1, 10_000), (2, 20_000), (3, 20_000), (4, 20_000)]);
    let slower = LeaseDemand { times: slower, ..demand(1, one) };
    assert_eq!(of(4, &[slower]), [], "more devices are slower");
}

#[test]
fn the_last_lease_takes_a_device_even_if_the_scheduler_would_let_it_wait() {
    // The first one ends soon, so that the rule alone would let the second one wait for it.
    let ends_soon = LeaseDemand { steps: 10, ..demand(1, first(4)) };
    assert_eq!(of(4, &[ends_soon, demand(2, none())]), [ExecutorChange::Interrupt(1)]);
}

#[test]
fn a_lease_that_waits_interrupts_one_that_was_asked_to_end() {
    let ending = LeaseDemand { is_ending: true, granted: Some(2), ..demand(1, first(1)) };
    let other = demand(2, DeviceSet::from_index(1));
    assert_eq!(of(2, &[ending.clone(), other.clone()]), [], "no lease waits");
    let waiting = demand(3, none());
    assert_eq!(of(2, &[ending, other, waiting]), [ExecutorChange::Interrupt(1)]);
}
