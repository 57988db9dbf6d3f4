//! Devices are divided, tried and taken back.

use super::*;

fn demand(number: u64, devices: DeviceSet) -> LeaseDemand {
    let times = BTreeMap::from([(1, 10_000)]);
    let (steps, most) = (100_000, 64);
    let shape = Some(Digest([u8::try_from(number).unwrap(); 32]));
    LeaseDemand { number, times, steps, most, granted: None, devices, is_ending: false, shape }
}

fn none() -> DeviceSet {
    DeviceSet::default()
}

fn first(count: u32) -> DeviceSet {
    DeviceSet::first(count)
}

const fn machine(count: u32) -> MachineDevices {
    MachineDevices { count, launches: true, leases_of_each: 1 }
}

const fn shared(count: u32) -> MachineDevices {
    MachineDevices { leases_of_each: 2, ..machine(count) }
}

fn on(machine: MachineDevices, demands: &[LeaseDemand]) -> Vec<ExecutorChange> {
    changes(machine, demands, &PairTimes::default(), 1_000)
}

fn of(devices: u32, demands: &[LeaseDemand]) -> Vec<ExecutorChange> {
    on(machine(devices), demands)
}

/// Executors on a machine, under the real times of their leases.
struct PlayedMachine {
    machine: MachineDevices,
    pairs: PairTimes,
    /// Microseconds of a step beside another lease.
    shared_us: u64,
    demands: Vec<LeaseDemand>,
    /// Microseconds of a step on 1, 2, … devices.
    real: Vec<u64>,
    changes: usize,
}

impl PlayedMachine {
    fn new(devices: u32, leases: u64, real: &[u64]) -> Self {
        let demands = (0..leases).map(|number| demand(number, none())).collect();
        let (machine, pairs) = (machine(devices), PairTimes::default());
        let (real, shared_us) = (real.to_vec(), 16_000);
        Self { machine, pairs, shared_us, demands, real, changes: 0 }
    }

    /// The number of other leases on the devices of one.
    fn partners(&self, at: usize) -> Vec<usize> {
        let own = self.demands[at].devices;
        let others = (0..self.demands.len()).filter(|other| *other != at);
        others.filter(|other| !self.demands[*other].devices.intersection(own).is_empty()).collect()
    }

    /// One turn: executors that are asked to end have ended, and each adds a segment.
    fn turn(&mut self) {
        for demand in &mut self.demands {
            if std::mem::take(&mut demand.is_ending) {
                demand.devices = none();
            }
        }
        for change in changes(self.machine, &self.demands, &self.pairs, 1_000) {
            self.changes += 1;
            let (ExecutorChange::Start(number, _)
            | ExecutorChange::Resize(number, _)
            | ExecutorChange::Interrupt(number)) = change;
            let demand = &mut self.demands[number as usize];
            match change {
                ExecutorChange::Start(_, devices) => {
                    assert!(demand.devices.is_empty(), "it runs");
                    (demand.devices, demand.granted) = (devices, None);
                }
                ExecutorChange::Resize(_, count) => {
                    (demand.is_ending, demand.granted) = (true, Some(count));
                }
                ExecutorChange::Interrupt(_) => demand.devices = none(),
            }
        }
        for at in 0..self.demands.len() {
            let partners = self.partners(at);
            let leases = u32::try_from(partners.len()).unwrap() + 1;
            assert!(leases <= self.machine.leases_of_each, "a device has {leases} leases");
            let demand = &self.demands[at];
            if let [other] = partners[..] {
                assert_eq!(
                    (demand.devices, demand.devices.len()),
                    (self.demands[other].devices, 1)
                );
                let shapes = (demand.shape.unwrap(), self.demands[other].shape.unwrap());
                self.pairs.record(shapes.0, shapes.1, self.shared_us);
                continue;
            }
            let demand = &mut self.demands[at];
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
        let alone = MachineDevices { launches, ..machine(4) };
        let mut played = PlayedMachine { machine: alone, ..PlayedMachine::new(4, 4, &real) };
        assert_eq!(played.settled().0, [1, 1, 1, 1], "launches: {launches}");
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
    let alone = MachineDevices { launches: false, ..machine(4) };
    assert_eq!(on(alone, &[demand(1, none())]), [ExecutorChange::Start(1, first(1))]);
    assert_eq!(on(alone, &[demand(1, first(1))]), []);
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
    let ending = LeaseDemand { is_ending: true, granted: Some(1), ..demand(1, first(2)) };
    let other = demand(2, DeviceSet::from_index(2));
    assert_eq!(of(3, &[ending.clone(), other.clone()]), [], "no lease waits");
    let waiting = demand(3, none());
    assert_eq!(of(3, &[ending, other, waiting]), [ExecutorChange::Interrupt(1)]);
}

#[test]
fn a_lease_that_leaves_a_shared_device_is_not_interrupted_for_a_new_one() {
    let ending = LeaseDemand { is_ending: true, granted: Some(1), ..demand(1, first(1)) };
    let (pair, second) = ([ending, demand(2, first(1))], DeviceSet::from_index(1));
    // The device for which it leaves has a lease by now: the next one shares that.
    let three = [&pair[..], &[demand(3, second), demand(4, none())]].concat();
    assert_eq!(on(shared(2), &three), [ExecutorChange::Start(4, second)]);
    // Both arrive at the same time.
    let both = [&pair[..], &[demand(3, none()), demand(4, none())]].concat();
    let starts = [ExecutorChange::Start(3, second), ExecutorChange::Start(4, second)];
    assert_eq!(on(shared(2), &both), starts);
    // A lease with several devices gives one up, and no other is interrupted.
    let several =
        [&pair[..], &[demand(3, second.union(DeviceSet::from_index(2))), demand(4, none())]];
    assert_eq!(on(shared(3), &several.concat()), [ExecutorChange::Interrupt(3)]);
}

#[test]
fn a_lease_that_shares_gets_a_free_device_before_a_longer_one_grows() {
    let short = |number| LeaseDemand { steps: 1_000, ..demand(number, first(1)) };
    let leases = [short(1), short(2), demand(3, DeviceSet::from_index(1))];
    assert_eq!(on(shared(3), &leases), [ExecutorChange::Resize(1, 1)]);
    let mut pairs = PairTimes::default();
    let shapes = [leases[0].shape.unwrap(), leases[1].shape.unwrap()];
    pairs.record(shapes[0], shapes[1], 10_000);
    pairs.record(shapes[1], shapes[0], 10_000);
    // Neither of the pair would gain.
    assert_eq!(changes(shared(3), &leases, &pairs, 1_000), [ExecutorChange::Resize(3, 2)]);
}

#[test]
fn leases_share_where_more_run_than_there_are_devices() {
    for (devices, leases, launches) in
        [(1, 2, true), (2, 3, true), (2, 4, false), (4, 7, true), (4, 8, true), (4, 8, false)]
    {
        let shared = MachineDevices { launches, ..shared(devices) };
        let real = [10_000, 6_000, 5_000, 4_000];
        let mut played =
            PlayedMachine { machine: shared, ..PlayedMachine::new(devices, leases, &real) };
        let (counts, changes) = played.settled();
        assert!(counts.iter().all(|count| *count == 1), "{devices}, {leases}: {counts:?}");
        assert_eq!(u64::try_from(changes).unwrap(), leases, "each starts once");
        let beside = (0..played.demands.len()).filter(|at| !played.partners(*at).is_empty());
        let beside = u64::try_from(beside.count()).unwrap();
        assert_eq!(beside, 2 * (leases - u64::from(devices)), "{devices}, {leases}");
    }
}

#[test]
fn a_lease_shares_no_device_that_a_policy_promised_whole() {
    let both = [demand(1, first(1)), demand(2, none())];
    assert_eq!(of(1, &both), []);
    assert_eq!(on(shared(1), &both), [ExecutorChange::Start(2, first(1))]);
    // A third one waits.
    let three = [demand(1, first(1)), demand(2, first(1)), demand(3, none())];
    assert_eq!(on(shared(1), &three), []);
    // A measurement has its device alone.
    let measured = LeaseDemand { shape: None, ..demand(1, first(1)) };
    assert_eq!(on(shared(1), &[measured, demand(2, none())]), []);
}

#[test]
fn a_lease_with_several_devices_gives_one_up_before_two_share() {
    let both = [demand(1, first(2)), demand(2, none())];
    assert_eq!(on(shared(2), &both), [ExecutorChange::Interrupt(1)]);
}

#[test]
fn a_lease_starts_beside_the_one_with_the_largest_sum_of_rates() {
    let (one, two) = (demand(1, first(1)), demand(2, DeviceSet::from_index(1)));
    let three = [one, two, demand(3, none())];
    let start = |pairs: &PairTimes| changes(shared(2), &three, pairs, 1_000);
    let mut pairs = PairTimes::default();
    assert_eq!(start(&pairs), [ExecutorChange::Start(3, first(1))], "no pair was measured");
    let shape = |at: usize| three[at].shape.unwrap();
    // Both take 19 ms instead of 10: 1,052 thousandths, which is less than the guess.
    pairs.record(shape(0), shape(2), 19_000);
    pairs.record(shape(2), shape(0), 19_000);
    assert_eq!(start(&pairs), [ExecutorChange::Start(3, DeviceSet::from_index(1))]);
    pairs.record(shape(1), shape(2), 60_000);
    assert_eq!(start(&pairs), [ExecutorChange::Start(3, first(1))]);
}

#[test]
fn a_lease_leaves_a_shared_device_for_a_free_one() {
    let pair = [demand(1, first(1)), demand(2, first(1))];
    let alone = MachineDevices { launches: false, ..shared(2) };
    assert_eq!(on(alone, &pair), [ExecutorChange::Resize(1, 1)]);
    // Where none slows the other there is no gain.
    let mut pairs = PairTimes::default();
    let shapes = [pair[0].shape.unwrap(), pair[1].shape.unwrap()];
    pairs.record(shapes[0], shapes[1], 10_000);
    pairs.record(shapes[1], shapes[0], 10_000);
    assert_eq!(changes(alone, &pair, &pairs, 1_000), []);
    // Three leases of two devices, of which one ends.
    let mut played =
        PlayedMachine { machine: shared(2), ..PlayedMachine::new(2, 3, &[10_000, 9_000]) };
    played.settled();
    let at = (0..3).find(|at| played.partners(*at).is_empty()).unwrap();
    played.demands.remove(at);
    for (number, demand) in played.demands.iter_mut().enumerate() {
        demand.number = u64::try_from(number).unwrap();
    }
    assert_eq!(played.settled(), (vec![1, 1], 2));
    assert!(played.partners(0).is_empty());
}
