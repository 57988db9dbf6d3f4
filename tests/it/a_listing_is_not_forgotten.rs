//! A provider finds its listing, and the stake under it, behind a damaged record, another wallet in its folder, and a
//! listing that was never opened.

use florin_protocol::Digest;
use serde_json::Value;

use crate::support::process::{Process, until};
use crate::support::{On, TestMarket, TestPlan};

/// The account that lists.
const LISTER: &str = "ann";

struct Lister {
    market: TestMarket,
    file: String,
    state: String,
}

impl Lister {
    fn open() -> Self {
        let mut plan = TestPlan::honest(On::Embedded, 1);
        plan.others = vec!["second", "arbiter"];
        let market = TestMarket::open(plan);
        let (file, state) = (market.file("list.toml"), market.file("shared.state"));
        let lister = Self { market, file, state };
        lister.write("");
        lister
    }

    /// Writes the offer, with these lines more.
    fn write(&self, more: &str) {
        let referee = self.market.account("arbiter");
        let text = format!(
            "referee = \"{referee}\"\ndevices = 1\nmemory_mib = 1\nfees_max = \"0.05\"\nlife = \"72 h\"\n\
             challenge = \"1 s\"\n{more}"
        );
        std::fs::write(&self.file, text).unwrap();
    }

    fn call<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let call = ["provide", "--list", &self.file, "--state", &self.state, "--json"];
        [&call[..], more].concat()
    }

    /// Starts a provider, and waits for an event, and for the proof of a new listing.
    fn start(&self, name: &str, event: &str) -> (Process, Digest) {
        // The log of an earlier run goes on.
        let log = self.market.file(&format!("{name}.log"));
        let before = std::fs::metadata(log).map_or(0, |log| log.len()) as usize;
        let process = self.market.start_as(name, &self.call(&[]));
        let log = || process.log()[before..].to_owned();
        let listing = until(event, || {
            let log = log();
            let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let found = events.into_iter().find(|found| found["event"] == event)?;
            found["listing"].as_str()?.parse().ok()
        });
        if event != "resumed" {
            // Without a proof the listing ends soon.
            until("the devices are listed", || {
                log().contains("\"event\":\"listed\"").then_some(())
            });
        }
        (process, listing)
    }

    fn record(&self) -> std::path::PathBuf {
        std::path::Path::new(&self.state).join("listing.json")
    }

    /// The open listings of an account.
    fn listings(&self, name: &str) -> Vec<Digest> {
        let account = self.market.account(name);
        let all = self.market.client().listings().unwrap().into_iter();
        let own = all.filter(|view| view.listing.terms().provider == account);
        let open = own.filter(|view| view.listing.outcome().is_none());
        open.map(|view| view.listing.id()).collect()
    }
}

#[test]
fn a_listing_is_found_again_and_all_are_ended() {
    let lister = Lister::open();
    let left = || lister.market.ledger().balance(lister.market.account(LISTER)).unwrap();
    let before = left();
    let (mut process, first) = lister.start(LISTER, "opened");
    process.kill();
    // Another wallet in the same folder has a listing of its own.
    let (mut other, of_other) = lister.start("second", "opened");
    assert_ne!(of_other, first);
    other.kill();
    let (mut process, resumed) = lister.start(LISTER, "resumed");
    assert_eq!(resumed, first);
    process.kill();

    let terms = std::fs::read_to_string(lister.record()).unwrap();
    std::fs::write(lister.record(), &terms[..terms.len() / 2]).unwrap();
    let run = |more: &[&str]| lister.market.run_command_as(LISTER, &lister.call(more));
    let refused = run(&[]).refused(2, "LISTING_RECORD_INVALID");
    assert!(refused.err.contains("--unlist"), "{}", refused.err);
    // As the message asks for. A further listing names the one that is open.
    std::fs::remove_file(lister.record()).unwrap();
    let (mut process, named) = lister.start(LISTER, "another");
    assert_eq!(named, first);
    until("both are open", || (lister.listings(LISTER).len() == 2).then_some(()));
    process.kill();
    let ended = run(&["--unlist"]).expect(0);
    let summaries = ended.out.lines().filter(|line| line.contains("\"listing_summary\""));
    let withdrawn = summaries.filter(|line| line.contains("withdrawn")).count();
    assert_eq!(withdrawn, 2, "{}", ended.out);
    assert_eq!(lister.listings(LISTER), []);
    let fees = before.minus(left()).unwrap();
    assert_eq!(
        fees,
        "0.02".parse().unwrap(),
        "both stakes have returned, and a probe of each is paid"
    );
    assert_eq!(lister.listings("second"), [of_other], "that of the other account goes on");
    run(&["--unlist"]).refused(1, "NO_LISTING");
}

#[test]
fn a_listing_that_was_never_opened_gives_way_to_a_changed_file() {
    let lister = Lister::open();
    let run = |more: &[&str]| lister.market.run_command_as(LISTER, &lister.call(more));
    lister.write("stake = \"900000\"\n");
    let refused = run(&[]).refused(1, "INSUFFICIENT_FUNDS");
    assert!(!lister.record().exists(), "the balance is checked before terms are stored");
    assert_eq!(refused.err.matches("FLN are needed").count(), 1, "{}", refused.err);
    let looked = run(&["--dry-run"]).expect(0).json();
    let units = |key: &str| looked[key].as_str().unwrap().parse::<u128>().unwrap();
    assert!(units("needed") > units("balance"), "{looked}");

    // Terms that an earlier program stored, of which nothing is on the ledger.
    lister.write("");
    let (mut process, _) = lister.start(LISTER, "opened");
    process.kill();
    run(&["--unlist"]).expect(0);
    let text = std::fs::read_to_string(lister.record()).unwrap();
    let mut terms: Value = serde_json::from_str(&text).unwrap();
    terms["nonce"] = 7.into();
    std::fs::write(lister.record(), terms.to_string()).unwrap();
    lister.write("stake = \"3\"\n");
    let (mut process, opened) = lister.start(LISTER, "opened");
    process.kill();
    let client = lister.market.client();
    let view = client.listing(opened, u32::MAX, 0).unwrap();
    assert_eq!(view.listing.terms().stake, "3".parse().unwrap());
}
