//! Invalid files are refused with a code, a message with the position, and an exit code, and no
//! data is lost.

use std::path::Path;

use florin_protocol::{TaskId, TaskPhase};

use crate::support::{CommandOutput, On, TestMarket, TestPlan, florin};

fn file(folder: &Path, name: &str, content: impl AsRef<[u8]>) -> String {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path.display().to_string()
}

fn assert_contains(output: &CommandOutput, parts: &[&str]) {
    for part in parts {
        assert!(output.err.contains(part), "{:?} lacks {part:?}", output.err);
    }
}

#[test]
fn invalid_data_is_refused_with_file_and_position() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let idx = |magic: u32, count: u32, rest: &[u8]| {
        let mut bytes = [magic.to_be_bytes(), count.to_be_bytes()].concat();
        bytes.extend_from_slice(rest);
        bytes
    };
    let image_size = [2u32.to_be_bytes(), 2u32.to_be_bytes()].concat();
    let images = [image_size, vec![0; 8]].concat();
    let good_images = file(path, "images", idx(0x803, 2, &images));
    let good_labels = file(path, "labels", idx(0x801, 2, &[0, 1]));
    let cases = [
        (format!("idx:{},{good_labels}", file(path, "magic", idx(0x999, 2, &images))), "magic"),
        (format!("idx:{good_images},{}", file(path, "count", idx(0x801, 3, &[0, 1, 2]))), "count"),
        (format!("idx:{},{good_labels}", file(path, "short", idx(0x803, 9, &images))), "short"),
        (format!("csv:{}#y", file(path, "long.csv", "a,y\n1,0\n1,0,1\n")), "line 3: 3 cells"),
        (format!("csv:{}#z", file(path, "label.csv", "a,y\n1,0\n")), "no column"),
        (format!("florin:{}", file(path, "junk.florin", "junk")), "junk.florin"),
        (format!("csv:{}#y", path.join("gone.csv").display()), "gone.csv"),
    ];
    for (source, part) in &cases {
        let code = if *part == "gone.csv" { "FILE_NOT_FOUND" } else { "INVALID_DATA" };
        let output = florin(&["data", "show", source]);
        assert_contains(&output, &[part]);
        output.refused(2, code);
        let output = florin(&["data", "show", source, "--json"]);
        let error = output.json_error().expect("a failure in JSON");
        assert!(error.to_string().contains(part), "{error}");
        output.refused(2, code);
    }
    assert_eq!(florin(&["data", "show", &format!("idx:{good_images},{good_labels}")]).code, 0);
    florin(&["data", "show", "sprouts"]).expect(2);
    // Without an encoding, cells are numbers.
    for (name, text) in [("hole.csv", "a,y\n1,0\n,1\n"), ("word.csv", "a,y\n1,0\nx,1\n")] {
        let (source, out) = (format!("csv:{}#y", file(path, name, text)), path.join("out"));
        let call = ["data", "split", &source, "--shards", "1", "--out", out.to_str().unwrap()];
        let output = florin(&call);
        assert_contains(&output, &["line 3", "--task FILE"]);
        output.refused(2, "INVALID_DATA");
    }
}

#[test]
fn data_is_not_split_twice_into_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("shards");
    let (shards, test) = (["--shards", "2"], ["--test", "0.2"]);
    let split = |shards: [&str; 2], more: &[&str]| {
        let at = ["data", "split", "digits", "--out", out.to_str().unwrap()];
        florin(&[&at[..], &shards, more].concat())
    };
    let files = || {
        let entries = std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> =
            entries.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect();
        files.sort();
        files
    };
    split(shards, &test).expect(0);
    let before = files();
    assert_eq!(before.len(), 3);
    let output = split(["--shards", "1"], &["--seed", "2"]);
    assert_contains(&output, &["shard-0.florin", "--out", "nothing is overwritten"]);
    output.refused(2, "FILE_EXISTS");
    assert_eq!(files(), before, "nothing was written");
    // A test set that is left over overlaps with the new shards as well.
    for (path, _) in before.iter().filter(|(path, _)| !path.ends_with("test.florin")) {
        std::fs::remove_file(path).unwrap();
    }
    split(shards, &[]).refused(2, "FILE_EXISTS");
    std::fs::remove_file(out.join("test.florin")).unwrap();
    std::fs::write(out.join("shard-notes.florin"), "another file").unwrap();
    split(shards, &[]).expect(0);
}

#[test]
fn invalid_wallets_are_refused_and_wallets_are_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let passphrase = file(path, "passphrase", "right\n");
    let wrong = file(path, "wrong", "wrong\n");
    let wallet = path.join("wallet.json").display().to_string();
    let new = ["wallet", "new", &wallet, "--light", "--passphrase-file", &passphrase];
    let made = florin(&new).expect(0);
    assert!(
        !made.out.contains("Recovery phrase. It"),
        "the phrase must not go into a pipe: {}",
        made.out
    );
    let before = std::fs::read(&wallet).unwrap();
    florin(&new).refused(2, "KEYSTORE_EXISTS");
    assert_eq!(std::fs::read(&wallet).unwrap(), before);
    let corrupt = file(path, "corrupt.json", &before[..before.len() / 2]);
    let copy = path.join("copy.json").display().to_string();
    let export = |wallet: &str, passphrase: &str| {
        let call = ["wallet", "export", &copy, "--new-passphrase-file", passphrase];
        florin(&[&call[..], &["--wallet", wallet, "--passphrase-file", passphrase]].concat())
    };
    export(&wallet, &wrong).refused(2, "WRONG_PASSPHRASE");
    export(&corrupt, &passphrase).refused(2, "KEYSTORE_CORRUPT");
    export(&path.join("gone.json").display().to_string(), &passphrase).refused(2, "NO_KEYSTORE");
    florin(&["wallet", "show", &corrupt]).refused(2, "KEYSTORE_CORRUPT");
    florin(&["wallet", "export", &copy, "--wallet", &wallet]).refused(2, "NO_SECRET");
}

#[test]
fn invalid_task_files_are_refused_with_line_key_and_value() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let task = path.join("task.toml").display().to_string();
    florin(&["task", "new", &task]).expect(0);
    florin(&["task", "check", &task]).expect(0);
    florin(&["task", "new", &task]).refused(2, "FILE_EXISTS");
    let text = std::fs::read_to_string(&task).unwrap();
    for (from, to, parts) in [
        ("count = 10", "count = 0", ["rounds.count = 0", "1 to 100000"]),
        ("count = 10", "count = 10\ncuont = 1", ["cuont", "unknown field"]),
        ("rows = \"1047..1797\"", "rows = \"0..9999\"", ["holdout.rows", "1797 rows"]),
        ("source = \"digits\"", "source = \"csv:no.csv#y\"", ["holdout.source", "no.csv"]),
        ("bond_min = \"10\"", "bond_min = \"0.1\"", ["budget.bond_min = 0.1", "maximum debit"]),
        ("data = \"1000\"", "data = \"0.0001\"", ["budget.data = 0.0001", "dust"]),
        ("inputs = 64", "inputs = 32", ["data.width = 64", "32 features"]),
    ] {
        let bad = file(path, "bad.toml", text.replacen(from, to, 1));
        let output = florin(&["task", "check", &bad]);
        assert_contains(&output, &parts);
        assert_contains(&output, &["line "]);
        output.refused(2, "INVALID_TASK");
    }
}

/// A market whose only task is done.
fn market_with_a_completed_task() -> (TestMarket, TaskId) {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.participants.truncate(1);
    plan.target = 1;
    plan.provider = false;
    let market = TestMarket::open(plan);
    let task = market.run();
    (market, task)
}

/// Tries to start a coordinator with the market's wallet.
fn coordinate(market: &TestMarket, data: &str, listen: &str) -> CommandOutput {
    coordinate_with(market, data, listen, &[])
}

/// As [`coordinate`], with further arguments.
fn coordinate_with(market: &TestMarket, data: &str, listen: &str, more: &[&str]) -> CommandOutput {
    let (wallet, passphrase) = (market.file("coordinator.json"), market.file("passphrase"));
    let at = ["coordinate", "--engine", "reference", "--data", data, "--listen", listen];
    let signing = ["--wallet", &wallet, "--passphrase-file", &passphrase];
    florin(&[&at[..], &signing[..], more].concat())
}

#[test]
fn a_second_coordinator_does_not_start() {
    let (market, task) = market_with_a_completed_task();
    let (data, elsewhere) = (market.file("coordinator"), market.file("elsewhere"));
    let address = market.url.strip_prefix("http://").unwrap();
    let output = coordinate(&market, &elsewhere, address);
    assert_contains(&output, &[address, "--listen"]);
    output.refused(2, "PORT_IN_USE");
    assert!(!Path::new(&elsewhere).exists(), "a coordinator that cannot listen writes no files");
    coordinate(&market, &data, "127.0.0.1:0").refused(2, "LEDGER_LOCKED");
    florin(&["ledger", "verify", "--data", &data]).refused(2, "LEDGER_LOCKED");
    coordinate(&market, &elsewhere, "127.0.0.1:0").refused(2, "NO_GENESIS");
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    requests_with_bad_arguments(&market, &task.to_string());
}

#[test]
fn allocations_for_an_existing_market_are_refused() {
    let (mut market, task) = market_with_a_completed_task();
    let (balances, data) = (market.balances(task), market.file("coordinator"));
    market.coordinator.kill();
    let allocation = format!("{}=5000", market.account("ann"));
    let output = coordinate_with(&market, &data, "127.0.0.1:0", &["--allocate", &allocation]);
    assert_contains(&output, &[&data, "florin transfer", "without --allocate"]);
    output.refused(2, "LEDGER_EXISTS");
    market.start_coordinator_again(); // with --genesis, as before
    assert_eq!(market.balances(task), balances);
}

#[test]
fn a_coordinator_refuses_damaged_files_and_loses_nothing() {
    let (mut market, task) = market_with_a_completed_task();
    let (balances, data) = (market.balances(task), market.file("coordinator"));
    market.coordinator.kill();

    // A torn tail: the last record was cut off during its write, so it was never acknowledged.
    let journal = market.folder().join("coordinator/journal");
    let whole = std::fs::read(&journal).unwrap();
    std::fs::write(&journal, &whole[..whole.len() - 3]).unwrap();
    market.start_coordinator_again();
    market.wait_for(task, 2, TaskPhase::Done);
    assert_eq!(market.balances(task), balances);
    market.coordinator.kill();

    // A flipped byte in the middle cannot be repaired.
    let whole = std::fs::read(&journal).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    std::fs::write(&journal, &flipped).unwrap();
    coordinate(&market, &data, "127.0.0.1:0").refused(3, "JOURNAL_CORRUPT");
    assert_eq!(std::fs::read(&journal).unwrap(), flipped, "a damaged journal is not changed");
    std::fs::write(&journal, &whole).unwrap();

    flip_bytes(&market.folder().join("coordinator/ledger.redb"), &data);
    market.start_coordinator_again();
    assert_eq!(market.balances(task), balances);
}

/// Flips bytes all over the ledger's file, one at a time, and restores the file at the end.
fn flip_bytes(ledger: &Path, data: &str) {
    let good = std::fs::read(ledger).unwrap();
    let mut refused = 0;
    for at in (0..good.len()).step_by(good.len() / 24) {
        let mut flipped = good.clone();
        flipped[at] ^= 0x40;
        std::fs::write(ledger, &flipped).unwrap();
        let output = florin(&["ledger", "verify", "--data", data]);
        if output.code != 0 {
            output.refused(1, "LEDGER_CORRUPT"); // other bytes belong to no used page
            refused += 1;
        }
    }
    assert!(refused > 0, "no flipped byte was detected");
    std::fs::write(ledger, &good).unwrap();
}

/// A full disk, if the system provides /dev/full.
fn requests_with_bad_arguments(market: &TestMarket, task: &str) {
    if Path::new("/dev/full").exists() {
        market
            .run_command(&["task", "model", task, "--out", "/dev/full"])
            .refused(3, "STORAGE_FULL");
    }
    market.run_command(&["task", "show", "zzzzzz"]).refused(2, "INVALID_ID");
    market.run_command(&["task", "show", "abcdefabcdef"]).refused(1, "UNKNOWN_TASK");
    florin(&["task", "list", "--market", "http://127.0.0.1:1"])
        .refused(3, "COORDINATOR_UNAVAILABLE");
    florin(&["task", "list", "--market", "somewhere"]).refused(2, "INVALID_URL");
    let account = market.account("ann").to_string();
    let transfer = ["transfer", &account, "0", "--wallet", "any.json"];
    market.run_command(&transfer).refused(2, "INVALID_ARGUMENT");
}

#[test]
fn a_wrong_command_line_has_a_code_and_advice() {
    let missing = florin(&["task", "list"]).refused(2, "USAGE");
    assert_contains(&missing, &["--market <URL>", "export FLORIN_MARKET=URL"]);
    // A stake is for the rounds of tasks, and none of these is about them.
    for (alone, wanted) in [
        (&["--unlist"][..], "--list <FILE>"),
        (&["--dry-run"], "<--orders <FILE>|--list <FILE>>"),
        (&["--backend", "slurm"], "--orders <FILE>"),
    ] {
        let call = ["provide", "--market", "http://127.0.0.1:1", "--wallet", "any.json"];
        let refused = florin(&[&call[..], alone].concat()).refused(2, "USAGE");
        assert_contains(&refused, &[wanted]);
        assert!(!refused.err.contains("--max-stake"), "{}", refused.err);
    }
    let error = florin(&["task", "list", "--json", "--bogus"]).refused(2, "USAGE").json_error();
    let message = error.expect("one line of JSON")["message"].to_string();
    assert!(message.contains("unexpected argument '--bogus'"), "{message}");
    assert_contains(&florin(&["transfer", "-5"]).refused(2, "USAGE"), &["invalid value '-5'"]);
    assert_eq!(florin(&["--version"]).code, 0);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let absent = format!("csv:{}#label", path("absent.csv"));
    assert_contains(
        &florin(&["data", "show", &absent]).refused(2, "FILE_NOT_FOUND"),
        &["absent.csv", "a relative path starts at"],
    );
    florin(&["task", "check", &path("absent.toml")]).refused(2, "FILE_NOT_FOUND");
    florin(&["task", "new", "--data", "digits", "--out", &path("t.toml"), "--json"]).expect(0);
    florin(&["data", "show", &format!("csv:{}#a", path(""))]).refused(2, "NOT_A_FILE");
}

#[test]
fn a_missing_engine_or_tool_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("r.html").display().to_string();
    let output = florin(&["demo", "--engine", "cuda", "--out", &out]);
    if output.code == 0 {
        return; // a machine with a GPU
    }
    assert_contains(&output, &["GPU"]);
    let missing = folder.path().join("anvil").display().to_string();
    let demo = ["demo", "--ledger", "ethereum", "--anvil", &missing, "--out", &out];
    let output = florin(&demo).refused(2, "TOOL_MISSING");
    assert_contains(&output, &[&missing, "cargo xtask demo --ledger ethereum", "FLORIN_ANVIL"]);
}

/// Files that people write: each command reads a bounded part of one, and refuses bytes that are no text.
#[cfg(target_os = "linux")]
#[test]
fn a_file_without_an_end_and_one_without_text_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let binary = file(folder.path(), "binary.toml", b"name = \"a\"\nb = \"\xff\"\n");
    let market = ["--market", "http://127.0.0.1:9", "--wallet", "none.json"];
    let readers: [(&[&str], &str); 6] = [
        (&["silo", "split", "--task", "3f9a1c", "--file"], "SPLIT_INVALID"),
        (&["participate", "--all", "--policy"], "INVALID_POLICY"),
        (&["provide", "--orders"], "INVALID_POLICY"),
        (&["provide", "--list"], "INVALID_LISTING"),
        (&["task", "check"], "INVALID_TASK"),
        (&["rent", "check"], "INVALID_ORDER"),
    ];
    for (call, code) in readers {
        let more: &[&str] = if call[1] == "check" { &[] } else { &market };
        for (path, part) in [("/dev/zero", "longer than"), (binary.as_str(), "line 2 is no text")] {
            let output = florin(&[call, &[path], more].concat());
            assert_contains(&output, &[path, part]);
            output.refused(2, code);
        }
    }
}
