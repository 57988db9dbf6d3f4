//! `florin rent order`: opens the escrow on the ledger, announces the order to the coordinator, and
//! uploads its job.
//!
//! Each step is idempotent, and the exact order is stored next to its file before any tokens are locked:
//! an interrupted order resumes where it stopped, and the escrow is locked only once.

use std::path::Path;

use florin_compute::{ComputeOrder, DataClass, OrderRequest, OrderView};
use florin_ledger::lease_task;
use florin_participant::{Shutdown, Wallet};
use florin_protocol::{Canonical, Digest, WalletSigner};
use florin_work::{LeasedTraining, delivered_state};
use serde_json::json;

use super::earlier::{EarlierOrders, OrderSource};
use super::machine::{class_and_step, doubts_about, load};
use super::placing::{open_escrow, open_with_retries, opened_before, upload};
use super::{audit, readers, refused, stored, watch};
use crate::cli::RentOrder;
use crate::commands::arbiter::Confirmation;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::rent::OrderQuote;
use crate::rent::records;
use crate::show::{self, NOTE};
use crate::task_file::order::{self, OrderDraft, OrderParties, OrderRest};

/// An order that is ready to be placed.
struct ReadyOrder {
    draft: OrderDraft,
    rest: Option<OrderRest>,
    order: ComputeOrder,
    training: LeasedTraining,
    quote: OrderQuote,
    earlier: EarlierOrders,
    /// Doubts about the order, each with its code.
    warnings: Vec<String>,
}

pub(super) fn run(arguments: &RentOrder) -> anyhow::Result<Exit> {
    let place = &arguments.place;
    let confirmation = Confirmation { yes: place.yes, json: place.json.json };
    confirmation.require()?;
    let market = MarketConnection::connect(&place.market)?;
    let wallet = wallet::open(&place.wallet)?;
    let mut ready = prepare(arguments, &market, &wallet)?;
    market.check_confidential(ready.order.data_class)?;
    let request = OrderRequest { order: ready.order.clone(), job: ready.draft.job.clone() };
    let id = request.order.id();
    if !place.json.json {
        show::facts(&ready.quote.facts());
    }
    let view = match opened_before(&market, &request)? {
        Some(view) => view,
        None => {
            // A restart after the escrow asks no second time.
            let ledger = market.signing_ledger(&wallet, &place.wallet)?;
            if ledger.task(lease_task(&request.order))?.is_none() {
                if ready.order.data_class == DataClass::Private {
                    audit::check_possible(&ready.order, (&wallet, &*ledger), place.audit.engine)?;
                }
                let engine = place.audit.engine;
                let doubts = doubts_about(&ready.draft, &ready.order, &ready.training, engine)?;
                ready.warn(doubts);
                let others = ready.earlier.others(&ready.order, &*ledger)?;
                ready.warn(
                    others.into_iter().map(|other| locks_another_escrow(other, &arguments.file)),
                );
                confirmation.ask(&question(&ready))?;
            }
            stored::store(&arguments.file, ready.rest.as_ref(), &request)?;
            let challenge_ms = ready.draft.challenge_ms;
            open_escrow((&market, &*ledger, &wallet), &ready.order, challenge_ms)?;
            open_with_retries(&market, &request, &Shutdown::new())?
        }
    };
    // An audit, and a watch, go on until the settlement is final.
    let goes_on = ready.order.data_class == DataClass::Private || place.follow;
    if view.outcome.is_some() && (view.money.is_final() || !goes_on) {
        let message = format!(
            "order {} of this file is over: florin rent statement {} explains it. For another order, change nonce in {}",
            id.short(),
            id.short(),
            arguments.file.display()
        );
        return Err(Failure::negative("ORDER_OVER", message).into());
    }
    upload(&market, &ready.draft, &view)?;
    report(arguments, &ready, id)?;
    if ready.order.data_class == DataClass::Private {
        return audit::run_for(&place.audit, (&market, &wallet, &place.wallet), id, place.json);
    }
    match place.follow {
        true => watch::follow(&place.market, id, place.json.json),
        false => Ok(Exit::Done),
    }
}

impl ReadyOrder {
    /// Prints doubts about the order, before its escrow is locked.
    fn warn(&mut self, doubts: impl IntoIterator<Item = String>) {
        for doubt in doubts {
            anstream::eprintln!("{NOTE}warning:{NOTE:#} {doubt}");
            self.warnings.push(doubt);
        }
    }
}

fn locks_another_escrow(earlier: Digest, file: &Path) -> String {
    let (id, file) = (earlier.short(), file.display());
    format!(
        "order {id} of the same nonce has an escrow: this is another order with an escrow of its own, because {file}, \
         its model or its rows have changed since, and that one is not changed by it. Undo the changes to go on with \
         that one; `florin rent statement {id}` explains it [ANOTHER_ORDER]"
    )
}

/// The question before an escrow is locked.
fn question(ready: &ReadyOrder) -> String {
    let (escrow, class) = (show::fln(ready.quote.escrow), ready.order.data_class);
    let bond = match class {
        DataClass::Private => {
            format!(
                ", and deposit {} FLN as its auditor",
                show::fln(ready.order.deposits.audit_bond)
            )
        }
        DataClass::Public | DataClass::Buyer => String::new(),
    };
    format!("Lock {escrow} FLN{bond}? {}", readers(class, ready.draft.split.as_ref()))
}

fn report(arguments: &RentOrder, ready: &ReadyOrder, id: Digest) -> anyhow::Result<()> {
    if arguments.place.json.json {
        let locked = show::units(ready.quote.escrow);
        let fields = json!({
            "order": id,
            "locked": locked,
            "warnings": ready.warnings,
            "quote": ready.quote.to_json(),
        });
        let is_followed = arguments.place.follow || ready.order.data_class == DataClass::Private;
        return match is_followed {
            // Further lines follow.
            true => {
                show::json_line(&show::JsonEvent { event: "ordered", fields });
                Ok(())
            }
            false => show::json(&fields),
        };
    }
    anstream::println!("\nOrdered. Order {id}");
    if ready.order.data_class == DataClass::Private {
        show::hint(&format!(
            "You audit it: this program runs until the settlement is final. Interrupted, it goes on by `florin rent \
             audit {}`.",
            id.short()
        ));
    } else if !arguments.place.follow {
        show::hint(&format!("Follow it live: florin rent watch {}", id.short()));
    }
    Ok(())
}

/// Reads the file, and makes the order: the one of an earlier run, or a new one.
fn prepare(
    arguments: &RentOrder,
    market: &MarketConnection,
    wallet: &Wallet,
) -> anyhow::Result<ReadyOrder> {
    let file = &arguments.file;
    let draft = order::read(file, arguments.place.audit.engine)?;
    let parties = OrderParties { market: market.coordinator().market, renter: wallet.address() };
    let rest = match &arguments.after {
        Some(after) => Some(rest_of(market, wallet, after, &draft)?),
        None => None,
    };
    let source = OrderSource { file, draft: &draft, parties: &parties, rest: rest.as_ref() };
    let earlier = EarlierOrders::find(market, source)?;
    let order = match earlier.resumed(source, || market.ledger())? {
        Some(order) => order,
        None => {
            let machine = class_and_step(&draft, file, arguments.place.audit.engine)?;
            draft.order(file, &parties, machine, rest.as_ref())?
        }
    };
    let training = load(&draft, &order)?;
    let quote = OrderQuote::new(&order, &draft.job, draft.challenge_ms).map_err(refused)?;
    Ok(ReadyOrder { draft, rest, order, training, quote, earlier, warnings: Vec::new() })
}

/// The segments that an earlier order of the same job left.
fn rest_of(
    market: &MarketConnection,
    wallet: &Wallet,
    after: &str,
    draft: &OrderDraft,
) -> anyhow::Result<OrderRest> {
    let view = market.order(market.find_order(after)?)?;
    let id = view.id.short();
    if view.order.job != draft.job.digest() {
        let message = format!(
            "order {id} has another job: its result is no state of this training. Use the file, the \
             model and the rows that it was made from"
        );
        return Err(Failure::input("ORDER_OF_ANOTHER_JOB", message).into());
    }
    let Some(history) = records::history(market, &view)? else {
        let message = format!("order {id} waits for its job: order its file again to upload it");
        return Err(Failure::negative("ORDER_NOT_OVER", message).into());
    };
    let rest = OrderRest::after(history.lease())?;
    check_start((market, wallet), &view, draft, &rest)?;
    Ok(rest)
}

/// Checks before any tokens are locked that the coordinator has the state from which an order continues.
fn check_start(
    (market, wallet): (&MarketConnection, &Wallet),
    view: &OrderView,
    draft: &OrderDraft,
    rest: &OrderRest,
) -> anyhow::Result<()> {
    let before = view.order.first_segment;
    if rest.first_segment == 0 {
        return Ok(());
    }
    let bytes = market.order_state(&view.order, rest.start, Some(wallet))?;
    let delivered = rest.first_segment.saturating_sub(before);
    let state = delivered_state(&view.order, &draft.job, delivered, (rest.start, &bytes));
    state.map(drop).map_err(|error| {
        let message = format!(
            "the coordinator does not have the result of order {}: {error}. Order from segment 0: \
             `florin rent order` without --after, and with another nonce",
            view.id.short()
        );
        Failure::negative("WRONG_RESULT", message).into()
    })
}
