//! Leases of compute by real processes: on both ledgers, with kills of every process, and with a provider that stops
//! and another one that continues. The result has the same digest each time, and every token is somewhere.

use std::collections::BTreeSet;

use florin_compute::{ComputeAccount, LeaseOutcome, OrderMoney, OrderView, Phase, RecordedLease};
use florin_learning::data::{load, save};
use florin_learning::{DataSource, Dataset};
use florin_ledger::lease_task;
use florin_protocol::{Amount, Digest};
use serde_json::json;

use crate::support::process::{PATIENCE, Process, until, until_within};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(a_lease_is_computed_audited_and_paid);

/// A model of three classes on rows of 64 numbers.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/learning/data/graphs/vit.pt2");
const AUDITORS: [&str; 2] = ["ann", "ben"];
/// The coordinator accepts an account with this name.
const REFEREE: &str = "arbiter";

/// The windows of an order.
#[derive(Clone, Copy)]
struct TestWindows {
    /// For bids, in seconds. It always passes whole.
    bid: u32,
    /// For a segment, in seconds.
    segment: u32,
}

const PATIENT: TestWindows = TestWindows { bid: 12, segment: 120 };

struct LeaseRun {
    market: TestMarket,
}

impl LeaseRun {
    fn open(on: On) -> Self {
        let market = TestMarket::open(TestPlan {
            others: vec!["second", REFEREE],
            provider: false,
            ..TestPlan::honest(on, 1)
        });
        let digits = load(&DataSource::Digits).unwrap().slice(0..160).unwrap();
        let labels = digits.labels().iter().map(|label| label % 3).collect();
        let rows = Dataset::new(digits.features().to_vec(), labels, digits.width(), 3).unwrap();
        save(&rows, &market.folder().join("rows.florin")).unwrap();
        let referee = market.account(REFEREE);
        let policy = |name: &str, text: &str| {
            let common = format!(
                "referees = [\"{referee}\"]\nchallenge_min = \"1 s\"\nwindow_min = \"1 s\"\n"
            );
            std::fs::write(market.folder().join(name), common + text).unwrap();
        };
        policy("bid.toml", "[bid]\nper_hour = \"100\"\nstake_max = \"40\"\n");
        policy("audit.toml", "[audit]\nfee_min = \"0.01\"\nbond_max = \"40\"\n");
        std::fs::write(market.folder().join("referee.toml"), "referee = true\n").unwrap();
        Self { market }
    }

    /// Writes an order of 20 steps in ten segments.
    fn write_order(&self, nonce: u32, windows: TestWindows) {
        let TestWindows { bid, segment } = windows;
        let referee = self.market.account(REFEREE);
        let order = format!(
            "data_class = \"public\"\nreferee = \"{referee}\"\nnonce = {nonce}\nchallenge = \"1 s\"\n\
             [model]\nkind = \"graph\"\nfile = {MODEL:?}\nloss = \"cross_entropy\"\n\
             [data]\nwidth = 64\nclasses = 3\n[rows]\nsource = \"florin:rows.florin\"\n\
             [training]\nepochs = 4\nbatch = 32\nlearning_rate = 0.01\noptimizer = \"adamw\"\n\
             betas = [0.9, 0.999]\n\
             [order]\nsegments = 10\nprice_max = \"5\"\nstep_max = \"20 s\"\nvirtual_workers = 4\n\
             seed = 7\n[audit]\nshare = 0.3\n\
             [windows]\nbid = \"{bid} s\"\nreveal = \"60 s\"\nfund = \"60 s\"\nslack = 1.0\n\
             segment = \"{segment} s\"\ndraw = \"60 s\"\naudit = \"120 s\"\nanswer = \"60 s\"\n"
        );
        std::fs::write(self.market.folder().join("order.toml"), order).unwrap();
    }

    fn daemon(&self, name: &str, policy: &str) -> Process {
        let policy = self.market.file(policy);
        let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
        self.market.start_as(name, &call)
    }

    /// Has the order of the file take bids of listed devices alone.
    fn take_listed_bids(&self) {
        let file = self.market.folder().join("order.toml");
        let order = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, order.replace("[order]\n", "[order]\nlisted = true\n")).unwrap();
    }

    /// A provider that lists its devices.
    fn listed_provider(&self) -> Process {
        let referee = self.market.account(REFEREE);
        let listing = format!(
            "referee = \"{referee}\"\ndevices = 1\nmemory_mib = 4\nfees_max = \"0.05\"\nlife = \"3 h\"\n\
             challenge = \"1 s\"\n"
        );
        std::fs::write(self.market.folder().join("list.toml"), listing).unwrap();
        let (policy, list) = (self.market.file("bid.toml"), self.market.file("list.toml"));
        let call = ["provide", "--orders", &policy, "--list", &list, "--engine", "torch", "--json"];
        self.market.start_as("provider", &call)
    }

    /// A provider that counts every second segment without training it.
    fn lazy(&self, name: &str) -> Process {
        let policy = self.market.file("bid.toml");
        let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
        self.market.start_as(name, &[&call[..], &["--experiment", "lazy"]].concat())
    }

    fn helpers(&self) -> Vec<Process> {
        let mut all: Vec<Process> =
            AUDITORS.iter().map(|name| self.daemon(name, "audit.toml")).collect();
        all.push(self.daemon(REFEREE, "referee.toml"));
        all
    }

    /// Places the order of the file, or what an earlier one left of it.
    fn place(&self, after: Option<Digest>) -> Digest {
        let (file, earlier) = (self.market.file("order.toml"), after.map(|id| id.to_string()));
        let mut call = vec!["rent", "order", &file, "--yes", "--json", "--engine", "torch"];
        if let Some(earlier) = &earlier {
            call.extend(["--after", earlier]);
        }
        let answer = self.market.run_command_as("buyer", &call).expect(0).json();
        answer["order"].as_str().unwrap().parse().unwrap()
    }

    fn view(&self, id: Digest) -> OrderView {
        self.market.client().order(id).unwrap()
    }

    fn lease(&self, id: Digest) -> RecordedLease {
        let client = self.market.client();
        client.recorded_lease(&client.order(id).unwrap()).unwrap().unwrap()
    }

    /// Waits until the order is settled, and each account has its pay and its deposits.
    fn wait_for_pay(&self, id: Digest) -> RecordedLease {
        let ledger = self.market.ledger();
        until_within(4 * PATIENCE, "the lease is paid", || {
            let view = self.market.client().order(id).ok()?;
            (view.money == OrderMoney::Settled).then_some(())?;
            let (lease, task) = (self.lease(id), lease_task(&view.order));
            let books = lease.lease().books().clone();
            let is_paid = |name: &str| {
                let account = self.market.account(name);
                let owed = books.balance(ComputeAccount::Owed(account));
                let paid = ledger.claimed_totals(task, account).unwrap().paid;
                owed == paid && ledger.bond_of(task, account).unwrap().amount.is_zero()
            };
            ["provider", "second", "ann", "ben"].iter().all(|name| is_paid(name)).then_some(lease)
        })
    }

    /// All balances and the treasury.
    fn tokens(&self) -> Amount {
        let ledger = self.market.ledger();
        let names = ["buyer", "coordinator", "provider", "second", "ann", "ben", "cy", REFEREE];
        let all = names.map(|name| ledger.balance(self.market.account(name)).unwrap());
        Amount::total(all.into_iter().chain([ledger.treasury().unwrap()])).unwrap()
    }

    fn owed(&self, lease: &RecordedLease, name: &str) -> Amount {
        let account = self.market.account(name);
        lease.lease().books().balance(ComputeAccount::Owed(account))
    }
}

/// The result of the order without any kill. The state follows from the job alone.
fn undisturbed() -> Digest {
    static RESULT: std::sync::OnceLock<Digest> = std::sync::OnceLock::new();
    *RESULT.get_or_init(|| {
        let run = LeaseRun::open(On::Embedded);
        run.write_order(1, PATIENT);
        let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
        let id = run.place(None);
        run.wait_for_pay(id).lease().result().unwrap()
    })
}

/// The order takes bids of listed devices alone, and its provider lists the cores of this machine.
fn a_lease_is_computed_audited_and_paid(on: On) {
    let run = LeaseRun::open(on);
    run.write_order(1, PATIENT);
    run.take_listed_bids();
    let before = run.tokens();
    let mut provider = run.listed_provider();
    let _all = run.helpers();
    until("the devices are listed", || events(&provider).contains("listed").then_some(()));
    let id = run.place(None);
    let lease = run.wait_for_pay(id);
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert!(!run.owed(&lease, "provider").is_zero() && !run.owed(&lease, "ann").is_zero());
    provider.ask_to_stop();
    provider.finish();
    let market = run.market.run_command(&["market", "--json"]).expect(0).json();
    let listing = &market["listings"][0];
    assert_eq!((&listing["leases"], &listing["phase"]), (&json!(1), &json!("listed")), "{market}");
    // The stake returns, and the fee of the probe is paid.
    let list = run.market.file("list.toml");
    let unlist = ["provide", "--list", &list, "--unlist", "--json"];
    let ended = run.market.run_command_as("provider", &unlist).expect(0);
    assert!(
        ended.out.contains("\"withdrawn\"") && ended.out.contains("\"returned\""),
        "{}",
        ended.out
    );
    assert_eq!(run.tokens(), before);
    let out = run.market.file("model.safetensors");
    let id = id.to_string();
    run.market.run_command(&["rent", "fetch", &id, "--out", &out]).expect(0);
    let statement = run.market.run_command(&["rent", "statement", &id, "--json"]).expect(0).json();
    assert!(statement.to_string().contains(&run.market.account("provider").to_string()));
    assert_eq!(market["orders"].as_array().unwrap().len(), 1, "{market}");
}

/// The first words of the events of a process so far.
fn events(process: &Process) -> BTreeSet<String> {
    let name = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        event["event"].as_str().map(str::to_owned)
    };
    process.log().lines().filter_map(name).collect()
}

#[test]
fn a_daemon_killed_after_each_event_delivers_the_same_result() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, PATIENT);
    let before = run.tokens();
    let mut all = run.helpers();
    all.push(run.daemon("provider", "bid.toml"));
    let mut killed_for = vec![BTreeSet::new(); all.len()];
    let id = run.place(None);
    let mut kills = 0;
    until_within(4 * PATIENCE, "the lease is over", || {
        for (process, killed_for) in all.iter_mut().zip(&mut killed_for) {
            if events(process).into_iter().any(|event| killed_for.insert(event)) {
                process.restart();
                kills += 1;
            }
        }
        (run.view(id).phase == Phase::Over).then_some(())
    });
    let lease = run.wait_for_pay(id);
    eprintln!("{kills} kills: {killed_for:?}");
    assert!(kills >= 12, "each daemon must have been killed at many events");
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert_eq!(run.tokens(), before);
}

#[test]
fn a_coordinator_killed_in_each_phase_settles_once() {
    let mut run = LeaseRun::open(On::Embedded);
    run.write_order(1, PATIENT);
    let before = run.tokens();
    let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
    let id = run.place(None);
    let mut seen = BTreeSet::new();
    until_within(4 * PATIENCE, "the order is settled", || {
        let view = run.view(id);
        // Each third record, and each phase.
        if seen.insert((view.phase.name(), view.money as u8, view.records / 3)) {
            run.market.restart_coordinator();
        }
        (view.money == OrderMoney::Settled).then_some(())
    });
    let lease = run.wait_for_pay(id);
    eprintln!("{} kills: {seen:?}", seen.len());
    assert!(seen.len() >= 8, "the coordinator must have been killed in many phases");
    assert_eq!(lease.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
    assert_eq!(run.tokens(), before);
}

#[test]
fn an_order_goes_on_with_another_provider_after_the_last_delivered_segment() {
    let run = LeaseRun::open(On::Embedded);
    run.write_order(1, TestWindows { segment: 2, ..PATIENT });
    let before = run.tokens();
    let _helpers = run.helpers();
    let mut first = run.daemon("provider", "bid.toml");
    let id = run.place(None);
    until_within(4 * PATIENCE, "some segments", || {
        let view = run.view(id);
        assert!(view.phase != Phase::Over, "the provider has delivered everything");
        (view.delivered >= 2).then(|| first.kill())
    });
    until_within(4 * PATIENCE, "the provider is late", || {
        (run.view(id).phase != Phase::Running).then_some(())
    });
    // It comes back, opens what it has delivered, and is paid for that.
    first.restart();
    let lease = run.wait_for_pay(id);
    let Some(LeaseOutcome::Defaulted { delivered }) = lease.lease().outcome() else {
        panic!("{:?}", lease.lease().outcome());
    };
    assert!((2..10).contains(&delivered));
    first.kill();
    let _second = run.daemon("second", "bid.toml");
    run.write_order(1, PATIENT);
    let rest = run.place(Some(id));
    let other = run.wait_for_pay(rest);
    assert_eq!(other.lease().outcome(), Some(LeaseOutcome::Settled));
    assert_eq!(other.lease().order().segments, 10 - delivered);
    assert_eq!(other.lease().result(), Some(undisturbed()));
    let [one, two] = [run.owed(&lease, "provider"), run.owed(&other, "second")];
    assert!(!one.is_zero() && !two.is_zero());
    assert_eq!(run.tokens(), before);
}

/// Audits of a lease may miss every fake segment: the order is placed again until one is drawn.
#[test]
fn a_provider_that_skips_segments_loses_its_stake_in_a_dispute() {
    let run = LeaseRun::open(On::Embedded);
    let before = run.tokens();
    let _helpers = run.helpers();
    let mut lazy = run.lazy("provider");
    let slashed = (1..=8).find_map(|nonce| {
        run.write_order(nonce, TestWindows { bid: 5, ..PATIENT });
        let id = run.place(None);
        let lease = run.wait_for_pay(id);
        match lease.lease().outcome() {
            Some(LeaseOutcome::Slashed { segment }) => Some((id, lease, segment)),
            outcome => {
                assert_eq!(outcome, Some(LeaseOutcome::Settled), "a lazy provider is on time");
                // No audit has drawn a fake segment: the result is wrong, and is paid.
                assert_ne!(lease.lease().result(), Some(undisturbed()));
                None
            }
        }
    });
    let (id, lease, segment) = slashed.expect("one of eight audits draws a fake segment");
    // Every second segment is fake.
    assert_eq!(segment % 2, 1, "{segment}");
    let order = lease.lease().order();
    let stake = order.deposits.stake;
    assert_eq!(run.market.ledger().treasury().unwrap(), stake);
    let bounties = AUDITORS.map(|name| run.owed(&lease, name));
    assert!(bounties.iter().any(|owed| *owed >= order.bounty()), "{bounties:?}");
    assert!(run.owed(&lease, "provider").is_zero());
    assert_eq!(run.tokens(), before);
    let statement = run.market.run_command(&["rent", "statement", &id.to_string()]).expect(0);
    assert!(statement.out.contains(&format!("segment {segment}")), "{}", statement.out);
    // Another provider computes the same order.
    lazy.kill();
    let _honest = run.daemon("second", "bid.toml");
    run.write_order(99, TestWindows { bid: 5, ..PATIENT });
    let lease = run.wait_for_pay(run.place(None));
    assert_eq!(lease.lease().result(), Some(undisturbed()));
}
