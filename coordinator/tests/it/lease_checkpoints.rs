//! A provider that is gone after it left checkpoints: its segments are audited and paid, and another order continues
//! behind them.

use florin_compute::*;
use florin_coordinator::Clock;
use florin_coordinator::leases::{RESTRICTED_FOLDER, read_leases};
use florin_learning::checkpoint::TrainingState;
use florin_ledger::Ledger;
use florin_protocol::*;

use crate::lease_market::*;
use crate::support::*;

impl LeaseMarket {
    async fn put_checkpoint(
        &self,
        n: u8,
        state: &TrainingState,
        salt: Digest,
    ) -> Result<(), ErrorCode> {
        let digest = Digest(state.digest());
        let upload = CheckpointUpload { order: self.id, by: address(n), state: digest, salt };
        self.put_signed(upload, n, state.to_bytes().unwrap()).await
    }

    async fn put_signed(
        &self,
        upload: CheckpointUpload,
        signer: u8,
        bytes: Vec<u8>,
    ) -> Result<(), ErrorCode> {
        let CheckpointUpload { order, by, state, salt } = upload;
        let signature = upload.sign(self.order.market, &wallet(signer)).unwrap();
        let headers = [
            ("state-account", by.to_string()),
            ("state-salt", salt.to_string()),
            ("state-signature", signature.to_string()),
        ];
        self.put_with(&format!("orders/{order}/checkpoints/{state}"), &headers, bytes).await
    }

    /// Leaves the end of a segment with a salt.
    async fn leave(&self, segment: u32, salt: Digest) {
        let end = self.state_after(u64::from(segment + 1) * 5);
        self.put_checkpoint(LENDER, &end, salt).await.unwrap();
    }

    /// Leaves the first state and the end of each segment, and delivers it.
    async fn deliver_with_checkpoints(&self, segments: std::ops::Range<u32>) {
        for segment in segments {
            if segment == 0 {
                let first = self.state_after(0);
                self.put_checkpoint(LENDER, &first, Digest::default()).await.unwrap();
            }
            self.leave(segment, self.secret(segment).salt).await;
            self.deliver(segment..segment + 1).await;
        }
    }

    /// The provider is gone: passes the deadlines of its segment and of its service.
    async fn pass_to_the_audits(&self) {
        let (phase, deadline) = self.lease().await.lease().phase();
        assert_eq!(phase, Phase::Running);
        self.wait(deadline.ms_since(self.clock.now()) + 1);
        self.drawn().await;
        self.wait(self.order.windows.audit + 1);
    }

    /// The auditors read their start, and agree with the provider.
    async fn audit_alone(&self) {
        let segment = self.drawn().await;
        let start = Digest(self.state_after(u64::from(segment) * 5).digest());
        let path = format!("orders/{}/states/{start}", self.id);
        assert!(!self.send("GET", &path, Vec::new()).await.unwrap().is_empty());
        let secret = Secret { salt: Digest([7; 32]), ..self.secret(segment) };
        for n in AUDITORS {
            let sealed = end_commitment(self.id, address(n), segment, secret);
            self.act(n, ComputeAction::SealEnd { segment, sealed }).await.unwrap();
        }
        for n in AUDITORS {
            self.act(n, ComputeAction::OpenEnd { segment, secret }).await.unwrap();
        }
        self.wait(self.order.windows.audit + 1);
    }

    fn balance(&self, n: u8) -> Amount {
        self.chain.balance(address(n)).unwrap()
    }
}

/// The files in an order's own folder.
fn own_files(data: &std::path::Path, order: Digest) -> usize {
    let folder = data.join(RESTRICTED_FOLDER).join(order.to_string());
    std::fs::read_dir(folder).map_or(0, Iterator::count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gone_provider_is_paid_and_another_order_continues() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    market.fund().await;
    market.deliver_with_checkpoints(0..2).await;
    assert_eq!(own_files(dir.path(), market.id), 3);
    // No account reads them before they speak for the provider.
    let result = Digest(market.state_after(10).digest());
    let path = format!("orders/{}/states/{result}", market.id);
    assert_eq!(market.send("GET", &path, Vec::new()).await, Err(ErrorCode::NotFound));
    market.pass_to_the_audits().await;
    // The coordinator was away in between.
    let (order, id) = (market.order.clone(), market.id);
    let now = market.stop().await;
    market = LeaseMarket::open_at(dir.path(), now);
    (market.order, market.id) = (order, id);
    market.audit_alone().await;
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Defaulted { delivered: 2 }));
    let lease = market.lease().await;
    assert_eq!(lease.lease().result(), Some(result));
    let books = lease.lease().books();
    assert!(!books.balance(ComputeAccount::Owed(address(LENDER))).is_zero());
    let fine = market.order.deposits.default_fine;
    assert_eq!(books.balance(ComputeAccount::Forfeited(address(LENDER))), fine);
    // The result is there, and the other checkpoints but for the audited start are not.
    market.send("GET", &path, Vec::new()).await.unwrap();
    assert!((1..=2).contains(&own_files(dir.path(), market.id)));
    // Another order continues, and has the bytes of its first state.
    market.order = ComputeOrder {
        first_segment: 2,
        segments: 2,
        start: result,
        nonce: 7,
        ..market.order.clone()
    };
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    let path = format!("orders/{}/states/{result}", market.id);
    market.send("GET", &path, Vec::new()).await.unwrap();
    let market_id = market.id;
    market.stop().await;
    let stored = read_leases(dir.path()).unwrap().unwrap();
    assert_eq!((stored.orders, stored.damaged), (2, Vec::new()));
    let shared = dir.path().join("blobs");
    assert!(shared.is_dir() && stored.blobs.len() == test_job().blobs.len());
    // A check finds a damaged file.
    let folder = dir.path().join(RESTRICTED_FOLDER).join(market_id.to_string());
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, "sour").unwrap();
    assert_eq!(read_leases(dir.path()).unwrap().unwrap().damaged.len(), 1);
}

/// One is missing, or is not that of the leaf: the silence costs the stake, as without checkpoints.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_and_wrong_checkpoints_save_no_stake() {
    for is_wrong in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let market = LeaseMarket::open(dir.path());
        market.fund().await;
        let before = market.balance(LENDER);
        if is_wrong {
            market.put_checkpoint(LENDER, &market.state_after(0), SALT).await.unwrap();
            market.leave(0, SALT).await;
        }
        market.deliver(0..1).await;
        market.leave(1, market.secret(1).salt).await;
        market.deliver(1..2).await;
        market.pass_to_the_audits().await;
        let segment = market.lease().await.lease().audited().next().map(|(segment, _)| segment);
        let view = market.settled().await;
        match segment {
            Some(segment) => assert_eq!(view.outcome, Some(LeaseOutcome::Slashed { segment })),
            None => assert!(matches!(view.outcome, Some(LeaseOutcome::Slashed { .. }))),
        }
        assert!(market.balance(LENDER) <= before);
        assert_eq!(own_files(dir.path(), market.id), 0, "all checkpoints end with the lease");
        market.stop().await;
    }
}

const SALT: Digest = Digest([0x5a; 32]);

/// The files of all checkpoints are lost, or other bytes: none of them speaks for the provider, and their bytes are wanted
/// from it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_checkpoints_are_forgotten() {
    for (damage, comes_back) in [("sour", false), ("", true), ("sour", true)] {
        let dir = tempfile::tempdir().unwrap();
        let market = LeaseMarket::open(dir.path());
        market.fund().await;
        market.deliver_with_checkpoints(0..4).await;
        let folder = dir.path().join(RESTRICTED_FOLDER).join(market.id.to_string());
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match damage.is_empty() {
                true => std::fs::remove_file(path).unwrap(),
                false => std::fs::write(path, damage).unwrap(),
            }
        }
        let segment = market.drawn().await;
        let outcome = if comes_back {
            let steps = u64::from(segment) * 5;
            market.serve(steps).await;
            let start = Digest(market.state_after(steps).digest());
            let path = format!("orders/{}/states/{start}", market.id);
            market.send("GET", &path, Vec::new()).await.unwrap();
            market.audit().await;
            LeaseOutcome::Settled
        } else {
            market.wait(market.order.windows.audit + 1);
            LeaseOutcome::Slashed { segment }
        };
        assert_eq!(market.settled().await.outcome, Some(outcome));
        market.stop().await;
    }
}

/// A stranger that computes the public job names its ends: it learns nothing, and takes no place of a state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_make_no_states_of_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.fund().await;
    market.deliver_with_checkpoints(0..4).await;
    let segment = market.drawn().await;
    for n in [AUDITORS[0], BUYER] {
        for steps in [0, 5, 10, 15, 20] {
            let state = Digest(market.state_after(steps).digest());
            let taken = market.put_state(n, state, Vec::new()).await;
            assert_eq!(taken, Err(ErrorCode::LeaseRefused));
            let path = format!("orders/{}/states/{state}", market.id);
            assert_eq!(market.send("GET", &path, Vec::new()).await, Err(ErrorCode::NotFound));
        }
    }
    // Of the provider's the lease uses two.
    let start = u64::from(segment) * 5;
    for steps in [0, 5, 10, 15, 20] {
        let state = market.state_after(steps);
        let taken =
            market.put_state(LENDER, Digest(state.digest()), state.to_bytes().unwrap()).await;
        assert_eq!(taken.is_ok(), steps == start || steps == 20, "{steps}: {taken:?}");
    }
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_checkpoints_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.award().await;
    let end = market.state_after(5);
    let refused = Err(ErrorCode::LeaseRefused);
    // Before the stake.
    assert_eq!(market.put_checkpoint(LENDER, &end, SALT).await, refused);
    market.deposit(LENDER, market.order.deposits.stake);
    market.act(LENDER, ComputeAction::Fund).await.unwrap();
    for n in [AUDITORS[0], BUYER] {
        assert_eq!(market.put_checkpoint(n, &end, SALT).await, refused);
    }
    let digest = Digest(end.digest());
    let upload =
        CheckpointUpload { order: market.id, by: address(LENDER), state: digest, salt: SALT };
    let forged = market.put_signed(upload, AUDITORS[0], end.to_bytes().unwrap()).await;
    assert_eq!(forged, Err(ErrorCode::InvalidSignature));
    let unknown = CheckpointUpload { order: Digest([3; 32]), ..upload };
    let unknown = market.put_signed(unknown, LENDER, end.to_bytes().unwrap()).await;
    assert_eq!(unknown, Err(ErrorCode::NotFound));
    for bytes in [vec![0; 100], market.state_after(4).to_bytes().unwrap()] {
        let other = market.put_signed(upload, LENDER, bytes).await;
        assert_eq!(other, Err(ErrorCode::Malformed));
    }
    let large = market.put_signed(upload, LENDER, vec![0; 10_000_000]).await;
    assert_eq!(large, Err(ErrorCode::TooLarge));
    // Neither the first state nor the end of the next segment.
    for steps in [4, 6, 10] {
        let taken = market.put_checkpoint(LENDER, &market.state_after(steps), SALT).await;
        assert_eq!(taken, refused);
    }
    assert_eq!(own_files(dir.path(), market.id), 0);
    // A second one for the same segment replaces the first one; the same one again changes nothing.
    for salt in [SALT, Digest([1; 32]), market.secret(0).salt, market.secret(0).salt] {
        market.put_checkpoint(LENDER, &end, salt).await.unwrap();
        assert_eq!(own_files(dir.path(), market.id), 1);
    }
    market.put_checkpoint(LENDER, &market.state_after(0), SALT).await.unwrap();
    market.deliver(0..1).await;
    // Behind its delivery only that of its leaf is taken.
    assert_eq!(market.put_checkpoint(LENDER, &end, SALT).await, refused);
    market.put_checkpoint(LENDER, &end, market.secret(0).salt).await.unwrap();
    market.deliver(1..2).await;
    assert_eq!(market.put_checkpoint(LENDER, &market.state_after(10), SALT).await, refused);
    market.leave(1, market.secret(1).salt).await;
    assert_eq!(own_files(dir.path(), market.id), 3);
    market.deliver_with_checkpoints(2..4).await;
    assert_eq!(market.put_checkpoint(LENDER, &market.state_after(20), SALT).await, refused);
    // The provider is there: it sends no state again.
    let segment = market.drawn().await;
    let start = Digest(market.state_after(u64::from(segment) * 5).digest());
    market.put_state(LENDER, start, Vec::new()).await.unwrap();
    market.act(LENDER, ComputeAction::Serve { segment, start }).await.unwrap();
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn private_rows_have_no_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::of_class(dir.path(), DataClass::Buyer);
    market.fund().await;
    market.leave(0, SALT).await;
    market.stop().await;
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::of_class(dir.path(), DataClass::Private);
    market.fund_private().await;
    let taken = market.put_checkpoint(LENDER, &market.state_after(5), SALT).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.stop().await;
}
