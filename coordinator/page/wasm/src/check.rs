//! Checks of what a coordinator serves.

use florin_protocol::merkle::{self, ClaimTotals};
use florin_protocol::{
    Address, Canonical as _, Digest, LedgerInfo, MarketInfo, Mismatch, Offer, Report, Signed,
    Statement, TaskId, TaskSpec, check_report,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// The parts of a task's view that a check needs.
#[derive(Deserialize)]
struct TaskIdentity {
    id: TaskId,
    spec: TaskSpec,
}

/// A round as a coordinator serves it. The page passes each document on as it came: a number beyond
/// 2⁵³ would change in JavaScript.
#[derive(Deserialize)]
pub(crate) struct RoundDocuments {
    /// The task and the round of the page's address.
    task: TaskId,
    round: u32,
    market: MarketInfo,
    view: TaskIdentity,
    offer: Signed<Offer>,
    report: Signed<Report>,
    /// The report of the preceding round; absent in round 1.
    before: Option<Signed<Report>>,
    /// The holdout rows of all earlier rounds, as their reports state them.
    disclosed: Vec<u32>,
}

impl RoundDocuments {
    /// The digest of the report, and the lines that differ.
    pub(crate) fn check(&self) -> Value {
        let report = &self.report.body;
        let mut found = self.check_identity();
        // A wrong signature hides no wrong line; of another round nothing follows.
        if found.iter().all(|mismatch| mismatch.line.ends_with("signature")) {
            let before = self.before.as_ref().map(|before| &before.body);
            let offer = &self.offer.body;
            found.extend(check_report(&self.view.spec, offer, report, before, &self.disclosed));
        }
        let line = |found: &Mismatch| {
            json!({
                "line": found.line,
                "reported": found.reported,
                "recomputed": found.recomputed,
            })
        };
        let lines: Vec<Value> = found.iter().map(line).collect();
        json!({ "digest": report.digest(), "mismatches": lines })
    }

    /// Checks that the documents are of this task and round, and that the coordinator signed them.
    fn check_identity(&self) -> Vec<Mismatch> {
        let mut found = Vec::new();
        let mut differs = |line: &str, reported: &dyn ToString, ours: &dyn ToString| {
            found.push(Mismatch::new(line, reported, ours));
        };
        let (offer, report) = (&self.offer.body, &self.report.body);
        if self.view.id != self.task || self.view.spec.id() != self.task {
            differs("task", &self.view.spec.id(), &self.task);
        }
        if report.scope.round.0 != self.round {
            differs("scope.round", &report.scope.round, &self.round);
        }
        if self.view.spec.coordinator != self.market.coordinator {
            differs("coordinator", &self.market.coordinator, &self.view.spec.coordinator);
        }
        if report.scope.market != self.market.market {
            differs("scope.market", &report.scope.market.genesis, &self.market.market.genesis);
        }
        if offer.scope != report.scope || report.scope.task != self.task {
            differs("scope", &format!("{:?}", report.scope), &format!("{:?}", offer.scope));
        }
        let expected =
            self.before.as_ref().map_or(1, |before| before.body.scope.round.0.saturating_add(1));
        if report.scope.round.0 != expected {
            differs("scope.round", &report.scope.round, &expected);
        }
        if let Err(error) = self.offer.verify(self.market.node_key) {
            differs("offer.signature", &"the coordinator's", &error);
        }
        if let Err(error) = self.report.verify(self.market.node_key) {
            differs("signature", &"the coordinator's", &error);
        }
        found
    }
}

/// A task as a coordinator serves it.
#[derive(Deserialize)]
pub(crate) struct TaskDocuments {
    /// The task of the page's address.
    task: TaskId,
    view: TaskIdentity,
}

impl TaskDocuments {
    /// Whether the terms are those of the id.
    pub(crate) fn check(&self) -> Value {
        json!({ "valid": self.view.id == self.task && self.view.spec.id() == self.task })
    }
}

/// The running totals of an account, with their proof.
#[derive(Deserialize)]
pub(crate) struct ClaimDocuments {
    root: Digest,
    account: Address,
    totals: ClaimTotals,
    proof: Vec<Digest>,
}

impl ClaimDocuments {
    /// Whether the totals are in the tree of the root.
    pub(crate) fn check(&self) -> Value {
        json!({ "valid": merkle::verify(self.root, self.account, self.totals, &self.proof) })
    }
}

/// An account in a report.
#[derive(Deserialize)]
pub(crate) struct StatementRequest {
    account: Address,
    report: Signed<Report>,
}

impl StatementRequest {
    /// The amounts and the words of `florin statement`; null for an account that the report does not name.
    pub(crate) fn answer(&self) -> Value {
        json!({ "statement": Statement::from_report(&self.report.body, self.account) })
    }
}

/// A market's description.
#[derive(Deserialize)]
pub(crate) struct ContractsDocument {
    market: MarketInfo,
}

impl ContractsDocument {
    /// Whether the market's identity is that of the contracts that it names.
    pub(crate) fn check(&self) -> Value {
        let valid = match &self.market.ledger {
            LedgerInfo::Embedded => false,
            LedgerInfo::Ethereum(info) => {
                info.market_on(self.market.market.chain) == self.market.market
            }
        };
        json!({ "valid": valid })
    }
}
