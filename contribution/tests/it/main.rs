//! Integration tests of the estimators through the public interface.

mod a_check_can_be_checked;
mod a_null_player_is_worth_nothing;
mod a_path_can_be_taken_at_once;
mod a_round_below_the_threshold_is_not_looked_at;
mod estimators_agree_where_they_must;
mod known_games_have_their_known_values;
mod luck_is_part_of_the_error;
mod nonsense_is_refused;
mod odd;
mod odd_rounds;
mod regressions_find_the_values;
mod rounds_are_valued_in_integers;
mod sampling;
mod support;
mod updates_alone_say_less_than_a_game;
