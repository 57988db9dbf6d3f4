//! Times of devices, by hand and by comparison.

use std::time::Instant;

use florin_learning::step_cost::step_together;

use super::*;
use crate::Scenario;
use crate::random::uniform;
use crate::scenario::SettingOverride;

/// Members and devices of each in the measurement of the time.
const MANY: (u64, usize) = (10_000, 8);
/// A link without delay.
const FREE: TransferCost = TransferCost { alpha: 0.0, beta: 0.0 };

const SCENARIO: &str = "name = 'a'\nquestion = 'In time?'\nrounds = 2\n[task]\ntrain_s = 100\n\
    [task.step]\nworkers = 8\nparameters = 1000\nbytes = 2000000000\nseconds = 0.5\n\
    plans = [{ bytes = 1500000000, slow_down = 2 }, { bytes = 1000000000, slow_down = 1.5 }]\n\
    [population.honest]\ncount = 20\nrows = [20, 40]\n[population.honest.devices]\n\
    count = [1, 4]\nspeed = { median = 1, spread = 0.5 }\nmemory_gib = [1, 2, 4]\n\
    coordinator = { latency_ms = 5, megabits_per_second = 8, spread = 0.3 }";

fn read(changes: &[&str]) -> Scenario {
    let changes: Vec<SettingOverride> = changes.iter().map(|text| text.parse().unwrap()).collect();
    Scenario::read(SCENARIO, &changes).unwrap()
}

fn step(changes: &[&str]) -> TaskStep {
    read(changes).task.step.unwrap()
}

/// Devices with these seconds of a worker, with room for every step.
fn devices(worker_seconds: &[f64], link: TransferCost) -> DrawnDevices {
    let device = |&worker_seconds: &f64| Device { worker_seconds, memory_bytes: u64::MAX };
    let devices = worker_seconds.iter().map(device).collect();
    DrawnDevices { devices, link, coordinator: FREE }
}

fn times(scenario: &Scenario, seed: u64) -> Vec<DeviceTimes> {
    let group = scenario.population["honest"].devices.as_ref().unwrap();
    let of = |member| member_devices(scenario, group, seed, member).unwrap();
    (0..20).map(of).collect()
}

#[test]
fn the_same_seed_draws_the_same_devices() {
    let scenario = read(&[]);
    let all = times(&scenario, 3);
    assert_eq!(all, times(&scenario, 3));
    assert_ne!(all, times(&scenario, 4));
    let counts: std::collections::BTreeSet<u32> = all.iter().map(|of| of.devices).collect();
    assert_eq!(counts.into_iter().collect::<Vec<u32>>(), [1, 2, 3, 4]);
    let several = |of: &DeviceTimes| of.memory == StepMemoryVerdict::ByPlan;
    assert!(all.iter().any(several) && !all.iter().all(several));
    // The rows and the number of the members change no device.
    let other = read(&["population.honest.rows=[10, 30]", "population.honest.count=30"]);
    assert_eq!(all, times(&other, 3));
}

#[test]
fn a_step_is_that_of_all_devices_and_a_round_that_of_all_steps() {
    let step = step(&[]);
    let one = DeviceTimes::predict(&devices(&[0.5], FREE), &step);
    assert!((one.step_seconds - 4.0).abs() < 1e-5, "{one:?}");
    let two = DeviceTimes::predict(&devices(&[0.5, 0.5], FREE), &step);
    assert!((two.step_seconds - 2.0).abs() < 1e-5, "half of {one:?}: {two:?}");
    // 4,300 bytes at a megabyte a second and 5 ms, there and back.
    let coordinator = TransferCost { alpha: 0.005, beta: 1e-6 };
    let far = DrawnDevices { coordinator, ..devices(&[0.5], FREE) };
    let far = DeviceTimes::predict(&far, &step);
    assert!((far.download_seconds - 0.0093).abs() < 1e-9, "{far:?}");
    let round = far.round(10, &read(&[]).task);
    assert!((round.round_seconds - 40.0 - 2.0 * 0.0093).abs() < 1e-4, "{round:?}");
    assert_eq!((far.commit_ms(10), far.upload_ms()), (40_010, 10));
    assert!((two.device_hours(900) - 1.0).abs() < 1e-5, "{two:?}");
}

#[test]
fn a_member_at_exactly_the_deadline_is_in_time() {
    let one = DeviceTimes::predict(&devices(&[0.5], FREE), &step(&[]));
    let verdict = |train_s: &str| one.round(10, &read(&[&format!("task.train_s={train_s}")]).task);
    assert_eq!(verdict("40").verdict, DeviceVerdict::InTime);
    assert_eq!(verdict("39.999").verdict, DeviceVerdict::Late);
    // An upload may not take all of its time.
    let coordinator = TransferCost { alpha: 2.0, beta: 0.0 };
    let far = DrawnDevices { coordinator, ..devices(&[0.5], FREE) };
    let far = DeviceTimes::predict(&far, &step(&[]));
    let verdict =
        |reveal_s: &str| far.round(1, &read(&[&format!("task.reveal_s={reveal_s}")]).task);
    assert_eq!(verdict("2.001").verdict, DeviceVerdict::InTime);
    assert_eq!(verdict("2").verdict, DeviceVerdict::Late);
}

#[test]
fn a_device_without_memory_for_a_step_is_left_out() {
    let step = step(&[]);
    let with = |memory: &[u64]| {
        let device = |&memory_bytes: &u64| Device { worker_seconds: 0.5, memory_bytes };
        let devices = memory.iter().map(device).collect();
        DeviceTimes::predict(&DrawnDevices { devices, link: FREE, coordinator: FREE }, &step)
    };
    let near = |a: f64, b: f64| (a - b).abs() < 1e-4;
    let fits = with(&[2_000_000_000]);
    assert_eq!((fits.used, fits.memory), (1, StepMemoryVerdict::Fits));
    // The smaller of two plans within the memory is the faster one.
    let planned = with(&[1_999_999_999]);
    assert_eq!((planned.used, planned.memory), (1, StepMemoryVerdict::ByPlan));
    assert!(near(planned.step_seconds, 1.5 * fits.step_seconds), "{planned:?}");
    let two = with(&[2_000_000_000, 999_999_999]);
    assert_eq!((two.devices, two.used, two.memory), (2, 1, StepMemoryVerdict::Fits));
    assert!(near(two.step_seconds, fits.step_seconds), "{two:?}");
    let none = with(&[999_999_999, 1]);
    assert_eq!((none.used, none.memory), (0, StepMemoryVerdict::TooSmall));
    assert_eq!(none.round(1, &read(&[]).task).verdict, DeviceVerdict::TooSmall);
    let mixed = with(&[2_000_000_000, 1_200_000_000]);
    assert_eq!((mixed.used, mixed.memory), (2, StepMemoryVerdict::ByPlan));
}

#[test]
fn a_faster_device_never_makes_a_member_later() {
    let rng = &mut stream(5, "test", [0, 0]);
    let step = step(&[]);
    for case in 0..4_000 {
        let count = 1 + uniform_below(rng, 8) as usize;
        let mut seconds: Vec<f64> = (0..count).map(|_| 0.1 * normal(rng).exp()).collect();
        let beta = if case % 2 == 0 { 0.0 } else { 1e-5 * uniform(rng) };
        let link = TransferCost { alpha: 0.01 * beta, beta };
        let before = DeviceTimes::predict(&devices(&seconds, link), &step);
        let at = uniform_below(rng, count as u64) as usize;
        seconds[at] *= uniform(rng);
        let after = DeviceTimes::predict(&devices(&seconds, link), &step);
        assert!(
            after.step_seconds <= before.step_seconds * (1.0 + 1e-9),
            "case {case}: {before:?} {after:?} {seconds:?}"
        );
    }
}

/// The quote of the best number of devices, the fastest first.
fn quoted(seconds: &[f64], step: &TaskStep, link: TransferCost) -> f64 {
    let quote = |count: usize| {
        let all = step_together(&seconds[..count], step.workers, step.parameters, link);
        all.unwrap().seconds
    };
    (1..=seconds.len()).map(quote).fold(f64::INFINITY, f64::min)
}

#[test]
fn devices_of_unequal_speeds_share_whole_workers() {
    // Seven workers are one, two and four; of eight the fastest device has five.
    for (workers, seconds, computing) in [(7, 1.0, 3.0), (8, 1.25, 3.25)] {
        let step = step(&[&format!("task.step.workers={workers}")]);
        let times = DeviceTimes::predict(&devices(&[1.0, 0.5, 0.25], FREE), &step);
        assert_eq!((times.step_seconds, times.computing_seconds), (seconds, computing));
    }
}

#[test]
fn devices_have_the_speeds_of_their_group() {
    let speeds = "population.honest.devices.speeds=[1, 2, 4]";
    let (one, equal) =
        ("population.honest.devices.count=[1, 1]", "population.honest.devices.speed.spread=0");
    let scenario = read(&[one, equal, speeds, "task.step.workers=7", "task.step.seconds=1"]);
    let group = scenario.population["honest"].devices.as_ref().unwrap();
    let drawn = draw(group, 1.0, &mut stream(1, "devices", [0, 0]));
    let seconds: Vec<f64> = drawn.devices.iter().map(|device| device.worker_seconds).collect();
    assert_eq!(seconds, [1.0, 0.5, 0.25]);
    let changes: Vec<SettingOverride> = [speeds].iter().map(|one| one.parse().unwrap()).collect();
    let refused = Scenario::read(SCENARIO, &changes).unwrap_err().to_string();
    assert!(refused.contains("devices.speeds"), "{refused}");
}

#[test]
fn a_step_takes_nearly_as_long_as_a_quote_predicts() {
    let rng = &mut stream(6, "test", [0, 0]);
    let mut all = Vec::new();
    for case in 0..48 {
        let parameters = [1_000, 100_000, 1_000_000, 10_000_000][case % 4];
        let step = step(&[&format!("task.step.parameters={parameters}")]);
        let count = 2 + uniform_below(rng, 4) as usize;
        let mut seconds: Vec<f64> = (0..count).map(|_| 0.1 * normal(rng).exp()).collect();
        let link = TransferCost { alpha: 1e-4, beta: 1e-8 };
        let quick = DeviceTimes::predict(&devices(&seconds, link), &step).step_seconds;
        seconds.sort_by(f64::total_cmp);
        all.push(quick / quoted(&seconds, &step, link));
    }
    all.sort_by(f64::total_cmp);
    println!("{:.3} to {:.3} of a quote, median {:.4}", all[0], all[47], all[24]);
    assert!(all[0] > 0.7 && all[47] < 1.1 && (all[24] - 1.0).abs() < 0.02, "{all:?}");
}

#[test]
fn ten_thousand_members_have_devices() {
    let (members, count) = MANY;
    let count = format!("population.honest.devices.count=[{count}, {count}]");
    let scenario = read(&[&count, "task.step.parameters=1000000"]);
    let group = scenario.population["honest"].devices.as_ref().unwrap();
    let start = Instant::now();
    let all = (0..members).map(|member| member_devices(&scenario, group, 1, member).unwrap());
    let used: u64 = all.map(|of| u64::from(of.used)).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("{members} members with {used} devices: {seconds:.3} s");
    assert!(used > 50_000, "{used} devices");
}
