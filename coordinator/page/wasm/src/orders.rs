//! Checks of the market for compute: the record of a lease, and statistics of what such records prove.

use florin_compute::{
    LeaseError, LeaseFacts, LeaseRecord, MarketStatistics, ObservedLease, OrderView,
};
use florin_protocol::{Digest, MarketId};
use serde::Deserialize;
use serde_json::{Value, json};

/// An order as a coordinator serves it, with its records in the parts in which the page fetched them.
#[derive(Deserialize)]
pub(crate) struct OrderDocuments {
    /// The order of the page's request.
    order: Digest,
    market: MarketId,
    view: OrderView,
    records: Vec<Vec<LeaseRecord>>,
}

impl OrderDocuments {
    /// The facts that the records prove, or the reason for which they prove none: each is performed again.
    pub(crate) fn check(&self) -> Value {
        match self.facts() {
            Ok(facts) => json!({ "facts": facts }),
            Err(why) => json!({ "wrong": why }),
        }
    }

    fn facts(&self) -> Result<Option<LeaseFacts>, String> {
        let Self { order, market, view, records } = self;
        if view.id != *order || view.order.id() != view.id || view.order.market != *market {
            return Err("the order is another one, or of another market".to_owned());
        }
        let Some(opening) = view.opening() else { return Ok(None) };
        let invalid = |at: u32| move |error: LeaseError| format!("action {at}: {error}");
        let mut lease = ObservedLease::open(opening).map_err(invalid(0))?;
        for record in records.iter().flatten() {
            let at = lease.recorded().length();
            lease.push(record).map_err(invalid(at))?;
        }
        let facts = lease.facts().settled_as(view.money);
        let proven = (lease.recorded().length(), facts.outcome, lease.delivered());
        let (provider, stated) =
            (facts.award.map(|award| award.provider), (view.records, view.outcome, view.delivered));
        if proven != stated || provider != view.provider {
            return Err("the coordinator states another provider, end or number of segments than its records have".to_owned());
        }
        Ok(Some(facts))
    }
}

/// Leases of a market, as their records proved them.
#[derive(Deserialize)]
pub(crate) struct LeasesDocument {
    leases: Vec<LeaseFacts>,
}

impl LeasesDocument {
    /// The statistics: amounts in florins, shares in parts per million.
    pub(crate) fn statistics(&self) -> Value {
        let statistics = match MarketStatistics::from_leases(self.leases.iter().cloned()) {
            Ok(statistics) => statistics,
            Err(error) => return json!({ "error": error.to_string() }),
        };
        let providers: Vec<Value> = statistics
            .providers
            .iter()
            .map(|(account, of)| {
                json!({
                    "provider": account,
                    "won": of.won,
                    "delivered": of.delivered,
                    "defaulted": of.defaulted,
                    "slashed": of.slashed,
                    "earned": of.earned,
                    "lost": of.lost,
                    "per_hour": of.per_hour(),
                    "utilisation_ppm": statistics.utilisation(of),
                })
            })
            .collect();
        json!({
            "providers": providers,
            "median": statistics.median,
            "utilisation_ppm": statistics.utilisation_of_all(),
        })
    }
}
