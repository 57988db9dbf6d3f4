//! What an update is worth: Shapley estimators over an abstract game.
