//! Limits of the protocol. A message that exceeds one of them is rejected before it is processed.

/// Declared columns of an encoding.
pub const ENCODED_COLUMNS_MAX: usize = 512;
/// Categories of one declared column.
pub const CATEGORIES_MAX: usize = 256;
/// Length of a column's name, of a category and of a class name, in bytes.
pub const CELL_TEXT_BYTES_MAX: usize = 128;
/// Canonical bytes of an encoding: it is part of the task, which every view of the task contains.
pub const ENCODING_BYTES_MAX: usize = 64 * 1024;
/// Rows and columns of pixels of an encoded image.
pub const IMAGE_SIDE_MAX: u32 = 4_096;
/// Bytes of a tokenizer.
pub const TOKENIZER_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Tokens of a vocabulary: larger numbers are not exact in a row.
pub const TOKENS_MAX: u32 = 1 << 24;

/// Participants enrolled in one task.
pub const ENROLLED_MAX: usize = 10_000;
/// Accounts in a task's allow list. With more, the task would exceed the largest JSON request.
pub const ALLOW_LIST_MAX: usize = 1_000;
/// Longest canonical invitation, in bytes.
pub const INVITATION_BYTES_MAX: usize = 256;
/// Participants selected for one round (target and over-selection).
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
/// Holdout rows that evaluate one round.
pub const HOLDOUT_ROWS_PER_ROUND_MAX: u32 = 65_536;
/// Largest set of disclosed rows with their proofs, in bytes. Each row has its own proof: 500 rows
/// of 64 features out of a holdout of 1,797 take 330 KB, 176 KB of it proofs.
pub const DISCLOSED_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Training rows that one participant may declare.
pub const DECLARED_ROWS_MAX: u64 = 1_000_000_000;
/// Hidden layers of a multilayer perceptron.
pub const HIDDEN_LAYERS_MAX: usize = 16;
/// Units in one layer, inputs and classes included.
pub const LAYER_UNITS_MAX: u32 = 65_536;
/// Canonical bytes of a graph.
pub const GRAPH_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Code of a trainer that is a task's model.
pub const TRAINER_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Tensors of a graph that travel.
pub const GRAPH_TENSORS_MAX: usize = 4_096;
/// Length of a tensor's name, in bytes.
pub const TENSOR_NAME_BYTES_MAX: usize = 256;
/// Length of the names of all tensors that travel, in bytes: the task contains them.
pub const TENSOR_NAMES_BYTES_MAX: usize = 192 * 1024;
/// Dimensions of a tensor that travels.
pub const TENSOR_DIMENSIONS_MAX: usize = 8;
/// Numbers of a row of a graph's task, and of its outputs.
pub const ROW_NUMBERS_MAX: u32 = 1 << 20;
/// Parameters of a model.
pub const PARAMETERS_MAX: u64 = 1_000_000_000;
/// Gauss–Legendre nodes of the path estimator.
pub const NODES_MAX: u8 = 8;
/// Pairs of complementary coalitions per participant that a cross-check may evaluate.
pub const CROSS_CHECK_PAIRS_MAX: u8 = 16;
/// Largest cohort whose scores are cross-checked by coalitions.
pub const CROSS_CHECK_COHORT_MAX: usize = 64;
/// Most classes whose losses a selection balances.
pub const EFFECT_CLASSES_MAX: usize = 64;
/// Largest cohort of a task whose updates coalitions value, over-selection included.
pub const COALITIONS_COHORT_MAX: u32 = 64;
/// Longest phase, window or delay, in milliseconds (30 days).
pub const PHASE_MS_MAX: u64 = 30 * 24 * 3_600 * 1_000;
/// Longest time from a task's opening to its expiry, in milliseconds: 366 days.
pub const TASK_MS_MAX: u64 = 366 * 24 * 3_600 * 1_000;
/// Accounts in the claim tree of one task.
pub const ACCOUNTS_MAX: usize = 20_000;
/// Longest Merkle proof that is accepted, in hashes.
pub const PROOF_LEN_MAX: usize = 64;
/// Largest canonical message other than blobs, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Warm-up steps of a local training.
pub const WARMUP_STEPS_MAX: u32 = 1_000_000;
/// Pixels by which a local training shifts images at most.
pub const CROP_PADDING_MAX: u32 = 64;
/// Passes of a public baseline over the validation rows of earlier rounds.
pub const BASELINE_EPOCHS_MAX: u32 = 16;
/// Earlier rounds whose validation rows train the public baseline: the latest.
pub const BASELINE_ROUNDS_MAX: usize = 32;
/// Earlier rounds whose global model deltas an update is compared with.
pub const GLOBAL_DELTAS_MAX: usize = 8;
/// Earlier rounds whose updates an update is compared with: the last productive round and the
/// latest rounds after it.
pub const EARLIER_ROUNDS_MAX: usize = 8;
/// Earlier updates are compared with those of a round only while their decoded size stays within
/// this number of bytes.
pub const EARLIER_UPDATES_BYTES_MAX: u64 = 1024 * 1024 * 1024;
