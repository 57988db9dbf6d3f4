//! A renter orders a training: an interrupted order resumes with one escrow, and the model that a provider
//! delivered is fetched, explained and listed.

use florin_compute::{
    Bid, ComputeAction, LeaseAction, RecordedAction, Secret, StepTimes, bid_commitment,
    end_commitment, segment_leaf,
};
use florin_learning::checkpoint::TrainingState;
use florin_learning::{EngineKind, engine};
use florin_participant::Wallet;
use florin_protocol::{Amount, DATA_PER_ROUND_MIN, Digest, Rejection, Timestamp, WalletSigner};
use florin_work::LeasedTraining;

use crate::support::{BEACON, HostState, LeaseHost, On, TestMarket, TestPlan, florin};

const SALT: Digest = Digest([9; 32]);
/// A model of three classes on rows of 64 numbers.
const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/learning/data/graphs/vit.pt2");

/// The parties of a lease, and its states.
struct Parties {
    provider: Wallet,
    auditor: Wallet,
    states: Vec<TrainingState>,
    now: Timestamp,
}

fn digest(state: &TrainingState) -> Digest {
    Digest(state.digest())
}

impl Parties {
    /// The provider computes both segments.
    fn compute(host: &mut HostState, market: &TestMarket) -> Self {
        let request = host.request.clone().unwrap();
        let read = |digest, _| Ok::<_, Rejection>(host.blobs[&digest].clone());
        let training = LeasedTraining::load(&request.order, &request.job, read).unwrap();
        let mut engine = engine(EngineKind::Torch, 1).unwrap();
        let first = training.first();
        let middle = training.end_of_segment(&mut *engine, &first).unwrap();
        let last = training.end_of_segment(&mut *engine, &first.next(middle.clone())).unwrap();
        let states = vec![first.state().clone(), middle, last];
        for state in &states {
            host.states.insert(digest(state), state.to_bytes().unwrap());
        }
        let now = host.lease.as_ref().unwrap().opening().opened;
        let (provider, auditor) = (market.wallet("provider"), market.wallet("ann"));
        Self { provider, auditor, states, now }
    }

    fn act(&self, host: &mut HostState, wallet: &Wallet, action: ComputeAction) {
        let (by, order) = (wallet.address(), host.order().clone());
        let nonce = host.lease.as_ref().unwrap().next_nonce(by);
        let body = LeaseAction { order: order.id(), by, nonce, action };
        let signed = body.sign(order.market, wallet).unwrap();
        host.push(self.now, RecordedAction::Signed(Box::new(signed)));
    }

    fn secret(&self, segment: u32) -> Secret {
        Secret { end: digest(&self.states[segment as usize + 1]), salt: SALT }
    }

    /// Bids, delivery, the audit of one segment, and the settlement.
    fn play(&mut self, host: &mut HostState) {
        let (id, by) = (host.order().id(), self.provider.address());
        let times = StepTimes::new(vec![1_000]).unwrap();
        let bid = Bid { per_second: "1".parse().unwrap(), devices: 1, times };
        let sealed = bid_commitment(id, by, &bid, SALT);
        self.act(host, &self.provider, ComputeAction::SealBid(sealed));
        self.act(host, &self.auditor, ComputeAction::JoinAudit);
        self.now = host.lease.as_ref().unwrap().lease().phase().1.saturating_add_ms(1);
        host.push(self.now, RecordedAction::Expired);
        self.act(host, &self.provider, ComputeAction::OpenBid { bid, salt: SALT });
        self.act(host, &self.provider, ComputeAction::Fund);
        for segment in 0..2 {
            let leaf = segment_leaf(id, by, segment, self.secret(segment));
            self.act(host, &self.provider, ComputeAction::Deliver { segment, leaf });
        }
        host.push(self.now, RecordedAction::Beacon(BEACON));
        let drawn = host.lease.as_ref().unwrap().lease().audited().next().unwrap().0;
        let start = digest(&self.states[drawn as usize]);
        self.act(host, &self.provider, ComputeAction::Serve { segment: drawn, start });
        let secret = self.secret(drawn);
        let sealed = end_commitment(id, self.auditor.address(), drawn, secret);
        self.act(host, &self.auditor, ComputeAction::SealEnd { segment: drawn, sealed });
        self.act(host, &self.auditor, ComputeAction::OpenEnd { segment: drawn, secret });
        let leaves: &[u32] = if drawn == 1 { &[1] } else { &[drawn, 1] };
        for &segment in leaves {
            let leaf = ComputeAction::OpenLeaf {
                segment,
                secret: self.secret(segment),
                salt_before: SALT,
            };
            self.act(host, &self.provider, leaf);
        }
    }
}

/// Rows with three labels.
fn rows() -> String {
    let columns: Vec<String> = (0..64).map(|column| format!("x{column}")).collect();
    let mut text = format!("{},label\n", columns.join(","));
    for row in 0..40_u32 {
        let number = |column: u32| (row * 64 + column).wrapping_mul(2_654_435_761) >> 20;
        let numbers: Vec<String> = (0..64).map(|column| number(column).to_string()).collect();
        text += &format!("{},{}\n", numbers.join(","), row % 3);
    }
    text
}

/// The order file of two segments, one of which one auditor computes again.
fn write_order(market: &TestMarket) -> String {
    std::fs::write(market.file("rows.csv"), rows()).unwrap();
    let file = market.file("order.toml");
    let (data, referee) =
        (format!("csv:{}#label", market.file("rows.csv")), market.account("ben").to_string());
    let terms = ["--price", "10", "--segments", "2", "--referee", &referee];
    let new = ["rent", "new", &file, "--model", MODEL, "--data", &data];
    florin(&[&new[..], &terms].concat()).expect(0);
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("# auditors = 2", "auditors = 1").replace("epochs = 10", "epochs = 2");
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn an_order_is_locked_once_and_its_model_is_fetched() {
    let market = TestMarket::open(TestPlan::honest(On::Embedded, 1));
    let host = LeaseHost::before(&format!("http://{}", market.address()));
    let file = write_order(&market);
    florin(&["rent", "check", &file, "--json"]).expect(0);
    let at = ["--market", &host.url];
    let (wallet, passphrase) = (market.file("buyer.json"), market.file("passphrase"));
    let by = ["--wallet", &wallet, "--passphrase-file", &passphrase];
    let order = ["rent", "order", &file, "--json"];
    florin(&[&order[..], &at, &by].concat()).refused(2, "CONFIRMATION_REQUIRED");
    let place = [&order[..], &["--yes"], &at, &by].concat();
    let left = || market.ledger().balance(market.account("buyer")).unwrap();
    let before = left();
    // The coordinator stops behind the escrow.
    florin(&place).refused(1, "TASK_CLOSED");
    let after = left();
    let placed = florin(&place).expect(0).json();
    let locked: u128 = placed["locked"].as_str().unwrap().parse().unwrap();
    let locked = Amount::from_units(locked).plus(DATA_PER_ROUND_MIN);
    assert_eq!((before.minus(after), left()), (locked, after));
    let id = placed["order"].as_str().unwrap().to_owned();
    assert_eq!(florin(&place).expect(0).json()["order"], placed["order"]);

    let out = market.file("net.safetensors");
    let fetch = [&["rent", "fetch", &id, "--out", &out, "--json"][..], &at].concat();
    florin(&fetch).refused(1, "ORDER_NOT_OVER");
    let parties = {
        let state = &mut *host.state();
        let mut parties = Parties::compute(state, &market);
        parties.play(state);
        parties
    };
    let watched = florin(&[&["rent", "watch", &id[..8]][..], &at].concat()).expect(0);
    for part in
        ["delivers segment 1: 2 of 2", "2 of 2 segments delivered", "the settlement is final"]
    {
        assert!(watched.out.contains(part), "{part:?} in {}", watched.out);
    }
    let fetched = florin(&fetch).expect(0).json();
    let last = parties.states.last().unwrap();
    assert_eq!(fetched["state"], digest(last).to_string());
    let bytes = std::fs::read(&out).unwrap();
    let numbers = last.params().iter().flat_map(|number| number.to_le_bytes());
    assert!(bytes.ends_with(&numbers.collect::<Vec<u8>>()), "the file has the parameters");
    florin(&fetch).refused(2, "FILE_EXISTS");

    let again = [&["rent", "continue", &id, &file, "--yes", "--json"][..], &at, &by].concat();
    florin(&again).refused(1, "ORDER_DELIVERED");
    let statement = florin(&[&["rent", "statement", &id, "--json"][..], &at].concat());
    let statement = statement.expect(0).json();
    assert_eq!(statement.as_array().unwrap().len(), 4, "renter, referee, provider, auditor");
    let page = market.file("market.html");
    let table = florin(&[&["market", "--json", "--out", &page][..], &at].concat()).expect(0).json();
    let page = std::fs::read_to_string(page).unwrap();
    for part in ["Price of each award", "All providers", "Orders", "all segments delivered", "<svg"]
    {
        assert!(page.contains(part), "{part}");
    }
    let nowhere = [&["market", "--out", "missing/market.html"][..], &at].concat();
    florin(&nowhere).refused(2, "FILE_NOT_FOUND");
    let own = std::fs::read_to_string(&file).unwrap();
    let over = |out: &str| florin(&[&["market", "--out", out][..], &at].concat());
    over(&file).refused(2, "FILE_EXISTS");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), own);
    over(&market.file("market.html")).expect(0);
    assert_eq!(table["orders"][0]["id"], placed["order"]);
    assert_eq!(table["providers"][0]["delivered"], 1);
}
