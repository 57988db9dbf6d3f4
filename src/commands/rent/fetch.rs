//! `florin rent fetch`: fetches the trained model of an order, and checks all of it.

use florin_compute::{ComputeOrder, DataClass, Lease, LeaseOutcome};
use florin_learning::tensors;
use florin_participant::ClientError;
use florin_protocol::{Digest, ErrorCode, ModelArchitecture, WalletSigner};
use florin_work::delivered_state;
use serde_json::json;

use crate::cli::RentFetch;
use crate::commands::out_file::{refuse_existing_but, write_bytes};
use crate::commands::task::write_whole;
use crate::commands::wallet;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::rent::outcome_text;
use crate::rent::records;
use crate::show;

pub(super) fn run(arguments: &RentFetch) -> anyhow::Result<Exit> {
    refuse_existing_but(arguments.from.as_deref(), &arguments.out)?;
    let market = MarketConnection::connect(&arguments.market)?;
    let view = market.order(market.find_order(&arguments.order)?)?;
    let history = records::history(&market, &view)?;
    let Some(history) = history else { return Err(not_over(view.id).into()) };
    let (result, delivered) = result(history.lease())?;
    let order = history.lease().order();
    let job = market.order_job(view.id, order.job)?;
    let reader = match (order.data_class, &arguments.wallet) {
        (DataClass::Public, _) | (_, None) => None,
        (_, Some(wallet)) => Some(wallet::open_file(wallet, &arguments.passphrase)?),
    };
    let reader = reader.as_ref().map(|wallet| -> &dyn WalletSigner { wallet });
    let bytes = market.order_state(order, result, reader).map_err(|error| named(error, order))?;
    let state = delivered_state(order, &job, delivered, (result, &bytes)).map_err(|error| {
        let message = format!("the coordinator sent no result of order {}: {error}", view.id);
        Failure::negative("WRONG_RESULT", message)
    })?;
    let out = &arguments.out;
    match out.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("pt2")) {
        true => write_whole(&job.graph, state.params(), arguments.from.as_deref(), out)?,
        false => {
            let model = florin_work::model_spec(&ModelArchitecture::Graph(job.graph.clone()));
            let encoded = tensors::encode(&model, state.params())?;
            write_bytes(out, &encoded)?;
        }
    }
    let is_whole = delivered == order.segments;
    if arguments.json.json {
        show::json(&json!({
            "file": out,
            "order": view.id,
            "state": result,
            "steps": state.step(),
            "steps_of_job": job.steps(),
            "delivered": delivered,
            "segments": order.segments,
            "mean_loss": state.mean_loss(),
        }))?;
        return Ok(Exit::Done);
    }
    show::facts(&[
        ("model", out.display().to_string()),
        ("state", result.to_string()),
        ("trained", format!("{} of {} steps", state.step(), job.steps())),
        ("loss", format!("{:.6}, the mean of the last epoch that ended", state.mean_loss())),
    ]);
    if !is_whole {
        let id = view.id.short();
        show::hint(&format!(
            "\nThe provider stopped after {delivered} of {} segments. Order the rest: florin rent \
             continue {id} FILE",
            order.segments
        ));
    }
    Ok(Exit::Done)
}

/// The refusal of a result that is not public, with the argument that is missing.
fn named(error: ClientError, order: &ComputeOrder) -> anyhow::Error {
    let is_refused =
        error.rejection().is_some_and(|rejection| rejection.code == ErrorCode::DataRestricted);
    match is_refused {
        false => error.into(),
        true => {
            let message = format!(
                "the result of order {} is of the data class {}: only its renter {} may read it; name that wallet by \
                 --wallet",
                order.id().short(),
                order.data_class.name(),
                order.renter
            );
            Failure::input("DATA_RESTRICTED", message).into()
        }
    }
}

fn not_over(id: Digest) -> Failure {
    let message = format!("order {} has no result yet: wait until it is over", id.short());
    Failure::negative("ORDER_NOT_OVER", message)
}

/// The opened result of a lease that is over, and its delivered segments.
fn result(lease: &Lease) -> Result<(Digest, u32), Failure> {
    let id = lease.order().id();
    let delivered = match lease.outcome() {
        None => return Err(not_over(id)),
        Some(LeaseOutcome::Settled) => lease.order().segments,
        Some(LeaseOutcome::Defaulted { delivered }) => delivered,
        Some(LeaseOutcome::Unawarded) => {
            let why = outcome_text(LeaseOutcome::Unawarded, lease.order().segments);
            let message = format!("order {} was {why}; its escrow is refunded", id.short());
            return Err(Failure::negative("NO_RESULT", message));
        }
        Some(LeaseOutcome::Slashed { segment }) => {
            let message = format!(
                "the provider of order {} lost its stake over segment {segment}: its states are not \
                 to be trusted, and the order was not paid",
                id.short()
            );
            return Err(Failure::negative("NO_RESULT", message));
        }
    };
    match lease.result() {
        Some(result) if delivered > 0 => Ok((result, delivered)),
        _ => {
            let message = format!("order {} delivered no segment", id.short());
            Err(Failure::negative("NO_RESULT", message))
        }
    }
}
