//! `florin provide --list FILE --dry-run`: the deposits of a listing, and the expected earnings, before anything is
//! deposited.

use florin_compute::MarketStatistics;
use florin_participant::listings::{ListingDeposits, ListingOffer};
use serde_json::json;

use crate::cli::Provide;
use crate::commands::market::{CheckedOrders, checked_orders};
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::rent::{ExpectedEarnings, MarketOrder};
use crate::show;

const HOUR_MS: f64 = 3_600_000.0;
const MINUTE_MS: f64 = 60_000.0;

/// A time in words.
fn length(ms: u64) -> String {
    let ms = ms as f64;
    if ms < HOUR_MS {
        return format!("{:.1} min", ms / MINUTE_MS);
    }
    format!("{:.1} h", ms / HOUR_MS)
}

/// Shows the expectation.
pub(super) fn run(arguments: &Provide, offer: &ListingOffer) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let policy = market.listing_policy()?;
    let deposits = offer.deposits(&policy);
    let deposits = deposits.map_err(|error| Failure::input(error.code(), error.to_string()))?;
    let CheckedOrders { orders, invalid, .. } = checked_orders(&market)?;
    let statistics = MarketStatistics::from_leases(orders.iter().filter_map(MarketOrder::facts))?;
    let expected = ExpectedEarnings::of(&statistics, &policy, offer.devices, market.now())?;
    if arguments.json.json {
        let expectation = expected.as_ref().map(ExpectedEarnings::to_json);
        show::json(&json!({
            "devices": offer.devices,
            "stake": show::units(deposits.stake),
            "fees": show::units(deposits.fees),
            "probes": deposits.probes,
            "invalid": invalid.len(),
            "expected": expectation,
        }))?;
    } else {
        print(offer, &deposits, expected.as_ref());
        for (_, why) in &invalid {
            anstream::eprintln!("{0}warning:{0:#} {why}", show::NOTE);
        }
    }
    Ok(if invalid.is_empty() { Exit::Done } else { Exit::Negative })
}

fn print(offer: &ListingOffer, deposits: &ListingDeposits, expected: Option<&ExpectedEarnings>) {
    let fln = |amount| format!("{} FLN", show::fln(amount));
    show::facts(&[
        ("devices", offer.devices.to_string()),
        (
            "stake",
            format!("{}, which returns unless leases contradict the bids", fln(deposits.stake)),
        ),
        ("fees", format!("at most {} for {} probes", fln(deposits.fees), deposits.probes)),
    ]);
    anstream::println!();
    let Some(expected) = expected else {
        show::sentence(
            "No order of this market was awarded yet: its history lets nothing be expected. Nothing was deposited.",
        );
        return;
    };
    let leases = expected.busy_ppm as f64 / 1_000_000.0;
    let net = expected.pay_per_hour.minus(expected.fees_per_hour);
    let net = net.map_or_else(|_| "less than nothing".to_owned(), fln);
    show::facts(&[
        (
            "history",
            format!(
                "awards: {}, providers: {}, {}",
                expected.awards,
                expected.providers,
                length(expected.period_ms)
            ),
        ),
        ("price", format!("{} for a useful device-hour (median)", fln(expected.median))),
        (
            "leases",
            format!("{leases:.3} at a time, if orders are divided equally with a further provider"),
        ),
        ("pay", format!("{} an hour", fln(expected.pay_per_hour))),
        ("probes", format!("{} an hour", fln(expected.fees_per_hour))),
        ("rest", format!("{net} an hour, before power and losses")),
        (
            "losses",
            format!(
                "all providers earned {} and lost deposits of {}",
                fln(expected.earned),
                fln(expected.lost)
            ),
        ),
    ]);
    anstream::println!();
    show::sentence(
        "This supposes that renters go on as before, and that this provider computes as many leases at a time. `florin provide --orders FILE --dry-run` has the pay of the orders that \
         take bids now. Nothing was deposited.",
    );
}
