//! A disk without room, or one whose fsync fails: what was not made durable was not acknowledged, and started again, the
//! coordinator goes on where it was.
//!
//! Room is taken by a limit on the size of files. fsync fails by `strace`, which attaches itself to the coordinator; where
//! there is no strace, or it may not attach, those tests say so and try nothing.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use florin_participant::Event;
use florin_protocol::{Amount, Offer, Phase, Signed, TaskId, UpdateHeader};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::support::process::{Process, until};
use crate::support::sender::Sender;
use crate::support::{On, Plan, TestMarket, florin};

/// Accounts that commit.
const NAMES: [&str; 2] = ["one", "two"];
/// fsyncs of each thread that are made to fail, one in each run of a round.
const FAILING: [u32; 4] = [1, 2, 4, 7];

/// A strace that makes fsyncs fail. Dropped, it lets go of the coordinator.
struct Failing {
    strace: Child,
    calls: PathBuf,
}

impl Failing {
    /// Attaches to a process; `which` as strace counts calls, for each thread: `3` or `1+`. `None` where it cannot.
    fn fsyncs(folder: &Path, of: &Process, which: &str) -> Option<Self> {
        let (calls, told) = (folder.join("strace-calls"), folder.join("strace.log"));
        let _ = std::fs::remove_file(&calls);
        let inject = format!("inject=fsync,fdatasync:error=EIO:when={which}");
        let id = of.id().as_raw_nonzero().to_string();
        let started = Command::new("strace")
            .args(["-f", "-e", "trace=fsync,fdatasync", "-e", &inject, "-p", &id, "-o"])
            .arg(&calls)
            .stdin(Stdio::null())
            .stderr(std::fs::File::create(&told).unwrap())
            .spawn();
        let mut strace = match started {
            Ok(strace) => strace,
            Err(error) => {
                eprintln!("SKIPPED: no strace here: {error}");
                return None;
            }
        };
        let attached = until("strace attaches", || {
            let said = std::fs::read_to_string(&told).unwrap_or_default();
            let ended = strace.try_wait().unwrap().is_some();
            if said.contains("attached") { Some(Ok(())) } else { ended.then_some(Err(said)) }
        });
        match attached {
            Ok(()) => Some(Self { strace, calls }),
            Err(said) => {
                eprintln!("SKIPPED: strace may not attach: {said}");
                None
            }
        }
    }

    /// Whether a call has failed by now.
    fn has_failed_one(&self) -> bool {
        std::fs::read_to_string(&self.calls).is_ok_and(|calls| calls.contains("(INJECTED)"))
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        // Asked politely, it detaches first.
        let _ = kill_process(Pid::from_child(&self.strace), Signal::TERM);
        let _ = self.strace.wait();
    }
}

/// A round in which two are asked, without processes of their own.
struct Two {
    market: TestMarket,
    task: TaskId,
    senders: [Sender; 2],
    offer: Offer,
    updates: [Vec<u8>; 2],
}

impl Two {
    fn open() -> Self {
        let mut plan = Plan::honest(On::Embedded, 1);
        plan.participants.clear();
        plan.others.extend(NAMES);
        plan.target = NAMES.len();
        plan.provider = false;
        let market = TestMarket::open(plan);
        let task = market.publish();
        let senders = NAMES.map(|name| Sender::join(&market, task, name, "10"));
        let view = market.wait_for(task, 1, Phase::Committing);
        let offer = view.offer.unwrap().body;
        let parameters = florin_work::model_spec(&view.spec.model).parameters();
        let update = |x: f32| florin_work::encode(&view.spec, &vec![x; parameters]);
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

    fn failing(&self) -> Option<Failing> {
        Failing::fsyncs(self.market.folder(), &self.market.coordinator, "1+")
    }

    /// Leaves no room on the coordinator's disk, until what is returned is dropped: not even for what it says.
    fn no_room(&self) -> NoRoom {
        let log = self.market.folder().join("coordinator.log");
        let mut log = std::fs::File::options().append(true).open(log).unwrap();
        log.write_all(&[b'\n'; 1_024]).unwrap();
        let coordinator = self.market.coordinator.id();
        let small = Rlimit { current: Some(1_024), maximum: None };
        prlimit(Some(coordinator), Resource::Fsize, small).unwrap();
        NoRoom(coordinator)
    }

    /// The round ends with both, is paid once, and everything on disk is in order.
    fn ends_well(mut self) {
        until("the task's end", || {
            (self.market.view(self.task).phase == Phase::Done).then_some(())
        });
        let report = self.market.report(self.task, 1);
        assert_eq!(report.entries.len(), 2);
        let books = self.market.books(self.task);
        assert_eq!((books.root, books.data_paid), (report.root, report.data_total));
        let task = self.task.to_string();
        self.market.ask(&["audit", &task, "--engine", "reference"]).expect(0);
        self.market.coordinator.kill();
        let data = self.market.file("coordinator");
        florin(&["ledger", "verify", "--data", &data]).expect(0);
        let wallet = (self.market.file("coordinator.json"), self.market.file("passphrase"));
        let check = ["coordinate", "--check", "--data", &data, "--wallet", &wallet.0];
        florin(&[&check[..], &["--passphrase-file", &wallet.1]].concat()).expect(0);
    }
}

/// A disk without room; there is some when this is dropped.
struct NoRoom(Pid);

impl Drop for NoRoom {
    fn drop(&mut self) {
        let any = Rlimit { current: None, maximum: None };
        let _ = prlimit(Some(self.0), Resource::Fsize, any); // a coordinator that ended needs none
    }
}

#[test]
fn a_disk_without_room_refuses_and_goes_on_when_there_is_room() {
    let two = Two::open();
    let full = two.no_room();
    assert_eq!([two.commit(0), two.commit(0)], ["STORAGE_FULL", "STORAGE_FULL"]);
    assert_eq!(two.market.view(two.task).committed, 0);
    drop(full);
    assert_eq!([two.commit(0), two.commit(1)], ["OK", "OK"]);
    let full = two.no_room();
    assert_eq!(two.upload(0), "STORAGE_FULL");
    drop(full);
    assert_eq!([two.upload(0), two.upload(1)], ["OK", "OK"]);
    two.ends_well();
}

#[test]
fn a_ledger_without_room_moves_nothing_until_it_is_opened_again_and_then_once() {
    let mut two = Two::open();
    let to = two.market.account("two").to_string();
    let held = || two.market.ledger().balance(two.market.account("two")).unwrap();
    let before = held();
    let full = two.no_room();
    let transfer = ["transfer", &to, "7"];
    let said = two.market.ask_as("one", &transfer);
    assert_ne!(said.code, 0, "{said:?}");
    drop(full);
    assert_eq!(held(), before);
    two.market.restart_coordinator();
    let before_again = two.market.ledger().balance(two.market.account("two")).unwrap();
    assert_eq!(before_again, before, "what was not acknowledged did not happen");
    two.market.ask_as("one", &transfer).expect(0);
    let after = two.market.ledger().balance(two.market.account("two")).unwrap();
    assert_eq!(after, before.plus("7".parse().unwrap()).unwrap());
}

#[test]
fn what_was_not_made_durable_is_not_acknowledged_and_a_restart_goes_on() {
    let mut two = Two::open();
    assert_eq!(two.commit(0), "OK");
    let Some(failing) = two.failing() else { return };
    assert_eq!(two.commit(1), "INTERNAL");
    assert!(failing.has_failed_one());
    drop(failing);
    // What is on the disk is not known: nothing is taken, and what was acknowledged is told still.
    assert_eq!(two.commit(1), "INTERNAL");
    assert_eq!(two.market.view(two.task).committed, 1);
    two.market.restart_coordinator();
    assert_eq!(two.commit(1), "OK");
    assert_eq!(two.market.view(two.task).committed, 2);

    let Some(failing) = two.failing() else { return };
    assert_eq!(two.upload(0), "INTERNAL");
    drop(failing);
    two.market.restart_coordinator();
    assert_eq!([two.upload(0), two.upload(1)], ["OK", "OK"]);
    two.ends_well();
}

type Balances = BTreeMap<&'static str, (Amount, Amount)>;

/// One round of two participants and a provider; the coordinator is started again when an fsync of it has failed, if
/// `nth` of each of its threads is to. What everybody holds in the end, and whether one failed; `None` without strace.
fn round(nth: Option<u32>) -> Option<(Balances, bool)> {
    let mut plan = Plan::honest(On::Embedded, 1);
    plan.participants.truncate(2);
    plan.target = 2;
    let mut market = TestMarket::open(plan);
    let task = market.publish();
    let attach = |nth: u32| Failing::fsyncs(market.folder(), &market.coordinator, &nth.to_string());
    let mut failing = match nth {
        Some(nth) => Some(attach(nth)?),
        None => None,
    };
    let mut failed = false;
    let mut again = |market: &mut TestMarket| {
        if failing.as_ref().is_some_and(Failing::has_failed_one) {
            (failing, failed) = (None, true);
            market.restart_coordinator();
        }
    };
    let mut all = vec![market.provider(task)];
    until("the provider is ready", || {
        again(&mut market);
        all[0].said().contains(Event::READY).then_some(())
    });
    all.extend(["ann", "ben"].map(|name| market.participant(task, name)));
    until("everybody's end", || {
        again(&mut market);
        (!all.iter_mut().any(Process::runs)).then_some(())
    });
    all.iter_mut().for_each(Process::finish);
    assert_eq!(market.view(task).phase, Phase::Done);
    Some((market.balances(task), failed))
}

#[test]
fn an_fsync_that_fails_anywhere_in_a_round_costs_nobody_anything() {
    let undisturbed = round(None).map(|(balances, _)| balances);
    let mut failed = 0;
    for nth in FAILING {
        let Some((balances, one)) = round(Some(nth)) else { return };
        eprintln!("fsync {nth} of each thread: {}", if one { "one failed" } else { "none came" });
        assert_eq!(Some(balances), undisturbed, "fsync {nth} of each thread");
        failed += u32::from(one);
    }
    assert!(failed >= 3, "{failed} of {FAILING:?}");
}
