//! Turns of the daemon: which orders are followed, in which sequence, and when a new one is
//! examined.

use std::sync::{Arc, Mutex};

use florin_compute::{ComputeJob, ComputeOrder, OrderView, Phase, Windows};
use florin_protocol::{Amount, Canonical, Digest};

use super::fake_host::{FakeHost, REFEREE};
use super::followed::{FollowedOrder, OrderVisit};
use super::toy_engine::ToyEngine;
use super::*;
use crate::client::{Client, ClientConfig};
use crate::testing::{fln, wallet};

const PROVIDER: u8 = 4;

/// A coordinator of one order, and its view.
struct TurnMarket {
    host: Arc<Mutex<FakeHost>>,
    client: Client,
    folder: tempfile::TempDir,
    view: OrderView,
}

impl TurnMarket {
    fn start() -> Self {
        let (host, url) = FakeHost::start(1);
        let client = Client::connect(&ClientConfig::new(url)).unwrap();
        let view = client.orders().unwrap().remove(0);
        Self { host, client, folder: tempfile::tempdir().unwrap(), view }
    }

    /// Performs a test with the daemon of an account, which bids unless it is the referee.
    fn with_daemon(&self, number: u8, test: impl FnOnce(&mut LeaseDaemon<'_, '_>)) {
        let bid = BidRule { per_hour: fln("3.6"), stake_max: fln("150"), orders_max: 1 };
        let config = LeaseServeConfig {
            gate: Default::default(),
            folder: self.folder.path().join(number.to_string()),
            policy: LeasePolicy {
                bid: (number != REFEREE).then_some(bid),
                referee: number == REFEREE,
                referees: vec![wallet(REFEREE).address()],
                challenge_min_ms: super::fake_host::CHALLENGE_MS,
                window_min_ms: 1_000,
                ..LeasePolicy::none()
            },
            poll_ms: 5,
            backoff: Backoff { initial_ms: 5, max_ms: 20, max_total_ms: 1_000 },
            only: None,
            experiment: None,
        };
        let ledger = Arc::clone(&self.host.lock().unwrap().ledger);
        let (wallet, mut engine) = (wallet(number), ToyEngine::default());
        let context = ProviderContext {
            wallet: &wallet,
            client: &self.client,
            ledger: &*ledger,
            engine: &mut engine,
        };
        let (shutdown, mut ignored) = (Shutdown::new(), |_: &LeaseEvent| ());
        test(&mut LeaseDaemon::open(&config, context, &shutdown, &mut ignored).unwrap());
    }

    /// Other orders of another referee, which differ in their numbers.
    fn others(&self, count: u64, change: impl Fn(&mut OrderView)) -> Vec<OrderView> {
        let other = |number: u64| {
            let nonce = 10_000 + number;
            let referee = wallet(9).address();
            let order = ComputeOrder { nonce, referee, ..self.view.order.clone() };
            let mut view = OrderView { id: order.id(), order, ..self.view.clone() };
            change(&mut view);
            view
        };
        (0..count).map(other).collect()
    }

    /// An own order with a deposit: it runs until some milliseconds from now.
    fn own(&self, daemon: &mut LeaseDaemon<'_, '_>, left_ms: u64, windows: &Windows) -> Digest {
        let order =
            ComputeOrder { nonce: left_ms, windows: windows.clone(), ..self.view.order.clone() };
        let deadline = self.client.now().saturating_add_ms(left_ms);
        let phase = Phase::Running;
        let view = OrderView { id: order.id(), order, phase, deadline, ..self.view.clone() };
        let (id, folder) = (view.id, daemon.store.order(view.id));
        let mut order = FollowedOrder::new(view, folder, &daemon.config.policy);
        order.deposit = Some(fln("1"));
        daemon.orders.insert(id, order);
        id
    }

    /// The shape of the order's job.
    fn shape(&self) -> Digest {
        let job = self.client.order_job(self.view.id, self.view.order.job).unwrap();
        ComputeJob { seed: 0, ..job }.digest()
    }

    fn new_order(&self, daemon: &LeaseDaemon<'_, '_>) -> FollowedOrder {
        let folder = daemon.store.order(self.view.id);
        let mut order = FollowedOrder::new(self.view.clone(), folder, &daemon.config.policy);
        order.deposit = Some(Amount::ZERO);
        assert!(order.follow(&self.client).unwrap());
        order
    }
}

#[test]
fn refused_unopened_and_ended_orders_take_no_place() {
    let market = TurnMarket::start();
    let junk = [
        market.others(300, |view| view.refused = Some("no blobs".to_owned())),
        market.others(300, |view| view.opened = None),
        market.others(300, |view| view.phase = Phase::Over),
    ];
    for number in [PROVIDER, REFEREE] {
        for junk in &junk {
            market.with_daemon(number, |daemon| {
                let views: Vec<OrderView> = junk.iter().chain([&market.view]).cloned().collect();
                daemon.follow(views);
                let followed: Vec<Digest> = daemon.orders.keys().copied().collect();
                assert_eq!(followed, [market.view.id]);
            });
        }
    }
}

#[test]
fn the_newest_orders_of_others_are_followed_beside_each_own_one() {
    let market = TurnMarket::start();
    let others = market.others(300, |_| ());
    market.with_daemon(REFEREE, |daemon| {
        let mut views = others.clone();
        views.push(market.view.clone());
        daemon.follow(views.clone());
        assert_eq!(daemon.orders.len(), FOLLOWED_ORDERS_MAX + 1);
        assert!(daemon.orders.contains_key(&market.view.id));
        assert!(daemon.orders.contains_key(&others[0].id));
        assert!(!daemon.orders.contains_key(&others[299].id));
        // A followed order has the last view, at any place of the list.
        views.last_mut().unwrap().records = 7;
        daemon.follow(views);
        assert_eq!(daemon.orders[&market.view.id].view.records, 7);
    });
    market.with_daemon(PROVIDER, |daemon| {
        // A folder is a part of the account in an order.
        daemon.store.order(others[299].id).create().unwrap();
        daemon.follow(others.clone());
        assert_eq!(daemon.orders.len(), FOLLOWED_ORDERS_MAX + 1);
        assert!(daemon.orders.contains_key(&others[299].id));
    });
}

#[test]
fn a_bid_of_an_earlier_run_has_a_place_until_its_record_is_read() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let id = market.own(daemon, 60_000, &market.view.order.windows);
        assert!(daemon.has_place());
        let bid = daemon.config.policy.bid.unwrap().bid(100, 1).unwrap();
        let folder = &daemon.orders[&id].folder;
        folder.create().unwrap();
        folder.write_bid(&bid).unwrap();
        assert!(!daemon.has_place(), "the policy takes one lease");
    });
}

#[test]
fn due_orders_with_deposits_come_first_by_their_deadlines() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let windows = &market.view.order.windows;
        let [late, soon] = [60_000, 30_000].map(|left| market.own(daemon, left, windows));
        let new = market.new_order(daemon);
        daemon.orders.insert(market.view.id, new);
        let sequence = |daemon: &LeaseDaemon<'_, '_>| {
            daemon.by_urgency().into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        assert_eq!(sequence(daemon), [soon, late, market.view.id]);
        // Behind an expensive step of an own order, new orders have a turn.
        daemon.turn.is_of_others = true;
        assert_eq!(sequence(daemon), [market.view.id, soon, late]);
    });
}

#[test]
fn a_new_order_is_not_examined_while_an_own_deadline_is_near() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let windows = &market.view.order.windows;
        let soon = market.own(daemon, 1_000, windows);
        let mut order = market.new_order(daemon);
        let visit = daemon.examine_new(&mut order, LeaseStep::SealBid).unwrap();
        assert_eq!(visit, OrderVisit::Idle);
        assert!(daemon.measured.is_empty() && order.training.is_none());
        assert!(!daemon.turn.is_over && order.retry_at.is_some());
        // An order with short windows could ask for an action behind the examination.
        daemon.orders.remove(&soon);
        let short = market.own(daemon, 60_000, &Windows { answer: 1_000, ..windows.clone() });
        assert!(!daemon.has_time_to_examine(&order).unwrap());
        daemon.orders.remove(&short);
        market.own(daemon, 60_000, windows);
        assert!(daemon.has_time_to_examine(&order).unwrap());
    });
}

#[test]
fn one_new_order_is_examined_in_a_turn() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let mut order = market.new_order(daemon);
        let visit = daemon.examine_new(&mut order, LeaseStep::SealBid).unwrap();
        assert_eq!((visit, daemon.measured.len()), (OrderVisit::Acted, 1));
        assert!(daemon.turn.is_over);
        let mut other = market.new_order(daemon);
        let visit = daemon.examine_new(&mut other, LeaseStep::SealBid).unwrap();
        assert_eq!(visit, OrderVisit::Idle);
    });
}

#[test]
fn a_step_that_is_too_slow_for_the_order_ends_its_measurement() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let mut order = market.new_order(daemon);
        order.view.order.step_us_max = 1;
        let us = daemon.measured_step(&mut order, Digest([1; 32])).unwrap();
        assert!(us > 1 && daemon.measured.is_empty(), "{us} µs");
    });
}

#[test]
fn an_order_is_not_loaded_for_a_bid_that_is_known_to_be_too_slow() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let mut order = market.new_order(daemon);
        daemon.measured.insert(market.shape(), 1_000_001);
        let why = daemon.examine_bid(&mut order).unwrap().unwrap_err().reason();
        assert!(why.contains("at most 1000000 µs"), "{why}");
        assert!(order.training.is_none());
    });
}

#[test]
fn a_segment_that_is_long_beside_an_own_window_is_not_bid_for() {
    let market = TurnMarket::start();
    market.with_daemon(PROVIDER, |daemon| {
        let windows = Windows { answer: 1_000, ..market.view.order.windows.clone() };
        market.own(daemon, 60_000, &windows);
        assert_eq!(daemon.shortest_own_window(), Some(1_000));
        let mut order = market.new_order(daemon);
        let shape = market.shape();
        // Five steps of 101 ms, and a half of a second.
        daemon.measured.insert(shape, 101_000);
        let why = daemon.examine_bid(&mut order).unwrap().unwrap_err().reason();
        assert!(why.contains("takes 505 ms") && why.contains("a window of 1000 ms"), "{why}");
        daemon.measured.insert(shape, 100_000);
        assert!(daemon.examine_bid(&mut order).unwrap().is_ok());
    });
}
