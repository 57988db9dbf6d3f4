//! One seed gives the same bytes on any number of threads; another seed gives other bytes.

use florin_sim::results::Program;
use florin_sim::run_experiment;
use florin_sim::{Scenario, simulate};

fn small() -> Scenario {
    let text = "name = 'small'\nquestion = 'Does it repeat?'\nrounds = 3\n\
        [seeds]\ncount = 2\n[learning]\nholdout_rows = 90\nholdout_rows_per_round = 30\nhidden = \
        [8]\n\
        [population.honest]\ncount = 5\nrows = [20, 40]\nlabel_skew = 0.5\n\
        online = { pattern = 'random', probability = 0.9 }\n\
        machine = { spread = 0.5 }\ncost = { per_step = 0.01, per_megabyte = 0.1 }\n\
        [population.copier]\ncount = 1\nstrategy = { kind = 'copy', noise = 0.1 }\n\
        [population.twins]\ncount = 1\nstrategy = { kind = 'sybil', identities = 3, updates = \
        'hedged' }\n\
        [population.lazy]\ncount = 1\nstrategy = { kind = 'adaptive_effort' }\noutside_option = \
        0.5";
    Scenario::read(text, &[]).unwrap()
}

#[test]
fn an_experiment_writes_the_same_bytes_on_any_number_of_threads() {
    let scenario = small();
    let files = |threads| {
        let folder = tempfile::tempdir().unwrap();
        let results = run_experiment(&scenario, threads, &|_, _| {}).unwrap();
        results.write(folder.path(), &Program { version: "1", commit: "abc" }).unwrap();
        let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                (name, std::fs::read(entry.path()).unwrap())
            })
            .collect();
        all.sort();
        all
    };
    let one = files(1);
    assert_eq!(one.len(), 12);
    assert_eq!(one, files(2));
    assert_eq!(one, files(5));
}

#[test]
fn a_simulation_depends_on_the_seed_and_not_on_the_number_of_threads() {
    let scenario = small();
    let game = simulate(&scenario, 5, 1).unwrap();
    assert_eq!(game, simulate(&scenario, 5, 3).unwrap());
    assert_ne!(game.members, simulate(&scenario, 6, 1).unwrap().members);
    assert!(game.balanced);
    assert_eq!(game.rounds.len(), 3);
}
