//! Data, models, local training, evaluation and aggregation rules.
