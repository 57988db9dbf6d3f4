//! A small test market: the real ledger on a temporary file, and a fake coordinator behind real
//! HTTP. The coordinator is honest, runs one task at a time and has no deadlines, unless a test
//! injects a fault.

mod coordinator;
mod fault;
mod history;
mod response;
mod rows;
mod server;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use florin_learning::Dataset;
use florin_ledger::{EmbeddedChain, Genesis, Ledger, Terms};
use florin_protocol::{
    Amount, Budget, ChainId, DataSchema, Digest, Holdout, MarketId, Micro, ModelArchitecture,
    NodeSigner, RoundRules, TaskId, TaskSpec, Timestamp, Training, WalletSigner, blob_digest,
};
use florin_work::{CommittedHoldout, initial_model};

use crate::client::{Client, ClientConfig};
use crate::secret::Secret;
use crate::wallet::Wallet;
use coordinator::FakeCoordinator;
pub(crate) use coordinator::Fault;

pub(crate) fn wallet(number: u8) -> Wallet {
    Wallet::from_key(&Secret::new(format!("{number:064x}"))).unwrap()
}

pub(crate) fn fln(text: &str) -> Amount {
    text.parse().unwrap()
}

/// Three overlapping clusters of four features; the noise is a BLAKE3 stream.
pub(crate) fn rows(count: usize, seed: u64) -> Dataset {
    let mut hasher = blake3::Hasher::new_derive_key("florin test rows");
    hasher.update(&seed.to_le_bytes());
    let mut bytes = vec![0; count * 4];
    hasher.finalize_xof().fill(&mut bytes);
    let mut features = Vec::new();
    let mut labels = Vec::new();
    for (row, noise) in bytes.chunks(4).enumerate() {
        let label = row % 3;
        labels.push(label as u32);
        for (column, byte) in noise.iter().enumerate() {
            let centre = if column == label { 1.0 } else { 0.0 };
            features.push(centre + f32::from(*byte) / 255.0);
        }
    }
    Dataset::new(features, labels, 4, 3).unwrap()
}

/// A task of three rounds for one participant. Its digests are those of [`rows`] and of seed 1.
pub(crate) fn spec() -> TaskSpec {
    spec_in(MarketId { chain: ChainId(31_415), genesis: Digest([7; 32]) }, 1)
}

fn spec_in(market: MarketId, cohort: u32) -> TaskSpec {
    let model = ModelArchitecture::Softmax { inputs: 4, classes: 3 };
    let example = TaskSpec::example();
    TaskSpec {
        market,
        buyer: wallet(1).address(),
        coordinator: wallet(2).address(),
        arbiter: wallet(3).address(),
        name: "clusters".to_owned(),
        base_model: blob_digest(&initial_model(&model, 1).unwrap()),
        model,
        data: DataSchema { width: 4, classes: 3, encoding: None },
        holdout: Holdout {
            root: CommittedHoldout::new(rows(180, 99)).root(),
            rows: 180,
            rows_per_round: 60,
        },
        training: Training { batch: 8, ..example.training },
        rounds: RoundRules {
            count: 3,
            cohort_min: 1,
            cohort_target: cohort,
            enrol_ms: 60_000,
            train_ms: 60_000,
            reveal_ms: 60_000,
            // With the window of 1 ms, three minutes.
            value_ms: 59_999,
            delta_norm_max: Micro(5_000_000),
            ..example.rounds
        },
        budget: Budget {
            data: fln("30"),
            infrastructure: fln("6"),
            per_nat_max: fln("20"),
            confidence_z: Micro(500_000),
            bond_min: fln("1"),
            debit_max: fln("1"),
            stake_min: fln("5"),
            unbond_ms: 240_000,
            ..example.budget
        },
        ..example
    }
}

/// The market; it ends when it is dropped.
pub(crate) struct TestMarket {
    pub(crate) ledger: Arc<EmbeddedChain>,
    pub(crate) task: TaskId,
    pub(crate) spec: TaskSpec,
    pub(crate) url: String,
    ticks: Arc<AtomicU64>,
    state: Arc<(Mutex<FakeCoordinator>, Condvar)>,
    pub(crate) folder: tempfile::TempDir,
}

impl TestMarket {
    /// Starts a market with one funded task for `cohort` participants. Wallets 1 to 9 have 1,000
    /// FLN each; wallet 1 is the buyer, 2 the coordinator, 3 the arbiter.
    pub(crate) fn start(cohort: u32, wants_provider: bool) -> Self {
        Self::start_with(cohort, wants_provider, |_| ())
    }

    /// The same with a modified task.
    pub(crate) fn start_with(
        cohort: u32,
        wants_provider: bool,
        differs: impl FnOnce(&mut TaskSpec),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = NodeSigner::from_seed(&[42; 32]);
        let genesis = Genesis {
            chain_id: ChainId(31_415),
            operator: wallet(2).address(),
            operator_key: node.key(),
            allocations: (1..10).map(|n| (wallet(n).address(), fln("1000"))).collect(),
            created: Timestamp(1),
        };
        let path = folder.path().join("ledger");
        let market = EmbeddedChain::create(&path, &genesis).unwrap();
        let ticks = Arc::new(AtomicU64::new(10));
        let of_ledger = Arc::clone(&ticks);
        let clock = Arc::new(move || Timestamp(of_ledger.fetch_add(1, Ordering::Relaxed)));
        let ledger = Arc::new(EmbeddedChain::open(&path, node.clone(), clock).unwrap());
        let mut spec = spec_in(market, cohort);
        differs(&mut spec);
        // The ledger refuses some invalid tasks; the coordinator may still publish them.
        if spec.check().is_ok() {
            let terms = Terms::from_spec(&spec);
            ledger.open_task(&wallet(1), &terms).unwrap();
            if terms.bond_covers_pay(wallet(2).address()) {
                let all = terms.data.plus(terms.infrastructure).unwrap();
                ledger.bond(&wallet(2), terms.task, all).unwrap();
            }
        }
        let state = FakeCoordinator::new(spec.clone(), node, Arc::clone(&ledger), wants_provider);
        let state = Arc::new((Mutex::new(state), Condvar::new()));
        let url = server::serve(Arc::clone(&state));
        Self { ledger, task: spec.id(), spec, url, ticks, state, folder }
    }

    /// Advances the ledger's clock, which otherwise counts its readings.
    pub(crate) fn advance_clock(&self, ms: u64) {
        self.ticks.fetch_add(ms, Ordering::Relaxed);
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&ClientConfig::new(&self.url)).unwrap()
    }

    pub(crate) fn inject(&self, lie: Fault) {
        self.state.0.lock().unwrap().faults.push(lie);
    }

    pub(crate) fn clear_faults(&self) {
        self.state.0.lock().unwrap().faults.clear();
    }

    /// Stores a blob, as the buyer uploads the initial model.
    pub(crate) fn upload_blob(&self, bytes: &[u8]) {
        self.state.0.lock().unwrap().blobs.insert(blob_digest(bytes), bytes.to_vec());
    }

    /// Expires the commit deadline: the round is closed with the received commits, and a
    /// participant that did not commit is removed until it enrols again.
    pub(crate) fn pass_commit_deadline(&self) {
        self.state.0.lock().unwrap().pass_commit_deadline();
        self.state.1.notify_all();
    }

    /// Digests of all blobs that were requested on a route, with repetitions.
    pub(crate) fn fetched_digests(&self, route: &str) -> Vec<String> {
        let state = self.state.0.lock().unwrap();
        let asked = state.requests.iter().filter_map(|line| line.split_once(route));
        let mut asked: Vec<String> = asked.map(|(_, digest)| digest.to_owned()).collect();
        asked.sort_unstable();
        asked
    }

    /// Number of requests with this method and this end of the path, such as `POST
    /// tasks/…/commits`.
    pub(crate) fn request_count(&self, method: &str, end: &str) -> usize {
        let state = self.state.0.lock().unwrap();
        state.requests.iter().filter(|line| line.starts_with(method) && line.ends_with(end)).count()
    }
}
