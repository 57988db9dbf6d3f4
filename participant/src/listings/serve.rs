//! The life of a listing at its provider: open, prove, and wait for the next probe.

use std::time::{Duration, Instant};

use florin_compute::{
    DRIFT_LIMIT, LinksUpload, ListingAction, ListingOutcome, ListingPhase, ListingPolicy,
    ListingTerms, ListingView, OrderMoney, SignedMessage,
};
use florin_ledger::{LedgerError, Refusal, Terms, listing_task};
use florin_protocol::{Amount, Digest, ErrorCode, WalletSigner};
use florin_work::{ComputedProbe, ProbeDevices, ProbeProgress};

use super::error::ListError;
use super::event::ListingNews;
use super::store::{Lister, aside, forget, lock, measure_storage, set_aside, store, stored};
use super::{ListConfig, ListingContext, card, measured};
use crate::agent::{BondStatus, withdraw_bond};
use crate::client::ClientError;
use crate::retry::{DepositPending, Transient, resume_transactions, retry_with_backoff};
use crate::shutdown::Shutdown;

/// The wait of a long poll: a shutdown waits for it.
const POLL_MS: u64 = 2_000;
/// Pause between two looks at the settlement and at a locked stake.
const SETTLE_PAUSE: Duration = Duration::from_secs(1);

/// Most listings that are over, of those that the coordinator remembers, whose stakes are looked at.
const ENDED_MAX: usize = 64;

/// How a listing went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListingSummary {
    /// The listing.
    pub listing: Digest,
    /// Probes that were passed.
    pub passed: u32,
    /// How it ended; `None` if the provider was stopped before.
    pub outcome: Option<ListingOutcome>,
    /// The part of the stake that has returned.
    pub returned: Amount,
}

impl ListingSummary {
    /// The summary of a run that found no open listing, and withdrew the stakes of earlier ones.
    const fn ended(returned: Amount) -> Self {
        Self { listing: Digest([0; 32]), passed: 0, outcome: None, returned }
    }
}

/// Lists devices and proves them until the listing is over or a shutdown is requested. A listing of an earlier run
/// goes on.
///
/// # Errors
/// [`ListError`].
pub fn serve_listing(
    config: &ListConfig,
    context: &ListingContext<'_>,
    shutdown: &Shutdown,
    on_news: &mut dyn FnMut(&ListingNews),
) -> Result<ListingSummary, ListError> {
    let _lock = lock(&config.folder)?;
    let mut provider = Provider::new(config, context, shutdown, on_news);
    let resumed = provider.resumed()?;
    provider.return_ended(&[])?;
    let view = match resumed {
        Some(view) => view,
        None => {
            provider.tell_others()?;
            provider.open()?
        }
    };
    provider.serve(view)
}

/// Ends all open listings of the account on the market, also beside the process that proves one, and waits for their
/// stakes. The stakes of earlier ones return as far as the ledger permits.
///
/// # Errors
/// [`ListError`].
pub fn end_listings(
    config: &ListConfig,
    context: &ListingContext<'_>,
    shutdown: &Shutdown,
    on_news: &mut dyn FnMut(&ListingNews),
) -> Result<Vec<ListingSummary>, ListError> {
    let mut provider = Provider::new(config, context, shutdown, on_news);
    let own = provider.own_listings()?;
    let mut stored = stored(&config.folder, provider.lister())?.map(|terms| terms.id());
    if let Some(listing) = stored {
        let view = own.iter().find(|view| view.listing.id() == listing);
        let has_stake = provider.has_stake(listing)?;
        if !view.is_some_and(|view| view.listing.outcome().is_none() || has_stake) {
            // It was never opened, or is forgotten, or its stake has returned.
            set_aside(&config.folder, listing)?;
            stored = None;
        }
    }
    let is_awaited =
        |view: &ListingView| view.listing.outcome().is_none() || stored == Some(view.listing.id());
    let (awaited, over): (Vec<_>, Vec<_>) = own.into_iter().partition(is_awaited);
    for view in awaited.iter().filter(|view| view.listing.outcome().is_none()) {
        provider.send(view.listing.id(), SignedMessage::Withdraw)?;
    }
    let over: Vec<Digest> = over.iter().map(|view| view.listing.id()).collect();
    let returned = provider.return_ended(&over)?;
    if awaited.is_empty() && returned.is_zero() {
        return Err(ListError::NoListing);
    }
    let mut summaries = Vec::new();
    if !returned.is_zero() {
        summaries.push(ListingSummary::ended(returned));
    }
    for view in awaited {
        summaries.push(provider.serve(view)?);
    }
    Ok(summaries)
}

struct Provider<'a, 'b> {
    config: &'a ListConfig,
    context: &'a ListingContext<'b>,
    shutdown: &'a Shutdown,
    on_news: &'a mut dyn FnMut(&ListingNews),
    /// The newest computed probe, with its seed.
    computed: Option<(Digest, ComputedProbe)>,
    /// Measured leases that were reported.
    drift: usize,
}

impl<'a, 'b> Provider<'a, 'b> {
    fn new(
        config: &'a ListConfig,
        context: &'a ListingContext<'b>,
        shutdown: &'a Shutdown,
        on_news: &'a mut dyn FnMut(&ListingNews),
    ) -> Self {
        Self { config, context, shutdown, on_news, computed: None, drift: 0 }
    }
}

impl Provider<'_, '_> {
    fn lister(&self) -> Lister {
        let ListingContext { ledger, wallet, .. } = *self.context;
        Lister { market: ledger.market(), provider: wallet.address() }
    }

    /// The account's listings that the coordinator remembers, the newest first.
    fn own_listings(&mut self) -> Result<Vec<ListingView>, ListError> {
        let (client, lister) = (self.context.client, self.lister());
        let mut all = self.retried(|| client.listings())?;
        all.retain(|view| lister.has(view.listing.terms()));
        Ok(all)
    }

    /// Whether the account has a stake in a listing.
    fn has_stake(&self, listing: Digest) -> Result<bool, ListError> {
        let ListingContext { ledger, wallet, .. } = *self.context;
        Ok(!ledger.bond_of(listing_task(listing), wallet.address())?.amount.is_zero())
    }

    /// Names open listings of the account beside the one that is opened now.
    fn tell_others(&mut self) -> Result<(), ListError> {
        for view in self.own_listings()? {
            if view.listing.outcome().is_none() {
                self.tell(&ListingNews::Another { listing: view.listing.id() });
            }
        }
        Ok(())
    }

    fn tell(&mut self, news: &ListingNews) {
        (self.on_news)(news);
    }

    /// Calls `attempt` with retries.
    fn retried<T, E: Transient + std::fmt::Display>(
        &mut self,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let on_news = &mut *self.on_news;
        let retrying = |error: &E| on_news(&ListingNews::Retrying { why: error.to_string() });
        retry_with_backoff(self.config.backoff, self.shutdown, retrying, attempt)
    }

    /// The view of the listing of an earlier run that goes on; opens it if its deposits were made, or if the offer is
    /// still the same. One that is over is laid aside, so that another one can be opened at once.
    fn resumed(&mut self) -> Result<Option<ListingView>, ListError> {
        let Some(terms) = stored(&self.config.folder, self.lister())? else { return Ok(None) };
        let ListingContext { client, ledger, wallet, .. } = *self.context;
        let listing = terms.id();
        let view = match self.retried(|| client.listing(listing, u32::MAX, 0)) {
            Ok(view) => Some(view),
            Err(error) if is_unknown(&error) => None,
            Err(error) => return Err(error.into()),
        };
        if view.as_ref().is_some_and(|view| view.listing.outcome().is_none()) {
            self.tell(&ListingNews::Resumed { listing });
            return Ok(view);
        }
        // A write that an earlier run did not complete changes what the ledger returns below.
        resume_transactions(ledger, wallet);
        let task = ledger.task(listing_task(listing))?;
        let goes_on = match &task {
            Some(task) => !task.closed,
            None => self.is_offered(&terms)?,
        };
        if view.is_none() && goes_on {
            self.tell(&ListingNews::Resumed { listing });
            match self.open_with(&terms) {
                // It was never opened, and its task on the ledger is too old for it.
                Err(ListError::TaskTaken) => {}
                opened => return opened.map(Some),
            }
        }
        set_aside(&self.config.folder, listing)?;
        Ok(None)
    }

    /// Whether the offer makes stored terms, with their card.
    fn is_offered(&mut self, terms: &ListingTerms) -> Result<bool, ListError> {
        let (client, Lister { market, provider }) = (self.context.client, self.lister());
        let policy = self.retried(|| client.listing_policy())?;
        let made =
            self.config.offer.terms(&policy, (market, provider), terms.card.clone(), terms.nonce);
        Ok(made.is_ok_and(|made| made == *terms))
    }

    /// Withdraws the stakes of listings that are over, as far as the ledger permits: of those that were laid aside, and
    /// of `more`. Returns their sum.
    fn return_ended(&mut self, more: &[Digest]) -> Result<Amount, ListError> {
        let ListingContext { client, ledger, wallet, .. } = *self.context;
        let mut all = Amount::ZERO;
        let mut over = aside(&self.config.folder, self.lister())?;
        over.extend(
            more.iter()
                .take(ENDED_MAX)
                .filter(|id| !over.contains(id))
                .copied()
                .collect::<Vec<_>>(),
        );
        for listing in over {
            let task = listing_task(listing);
            let state = ledger.task(task)?;
            if state
                .as_ref()
                .is_some_and(|state| !state.closed && state.terms.expires < client.now())
            {
                // After its expiry any account may close it.
                ledger.close(wallet, task)?;
            }
            match withdraw_bond(ledger, wallet, task)? {
                BondStatus::Returned(amount) => {
                    all = all.plus(amount).unwrap_or(all);
                    self.tell(&ListingNews::Returned { amount });
                    forget(&self.config.folder, listing)?;
                }
                BondStatus::Locked(until) => self.tell(&ListingNews::Locked { until }),
                BondStatus::None | BondStatus::NotRequested => {
                    if state.is_none_or(|state| state.closed) {
                        forget(&self.config.folder, listing)?;
                    }
                }
            }
        }
        Ok(all)
    }

    /// Measures the card, and opens a new listing.
    fn open(&mut self) -> Result<ListingView, ListError> {
        let ListingContext { client, ledger, wallet, class, products } = *self.context;
        let policy = self.retried(|| client.listing_policy())?;
        // Before the measurement, which takes a while.
        self.check_funds(&policy)?;
        let devices = self.config.offer.devices;
        let told = std::cell::RefCell::new(&mut *self.on_news);
        let progress = |done: u32| {
            if done < devices {
                (told.borrow_mut())(&ListingNews::Measuring { devices: done.saturating_add(1) });
            }
        };
        progress(0);
        let found = measured(self.config, products, &progress)?;
        let storage = measure_storage(&self.config.folder)?;
        let card = card(found, class, storage);
        self.tell(&ListingNews::Measured { card: card.clone() });
        let parties = (ledger.market(), wallet.address());
        let nonce = client.now().0;
        let terms = self.config.offer.terms(&policy, parties, card, nonce)?;
        store(&self.config.folder, &terms)?;
        self.open_with(&terms)
    }

    /// Checks the offer and the balance before anything is measured or stored.
    fn check_funds(&self, policy: &ListingPolicy) -> Result<(), ListError> {
        let ListingContext { ledger, wallet, .. } = *self.context;
        let needed = self.config.offer.deposits(policy)?.sum()?;
        let (account, available) = (wallet.address(), ledger.balance(wallet.address())?);
        match available >= needed {
            true => Ok(()),
            false => {
                let refusal = Refusal::Insufficient { account, available, needed };
                Err(LedgerError::Refused(refusal).into())
            }
        }
    }

    /// Asks the coordinator for its refusal before any tokens are locked: it checks a listing before it looks for the
    /// deposits. `None` if only these are missing.
    fn asked_first(&self, terms: &ListingTerms) -> Result<Option<ListingView>, ListError> {
        match self.context.client.open_listing(terms) {
            Err(error) if error.rejection().is_some_and(|r| r.code == ErrorCode::NotFunded) => {
                Ok(None)
            }
            asked => Ok(Some(asked?)),
        }
    }

    /// Deposits fees and stake as far as they are not on the ledger, and opens the listing.
    fn open_with(&mut self, terms: &ListingTerms) -> Result<ListingView, ListError> {
        let ListingContext { client, ledger, wallet, .. } = *self.context;
        let (market, account) = (ledger.market(), client.coordinator().account);
        let own = Terms::from_listing(terms, market, account, client.now())?;
        if ledger.task(own.task)?.is_none()
            && let Some(view) = self.asked_first(terms)?
        {
            return Ok(view);
        }
        let opened = self.retried(|| match ledger.open_task(wallet, &own) {
            Ok(_) | Err(LedgerError::Refused(Refusal::TaskExists(_))) => Ok(()),
            Err(error) => Err(error),
        });
        opened?;
        let is_own = ledger.task(own.task)?.is_some_and(|state| {
            state.terms.coordinator == account
                && state.terms.check_listing(terms, market, client.now()).is_ok()
        });
        if !is_own {
            return Err(ListError::TaskTaken);
        }
        let there = ledger.bond_of(own.task, wallet.address())?;
        // Any deposit, even the smallest, cancels a pending return of the bond.
        let smallest = Amount::from_units(u128::from(there.release.is_some()));
        let added = terms.stake.minus(there.amount).unwrap_or(Amount::ZERO).max(smallest);
        if !added.is_zero() {
            ledger.bond(wallet, own.task, added)?;
        }
        let view = self.retried(|| client.open_listing(terms).map_err(DepositPending))?;
        let (listing, fees) = (terms.id(), terms.pool().map_err(florin_compute::LeaseError::from)?);
        self.tell(&ListingNews::Opened { listing, stake: terms.stake, fees });
        Ok(view)
    }

    /// Answers probes until the listing is over, and then waits for the stake.
    fn serve(&mut self, mut view: ListingView) -> Result<ListingSummary, ListError> {
        let client = self.context.client;
        let id = view.listing.id();
        while view.listing.outcome().is_none() && !self.shutdown.is_requested() {
            self.report_drift(&view);
            let answered = self.answer(&view);
            if let Err(error) = &answered
                && !error.is_transient()
                && !matches!(error, ListError::Client(_) | ListError::Stopped)
            {
                answered?;
            } else if let Err(error) = answered {
                self.tell(&ListingNews::ProbeFailed { why: error.to_string() });
                self.shutdown.wait(Duration::from_millis(self.config.backoff.initial_ms.max(100)));
            }
            let after = view.listing.length();
            view = self.retried(|| client.listing(id, after, POLL_MS))?;
        }
        self.report_drift(&view);
        let mut returned = Amount::ZERO;
        if let Some(outcome) = view.listing.outcome() {
            self.computed = None;
            self.tell(&ListingNews::Over { outcome });
            while !view.money.is_final() && !self.shutdown.is_requested() {
                self.shutdown.wait(SETTLE_PAUSE);
                let after = view.listing.length();
                view = self.retried(|| client.listing(id, after, 0))?;
            }
            if view.money == OrderMoney::Settled || view.money == OrderMoney::Cancelled {
                returned = self.return_stake(&view)?;
            }
        }
        let (_, passed) = view.listing.probes();
        Ok(ListingSummary { listing: id, passed, outcome: view.listing.outcome(), returned })
    }

    fn report_drift(&mut self, view: &ListingView) {
        let (leases, drift) = view.listing.drift();
        if leases > self.drift {
            self.drift = leases;
            let (drift, limit) = (drift.parts(), DRIFT_LIMIT);
            self.tell(&ListingNews::LeaseMeasured { leases, drift, limit });
        }
    }

    /// Computes and shows the newest probe, as far as the coordinator waits for it.
    fn answer(&mut self, view: &ListingView) -> Result<(), ListError> {
        let (number, _) = view.listing.probes();
        let id = view.listing.id();
        let Some(probe) = view.listing.probe() else { return Ok(()) };
        if !matches!(view.listing.phase().0, ListingPhase::Computing | ListingPhase::Showing) {
            return Ok(());
        }
        // After a restart while links are shown, the states are computed again.
        if self.computed.as_ref().is_none_or(|(seed, _)| *seed != probe.seed) {
            self.compute(view, number, probe.seed)?;
        }
        let Some((_, computed)) = &self.computed else { return Ok(()) };
        let root = computed.root();
        let message = SignedMessage::Computed { seed: probe.seed, root };
        let shown = self.send(id, message)?;
        let Some(secret) = shown.listing.drawn().map(|drawn| drawn.secret) else { return Ok(()) };
        let Some((_, computed)) = &self.computed else { return Ok(()) };
        let mut products = (self.context.products)();
        let links = computed.show(secret, products.as_mut()).ok_or(ListError::Stopped)?;
        let ListingContext { client, ledger, wallet, .. } = *self.context;
        let upload = LinksUpload { listing: id, by: wallet.address(), root };
        let signature = upload.sign(ledger.market(), wallet)?;
        self.retried(|| client.show_links(id, &signature, &links))?;
        self.computed = None;
        self.tell(&ListingNews::Listed { number });
        Ok(())
    }

    /// Sends a signed message.
    fn send(&mut self, id: Digest, message: SignedMessage) -> Result<ListingView, ListError> {
        let ListingContext { client, ledger, wallet, .. } = *self.context;
        let body = ListingAction { listing: id, by: wallet.address(), message };
        let signed = body.sign(ledger.market(), wallet)?;
        Ok(self.retried(|| client.act_on_listing(&signed))?)
    }

    fn compute(&mut self, view: &ListingView, number: u32, seed: Digest) -> Result<(), ListError> {
        let terms = view.listing.terms();
        let (shape, limit_ms) = (terms.probe, terms.probe_ms());
        self.tell(&ListingNews::Probing { number, limit_ms });
        let began = Instant::now();
        let mut devices: ProbeDevices =
            (0..shape.devices).map(|_| (self.context.products)()).collect();
        let progress = ProbeProgress::default();
        let (send, computed) = std::sync::mpsc::channel::<()>();
        self.config.gate.close(true);
        let found = std::thread::scope(|scope| {
            let progress = &progress;
            let shutdown = self.shutdown;
            scope.spawn(move || {
                // A shutdown ends a probe.
                while computed.recv_timeout(Duration::from_millis(100))
                    == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    if shutdown.is_requested() {
                        progress.stop();
                    }
                }
            });
            let found = ComputedProbe::compute(seed, shape, &mut devices, progress);
            drop(send);
            found
        });
        self.config.gate.close(false);
        self.computed = found.map(|found| (seed, found));
        if self.computed.is_none() {
            return Err(ListError::Stopped);
        }
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.tell(&ListingNews::Computed { number, ms, limit_ms });
        Ok(())
    }

    /// Withdraws the stake once the ledger permits it. Returns what has returned.
    fn return_stake(&mut self, view: &ListingView) -> Result<Amount, ListError> {
        let ListingContext { ledger, wallet, .. } = *self.context;
        let task = listing_task(view.listing.id());
        let mut told = None;
        loop {
            match withdraw_bond(ledger, wallet, task)? {
                BondStatus::Returned(amount) => {
                    self.tell(&ListingNews::Returned { amount });
                    return Ok(amount);
                }
                BondStatus::Locked(until) if !self.shutdown.is_requested() => {
                    if told != Some(until) {
                        told = Some(until);
                        self.tell(&ListingNews::Locked { until });
                    }
                    self.shutdown.wait(SETTLE_PAUSE);
                }
                BondStatus::Locked(_) | BondStatus::None | BondStatus::NotRequested => {
                    return Ok(Amount::ZERO);
                }
            }
        }
    }
}

fn is_unknown(error: &ClientError) -> bool {
    error.rejection().is_some_and(|rejection| rejection.code == ErrorCode::NotFound)
}
