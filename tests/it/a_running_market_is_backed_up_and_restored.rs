//! Backup and restore of a running market: the coordinator makes the backup without a stop, the
//! restore checks it, and the restored folder contains everything that was acknowledged before.

use std::path::Path;

use florin_protocol::TaskPhase;

use crate::support::process::{command, florin};
use crate::support::{On, TestMarket, TestPlan};

#[test]
fn a_backup_of_a_running_market_is_restored_with_everything_acknowledged() {
    let mut market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let task = market.run();
    let before = (market.view(task), market.books(task), market.balances(task));
    let (data, backup) = (market.file("coordinator"), market.file("backup"));
    let wallet = market.file("coordinator.json");
    let check_command = ["coordinate", "--check", "--data", &data, "--wallet", &wallet];
    florin(&check_command).refused(2, "DATA_FOLDER_IN_USE");
    let made = florin(&["backup", &backup, "--data", &data, "--json"]).expect(0).json();
    assert!(
        made["records"].as_u64().unwrap() > 10 && made["block"].as_u64().unwrap() > 3,
        "{made}"
    );
    florin(&["backup", &backup, "--data", &data]).refused(2, "FOLDER_NOT_EMPTY");

    // The data folder is lost. The restored backup replaces it, and the market continues.
    market.coordinator.kill();
    std::fs::rename(&data, market.file("lost")).unwrap();
    a_manifest_that_differs_is_refused(&backup, &market.file("never"));
    restore_with_an_unneeded_damaged_blob(&backup, &data);
    let found = florin(&[check_command.as_slice(), &["--json"]].concat()).expect(0).json();
    assert_eq!((&found["intact"], &found["records"]), (&true.into(), &made["records"]));
    market.start_coordinator_again();
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    let again = (market.view(task), market.books(task), market.balances(task));
    assert_eq!((again.0.sequence, again.1, again.2), (before.0.sequence, before.1, before.2));
    market.coordinator.ask_to_stop();
    market.coordinator.finish();
    // A read-only check changes nothing, and reports a foreign owner.
    let ledger = Path::new(&data).join("ledger.redb");
    let bytes = std::fs::read(&ledger).unwrap();
    florin(&["ledger", "verify", "--data", &data]).expect(0);
    florin(&check_command).expect(0);
    assert!(std::fs::read(&ledger).unwrap() == bytes, "the ledger's file was changed");
    let other = market.file("buyer.json");
    let theirs = ["coordinate", "--check", "--data", &data, "--wallet", &other, "--json"];
    let found = florin(&theirs).expect(1).json();
    assert!(found["parts"].to_string().contains("WALLET_OWNER_MISMATCH"), "{found}");

    // A flipped byte in a blob changes its digest: the check reports it and fails.
    let pack = Path::new(&data).join("blobs/packs/0000000000.pack");
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[60] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let output = command(&check_command).env("NO_COLOR", "1").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.code() == Some(1) && text.contains("PACK_DAMAGED"), "{text}");
}

/// Restores with a manifest that names another block, coordinator or market are refused.
fn a_manifest_that_differs_is_refused(backup: &str, to: &str) {
    let path = Path::new(backup).join("backup.json");
    let whole = std::fs::read(&path).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&whole).unwrap();
    let changes = [
        ("/block", (manifest["block"].as_u64().unwrap() + 1).into()),
        ("/identity/coordinator", format!("0x{}", "11".repeat(20)).into()),
        ("/identity/market/genesis", "11".repeat(32).into()),
    ];
    for (place, other) in changes {
        let mut changed = manifest.clone();
        let field = changed.pointer_mut(place).unwrap();
        assert_ne!(*field, other);
        *field = other;
        std::fs::write(&path, changed.to_string()).unwrap();
        florin(&["restore", backup, "--data", to]).refused(1, "BACKUP_DAMAGED");
        assert!(!Path::new(to).exists() && !Path::new(&format!("{to}.unfinished")).exists());
    }
    std::fs::write(path, whole).unwrap();
}

/// A damaged blob that the market does not need causes a note, not a failure.
fn restore_with_an_unneeded_damaged_blob(backup: &str, data: &str) {
    let pack = Path::new(backup).join("blobs/packs/0000000900.pack");
    let blob = b"a blob that no round needs, and another one behind it";
    let frame = |digest: [u8; 32]| {
        let length = (blob.len() as u32).to_le_bytes();
        [length.as_slice(), &digest, blob].concat()
    };
    let bytes = [frame([7; 32]), frame(florin_protocol::blob_digest(blob).0)].concat();
    std::fs::write(&pack, bytes).unwrap();
    let identity_file = |folder: &str| Path::new(folder).join("market.json");
    let known = std::fs::read(identity_file(backup)).unwrap();
    std::fs::write(identity_file(backup), "x").unwrap();
    let restored = command(&["restore", backup, "--data", data]).output().unwrap();
    let text = String::from_utf8(restored.stderr).unwrap();
    assert!(restored.status.success() && text.contains("[PACK_DAMAGED]"), "{text}");
    assert_eq!(std::fs::read(identity_file(data)).unwrap(), known, "the manifest has it too");
    std::fs::write(identity_file(backup), known).unwrap();
    std::fs::remove_file(Path::new(data).join("blobs/packs/0000000900.pack")).unwrap();
}
