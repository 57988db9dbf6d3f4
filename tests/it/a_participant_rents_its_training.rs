//! A participant without a device: each round's training is an order on its private rows, which it audits. The bits are
//! those of the order's job, a kill places no second order, and every token is somewhere.

use florin_compute::{LeaseOutcome, OrderMoney};
use florin_ledger::lease_task;
use florin_protocol::{Amount, TaskPhase};
use serde_json::Value;

use crate::support::process::{PATIENCE, Process, until, until_within};
use crate::support::{On, TestMarket, TestPlan};

const ROUNDS: u32 = 2;
/// The account that computes the orders.
const LENDER: &str = "second";
/// The coordinator accepts an account with this name as the referee of orders.
const REFEREE: &str = "arbiter";

/// A market with a task on a residual network, and a provider that bids for orders.
fn open() -> (TestMarket, Process) {
    let file = format!("{}/examples/images/digits.pt2", env!("CARGO_MANIFEST_DIR"));
    let mut plan = TestPlan::honest(On::Embedded, ROUNDS);
    plan.graph = Some(format!("kind = \"graph\"\nfile = \"{file}\"\nbuffers = \"average\"\n"));
    plan.participants = vec![("ann", None), ("ben", None)];
    plan.others = vec![LENDER, REFEREE];
    (plan.target, plan.provider) = (2, false);
    let market = TestMarket::open(plan);
    market.change_task(&[("learning_rate = 0.1", "learning_rate = 0.03")]);
    let referee = market.account(REFEREE);
    let bid = format!(
        "referees = [\"{referee}\"]\nchallenge_min = \"1 s\"\nwindow_min = \"1 s\"\n\
         [bid]\nper_hour = \"100\"\nstake_max = \"40\"\n"
    );
    std::fs::write(market.file("bid.toml"), bid).unwrap();
    let policy = market.file("bid.toml");
    let call = ["provide", "--orders", &policy, "--engine", "torch", "--json"];
    let lender = market.start_as(LENDER, &call);
    (market, lender)
}

/// The terms of rented rounds, with a limit on spending.
fn terms(market: &TestMarket, spend_max: &str) -> String {
    let referee = market.account(REFEREE);
    let text = format!(
        "data_class = \"private\"\nreferee = \"{referee}\"\nspend_max = \"{spend_max}\"\nchallenge = \"1 s\"\n\
         [order]\nsegments = 4\nprice_max = \"2\"\nstep_max = \"20 s\"\nvirtual_workers = 4\n\
         [windows]\nbid = \"12 s\"\nreveal = \"60 s\"\nfund = \"60 s\"\nslack = 1.0\nsegment = \"120 s\"\n\
         draw = \"60 s\"\naudit = \"120 s\"\nanswer = \"60 s\"\n"
    );
    std::fs::write(market.file("rent.toml"), text).unwrap();
    market.file("rent.toml")
}

fn renter(market: &TestMarket, task: florin_protocol::TaskId, terms: &str) -> Process {
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--rent".to_owned(), terms.to_owned(), "--json".to_owned()]);
    Process::start(market.folder(), "ann", &call)
}

fn tokens(market: &TestMarket) -> Amount {
    let ledger = market.ledger();
    let names = ["buyer", "coordinator", "provider", "ann", "ben", LENDER, REFEREE];
    let all = names.map(|name| ledger.balance(market.account(name)).unwrap());
    Amount::total(all.into_iter().chain([ledger.treasury().unwrap()])).unwrap()
}

#[test]
fn a_participant_pays_a_provider_for_its_rounds_and_is_paid_for_its_rows() {
    let (market, _lender) = open();
    let before = tokens(&market);
    let task = market.publish();
    let mut ann = renter(&market, task, &terms(&market, "20"));
    let mut ben = market.participant(task, "ben");
    // A kill after the first order: the next start goes on with it.
    until("an order is placed", || ann.log().contains("trains this round").then_some(()));
    assert_eq!(market.client().orders().unwrap().len(), 1);
    ann.restart();
    until_within(4 * PATIENCE, "the task is done", || {
        (market.view(task).phase == TaskPhase::Done).then_some(())
    });
    for process in [&mut ann, &mut ben] {
        until_within(4 * PATIENCE, "a participant ends", || (!process.runs()).then_some(()));
        process.finish();
    }
    let client = market.client();
    let orders = client.orders().unwrap();
    assert_eq!(orders.len(), ROUNDS as usize, "one order for each round");
    let (me, lender) = (market.account("ann"), market.account(LENDER));
    let mut paid = Amount::ZERO;
    for view in &orders {
        assert_eq!(view.order.renter, me);
        assert_eq!(view.outcome, Some(LeaseOutcome::Settled));
        assert_eq!(view.money, OrderMoney::Settled);
        let lease = client.recorded_lease(view).unwrap().unwrap();
        // Of four segments one is audited, by the renter.
        let audits: Vec<_> = lease.lease().audits().iter().map(|audit| &audit.ends).collect();
        assert!(audits.len() == 1 && audits[0].contains_key(&me), "{audits:?}");
        paid = paid.plus(lease.lease().books().totals()[&lender].paid).unwrap();
        let owed = || market.ledger().bond_of(lease_task(&view.order), lender).unwrap().amount;
        until_within(4 * PATIENCE, "the lender has its stake", || owed().is_zero().then_some(()));
    }
    assert!(!paid.is_zero());
    // The renter is paid for its rows in each round, as the member with a device of its own is.
    for round in 1..=ROUNDS {
        let report = market.report(task, round);
        let members: Vec<_> = report.entries.iter().map(|entry| entry.sender).collect();
        assert!(members.contains(&me) && members.len() == 2, "round {round}: {members:?}");
    }
    let totals = market.report(task, ROUNDS).account_totals;
    assert!(totals.contains_key(&me) && totals.contains_key(&market.account("ben")));
    let log = ann.log();
    assert!(log.contains("rent: at most 20 FLN"), "the offer has the rent: {log}");
    assert!(!log.contains("\"stopped\""), "nothing is left to continue: {log}");
    let summary = log.lines().find(|line| line.contains("\"event\":\"summary\"")).unwrap();
    let summary: Value = serde_json::from_str(summary).unwrap();
    let rent = &summary["rent"];
    assert_eq!((&rent["orders"], &rent["open"]), (&ROUNDS.into(), &0.into()), "{summary}");
    assert_eq!(rent["cost"], paid.units().to_string(), "{summary}");
    let record = std::fs::read_to_string(market.file("ann.state/rented.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let costs = record.as_array().unwrap().iter();
    let costs = costs.map(|order| order["cost"].as_str().unwrap().parse::<Amount>().unwrap());
    assert_eq!(Amount::total(costs).unwrap(), paid, "the record has the pay of others");
    let is_whole = || (tokens(&market) == before).then_some(());
    until_within(4 * PATIENCE, "every token is in a wallet or the treasury", is_whole);
}

#[test]
fn a_limit_below_an_order_bonds_and_locks_nothing() {
    let (market, _lender) = open();
    let task = market.publish();
    // The price is 2 FLN, and the audit of one of four segments 0.5 FLN.
    let account = market.account("ann");
    let left = || market.ledger().balance(account).unwrap();
    let before = left();
    for spend_max in ["1", "2", "2.49"] {
        let mut call = market.participant_call(&market.url, task, "ann");
        call.extend(["--rent".to_owned(), terms(&market, spend_max)]);
        let refused = crate::support::florin(&call).refused(2, "RENT_LIMIT");
        assert!(refused.err.contains("2.5 FLN"), "{}", refused.err);
    }
    assert!(market.client().orders().unwrap().is_empty());
    assert_eq!(left(), before, "nothing is bonded");
    // Terms that no round could keep are refused before the bond.
    let file = terms(&market, "20");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("bid = \"12 s\"", "bid = \"20 min\"")).unwrap();
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--rent".to_owned(), file]);
    crate::support::florin(&call).refused(2, "RENT_TOO_SLOW");
}
