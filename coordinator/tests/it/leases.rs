//! Leases of compute at a coordinator with the embedded ledger: from the order to the settlement, also with restarts,
//! missing bytes and hostile requests.

use std::time::Duration;

use axum::http::Request;
use florin_compute::*;
use florin_coordinator::leases::{LEASES_FILE, read_leases};
use florin_coordinator::{Clock, backup};
use florin_ledger::{Ledger, lease_task};
use florin_protocol::*;
use florin_work::LeasedTraining;
use tower::ServiceExt;

use crate::lease_market::*;
use crate::support::*;

fn balance(market: &LeaseMarket, n: u8) -> u128 {
    market.chain.balance(address(n)).unwrap().units()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_runs_from_the_order_to_its_settlement() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let before = balance(&market, BUYER);
    market.deliver_all().await;
    market.audit().await;
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Settled));
    let lease = market.lease().await;
    let result = lease.lease().result().unwrap();
    let path = format!("orders/{}/states/{result}", market.id);
    let bytes = market.send("GET", &path, Vec::new()).await.unwrap();
    let blobs = &market.job.blobs;
    let read = |digest, _| Ok::<_, Rejection>(blobs[&digest].clone());
    let training = LeasedTraining::load(&market.order, &market.job.job, read).unwrap();
    assert_eq!(training.state(result, &bytes).unwrap().step(), 20);
    // Every balance is that of the lease's books.
    for claim in florin_ledger::lease_claims(lease.lease()) {
        market.chain.claim(&wallet(BUYER), &claim).unwrap();
    }
    let books = lease.lease().books();
    let owed = |n: u8| books.balance(ComputeAccount::Owed(address(n))).units();
    assert!(owed(LENDER) > 0 && owed(2) == 700 && owed(3) == 700);
    let spent = owed(LENDER) + owed(2) + owed(3);
    assert_eq!(balance(&market, BUYER), before - spent);
    assert_eq!(balance(&market, LENDER) + 202_000, fln("1000").units() + owed(LENDER));
    assert_eq!(balance(&market, COORDINATOR), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_changes_nothing_and_defaults_apply_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.deliver_all().await;
    let drawn = market.drawn().await;
    let (view, lease) = (market.view().await, market.lease().await);
    let now = market.stop().await;
    // A day passes. All that was left of the phase at its last record is left again.
    let later = now.saturating_add_ms(86_400_000);
    let market = LeaseMarket::open_at(dir.path(), later);
    market.host.leases().apply_due();
    let again = market.view().await;
    assert_eq!((again.phase, again.records), (view.phase, view.records + 1));
    let left = view.deadline.ms_since(lease.last());
    assert_eq!(again.deadline, later.saturating_add_ms(left));
    assert_eq!(market.lease().await.lease().leaves(), lease.lease().leaves());
    assert_eq!(market.drawn().await, drawn);
    // The provider serves no start: it loses its stake, and the renter has its escrow.
    market.wait(market.order.windows.audit + 1);
    let view = market.settled().await;
    assert_eq!(view.outcome, Some(LeaseOutcome::Slashed { segment: drawn }));
    let task = lease_task(&market.order);
    assert_eq!(market.chain.treasury().unwrap(), market.order.deposits.stake);
    let bond = market.chain.bond_of(task, address(LENDER)).unwrap();
    assert_eq!(bond.amount, market.order.deposits.bid_bond);
    assert_eq!(balance(&market, BUYER), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_actions_without_money_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    assert_eq!(market.open_order().await, Err(ErrorCode::NotFunded));
    market.lock_escrow();
    // A referee could slash the coordinator's bond: the operator accepts it first.
    let referee = std::mem::replace(&mut market.order.referee, address(9));
    assert_eq!(market.open_order().await, Err(ErrorCode::ArbiterNotAccepted));
    market.order.referee = referee;
    // The coordinator covers the pay.
    let price = std::mem::replace(&mut market.order.price_max, fln("1001"));
    let deposits = market.order.deposits.clone();
    market.order.deposits = Deposits {
        bid_bond: fln("101"),
        stake: fln("1000000"),
        default_fine: fln("101"),
        ..deposits.clone()
    };
    assert_eq!(market.open_order().await, Err(ErrorCode::LimitReached));
    (market.order.price_max, market.order.deposits) = (price, deposits);
    // Another order has another task.
    market.order.nonce += 1;
    assert_eq!(market.open_order().await, Err(ErrorCode::NotFunded));
    market.order.nonce -= 1;
    let segments = market.order.segments;
    market.order.segments = 5;
    assert_eq!(market.open_order().await, Err(ErrorCode::InvalidOrder));
    market.order.segments = segments;
    market.open_order().await.unwrap();
    market.open_order().await.unwrap();
    let seal = |nonce, digest| {
        let (order, by) = (market.id, address(LENDER));
        let action = ComputeAction::SealBid(Digest([digest; 32]));
        LeaseAction { order, by, nonce, action }
    };
    let signed = seal(0, 1).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&signed).await, Err(ErrorCode::TooEarly));
    market.put_blobs().await;
    assert_eq!(market.act_as_signed(&signed).await, Err(ErrorCode::BondTooSmall));
    market.deposit(LENDER, market.order.deposits.bid_bond);
    let forged = SignedLeaseAction { body: seal(0, 2), signature: signed.signature };
    assert_eq!(market.act_as_signed(&forged).await, Err(ErrorCode::InvalidSignature));
    let later = seal(1, 1).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&later).await, Err(ErrorCode::LeaseRefused));
    market.act_as_signed(&signed).await.unwrap();
    // The same action again is the same record; another one with its number is none.
    market.act_as_signed(&signed).await.unwrap();
    let other = seal(0, 3).sign(market.order.market, &wallet(LENDER)).unwrap();
    assert_eq!(market.act_as_signed(&other).await, Err(ErrorCode::LeaseRefused));
    assert_eq!(market.view().await.records, 1);
    for action in [ComputeAction::Draw(Digest([1; 32])), ComputeAction::Expire] {
        assert_eq!(market.act(2, action).await, Err(ErrorCode::LeaseRefused));
    }
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_of_other_accounts_steps_and_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.deliver_all().await;
    let segment = market.drawn().await;
    let steps = u64::from(segment) * 5;
    let start = market.state_after(steps);
    let (digest, bytes) = (Digest(start.digest()), start.to_bytes().unwrap());
    let serve = |state| ComputeAction::Serve { segment, start: state };
    assert_eq!(market.act(LENDER, serve(digest)).await, Err(ErrorCode::LeaseRefused));
    let taken = market.put_state(2, digest, bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    let taken = market.put_state(LENDER, Digest([1; 32]), bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::Malformed));
    let taken = market.put_state(LENDER, digest, vec![0; 100]).await;
    assert_eq!(taken, Err(ErrorCode::Malformed));
    let taken = market.put_state(LENDER, digest, vec![0; 10_000_000]).await;
    assert_eq!(taken, Err(ErrorCode::TooLarge));
    // The lease needs the states before its drawn segments and behind its last one: no other takes a place.
    let other = market.state_after(steps + 1);
    let taken = market.put_state(LENDER, Digest(other.digest()), other.to_bytes().unwrap()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.serve(20).await;
    let last = Digest(market.state_after(20).digest());
    assert_eq!(market.act(LENDER, serve(last)).await, Err(ErrorCode::LeaseRefused));
    market.serve(steps).await;
    market.act(LENDER, serve(digest)).await.unwrap();
    market.stop().await;
}

/// Places that a winner takes before it has a stake would be missing for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn states_before_the_delivery_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.award().await;
    let state = market.state_after(5);
    let (digest, bytes) = (Digest(state.digest()), state.to_bytes().unwrap());
    let taken = market.put_state(LENDER, digest, bytes.clone()).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.deposit(LENDER, market.order.deposits.stake);
    market.act(LENDER, ComputeAction::Fund).await.unwrap();
    let taken = market.put_state(LENDER, digest, bytes).await;
    assert_eq!(taken, Err(ErrorCode::LeaseRefused));
    market.stop().await;
}

/// A renter fills its own places only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renter_has_a_limit_of_open_orders() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    for nonce in 100..164 {
        market.order.nonce = nonce;
        market.lock_escrow();
        market.open_order().await.unwrap();
    }
    market.order.nonce = 164;
    market.lock_escrow();
    assert_eq!(market.open_order().await, Err(ErrorCode::LimitReached));
    // Orders that are over count until their escrows have returned.
    market.wait(600_001);
    assert_eq!(market.open_order().await, Err(ErrorCode::LimitReached));
    let mut taken = market.open_order().await;
    for _ in 0..600 {
        if taken.is_ok() {
            break;
        }
        market.wait(CHALLENGE_MS / 4);
        tokio::time::sleep(Duration::from_millis(20)).await;
        taken = market.open_order().await;
    }
    taken.unwrap();
    market.stop().await;
}

/// The order at a price that the coordinator's wallet covers once.
fn order_for(market: &mut LeaseMarket, nonce: u64, price: &str, bond: &str) {
    let deposits = market.order.deposits.clone();
    let deposits = Deposits {
        bid_bond: fln(bond),
        stake: fln("1000000"),
        default_fine: fln(bond),
        ..deposits
    };
    market.order = ComputeOrder { nonce, price_max: fln(price), deposits, ..market.order.clone() };
    market.id = market.order.id();
}

/// A renter whose orders the coordinator covers only one by one would have the results of all, and the escrows back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_coordinator_covers_all_orders_that_are_not_settled_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    market.chain.transfer(&wallet(COORDINATOR), address(9), fln("400")).unwrap();
    order_for(&mut market, 1, "400", "41");
    market.lock_escrow();
    market.open_order().await.unwrap();
    let first = market.id;
    order_for(&mut market, 2, "300", "31");
    market.lock_escrow();
    assert_eq!(market.open_order().await, Err(ErrorCode::LimitReached));
    order_for(&mut market, 3, "150", "16");
    market.lock_escrow();
    market.open_order().await.unwrap();
    // The first one ends without pay, and needs no cover any more.
    let second = std::mem::replace(&mut market.id, first);
    market.wait(600_001);
    market.settled().await;
    market.id = second;
    order_for(&mut market, 2, "300", "31");
    market.open_order().await.unwrap();
    market.stop().await;
}

/// Bytes that do not arrive.
fn endless_body() -> axum::body::Body {
    axum::body::Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>())
}

/// Any account may send the blobs of an order, and takes no place of a provider that must upload a state in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_uploads_of_strangers_delay_no_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    market.deliver_all().await;
    let (id, order, job) = (market.id, market.order.clone(), market.job.job.clone());
    let rows = Blob { digest: Digest([7; 32]), bytes: 1 << 29 };
    market.job.job = ComputeJob { rows, ..job.clone() };
    market.order = ComputeOrder { job: market.job.job.digest(), nonce: 77, ..order.clone() };
    market.lock_escrow();
    market.open_order().await.unwrap();
    let path = format!("/v1/orders/{}/blobs/{}", market.order.id(), rows.digest);
    // More than there are places.
    let upload = || {
        let request = Request::builder().method("PUT").uri(&path).body(endless_body()).unwrap();
        tokio::spawn(market.router.clone().oneshot(request))
    };
    let mut slow: Vec<_> = (0..80).map(|_| upload()).collect();
    let full = market.order.id();
    for _ in 0..600 {
        let path = format!("orders/{full}/blobs/{}", rows.digest);
        if market.send("PUT", &path, vec![1]).await == Err(ErrorCode::LimitReached) {
            break;
        }
        // A slow one may have been refused while this one had the last place.
        slow.push(upload());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let path = format!("orders/{full}/blobs/{}", rows.digest);
    assert_eq!(market.send("PUT", &path, vec![1]).await, Err(ErrorCode::LimitReached));
    (market.id, market.order, market.job.job) = (id, order, job);
    market.audit().await;
    slow.iter().for_each(tokio::task::JoinHandle::abort);
    market.stop().await;
}

/// The limit of a job's bytes is that of the real blobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_that_names_another_length_of_a_blob_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    let job = market.job.job.clone();
    market.job.job = ComputeJob { rows: Blob { bytes: 1, ..job.rows }, ..job };
    market.order = ComputeOrder {
        job: market.job.job.digest(),
        nonce: market.order.nonce + 1,
        ..market.order.clone()
    };
    market.id = market.order.id();
    market.lock_escrow();
    assert_eq!(market.open_order().await, Err(ErrorCode::InvalidOrder));
    let refused = market.view().await.refused.unwrap();
    assert!(refused.contains("bytes and not 1"), "{refused}");
    market.stop().await;
}

/// An order names a digest before any account has shown that it has the bytes: those of a task's holdout stay
/// secret.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_reads_no_blob_that_was_not_uploaded_for_orders() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let (digest, bytes) = market.job.blobs.iter().next().unwrap();
    market.host.blobs().put(bytes).unwrap();
    market.lock_escrow();
    market.open_order().await.unwrap();
    let path = format!("orders/{}/blobs/{digest}", market.id);
    assert_eq!(market.send("GET", &path, Vec::new()).await, Err(ErrorCode::NotFound));
    assert_eq!(market.view().await.missing.len(), market.job.blobs.len());
    let wrong = market.send("PUT", &path, vec![1; bytes.len()]).await;
    assert_eq!(wrong, Err(ErrorCode::Malformed));
    let other = format!("orders/{}/blobs/{}", market.id, Digest([1; 32]));
    assert_eq!(market.send("PUT", &other, vec![1]).await, Err(ErrorCode::NotFound));
    market.send("PUT", &path, bytes.clone()).await.unwrap();
    assert_eq!(market.send("GET", &path, Vec::new()).await.as_ref(), Ok(bytes));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_whose_blobs_do_not_arrive_returns_its_escrow() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.wait(600_001);
    let view = market.settled().await;
    assert!(view.refused.unwrap().contains("did not arrive"));
    assert_eq!(balance(&market, BUYER), fln("1000").units());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_backup_settles_what_its_ledger_has_not() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy, restored) =
        (dir.path().join("data"), dir.path().join("copy"), dir.path().join("restored"));
    let market = LeaseMarket::open(&data);
    market.deliver_all().await;
    market.audit().await;
    // The ledger of the backup is from before the settlement, and the records from after it.
    let moment = market.host.checkpoint().await.unwrap();
    let now = market.clock.now();
    let market_blobs = market.job.blobs.len();
    market.settled().await;
    let folders = backup::BackupFolders { data: &data, backup: &copy };
    backup::copy(folders, moment).unwrap();
    market.stop().await;
    let read = read_leases(&copy).unwrap().unwrap();
    assert_eq!((read.orders, read.blobs.len()), (1, market_blobs + 2));
    let folders = backup::BackupFolders { data: &restored, backup: &copy };
    backup::restore(folders, |_, _| Ok::<_, backup::BackupError>(())).unwrap();
    let market = LeaseMarket::open_at(&restored, now);
    assert_eq!(market.view().await.outcome, Some(LeaseOutcome::Settled));
    let task = lease_task(&market.order);
    for _ in 0..600 {
        if market.chain.task(task).unwrap().unwrap().closed {
            break;
        }
        market.wait(CHALLENGE_MS / 4);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let paid = market.chain.task(task).unwrap().unwrap().infrastructure_paid;
    let books = market.lease().await.lease().books().clone();
    let owed = |n: u8| books.balance(ComputeAccount::Owed(address(n)));
    assert_eq!(paid, Amount::total([owed(LENDER), owed(2), owed(3)]).unwrap());
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_records_are_found_before_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    assert_eq!(read_leases(dir.path()).unwrap(), None);
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.stop().await;
    let read = read_leases(dir.path()).unwrap().unwrap();
    assert_eq!((read.orders, read.records), (1, 0));
    let file = dir.path().join(LEASES_FILE);
    std::fs::write(&file, b"no database").unwrap();
    let error = read_leases(dir.path()).unwrap_err();
    assert!(error.to_string().ends_with("[LEASES_UNUSABLE]"), "{error}");
    let found = florin_coordinator::check::check(dir.path(), None, None).unwrap();
    assert!(found.parts.iter().any(|part| part.code == "LEASES_UNUSABLE"));
    assert_eq!(std::fs::read(&file).unwrap(), b"no database", "a check changes nothing");
}
