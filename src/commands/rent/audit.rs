//! `florin rent audit`: the renter of an order on private rows computes drawn segments again.

use std::path::PathBuf;

use florin_compute::{ComputeOrder, DataClass, LeaseOutcome, OrderView};
use florin_ledger::Ledger;
use florin_participant::leases::{
    AuditRule, LeaseEvent, LeasePolicy, LeaseServeConfig, ORDERS_POLL_MS, serve_orders,
};
use florin_participant::listings::ProbeGate;
use florin_participant::{Backoff, ProviderContext, Wallet};
use florin_protocol::{Address, Amount, Digest, WalletSigner};
use florin_work::compute_class;

use crate::cli::{AuditArg, EngineArg, JsonArg, RentAudit, WalletArg};
use crate::commands::event_printer::EventPrinter;
use crate::commands::participate::{state_folder, stop_on_request};
use crate::commands::provide_orders::{print_event, summary};
use crate::commands::wallet;
use crate::compose;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::show;

/// The renter, by its market and its wallet.
type Renter<'a> = (&'a MarketConnection, &'a Wallet, &'a WalletArg);

pub(super) fn run(arguments: &RentAudit) -> anyhow::Result<Exit> {
    let market = MarketConnection::connect(&arguments.market)?;
    let wallet = wallet::open(&arguments.wallet)?;
    let order = market.find_order(&arguments.order)?;
    run_for(&arguments.audit, (&market, &wallet, &arguments.wallet), order, arguments.json)
}

/// Checks before the escrow of an order on private rows is locked that its renter could audit it.
///
/// # Errors
/// `AUDIT_REFUSED` if this machine's engine has another class than the order, or the wallet has less than escrow and
/// bond.
pub(in crate::commands) fn check_possible(
    order: &ComputeOrder,
    (wallet, ledger): (&Wallet, &dyn Ledger),
    engine: EngineArg,
) -> anyhow::Result<()> {
    let refused = |why: String| Err(Failure::negative("AUDIT_REFUSED", why).into());
    let engine = compose::engine(engine)?;
    if compute_class(&*engine) != Some(order.class) {
        return refused(format!(
            "you audit an order on private rows, and {} on this machine is not of the order's class: leave out \
             order.class, and use --engine torch",
            engine.name()
        ));
    }
    let needed = order.escrow()?.plus(order.deposits.audit_bond)?;
    let balance = ledger.balance(wallet.address())?;
    match balance >= needed {
        true => Ok(()),
        false => refused(format!(
            "the escrow and your bond as the auditor are {} FLN, and the wallet has {} FLN",
            show::fln(needed),
            show::fln(balance)
        )),
    }
}

/// The settings by which a renter audits its own orders on private rows, as many as it places or `only` one. Their
/// windows and sizes are its own, so that nothing of them is refused.
pub(in crate::commands) fn own_audits(
    folder: PathBuf,
    (referee, bond_max): (Address, Amount),
    only: Option<Digest>,
) -> LeaseServeConfig {
    let policy = LeasePolicy {
        audit: Some(AuditRule { fee_min: Amount::ZERO, bond_max }),
        referees: vec![referee],
        challenge_min_ms: 0,
        window_min_ms: 1,
        job_bytes_max: u64::MAX,
        data_classes: [DataClass::Private].into(),
        ..LeasePolicy::none()
    };
    LeaseServeConfig {
        gate: ProbeGate::default(),
        folder,
        policy,
        poll_ms: ORDERS_POLL_MS,
        backoff: Backoff::default(),
        only,
        experiment: None,
    }
}

/// Audits an order until its settlement is final.
///
/// # Errors
/// `NOT_AUDITED_BY_RENTER` for an order of another renter or data class, `AUDIT_REFUSED` if this machine cannot
/// audit it, and those of the daemon.
pub(super) fn run_for(
    arguments: &AuditArg,
    (market, wallet, wallet_arg): Renter<'_>,
    id: Digest,
    json: JsonArg,
) -> anyhow::Result<Exit> {
    let order = market.order(id)?.order;
    if order.data_class != DataClass::Private || order.renter != wallet.address() {
        let message = format!(
            "order {} is of the data class {} and of the renter {}: a renter audits its own order on private rows; \
             others are audited by `florin provide --orders`",
            id.short(),
            order.data_class.name(),
            order.renter
        );
        return Err(Failure::input("NOT_AUDITED_BY_RENTER", message).into());
    }
    let ledger = market.signing_ledger(wallet, wallet_arg)?;
    let mut engine = compose::engine(arguments.engine)?;
    let folder = state_folder(arguments.state.as_deref(), &wallet_arg.wallet);
    let bond_max = order.deposits.audit_bond;
    let folder = folder.join(format!("audit-{}", id.short()));
    let config = own_audits(folder, (order.referee, bond_max), Some(id));
    let context =
        ProviderContext { wallet, client: market, ledger: &*ledger, engine: &mut *engine };
    let printer = EventPrinter::new(&wallet_arg.wallet, json);
    let mut refusal = None;
    let mut on_event = |event: &LeaseEvent| {
        if let LeaseEvent::OrderSkipped { reason, .. } = event {
            refusal = Some(reason.clone());
        }
        print_event(&printer, event);
    };
    let outcome = serve_orders(&config, context, &stop_on_request()?, &mut on_event)?;
    summary(&outcome, &printer);
    match refusal {
        None => ended(&market.order(id)?),
        Some(reason) => {
            let message = format!(
                "order {} is not audited: {reason}. Without an audit it gets no provider, and its escrow returns",
                id.short()
            );
            Err(Failure::negative("AUDIT_REFUSED", message).into())
        }
    }
}

/// The end of an order for its auditor.
fn ended(view: &OrderView) -> anyhow::Result<Exit> {
    let id = view.id.short();
    if let Some(why) = &view.refused {
        let message =
            format!("the coordinator has refused order {id}, and returns its escrow: {why}");
        return Err(Failure::negative("ORDER_REFUSED", message).into());
    }
    if view.outcome == Some(LeaseOutcome::Unawarded) {
        let message = format!(
            "order {id} found no provider, or its bids ended before your bond as its auditor: the escrow returns"
        );
        return Err(Failure::negative("NO_RESULT", message).into());
    }
    Ok(Exit::Done)
}
