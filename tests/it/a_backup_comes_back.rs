//! A backup of a market that runs: it is made without a stop, comes back checked, and what was acknowledged before it is
//! there.

use florin_protocol::Phase;

use crate::support::process::{command, florin};
use crate::support::{On, Plan, TestMarket};

#[test]
fn a_backup_of_a_running_market_comes_back_with_all_that_was_acknowledged() {
    let mut market = TestMarket::open(Plan::honest(On::Embedded, 1));
    let task = market.run();
    let before = (market.view(task), market.books(task), market.balances(task));
    let (data, backup) = (market.file("coordinator"), market.file("backup"));
    let busy = ["coordinate", "--check", "--data", &data, "--wallet", "none.json"];
    florin(&busy).refused(2, "DATA_FOLDER_IN_USE");
    let made = florin(&["backup", &backup, "--data", &data, "--json"]).expect(0).json();
    assert!(
        made["records"].as_u64().unwrap() > 10 && made["block"].as_u64().unwrap() > 3,
        "{made}"
    );
    florin(&["backup", &backup, "--data", &data]).refused(2, "FOLDER_NOT_EMPTY");

    // What was the data folder is gone; the backup takes its place, and the market goes on from there.
    market.coordinator.kill();
    std::fs::rename(&data, market.file("lost")).unwrap();
    florin(&["restore", &backup, "--data", &data]).expect(0);
    let found = florin(&[busy.as_slice(), &["--json"]].concat()).expect(0).json();
    assert_eq!((&found["good"], &found["records"]), (&true.into(), &made["records"]));
    market.start_coordinator_again();
    assert_eq!(market.view(task).phase, Phase::Done);
    let again = (market.view(task), market.books(task), market.balances(task));
    assert_eq!((again.0.sequence, again.1, again.2), (before.0.sequence, before.1, before.2));
    market.coordinator.ask_to_stop();
    market.coordinator.finish();
    florin(&["ledger", "verify", "--data", &data]).expect(0);
    florin(&busy).expect(0);

    // A byte of a blob is another one: the check says so, and says no.
    let packs = std::path::Path::new(&data).join("blobs/packs");
    let pack = std::fs::read_dir(packs).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let said = command(&busy).env("NO_COLOR", "1").output().unwrap();
    let text = String::from_utf8(said.stdout).unwrap();
    assert!(said.status.code() == Some(1) && text.contains("PACK_DAMAGED"), "{text}");
}
