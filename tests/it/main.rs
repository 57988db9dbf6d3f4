//! The market as its users see it: the program itself, as real processes over loopback. Each file is one sentence.

mod a_backup_comes_back;
mod a_coordinator_stops_politely;
mod a_free_rider_earns_nothing;
mod a_hostile_update_changes_nothing;
mod a_ledger_on_ethereum_is_open_to_everybody;
mod a_market_speaks_tls;
mod a_node_may_fail_or_lie;
mod a_payout_survives_a_crash;
mod a_restart_continues_the_round;
mod anyone_can_recompute_a_payout;
mod bad_files_are_refused;
mod every_format_closes_its_rounds;
mod honest_work_is_paid;
mod publishing_again_locks_nothing_twice;
mod support;
mod the_books_balance;
mod the_demonstration_holds_what_it_promises;
mod tidy;
mod two_runs_with_one_seed_agree;
mod what_nobody_could_use_is_refused;
