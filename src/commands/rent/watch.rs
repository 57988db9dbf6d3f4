//! `florin rent watch`: shows an order while its lease runs, until its settlement is final.

use florin_compute::{OrderMoney, OrderView};
use florin_participant::{ParticipantEvent, Shutdown};
use florin_protocol::Digest;
use serde_json::json;

use crate::cli::{MarketArg, RentWatch};
use crate::failure::{Exit, Failure};
use crate::market::{MarketConnection, with_retries};
use crate::rent::records;
use crate::rent::{LeaseNews, LeaseTransfer};
use crate::show::{self, BAD, GOOD, JsonEvent, NOTE};

/// How long a request waits for the next record, and the pause between two looks at a view, in
/// milliseconds.
const POLL_MS: u64 = 2_000;

pub(super) fn run(arguments: &RentWatch) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    follow(&arguments.market, market.find_order(&arguments.order)?, arguments.json.json)
}

/// Follows an order until its settlement is final.
///
/// # Errors
/// Those of the requests that no retry mends, and of an invalid record.
pub(super) fn follow(at: &MarketArg, order: Digest, is_json: bool) -> anyhow::Result<Exit> {
    let shutdown = Shutdown::new();
    let mut on_event = |event: &ParticipantEvent| anstream::eprintln!("{NOTE}{event}{NOTE:#}");
    let market = MarketConnection::connect_with_retries(at, &shutdown, &mut on_event)?;
    let screen = Screen { order, is_json };
    let mut view = with_retries(&shutdown, &mut on_event, || Ok(market.order(order)?))?;
    let mut missing = None;
    let mut history = loop {
        if let Some(history) = records::opened(&view)? {
            break history;
        }
        if let Some(why) = &view.refused {
            let message =
                format!("the coordinator has refused order {order}, and returns its escrow: {why}");
            return Err(Failure::negative("ORDER_REFUSED", message).into());
        }
        if missing != Some(view.missing.len()) {
            screen.waits(&view);
            missing = Some(view.missing.len());
        }
        pause();
        view = with_retries(&shutdown, &mut on_event, || Ok(market.order(order)?))?;
    };
    screen.opened(&view);
    while history.lease().outcome().is_none() {
        let next = || records::follow(&market, &mut history, POLL_MS);
        for news in with_retries(&shutdown, &mut on_event, next)? {
            screen.news(&news);
        }
    }
    if let (Some(text), false) = (history.ended(), is_json) {
        anstream::println!("the lease is over: {text}");
    }
    let mut money = None;
    loop {
        let view = with_retries(&shutdown, &mut on_event, || Ok(market.order(order)?))?;
        if money != Some(view.money) {
            screen.money(view.money);
            money = Some(view.money);
        }
        if view.money.is_final() {
            return Ok(Exit::Done);
        }
        pause();
    }
}

fn pause() {
    std::thread::sleep(std::time::Duration::from_millis(POLL_MS));
}

/// The output: lines of text, or lines of JSON.
struct Screen {
    order: Digest,
    is_json: bool,
}

impl Screen {
    fn waits(&self, view: &OrderView) {
        let missing = view.missing.len();
        if self.is_json {
            let fields = json!({ "order": self.order, "missing": view.missing });
            return show::json_line(&JsonEvent { event: "waiting", fields });
        }
        anstream::println!("waiting for {missing} blobs of the job");
    }

    fn opened(&self, view: &OrderView) {
        if self.is_json {
            let (segments, opened) = (view.order.segments, view.opened);
            let fields = json!({ "order": self.order, "opened": opened, "segments": segments });
            return show::json_line(&JsonEvent { event: "opened", fields });
        }
        let opened = view.opened.map(show::moment).unwrap_or_default();
        anstream::println!("{opened}: the bids begin");
    }

    fn news(&self, news: &LeaseNews) {
        if self.is_json {
            let transfers: Vec<_> = news.transfers.iter().map(LeaseTransfer::to_json).collect();
            let fields = json!({
                "order": self.order,
                "at": news.at,
                "by": news.by,
                "action": news.action,
                "phase": news.phase.map(|(phase, _)| phase),
                "deadline": news.phase.map(|(_, deadline)| deadline),
                "transfers": transfers,
                "outcome": news.outcome,
            });
            return show::json_line(&JsonEvent { event: "record", fields });
        }
        let by = news.by.map_or_else(String::new, |by| format!("{} ", by.short()));
        let phase = match news.phase {
            Some((phase, deadline)) if news.outcome.is_none() => {
                format!("; {} until {}", phase.name(), show::moment(deadline))
            }
            _ => String::new(),
        };
        anstream::println!("{}: {by}{}{phase}", show::moment(news.at), news.action);
        for LeaseTransfer { account, amount, is_loss, reason, .. } in &news.transfers {
            let (style, verb) = if *is_loss { (BAD, "loses") } else { (GOOD, "earns") };
            let (account, amount) = (account.short(), show::fln(*amount));
            anstream::println!("{style}  {account} {verb} {amount} FLN: {reason}{style:#}");
        }
    }

    fn money(&self, money: OrderMoney) {
        if self.is_json {
            let fields = json!({ "order": self.order, "money": money });
            return show::json_line(&JsonEvent { event: "money", fields });
        }
        anstream::println!(
            "{}",
            match money {
                OrderMoney::Locked => "the settlement is due",
                OrderMoney::Settling => "the settlement is posted, and can be challenged",
                OrderMoney::Settled => "the settlement is final",
                OrderMoney::Cancelled => {
                    "the referee has cancelled the settlement: no account is paid, and the escrow returns"
                }
            }
        );
    }
}
