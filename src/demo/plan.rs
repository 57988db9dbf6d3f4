//! The demonstration's settings, all in one place: who takes part, on what, and for how much.

use std::fmt;

use florin_protocol::{Address, Amount};

/// Seed where none is given.
pub(crate) const SEED: u64 = 1;
/// Rounds where no number is given.
pub(crate) const ROUNDS: u32 = 10;

/// Share of the digits' rows that the buyer keeps to judge updates by.
pub(super) const HOLDOUT: f64 = 0.22;
/// Share of the rows that nobody in the market sees: the accuracy before and after is measured on them.
pub(super) const TEST: f64 = 0.18;
/// Share of the rows that lies with participants who do not work honestly.
pub(super) const NOT_HONEST: f64 = 0.18;
/// How unequal the shards are (Dirichlet concentration): 0.5 gives most participants a few digits and hardly any others.
pub(super) const ALPHA: f64 = 0.5;
/// Fewest rows of a shard.
pub(super) const ROWS_MIN: usize = 80;

/// How a participant behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Behaviour {
    /// Trains on its own rows.
    Honest,
    /// Sends random numbers.
    Noise,
    /// Trains on wrong labels.
    Flip,
    /// Sends the model back as it came.
    Idle,
}

impl Behaviour {
    /// What `florin participate --experiment` calls it.
    pub(super) const fn experiment(self) -> Option<&'static str> {
        match self {
            Self::Honest => None,
            Self::Noise => Some("noise"),
            Self::Flip => Some("flip"),
            Self::Idle => Some("idle"),
        }
    }
}

impl fmt::Display for Behaviour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Honest => "honest",
            Self::Noise => "random noise",
            Self::Flip => "flipped labels",
            Self::Idle => "unchanged model",
        })
    }
}

/// The participants, in the order of the shards.
pub(super) const PARTICIPANTS: [(&str, Behaviour); 8] = [
    ("anna", Behaviour::Honest),
    ("boris", Behaviour::Honest),
    ("chen", Behaviour::Honest),
    ("dara", Behaviour::Honest),
    ("emil", Behaviour::Honest),
    ("nils", Behaviour::Noise),
    ("flora", Behaviour::Flip),
    ("ida", Behaviour::Idle),
];

/// What the buyer begins with.
pub(super) const BUYER_FLN: u64 = 5_000;
/// What each participant begins with.
pub(super) const PARTICIPANT_FLN: u64 = 100;
/// What the provider begins with.
pub(super) const PROVIDER_FLN: u64 = 100;

/// An amount of whole florins.
pub(super) fn florins(whole: u64) -> Amount {
    const UNITS_PER_FLORIN: u128 = 1_000_000_000_000_000_000;
    Amount::from_units(u128::from(whole) * UNITS_PER_FLORIN)
}

/// The task file that the demonstration's buyer publishes.
pub(super) fn task_file(seed: u64, rounds: u32, arbiter: Address) -> String {
    let cohort = PARTICIPANTS.len();
    format!(
        r#"# The demonstration's task, written by `florin demo`.
name = "Handwritten digits, eight unequal shards"
salt = {salt}
expires = "2100-01-01"
arbiter = "{arbiter}"

[model]
kind = "mlp"
inputs = 64
hidden = [64]
classes = 10
seed = {salt}

[data]
width = 64
classes = 10

[holdout]
source = "florin:holdout.florin"

[training]
# Five passes: enough for 0.92 of the test rows after ten rounds. Shards are unequal, and much longer local training
# pulls the model apart and teaches each participant to forget what the others know.
epochs = 5
batch = 16
learning_rate = 0.2
momentum = 0.0
weight_decay = 0.0
clip_gradient = 0.0
fedprox = 0.0

[rounds]
count = {rounds}
# Everybody is asked and everybody answers: the money then repeats exactly with the seed.
cohort_min = 2
cohort_target = {cohort}
over_selection = 0
enrol = "1 min"
train = "1 min"
reveal = "1 min"
value = "1 min"
# A round of honest training moves the parameters by 1 to 3.
delta_norm_max = 4
aggregation = {{ rule = "mean" }}

[estimator]
kind = "path"
nodes = 3

[budget]
data = "1000"
infrastructure = "50"
# Ten rounds lower the loss by about 1.9 nats; the price caps the generous first rounds.
per_nat_max = "500"
# Three standard errors of the summed scores: neither noise nor harm must look useful by luck.
withheld = 3
# A row takes 0.1 FLN of bond, and a round debits half a florin at most: the smallest shard's bond outlasts ten debits.
bond_min = "2"
bond_per_row = "0.1"
debit_max = "0.5"
stake_min = "20"
per_unit = "0.1"
challenge = "200 ms"
# Longer than a round and its challenge; when the task is closed, bonds go back at once.
unbond = "5 min"
"#,
        salt = seed & (u64::MAX >> 1), // TOML integers have 63 bits
    )
}
