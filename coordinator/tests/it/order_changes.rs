//! Clients read the orders of a market once, and then what has changed.

use std::time::Duration;

use florin_compute::*;
use florin_protocol::*;

use crate::lease_market::*;

impl LeaseMarket {
    async fn changes(&self, run: u64, after: u64) -> OrderChanges {
        let path = format!("orders/changes?run={run}&after={after}");
        serde_json::from_slice(&self.send("GET", &path, Vec::new()).await.unwrap()).unwrap()
    }

    async fn all(&self) -> Vec<OrderView> {
        serde_json::from_slice(&self.send("GET", "orders", Vec::new()).await.unwrap()).unwrap()
    }

    /// The changes since another reading. The host's threads may change an order before the whole list is read.
    async fn since(&self, before: &OrderChanges) -> OrderChanges {
        let changes = self.changes(before.run, before.last).await;
        assert!(!changes.is_whole && changes.last >= before.last && changes.run == before.run);
        let all = self.all().await;
        let is_listed = |view: &OrderView| {
            all.iter().any(|listed| listed.id == view.id && listed.records >= view.records)
        };
        assert!(changes.orders.iter().all(is_listed));
        changes
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_change_of_an_order_is_sent_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    let mut seen = market.changes(0, 0).await;
    assert!(seen.is_whole && seen.orders.is_empty() && seen.run < 1 << 48);
    // An order that stays as it is.
    let (first, order) = (market.id, market.order.clone());
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.order = ComputeOrder { nonce: order.nonce + 1, ..order };
    market.id = market.order.id();
    seen = market.changes(seen.run, seen.last).await;
    assert_eq!(seen.orders.iter().map(|view| view.id).collect::<Vec<_>>(), [first]);
    market.lock_escrow();
    market.open_order().await.unwrap();
    seen = market.since(&seen).await;
    assert_eq!(seen.orders.iter().map(|view| view.id).collect::<Vec<_>>(), [market.id]);
    // A blob, the begin of the bids, and an action.
    let blobs: Vec<Vec<u8>> = market.job.blobs.values().cloned().collect();
    for bytes in &blobs {
        let path = format!("orders/{}/blobs/{}", market.id, blob_digest(bytes));
        market.send("PUT", &path, bytes.clone()).await.unwrap();
        let next = market.since(&seen).await;
        assert_eq!(next.orders.len(), 2, "both orders have the blob");
        assert!(market.since(&next).await.orders.is_empty());
        seen = next;
    }
    assert!(seen.orders.iter().all(|view| view.opened.is_some()));
    market.deposit(AUDITORS[0], market.order.deposits.audit_bond);
    market.act(AUDITORS[0], ComputeAction::JoinAudit).await.unwrap();
    let next = market.since(&seen).await;
    assert_eq!(next.orders.iter().map(|view| view.records).collect::<Vec<_>>(), [1]);
    // A default, and the money.
    market.wait(market.order.windows.bid + 1);
    market.settled().await;
    while !market.all().await.iter().all(|view| view.money.is_final()) {
        market.wait(CHALLENGE_MS / 4);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let ended = market.since(&next).await;
    assert_eq!(ended.orders.len(), 2);
    assert!(ended.orders.iter().all(|view| view.phase == Phase::Over));
    // Another number of the future, and another run, have all.
    for (run, after) in [(ended.run, ended.last + 1), (ended.run + 1, ended.last), (ended.run, 0)] {
        let all = market.changes(run, after).await;
        assert!(all.is_whole && all.orders.len() == 2);
        assert_eq!((all.run, all.last, all.forgotten.len()), (ended.run, ended.last, 0));
    }
    let malformed = market.send("GET", "orders/changes?run=x", Vec::new()).await;
    assert_eq!(malformed, Err(ErrorCode::Malformed));
    let (id, order) = (market.id, market.order.clone());
    let now = market.stop().await;
    let mut market = LeaseMarket::open_at(dir.path(), Timestamp(now.0 + 1));
    (market.id, market.order) = (id, order);
    let again = market.changes(ended.run, ended.last).await;
    assert!(again.is_whole && again.run != ended.run && again.orders.len() == 2);
    market.stop().await;
}
