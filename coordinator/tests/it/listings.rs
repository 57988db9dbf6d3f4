//! Listings of devices at a coordinator with the embedded ledger: probes, leases that contradict a card, restarts,
//! and hostile requests.

use std::time::Duration;

use florin_compute::*;
use florin_coordinator::leases::read_leases;
use florin_coordinator::{Clock, backup};
use florin_learning::field_products::{FieldProducts, PlainFieldProducts};
use florin_ledger::{Ledger, Terms, listing_task};
use florin_protocol::*;
use florin_work::{ComputedProbe, ProbeDevices, ProbeProgress};

use crate::lease_market::*;
use crate::support::*;

const PROBE_FEE: u128 = 10_000_000_000_000_000;

fn terms(market: &LeaseMarket, nonce: u64) -> ListingTerms {
    let example = ListingTerms::example().unwrap();
    ListingTerms {
        market: Ledger::market(market.chain.as_ref()),
        provider: address(LENDER),
        referee: address(ARBITER),
        nonce,
        stake: fln("2"),
        fee: Amount::from_units(PROBE_FEE),
        // A day, in which all idle listings are probed a few times.
        life_ms: 86_400_000,
        challenge_ms: CHALLENGE_MS,
        ..example
    }
}

fn balance(market: &LeaseMarket, n: u8) -> u128 {
    market.chain.balance(address(n)).unwrap().units()
}

fn balance_of(market: &LeaseMarket, account: Address) -> Amount {
    market.chain.balance(account).unwrap()
}

fn open_task(market: &LeaseMarket, terms: &ListingTerms) {
    let own = Terms::from_listing(terms, terms.market, address(COORDINATOR), market.clock.now());
    market.chain.open_task(&wallet(LENDER), &own.unwrap()).unwrap();
}

async fn open(market: &LeaseMarket, terms: &ListingTerms) -> Result<ListingView, ErrorCode> {
    let request = ListingRequest { terms: terms.clone() };
    let bytes = market.send("POST", "listings", serde_json::to_vec(&request).unwrap()).await?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

/// Opens a listing with its deposits.
async fn open_funded(market: &LeaseMarket, terms: &ListingTerms) -> ListingView {
    open_task(market, terms);
    market.chain.bond(&wallet(LENDER), listing_task(terms.id()), terms.stake).unwrap();
    open(market, terms).await.unwrap()
}

async fn view(market: &LeaseMarket, id: Digest) -> ListingView {
    let bytes = market.send("GET", &format!("listings/{id}"), Vec::new()).await.unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

async fn act(
    market: &LeaseMarket,
    listing: Digest,
    message: SignedMessage,
) -> Result<ListingView, ErrorCode> {
    let body = ListingAction { listing, by: address(LENDER), message };
    let signed = body.sign(market.order.market, &wallet(LENDER)).unwrap();
    let path = format!("listings/{listing}/actions");
    let bytes = market.send("POST", &path, serde_json::to_vec(&signed).unwrap()).await?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

async fn show(
    market: &LeaseMarket,
    id: Digest,
    links: &ShownLinks,
) -> Result<ListingView, ErrorCode> {
    show_bytes(market, LENDER, id, links.to_bytes()).await
}

async fn show_bytes(
    market: &LeaseMarket,
    n: u8,
    id: Digest,
    bytes: Vec<u8>,
) -> Result<ListingView, ErrorCode> {
    let root = view(market, id).await.listing.probe().unwrap().root.unwrap_or_default();
    let upload = LinksUpload { listing: id, by: address(n), root };
    let signature = upload.sign(market.order.market, &wallet(n)).unwrap();
    let path = format!("listings/{id}/links");
    let header = ("links-signature", signature.to_string());
    let bytes = market.send_with("PUT", &path, header, bytes).await?;
    Ok(serde_json::from_slice(&bytes).unwrap())
}

fn compute(view: &ListingView) -> ComputedProbe {
    let devices: ProbeDevices =
        (0..2).map(|_| Box::new(PlainFieldProducts::default()) as Box<dyn FieldProducts>).collect();
    let (seed, shape) = (view.listing.probe().unwrap().seed, view.listing.terms().probe);
    let mut devices = devices;
    ComputedProbe::compute(seed, shape, &mut devices, &ProbeProgress::default()).unwrap()
}

/// Computes and shows the newest probe of a listing.
async fn prove(market: &LeaseMarket, view: &ListingView) -> ListingView {
    let (id, seed) = (view.listing.id(), view.listing.probe().unwrap().seed);
    let computed = compute(view);
    let message = SignedMessage::Computed { seed, root: computed.root() };
    let drawn = act(market, id, message).await.unwrap();
    // A lost reply changes nothing.
    assert_eq!(act(market, id, message).await.unwrap(), drawn);
    let secret = drawn.listing.probe().unwrap().secret.unwrap();
    let links = computed.show(secret, &mut PlainFieldProducts::default()).unwrap();
    let listed = show(market, id, &links).await.unwrap();
    assert_eq!(show(market, id, &links).await.unwrap(), listed);
    listed
}

async fn settled(market: &LeaseMarket, id: Digest) -> ListingView {
    for _ in 0..600 {
        let view = view(market, id).await;
        if view.money.is_final() {
            return view;
        }
        market.wait(CHALLENGE_MS / 4);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("not settled: {:?}", view(market, id).await);
}

/// The listing from its public record.
async fn recorded(market: &LeaseMarket, view: &ListingView) -> Listing {
    let (id, opened) = (view.listing.id(), view.opened);
    let terms = view.listing.terms().clone();
    let opening = ListingOpening { terms, coordinator: address(COORDINATOR), opened };
    let mut listing = Listing::open(&opening).unwrap();
    let path = format!("listings/{id}/records?after=0");
    let bytes = market.send("GET", &path, Vec::new()).await.unwrap();
    for record in serde_json::from_slice::<Vec<ListingRecord>>(&bytes).unwrap() {
        listing.apply(&record).unwrap();
    }
    listing
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_is_proven_and_settled() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let policy = market.send("GET", "listings/policy", Vec::new()).await.unwrap();
    let policy: ListingPolicy = serde_json::from_slice(&policy).unwrap();
    assert_eq!((policy.stake_min, policy.fee.units()), (fln("1"), PROBE_FEE));
    assert_eq!((policy.life_ms_min, policy.challenge_ms_max), (7_200_000, 86_400_000));
    assert_eq!((policy.probe_ms_min, policy.referees), (30, vec![address(ARBITER)]));
    let terms = terms(&market, 1);
    let id = terms.id();
    assert_eq!(open(&market, &terms).await, Err(ErrorCode::NotFunded));
    // A coordinator without tokens refuses it before the provider locks any.
    let own = address(COORDINATOR);
    market.chain.transfer(&wallet(COORDINATOR), address(9), balance_of(&market, own)).unwrap();
    assert_eq!(open(&market, &terms).await, Err(ErrorCode::LimitReached));
    market.chain.transfer(&wallet(9), own, fln("1000")).unwrap();
    open_task(&market, &terms);
    assert_eq!(open(&market, &terms).await, Err(ErrorCode::BondTooSmall));
    market.chain.bond(&wallet(LENDER), listing_task(id), terms.stake).unwrap();
    let probed = open(&market, &terms).await.unwrap();
    assert_eq!(probed.listing.phase().0, ListingPhase::Computing);
    assert_eq!(open(&market, &terms).await.unwrap(), probed);
    let listed = prove(&market, &probed).await;
    assert_eq!(listed.listing.phase().0, ListingPhase::Listed);
    assert_eq!(recorded(&market, &listed).await, listed.listing);
    let all = market.send("GET", "listings", Vec::new()).await.unwrap();
    assert_eq!(serde_json::from_slice::<Vec<ListingView>>(&all).unwrap(), [listed]);
    // About once an hour all idle listings are probed again.
    let mut again = view(&market, id).await;
    for _ in 0..200 {
        market.wait(60_000);
        again = view(&market, id).await;
        if again.listing.phase().0 == ListingPhase::Computing {
            break;
        }
    }
    assert_eq!(again.listing.probes(), (2, 1));
    assert_ne!(again.listing.probe().unwrap().seed, probed.listing.probe().unwrap().seed);
    prove(&market, &again).await;
    act(&market, id, SignedMessage::Withdraw).await.unwrap();
    let over = settled(&market, id).await;
    assert_eq!(over.listing.outcome(), Some(ListingOutcome::Withdrawn));
    assert_eq!(over.money, OrderMoney::Settled);
    // The coordinator has claimed its own pay.
    assert_eq!(balance(&market, COORDINATOR), fln("1000").units() + 2 * PROBE_FEE);
    assert_eq!(balance(&market, LENDER) + 2 * PROBE_FEE, fln("998").units());
    let stake = market.chain.bond_of(listing_task(id), address(LENDER)).unwrap();
    assert_eq!(stake.amount, fln("2"));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_that_the_operator_does_not_accept_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let code = async |change: fn(&mut ListingTerms)| {
        let mut other = terms(&market, 1);
        change(&mut other);
        open(&market, &other).await.map(drop)
    };
    let referee = code(|terms| terms.referee = address(9)).await;
    assert_eq!(referee, Err(ErrorCode::ArbiterNotAccepted));
    let changes: [fn(&mut ListingTerms); 8] = [
        |terms| terms.life_ms = 7_199_999,
        |terms| terms.challenge_ms = 86_400_001,
        |terms| terms.probes_max = 65,
        |terms| terms.stake = fln("1.999"),
        |terms| terms.fee = Amount::ZERO,
        |terms| terms.card.links = StepTimes::new(vec![900, 900]).unwrap(),
        |terms| terms.probe.devices = 0,
        |terms| terms.probes_max = 0,
    ];
    for change in changes {
        assert_eq!(code(change).await, Err(ErrorCode::InvalidOrder));
    }
    let elsewhere = code(|terms| terms.market.chain = ChainId(2)).await;
    assert_eq!(elsewhere, Err(ErrorCode::WrongMarket));
    // Its task names another stake.
    let own = terms(&market, 1);
    open_task(&market, &own);
    let dearer = ListingTerms { stake: fln("3"), ..own };
    assert_eq!(open(&market, &dearer).await, Err(ErrorCode::NotFunded));
    for path in ["listings/0", "listings/policies"] {
        assert!(market.send("GET", path, Vec::new()).await.is_err());
    }
    let unknown = format!("listings/{}", Digest([1; 32]));
    assert_eq!(market.send("GET", &unknown, Vec::new()).await, Err(ErrorCode::NotFound));
    // A provider has four listings at a time.
    for nonce in 10..14 {
        open_funded(&market, &terms(&market, nonce)).await;
    }
    let fifth = terms(&market, 14);
    open_task(&market, &fifth);
    market.chain.bond(&wallet(LENDER), listing_task(fifth.id()), fifth.stake).unwrap();
    assert_eq!(open(&market, &fifth).await, Err(ErrorCode::LimitReached));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_that_is_late_or_wrong_lists_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let market = LeaseMarket::open(dir.path());
    let terms = terms(&market, 1);
    let probed = open_funded(&market, &terms).await;
    let id = terms.id();
    let computed = compute(&probed);
    // Another account's message, a message to another listing, and links before the root.
    let seed = probed.listing.probe().unwrap().seed;
    let message = SignedMessage::Computed { seed, root: computed.root() };
    let body = ListingAction { listing: id, by: address(2), message };
    let signed = body.sign(market.order.market, &wallet(2)).unwrap();
    let path = format!("listings/{id}/actions");
    let sent = market.send("POST", &path, serde_json::to_vec(&signed).unwrap()).await;
    assert_eq!(sent, Err(ErrorCode::LeaseRefused));
    let forged =
        SignedListingAction { body: ListingAction { by: address(LENDER), ..body }, ..signed };
    let sent = market.send("POST", &path, serde_json::to_vec(&forged).unwrap()).await;
    assert_eq!(sent, Err(ErrorCode::InvalidSignature));
    let elsewhere = format!("listings/{}/actions", Digest([1; 32]));
    let sent = market.send("POST", &elsewhere, serde_json::to_vec(&signed).unwrap()).await;
    assert_eq!(sent, Err(ErrorCode::Malformed));
    let mut products = PlainFieldProducts::default();
    let early = computed.show(Digest([1; 32]), &mut products).unwrap();
    assert_eq!(show(&market, id, &early).await, Err(ErrorCode::LeaseRefused));
    // Links of another draw, and other bytes, change nothing; the right ones count after them.
    act(&market, id, message).await.unwrap();
    assert_eq!(show(&market, id, &early).await, Err(ErrorCode::LeaseRefused));
    let sent = show_bytes(&market, LENDER, id, vec![1; 100]).await;
    assert_eq!(sent, Err(ErrorCode::LeaseRefused));
    let sent = show_bytes(&market, LENDER, id, vec![0; SHOWN_BYTES_MAX + 1]).await;
    assert_eq!(sent, Err(ErrorCode::TooLarge));
    // Another account's upload is not read.
    let sent = show_bytes(&market, 2, id, vec![1; 100]).await;
    assert_eq!(sent, Err(ErrorCode::InvalidSignature));
    let path = format!("listings/{id}/links");
    assert_eq!(market.send("PUT", &path, vec![1; 100]).await, Err(ErrorCode::Malformed));
    assert_eq!(view(&market, id).await.listing.phase().0, ListingPhase::Showing);
    // They never come: the devices are not listed, and the fee is spent.
    market.wait(SHOW_WINDOW_MS + 1);
    let over = settled(&market, id).await;
    assert_eq!(over.listing.outcome(), Some(ListingOutcome::Unproven));
    assert_eq!(over.listing.probes(), (1, 0));
    // A root that arrives after the deadline.
    let late = self::terms(&market, 2);
    let probed = open_funded(&market, &late).await;
    let ms = late.probe_ms();
    market.clock.set(market.clock.now().saturating_add_ms(ms + 1));
    let computed = compute(&probed);
    let seed = probed.listing.probe().unwrap().seed;
    let message = SignedMessage::Computed { seed, root: computed.root() };
    assert_eq!(act(&market, late.id(), message).await, Err(ErrorCode::LeaseRefused));
    market.host.leases().apply_due();
    let over = view(&market, late.id()).await;
    assert_eq!(over.listing.outcome(), Some(ListingOutcome::Unproven));
    market.stop().await;
}

/// Plays an order whose provider takes 1.6 times the time of its bid, and then serves no start.
async fn slow_lease(market: &mut LeaseMarket, nonce: u64) {
    market.order.nonce = nonce;
    market.order.listed = true;
    market.id = market.order.id();
    market.award().await;
    market.deposit(LENDER, market.order.deposits.stake);
    market.act(LENDER, ComputeAction::Fund).await.unwrap();
    for segment in 0..4 {
        // Five steps of 1 ms, and the window of a segment.
        market.clock.set(market.clock.now().saturating_add_ms(500 + 8));
        let leaf = segment_leaf(market.id, address(LENDER), segment, market.secret(segment));
        market.act(LENDER, ComputeAction::Deliver { segment, leaf }).await.unwrap();
    }
    market.drawn().await;
    market.wait(market.order.windows.audit + 1);
    market.host.leases().apply_due();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_slow_leases_take_the_stake_of_a_listing() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    // Without a listing no bid counts.
    market.order.listed = true;
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    market.deposit(LENDER, market.order.deposits.bid_bond);
    let seal = ComputeAction::SealBid(Digest([1; 32]));
    assert_eq!(market.act(LENDER, seal).await, Err(ErrorCode::NotListed));
    let terms = terms(&market, 1);
    let id = terms.id();
    let probed = open_funded(&market, &terms).await;
    prove(&market, &probed).await;
    slow_lease(&mut market, 2).await;
    let after_one = view(&market, id).await;
    assert_eq!(after_one.listing.drift().0, 1);
    assert_eq!(after_one.listing.drift().1.parts(), DRIFT_STEP_MAX);
    slow_lease(&mut market, 3).await;
    // A restart measures no lease a second time.
    let now = market.stop().await;
    let mut market = LeaseMarket::open_at(dir.path(), now);
    market.host.leases().apply_due();
    let after_two = view(&market, id).await;
    assert_eq!((after_two.listing.drift().0, after_two.listing.outcome()), (2, None));
    slow_lease(&mut market, 4).await;
    let order = market.id;
    let over = settled(&market, id).await;
    assert_eq!(over.listing.outcome(), Some(ListingOutcome::Contradicted { order }));
    assert_eq!(recorded(&market, &over).await, over.listing);
    let stake = market.chain.bond_of(listing_task(id), address(LENDER)).unwrap();
    assert_eq!(stake.amount, Amount::ZERO);
    // Three stakes of leases that served no start, and the one of the listing.
    let lost = 3 * market.order.deposits.stake.units() + fln("2").units();
    assert_eq!(market.chain.treasury().unwrap().units(), lost);
    // The next bid is refused.
    market.order.nonce = 5;
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.deposit(LENDER, market.order.deposits.bid_bond);
    let seal = ComputeAction::SealBid(Digest([1; 32]));
    assert_eq!(market.act(LENDER, seal).await, Err(ErrorCode::NotListed));
    market.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarts_and_backups_have_the_listings() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let market = LeaseMarket::open(&data);
    let terms = terms(&market, 1);
    let id = terms.id();
    let first = open_funded(&market, &terms).await;
    let now = market.stop().await;
    assert_eq!(read_leases(&data).unwrap().unwrap().listings, 1);
    // The outage counts for no probe: another one begins.
    let market = LeaseMarket::open_at(&data, now.saturating_add_ms(100_000));
    market.host.leases().apply_due();
    let probed = view(&market, id).await;
    assert_eq!(
        (probed.listing.phase().0, probed.listing.probes()),
        (ListingPhase::Computing, (1, 0))
    );
    assert_ne!(probed.listing.probe().unwrap().seed, first.listing.probe().unwrap().seed);
    let listed = prove(&market, &probed).await;
    let (copy, restored) = (dir.path().join("copy"), dir.path().join("restored"));
    let moment = market.host.checkpoint().await.unwrap();
    let folders = backup::BackupFolders { data: &data, backup: &copy };
    backup::copy(folders, moment).unwrap();
    let now = market.stop().await;
    let folders = backup::BackupFolders { data: &restored, backup: &copy };
    backup::restore(folders, |_, _| Ok::<_, backup::BackupError>(())).unwrap();
    let market = LeaseMarket::open_at(&restored, now);
    let again = view(&market, id).await;
    // The start of the coordinator is one more record.
    assert_eq!(again.listing.length(), listed.listing.length() + 1);
    assert_eq!(again.listing.phase(), listed.listing.phase());
    market.stop().await;
}

/// A provider that lists during the bids of an order, and leaves after its own bid, answers for the lease all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_provider_that_leaves_after_its_bid_is_still_tested() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    market.order.listed = true;
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    market.clock.set(market.clock.now().saturating_add_ms(5));
    let own = terms(&market, 1);
    let probed = open_funded(&market, &own).await;
    let deposits = market.order.deposits.clone();
    market.deposit(LENDER, deposits.bid_bond);
    let (salt, bid) = (Digest([9; 32]), market.bid());
    let sealed = bid_commitment(market.id, address(LENDER), &bid, salt);
    let seal = ComputeAction::SealBid(sealed);
    // Before its probe is proven it has no devices.
    assert_eq!(market.act(LENDER, seal.clone()).await, Err(ErrorCode::NotListed));
    prove(&market, &probed).await;
    market.act(LENDER, seal).await.unwrap();
    for auditor in AUDITORS {
        market.deposit(auditor, deposits.audit_bond);
        market.act(auditor, ComputeAction::JoinAudit).await.unwrap();
    }
    act(&market, own.id(), SignedMessage::Withdraw).await.unwrap();
    market.wait(market.order.windows.bid + 1);
    market.act(LENDER, ComputeAction::OpenBid { bid, salt }).await.unwrap();
    market.deposit(LENDER, market.order.deposits.stake);
    market.act(LENDER, ComputeAction::Fund).await.unwrap();
    // The settlement of the listing waits for the lease.
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert_eq!(view(&market, own.id()).await.money, OrderMoney::Locked);
    for segment in 0..4 {
        market.clock.set(market.clock.now().saturating_add_ms(500 + 8));
        let leaf = segment_leaf(market.id, address(LENDER), segment, market.secret(segment));
        market.act(LENDER, ComputeAction::Deliver { segment, leaf }).await.unwrap();
    }
    market.drawn().await;
    market.wait(market.order.windows.audit + 1);
    market.host.leases().apply_due();
    let over = settled(&market, own.id()).await;
    assert_eq!(over.listing.drift().0, 1);
    assert_eq!(over.listing.outcome(), Some(ListingOutcome::Withdrawn));
    market.stop().await;
}

/// A bid of more devices than are proven is not opened: another listing of the account does not count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unproven_listing_covers_no_bid() {
    let dir = tempfile::tempdir().unwrap();
    let mut market = LeaseMarket::open(dir.path());
    let own = terms(&market, 1);
    let probed = open_funded(&market, &own).await;
    prove(&market, &probed).await;
    let large = ListingTerms {
        probe: ProbeShape { devices: 3, ..own.probe },
        card: Card { links: StepTimes::new(vec![1_100; 3]).unwrap(), ..own.card.clone() },
        stake: fln("3"),
        ..terms(&market, 2)
    };
    open_funded(&market, &large).await;
    market.order.listed = true;
    market.id = market.order.id();
    market.lock_escrow();
    market.open_order().await.unwrap();
    market.put_blobs().await;
    let deposits = market.order.deposits.clone();
    market.deposit(LENDER, deposits.bid_bond);
    let salt = Digest([9; 32]);
    let bid = Bid { devices: 3, times: StepTimes::new(vec![1_000; 3]).unwrap(), ..market.bid() };
    let sealed = bid_commitment(market.id, address(LENDER), &bid, salt);
    market.act(LENDER, ComputeAction::SealBid(sealed)).await.unwrap();
    for auditor in AUDITORS {
        market.deposit(auditor, deposits.audit_bond);
        market.act(auditor, ComputeAction::JoinAudit).await.unwrap();
    }
    market.wait(market.order.windows.bid + 1);
    let opened = market.act(LENDER, ComputeAction::OpenBid { bid, salt }).await;
    assert_eq!(opened, Err(ErrorCode::NotListed));
    market.stop().await;
}
