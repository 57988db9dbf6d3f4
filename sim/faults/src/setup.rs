//! The task of a simulation: small enough to run in milliseconds, with all features that can fail.

use florin_learning::Dataset;
use florin_learning::data::{DatasetError, canonical_bytes};
use florin_protocol::{
    Address, Aggregation, Amount, Budget, ChainId, DataSchema, Digest, Estimator, Holdout,
    MarketId, Micro, ModelArchitecture, PreprocessingRules, RoundRules, SETTLEMENT_MARGIN_MS,
    StalenessRule, StalenessWeight, TaskSpec, Timestamp, Training, blob_digest,
};
use florin_work::CommittedHoldout;
use rand_chacha::ChaCha8Rng;

use super::network::ProcessId;
use florin_sim::random::{normal, stream, uniform_below};

/// The buyer's address.
pub(super) const BUYER: Address = Address([0xb0; 20]);
/// The coordinator's address.
pub(super) const COORDINATOR: Address = Address([0xc0; 20]);
/// The provider's address.
pub(super) const PROVIDER: Address = Address([0xe0; 20]);
const ARBITER: Address = Address([0xa0; 20]);

/// Virtual time at which the market opens, by a correct clock.
pub(super) const OPENED: u64 = 1_000_000;
/// Features of a row.
const WIDTH: usize = 3;
const CLASSES: usize = 2;
/// Holdout rows per round.
const PER_ROUND: u32 = 10;
/// Rows per member.
const ROWS: usize = 12;
/// Half the distance between the class centres, in standard deviations of a feature.
const APART: f64 = 1.2;
/// Range of the duration of a task that can expire before it is complete, in milliseconds above the
/// minimum.
const TIGHT_MS: u64 = 80_000;
/// Duration of a task with ample time, in milliseconds.
const LONG_MS: u64 = 900_000;

/// A whole number of florins as an amount.
#[must_use]
pub(super) const fn whole_florins(florins: u64) -> Amount {
    Amount::from_units(florins as u128 * 1_000_000_000_000_000_000)
}

/// The account of a member.
#[must_use]
pub(super) fn account(member: usize) -> Address {
    let mut bytes = [0x11; 20];
    bytes[..8].copy_from_slice(&(member as u64).to_be_bytes());
    Address(bytes)
}

/// The account of a process.
#[must_use]
pub(super) fn account_of(node: ProcessId) -> Address {
    match node {
        ProcessId::Coordinator => COORDINATOR,
        ProcessId::Buyer => BUYER,
        ProcessId::Provider => PROVIDER,
        ProcessId::Member(member) => account(member),
    }
}

/// The task and its participants.
#[derive(Clone, Debug)]
pub(super) struct MarketSetup {
    /// The task specification.
    pub spec: TaskSpec,
    /// The initial model.
    pub base: Vec<u8>,
    /// All holdout rows.
    pub holdout: Vec<u8>,
    /// The rows of each member. At most one member has wrong labels.
    pub rows: Vec<Dataset>,
    /// Whether a provider takes part.
    pub provider: bool,
}

/// Why the task cannot be created: a fault of the laboratory.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The rows do not form a valid dataset.
    #[error(transparent)]
    Data(#[from] DatasetError),
    /// The initial model cannot be created.
    #[error(transparent)]
    Work(#[from] florin_work::WorkError),
}

impl MarketSetup {
    /// Draws the task and the participants of a seed.
    ///
    /// # Errors
    /// [`SetupError`].
    pub(super) fn draw(seed: u64, rounds: u32) -> Result<Self, SetupError> {
        let rng = &mut stream(seed, "cast", [0, 0]);
        let members = 4 + uniform_below(rng, 5) as usize;
        let judges = rows(rng, (PER_ROUND * rounds) as usize, 0)?;
        let holdout = canonical_bytes(&judges);
        let root = CommittedHoldout::new(judges).root();
        let mut spec = spec(seed, rounds, members as u32, rng);
        let base = florin_work::initial_model(&spec.model, seed)?;
        spec.base_model = blob_digest(&base);
        spec.holdout.root = root;
        // At most one member has flipped labels.
        let wrong = uniform_below(rng, 2 * members as u64) as usize;
        let rows = (0..members).map(|member| self::rows(rng, ROWS, u32::from(member == wrong)));
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let provider = uniform_below(rng, 3) > 0;
        Ok(Self { spec, base, holdout, rows, provider })
    }

    /// The accounts and their initial balances.
    #[must_use]
    pub(super) fn money(&self) -> Vec<(Address, Amount)> {
        let members = (0..self.rows.len()).map(|member| (account(member), whole_florins(100)));
        let mut all: Vec<_> = members.collect();
        all.extend([(BUYER, whole_florins(2_000)), (PROVIDER, whole_florins(100))]);
        // For the bond that covers the pay of the settlements.
        all.push((COORDINATOR, whole_florins(1_030)));
        all
    }
}

fn rows(rng: &mut ChaCha8Rng, count: usize, shift: u32) -> Result<Dataset, DatasetError> {
    let (mut features, mut labels) = (Vec::with_capacity(count * WIDTH), Vec::new());
    for _ in 0..count {
        let class = uniform_below(rng, CLASSES as u64) as u32;
        let centre = if class == 0 { -APART } else { APART };
        features.extend((0..WIDTH).map(|_| (centre + normal(rng)) as f32));
        labels.push((class + shift) % CLASSES as u32);
    }
    Dataset::new(features, labels, WIDTH, CLASSES)
}

fn spec(seed: u64, rounds: u32, members: u32, rng: &mut ChaCha8Rng) -> TaskSpec {
    let cohort = 3 + uniform_below(rng, u64::from(members) - 2) as u32;
    let rules = RoundRules {
        count: rounds,
        cohort_min: 2 + uniform_below(rng, 2) as u32,
        cohort_target: cohort,
        over_selection: (members - cohort).min(1),
        // Late updates count in two of three worlds.
        staleness: StalenessRule {
            rounds: 2 * (seed % 3) as u32,
            weight: StalenessWeight::InverseRoot,
        },
        enrol_ms: 2_000,
        train_ms: 2_500 + uniform_below(rng, 2_000),
        reveal_ms: 2_000 + uniform_below(rng, 1_500),
        value_ms: 1_000 + uniform_below(rng, 1_500),
        delta_norm_max: Micro(20_000_000),
        aggregation: Aggregation::Mean,
        preprocessing: PreprocessingRules::DEFAULT,
        baseline_epochs: 2 * u32::from(uniform_below(rng, 2) == 0),
        ..TaskSpec::example().rounds
    };
    let challenge_ms = 500 + uniform_below(rng, 2_000);
    let unbond_ms = rules.round_ms() + challenge_ms + SETTLEMENT_MARGIN_MS;
    let tight = uniform_below(rng, 5) == 0;
    let lasts = if tight { unbond_ms + uniform_below(rng, TIGHT_MS) } else { LONG_MS };
    let example = TaskSpec::example();
    TaskSpec {
        market: MarketId { chain: ChainId(1), genesis: Digest([1; 32]) },
        buyer: BUYER,
        coordinator: COORDINATOR,
        arbiter: ARBITER,
        name: "faults".to_owned(),
        salt: seed,
        model: ModelArchitecture::Softmax { inputs: WIDTH as u32, classes: CLASSES as u32 },
        // Set when the model and the rows are known.
        base_model: Digest([1; 32]),
        data: DataSchema { width: WIDTH as u32, classes: CLASSES as u32, encoding: None },
        holdout: Holdout {
            root: Digest([1; 32]),
            rows: PER_ROUND * rounds,
            rows_per_round: PER_ROUND,
        },
        training: Training {
            epochs: 2,
            batch: 4,
            learning_rate: Micro(100_000),
            ..example.training
        },
        rounds: rules,
        estimator: Estimator::Path { nodes: 3, cross_check_pairs: 0 },
        budget: Budget {
            data: whole_florins(1_000),
            infrastructure: whole_florins(30),
            per_nat_max: Amount::from_units(777_777_777_777_777_777_777),
            floor_share: Micro(uniform_below(rng, 3) * 100_000),
            confidence_z: Micro(uniform_below(rng, 3) * 300_000),
            bond_per_row: whole_florins(1),
            debit_max: whole_florins(4),
            stake_min: whole_florins(10),
            per_unit: Amount::from_units(333_333_333_333_333_333),
            challenge_ms,
            unbond_ms,
            ..example.budget
        },
        expires: Timestamp(OPENED + lasts),
        ..example
    }
}
