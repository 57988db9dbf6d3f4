//! Executors beside a provider's daemon compute its leases: processes of this machine on one and on several devices,
//! and jobs of a real Slurm. The bits are those of a daemon that computes alone.

use std::collections::BTreeSet;

use florin_compute::{LeaseOutcome, Phase};
use florin_protocol::Digest;
use serde_json::Value;

use crate::support::kubernetes::Kubernetes;
use crate::support::lease_run::{LeaseRun, PATIENT, REFEREE, TestWindows, events, undisturbed};
use crate::support::process::{PATIENCE, Process, until_within};
use crate::support::slurm::Slurm;
use crate::support::{On, on_both};

on_both!(two_leases_are_computed_at_a_time_by_executors);

/// A batch system starts the measurement before the first bid as a job, which waits for its turn.
const BATCH: TestWindows = TestWindows { bid: 60, ..PATIENT };

/// A training of 1,000 steps.
const LONG_EPOCHS: u32 = 200;

/// Starts as many processes as an executor has devices, with the variables of torchrun.
const LAUNCHER: &str = "#!/bin/sh\n\
    count=$1; shift\n\
    export WORLD_SIZE=$count MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 20000))\n\
    rank=1\n\
    while [ $rank -lt $count ]; do RANK=$rank LOCAL_RANK=$rank \"$@\" & rank=$((rank + 1)); done\n\
    RANK=0 LOCAL_RANK=0 \"$@\"\n";

/// Writes a policy of two leases at a time with a table `[executors]`.
fn write_policy(run: &LeaseRun, executors: &str) {
    let referee = run.market.account(REFEREE);
    let policy = format!(
        "referees = [\"{referee}\"]\nchallenge_min = \"1 s\"\nwindow_min = \"1 s\"\n\
         [bid]\nper_hour = \"100\"\nstake_max = \"80\"\norders_max = 2\n[executors]\n{executors}\n"
    );
    std::fs::write(run.market.folder().join("executors.toml"), policy).unwrap();
}

/// A policy of processes, on two devices with a launcher.
fn write_processes(run: &LeaseRun) {
    let launcher = run.market.file("launch.sh");
    std::fs::write(&launcher, LAUNCHER).unwrap();
    write_policy(
        run,
        &format!(
            "devices = 2\ninterface = \"lo\"\nlauncher = [\"sh\", {launcher:?}, \"{{count}}\"]"
        ),
    );
}

/// Waits for the pay of a lease. Returns its result.
#[track_caller]
fn expect_paid(run: &LeaseRun, id: Digest) -> Digest {
    let lease = run.wait_for_pay(id);
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert!(!run.owed(&lease, "provider").is_zero());
    lease.lease().result().unwrap()
}

/// Waits for the pay of a lease, which has the result of a daemon that computes alone.
#[track_caller]
fn expect_undisturbed(run: &LeaseRun, id: Digest) {
    assert_eq!(expect_paid(run, id), undisturbed());
}

/// The devices of each executor that started.
fn executors(process: &Process) -> Vec<u64> {
    let lines = process.log();
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let started = events.filter(|event| event["event"] == "executor_started");
    started.map(|event| event["devices"].as_u64().unwrap()).collect()
}

/// The second order differs in its number alone, so that both have the result of an undisturbed run.
fn two_leases_are_computed_at_a_time_by_executors(on: On) {
    let run = LeaseRun::open(on);
    write_processes(&run);
    let before = run.tokens();
    let (_helpers, provider) = (run.helpers(), run.daemon("provider", "executors.toml"));
    let orders = [1, 2].map(|nonce| {
        run.write_order(nonce, PATIENT);
        run.place(None)
    });
    for id in orders {
        expect_undisturbed(&run, id);
    }
    assert_eq!(run.tokens(), before);
    let started = executors(&provider);
    assert!(started.len() >= 2 && started.contains(&2), "{started:?}");
    let folder = run.market.folder();
    let left = walk(folder).into_iter().filter(|path| path.contains("/executors/")).count();
    assert_eq!(left, 0, "no work of an executor stays");
}

#[test]
fn two_leases_share_a_device() {
    let run = LeaseRun::open(On::Embedded);
    write_policy(&run, "devices = 1\nleases_per_device = 2");
    let before = run.tokens();
    let _helpers = run.helpers();
    // The second order is funded a few seconds after the first one. The training takes longer than that.
    let orders = [1, 2].map(|nonce| {
        run.write_order(nonce, BATCH);
        run.train_for(LONG_EPOCHS);
        run.place(None)
    });
    let provider = run.daemon("provider", "executors.toml");
    let results = orders.map(|id| expect_paid(&run, id));
    assert_eq!(results[0], results[1]);
    assert_eq!(run.tokens(), before);
    let lines = provider.log();
    let events = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let started: Vec<Value> = events.filter(|event| event["event"] == "executor_started").collect();
    assert!(started.iter().all(|event| event["devices"] == 1), "{started:?}");
    assert!(started.iter().any(|event| event["shared"] == true), "{started:?}");
}

/// All files below a folder.
fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(walk(&path)),
            false => found.push(path.display().to_string()),
        }
    }
    found
}

#[test]
fn a_daemon_killed_after_each_event_takes_its_executors_along() {
    let run = LeaseRun::open(On::Embedded);
    write_processes(&run);
    run.write_order(1, PATIENT);
    let before = run.tokens();
    let (_helpers, mut provider) = (run.helpers(), run.daemon("provider", "executors.toml"));
    let id = run.place(None);
    let (mut killed_for, mut kills) = (BTreeSet::new(), 0);
    until_within(4 * PATIENCE, "the lease is over", || {
        if events(&provider).into_iter().any(|event| killed_for.insert(event)) {
            provider.restart();
            kills += 1;
        }
        (run.view(id).phase == Phase::Over).then_some(())
    });
    expect_undisturbed(&run, id);
    eprintln!("{kills} kills: {killed_for:?}");
    assert!(killed_for.contains("executor_started") && killed_for.contains("segment_delivered"));
    assert_eq!(run.tokens(), before);
    provider.kill();
    until_within(PATIENCE, "its executors end", || {
        let folder = run.market.folder().display().to_string();
        let is_own = |line: &String| line.contains("execute-segments") && line.contains(&folder);
        (!commands().iter().any(is_own)).then_some(())
    });
}

/// The command lines of all processes.
fn commands() -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .collect()
}

#[test]
fn pods_of_kubernetes_compute_a_lease() {
    let run = LeaseRun::open(On::Embedded);
    let kubernetes = Kubernetes::start(run.market.folder());
    let program = env!("CARGO_BIN_EXE_florin");
    write_policy(
        &run,
        &format!(
            "backend = \"kubernetes\"\nqueue_max = \"20 s\"\n[executors.kubernetes]\n\
             image = \"florin\"\nclaim = \"state\"\nprogram = {program:?}"
        ),
    );
    run.write_order(1, BATCH);
    let before = run.tokens();
    let policy = run.market.file("executors.toml");
    let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
    let (_helpers, mut provider) =
        (run.helpers(), run.market.start_with("provider", &call, &kubernetes.environment()));
    let id = run.place(None);
    until_within(4 * PATIENCE, "a segment", || (run.view(id).delivered >= 1).then_some(()));
    provider.restart();
    expect_undisturbed(&run, id);
    assert_eq!(run.tokens(), before);
    provider.ask_to_stop();
    provider.finish();
    let (left, created) = kubernetes.counts();
    assert!(left == 0 && created >= 2, "a measurement and the segments: {left} of {created} left");
}

#[test]
fn jobs_of_slurm_compute_a_lease_and_outlive_the_daemon() {
    let run = LeaseRun::open(On::Embedded);
    let Some(slurm) = Slurm::start() else {
        eprintln!("SKIPPED: there is no Slurm; `cargo xtask setup` fetches it on Debian");
        return;
    };
    write_policy(&run, "devices = 2\ninterface = \"lo\"\nqueue_max = \"20 s\"");
    run.write_order(1, BATCH);
    let before = run.tokens();
    let policy = run.market.file("executors.toml");
    let call =
        ["provide", "--orders", &policy, "--backend", "slurm", "--engine", "torch", "--json"];
    let (_helpers, mut provider) =
        (run.helpers(), run.market.start_with("provider", &call, &slurm.environment()));
    let id = run.place(None);
    until_within(4 * PATIENCE, "a segment", || (run.view(id).delivered >= 1).then_some(()));
    // The job goes on without its daemon, which finds it again.
    provider.restart();
    expect_undisturbed(&run, id);
    assert_eq!(run.tokens(), before);
    let started = executors(&provider);
    assert!(started.len() >= 2, "a measurement and the segments: {started:?}");
    provider.ask_to_stop();
    provider.finish();
    until_within(PATIENCE, "no job stays", || slurm.queue().is_empty().then_some(()));
}
