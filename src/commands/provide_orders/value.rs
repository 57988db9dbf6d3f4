//! The rounds of tasks that `florin provide --orders` values beside orders, by the table `[value]` of its policy.

use anyhow::Context;
use florin_ledger::Ledger;
use florin_participant::{
    ArbiterPolicy, ParticipantEvent, ProviderContext, Shutdown, Wallet, provide,
};
use florin_protocol::{Address, Amount};
use serde::Deserialize;
use serde_json::json;

use super::super::event_printer::EventPrinter;
use super::super::provide::ServedTasks;
use crate::cli::Provide;
use crate::compose;
use crate::market::{MarketConnection, with_retries};
use crate::show::{self, BAD, JsonEvent};

/// The table `[value]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ValueTable {
    stake_max: Amount,
    #[serde(default)]
    arbiters: Vec<Address>,
    #[serde(default)]
    trust_coordinator: bool,
    tasks: Option<Vec<String>>,
}

/// The market of a daemon, with its wallet and its ledger.
#[derive(Clone, Copy)]
pub(super) struct ValueParts<'a> {
    pub(super) market: &'a MarketConnection,
    pub(super) wallet: &'a Wallet,
    pub(super) ledger: &'a dyn Ledger,
}

impl ValueTable {
    /// Checks the table.
    ///
    /// # Errors
    /// The key, and values that are valid.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.stake_max.is_zero() {
            return Err("value.stake_max = 0: use more than 0".to_owned());
        }
        if self.arbiters.is_empty() && !self.trust_coordinator {
            return Err("value.arbiters: name the arbiters that you trust: they can take the stake; or set \
                        trust_coordinator = true"
                .to_owned());
        }
        match &self.tasks {
            Some(tasks) if tasks.is_empty() => {
                Err("value.tasks = []: name tasks, or leave the key out for all".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn serve(
        &self,
        arguments: &Provide,
        parts: ValueParts<'_>,
        shutdown: &Shutdown,
        printer: &EventPrinter,
    ) -> anyhow::Result<()> {
        let ValueParts { market, wallet, ledger } = parts;
        let mut print = |event: &ParticipantEvent| printer.print(event);
        let found = |tasks: &Vec<String>| {
            let find = || tasks.iter().map(|task| market.find(task)).collect();
            with_retries(shutdown, &mut print, find)
        };
        let tasks = self.tasks.as_ref().map(found).transpose()?;
        let mut engine = compose::engine(arguments.engine)?;
        let served = ServedTasks {
            tasks,
            stake_max: self.stake_max,
            arbiters: ArbiterPolicy {
                accepted: self.arbiters.clone(),
                trusts_coordinator: self.trust_coordinator,
            },
            accepted_trainers: Vec::new(),
        };
        let config = served.config(arguments);
        let context = ProviderContext { wallet, client: market, ledger, engine: &mut *engine };
        let done = provide(&config, context, shutdown, &mut print)?;
        if printer.is_json() {
            let (orders, units) = (done.orders, done.units);
            let fields =
                json!({ "orders": orders, "units": units, "withdrawn": show::units(done.claimed) });
            printer.print_json(&JsonEvent { event: "valued", fields });
        } else {
            let claimed = show::fln(done.claimed);
            let text = format!(
                "valued {} rounds, {} units, {claimed} FLN withdrawn",
                done.orders, done.units
            );
            printer.print_text(&text, anstyle::Style::new());
        }
        Ok(())
    }
}

/// Values rounds beside other work, until that ends.
///
/// # Errors
/// If no thread starts. An error of the valuations is printed, and the work goes on.
pub(super) fn beside<T>(
    arguments: &Provide,
    value: Option<&ValueTable>,
    parts: ValueParts<'_>,
    shutdown: &Shutdown,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let Some(value) = value else { return work() };
    let printer = EventPrinter::new(&arguments.wallet.wallet, arguments.json);
    std::thread::scope(|scope| {
        let valuing = std::thread::Builder::new().name("valuation".to_owned());
        let valuing = valuing.spawn_scoped(scope, || {
            if let Err(error) = value.serve(arguments, parts, shutdown, &printer) {
                printer.print_text(&format!("valuation: {error:#}"), BAD);
            }
        });
        valuing.context("cannot start a thread for valuations")?;
        let done = work();
        // The valuations end with the work.
        shutdown.request();
        done
    })
}
