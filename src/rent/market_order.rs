//! An order of a market for compute, with the history of its lease; and the market's statistics as JSON.

use florin_compute::{
    AwardFacts, DayPrice, LeaseFacts, MarketStatistics, ObservedLease, OrderMoney,
    ProviderStatistics,
};
use florin_protocol::{Address, Amount, Digest};
use serde_json::{Value, json};

use super::history::LeaseHistory;
use crate::show;

/// An order of a market.
#[derive(Debug, Clone)]
pub(crate) struct MarketOrder {
    /// Its id.
    pub(crate) id: Digest,
    /// The account that pays.
    pub(crate) renter: Address,
    /// Its segments.
    pub(crate) segments: u32,
    /// The class of bits.
    pub(crate) class: Digest,
    /// How far its money has come.
    pub(crate) money: OrderMoney,
    /// The history of its lease; `None` while blobs of its job are missing.
    pub(crate) history: Option<LeaseHistory>,
}

impl MarketOrder {
    /// The lease.
    pub(crate) fn observed(&self) -> Option<&ObservedLease> {
        self.history.as_ref().map(LeaseHistory::observed)
    }

    /// The facts that the market learns from the lease.
    pub(crate) fn facts(&self) -> Option<LeaseFacts> {
        self.observed().map(|lease| lease.facts().settled_as(self.money))
    }

    /// The award, once the order has one.
    pub(crate) fn award(&self) -> Option<AwardFacts> {
        self.observed()?.award()
    }

    /// The agreed price of the order, once it is awarded.
    pub(crate) fn price(&self) -> Option<Amount> {
        self.award().map(|award| award.price)
    }

    /// The order as JSON, with amounts in base units.
    pub(crate) fn to_json(&self) -> Value {
        let lease = self.history.as_ref().map(LeaseHistory::lease);
        let phase = lease.map(|lease| lease.phase());
        json!({
            "id": self.id,
            "renter": self.renter,
            "class": self.class,
            "phase": phase.map(|(phase, _)| phase),
            "deadline": phase.map(|(_, deadline)| deadline),
            "provider": lease.and_then(|lease| lease.award()).map(|award| award.provider),
            "delivered": self.observed().map(ObservedLease::delivered),
            "segments": self.segments,
            "price": self.price().map(show::units),
            "per_device_hour": self.award().and_then(|award| award.per_hour).map(show::units),
            "outcome": lease.and_then(|lease| lease.outcome()),
        })
    }
}

/// The statistics of a market as JSON, with amounts in base units and shares in parts per million.
pub(crate) fn statistics_json(statistics: &MarketStatistics) -> Value {
    let provider = |(account, of): (&Address, &ProviderStatistics)| {
        json!({
            "provider": account,
            "won": of.won,
            "delivered": of.delivered,
            "defaulted": of.defaulted,
            "slashed": of.slashed,
            "segments": of.segments,
            "earned": show::units(of.earned),
            "lost": show::units(of.lost),
            "per_device_hour": of.per_hour().map(show::units),
            "utilisation_ppm": statistics.utilisation(of),
        })
    };
    let day = |day: &DayPrice| {
        let median = show::units(day.median);
        json!({ "day": day.day, "awards": day.awards, "median_per_device_hour": median })
    };
    json!({
        "providers": statistics.providers.iter().map(provider).collect::<Vec<_>>(),
        "prices": statistics.days.iter().map(day).collect::<Vec<_>>(),
        "median_per_device_hour": statistics.median.map(show::units),
        "utilisation_ppm": statistics.utilisation_of_all(),
    })
}
