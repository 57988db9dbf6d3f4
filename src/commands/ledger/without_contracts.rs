//! Stands in for `contracts` in a build without the feature `ethereum`: each command on a market's
//! contracts fails with `FEATURE_NOT_BUILT`.

use florin_ledger::SignedHead;
use florin_protocol::Digest;

use crate::cli::{ChainArg, JsonArg, LedgerAnchor, LedgerDeploy, LedgerStatus};
use crate::ethereum::not_built;
use crate::failure::Exit;

pub(crate) fn deploy(_arguments: &LedgerDeploy) -> anyhow::Result<Exit> {
    Err(not_built())
}

pub(crate) fn status(_arguments: &LedgerStatus) -> anyhow::Result<Exit> {
    Err(not_built())
}

pub(crate) fn anchor(_arguments: &LedgerAnchor, _head: &SignedHead) -> anyhow::Result<Exit> {
    Err(not_built())
}

pub(crate) fn anchored_head(_rpc: &str, _transaction: Digest) -> anyhow::Result<SignedHead> {
    Err(not_built())
}

pub(crate) fn verify(_chain: &ChainArg, _json: JsonArg) -> anyhow::Result<Exit> {
    Err(not_built())
}
