//! Integration tests of the coordinator: its HTTP interface, its journal and its data folder.
#![allow(missing_docs)]

mod admission;
mod backup_and_restore;
mod bucket_storage;
mod clock_jumps;
mod cohort_draw;
mod connection_limits;
mod coordinator_bond;
mod crash_recovery;
mod data_classes;
mod earlier_updates;
mod embedded_ledger_payouts;
mod graceful_shutdown;
mod holdout_rows;
mod hostile_compressed_updates;
mod hostile_updates;
mod http2;
mod http_refusals;
mod isolation;
mod journal_replay;
mod late_updates;
mod lease_checkpoints;
mod lease_market;
mod leases;
mod listings;
mod market_shutting;
mod message_replays;
mod observability;
mod openapi_document;
mod openapi_validation;
mod order_changes;
mod page;
mod rate_limits;
mod registrations;
mod rejection_codes;
mod resumable_uploads;
mod round_archive;
mod routes;
mod s3_service;
mod settlement_outcomes;
mod shared_participants;
mod slow_clients;
mod snapshot_recovery;
mod stalled_tasks;
mod support;
mod task_limits;
mod test_coordinator;
mod tls;
mod transcripts;

// `meddled` takes these names from its parent module, here and in the store's unit tests.
