//! Every limit of the protocol, by name. A message beyond one of them is refused before it is looked at.

/// Participants enrolled in one task.
pub const ENROLLED_MAX: usize = 10_000;
/// Participants asked in one round.
pub const COHORT_MAX: u32 = 1_024;
/// Rounds of one task.
pub const ROUNDS_MAX: u32 = 100_000;
/// Length of a task's name in bytes.
pub const NAME_BYTES_MAX: usize = 120;
/// Largest update or model, in bytes.
pub const BLOB_BYTES_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Largest signed update header on the wire, in bytes.
pub const HEADER_BYTES_MAX: usize = 4_096;
/// Rows of a holdout.
pub const HOLDOUT_ROWS_MAX: u32 = 1 << 24;
/// Rows of a holdout that judge one round.
pub const HOLDOUT_PER_ROUND_MAX: u32 = 65_536;
/// Largest set of shown rows with their proofs, in bytes. A row has one proof of its own: 500 rows of 64 features out of
/// 1,797 come to 330 KB, of which the proofs take 176 KB.
pub const SHOWN_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Rows one participant may declare.
pub const ROWS_MAX: u64 = 1_000_000_000;
/// Hidden layers of a multilayer perceptron.
pub const HIDDEN_LAYERS_MAX: usize = 16;
/// Units in one layer, inputs and classes included.
pub const LAYER_UNITS_MAX: u32 = 65_536;
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 1_000_000_000;
/// Gauss–Legendre nodes of the path estimator.
pub const NODES_MAX: u8 = 8;
/// Pairs of coalitions per participant that a check may evaluate.
pub const CHECK_PAIRS_MAX: u8 = 16;
/// Largest cohort whose scores are checked by coalitions.
pub const CHECK_COHORT_MAX: usize = 64;
/// Longest phase, window or delay, in milliseconds (30 days).
pub const PHASE_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Accounts in one task's tree of running totals.
pub const ACCOUNTS_MAX: usize = 20_000;
/// Longest Merkle proof that is looked at.
pub const PROOF_LEN_MAX: usize = 64;
/// Largest canonical message other than blobs, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Rounds back to which updates are held against what the rounds did to the model.
pub const PUBLIC_STEPS_MAX: usize = 8;
/// Rounds whose updates a round's are held against: the last one that came to something, and the latest behind it.
pub const LAST_ROUNDS_MAX: usize = 8;
/// Updates of earlier rounds are held against those of a round as long as, decoded, they have at most so many bytes.
pub const LAST_UPDATES_BYTES_MAX: u64 = 1024 * 1024 * 1024;
