//! A market with orders for compute, by real processes.

use std::collections::BTreeSet;

use florin_compute::{ComputeAccount, OrderMoney, OrderView, RecordedLease};
use florin_learning::data::{load, save};
use florin_learning::{DataSource, Dataset};
use florin_ledger::lease_task;
use florin_protocol::{Amount, Digest};

use super::process::{PATIENCE, Process, until_within};
use super::{On, TestMarket, TestPlan};

/// A model of three classes on rows of 64 numbers.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/learning/data/graphs/vit.pt2");
pub(crate) const AUDITORS: [&str; 2] = ["ann", "ben"];
/// The coordinator accepts an account with this name.
pub(crate) const REFEREE: &str = "arbiter";

/// The windows of an order.
#[derive(Clone, Copy)]
pub(crate) struct TestWindows {
    /// For bids, in seconds. It always passes whole.
    pub(crate) bid: u32,
    /// For a segment, in seconds.
    pub(crate) segment: u32,
}

pub(crate) const PATIENT: TestWindows = TestWindows { bid: 20, segment: 120 };

pub(crate) struct LeaseRun {
    pub(crate) market: TestMarket,
}

impl LeaseRun {
    pub(crate) fn open(on: On) -> Self {
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
    pub(crate) fn write_order(&self, nonce: u32, windows: TestWindows) {
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

    pub(crate) fn daemon(&self, name: &str, policy: &str) -> Process {
        let policy = self.market.file(policy);
        let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
        self.market.start_as(name, &call)
    }

    /// Gives the order of the file another data class.
    pub(crate) fn restrict(&self, class: &str) {
        let file = self.market.folder().join("order.toml");
        let order = std::fs::read_to_string(&file).unwrap();
        let class = format!("data_class = \"{class}\"");
        std::fs::write(&file, order.replace("data_class = \"public\"", &class)).unwrap();
    }

    /// Gives the order of the file audits of a few seconds.
    pub(crate) fn shorten_audits(&self) {
        let file = self.market.folder().join("order.toml");
        let order = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, order.replace("audit = \"120 s\"", "audit = \"12 s\"")).unwrap();
    }

    /// Gives the training of the order's file another number of epochs, of 5 steps each.
    pub(crate) fn train_for(&self, epochs: u32) {
        let file = self.market.folder().join("order.toml");
        let order = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, order.replace("epochs = 4\n", &format!("epochs = {epochs}\n")))
            .unwrap();
    }

    /// Has the order of the file take bids of listed devices alone.
    pub(crate) fn take_listed_bids(&self) {
        let file = self.market.folder().join("order.toml");
        let order = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, order.replace("[order]\n", "[order]\nlisted = true\n")).unwrap();
    }

    /// A provider that lists its devices.
    pub(crate) fn listed_provider(&self) -> Process {
        let referee = self.market.account(REFEREE);
        let listing = format!(
            "referee = \"{referee}\"\ndevices = 1\nmemory_mib = 1\nfees_max = \"0.05\"\nlife = \"72 h\"\n\
             challenge = \"1 s\"\n"
        );
        std::fs::write(self.market.folder().join("list.toml"), listing).unwrap();
        let (policy, list) = (self.market.file("bid.toml"), self.market.file("list.toml"));
        let call = ["provide", "--orders", &policy, "--list", &list, "--engine", "torch", "--json"];
        self.market.start_as("provider", &call)
    }

    /// A provider that counts every second segment without training it.
    pub(crate) fn lazy(&self, name: &str) -> Process {
        let policy = self.market.file("bid.toml");
        let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
        self.market.start_as(name, &[&call[..], &["--experiment", "lazy"]].concat())
    }

    pub(crate) fn helpers(&self) -> Vec<Process> {
        let mut all: Vec<Process> =
            AUDITORS.iter().map(|name| self.daemon(name, "audit.toml")).collect();
        all.push(self.daemon(REFEREE, "referee.toml"));
        all
    }

    /// Places the order of the file, or what an earlier one left of it.
    pub(crate) fn place(&self, after: Option<Digest>) -> Digest {
        let (file, earlier) = (self.market.file("order.toml"), after.map(|id| id.to_string()));
        let mut call = vec!["rent", "order", &file, "--yes", "--json", "--engine", "torch"];
        if let Some(earlier) = &earlier {
            call.extend(["--after", earlier]);
        }
        let answer = self.market.run_command_as("buyer", &call).expect(0).json();
        answer["order"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn view(&self, id: Digest) -> OrderView {
        self.market.client().order(id).unwrap()
    }

    pub(crate) fn lease(&self, id: Digest) -> RecordedLease {
        let client = self.market.client();
        client.recorded_lease(&client.order(id).unwrap()).unwrap().unwrap()
    }

    /// Waits until the order's money has moved.
    pub(crate) fn wait_until_over(&self, id: Digest) -> RecordedLease {
        until_within(4 * PATIENCE, "the lease is settled", || {
            (self.view(id).money == OrderMoney::Settled).then(|| self.lease(id))
        })
    }

    /// Waits until the order is settled, and each account has its pay and its deposits.
    pub(crate) fn wait_for_pay(&self, id: Digest) -> RecordedLease {
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
    pub(crate) fn tokens(&self) -> Amount {
        let ledger = self.market.ledger();
        let names = ["buyer", "coordinator", "provider", "second", "ann", "ben", "cy", REFEREE];
        let all = names.map(|name| ledger.balance(self.market.account(name)).unwrap());
        Amount::total(all.into_iter().chain([ledger.treasury().unwrap()])).unwrap()
    }

    pub(crate) fn owed(&self, lease: &RecordedLease, name: &str) -> Amount {
        let account = self.market.account(name);
        lease.lease().books().balance(ComputeAccount::Owed(account))
    }
}

/// The result of the order without any kill. The state follows from the job alone.
pub(crate) fn undisturbed() -> Digest {
    static RESULT: std::sync::OnceLock<Digest> = std::sync::OnceLock::new();
    *RESULT.get_or_init(|| {
        let run = LeaseRun::open(On::Embedded);
        run.write_order(1, PATIENT);
        let _all = (run.helpers(), run.daemon("provider", "bid.toml"));
        let id = run.place(None);
        run.wait_for_pay(id).lease().result().unwrap()
    })
}

/// The first words of the events of a process so far.
pub(crate) fn events(process: &Process) -> BTreeSet<String> {
    let name = |line: &str| {
        let event: serde_json::Value = serde_json::from_str(line).ok()?;
        event["event"].as_str().map(str::to_owned)
    };
    process.log().lines().filter_map(name).collect()
}
