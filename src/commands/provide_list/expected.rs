//! `florin provide --list FILE --dry-run`: the deposits of a listing, and the expected earnings, before anything is
//! deposited.

use std::path::Path;

use florin_compute::{MarketStatistics, PROBE_MATRIX_BYTES};
use florin_participant::listings::{ListingDeposits, ListingOffer};
use florin_protocol::Amount;
use serde_json::json;

use crate::cli::Provide;
use crate::commands::market::{CheckedOrders, checked_orders};
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::machine_facts::MachineFacts;
use crate::market::MarketConnection;
use crate::rent::{ExpectedEarnings, MarketOrder};
use crate::show;

const HOUR_MS: f64 = 3_600_000.0;
const MINUTE_MS: f64 = 60_000.0;
/// A history below a day is an example.
const SHORT_HISTORY_MS: u64 = 86_400_000;

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
    let funds = Funds::find(&market, &arguments.wallet.wallet, &deposits)?;
    if arguments.json.json {
        let expectation = expected.as_ref().map(ExpectedEarnings::to_json);
        show::json(&json!({
            "devices": offer.devices,
            "machine": MachineFacts::read(),
            "stake": show::units(deposits.stake),
            "fees": show::units(deposits.fees),
            "probes": deposits.probes,
            "needed": show::units(funds.needed),
            "balance": funds.balance.map(show::units),
            "invalid": invalid.len(),
            "expected": expectation,
        }))?;
    } else {
        print(offer, (&deposits, funds), expected.as_ref());
        for (_, why) in &invalid {
            anstream::eprintln!("{0}warning:{0:#} {why}", show::NOTE);
        }
    }
    Ok(if invalid.is_empty() { Exit::Done } else { Exit::Negative })
}

/// Why a probe of this offer would probably be late on this machine.
fn doubt(offer: &ListingOffer, machine: &MachineFacts) -> Option<String> {
    let (devices, threads) = (offer.devices as usize, machine.threads);
    let filled = u64::from(offer.devices) * u64::from(offer.filled) * PROBE_MATRIX_BYTES as u64;
    if devices > threads {
        return Some(format!(
            "the machine has {threads} threads: a probe of {devices} devices would be late. List fewer"
        ));
    }
    let limit = machine.memory_limit_bytes.unwrap_or(u64::MAX);
    (filled > machine.memory_available_bytes.min(limit)).then(|| {
        format!(
            "probes fill {} MiB, more than the memory that is available: list fewer devices, or less memory_mib",
            filled >> 20
        )
    })
}

/// The balance of the wallet, and the one that the listing needs.
#[derive(Clone, Copy)]
struct Funds {
    needed: Amount,
    /// `None` without a wallet.
    balance: Option<Amount>,
}

impl Funds {
    fn find(
        market: &MarketConnection,
        wallet: &Path,
        deposits: &ListingDeposits,
    ) -> anyhow::Result<Self> {
        let needed = deposits.sum();
        let needed = needed.map_err(|error| Failure::input(error.code(), error.to_string()))?;
        let balance = match wallet.exists() {
            true => Some(market.ledger()?.balance(wallet::account(None, Some(wallet))?)?),
            false => None,
        };
        Ok(Self { needed, balance })
    }

    /// Why the listing could not be opened now.
    fn doubt(self) -> Option<String> {
        let missing = self.needed.minus(self.balance?).ok().filter(|missing| !missing.is_zero())?;
        Some(format!(
            "the wallet has too little for stake and fees: {} FLN are needed, and {} FLN are missing \
             [INSUFFICIENT_FUNDS]",
            show::fln(self.needed),
            show::fln(missing)
        ))
    }
}

fn print(
    offer: &ListingOffer,
    (deposits, funds): (&ListingDeposits, Funds),
    expected: Option<&ExpectedEarnings>,
) {
    let fln = |amount| format!("{} FLN", show::fln(amount));
    let machine = MachineFacts::read();
    show::facts(&[
        ("devices", format!("{} of {}", offer.devices, machine.processor_text())),
        ("memory", format!("{} of {} available", machine.available_text(), machine.memory_text())),
        (
            "stake",
            format!("{}, which returns unless leases contradict the bids", fln(deposits.stake)),
        ),
        ("fees", format!("at most {} for {} probes", fln(deposits.fees), deposits.probes)),
    ]);
    if let Some(balance) = funds.balance {
        show::facts(&[("balance", fln(balance))]);
    }
    for doubt in doubt(offer, &machine).into_iter().chain(funds.doubt()) {
        anstream::eprintln!("{0}warning:{0:#} {doubt}", show::NOTE);
    }
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
    show::sentence(&basis(expected));
}

/// The history and the assumptions behind an expectation.
fn basis(expected: &ExpectedEarnings) -> String {
    let doubt = match expected.period_ms < SHORT_HISTORY_MS {
        true => " That is short: take the numbers for an example.",
        false => "",
    };
    let awards = match expected.awards {
        1 => "1 award".to_owned(),
        awards => format!("{awards} awards"),
    };
    format!(
        "These numbers follow from {} and {awards}.{doubt} They suppose that renters go on as before, and that this \
         provider computes as many leases at a time. `florin provide --orders FILE --dry-run` has the pay of the orders \
         that take bids now. Nothing was deposited.",
        length(expected.period_ms)
    )
}

#[cfg(test)]
mod tests {
    use florin_protocol::Address;

    use super::*;

    #[test]
    fn a_wallet_with_too_little_is_doubted() {
        let funds = |balance: Option<&str>| Funds {
            needed: "2.5".parse().unwrap(),
            balance: balance.map(|balance| balance.parse().unwrap()),
        };
        assert_eq!((funds(None).doubt(), funds(Some("2.5")).doubt()), (None, None));
        let doubt = funds(Some("1")).doubt().unwrap();
        assert!(doubt.contains("1.5000 FLN are missing [INSUFFICIENT_FUNDS]"), "{doubt}");
    }

    #[test]
    fn an_expectation_states_its_history() {
        let fln = |text: &str| text.parse::<Amount>().unwrap();
        let expected = |period_ms| ExpectedEarnings {
            awards: 6,
            period_ms,
            providers: 1,
            median: fln("1"),
            busy_ppm: 1,
            pay_per_hour: fln("1"),
            fees_per_hour: fln("0"),
            earned: fln("1"),
            lost: fln("0"),
        };
        let short = basis(&expected(240_000));
        assert!(short.contains("4.0 min and 6 awards") && short.contains("short"), "{short}");
        assert!(!basis(&expected(SHORT_HISTORY_MS)).contains("short"));
    }

    #[test]
    fn an_offer_beyond_the_machine_is_doubted() {
        let machine = MachineFacts {
            processor: String::new(),
            cores: None,
            threads: 2,
            memory_bytes: 1 << 30,
            memory_available_bytes: 1 << 28,
            memory_limit_bytes: None,
            gpus: Vec::new(),
        };
        let offer = |devices, filled| ListingOffer {
            referee: Address([1; 20]),
            devices,
            filled,
            stake: None,
            fees_max: "1".parse().unwrap(),
            life_ms: 1,
            challenge_ms: 1,
        };
        assert_eq!(doubt(&offer(2, 2_048), &machine), None);
        assert!(doubt(&offer(3, 1), &machine).unwrap().contains("2 threads"));
        assert!(doubt(&offer(2, 2_049), &machine).unwrap().contains("256 MiB"));
        let limited = MachineFacts { memory_limit_bytes: Some(1 << 27), ..machine };
        assert!(doubt(&offer(2, 1_025), &limited).is_some());
    }
}
