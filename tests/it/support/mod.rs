//! A small market of real processes, with its own ports and folders, which are removed afterwards.

pub(crate) mod chain;
pub(crate) mod kubernetes;
pub(crate) mod lease_host;
pub(crate) mod lease_run;
pub(crate) mod market;
pub(crate) mod page;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod sender;
pub(crate) mod slow;
pub(crate) mod slurm;
#[cfg(target_os = "linux")]
pub(crate) mod strace;
#[cfg(unix)]
pub(crate) mod tripwire;

pub(crate) use chain::{On, on_both};
pub(crate) use lease_host::{BEACON, HostState, LeaseHost};
pub(crate) use market::{TestMarket, TestPlan, words};
pub(crate) use process::{CommandOutput, Process, florin};
