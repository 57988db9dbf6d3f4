//! Whole leases: daemons of a provider, auditors and a referee, each in its own thread, against a
//! coordinator behind real HTTP.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use florin_compute::{LeaseOutcome, Phase, SegmentAudit};

use super::executors::thread_backend::ThreadBackend;
use super::fake_host::{FakeHost, HostFault, REFEREE};
use super::toy_engine::ToyEngine;
use super::*;
use crate::client::{Client, ClientConfig};
use crate::policy::DailyHours;
use crate::testing::{fln, wallet};

#[path = "played_by_executors_tests.rs"]
mod by_executors;

const PROVIDER: u8 = 4;
const AUDITORS: [u8; 2] = [5, 6];
/// Longest wait for an event.
const EVENT_WAIT: Duration = Duration::from_secs(60);

type SentEvent = (u8, LeaseEvent);

/// A daemon in a thread of its own.
struct RunningDaemon {
    shutdown: Shutdown,
    thread: JoinHandle<LeaseSummary>,
}

impl RunningDaemon {
    fn start(
        number: u8,
        config: LeaseServeConfig,
        url: &str,
        host: &Mutex<FakeHost>,
        events: Sender<SentEvent>,
    ) -> Self {
        Self::start_by(number, config, url, host, events, None)
    }

    /// The same, with executors of a backend.
    fn start_by(
        number: u8,
        config: LeaseServeConfig,
        url: &str,
        host: &Mutex<FakeHost>,
        events: Sender<SentEvent>,
        backend: Option<ThreadBackend>,
    ) -> Self {
        let shutdown = Shutdown::new();
        let (asked, url) = (shutdown.clone(), url.to_owned());
        let ledger = Arc::clone(&host.lock().unwrap().ledger);
        let thread = std::thread::spawn(move || {
            let client = Client::connect(&ClientConfig::new(url)).unwrap();
            let (wallet, mut engine) = (wallet(number), ToyEngine::default());
            let context = ProviderContext {
                wallet: &wallet,
                client: &client,
                ledger: &*ledger,
                engine: &mut engine,
            };
            let mut on_event = |event: &LeaseEvent| {
                let _ = events.send((number, event.clone()));
            };
            let backend = backend.map(|backend| Box::new(backend) as Box<dyn ExecutorBackend>);
            serve_orders_by(&config, context, backend, &asked, &mut on_event).unwrap()
        });
        Self { shutdown, thread }
    }

    fn stop(self) -> LeaseSummary {
        self.shutdown.request();
        self.thread.join().unwrap()
    }
}

fn policy(number: u8) -> LeasePolicy {
    let bid = BidRule { per_hour: fln("3.6"), stake_max: fln("150"), orders_max: 1 };
    let audit = AuditRule { fee_min: fln("1"), bond_max: fln("8") };
    LeasePolicy {
        bid: (number == PROVIDER).then_some(bid),
        audit: AUDITORS.contains(&number).then_some(audit),
        referee: number == REFEREE,
        referees: vec![wallet(REFEREE).address()],
        challenge_min_ms: super::fake_host::CHALLENGE_MS,
        window_min_ms: 1_000,
        ..LeasePolicy::none()
    }
}

/// A market with its daemons.
struct PlayedMarket {
    host: Arc<Mutex<FakeHost>>,
    url: String,
    folder: tempfile::TempDir,
    sender: Sender<SentEvent>,
    events: Receiver<SentEvent>,
    seen: Vec<SentEvent>,
}

impl PlayedMarket {
    fn start() -> Self {
        // A bid and two auditors.
        let (host, url) = FakeHost::start(1 + AUDITORS.len());
        let (sender, events) = channel();
        let folder = tempfile::tempdir().unwrap();
        Self { host, url, folder, sender, events, seen: Vec::new() }
    }

    fn config(&self, number: u8) -> LeaseServeConfig {
        LeaseServeConfig {
            gate: Default::default(),
            folder: self.folder.path().join(number.to_string()),
            policy: policy(number),
            poll_ms: 5,
            backoff: Backoff { initial_ms: 5, max_ms: 20, max_total_ms: 60_000 },
            only: None,
            experiment: None,
        }
    }

    fn run(&self, number: u8, experiment: Option<LeaseExperiment>) -> RunningDaemon {
        let config = LeaseServeConfig { experiment, ..self.config(number) };
        RunningDaemon::start(number, config, &self.url, &self.host, self.sender.clone())
    }

    /// Waits for an event of an account.
    #[track_caller]
    fn wait_for(&mut self, number: u8, wanted: impl Fn(&LeaseEvent) -> bool) {
        loop {
            let Ok(sent) = self.events.recv_timeout(EVENT_WAIT) else {
                panic!("no such event of {number}: {:#?}", self.seen);
            };
            let is_wanted = sent.0 == number && wanted(&sent.1);
            self.seen.push(sent);
            if is_wanted {
                return;
            }
        }
    }

    fn inject(&self, fault: HostFault) {
        self.host.lock().unwrap().faults.insert(fault);
    }

    fn clear_faults(&self) {
        self.host.lock().unwrap().faults.clear();
    }

    fn outcome(&self) -> Option<LeaseOutcome> {
        self.host.lock().unwrap().lease.lease().outcome()
    }

    /// Waits until the lease is over, and passes each deadline that only a gone provider is waited for.
    fn wait_for_outcome(&self) {
        let started = std::time::Instant::now();
        while self.outcome().is_none() {
            assert!(started.elapsed() < EVENT_WAIT, "the lease is not over");
            let host = self.host.lock().unwrap();
            let lease = host.lease.lease();
            let is_open = |audit: &SegmentAudit| audit.ends.len() == audit.sealed.len();
            let is_due = match lease.phase().0 {
                Phase::Running | Phase::Serving => true,
                Phase::Opening => lease.audits().iter().all(is_open),
                _ => false,
            };
            if is_due {
                let left = lease.phase().1.ms_since(host.clock.now());
                host.clock.advance(left + 1);
            }
            drop(host);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn gained(&self, number: u8) -> i128 {
        let units = self.host.lock().unwrap().balance(number).units() as i128;
        (units - fln("1000").units() as i128) / 1_000_000_000_000
    }

    fn count(&self, number: u8, wanted: impl Fn(&LeaseEvent) -> bool) -> usize {
        self.seen.iter().filter(|(by, event)| *by == number && wanted(event)).count()
    }
}

fn is_skipped(event: &LeaseEvent) -> bool {
    matches!(event, LeaseEvent::OrderSkipped { .. })
}

fn is_returned(event: &LeaseEvent) -> bool {
    matches!(event, LeaseEvent::BondReturned { .. })
}

#[test]
fn a_lease_is_computed_audited_paid_and_all_deposits_return() {
    let mut market = PlayedMarket::start();
    let all: Vec<RunningDaemon> =
        [PROVIDER, 5, 6, REFEREE].map(|number| market.run(number, None)).into();
    market.wait_for(PROVIDER, is_returned);
    let returned = |market: &PlayedMarket, number| market.count(number, is_returned) > 0;
    for number in AUDITORS {
        if !returned(&market, number) {
            market.wait_for(number, is_returned);
        }
    }
    assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
    let summaries: Vec<LeaseSummary> = all.into_iter().map(RunningDaemon::stop).collect();
    assert_eq!((summaries[0].bids, summaries[0].segments), (1, 8));
    assert_eq!(summaries[0].returned, fln("120"));
    // A quarter of eight segments, two auditors each.
    assert_eq!((summaries[1].audits, summaries[1].paid), (2, fln("2")));
    assert_eq!((summaries[2].audits, summaries[2].paid), (2, fln("2")));
    assert_eq!(summaries[3].rulings, 0);
    assert!(!summaries[0].paid.is_zero());
    for (number, summary) in [PROVIDER, 5, 6].into_iter().zip(&summaries) {
        assert_eq!(market.gained(number), summary.paid.units() as i128 / 1_000_000_000_000);
        assert!(summary.lost.is_zero());
    }
}

#[test]
fn a_lazy_provider_loses_its_stake_to_a_ruling() {
    let mut market = PlayedMarket::start();
    let lazy = market.run(PROVIDER, Some(LeaseExperiment::Lazy));
    let others: Vec<RunningDaemon> = [5, 6, REFEREE].map(|number| market.run(number, None)).into();
    market.wait_for(PROVIDER, |event| matches!(event, LeaseEvent::LeaseOver { .. }));
    // Salts, ends and the beacon are fixed here, so that the same segments are drawn each time.
    let Some(LeaseOutcome::Slashed { segment }) = market.outcome() else {
        panic!("no fake segment is drawn: choose another beacon");
    };
    assert_eq!(segment % 2, 1);
    assert_eq!(lazy.stop().lost, fln("120"));
    let is_slashed = |event: &LeaseEvent| matches!(event, LeaseEvent::Slashed { .. });
    assert_eq!(market.count(PROVIDER, is_slashed), 1);
    let rulings: u64 = others.into_iter().map(|other| other.stop().rulings).sum();
    assert_eq!(rulings, 1);
}

#[test]
fn an_order_behind_256_junk_orders_is_computed_and_its_referee_rules() {
    let mut market = PlayedMarket::start();
    market.inject(HostFault::Junk);
    let lazy = market.run(PROVIDER, Some(LeaseExperiment::Lazy));
    let others: Vec<RunningDaemon> = [5, 6, REFEREE].map(|number| market.run(number, None)).into();
    market.wait_for(PROVIDER, |event| matches!(event, LeaseEvent::LeaseOver { .. }));
    assert!(matches!(market.outcome(), Some(LeaseOutcome::Slashed { .. })));
    assert_eq!(lazy.stop().lost, fln("120"));
    let rulings: u64 = others.into_iter().map(|other| other.stop().rulings).sum();
    assert_eq!(rulings, 1);
}

#[test]
fn a_provider_that_is_stopped_and_loses_its_states_continues() {
    let mut market = PlayedMarket::start();
    let others: Vec<RunningDaemon> = [5, 6].map(|number| market.run(number, None)).into();
    let first = market.run(PROVIDER, None);
    let is_delivered =
        |event: &LeaseEvent| matches!(event, LeaseEvent::SegmentDelivered { segment: 2, .. });
    market.wait_for(PROVIDER, is_delivered);
    market.inject(HostFault::Down);
    first.stop();
    // Two states are lost, and all others are damaged: also those that are drawn later.
    let id = market.host.lock().unwrap().lease.opening().order.id();
    let folder = market.config(PROVIDER).folder.join("leases").join(id.to_string());
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match name.get(..8) {
            Some("state-1-" | "state-3-") => std::fs::remove_file(path).unwrap(),
            Some(name) if name.starts_with("state-") => std::fs::write(path, b"damaged").unwrap(),
            _ => {}
        }
    }
    market.clear_faults();
    let second = market.run(PROVIDER, None);
    market.wait_for(PROVIDER, is_returned);
    assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
    let summary = second.stop();
    assert!(summary.bids == 0 && !summary.paid.is_zero(), "{summary:?}");
    for other in others {
        other.stop();
    }
}

/// It is gone behind its last delivery, or behind the third one.
#[test]
fn a_gone_provider_is_paid_by_the_checkpoints_that_it_left() {
    for last in [7, 2] {
        let mut market = PlayedMarket::start();
        let others: Vec<RunningDaemon> = AUDITORS.map(|number| market.run(number, None)).into();
        let first = market.run(PROVIDER, None);
        market.wait_for(
            PROVIDER,
            |event| matches!(event, LeaseEvent::SegmentDelivered { segment, .. } if *segment == last),
        );
        first.stop();
        // The first state, and the end of each segment.
        assert!(market.host.lock().unwrap().checkpoints.len() as u32 >= last + 2);
        market.wait_for_outcome();
        let delivered = market.host.lock().unwrap().lease.lease().leaves().len() as u32;
        match market.outcome().unwrap() {
            LeaseOutcome::Settled => assert_eq!(delivered, 8),
            LeaseOutcome::Defaulted { delivered: paid } => assert_eq!(paid, delivered),
            other => panic!("{other:?}"),
        }
        for other in others {
            assert!(!other.stop().paid.is_zero());
        }
    }
}

/// Lost ones delay no delivery; where a lease takes none the provider asks once.
#[test]
fn a_coordinator_without_checkpoints_has_the_lease() {
    for (fault, asked) in [(HostFault::LostCheckpoints, true), (HostFault::NoCheckpoints, false)] {
        let mut market = PlayedMarket::start();
        let others: Vec<RunningDaemon> = AUDITORS.map(|number| market.run(number, None)).into();
        market.inject(fault);
        let provider = market.run(PROVIDER, None);
        let is_delivered =
            |event: &LeaseEvent| matches!(event, LeaseEvent::SegmentDelivered { segment: 2, .. });
        market.wait_for(PROVIDER, is_delivered);
        market.clear_faults();
        market.wait_for(PROVIDER, is_returned);
        assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
        // The missing ones follow, one with each delivery.
        let left = market.host.lock().unwrap().checkpoints.len();
        assert_eq!(left, if asked { 9 } else { 0 });
        let is_left = |event: &LeaseEvent| matches!(event, LeaseEvent::CheckpointLeft { .. });
        assert_eq!(market.count(PROVIDER, is_left), if asked { 8 } else { 0 });
        assert!(!provider.stop().paid.is_zero());
        for other in others {
            other.stop();
        }
    }
}

#[test]
fn an_order_that_the_coordinator_forgot_is_paid_by_the_stored_claim() {
    let mut market = PlayedMarket::start();
    market.inject(HostFault::HeldSettlement);
    let others: Vec<RunningDaemon> = [5, 6].map(|number| market.run(number, None)).into();
    let first = market.run(PROVIDER, None);
    market.wait_for(PROVIDER, |event| matches!(event, LeaseEvent::LeaseOver { .. }));
    assert!(first.stop().paid.is_zero());
    for other in others {
        other.stop();
    }
    market.inject(HostFault::Hidden);
    market.host.lock().unwrap().faults.remove(&HostFault::HeldSettlement);
    let second = market.run(PROVIDER, None);
    market.wait_for(PROVIDER, is_returned);
    let summary = second.stop();
    assert!(!summary.paid.is_zero());
    assert_eq!(summary.returned, fln("120"));
    assert_eq!(market.gained(PROVIDER), summary.paid.units() as i128 / 1_000_000_000_000);
    let folder = market.config(PROVIDER).folder.join("leases");
    let left: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn a_second_daemon_finds_the_folder_locked() {
    let mut market = PlayedMarket::start();
    let first = market.run(PROVIDER, None);
    let config = market.config(PROVIDER);
    market.wait_for(PROVIDER, |event| matches!(event, LeaseEvent::Serving { .. }));
    let folder = &config.folder;
    let refused = store::LeaseStore::lock(folder, None).unwrap_err();
    assert_eq!(refused.code(), "DATA_FOLDER_IN_USE");
    assert!(LeaseServeError::from(refused).is_final());
    // The audit of one order has a lock of its own.
    store::LeaseStore::lock(folder, Some(Digest([1; 32]))).unwrap();
    first.stop();
    store::LeaseStore::lock(folder, None).unwrap();
}

#[test]
fn an_order_with_an_unknown_referee_is_skipped_without_a_deposit() {
    let mut market = PlayedMarket::start();
    let policy = LeasePolicy { referees: vec![wallet(9).address()], ..policy(PROVIDER) };
    let config = LeaseServeConfig { policy, ..market.config(PROVIDER) };
    let (url, sender) = (market.url.clone(), market.sender.clone());
    let daemon = RunningDaemon::start(PROVIDER, config, &url, &market.host, sender);
    market.wait_for(PROVIDER, |event| {
        matches!(event, LeaseEvent::OrderSkipped { reason, .. } if reason.contains("referee"))
    });
    assert_eq!(daemon.stop().bids, 0);
    assert_eq!(market.gained(PROVIDER), 0);
}

/// Outside the hours an order waits and is not refused: the hours may begin before its bids end.
#[test]
fn bids_are_sealed_and_audits_joined_within_the_hours_of_the_policy() {
    let mut market = PlayedMarket::start();
    let hour = (market.host.lock().unwrap().clock.now().0 / 3_600_000 % 24) as u8;
    // Also if an hour ends during the test.
    let hours = |from: u8, to: u8| DailyHours { from: (hour + from) % 24, to: (hour + to) % 24 };
    let run = |market: &PlayedMarket, number, hours| {
        let policy = LeasePolicy { hours: Some(hours), ..policy(number) };
        let config = LeaseServeConfig { policy, ..market.config(number) };
        RunningDaemon::start(number, config, &market.url, &market.host, market.sender.clone())
    };
    let closed = [PROVIDER, AUDITORS[0]].map(|number| run(&market, number, hours(2, 3)));
    let open = run(&market, AUDITORS[1], hours(0, 2));
    market.wait_for(AUDITORS[1], |event| matches!(event, LeaseEvent::AuditJoined { .. }));
    for daemon in closed {
        assert_eq!(daemon.stop().bids, 0);
    }
    open.stop();
    for number in [PROVIDER, AUDITORS[0]] {
        assert_eq!(
            market.count(number, |event| matches!(event, LeaseEvent::AuditJoined { .. })),
            0
        );
        assert_eq!(market.count(number, is_skipped), 0, "it waits");
    }
}

#[test]
fn an_order_whose_job_is_missing_is_skipped_without_a_deposit() {
    let mut market = PlayedMarket::start();
    market.inject(HostFault::LostBlobs);
    let daemons = [PROVIDER, 5].map(|number| market.run(number, None));
    for number in [PROVIDER, 5] {
        if market.count(number, is_skipped) == 0 {
            market.wait_for(number, is_skipped);
        }
        assert_eq!(market.gained(number), 0);
    }
    for daemon in daemons {
        assert_eq!(daemon.stop().bids, 0);
    }
}

#[test]
fn a_forged_record_delays_its_order_until_the_coordinator_is_honest_again() {
    let mut market = PlayedMarket::start();
    let others: Vec<RunningDaemon> = [5, 6].map(|number| market.run(number, None)).into();
    market.wait_for(5, |event| matches!(event, LeaseEvent::AuditJoined { .. }));
    market.inject(HostFault::ForgedRecord);
    let provider = market.run(PROVIDER, None);
    market.wait_for(PROVIDER, |event| {
        matches!(event, LeaseEvent::OrderRetrying { code: "UNEXPECTED_CONTENT", .. })
    });
    assert_eq!(market.gained(PROVIDER), 0, "nothing is deposited by a forged record");
    market.clear_faults();
    market.wait_for(PROVIDER, is_returned);
    assert_eq!(market.outcome(), Some(LeaseOutcome::Settled));
    assert!(!provider.stop().paid.is_zero());
    for other in others {
        other.stop();
    }
}

#[test]
fn an_engine_without_a_class_takes_part_in_no_order() {
    let market = PlayedMarket::start();
    let client = Client::connect(&ClientConfig::new(market.url.clone())).unwrap();
    let ledger = Arc::clone(&market.host.lock().unwrap().ledger);
    let (wallet, mut engine) = (wallet(PROVIDER), florin_learning::Reference::default());
    let context =
        ProviderContext { wallet: &wallet, client: &client, ledger: &*ledger, engine: &mut engine };
    let config = market.config(PROVIDER);
    let served = serve_orders(&config, context, &Shutdown::new(), &mut |_| ());
    assert_eq!(served.unwrap_err().code(), "NO_COMPUTE_CLASS");
}
