//! A small market of real processes, on ports of its own and in folders of its own, that leaves nothing behind.

pub(crate) mod chain;
pub(crate) mod market;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod sender;
#[cfg(unix)]
pub(crate) mod tripwire;

pub(crate) use chain::{On, on_both};
pub(crate) use market::{Plan, TestMarket};
pub(crate) use process::{Process, Said, florin};
