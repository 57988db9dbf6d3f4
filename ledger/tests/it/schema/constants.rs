//! The limits of the protocol and of the ledger, by name and value.

use std::fs;

use florin_ledger::limits as ledger;
use florin_protocol::limits as protocol;
use serde_json::{Map, Value, json};

use super::repository;

macro_rules! constants {
    ($($module:ident: $($name:ident)+;)+) => {
        [$($((stringify!($module), stringify!($name), json!($module::$name)),)+)+]
    };
}

/// Name, module and value of every limit, and of the protocol's other constants.
pub(crate) fn constants() -> Map<String, Value> {
    let mut constants: Map<String, Value> =
        limits().into_iter().map(|(_, name, value)| (name.to_owned(), value)).collect();
    for (name, value) in [
        ("SPEC_VERSION", json!(florin_protocol::SPEC_VERSION)),
        ("REPORT_VERSION", json!(florin_protocol::Report::VERSION)),
        ("NANO_PER_NAT", json!(florin_protocol::NANO_PER_NAT.to_string())),
        ("DATA_PER_ROUND_MIN", json!(florin_protocol::DATA_PER_ROUND_MIN)),
        ("SETTLEMENT_MARGIN_MS", json!(florin_protocol::SETTLEMENT_MARGIN_MS)),
        ("TOP_K_PERMILLE_MAX", json!(florin_protocol::TOP_K_PERMILLE_MAX)),
    ] {
        constants.insert(name.to_owned(), value);
    }
    constants
}

fn limits() -> Vec<(&'static str, &'static str, Value)> {
    constants! {
        protocol:
            ENCODED_COLUMNS_MAX CATEGORIES_MAX CELL_TEXT_BYTES_MAX ENCODING_BYTES_MAX IMAGE_SIDE_MAX
            TOKENIZER_BYTES_MAX TOKENS_MAX
            ENROLLED_MAX ALLOW_LIST_MAX INVITATION_BYTES_MAX COHORT_MAX ROUNDS_MAX NAME_BYTES_MAX BLOB_BYTES_MAX
            HEADER_BYTES_MAX HOLDOUT_ROWS_MAX HOLDOUT_ROWS_PER_ROUND_MAX DISCLOSED_BYTES_MAX
            DECLARED_ROWS_MAX HIDDEN_LAYERS_MAX LAYER_UNITS_MAX GRAPH_BYTES_MAX TRAINER_BYTES_MAX GRAPH_TENSORS_MAX
            TENSOR_NAME_BYTES_MAX TENSOR_NAMES_BYTES_MAX TENSOR_DIMENSIONS_MAX ROW_NUMBERS_MAX
            PARAMETERS_MAX NODES_MAX
            CROSS_CHECK_PAIRS_MAX CROSS_CHECK_COHORT_MAX EFFECT_CLASSES_MAX COALITIONS_COHORT_MAX PHASE_MS_MAX TASK_MS_MAX ACCOUNTS_MAX PROOF_LEN_MAX
            MESSAGE_BYTES_MAX WARMUP_STEPS_MAX CROP_PADDING_MAX BASELINE_EPOCHS_MAX BASELINE_ROUNDS_MAX GLOBAL_DELTAS_MAX
            EARLIER_ROUNDS_MAX EARLIER_UPDATES_BYTES_MAX;
        ledger:
            BLOCK_TRANSACTIONS_MAX BLOCK_BYTES_MAX TRANSACTION_BYTES_MAX PENDING_MAX
            TASK_RESPONSE_BYTES_MAX PLEDGES_MAX SPLIT_MEMBERS_MAX ALLOCATIONS_MAX RECENT_MAX QUEUE_MAX
            NONCE_RETRIES_MAX RESPONSE_BYTES_MAX CONFIRMATIONS_MAX;
    }
    .into()
}

#[test]
fn every_limit_is_in_the_schema() {
    let listed = limits();
    for (module, file) in
        [("protocol", "protocol/src/limits.rs"), ("ledger", "ledger/src/limits.rs")]
    {
        let text = fs::read_to_string(repository().join(file)).unwrap();
        let declared = text.lines().filter_map(|line| {
            line.strip_prefix("pub const ")?.split(':').next().map(str::to_owned)
        });
        let known = listed.iter().filter(|(of, _, _)| *of == module).map(|(_, name, _)| *name);
        assert_eq!(declared.collect::<Vec<_>>(), known.collect::<Vec<_>>(), "{file}");
    }
}
