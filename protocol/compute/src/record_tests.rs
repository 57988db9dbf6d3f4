//! A lease follows from its record, and from nothing else.

use florin_protocol::{Amount, address_of_key, sign_hash};
use k256::ecdsa::SigningKey;

use super::*;
use crate::{Bid, StepTimes, bid_commitment};

const BEACON: Digest = Digest([7; 32]);
const SALT: Digest = Digest([9; 32]);
const OPENED: Timestamp = Timestamp(1_000);

pub(crate) struct LeaseSigner(SigningKey);

impl LeaseSigner {
    pub(crate) fn number(number: u8) -> Self {
        Self(SigningKey::from_slice(&[number; 32]).unwrap())
    }
}

impl WalletSigner for LeaseSigner {
    fn address(&self) -> Address {
        address_of_key(self.0.verifying_key())
    }
    fn sign_typed_data(&self, hash: [u8; 32]) -> Result<WalletSignature, SignError> {
        sign_hash(&self.0, hash)
    }
}

fn opening() -> LeaseOpening {
    let order = ComputeOrder::example();
    let beacon = beacon_commitment(order.id(), BEACON);
    LeaseOpening { order, opened: OPENED, beacon }
}

fn bid() -> Bid {
    let times = StepTimes::new(vec![10]).unwrap();
    Bid { per_second: Amount::from_units(1_000_000), devices: 1, times }
}

fn body(number: u8, nonce: u32, action: ComputeAction) -> LeaseAction {
    let by = LeaseSigner::number(number).address();
    LeaseAction { order: opening().order.id(), by, nonce, action }
}

fn at(ms: u64, action: RecordedAction) -> LeaseRecord {
    LeaseRecord { at: Timestamp(ms), action }
}

fn signed(ms: u64, number: u8, nonce: u32, action: ComputeAction) -> LeaseRecord {
    let market = opening().order.market;
    let signed = body(number, nonce, action).sign(market, &LeaseSigner::number(number)).unwrap();
    at(ms, RecordedAction::Signed(Box::new(signed)))
}

/// Two auditors join, a bidder seals and opens its bid, and funds the lease.
fn funded() -> Vec<LeaseRecord> {
    let id = opening().order.id();
    let sealed = bid_commitment(id, LeaseSigner::number(1).address(), &bid(), SALT);
    vec![
        signed(1_000, 1, 0, ComputeAction::SealBid(sealed)),
        signed(1_000, 2, 0, ComputeAction::JoinAudit),
        signed(1_001, 3, 0, ComputeAction::JoinAudit),
        at(2_001, RecordedAction::Expired),
        signed(2_002, 1, 1, ComputeAction::OpenBid { bid: bid(), salt: SALT }),
        signed(2_003, 1, 2, ComputeAction::Fund),
    ]
}

fn folded(records: &[LeaseRecord]) -> RecordedLease {
    let mut lease = RecordedLease::open(opening()).unwrap();
    for record in records {
        lease.apply(record).unwrap();
    }
    lease
}

/// The code of a refused record, which has changed nothing.
fn refusal(lease: &RecordedLease, record: &LeaseRecord) -> &'static str {
    let mut other = lease.clone();
    let code = other.apply(record).unwrap_err().code();
    assert_eq!(&other, lease, "a refused record changes nothing");
    code
}

#[test]
fn a_lease_follows_from_its_record() {
    let lease = folded(&funded());
    assert_eq!(lease.lease().phase().0, Phase::Running);
    assert_eq!((lease.length(), lease.last()), (6, Timestamp(2_003)));
    let nonces = [1, 2, 3, 4].map(|n| lease.next_nonce(LeaseSigner::number(n).address()));
    assert_eq!(nonces, [3, 1, 1, 0]);
    assert_eq!(folded(&funded()), lease);
    // Its bytes are the same record.
    let last = funded().pop().unwrap();
    let decoded = borsh::from_slice::<LeaseRecord>(&borsh::to_vec(&last).unwrap()).unwrap();
    assert_eq!(decoded, last);
}

#[test]
fn a_signature_binds_order_account_number_and_action() {
    let lease = folded(&[]);
    let market = opening().order.market;
    let own = body(2, 0, ComputeAction::JoinAudit);
    let signature = own.clone().sign(market, &LeaseSigner::number(2)).unwrap().signature;
    let forged = [
        LeaseAction { order: Digest([1; 32]), ..own.clone() },
        LeaseAction { by: LeaseSigner::number(3).address(), ..own.clone() },
        LeaseAction { nonce: 1, ..own.clone() },
        body(2, 0, ComputeAction::SealBid(SALT)),
    ];
    for body in forged {
        let forged = SignedLeaseAction { body, signature };
        assert!(forged.verify(market).is_err(), "{forged:?}");
        refusal(&lease, &at(1_000, RecordedAction::Signed(Box::new(forged))));
    }
    let right = SignedLeaseAction { body: own, signature };
    assert_eq!(right.verify(market), Ok(()));
    let elsewhere = MarketId { chain: florin_protocol::ChainId(2), ..market };
    assert!(right.verify(elsewhere).is_err());
}

#[test]
fn an_upload_is_signed_by_its_account() {
    let market = opening().order.market;
    let wallet = LeaseSigner::number(1);
    let upload = StateUpload { order: Digest([1; 32]), by: wallet.address(), state: SALT };
    let signature = upload.sign(market, &wallet).unwrap();
    assert_eq!(upload.verify(market, &signature), Ok(()));
    let changed = [
        StateUpload { order: Digest([2; 32]), ..upload },
        StateUpload { by: LeaseSigner::number(2).address(), ..upload },
        StateUpload { state: BEACON, ..upload },
    ];
    assert!(changed.iter().all(|upload| upload.verify(market, &signature).is_err()));
}

#[test]
fn records_out_of_turn_are_refused() {
    let lease = folded(&funded());
    let deliver = |nonce: u32| ComputeAction::Deliver { segment: nonce - 3, leaf: SALT };
    // A repeated action, one with a later number, and one before the last moment.
    assert_eq!(refusal(&lease, &signed(2_003, 1, 2, ComputeAction::Fund)), "COMPUTE_INVALID");
    assert_eq!(refusal(&lease, &signed(2_003, 1, 4, deliver(3))), "COMPUTE_INVALID");
    assert_eq!(refusal(&lease, &signed(2_002, 1, 3, deliver(3))), "COMPUTE_COMMITMENT");
    let mut next = lease.clone();
    next.apply(&signed(2_003, 1, 3, deliver(3))).unwrap();
    // Only the coordinator draws and applies defaults.
    for action in [ComputeAction::Draw(BEACON), ComputeAction::Expire] {
        assert_eq!(refusal(&lease, &signed(2_003, 1, 3, action)), "COMPUTE_ACCOUNT");
    }
    assert_eq!(refusal(&lease, &at(2_003, RecordedAction::Expired)), "COMPUTE_EARLY");
    assert_eq!(refusal(&lease, &at(2_003, RecordedAction::Beacon(BEACON))), "COMPUTE_PHASE");
}

#[test]
fn the_beacon_is_the_committed_one() {
    let mut records = funded();
    for segment in 0..opening().order.segments {
        let action = ComputeAction::Deliver { segment, leaf: Digest([segment as u8; 32]) };
        records.push(signed(2_003, 1, 3 + segment, action));
    }
    let mut lease = folded(&records);
    assert_eq!(lease.lease().phase().0, Phase::Delivered);
    let other = at(2_004, RecordedAction::Beacon(SALT));
    assert_eq!(refusal(&lease, &other), "COMPUTE_COMMITMENT");
    lease.apply(&at(2_004, RecordedAction::Beacon(BEACON))).unwrap();
    assert_eq!(lease.lease().phase().0, Phase::Serving);
    // The same beacon commits to another order by another digest.
    assert_ne!(beacon_commitment(SALT, BEACON), opening().beacon);
}

#[test]
fn an_invalid_order_opens_no_lease() {
    let order = ComputeOrder { segments: 0, ..ComputeOrder::example() };
    let error = RecordedLease::open(LeaseOpening { order, ..opening() }).unwrap_err();
    assert_eq!(error.code(), "COMPUTE_INVALID");
}

/// An outage of the coordinator costs no account its deposit, and a provider no pay.
#[test]
fn a_restart_leaves_all_that_was_left_of_a_phase() {
    let mut records = funded();
    let began = 2_003;
    let deliver = |segment: u32, ms: u64| {
        let action = ComputeAction::Deliver { segment, leaf: Digest([segment as u8; 32]) };
        signed(ms, 1, 3 + segment, action)
    };
    records.push(deliver(0, began + 100));
    let lease = folded(&records);
    let (_, deadline) = lease.lease().phase();
    let left = deadline.ms_since(lease.last());
    // The coordinator is down for a day.
    let back = began + 100 + 86_400_000;
    assert_eq!(refusal(&lease, &deliver(1, back)), "COMPUTE_LATE");
    records.push(at(back, RecordedAction::Resumed));
    let mut lease = folded(&records);
    assert_eq!(lease.lease().phase(), (Phase::Running, Timestamp(back).saturating_add_ms(left)));
    assert_eq!(lease.lease().measured_us(), 0, "100 ms less the window for transfers");
    lease.apply(&deliver(1, back + left)).unwrap();
    // 100 ms and the rest of the second segment, less two windows for transfers, on twenty steps.
    let window = opening().order.windows.segment;
    let ms = (100 + left).saturating_sub(2 * window);
    assert_eq!(lease.lease().measured_us(), ms * 1_000 / 20);
    // Deadlines only move ahead, and a lease that is over stays so.
    let again = at(back + left, RecordedAction::Resumed);
    let (_, before) = lease.lease().phase();
    lease.apply(&again).unwrap();
    assert!(lease.lease().phase().1 >= before);
}
