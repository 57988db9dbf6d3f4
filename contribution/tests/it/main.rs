//! Integration tests of the estimators through the public interface.

mod a_null_player_is_worth_nothing;
mod axioms;
mod between_round_truncation;
mod cross_check;
mod first_order_and_similarity;
mod gap_rules;
mod null_variance;
mod odd_regression;
mod odd_regression_rounds;
mod path_integral_in_one_call;
mod regressions;
mod rejections;
mod sampling;
mod support;
mod textbook_games;
mod value_round;
mod vectors;
