//! The client side of a market: a wallet, a training agent that submits updates, a provider daemon
//! that evaluates coalitions for pay, and an auditor that recomputes every published result.
//!
//! | to | call | with |
//! |---|---|---|
//! | hold an account | [`Wallet`] | a keystore v3 file that Ethereum tools can read |
//! | take part in a task | [`participate`] | local rows, or a [`RowFeed`], and an engine that trains on them |
//! | do verifiable work for pay | [`provide`] | a stake, and an engine that evaluates |
//! | list devices under a stake | [`listings::serve_listing`] | an offer, deposits, and devices |
//! | compute orders for pay | [`leases::serve_orders`] | a policy, deposits, and an engine with a class |
//! | claim pay, withdraw deposits | [`claim`], [`withdraw_bond`], [`withdraw_stake`] | proofs, ledger |
//! | list earnings with reasons | [`statements`], [`balance`] | |
//! | verify a task | [`audit_task`], [`audit_round`], [`florin_protocol::check_report`] | public data only |
//! | act as an arbiter | [`watch()`], [`cancel_settlement`], [`slash_deposit`] | the arbiter's wallet |
//!
//! All durable state is on the ledger, at the coordinator or in a data folder, so a process may be
//! killed at any point and restarted. Messages that a key may sign only once go through the
//! [`SigningGuard`], which writes a record to disk before it signs. The [`Client`] verifies every message
//! that the coordinator signs against the node key pinned at first contact; no other module does
//! that.
//!
//! This crate holds no funds of other accounts, runs no rounds and prints nothing: it emits
//! [`ParticipantEvent`]s, and the caller decides where they go.
//!
//! ```no_run,standalone_crate
//! use florin_participant::{KeystoreStrength, Secret, Wallet};
//! use florin_protocol::WalletSigner;
//!
//! let folder = tempfile::tempdir()?;
//! let file = folder.path().join("wallet.json");
//! let passphrase = Secret::new("open sesame".to_owned());
//! let (wallet, phrase) = Wallet::create(&file, &passphrase, KeystoreStrength::Light)?;
//! assert_eq!(phrase.reveal().split(' ').count(), 12);
//! assert_eq!(Wallet::open(&file, &passphrase)?.address(), wallet.address());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent;
mod arbiter;
mod arbitration;
mod atomic_file;
mod audit;
mod behaviour;
mod blob_cache;
mod cancellation_record;
mod claim_summary;
mod client;
mod deposits;
mod event;
mod event_json;
mod guard;
mod hash_chain;
pub mod leases;
pub mod listings;
mod locked_file;
pub mod policy;
mod privacy;
mod producer;
mod provider;
mod retry;
mod round_terms;
mod secret;
mod shared_folder;
mod shutdown;
mod signed_heads;
mod statement;
#[cfg(test)]
mod testing;
mod trace;
mod turns;
mod wallet;
mod watch;

pub use agent::{
    AcceptedObjection, AgentError, BondStatus, ClaimError, ObjectionError, ParticipantConfig,
    ParticipantContext, ParticipationQuote, ParticipationSummary, RoundTrainingTime, Supervision,
    claim, claim_from_reports, claim_with_proof, contradictions, leave_task, object_from_receipts,
    participate, required_bond, state_machine, stored_receipts, stored_tasks, task_blob,
    top_up_bond, withdraw_bond,
};
pub use arbiter::{ArbiterPolicy, arbiter_acceptable};
pub use arbitration::{
    ArbitrationError, SettlementOfRound, cancel_settlement, cancellable_settlements, slash_deposit,
    slashable_deposit,
};
pub use atomic_file::{FileError, write_atomically};
pub use audit::{AuditError, AuditOptions, AuditReport, RoundAudit, audit_round, audit_task};
pub use behaviour::{
    Behaviour, BehaviourKind, BehaviourNameError, Flipped, Honest, Idle, Noise, Train,
};
pub use cancellation_record::CancellationRecord;
pub use claim_summary::ClaimSummary;
pub use client::{
    Client, ClientConfig, ClientError, CoordinatorIdentity, JSON_BYTES_MAX, WAIT_MS_MAX,
    WeightsSource, is_local_market,
};
pub use event::ParticipantEvent;
pub use event_json::{claim_fields, statement_fields};
pub use guard::{GuardError, RepeatableMessage, SignedUpdate, SigningGuard};
pub use hash_chain::HashChainError;
pub use privacy::{
    Epsilon, NoiseError, PrivacyConfig, PrivacyPlan, RoundPrivacy, recorded_privacy,
};
pub use producer::{
    FILES_LISTED_MAX, FILES_NOT_READY_MAX, FILES_UNREAD_MAX, FeedCounts, FeedSettings,
    LINE_BYTES_MAX, ProducerError, ProducerNews, QUEUE_FEATURES_MAX, QUEUE_ROWS_MAX,
    REFUSED_IN_A_ROW_MAX, RefusalCode, RowFeed, RowRefusal, SamplePurpose,
};
pub use provider::{
    ORDER_BYTES_MAX, ProviderConfig, ProviderContext, ProviderError, ProviderSummary, provide,
    withdraw_stake,
};
pub use retry::{Backoff, DepositPending, Transient, retry_with_backoff};
pub use round_terms::RoundTerms;
pub use secret::{SECRET_BYTES_MAX, Secret, SecretError};
pub use shared_folder::SharedFolder;
pub use shutdown::Shutdown;
pub use signed_heads::{HeadError, follow_recorded_head, read_signed_head};
pub use statement::{
    Balance, StatementError, Statements, TaskBalance, balance, explained_statement, statements,
};
pub use turns::{TrainingTurn, TrainingTurns};
pub use wallet::{
    DERIVATION_PATH, KEYSTORE_BYTES_MAX, KeystoreCost, KeystoreStrength, NODE_KEY_CONTEXT,
    PHRASE_WORDS, Wallet, WalletError, check_keystore,
};
pub use watch::{
    DECISION_DIVISOR, Objection, REPORT_GRACE_MS, WATCHED_TASKS_MAX, WatchAction, WatchConfig,
    WatchContext, WatchError, WatchEvent, WatchSummary, watch,
};

use florin_ledger::LedgerError;

/// The stable error code of a ledger error.
#[must_use]
pub const fn ledger_code(error: &LedgerError) -> &'static str {
    match error {
        LedgerError::Refused(refusal) => refusal.code(),
        LedgerError::Unavailable(_) => "LEDGER_UNAVAILABLE",
        LedgerError::Corrupt(_) => "LEDGER_CORRUPT",
        LedgerError::Gas(_) => "GAS_NOT_PAID",
        LedgerError::Outbox(_) => "OUTBOX_FAILED",
        LedgerError::Signing(_) => "SIGNING_FAILED",
    }
}
