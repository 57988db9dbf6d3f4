//! A full disk, and a disk whose fsync fails: data that is not durable is never acknowledged, and a
//! restarted coordinator resumes.
//!
//! A limit on the file size simulates a full disk. `strace`, attached to the coordinator, makes
//! fsync fail; if strace is missing or may not attach, those tests print a note and do nothing.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::Write;

use florin_participant::ParticipantEvent;
use florin_protocol::{Amount, Offer, Signed, TaskId, TaskPhase, UpdateHeader};
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::support::process::{Process, until};
use crate::support::sender::Sender;
use crate::support::strace::FsyncInjection;
use crate::support::{On, TestMarket, TestPlan, florin};

/// Accounts that commit.
const NAMES: [&str; 2] = ["one", "two"];
/// Indices of the fsync call of each thread that fails, one per run of a round.
const FAILING: [u32; 4] = [1, 2, 4, 7];

/// A round with two invited participants that have no processes.
struct TwoSenders {
    market: TestMarket,
    task: TaskId,
    senders: [Sender; 2],
    offer: Offer,
    updates: [Vec<u8>; 2],
}

impl TwoSenders {
    fn open() -> Self {
        let mut plan = TestPlan::honest(On::Embedded, 1);
        plan.participants.clear();
        plan.others.extend(NAMES);
        plan.target = NAMES.len();
        plan.provider = false;
        let market = TestMarket::open(plan);
        let task = market.publish();
        let senders = NAMES.map(|name| Sender::join(&market, task, name, "10"));
        let view = market.wait_for(task, 1, TaskPhase::Committing);
        let offer = view.offer.unwrap().body;
        let parameters = florin_work::model_spec(&view.spec.model).parameters();
        let update = |x: f32| florin_work::encode_parameters(&view.spec, &vec![x; parameters]);
        Self { market, task, senders, offer, updates: [update(1e-5), update(2e-5)] }
    }

    fn commit(&self, n: usize) -> String {
        let sender = &self.senders[n];
        sender.send_commit(&sender.commit(&sender.header(&self.offer, &self.updates[n])))
    }

    fn header(&self, n: usize) -> Signed<UpdateHeader> {
        let sender = &self.senders[n];
        sender.node.sign(sender.header(&self.offer, &self.updates[n]))
    }

    fn upload(&self, n: usize) -> String {
        self.senders[n].upload(&self.header(n), &self.updates[n])
    }

    fn fail_fsync(&self) -> Option<FsyncInjection> {
        FsyncInjection::attach(self.market.folder(), &self.market.coordinator, "error=EIO:when=1+")
    }

    /// Makes the coordinator's disk full until the returned guard is dropped; even its log cannot
    /// grow.
    fn fill_disk(&self) -> FullDisk {
        let log = self.market.folder().join("coordinator.log");
        let mut log = std::fs::File::options().append(true).open(log).unwrap();
        log.write_all(&[b'\n'; 1_024]).unwrap();
        let coordinator = self.market.coordinator.id();
        let small = Rlimit { current: Some(1_024), maximum: None };
        prlimit(Some(coordinator), Resource::Fsize, small).unwrap();
        FullDisk(coordinator)
    }

    /// The round ends with both updates and is paid once, and all files on disk are valid.
    fn assert_round_completes(mut self) {
        until("the task is done", || {
            (self.market.view(self.task).phase == TaskPhase::Done).then_some(())
        });
        let report = self.market.report(self.task, 1);
        assert_eq!(report.entries.len(), 2);
        let books = self.market.books(self.task);
        assert_eq!((books.root, books.data_paid), (report.root, report.data_total));
        let task = self.task.to_string();
        self.market.run_command(&["audit", &task, "--engine", "reference"]).expect(0);
        self.market.coordinator.kill();
        let data = self.market.file("coordinator");
        florin(&["ledger", "verify", "--data", &data]).expect(0);
        let wallet = (self.market.file("coordinator.json"), self.market.file("passphrase"));
        let check = ["coordinate", "--check", "--data", &data, "--wallet", &wallet.0];
        florin(&[&check[..], &["--passphrase-file", &wallet.1]].concat()).expect(0);
    }
}

/// A full disk; on drop it has space again.
struct FullDisk(Pid);

impl Drop for FullDisk {
    fn drop(&mut self) {
        let any = Rlimit { current: None, maximum: None };
        let _ = prlimit(Some(self.0), Resource::Fsize, any); // fails if the coordinator has exited
    }
}

#[test]
fn a_full_disk_rejects_requests_until_it_has_space_again() {
    let two = TwoSenders::open();
    let full = two.fill_disk();
    assert_eq!([two.commit(0), two.commit(0)], ["STORAGE_FULL", "STORAGE_FULL"]);
    assert_eq!(two.market.view(two.task).committed, 0);
    drop(full);
    assert_eq!([two.commit(0), two.commit(1)], ["OK", "OK"]);
    let full = two.fill_disk();
    assert_eq!(two.upload(0), "STORAGE_FULL");
    drop(full);
    assert_eq!([two.upload(0), two.upload(1)], ["OK", "OK"]);
    two.assert_round_completes();
}

#[test]
fn a_transfer_on_a_full_disk_moves_nothing_and_a_retry_after_a_restart_moves_the_amount_once() {
    let mut two = TwoSenders::open();
    let to = two.market.account("two").to_string();
    let held = || two.market.ledger().balance(two.market.account("two")).unwrap();
    let before = held();
    let full = two.fill_disk();
    let transfer = ["transfer", &to, "7"];
    let output = two.market.run_command_as("one", &transfer);
    assert_ne!(output.code, 0, "{output:?}");
    drop(full);
    assert_eq!(held(), before);
    two.market.restart_coordinator();
    let before_again = two.market.ledger().balance(two.market.account("two")).unwrap();
    assert_eq!(before_again, before, "a transfer without an acknowledgement has no effect");
    two.market.run_command_as("one", &transfer).expect(0);
    let after = two.market.ledger().balance(two.market.account("two")).unwrap();
    assert_eq!(after, before.plus("7".parse().unwrap()).unwrap());
}

#[test]
fn data_that_is_not_durable_is_not_acknowledged_and_a_restart_resumes() {
    let mut two = TwoSenders::open();
    assert_eq!(two.commit(0), "OK");
    let Some(failing) = two.fail_fsync() else { return };
    assert_eq!(two.commit(1), "INTERNAL");
    assert!(failing.has_acted());
    drop(failing);
    // The state of the disk is unknown: writes are rejected, but acknowledged state is still
    // served.
    assert_eq!(two.commit(1), "INTERNAL");
    assert_eq!(two.market.view(two.task).committed, 1);
    two.market.restart_coordinator();
    assert_eq!(two.commit(1), "OK");
    assert_eq!(two.market.view(two.task).committed, 2);

    let Some(failing) = two.fail_fsync() else { return };
    assert_eq!(two.upload(0), "INTERNAL");
    drop(failing);
    two.market.restart_coordinator();
    assert_eq!([two.upload(0), two.upload(1)], ["OK", "OK"]);
    two.assert_round_completes();
}

type Balances = BTreeMap<&'static str, (Amount, Amount)>;

/// Runs one round of two participants and a provider. If `nth` is given, that fsync of each thread
/// of the coordinator fails, and the coordinator is then restarted. Returns all balances at the
/// end, and whether an fsync failed; `None` without strace.
fn round(nth: Option<u32>) -> Option<(Balances, bool)> {
    let mut plan = TestPlan::honest(On::Embedded, 1);
    plan.participants.truncate(2);
    plan.target = 2;
    let mut market = TestMarket::open(plan);
    let task = market.publish();
    let attach = |nth: u32| {
        let action = format!("error=EIO:when={nth}");
        FsyncInjection::attach(market.folder(), &market.coordinator, &action)
    };
    let mut failing = match nth {
        Some(nth) => Some(attach(nth)?),
        None => None,
    };
    let mut failed = false;
    let mut again = |market: &mut TestMarket| {
        if failing.as_ref().is_some_and(FsyncInjection::has_acted) {
            (failing, failed) = (None, true);
            market.restart_coordinator();
        }
    };
    let mut all = vec![market.provider(task)];
    until("the provider is ready", || {
        again(&mut market);
        all[0].log().contains(ParticipantEvent::READY_PREFIX).then_some(())
    });
    all.extend(["ann", "ben"].map(|name| market.participant(task, name)));
    until("all processes exit", || {
        again(&mut market);
        (!all.iter_mut().any(Process::runs)).then_some(())
    });
    all.iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, TaskPhase::Done);
    Some((market.balances(task), failed))
}

#[test]
fn a_failed_fsync_anywhere_in_a_round_changes_no_balance() {
    let undisturbed = round(None).map(|(balances, _)| balances);
    let mut failed = 0;
    for nth in FAILING {
        let Some((balances, one)) = round(Some(nth)) else { return };
        eprintln!("fsync {nth} of each thread: {}", if one { "one failed" } else { "none failed" });
        assert_eq!(Some(balances), undisturbed, "fsync {nth} of each thread");
        failed += u32::from(one);
    }
    assert!(failed >= 3, "{failed} of {FAILING:?}");
}
