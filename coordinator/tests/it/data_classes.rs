//! Orders whose rows are not public: who reads them over HTTP, what other orders get of them, and when they are removed.

use axum::http::Request;
use florin_compute::*;
use florin_coordinator::leases::{RESTRICTED_FOLDER, read_leases};
use florin_coordinator::{Clock, backup};
use florin_learning::data::from_canonical_bytes;
use florin_ledger::Ledger;
use florin_protocol::*;
use tower::ServiceExt;

use crate::lease_market::*;
use crate::support::*;

const STRANGER: u8 = 9;

/// A read as a reader signs it.
#[derive(Clone, Copy)]
struct SignedRead {
    body: LeaseRead,
    signature: WalletSignature,
}

impl LeaseMarket {
    pub(crate) fn of_class(folder: &std::path::Path, class: DataClass) -> Self {
        let mut market = Self::open(folder);
        market.order.data_class = class;
        if class == DataClass::Private {
            let audit = AuditTerms { auditors: 1, colluding: 0, ..market.order.audit };
            market.order.audit = audit;
        }
        market.id = market.order.id();
        market
    }

    fn read_of(&self, n: u8, digest: Digest) -> SignedRead {
        let expires = self.clock.now().saturating_add_ms(60_000);
        self.signed(n, LeaseRead { order: self.id, by: address(n), digest, expires })
    }

    fn signed(&self, n: u8, body: LeaseRead) -> SignedRead {
        SignedRead { body, signature: body.sign(self.order.market, &wallet(n)).unwrap() }
    }

    async fn get_signed(&self, path: &str, read: SignedRead) -> Result<Vec<u8>, ErrorCode> {
        let request = Request::builder()
            .uri(format!("/v1/orders/{}/{path}", self.id))
            .header("reader-account", read.body.by.to_string())
            .header("reader-expires", read.body.expires.0.to_string())
            .header("reader-signature", read.signature.to_string());
        let request = request.body(axum::body::Body::empty()).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status();
        let bytes = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        match status.is_success() {
            true => Ok(bytes.to_vec()),
            false => Err(serde_json::from_slice::<Rejection>(&bytes).unwrap().code),
        }
    }

    fn rows(&self) -> Digest {
        self.job.job.rows.digest
    }

    async fn rows_for(&self, n: u8) -> Result<Vec<u8>, ErrorCode> {
        let rows = self.rows();
        self.get_signed(&format!("blobs/{rows}"), self.read_of(n, rows)).await
    }

    async fn state_for(&self, n: u8, state: Digest) -> Result<Vec<u8>, ErrorCode> {
        self.get_signed(&format!("states/{state}"), self.read_of(n, state)).await
    }

    async fn disputed_rows_for(&self, n: u8) -> Result<Vec<u8>, ErrorCode> {
        self.get_signed("disputed-rows", self.read_of(n, self.rows())).await
    }

    /// The accounts that may read the rows now.
    async fn readers(&self) -> Vec<u8> {
        let mut readers = Vec::new();
        for n in [BUYER, ARBITER, LENDER, AUDITORS[0], AUDITORS[1], STRANGER, COORDINATOR] {
            match self.rows_for(n).await {
                Ok(bytes) => {
                    assert_eq!(blob_digest(&bytes), self.rows());
                    readers.push(n);
                }
                Err(code) => assert_eq!(code, ErrorCode::DataRestricted),
            }
        }
        readers
    }

    /// Opens an order on private rows, and plays it until its segments are delivered.
    async fn deliver_private(&self) {
        self.fund_private().await;
        self.deliver(0..4).await;
    }

    /// Opens an order on private rows, and plays it until it is funded.
    pub(crate) async fn fund_private(&self) {
        self.lock_escrow();
        self.open_order().await.unwrap();
        self.put_blobs().await;
        let deposits = self.order.deposits.clone();
        self.deposit(LENDER, deposits.bid_bond);
        let (salt, bid) = (Digest([9; 32]), self.bid());
        let sealed = bid_commitment(self.id, address(LENDER), &bid, salt);
        self.act(LENDER, ComputeAction::SealBid(sealed)).await.unwrap();
        let joined = self.act(AUDITORS[0], ComputeAction::JoinAudit).await;
        assert_eq!(joined, Err(ErrorCode::LeaseRefused));
        self.deposit(BUYER, deposits.audit_bond);
        self.act(BUYER, ComputeAction::JoinAudit).await.unwrap();
        self.wait(self.order.windows.bid + 1);
        self.act(LENDER, ComputeAction::OpenBid { bid, salt }).await.unwrap();
        assert_eq!(self.readers().await, [BUYER], "an award buys no rows");
        self.deposit(LENDER, deposits.stake);
        self.act(LENDER, ComputeAction::Fund).await.unwrap();
        assert_eq!(self.readers().await, [BUYER, LENDER]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_buyer_are_for_its_parties_until_the_lease_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::of_class(dir.path(), DataClass::Buyer);
    market.fund().await;
    market.deliver(0..3).await;
    assert_eq!(market.readers().await, [BUYER, LENDER]);
    market.deliver(3..4).await;
    // Without a signature there is nothing, and the model is public.
    let rows = format!("orders/{}/blobs/{}", market.id, market.rows());
    assert_eq!(market.send("GET", &rows, Vec::new()).await, Err(ErrorCode::DataRestricted));
    let graph = market.job.job.graph.graph.digest;
    market.send("GET", &format!("orders/{}/blobs/{graph}", market.id), Vec::new()).await.unwrap();
    market.drawn().await;
    assert_eq!(market.readers().await, [BUYER, LENDER, AUDITORS[0], AUDITORS[1]]);
    market.audit().await;
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Settled));
    // The result is for the renter alone, and the rows are gone.
    let result = market.lease().await.lease().result().unwrap();
    for n in [LENDER, AUDITORS[0], ARBITER, STRANGER] {
        assert_eq!(market.state_for(n, result).await, Err(ErrorCode::DataRestricted));
    }
    market.state_for(BUYER, result).await.unwrap();
    assert_eq!(market.rows_for(BUYER).await, Err(ErrorCode::NotFound));
    let own = dir.path().join(RESTRICTED_FOLDER).join(market.id.to_string());
    assert!(own.is_dir() && !own.join(market.rows().to_string()).exists());
    market.stop().await;
    // No blob of the folder has their bytes.
    let shared = dir.path().join("blobs");
    let test_job = test_job();
    let needle = &test_job.blobs[&test_job.job.rows.digest][32..96];
    for file in files(&shared) {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(needle.len()).any(|window| window == needle), "{}", file.display());
    }
}

fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forged_an_old_and_a_foreign_request_read_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::of_class(dir.path(), DataClass::Buyer);
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    let rows = market.rows();
    let (path, now) = (format!("blobs/{rows}"), market.clock.now());
    let own = market.read_of(BUYER, rows);
    market.get_signed(&path, own).await.unwrap();
    // Signed by another account in the renter's name.
    let forged = SignedRead { signature: market.read_of(STRANGER, rows).signature, ..own };
    assert_eq!(market.get_signed(&path, forged).await, Err(ErrorCode::InvalidSignature));
    // Of another state, and of another order.
    let other = market.read_of(BUYER, Digest([1; 32]));
    assert_eq!(market.get_signed(&path, other).await, Err(ErrorCode::InvalidSignature));
    let of_other = market.signed(BUYER, LeaseRead { order: Digest([1; 32]), ..own.body });
    assert_eq!(market.get_signed(&path, of_other).await, Err(ErrorCode::InvalidSignature));
    // Late, and too far ahead.
    let ahead = now.saturating_add_ms(LEASE_READ_MS_MAX + 1);
    for expires in [Timestamp(now.0 - 1), ahead] {
        let read = market.signed(BUYER, LeaseRead { expires, ..own.body });
        assert_eq!(market.get_signed(&path, read).await, Err(ErrorCode::DeadlinePassed));
    }
    market.stop().await;
}

/// The digest of rows is public in their job: a second order of the same job must not open them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_order_of_the_same_job_reads_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::of_class(dir.path(), DataClass::Buyer);
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    let (own, rows) = (market.id, market.rows());
    for class in [DataClass::Public, DataClass::Buyer] {
        market.order = ComputeOrder {
            nonce: market.order.nonce + 1,
            data_class: class,
            ..market.order.clone()
        };
        market.id = market.order.id();
        market.lock_escrow();
        market.open_order().await.unwrap();
        let missing: Vec<Digest> =
            market.view().await.missing.iter().map(|blob| blob.digest).collect();
        assert_eq!(missing, [rows], "{class:?}: graph and parameters are public");
        let path = format!("orders/{}/blobs/{rows}", market.id);
        assert_eq!(market.send("GET", &path, Vec::new()).await, Err(ErrorCode::NotFound));
        let global = format!("blobs/{rows}");
        assert_eq!(market.send("GET", &global, Vec::new()).await, Err(ErrorCode::NotFound));
    }
    // An upload for the public order begins no bids of another restricted one.
    market.order = ComputeOrder { data_class: DataClass::Public, ..market.order.clone() };
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    assert!(market.view().await.opened.is_some());
    let waiting = ComputeOrder { data_class: DataClass::Buyer, ..market.order.clone() };
    let path = format!("orders/{}", waiting.id());
    let view = market.send("GET", &path, Vec::new()).await.unwrap();
    let view: OrderView = serde_json::from_slice(&view).unwrap();
    assert_eq!((view.opened, view.missing.len()), (None, 1));
    assert_ne!(own, market.id);
    market.stop().await;
}

impl LeaseMarket {
    /// Provider and renter answer until the referee rules: they agree on three steps behind `steps`.
    async fn dispute_from(&self, steps: u64) {
        assert_eq!(self.view().await.phase, Phase::Disputing);
        while self.view().await.phase == Phase::Disputing {
            let lease = self.lease().await;
            let middle = lease.lease().dispute().unwrap().middle().unwrap();
            let own = Digest(self.state_after(steps + u64::from(middle)).digest());
            let lie = if middle <= 3 { own } else { Digest([65; 32]) };
            let (n, state) = match lease.lease().answers() == Some(address(LENDER)) {
                true => (LENDER, own),
                false => (BUYER, lie),
            };
            self.act(n, ComputeAction::Answer(state)).await.unwrap();
        }
    }
}

/// A dispute on private rows: the referee has the rows of one step, and only while it rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_referee_gets_the_rows_of_one_step() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::of_class(dir.path(), DataClass::Private);
    market.deliver_private().await;
    let segment = market.drawn().await;
    let steps = u64::from(segment) * 5;
    market.serve(steps).await;
    let start = Digest(market.state_after(steps).digest());
    market.act(LENDER, ComputeAction::Serve { segment, start }).await.unwrap();
    for (n, may) in [(BUYER, true), (LENDER, true), (ARBITER, false), (AUDITORS[0], false)] {
        let read = market.state_for(n, start).await;
        assert_eq!(read.is_ok(), may, "{n}: {:?}", read.err());
    }
    // The renter has another end: it differs from the provider's at the first step.
    let wrong = Secret { end: Digest([66; 32]), salt: Digest([7; 32]) };
    let sealed = end_commitment(market.id, address(BUYER), segment, wrong);
    market.act(BUYER, ComputeAction::SealEnd { segment, sealed }).await.unwrap();
    market.act(BUYER, ComputeAction::OpenEnd { segment, secret: wrong }).await.unwrap();
    market.serve(20).await;
    let before = segment.checked_sub(1).map_or(Digest::default(), |b| market.secret(b).salt);
    let secret = market.secret(segment);
    market
        .act(LENDER, ComputeAction::OpenLeaf { segment, secret, salt_before: before })
        .await
        .unwrap();
    if segment != 3 {
        let (secret, salt_before) = (market.secret(3), Digest::default());
        let last = ComputeAction::OpenLeaf { segment: 3, secret, salt_before };
        market.act(LENDER, last).await.unwrap();
    }
    assert_eq!(market.disputed_rows_for(ARBITER).await, Err(ErrorCode::DataRestricted));
    market.dispute_from(steps).await;
    let dispute = market.lease().await.lease().dispute().unwrap().clone();
    let (before, agreed) = dispute.agreed;
    assert_eq!(before, 3);
    for n in [BUYER, LENDER, AUDITORS[0], STRANGER] {
        assert_eq!(market.disputed_rows_for(n).await, Err(ErrorCode::DataRestricted), "{n}");
    }
    let batch = market.disputed_rows_for(ARBITER).await.unwrap();
    let batch = from_canonical_bytes(&batch).unwrap();
    assert_eq!(batch.rows(), 4, "one batch of 80 rows");
    assert_eq!(market.rows_for(ARBITER).await, Err(ErrorCode::DataRestricted));
    // The renter alone uploads the state before the step.
    assert_eq!(market.state_for(ARBITER, agreed).await, Err(ErrorCode::NotFound));
    let state = market.state_after(steps + 3);
    assert_eq!(Digest(state.digest()), agreed);
    let bytes = state.to_bytes().unwrap();
    let refused = market.put_state(LENDER, agreed, bytes.clone()).await;
    assert_eq!(refused, Err(ErrorCode::LeaseRefused));
    let other = market.state_after(steps + 4);
    let refused = market.put_state(BUYER, Digest(other.digest()), other.to_bytes().unwrap()).await;
    assert_eq!(refused, Err(ErrorCode::LeaseRefused));
    market.put_state(BUYER, agreed, bytes.clone()).await.unwrap();
    market.put_state(BUYER, agreed, bytes.clone()).await.unwrap();
    assert_eq!(market.state_for(ARBITER, agreed).await, Ok(bytes));
    // The referee rules for the provider: the renter loses its bond, also on the ledger.
    market.act(ARBITER, ComputeAction::Rule(dispute.differ.1)).await.unwrap();
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Settled));
    assert_eq!(market.chain.treasury().unwrap(), market.order.deposits.audit_bond);
    assert_eq!(market.disputed_rows_for(ARBITER).await, Err(ErrorCode::DataRestricted));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_and_a_backup_have_restricted_rows_and_leftovers_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let market = LeaseMarket::of_class(&data, DataClass::Private);
    market.deliver_private().await;
    let (order, id) = (market.order.clone(), market.id);
    let now = market.stop().await;
    // An order that was forgotten before its files were removed.
    let left = data.join(RESTRICTED_FOLDER).join(Digest([5; 32]).to_string());
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("rows"), "rows").unwrap();
    let mut market = LeaseMarket::open_at(&data, now);
    (market.order, market.id) = (order, id);
    assert!(!left.exists());
    assert_eq!(market.readers().await, [BUYER, LENDER]);
    market.stop().await;
    let folders = backup::BackupFolders { data: &data, backup: &copy };
    backup::backup_offline(folders).unwrap();
    let rows = test_job().job.rows.digest;
    let file = |folder: &std::path::Path| {
        folder.join(RESTRICTED_FOLDER).join(id.to_string()).join(rows.to_string())
    };
    let restored = dir.path().join("restored");
    let folders = backup::BackupFolders { data: &restored, backup: &copy };
    backup::restore(folders, |_, _| Ok::<_, backup::BackupError>(())).unwrap();
    assert!(file(&copy).is_file() && file(&restored).is_file());
    assert_eq!(read_leases(&restored).unwrap().unwrap().damaged, []);
    std::fs::write(file(&data), "sour").unwrap();
    assert_eq!(read_leases(&data).unwrap().unwrap().damaged, [(id, rows)]);
}
