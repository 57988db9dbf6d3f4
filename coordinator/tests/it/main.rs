//! Integration tests of the coordinator: its HTTP interface, its journal and its data folder.
#![allow(missing_docs)]

mod a_crowd_of_cheats;
mod backups_come_back;
mod blobs_are_in_a_bucket;
mod bucket_service;
mod cheats_in_every_format;
mod document;
mod door_stays_open;
mod earlier_updates_are_named;
mod http2_has_the_same_limits;
mod ledger_decides;
mod limits_hold;
mod money_moves;
mod nobody_blocks_others;
mod operators_see_what_happens;
mod rates_have_an_end;
mod replay_equals_live;
mod replays_are_refused;
mod restart_continues;
mod rounds_leave_the_memory;
mod routes_answer;
mod rows_judge_one_round;
mod rules_refuse_by_name;
mod shop;
mod shutdown_finishes_uploads;
mod snapshots_stand_for_records;
mod support;
mod the_clock_may_jump;
mod the_document_is_the_interface;
mod tls_is_spoken;
mod uploads_go_on;

// `meddled` takes these names from its parent module, here and in the store's unit tests.
