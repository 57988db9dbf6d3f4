//! `florin rent statement --of`: the earnings of an account in all orders and listings of a market.

use std::path::Path;

use florin_protocol::{Address, Timestamp};

use crate::cli::RentStatement;
use crate::commands::market::CheckedMarket;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::rent::{Earnings, Net, OrderEarnings};
use crate::show::{self, TextTable};

pub(super) fn run(arguments: &RentStatement, of: &str) -> anyhow::Result<Exit> {
    let account = account(of)?;
    let market = MarketConnection::connect(&arguments.market)?;
    let checked = CheckedMarket::fetch(&market)?;
    let earnings = Earnings::of(account, checked.orders(), checked.listings())?;
    if arguments.json.json {
        show::json(&earnings.to_json(account))?;
    } else {
        print(account, &earnings);
    }
    checked.warn();
    Ok(if checked.has_invalid() { Exit::Negative } else { Exit::Done })
}

/// The account of an address, or of a key file, which is not unlocked.
fn account(of: &str) -> anyhow::Result<Address> {
    let is_file = Path::new(of).exists();
    match of.parse::<Address>() {
        Ok(account) => Ok(account),
        Err(_) if is_file => wallet::keystore_address(Path::new(of)),
        Err(error) => {
            let message = format!("--of {of}: neither an address ({error}) nor a key file");
            Err(Failure::input("NO_ACCOUNT", message).into())
        }
    }
}

fn print(account: Address, earnings: &Earnings) {
    let short = account.short();
    if earnings.orders.is_empty() {
        show::sentence(&format!("No record of this market's orders mentions {account}."));
    } else {
        table(&earnings.orders).print();
        anstream::println!();
    }
    if !earnings.listings.is_zero() {
        let listings = show::fln(earnings.listings);
        show::sentence(&format!(
            "Its listings cost {listings} FLN: fees of probes and lost stakes."
        ));
    }
    if !earnings.spent.is_zero() {
        let spent = show::fln(earnings.spent);
        show::sentence(&format!("As a renter it spent {spent} FLN of its escrows."));
    }
    if earnings.has_services() {
        print_net(&short, earnings);
    }
    for order in &earnings.orders {
        for reason in order.statement.reasons() {
            show::sentence(&format!("Order {}: {reason}", order.order.short()));
        }
    }
}

/// Pay less losses, in all and by the hour.
fn print_net(short: &str, earnings: &Earnings) {
    let (paid, lost) = (show::fln(earnings.net.gained), show::fln(earnings.net.lost));
    show::sentence(&format!(
        "{short} was paid {paid} FLN and lost {lost} FLN: {} FLN in all.",
        earnings.net.fln()
    ));
    let rates = [
        (earnings.per_computed_hour(), earnings.computed_ms, "in which its devices computed"),
        (earnings.per_hour(), period_ms(earnings.period), "since its first order was opened"),
    ];
    for (rate, ms, which) in rates {
        if let Some(rate) = rate.map(Net::fln) {
            let span = time(ms);
            show::sentence(&format!("That is {rate} FLN for each hour {which}, {span}."));
        }
    }
}

/// A time to the second, or in hours and minutes.
fn time(ms: u64) -> String {
    let seconds = ms.div_ceil(1_000);
    match (seconds / 3_600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

fn period_ms(period: Option<(Timestamp, Timestamp)>) -> u64 {
    period.map_or(0, |(from, to)| to.ms_since(from))
}

fn table(orders: &[OrderEarnings]) -> TextTable {
    let mut table = TextTable::new(&[
        "order",
        "part",
        "outcome",
        ">computed",
        ">paid, FLN",
        ">lost, FLN",
        ">spent, FLN",
        ">locked, FLN",
    ]);
    for order in orders {
        let outcome = match (order.is_cancelled, &order.ended) {
            (true, _) => "cancelled".to_owned(),
            (false, Some(ended)) => ended.clone(),
            (false, None) => "goes on".to_owned(),
        };
        let computed = order.ran.map_or_else(|| "–".to_owned(), |ran| time(period_ms(Some(ran))));
        table.row([
            order.order.short().into(),
            order.statement.roles.join(", ").into(),
            outcome.into(),
            computed.into(),
            show::fln(order.statement.paid).into(),
            show::fln(order.statement.lost).into(),
            show::fln(order.statement.spent).into(),
            show::fln(order.statement.locked).into(),
        ]);
    }
    table
}
