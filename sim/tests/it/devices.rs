//! Members with devices under a deadline: the engine pays those that are in time.

use florin_sim::devices::{DeviceVerdict, StepMemoryVerdict};
use florin_sim::results::Program;
use florin_sim::scenario::SettingOverride;
use florin_sim::{Scenario, SimulationOutcome, run_experiment, simulate};

/// 40 rows are 3 batches, five epochs long: 15 steps of 2 seconds, and less than a second each way.
const SCENARIO: &str = "name = 'a'\nquestion = 'In time?'\nrounds = 4\n[seeds]\ncount = 2\n\
    [learning]\nholdout_rows = 240\nholdout_rows_per_round = 60\nhidden = []\n\
    [task]\ntrain_s = 60\nreveal_s = 20\n\
    [task.step]\nworkers = 4\nparameters = 1000\nbytes = 1000000000\nseconds = 0.5\n\
    [population.fast]\ncount = 4\nrows = [40, 40]\n[population.fast.devices]\nmemory_gib = [4]\n\
    [population.other]\ncount = 2\nrows = [40, 40]\n[population.other.devices]\nmemory_gib = [4]";

fn read(changes: &[&str]) -> Scenario {
    let changes: Vec<SettingOverride> = changes.iter().map(|text| text.parse().unwrap()).collect();
    Scenario::read(SCENARIO, &changes).unwrap()
}

fn played(changes: &[&str]) -> SimulationOutcome {
    simulate(&read(changes), 1, 1).unwrap()
}

/// Rounds and late updates of each member.
fn rounds(outcome: &SimulationOutcome) -> Vec<(u32, u32)> {
    outcome.members.iter().map(|member| (member.rounds, member.late)).collect()
}

#[test]
fn a_late_member_pays_for_its_work_and_earns_nothing() {
    let slow = "population.other.devices.speed.median=0.25";
    let cost = "population.other.cost.per_step=0.1";
    let outcome = played(&[slow, cost]);
    // A member that was late sits out for two rounds.
    assert_eq!(rounds(&outcome), [(4, 0), (4, 0), (4, 0), (4, 0), (0, 2), (0, 2)]);
    let late = &outcome.members[4];
    assert_eq!((late.earned, late.selected), (0.0, 2));
    assert!((late.cost - 2.0 * 1.5).abs() < 1e-9, "{}", late.cost);
    assert_eq!(late.devices.unwrap().verdict, DeviceVerdict::Late);
    assert!(outcome.members[0].earned > 0.0 && outcome.balanced);
    let of = |round: usize| (outcome.rounds[round].late, outcome.rounds[round].updates);
    assert_eq!([of(0), of(1), of(2), of(3)], [(2, 4), (0, 4), (0, 4), (2, 4)]);
    // A round with a late member lasts until the deadline, and the uploads.
    let duration = |round: usize| outcome.rounds[round].duration_ms;
    assert!((60_000..61_000).contains(&duration(0)), "{}", duration(0));
    assert!((30_000..31_000).contains(&duration(1)), "{}", duration(1));
}

#[test]
fn a_training_is_late_once_and_only_after_its_last_round() {
    // A training of 120 seconds, for rounds of 60: a late update of the second round counts.
    let slow = "population.other.devices.speed.median=0.25";
    let late =
        |rounds: u32| format!("task.staleness={{ rounds = {rounds}, weight = \"inverse_root\" }}");
    let counted = played(&[slow, &late(8)]);
    assert!(counted.members.iter().all(|member| member.late == 0 && member.rounds > 0));
    assert!(counted.rounds.iter().all(|round| round.late == 0));
    // One of 600 seconds is too late also for the round after its own.
    let slower = "population.other.devices.speed.median=0.05";
    let lost = played(&[slower, &late(1), "rounds=2", "learning.holdout_rows=120"]);
    assert_eq!(rounds(&lost), [(2, 0), (2, 0), (2, 0), (2, 0), (0, 1), (0, 1)]);
    assert_eq!(lost.rounds.iter().map(|round| round.late).collect::<Vec<_>>(), [0, 2]);
    assert!(lost.members[4..].iter().all(|member| member.selected == 1));
}

#[test]
fn a_spare_of_a_complete_round_is_not_late() {
    let slow = "population.other.devices.speed.median=0.6";
    let spare = played(&[slow, "task.cohort=4", "task.over_selection=2"]);
    assert_eq!(rounds(&spare), [(4, 0), (4, 0), (4, 0), (4, 0), (0, 0), (0, 0)]);
    let scenario = read(&[slow, "task.cohort=4", "task.over_selection=2"]);
    let results = run_experiment(&scenario, 1, &|_, _| {}).unwrap();
    let finding = results.findings().into_iter().find(|one| one.subject == "other").unwrap();
    assert!(finding.text.ends_with("and 0 % of its selections end too late."), "{finding:?}");
}

#[test]
fn a_commit_in_time_is_not_late_if_too_few_others_commit() {
    let slow = "population.other.devices.speed.median=0.25";
    let few = played(&[slow, "task.cohort_min=5"]);
    assert!(few.rounds.iter().all(|round| !round.settled));
    assert!(few.members[..4].iter().all(|member| member.late == 0));
    assert!(few.members[4..].iter().all(|member| member.late > 0));
}

#[test]
fn the_engine_counts_a_member_at_exactly_the_deadline() {
    // 30 seconds of training and 24.3 milliseconds for the model, of which 20 are latency.
    let exact = played(&["task.train_s=30.024"]);
    assert_eq!(rounds(&exact), [(4, 0); 6]);
    let one = &exact.members[0].devices.unwrap();
    assert_eq!(one.times.commit_ms(15), 30_024);
    let early = simulate(&read(&["task.train_s=30.023", "task.cohort_min=2"]), 1, 1).unwrap();
    assert!(early.members.iter().all(|member| member.rounds == 0 && member.late > 0));
    assert!(early.rounds.iter().all(|round| !round.settled));
}

#[test]
fn a_member_without_memory_for_a_step_sends_nothing() {
    let small = played(&["population.other.devices.memory_gib=[0.5]"]);
    assert_eq!(rounds(&small), [(4, 0), (4, 0), (4, 0), (4, 0), (0, 0), (0, 0)]);
    for member in &small.members[4..] {
        // It is silent in the first round, and sits out afterwards.
        assert_eq!((member.earned, member.cost, member.selected), (0.0, 0.0, 1));
        assert_eq!(member.devices.unwrap().verdict, DeviceVerdict::TooSmall);
    }
    let counts = small.rounds.iter().map(|round| (round.too_small, round.online));
    assert_eq!(counts.collect::<Vec<_>>(), [(2, 4), (0, 4), (0, 4), (0, 4)]);
    // By a plan of 1.5 times the seconds the same members are in time.
    let plan = "task.step.plans=[{ bytes = 500000000, slow_down = 1.5 }]";
    let planned = played(&["population.other.devices.memory_gib=[0.5]", plan]);
    assert_eq!(rounds(&planned), [(4, 0); 6]);
    let round = planned.members[5].devices.unwrap();
    assert_eq!(round.times.memory, StepMemoryVerdict::ByPlan);
    assert!((round.times.step_seconds - 3.0).abs() < 1e-4, "{round:?}");
}

#[test]
fn results_have_columns_of_devices_only_if_the_scenario_has_some() {
    let program = Program { version: "1", commit: "0123456789ab" };
    let written = |scenario: &Scenario| {
        let folder = tempfile::tempdir().unwrap();
        let results = run_experiment(scenario, 1, &|_, _| {}).unwrap();
        results.write(folder.path(), &program).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
        [read("members.csv"), read("rounds.csv"), read("report.html"), read("seeds.csv")]
    };
    let slow = "population.other.devices.speed.median=0.25";
    let [members, rounds, page, seeds] = written(&read(&[slow]));
    assert!(
        members
            .lines()
            .next()
            .unwrap()
            .ends_with(",late,devices,devices_used,memory,verdict,step_seconds,round_seconds")
    );
    assert!(members.contains(",2,1,1,fits,late,8"), "{members}");
    assert!(rounds.lines().next().unwrap().ends_with(",late,too_small,duration_s"), "{rounds}");
    assert!(page.contains("Pay against the time of a round") && page.contains("Devices by group"));
    assert!(page.contains("of its selections end too late"), "{page}");
    assert!(seeds.contains(",other,late,1\n") && seeds.contains(",fast,late,0\n"), "{seeds}");
    let plain = "name = 'a'\nquestion = 'In time?'\nrounds = 1\n[seeds]\ncount = 1\n\
        [population.honest]\ncount = 3\nrows = [20, 30]";
    let [members, rounds, page, seeds] = written(&Scenario::read(plain, &[]).unwrap());
    for text in [members, rounds, seeds] {
        assert!(!text.contains("late") && !text.contains("too_small"), "{text}");
    }
    assert!(!page.contains("Devices by group"));
}

#[test]
fn a_surrogate_has_late_members_and_members_that_send_nothing() {
    let outcome = played(&[
        "mode=surrogate",
        "surrogate.held_out=1",
        "surrogate.members=24",
        "population.fast.count=40",
        "population.other.count=40",
        "population.other.devices.memory_gib=[0.5, 4]",
        "population.other.devices.speed.median=0.25",
    ]);
    let (fast, other) = outcome.members.split_at(40);
    assert!(fast.iter().all(|member| member.rounds > 0 && member.late == 0));
    assert!(other.iter().all(|member| member.rounds == 0 && member.earned == 0.0));
    let small = |verdict| other.iter().filter(move |m| m.devices.unwrap().verdict == verdict);
    assert!(small(DeviceVerdict::TooSmall).all(|member| member.selected == 0));
    assert!(small(DeviceVerdict::Late).all(|member| member.late == member.selected));
    assert!(small(DeviceVerdict::TooSmall).count() > 5 && small(DeviceVerdict::Late).count() > 5);
}

#[test]
fn errors_of_devices_name_the_key() {
    for (change, expected) in [
        ("population.other.devices.count=[3, 2]", "devices.count = [3, 2]: must be two numbers"),
        ("population.other.devices.count=[1, 9]", "from 1 to 8"),
        ("population.other.devices.speed.median=0", "devices.speed.median = 0: must be"),
        ("population.other.devices.speed.spread=6", "devices.speed.spread = 6: must be 0 to 5"),
        ("population.other.devices.memory_gib=[]", "devices.memory_gib = 0: must be 1 to 64 sizes"),
        ("population.other.devices.memory_gib=[0]", "devices.memory_gib[0] = 0: must be 0.001"),
        ("population.other.devices.link.latency_ms=-1", "link.latency_ms = -1: must be 0 to 60000"),
        ("population.other.devices.coordinator.megabits_per_second=0", "must be 0.000001 to"),
        ("population.other.devices.speeed=1", "unknown field `speeed`"),
        ("population.other.devices.card=card.json", "population.other.devices.card = card.json: "),
        ("population.other.devices.card=../card.json", "must be a path from the scenario's folder"),
        ("population.other.machine.spread=1", "population.other.machine = set: is replaced by"),
        ("task.step.workers=65", "task.step.workers = 65: must be 1 to 64"),
        ("task.step.parameters=0", "task.step.parameters = 0: must be 1 to"),
        ("task.step.seconds=0", "task.step.seconds = 0: must be"),
        ("task.step.work={ flops = 1 }", "task.step.work = flops: must be one of steps, "),
        (
            "task.step.plans=[{ bytes = 1000000000, slow_down = 2 }]",
            "task.step.plans[0].bytes = 1000000000: must be below task.step.bytes",
        ),
        (
            "task.step.plans=[{ bytes = 1, slow_down = 0.5 }]",
            "task.step.plans[0].slow_down = 0.5: must be 1 to",
        ),
        ("task.step={ parameters = 1, bytes = 1 }", "task.step.seconds = none: has no time"),
        ("population.new={ count = 1, cost = { per_device_hour = 1 } }", "costs devices: set"),
    ] {
        let changes = [change.parse().unwrap()];
        let message = Scenario::read(SCENARIO, &changes).unwrap_err().to_string();
        assert!(message.contains(expected), "{change}: {message}");
    }
    let (start, end) = SCENARIO.split_once("[task.step]").unwrap();
    let without = format!("{start}{}", &end[end.find("[population").unwrap()..]);
    let message = Scenario::read(&without, &[]).unwrap_err().to_string();
    assert!(message.contains("population.fast.devices = set: needs task.step"), "{message}");
}

#[test]
fn a_card_gives_the_seconds_of_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let kinds = florin_learning::step_cost::WORK_KINDS;
    let seconds = kinds.iter().map(|kind| format!("\"{kind}\": 0.25"));
    let card = format!(
        "{{\"version\": 2, \"engine\": \"stated\", \"threads\": 1, \"seconds\": {{{}}}, \
         \"error\": 0.1, \"points\": 1}}",
        seconds.collect::<Vec<_>>().join(", ")
    );
    std::fs::write(folder.path().join("card.json"), &card).unwrap();
    let read = |changes: &[&str]| {
        let changes: Vec<SettingOverride> =
            changes.iter().map(|one| one.parse().unwrap()).collect();
        Scenario::read_in(folder.path(), SCENARIO, &changes)
    };
    let use_card = "population.other.devices.card=card.json";
    let scenario = read(&[use_card, "task.step.work={ steps = 1, views = 3 }"]).unwrap();
    let outcome = simulate(&scenario, 1, 1).unwrap();
    // Four workers of 4 units of 0.25 seconds.
    let times = outcome.members[5].devices.unwrap().times;
    assert!((times.step_seconds - 4.0).abs() < 1e-4, "{times:?}");
    assert!((outcome.members[0].devices.unwrap().times.step_seconds - 2.0).abs() < 1e-4);
    // The results have the card beside the scenario.
    assert_eq!(scenario.attached_files().collect::<Vec<_>>(), [("card.json", &card[..])]);
    let message = read(&[use_card]).unwrap_err().to_string();
    assert!(message.contains("set task.step.work"), "{message}");
    let old = card.replace("\"version\": 2", "\"version\": 1");
    std::fs::write(folder.path().join("card.json"), old).unwrap();
    let message = read(&[use_card, "task.step.work={ steps = 1 }"]).unwrap_err().to_string();
    assert!(message.contains("its version is 1, not 2; measure the device again"), "{message}");
    std::fs::write(folder.path().join("card.json"), "{}").unwrap();
    let message = read(&[use_card]).unwrap_err().to_string();
    assert!(message.contains("is not a card of --save-card"), "{message}");
}
