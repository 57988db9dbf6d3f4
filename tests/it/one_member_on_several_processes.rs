//! One member of a market trains on several processes: a launcher starts the same command for each, and
//! the market sees one account with one update.

use crate::support::market::digits_graph;
use crate::support::process::{free_port, rank, until};
use crate::support::{On, Process, TestMarket, TestPlan, florin};

fn market(rounds: u32) -> TestMarket {
    let mut plan = TestPlan::honest(On::Embedded, rounds);
    plan.provider = false;
    plan.target = 2;
    plan.graph = Some(digits_graph());
    TestMarket::open(plan)
}

/// Starts the ranks of a member.
fn ranks(market: &TestMarket, name: &str, call: &[String], size: usize) -> Vec<Process> {
    let port = free_port();
    let start = |at: usize| {
        let name = if at == 0 { name.to_owned() } else { format!("{name}-rank-{at}") };
        Process::start_in(market.folder(), &name, call, &rank(at, size, port))
    };
    (0..size).map(start).collect()
}

#[test]
fn members_of_several_processes_are_paid_as_one() {
    let market = market(2);
    let task = market.publish();
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--rank-interface".to_owned(), "lo".to_owned()]);
    let mut ann = ranks(&market, "ann", &call, 3);
    let mut call = market.participant_call(&market.url, task, "ben");
    call.extend(["--rank-interface", "lo", "--rank-pipeline", "2"].map(str::to_owned));
    let mut ben = ranks(&market, "ben", &call, 2);
    ann.iter_mut().chain(&mut ben).for_each(Process::finish);
    let report = market.report(task, 2);
    let paid = |name| report.account_totals[&market.account(name)].data;
    assert!(!paid("ann").is_zero() && !paid("ben").is_zero(), "{report:?}");
    market.run_command(&["audit", &task.to_string()]).expect(0);
    let log = ann[0].log();
    assert!(log.contains("3 ranks have joined") && log.contains("virtual workers:"), "{log}");
    let log = ben[0].log();
    assert!(log.contains("1 pipeline of 2 parts, cut="), "{log}");
    assert!(!ann[1].log().contains("bond"), "only rank 0 takes part: {}", ann[1].log());
}

#[test]
fn a_member_trains_on_a_machine_that_has_no_rows() {
    let market = market(2);
    let task = market.publish();
    let mut call = market.participant_call(&market.url, task, "ann");
    let more = ["--rank-interface", "lo", "--rank-pipeline", "2", "--rank-private"];
    call.extend(more.map(str::to_owned));
    let mut elsewhere = call.clone();
    let data = elsewhere.iter().position(|word| word == "--data").unwrap() + 1;
    elsewhere[data] = "csv:no-such-file.csv#label".to_owned();
    let port = free_port();
    let start = |name: &str, call: &[String], at| {
        Process::start_in(market.folder(), name, call, &rank(at, 2, port))
    };
    let mut ann = [start("ann", &call, 0), start("ann-rank-1", &elsewhere, 1)];
    let mut ben = market.participant(task, "ben");
    ann.iter_mut().for_each(Process::finish);
    ben.finish();
    let report = market.report(task, 2);
    assert!(!report.account_totals[&market.account("ann")].data.is_zero(), "{report:?}");
    market.run_command(&["audit", &task.to_string()]).expect(0);
    let log = ann[0].log();
    assert!(log.contains("1 pipeline of 3 parts, cut="), "{log}");
    assert!(log.contains("rank 0 has the rows"), "{log}");
    // Without the flag, the rank misses its file before the ranks meet.
    let without: Vec<String> =
        elsewhere.iter().filter(|word| *word != "--rank-private").cloned().collect();
    let mut alone = Process::start_in(market.folder(), "alone", &without, &rank(1, 2, free_port()));
    assert!(!alone.wait().success());
    assert!(alone.log().contains("no-such-file.csv"), "{}", alone.log());
}

#[test]
fn a_rank_that_dies_costs_no_bond_and_sends_no_update() {
    let market = market(1);
    let task = market.publish();
    let mut call = market.participant_call(&market.url, task, "ann");
    call.extend(["--rank-interface", "lo", "--rank-timeout", "60"].map(str::to_owned));
    let mut ann = ranks(&market, "ann", &call, 2);
    until("the ranks have joined", || ann[0].log().contains("ranks have joined").then_some(()));
    ann[1].kill();
    let ben = market.participant(task, "ben");
    let status = ann[0].wait();
    let log = ann[0].log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert!(log.contains("RANK_LOST") && !log.contains("committed"), "{log}");
    // The same command on one process continues: it has the bond, and the bits would be the same.
    let mut alone = call.clone();
    alone.extend(["--virtual-workers", "8"].map(str::to_owned));
    let mut again = Process::start(market.folder(), "ann", &alone);
    again.finish();
    drop(ben);
    let report = market.report(task, 1);
    assert!(!report.account_totals[&market.account("ann")].data.is_zero(), "{report:?}");
}

#[test]
fn ranks_are_refused_where_a_training_has_none() {
    let market = market(1);
    let task = market.publish();
    let call = market.participant_call(&market.url, task, "ann");
    let with = |more: &[&str]| {
        let more: Vec<String> = more.iter().map(|word| (*word).to_owned()).collect();
        [&call[..], &more].concat()
    };
    florin(&with(&["--virtual-workers", "0"])).expect(2);
    florin(&with(&["--virtual-workers", "2000"])).expect(2);
    florin(&with(&["--rank-plan", "0-4"])).expect(2);
    let noise = florin(&with(&["--virtual-workers", "4", "--clip", "1", "--noise", "1"])).expect(2);
    assert!(noise.err.contains("--virtual-workers"), "{noise:?}");
    florin(&with(&["--virtual-workers", "4", "--memory", "0"])).expect(2);
    let mut other = with(&["--virtual-workers", "4"]);
    let engine = other.iter().position(|word| word == "--engine").unwrap() + 1;
    other[engine] = "reference".to_owned();
    florin(&other).refused(2, "RANKS_UNSUPPORTED");
    // A plan for other ranks is refused before they meet, and before any deposit.
    let planned = with(&["--rank-plan", "0..5,5..8"]);
    let mut three =
        Process::start_in(market.folder(), "planned", &planned, &rank(0, 3, free_port()));
    assert_eq!(three.wait().code(), Some(2));
    assert!(three.log().contains("RANK_PLAN_INVALID"), "{}", three.log());
    for (size, cut) in [(3, "cut=2"), (2, "cut=99999")] {
        let call = with(&["--rank-pipeline", "2", "--rank-cut", cut, "--rank-interface", "lo"]);
        let mut cut = ranks(&market, "cut", &call, size);
        let status = cut[0].wait();
        let log = cut[0].log();
        assert!(!status.success() && log.contains("RANK_PLAN_INVALID"), "{log}");
        assert!(!log.contains("committed") && !log.contains("bonded"), "{log}");
        for mut other in cut {
            other.kill();
        }
    }
    // A graph without such a cut, another number of parts, and two pipelines.
    for (size, cut) in [(2, "cut=1,99999"), (2, "cut=2"), (4, "cut=2,20")] {
        let private = ["--rank-pipeline", "2", "--rank-private", "--rank-interface", "lo"];
        let call = [with(&private), vec!["--rank-cut".to_owned(), cut.to_owned()]].concat();
        let mut cut = ranks(&market, "private", &call, size);
        let status = cut[0].wait();
        let log = cut[0].log();
        assert!(!status.success() && log.contains("RANK_PLAN_INVALID"), "{log}");
        assert!(!log.contains("committed") && !log.contains("bonded"), "{log}");
        for mut other in cut {
            other.kill();
        }
    }
    florin(&with(&["--rank-private"])).refused(2, "RANK_PLAN_INVALID");
    florin(&with(&["--rank-pipeline", "2"])).refused(2, "RANKS_UNSUPPORTED");
    florin(&with(&["--rank-pipeline", "1"])).expect(2);
    florin(&with(&["--rank-cut", "cut=2"])).expect(2);
    florin(&with(&["--rank-reduction", "chunks=0,inner=tree,levels=0,outer=tree"])).expect(2);
    let half = [("RANK".to_owned(), "1".to_owned())];
    let mut alone = Process::start_in(market.folder(), "half", &call, &half);
    assert!(!alone.wait().success());
    assert!(alone.log().contains("RANK_ENVIRONMENT_INVALID"), "{}", alone.log());
}
