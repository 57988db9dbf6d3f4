//! Two processes of which one has half of the speed: workers by speed beside equal parts.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use super::launch::{self, Launcher};
use super::rank::RankWork;
use super::work;
use crate::Measurement;

/// The slow process runs during one of these periods, and stands still during the next.
const PERIOD: Duration = Duration::from_millis(4);
/// Virtual workers: more than two thirds and one third of them are whole numbers.
const WORKERS: u32 = 12;
const STEPS: u32 = 40;
/// Least gain over equal parts.
const BAR: f64 = 1.35;

/// Milliseconds of a step on a fast process and a slow one.
fn milliseconds(work: &RankWork) -> anyhow::Result<f64> {
    let this = std::env::current_exe()?;
    let json = serde_json::to_string(work)?;
    let own = [this.as_os_str(), "devices".as_ref(), "--rank-work".as_ref(), json.as_ref()];
    let mut started = launch::start(2, &own)?;
    let fast = started.pop().context("there is no process")?;
    let slow = started.pop().context("there is no process")?;
    let id = rustix::process::Pid::from_child(&slow);
    let ended = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            use rustix::process::{Signal, kill_process};
            for signal in [Signal::STOP, Signal::CONT].into_iter().cycle() {
                if kill_process(id, signal).is_err() || ended.load(Ordering::Relaxed) {
                    break;
                }
                std::thread::sleep(PERIOD);
            }
            // It may have ended.
            let _ = kill_process(id, Signal::CONT);
        });
        let output = fast.wait_with_output();
        ended.store(true, Ordering::Relaxed);
        output
    })?;
    slow.wait_with_output()?;
    Ok(launch::result(Launcher::Own, &output.stdout, &output.stderr)?.milliseconds)
}

pub(super) fn run(folder: &Path) -> anyhow::Result<Vec<Measurement>> {
    let by_speed = work(folder, "resnet", WORKERS, STEPS);
    let half = WORKERS / 2;
    let equal = RankWork { pinned: vec![0..half, half..WORKERS], ..by_speed.clone() };
    let (naive, found) = (milliseconds(&equal)?, milliseconds(&by_speed)?);
    let name = "resnet: one of two processes at half speed";
    Ok(vec![
        Measurement::plain(format!("{name}, equal parts"), naive, "ms/step"),
        Measurement::plain(format!("{name}, by speed"), found, "ms/step"),
        Measurement::at_least(format!("{name}, gain"), naive / found, "x", BAR),
    ])
}
