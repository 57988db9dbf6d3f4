//! Runs the round: a pure engine, its journal and its server.
