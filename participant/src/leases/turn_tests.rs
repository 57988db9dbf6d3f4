//! Turns of the daemon: the orders that it follows.

use std::sync::{Arc, Mutex};

use florin_compute::{ComputeOrder, OrderView, Phase};
use florin_protocol::Digest;

use super::fake_host::{FakeHost, REFEREE};
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
