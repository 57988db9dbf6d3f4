//! Orders on rows that are not public, by real processes: the renter audits private rows itself, the referee of a
//! dispute has the rows of one step, and strangers have nothing.

use florin_compute::{DataClass, LeaseOutcome};
use florin_learning::graph::read_archive;

use crate::support::lease_run::{LeaseRun, PATIENT, REFEREE, TestWindows, undisturbed};
use crate::support::process::{PATIENCE, Process, until_within};
use crate::support::{On, florin, on_both};

/// A model of three classes on rows of 64 numbers.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/learning/data/graphs/vit.pt2");

on_both!(a_renter_audits_private_rows);

impl LeaseRun {
    /// Places the order of the file, and audits it.
    fn place_and_audit(&self) -> Process {
        let file = self.market.file("order.toml");
        let call = ["rent", "order", &file, "--yes", "--json", "--engine", "torch"];
        self.market.start_as("buyer", &call)
    }

    /// The events of a process that has ended well.
    fn events_of(&self, mut process: Process) -> Vec<serde_json::Value> {
        until_within(4 * PATIENCE, "the order is audited", || (!process.runs()).then_some(()));
        process.finish();
        let lines = process.log();
        lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// The order of the events that `rent order` printed.
fn ordered(events: &[serde_json::Value]) -> florin_protocol::Digest {
    let event = events.iter().find(|event| event["event"] == "ordered").expect("an order");
    event["order"].as_str().unwrap().parse().unwrap()
}

fn a_renter_audits_private_rows(on: On) {
    let run = LeaseRun::open(on);
    run.write_order(1, TestWindows { bid: 15, ..PATIENT });
    run.restrict("private");
    let before = run.tokens();
    let _provider = run.daemon("provider", "bid.toml");
    // They find nothing to audit.
    let _others = run.helpers();
    let events = run.events_of(run.place_and_audit());
    let id = ordered(&events);
    let lease = run.wait_for_pay(id);
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().order().data_class, DataClass::Private);
    // The class decides who reads the rows, and changes no bit of the result.
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    let summary = events.iter().find(|event| event["event"] == "summary").expect("a summary");
    assert_eq!((&summary["audits"], &summary["lost"]), (&3.into(), &"0".into()), "{summary}");
    assert!(run.owed(&lease, "ann").is_zero() && !run.owed(&lease, "buyer").is_zero());
    // The result is for the renter alone, and the rows are gone.
    let (out, id) = (run.market.file("model.safetensors"), id.to_string());
    let fetch = ["rent", "fetch", &id, "--out", &out];
    let refused = run.market.run_command(&fetch).expect(2);
    assert!(refused.err.contains("DATA_RESTRICTED"), "{}", refused.err);
    let refused = run.market.run_command_as("ann", &fetch).expect(2);
    assert!(refused.err.contains("only its renter"), "{}", refused.err);
    run.market.run_command_as("buyer", &fetch).expect(0);
    assert!(!run.has_file_of_rows(), "the rows are removed after the lease");
    assert_eq!(run.tokens(), before);
}

impl LeaseRun {
    /// Whether any file of the coordinator has the bytes of the rows.
    fn has_file_of_rows(&self) -> bool {
        let rows = std::fs::read(self.market.folder().join("rows.florin")).unwrap();
        let needle = &rows[64..256];
        let mut folders = vec![self.market.folder().join("coordinator")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.is_file()
                    && std::fs::read(&path).unwrap().windows(needle.len()).any(|at| at == needle)
                {
                    return true;
                }
            }
        }
        false
    }
}

/// With a split others have activations and the rest of the model, in every class; the whole model is made of both.
#[test]
fn rows_and_first_layers_of_a_split_order_stay_at_home() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, TestWindows { bid: 15, ..PATIENT });
    let order = run.market.file("order.toml");
    let text = std::fs::read_to_string(&order).unwrap();
    let split = "[split]\nat_home = [\"patch.*\", \"token\", \"place\"]\n[data]\n";
    std::fs::write(&order, text.replace("[data]\n", split)).unwrap();
    let checked = florin(&["rent", "check", &order, "--json"]).expect(0).json();
    assert_eq!(checked["split"]["numbers_sent"], 40, "{checked}");
    let before = run.tokens();
    let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
    let id = run.place(None);
    let lease = run.wait_for_pay(id);
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(run.tokens(), before);
    assert!(!run.has_file_of_rows(), "rows left their home");
    let (out, id) = (run.market.file("whole.pt2"), id.to_string());
    run.market.run_command(&["rent", "fetch", &id, "--out", &out, "--from", MODEL]).expect(0);
    let weight = |file: &str, wanted: &str| {
        let (graph, weights) = read_archive(std::path::Path::new(file)).unwrap();
        let names =
            graph.inputs.into_iter().filter_map(|input| input.role.name().map(str::to_owned));
        let found = names.zip(weights.tensors).find(|(name, _)| name == wanted);
        found.expect("the weight").1.bytes
    };
    assert_eq!(weight(&out, "patch.weight"), weight(MODEL, "patch.weight"));
    assert_ne!(weight(&out, "block.qkv.weight"), weight(MODEL, "block.qkv.weight"));
}

/// Audits of a lease may miss every fake segment: the order is placed again until one is drawn.
#[test]
fn a_provider_of_private_rows_that_skips_segments_loses_its_stake() {
    let run = LeaseRun::open(On::Embedded);
    let before = run.tokens();
    let _referee = run.daemon(REFEREE, "referee.toml");
    let _lazy = run.lazy("provider");
    let slashed = (1..=8).find_map(|nonce| {
        run.write_order(nonce, TestWindows { bid: 10, ..PATIENT });
        run.restrict("private");
        let id = ordered(&run.events_of(run.place_and_audit()));
        let lease = run.wait_for_pay(id);
        match lease.lease().outcome() {
            Some(LeaseOutcome::Slashed { segment }) => Some((lease, segment)),
            outcome => {
                assert_eq!(outcome, Some(LeaseOutcome::Settled), "a lazy provider is on time");
                None
            }
        }
    });
    let (lease, segment) = slashed.expect("one of eight audits draws a fake segment");
    assert_eq!(segment % 2, 1, "every second segment is fake: {segment}");
    let stake = lease.lease().order().deposits.stake;
    assert_eq!(run.market.ledger().treasury().unwrap(), stake);
    assert_eq!(run.tokens(), before);
}

/// Auditors of a buyer's rows are drawn, and read them with their own signature.
#[test]
fn rows_of_a_buyer_are_audited_by_drawn_accounts() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, TestWindows { bid: 15, ..PATIENT });
    run.restrict("buyer");
    let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
    let lease = run.wait_for_pay(run.place(None));
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert!(!run.owed(&lease, "ann").is_zero() && !run.owed(&lease, "ben").is_zero());
    assert!(!run.has_file_of_rows(), "the rows are removed after the lease");
}
