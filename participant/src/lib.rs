//! Wallet, training agent, provider daemon, auditor.
