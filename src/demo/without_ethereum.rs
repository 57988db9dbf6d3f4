//! Stands in for the demonstration on a development chain in a build without the feature `ethereum`.
//! Neither type has a value.

use florin_protocol::{Report, TaskId};
use serde_json::Value;

use super::children::Children;
use super::setup::DemoSetup;
use crate::cli::AnvilArg;
use crate::ethereum::not_built;

pub(crate) enum DemoChain {}

impl DemoChain {
    pub(crate) fn open(
        _children: &mut Children,
        _stage: &DemoSetup,
        _named: &AnvilArg,
    ) -> anyhow::Result<Self> {
        Err(not_built())
    }

    pub(crate) const fn rpc(&self) -> &str {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum OnChain {}

impl OnChain {
    pub(crate) const fn collect(
        chain: &DemoChain,
        _running: (&DemoSetup, &mut Children),
        _task: TaskId,
        _reports: &[Report],
    ) -> anyhow::Result<Self> {
        match *chain {}
    }

    pub(crate) const fn is_clean(&self) -> bool {
        match *self {}
    }

    pub(crate) const fn print(&self) {
        match *self {}
    }

    pub(crate) const fn to_json(&self) -> Value {
        match *self {}
    }
}

pub(crate) const fn section(_html: &mut String, on_chain: &OnChain) {
    match *on_chain {}
}
