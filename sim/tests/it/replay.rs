//! A repeated simulation is compared with the rows in a results folder; the folder contains
//! everything that this needs.

use std::fs;

use florin_sim::Scenario;
use florin_sim::results::Program;
use florin_sim::run_experiment;

const PROGRAM: Program<'static> = Program { version: "1", commit: "0123456789ab" };

#[test]
fn a_replay_matches_its_recorded_rows_and_detects_a_forged_row() {
    let folder = tempfile::tempdir().unwrap();
    let days = folder.path().join("days");
    fs::create_dir(&days).unwrap();
    fs::write(days.join("a.csv"), "member,from_s,until_s\n0,0,900\n1,0,100000\n0,1500,9000\n")
        .unwrap();
    let text = "name = 'a'\nquestion = 'Again?'\nrounds = 3\n[seeds]\nfirst = 4\ncount = 2\n\
        [learning]\nholdout_rows = 90\nholdout_rows_per_round = 30\nhidden = []\n\
        [population.honest]\ncount = 4\nrows = [20, 40]\n\
        online = { pattern = 'trace', file = 'days/a.csv' }\n\
        [population.copier]\ncount = 1\nstrategy = { kind = 'copy', noise = 0.1 }";
    let scenario = Scenario::read_in(folder.path(), text, &[]).unwrap();
    let results = run_experiment(&scenario, 2, &|_, _| {}).unwrap();
    let out = folder.path().join("out");
    results.write(&out, &PROGRAM).unwrap();
    // The folder contains the trace as well; a replay needs nothing else.
    let stored = fs::read_to_string(out.join("scenario.toml")).unwrap();
    let mut again = Scenario::read_in(&out, &stored, &[]).unwrap();
    assert_eq!(again, scenario);
    (again.seeds.first, again.seeds.count) = (5, 1);
    let played = run_experiment(&again, 1, &|_, _| {}).unwrap();
    let replayed = played.compare_with(5, &out, &PROGRAM).unwrap();
    assert_eq!(replayed.run, "5@0123456789ab");
    assert_eq!((replayed.mismatch_count, replayed.mismatches.len()), (0, 0));
    assert!(replayed.rows > 20, "{}", replayed.rows);
    let members = fs::read_to_string(out.join("members.csv")).unwrap();
    let forged =
        members.replacen("5@0123456789ab,5,0,copier,false", "5@0123456789ab,5,0,copier,true", 1);
    assert_ne!(members, forged);
    fs::write(out.join("members.csv"), forged).unwrap();
    let replayed = played.compare_with(5, &out, &PROGRAM).unwrap();
    assert_eq!((replayed.mismatch_count, replayed.mismatches[0].file), (1, "members.csv"));
    let missing = played.compare_with(6, &out, &PROGRAM).unwrap_err().to_string();
    assert!(
        missing.contains("no row of 6@0123456789ab") && missing.contains("[REPLAY_UNREADABLE]")
    );
}

#[test]
fn members_are_online_in_the_intervals_of_their_trace() {
    let folder = tempfile::tempdir().unwrap();
    // One member that is online only for the first 100 seconds, and two that always are.
    let lines = "member,from_s,until_s\n0,0,100\n1,0,1000000\n2,0,1000000\n";
    fs::write(folder.path().join("t.csv"), lines).unwrap();
    let text = "name = 'a'\nquestion = 'Who?'\nrounds = 4\n[seeds]\ncount = 1\n\
        [learning]\nholdout_rows = 120\nholdout_rows_per_round = 30\nhidden = []\n\
        [population.honest]\ncount = 3\nrows = [20, 40]\nmachine = { steps_per_second = 0.1 }\n\
        online = { pattern = 'trace', file = 't.csv' }";
    let scenario = Scenario::read_in(folder.path(), text, &[]).unwrap();
    let played = &run_experiment(&scenario, 1, &|_, _| {}).unwrap().outcomes[0];
    assert_eq!(played.members.iter().map(|m| m.rounds).collect::<Vec<_>>(), [1, 4, 4]);
    assert_eq!(played.rounds.iter().map(|r| r.online).collect::<Vec<_>>(), [3, 2, 2, 2]);
    let elsewhere = Scenario::read(text, &[]).unwrap_err().to_string();
    assert!(elsewhere.contains("t.csv") && elsewhere.contains("[SCENARIO_TRACE]"), "{elsewhere}");
    let away = text.replace("t.csv", "../t.csv");
    let away = Scenario::read_in(folder.path(), &away, &[]).unwrap_err().to_string();
    assert!(away.contains("population.honest.online.file"), "{away}");
}

#[test]
fn members_that_leave_do_not_cost_the_others_a_round() {
    let text = "name = 'a'\nquestion = 'Who?'\nrounds = 4\n[seeds]\ncount = 1\n\
        [learning]\nholdout_rows = 120\nholdout_rows_per_round = 30\nhidden = []\n\
        [population.leaves]\ncount = 2\nrows = [20, 40]\n\
        online = { pattern = 'rounds', first = 1, last = 2 }\n\
        [population.stays]\ncount = 2\nrows = [20, 40]";
    for mode in ["real", "surrogate"] {
        let change = format!("mode={mode}").parse().unwrap();
        let fitted = "surrogate.held_out=1".parse().unwrap();
        let changes = if mode == "real" { vec![change] } else { vec![change, fitted] };
        let scenario = Scenario::read(text, &changes).unwrap();
        let played = &run_experiment(&scenario, 1, &|_, _| {}).unwrap().outcomes[0];
        let sent = played.members.iter().map(|m| m.rounds).collect::<Vec<_>>();
        assert_eq!(sent, [2, 2, 4, 4], "{mode}");
        assert!(played.rounds.iter().all(|round| round.settled), "{mode}");
    }
}
