//! Who owns what: the Ledger trait, the embedded local chain, one conformance suite.
