//! Buffered rounds in real processes: a slow participant's updates count in later rounds, through
//! kills of the coordinator and of the participant, and an auditor recomputes all of them.

use std::collections::BTreeMap;
use std::process::Command;

use florin_protocol::{
    Amount, Digest, DuplicateSource, ErrorCode, Report, RoundNumber, SelectionReason, TaskId,
    TaskPhase, UpdateHeader, WalletSigner,
};
use serde_json::json;

use crate::support::process::until;
use crate::support::sender::Sender;
use crate::support::slow::{GatedTrainer, slow_trainer, with_trainer};
use crate::support::{On, Process, TestMarket, TestPlan, florin};

/// Seconds by which the trainings of the fast participants are longer: the rounds go on no faster.
const SLEEP: &str = "0.4";
const ROUNDS: u32 = 24;
/// Most versions by which an update may be late.
const LATE_ROUNDS: u32 = 23;

/// A market in which every two updates make a version, and four participants train at once.
fn buffered(plan: TestPlan) -> TestMarket {
    let market = TestMarket::open(TestPlan { target: 2, ..plan });
    market.make_buffered(2, 4, LATE_ROUNDS);
    market
}

fn reports(market: &TestMarket, task: TaskId, rounds: u32) -> Vec<Report> {
    (1..=rounds).map(|round| market.report(task, round)).collect()
}

#[test]
fn a_slow_participant_is_paid_for_late_updates_through_kills() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: python3 is not installed");
        return;
    }
    let mut market = buffered(TestPlan::honest(On::Embedded, ROUNDS));
    let task = market.publish();
    let mut all = vec![market.provider(task)];
    let fast = slow_trainer(market.folder(), SLEEP);
    for name in ["ann", "ben"] {
        let call = with_trainer(market.participant_call(&market.url, task, name), &fast);
        all.push(Process::start(market.folder(), name, &call));
    }
    // The first version is that of the fast ones: it would wait for a slow one that is selected in place of one of them.
    until("the first round", || market.view(task).offer);
    // Two versions are made without the slow one. Then both it and the coordinator are killed.
    let trainer = GatedTrainer::write(market.folder());
    let call = with_trainer(market.participant_call(&market.url, task, "cy"), trainer.folder());
    let mut slow = Process::start(market.folder(), "cy", &call);
    let two_versions = |market: &TestMarket| {
        let before = market.view(task).reported;
        until("two versions", || (market.view(task).reported >= before + 2).then_some(()));
    };
    trainer.wait();
    two_versions(&market);
    slow.kill();
    trainer.forget();
    slow.restart();
    market.restart_coordinator();
    trainer.wait();
    two_versions(&market);
    market.restart_coordinator();
    trainer.open();
    all.push(slow);
    all.iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, TaskPhase::Done);

    let slow = market.account("cy");
    let reports = reports(&market, task, ROUNDS);
    let late: BTreeMap<u32, u32> = reports
        .iter()
        .flat_map(|report| report.entries.iter().map(move |entry| (report.scope.round.0, entry)))
        .filter(|(_, entry)| entry.sender == slow)
        .map(|(round, entry)| (round, entry.staleness))
        .collect();
    assert!(late.values().any(|staleness| *staleness > 0), "{late:?}");
    let offers =
        (2..=ROUNDS).map(|round| market.client().offer(task, RoundNumber(round)).unwrap().body);
    let continues = offers.filter(|offer| {
        let place = offer.cohort.binary_search(&slow).ok();
        place.is_some_and(|place| offer.reasons[place] == SelectionReason::Continues)
    });
    assert!(continues.count() > 0, "the slow participant stays in the cohort");
    let call = ["audit", &task.to_string(), "--engine", "reference", "--json", "--market"];
    let audit = florin(&[&call[..], &[&market.url]].concat()).expect(0).json();
    assert_eq!((&audit["rounds"], &audit["mismatches"]), (&ROUNDS.into(), &json!([])));
}

#[test]
fn a_published_update_with_a_stale_base_gains_nothing() {
    let plan = TestPlan {
        participants: vec![("ann", None)],
        others: vec!["mallory"],
        ..TestPlan::honest(On::Embedded, 2)
    };
    let market = buffered(plan);
    let task = market.publish();
    let mallory = Sender::join(&market, task, "mallory", "10");
    let mut all = [market.provider(task), market.participant(task, "ann")];
    let open = |round: u32| {
        until("an open round", || {
            let view = market.view(task);
            let is_open = view.phase == TaskPhase::Committing && view.round.0 == round;
            view.offer.filter(|_| is_open).map(|offer| offer.body)
        })
    };
    let send = |header: &UpdateHeader, bytes: &[u8]| {
        until("the reveals", || (market.view(task).phase == TaskPhase::Revealing).then_some(()));
        mallory.upload(&mallory.node.sign(header.clone()), bytes)
    };
    // Each version needs both: the first gets an update of zeros.
    let first = open(1);
    let spec = market.view(task).spec;
    let base = market.client().blob(first.base_model, 1 << 20).unwrap();
    let parameters = florin_work::decode_model(&spec, &base).unwrap().len();
    let zeros = florin_work::encode_parameters(&spec, &vec![0.0; parameters]);
    let header = mallory.header(&first, &zeros);
    assert_eq!(mallory.send_commit(&mallory.commit(&header)), "OK");
    assert_eq!(send(&header, &zeros), "OK");

    let second = open(2);
    let ann = market.account("ann");
    let report = market.report(task, 1);
    let copied = report.entries.iter().find(|entry| entry.sender == ann).unwrap();
    let bytes = market.client().blob(copied.update, 1 << 20).unwrap();
    let stale = |base_model| UpdateHeader { base_model, ..mallory.header(&second, &bytes) };
    let header = stale(report.base_model);
    assert_ne!(header.base_model, second.base_model);
    assert_eq!(mallory.send_commit(&mallory.commit(&header)), "OK");
    assert_eq!(send(&stale(Digest([9; 32])), &bytes), ErrorCode::WrongBaseModel.as_str());
    assert_eq!(send(&header, &bytes), "OK");
    all.iter_mut().for_each(Process::finish);
    let report = market.report(task, 2);
    let account = mallory.wallet.address();
    let entry = report.entries.iter().find(|entry| entry.sender == account).unwrap();
    assert_eq!(entry.staleness, 0, "this round selected it anew");
    let score = report.score(account).unwrap();
    let source = score.preprocessing.duplicate_of.map(|found| found.source);
    assert_eq!(source, Some(DuplicateSource::EarlierRound(ann)), "{score:?}");
    assert_eq!(report.line(account).unwrap().payout, Amount::ZERO);
}
