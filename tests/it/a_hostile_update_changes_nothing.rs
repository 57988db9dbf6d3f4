//! Every kind of hostile update is rejected with its own code, and the round has bit for bit the
//! same model, scores and payouts as a round without it.

use florin_participant::ClientError;
use florin_protocol::{
    ChainId, Digest, MarketId, MissingReason, NodeKey, NodeSignature, Offer, Registration, Report,
    Role, RoundNumber, RoundScope, Signed, TaskId, TaskPhase, UpdateHeader, WalletSigner,
};

use crate::support::process::Process;
use crate::support::sender::{Sender, framed};
use crate::support::{On, TestMarket, TestPlan, on_both};

on_both!(a_hostile_update_changes_nothing);

/// Hostile accounts: all join and commit, and each uploads a different invalid update.
const HOSTILE: [&str; 8] = ["h0", "h1", "h2", "h3", "h4", "h5", "h6", "h7"];

/// Corrupts valid update bytes.
type Spoil = fn(&mut Vec<u8>);

/// The corruption and the expected code of each hostile account. The header commits to the bytes
/// that are sent.
const SPOILED: [(&str, &str, Spoil); 7] = [
    ("a NaN", "UPDATE_NOT_FINITE", |bytes| last_float(bytes, f32::NAN)),
    ("an infinity", "UPDATE_NOT_FINITE", |bytes| last_float(bytes, f32::INFINITY)),
    ("a norm beyond the limit", "UPDATE_NORM_TOO_LARGE", |bytes| last_float(bytes, 1e6)),
    ("a wrong name", "UPDATE_WRONG_SCHEMA", |bytes| replace(bytes, b"layer0.bias", b"layer9.bias")),
    ("a wrong shape", "UPDATE_WRONG_SCHEMA", |bytes| replace(bytes, b"[10,64]", b"[64,10]")),
    ("a wrong type", "UPDATE_WRONG_SCHEMA", |bytes| replace(bytes, b"\"F32\"", b"\"I32\"")),
    ("a header of 99 MB", "TOO_LARGE", |bytes| {
        bytes[..8].copy_from_slice(&99_000_000u64.to_le_bytes());
    }),
];

fn last_float(bytes: &mut [u8], value: f32) {
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&value.to_le_bytes());
}

fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    let at = bytes
        .windows(from.len())
        .position(|part| part == from)
        .expect("the header contains the bytes");
    bytes[at..at + to.len()].copy_from_slice(to);
}

struct HostileRound {
    market: TestMarket,
    task: TaskId,
    all: Vec<Process>,
    senders: Vec<Sender>,
    offer: Offer,
    /// Bytes of a valid update that changes nothing.
    good: Vec<u8>,
}

/// Opens a market in which two honest participants and all hostile accounts have committed.
/// `update` derives the committed bytes of a hostile account from valid bytes.
fn open(on: On, is_buffered: bool, update: impl Fn(usize, &[u8]) -> Vec<u8>) -> HostileRound {
    let mut plan = TestPlan::honest(on, 1);
    plan.participants.truncate(2);
    plan.others.extend(HOSTILE);
    plan.target = 2 + HOSTILE.len();
    // Some uploads never arrive, so the round lasts until its deadline; keep the deadline short.
    plan.train_ms = 10_000;
    plan.reveal_ms = 5_000;
    plan.provider = false;
    let market = TestMarket::open(plan);
    if is_buffered {
        let target = 2 + HOSTILE.len();
        market.make_buffered(target, target, 4);
    }
    let task = market.publish();
    let senders: Vec<Sender> =
        HOSTILE.iter().map(|name| Sender::join(&market, task, name, "10")).collect();
    let all = market.start_all(task);
    let view = market.wait_for(task, 1, TaskPhase::Committing);
    let offer = view.offer.expect("a round is open").body;
    let base = market.client().blob(offer.base_model, 1 << 20).unwrap();
    let parameters = florin_work::decode_model(&view.spec, &base).unwrap().len();
    let good = florin_work::encode_parameters(&view.spec, &vec![0.0; parameters]);
    for (at, sender) in senders.iter().enumerate() {
        let header = sender.header(&offer, &update(at, &good));
        assert_eq!(sender.send_commit(&sender.commit(&header)), "OK");
    }
    HostileRound { market, task, all, senders, offer, good }
}

fn spoiled(at: usize, good: &[u8]) -> Vec<u8> {
    let mut bytes = good.to_vec();
    if let Some((_, _, spoil)) = SPOILED.get(at) {
        spoil(&mut bytes);
    }
    bytes
}

fn finish(mut world: HostileRound) -> (TestMarket, Report) {
    world.all.iter_mut().for_each(Process::finish);
    let report = world.market.report(world.task, 1);
    (world.market, report)
}

fn a_hostile_update_changes_nothing(on: On) {
    check(on, false);
}

#[test]
fn a_hostile_update_changes_nothing_in_a_buffered_version() {
    check(On::Embedded, true);
}

fn check(on: On, is_buffered: bool) {
    // The reference: the same round, in which the same accounts commit but never upload.
    let silent = std::thread::spawn(move || finish(open(on, is_buffered, spoiled)).1);
    let world = open(on, is_buffered, spoiled);
    conflicting_commit(&world);
    world.market.wait_for(world.task, 1, TaskPhase::Revealing);
    for (at, (name, code, _)) in SPOILED.iter().enumerate() {
        let sender = &world.senders[at];
        let bytes = spoiled(at, &world.good);
        let header = sender.node.sign(sender.header(&world.offer, &bytes));
        assert_eq!(sender.upload(&header, &bytes), *code, "{name}");
    }
    false_headers(&world);
    broken_bodies(&world);
    weak_key(&world);
    let (task, late) = (world.task, Sender::existing(&world.market, world.task, HOSTILE[7]));
    let (mut market, report) = finish(world);
    for name in HOSTILE {
        let missing = report.missing.iter().find(|(who, _)| *who == market.account(name));
        assert!(
            matches!(missing, Some((_, MissingReason::Rejected(_) | MissingReason::NoReveal))),
            "{name}"
        );
    }
    replays(&mut market, task, &late, &report);

    let undisturbed = silent.join().expect("the reference round");
    assert_eq!(report.entries.len(), 2);
    let updates = |report: &Report| report.entries.iter().map(|e| e.update).collect::<Vec<_>>();
    assert_eq!(updates(&report), updates(&undisturbed));
    assert_eq!(report.model, undisturbed.model, "the aggregate is the same, bit for bit");
    assert_eq!(report.valuation, undisturbed.valuation);
    assert_eq!((report.lines, report.root), (undisturbed.lines, undisturbed.root));
}

/// A second, different commit by the same sender.
fn conflicting_commit(world: &HostileRound) {
    let sender = &world.senders[7];
    let other = sender.header(&world.offer, b"something else");
    assert_eq!(sender.send_commit(&sender.commit(&other)), "CONFLICTING_MESSAGE");
}

type Lie = fn(&mut UpdateHeader);

/// Signed headers with false fields.
fn false_headers(world: &HostileRound) {
    let table: [(&str, &str, Lie); 9] = [
        ("10^12 rows", "INVALID_ROW_COUNT", |h| h.rows = 1_000_000_000_000),
        ("a negative number of rows", "INVALID_ROW_COUNT", |h| h.rows = (-5i64).cast_unsigned()),
        ("not a number of rows", "INVALID_ROW_COUNT", |h| h.rows = f64::NAN.to_bits()),
        ("a wrong base model", "WRONG_BASE_MODEL", |h| h.base_model = Digest([1; 32])),
        ("a wrong round", "WRONG_ROUND", |h| h.scope.round = RoundNumber(2)),
        ("another offer", "WRONG_ROUND", |h| h.offer = Digest([2; 32])),
        ("another chain", "WRONG_MARKET", |h| {
            h.scope.market = MarketId { chain: ChainId(1), ..h.scope.market };
        }),
        ("another update than committed", "COMMIT_MISMATCH", |h| h.salt = Digest([3; 32])),
        ("expired", "DEADLINE_PASSED", |h| h.expires = florin_protocol::Timestamp(1)),
    ];
    let sender = &world.senders[7];
    for (name, code, lie) in table {
        let mut header = sender.header(&world.offer, &world.good);
        lie(&mut header);
        assert_eq!(sender.upload(&sender.node.sign(header), &world.good), code, "{name}");
    }
    let header = sender.header(&world.offer, &world.good);
    let elsewhere = RoundScope { task: TaskId([5; 32]), ..header.scope };
    let forged = world.senders[0].node.sign(header.clone());
    assert_eq!(sender.upload(&forged, &world.good), "INVALID_SIGNATURE");
    let replayed = UpdateHeader { scope: elsewhere, ..header };
    assert_eq!(sender.upload(&sender.node.sign(replayed), &world.good), "WRONG_TASK");
}

/// Bodies that are truncated, too long, or never complete.
fn broken_bodies(world: &HostileRound) {
    let sender = &world.senders[7];
    let header = sender.node.sign(sender.header(&world.offer, &world.good));
    let whole = framed(&header, &world.good);
    let half = &whole[..whole.len() / 2];
    assert_eq!(
        sender.upload_raw(half, half.len()),
        "TRUNCATED",
        "half of it, with the right content length"
    );
    let long = [whole.clone(), vec![0; 1 << 20]].concat();
    assert_eq!(sender.upload_raw(&long, long.len()), "TOO_LARGE");
    // Announced but not sent: the coordinator must still serve the next request.
    let _ = sender.upload_raw(half, whole.len());
    let answer = sender.upload_raw(&whole, 1 << 60);
    assert!(["TOO_LARGE", "TRUNCATED"].contains(&answer.as_str()), "an exabyte: {answer}");
}

/// A node key of small order, for which anyone can forge signatures.
fn weak_key(world: &HostileRound) {
    let (sender, client) = (&world.senders[6], world.market.client());
    let mut identity = [0u8; 32];
    identity[0] = 1;
    let (key, expires) = (NodeKey(identity), client.now().saturating_add_ms(120_000));
    let wallet = sender.wallet.address();
    let hash = Registration::signing_hash(sender.market, wallet, key, Role::Participant, expires);
    let weak = Registration {
        market: sender.market,
        wallet,
        node_key: key,
        role: Role::Participant,
        expires,
        wallet_signature: sender.wallet.sign_typed_data(hash).unwrap(),
        node_signature: NodeSignature([0; 64]),
    };
    let error = client.register(&weak).unwrap_err();
    assert!(
        matches!(&error, ClientError::Rejected(no) if no.code.as_str() == "WEAK_KEY"),
        "{error}"
    );
}

/// Uploads are idempotent: the same update has the same receipt at any time, also after a restart,
/// and is counted once. Any other update is too late.
fn replays(market: &mut TestMarket, task: TaskId, late: &Sender, report: &Report) {
    let client = market.client();
    let entry = &report.entries[0];
    let bytes = client.blob(entry.update, 1 << 20).unwrap();
    let headers: Vec<Signed<UpdateHeader>> = client.headers(task, RoundNumber(1)).unwrap();
    let receipt = client.upload(&headers[0], &bytes).unwrap();
    market.restart_coordinator();
    assert_eq!(market.client().upload(&headers[0], &bytes).unwrap(), receipt);
    let header = UpdateHeader { sender: late.wallet.address(), ..headers[0].body.clone() };
    let answer = late.upload(&late.node.sign(header), &bytes);
    let too_late = ["WRONG_ROUND", "TASK_CLOSED", "DEADLINE_PASSED", "NOT_COMMITTED"];
    assert!(
        too_late.contains(&answer.as_str()),
        "another account's update after its round: {answer}"
    );
    assert_eq!(&market.report(task, 1), report, "the report does not change");
}
