//! `florin demo --compute`: a market for compute on this machine. Coordinator, renter, three providers, three auditors
//! and a referee are processes of this program; one provider trains only every second segment.

mod outcome;
mod stage;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use florin_compute::LeaseOutcome;
use florin_protocol::Digest;

use super::children::{self, Children};
use super::setup::DemoFolder;
use super::{PATIENCE, run_json, words, writable};
use crate::cli::{Demo, MarketArg, NodeArg, TrustArg};
use crate::commands::market::CheckedMarket;
use crate::failure::{Exit, Failure};
use crate::market::MarketConnection;
use crate::progress::Progress;
use crate::show;
use outcome::ComputeOutcome;
use stage::ComputeStage;

/// Orders of the demonstration.
const ORDERS: u64 = 10;
/// Orders that are open at a time.
const ORDERS_AT_ONCE: usize = 5;
/// Most orders beside these: each of a slashed lease is placed again.
const REPEATS_MAX: u64 = 10;
/// Time between two looks at the orders.
const LOOK: Duration = Duration::from_millis(200);
/// Longest time in which no order ends.
const STALL: Duration = Duration::from_secs(180);
/// The line of a daemon that waits for orders.
const READY: &str = "waits for orders";

/// Runs the demonstration.
pub(super) fn run(arguments: &Demo) -> anyhow::Result<Exit> {
    arguments.json.as_deref().map_or(Ok(()), writable)?;
    writable(&arguments.out)?;
    children::catch_interrupts()?;
    let begun = Instant::now();
    let folder = DemoFolder::create(arguments.keep.as_deref())?;
    let stage = ComputeStage::create(folder.path(), arguments.seed)?;
    let children = Children::new(stage.logs())?;
    let mut play =
        ComputeDemo { stage, children, url: String::new(), next: arguments.seed.max(1) * 1_000 };
    let result = play.run_market(&arguments.out);
    play.children.stop(Duration::from_secs(2));
    children::check_interrupted()?;
    let outcome = result?;
    if let Some(file) = &arguments.json {
        let text = format!("{:#}\n", outcome.to_json());
        std::fs::write(file, text).with_context(|| file.display().to_string())?;
    }
    outcome.print();
    anstream::println!(
        "\n{}Time{:#}     {:.1} s",
        show::HEAD,
        show::HEAD,
        begun.elapsed().as_secs_f64()
    );
    anstream::println!("{}Report{:#}   {}", show::HEAD, show::HEAD, arguments.out.display());
    Ok(if outcome.is_clean() { Exit::Done } else { Exit::Negative })
}

/// A running demonstration.
struct ComputeDemo {
    stage: ComputeStage,
    children: Children,
    url: String,
    /// The number of the next order: its nonce and its seed.
    next: u64,
}

impl ComputeDemo {
    /// Runs the market, and writes its page.
    fn run_market(&mut self, page: &Path) -> anyhow::Result<ComputeOutcome> {
        anstream::println!("Opening the market");
        self.open_market()?;
        anstream::println!("Starting three providers, three auditors and a referee");
        self.start_daemons()?;
        let market = MarketConnection::connect(&self.arg())?;
        anstream::println!("Placing {ORDERS} orders, {ORDERS_AT_ONCE} at a time");
        self.serve_orders(&market)?;
        anstream::println!("Claiming, and checking every record and balance");
        self.wait_for_claims(&market)?;
        CheckedMarket::fetch(&market)?.write_page(&self.url, page)?;
        ComputeOutcome::collect(&market, &self.stage)
    }

    fn open_market(&mut self) -> anyhow::Result<()> {
        let address = self.stage.path("address");
        let mut call = words(&["coordinate", "--listen", "127.0.0.1:0", "--engine", "torch"]);
        call.extend(["--data".to_owned(), self.stage.path("coordinator")]);
        call.extend(["--genesis".to_owned(), self.stage.path("genesis.toml")]);
        call.extend(["--settings".to_owned(), self.stage.path("settings.toml")]);
        call.extend(["--address-file".to_owned(), address.clone()]);
        call.extend(self.stage.signing("coordinator"));
        self.children.start("coordinator", &call)?;
        let at = self.children.wait_for_file("coordinator", Path::new(&address), PATIENCE)?;
        self.url = format!("http://{at}");
        Ok(())
    }

    fn arg(&self) -> MarketArg {
        MarketArg { market: self.url.clone(), trust: TrustArg::default(), node: NodeArg::default() }
    }

    fn start_daemons(&mut self) -> anyhow::Result<()> {
        let providers = self.stage.providers.iter().map(|one| (one.name, one.is_lazy));
        let auditors = self.stage.auditors.iter().map(|(name, _)| (*name, false));
        let all: Vec<(&str, bool)> =
            providers.chain(auditors).chain([("referee", false)]).collect();
        for (name, is_lazy) in &all {
            let mut call = words(&["provide", "--engine", "torch", "--orders"]);
            call.push(self.stage.path(&format!("{name}.toml")));
            call.extend(["--market".to_owned(), self.url.clone()]);
            call.extend(self.stage.signing(name));
            if *is_lazy {
                call.extend(words(&["--experiment", "lazy"]));
            }
            self.children.start(name, &call)?;
        }
        for (name, _) in &all {
            self.children.wait_for_line(name, READY, PATIENCE)?;
        }
        Ok(())
    }

    /// Places an order; returns its id.
    fn place(&mut self) -> anyhow::Result<Digest> {
        let file = self.stage.order_file(self.next)?;
        self.next += 1;
        let mut call = words(&["rent", "order", "--yes", "--json", "--engine", "torch"]);
        call.push(file);
        call.extend(["--market".to_owned(), self.url.clone()]);
        call.extend(self.stage.signing("renter"));
        let answer = run_json(&mut self.children, "renter", &call)?;
        let id = answer["order"].as_str().context("`rent order` returned no order")?;
        Ok(id.parse()?)
    }

    /// Places orders until ten have a result: that of a slashed lease, or of one without a provider, is placed again.
    fn serve_orders(&mut self, market: &MarketConnection) -> anyhow::Result<()> {
        let (mut open, mut done, mut placed): (Vec<Digest>, u64, u64) = (Vec::new(), 0, 0);
        let shown = Progress::start("waiting for the first order");
        let mut changed = Instant::now();
        while done < ORDERS {
            let wanted = ORDERS.saturating_sub(done).min(ORDERS_AT_ONCE as u64) as usize;
            if open.is_empty() {
                for _ in 0..wanted {
                    open.push(self.place()?);
                }
                placed += wanted as u64;
                if placed > ORDERS + REPEATS_MAX {
                    let message = format!("{placed} orders gave {done} results of {ORDERS}");
                    return Err(Failure::fault("STALLED", message).into());
                }
            }
            self.children.check()?;
            std::thread::sleep(LOOK);
            let mut still = Vec::new();
            for id in open {
                let view = market.order(id)?;
                let Some(outcome) = view.outcome else {
                    still.push(id);
                    continue;
                };
                changed = Instant::now();
                done += u64::from(outcome == LeaseOutcome::Settled);
                let name = view.provider.map_or("–", |account| self.stage.name_of(account));
                let end = crate::rent::outcome_text(outcome, view.order.segments);
                anstream::println!("order {}  {name:<6}  {end}", id.short());
            }
            open = still;
            shown.step(format!("{done} of {ORDERS} orders have a result, {} are open", open.len()));
            if changed.elapsed() > STALL {
                let log = self.children.log_tail("coordinator");
                let message = format!("no order ends; the coordinator's log ends with:\n{log}");
                return Err(Failure::fault("STALLED", message).into());
            }
        }
        Ok(())
    }

    /// Waits until every order is settled and every account has its pay and its bonds.
    fn wait_for_claims(&mut self, market: &MarketConnection) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.children.check()?;
            let views = market.orders()?;
            let is_settled = views.iter().all(|view| view.money.is_final());
            if is_settled && outcome::is_paid_out(market, &self.stage, &views)? {
                return Ok(());
            }
            if begun.elapsed() > STALL {
                let log = self.children.log_tail("coordinator");
                let message =
                    format!("pay is not claimed; the coordinator's log ends with:\n{log}");
                return Err(Failure::fault("STALLED", message).into());
            }
            std::thread::sleep(LOOK);
        }
    }
}
