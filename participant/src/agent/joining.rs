//! Joining a task: check that it is valid and funded and that the rows fit it; register, bond,
//! enrol; and check the offer of each round.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use florin_learning::Precision;
use florin_ledger::{BondState, Ledger, LedgerError, Terms};
use florin_protocol::{
    Address, Admission, Amount, Blob, Canonical, Digest, EnrolRequest, ErrorCode, Invitation,
    ModelArchitecture, NodeKey, NodeSigner, Offer, Registration, Rejection, Report, Role,
    SelectionReason, SignError, Signed, TaskId, TaskPhase, TaskSpec, TaskView, Timestamp,
    WalletSigner, blob_digest, merkle::ClaimTotals,
};

use super::state_machine::RoundStage;
use super::{Agent, AgentError, CurrentRound, PersistedRound};
use crate::client::{Client, ClientError};
use crate::event::ParticipantEvent;
use crate::retry::{DepositPending, Transient, retry_with_backoff};
use crate::shared_folder::SharedFolder;
use crate::wallet::Wallet;

/// Lifetime of a signed registration, enrolment or query, in milliseconds.
pub(crate) const EXPIRY_MS: u64 = 600_000;
/// Most reads of a bond between which debits are applied.
const BALANCE_READS_MAX: u32 = 4;

impl Agent<'_, '_> {
    /// Checks that must pass before anything is put at risk.
    pub(super) fn check_task(&mut self) -> Result<(), AgentError> {
        let task = self.config.task;
        let bad = |why: String| AgentError::InvalidTask { task, why };
        self.spec.check().map_err(|error| bad(error.to_string()))?;
        let coordinator = self.context.client.coordinator().account;
        if self.spec.coordinator != coordinator {
            let named = self.spec.coordinator;
            return Err(bad(format!(
                "its coordinator is {named}, but this coordinator is {coordinator}"
            )));
        }
        let market = self.context.ledger.market();
        if self.spec.market != market {
            return Err(bad("its market is not the ledger's".to_owned()));
        }
        self.check_initial_model()?;
        self.check_data()
    }

    /// Refuses a task that is over for an account without a part in it. A participant of the task
    /// has files of it, a bond or earnings, and continues: it claims and withdraws its bond.
    pub(super) fn check_open(&mut self, phase: TaskPhase) -> Result<(), AgentError> {
        if !matches!(phase, TaskPhase::Closing | TaskPhase::Done) || self.store.exists() {
            return Ok(());
        }
        let (ledger, task, account) = (self.context.ledger, self.config.task, self.me);
        let bond = self.with_ledger(|| ledger.bond_of(task, account))?;
        let claimed = self.with_ledger(|| ledger.claimed_totals(task, account))?;
        let client = self.context.client;
        let proven = match self.with_client(|| client.proof(task, account)) {
            Ok(proof) => proof.totals,
            Err(ClientError::Rejected(_)) => ClaimTotals::default(),
            Err(error) => return Err(error.into()),
        };
        let none = ClaimTotals::default();
        if bond.amount.is_zero() && claimed == none && proven == none {
            return Err(AgentError::TaskClosed { task, account });
        }
        Ok(())
    }

    /// Refuses initial parameters that the buyer chose: a chosen first layer can read rows out of
    /// updates. Parameters that follow from the specification cannot be chosen.
    fn check_initial_model(&self) -> Result<(), AgentError> {
        let (task, model) = (self.config.task, self.spec.consent_digest());
        if self.config.accepted_models.contains(&model) {
            return Ok(());
        }
        if self.spec.model.trainer().is_some() {
            return Err(AgentError::TrainerNotAccepted { task, model });
        }
        if matches!(self.spec.model, ModelArchitecture::Graph(_)) {
            return Err(AgentError::ModelNotDerived { task, model });
        }
        let derived = florin_work::derived_model(&self.spec)
            .map_err(|error| AgentError::InvalidTask { task, why: error.to_string() })?;
        if blob_digest(&derived) != model {
            return Err(AgentError::ModelNotDerived { task, model });
        }
        Ok(())
    }

    /// Loads the task's graph before anything is put at risk, if the coordinator has it already.
    fn check_graph(&mut self) -> Result<(), AgentError> {
        match self.load_graph() {
            Err(AgentError::Client(ClientError::Rejected(why)))
                if matches!(why.code, ErrorCode::NotFound | ErrorCode::NotYetPublic) =>
            {
                Ok(())
            }
            loaded => loaded,
        }
    }

    /// Loads the task's graph, if its model is one: from the data folder, or from the coordinator.
    pub(super) fn load_graph(&mut self) -> Result<(), AgentError> {
        let ModelArchitecture::Graph(declared) = &self.spec.model else { return Ok(()) };
        if self.graph.is_some() {
            return Ok(());
        }
        let spec = self.spec.clone();
        let mut blobs = BTreeMap::new();
        for blob in declared.blobs().collect::<Vec<_>>() {
            let digest = blob.digest;
            let found = match self.store.blob(blob)? {
                Some(stored) => stored,
                None => {
                    let fetched = self.fetch_model_blob(&spec, blob)?;
                    self.store.write_blob(digest, &fetched)?;
                    fetched
                }
            };
            blobs.insert(digest, found);
        }
        let task = self.config.task;
        let read =
            |digest: Digest, _| Ok::<_, Rejection>(blobs.remove(&digest).unwrap_or_default());
        self.graph = florin_work::load_graph(&self.spec, read)
            .map_err(|rejection| AgentError::InvalidTask { task, why: rejection.to_string() })?;
        Ok(())
    }

    /// Fetches a file of the model, and measures the time if it comes from the coordinator.
    fn fetch_model_blob(&mut self, spec: &TaskSpec, blob: Blob) -> Result<Vec<u8>, AgentError> {
        let client = self.context.client;
        let mut time = Duration::ZERO;
        let fetched = self.with_client(|| {
            let start = Instant::now();
            let fetched = client.model_blob(spec, blob);
            time = start.elapsed();
            fetched
        })?;
        if !client.has_own_weights() {
            self.downloads.add(fetched.len(), time);
        }
        Ok(fetched)
    }

    fn check_data(&self) -> Result<(), AgentError> {
        let data = self.data();
        let precision = self.config.execution.precision;
        let is_graph = matches!(self.spec.model, ModelArchitecture::Graph(_));
        if precision != Precision::F32 && !is_graph {
            return Err(AgentError::Precision { precision });
        }
        let unfit = |why: String| Err(AgentError::DataDoesNotFit { why });
        let (width, classes) = (self.spec.data.width, self.spec.data.classes);
        if data.width() as u64 != u64::from(width) {
            return unfit(format!("its rows have {} features, not {width}", data.width()));
        }
        if data.classes() as u64 > u64::from(classes) {
            return unfit(format!("it has {} classes; the task has {classes}", data.classes()));
        }
        // Those of a producer come later.
        if data.rows() == 0 && self.context.producer.is_none() {
            return unfit("it has no rows; at least one is needed".to_owned());
        }
        // A bond that covers no row has no weight and earns nothing.
        let budget = &self.spec.budget;
        let least = budget.bond_min.max(budget.bond_per_row);
        match self.config.bond_max {
            Some(limit) if limit < least => Err(AgentError::BondLimit { limit, least }),
            _ => Ok(()),
        }
    }

    /// Registers, bonds and enrols. Each part does only what is missing, so every start may repeat
    /// it.
    pub(super) fn join(&mut self, view: &TaskView) -> Result<(), AgentError> {
        if !self.take_rows_before_bond()? {
            return Ok(());
        }
        self.plan_privacy(view)?;
        self.check_funded()?;
        self.check_graph()?;
        self.register()?;
        self.check_admission()?;
        self.bond()?;
        self.enrol_after_bonding()?;
        self.reported_at_enrolment = Some(view.reported);
        self.emit(&ParticipantEvent::Enrolled { task: self.config.task });
        Ok(())
    }

    fn register(&mut self) -> Result<(), AgentError> {
        let (wallet, client) = (self.context.wallet, self.context.client);
        let (guard, on_event) = (&self.guard, &mut self.on_event);
        let registered = retry_with_backoff(
            self.config.backoff,
            self.shutdown,
            |error: &RegisterError| on_event(&super::retrying_event(error)),
            || register(guard.signer(), wallet, client, Role::Participant),
        )?;
        if registered {
            self.emit(&ParticipantEvent::Registered { account: self.me });
        }
        Ok(())
    }

    /// Sends a request. If it is rejected because the registration gave way to others, as it may in a
    /// full market, registers again and repeats it once.
    pub(super) fn while_registered<T>(
        &mut self,
        send: impl Fn(&mut Self) -> Result<T, ClientError>,
    ) -> Result<Result<T, ClientError>, AgentError> {
        let sent = send(self);
        let rejection = sent.as_ref().err().and_then(ClientError::rejection);
        if rejection.is_none_or(|rejection| rejection.code != ErrorCode::NotRegistered) {
            return Ok(sent);
        }
        self.register()?;
        Ok(send(self))
    }

    /// Asks the coordinator, before any deposit, whether the task admits this account: it checks the
    /// admission before the bond.
    fn check_admission(&mut self) -> Result<(), AgentError> {
        if self.spec.admission == Admission::Open {
            return Ok(());
        }
        match self.send_enrolment() {
            Err(ClientError::Rejected(rejection)) if rejection.code == ErrorCode::BondTooSmall => {
                Ok(())
            }
            other => Ok(other?),
        }
    }

    fn enrolment_terms(&self) -> EnrolmentTerms {
        let (invitation, quote_ms) = (self.config.invitation.clone(), self.quote_ms);
        EnrolmentTerms { invitation, quote_ms, at_once: self.config.supervision.at_once }
    }

    /// Sends an enrolment.
    fn send_enrolment(&mut self) -> Result<(), ClientError> {
        let terms = self.enrolment_terms();
        let (client, on_event) = (self.context.client, &mut self.on_event);
        let say = enrolment_signer(&self.guard, &self.spec, self.me, terms);
        retry_with_backoff(
            self.config.backoff,
            self.shutdown,
            |error| on_event(&super::retrying_event(error)),
            || client.with_expiry(EXPIRY_MS, |expires| client.enrol(&say(expires))),
        )
    }

    /// Enrols with a bond that is on the ledger but that the coordinator may see only later.
    pub(super) fn enrol_after_bonding(&mut self) -> Result<(), AgentError> {
        // A deposit may take minutes, in which the registration has nothing that backs it.
        Ok(self.while_registered(Self::send_enrolment_after_bonding)??)
    }

    fn send_enrolment_after_bonding(&mut self) -> Result<(), ClientError> {
        let terms = self.enrolment_terms();
        let (client, on_event) = (self.context.client, &mut self.on_event);
        let say = enrolment_signer(&self.guard, &self.spec, self.me, terms);
        let enrol = |expires| client.enrol(&say(expires));
        let enrolled = retry_with_backoff(
            self.config.backoff,
            self.shutdown,
            |error: &DepositPending| on_event(&super::retrying_event(error)),
            || client.with_expiry(EXPIRY_MS, enrol).map_err(DepositPending),
        );
        enrolled.map_err(|DepositPending(error)| error)
    }

    /// Enrols again: this participant is not selected, or no longer. The coordinator removes a
    /// participant that missed a commit or a reveal, and sends no notice. For a participant that is
    /// still enrolled this changes nothing. A rejection is emitted as an event and is not fatal:
    /// the next report is another occasion.
    pub(super) fn enrol_again(&mut self, view: &TaskView) -> Result<(), AgentError> {
        match self.while_registered(Self::send_enrolment)? {
            Ok(()) => {}
            Err(ClientError::Rejected(rejection)) => {
                self.emit(&ParticipantEvent::NotEnrolled { task: self.config.task, rejection });
            }
            Err(error) => return Err(error.into()),
        }
        self.reported_at_enrolment = Some(view.reported);
        Ok(())
    }

    /// Checks that the ledger holds the task's escrow on the published terms, so that the pay is
    /// known before any work.
    fn check_funded(&mut self) -> Result<(), AgentError> {
        let (ledger, task) = (self.context.ledger, self.config.task);
        let unfunded = |why: &str| AgentError::NotFunded { task, why: why.to_owned() };
        let state = self
            .with_ledger(|| ledger.task(task))?
            .ok_or_else(|| unfunded("it is not on the ledger"))?;
        if state.terms != Terms::from_spec(&self.spec) {
            return Err(unfunded("its terms on the ledger differ from its specification"));
        }
        if state.closed {
            return Err(unfunded("it is closed"));
        }
        Ok(())
    }

    /// Enters the round that the view shows: emits its start, checks its offer, and finds the
    /// progress made before a restart.
    pub(super) fn enter_round(&mut self, view: &TaskView) -> Result<(), AgentError> {
        let Some(offer) = &view.offer else {
            return Ok(());
        };
        // An offer depends on all earlier reports, so those are read first.
        if self.reports_read + 1 != view.round.0 || self.reports_read < view.reported {
            return Ok(());
        }
        if self.current.round != view.round {
            self.check_offer(&offer.body)?;
            let scope = offer.body.scope;
            let update = self.guard.signed_update_for(scope.market, scope.task, scope.round);
            let limit = florin_work::update_bytes(&self.spec);
            let mut is_trained = self.store.update(view.round, limit)?.is_some();
            if !is_trained && update.is_none() && view.phase == TaskPhase::Committing {
                is_trained = self.take_over_late_update(&offer.body)?;
            }
            let trained_in = self.store.trained_in(view.round)?;
            let found = PersistedRound {
                receipt: self.store.receipt(view.round)?,
                signed: update.is_some(),
                trained: is_trained && self.may_send_update(trained_in),
            };
            self.current = CurrentRound {
                round: view.round,
                stage: found.stage(),
                announced: false,
                loss_micronats: None,
            };
        }
        if !self.current.announced && self.reported_at_enrolment.is_some() {
            self.current.announced = true;
            let (round, cohort) = (view.round, &offer.body.cohort);
            if cohort.contains(&self.me) {
                let pool = offer.body.pool;
                let place = cohort.binary_search(&self.me).ok();
                let reason = place.and_then(|place| offer.body.reasons.get(place).copied());
                let reason = reason.unwrap_or(SelectionReason::Drawn);
                let cohort = cohort.len();
                self.emit(&ParticipantEvent::Selected { round, pool, cohort, reason });
                if matches!(self.current.stage, RoundStage::Trained | RoundStage::Signed) {
                    let trained_in = self.store.trained_in(round)?;
                    self.emit(&ParticipantEvent::UpdateRecovered { round, trained_in });
                }
            } else {
                self.emit(&ParticipantEvent::NotSelected { round });
            }
        }
        Ok(())
    }

    /// The client has verified signature and scope. This checks that the offer continues the
    /// reports that this participant has read.
    fn check_offer(&self, offer: &Offer) -> Result<(), AgentError> {
        let round = offer.scope.round;
        let not_trusted = |why: String| Err(AgentError::OfferNotTrusted { round, why });
        let last = self.last_report.as_ref();
        let previous = last.map_or(Digest(self.spec.id().0), Report::digest);
        if offer.previous_report != previous {
            let why = format!("its previous report is {}, not {previous}", offer.previous_report);
            return not_trusted(why);
        }
        let base = last.map_or(self.spec.base_model, |report| report.model);
        if offer.base_model != base {
            let why = format!("its base model is {}, not {base}", offer.base_model);
            return not_trusted(why);
        }
        let pool = self.spec.pool_for_round(round, last).unwrap_or_default();
        if offer.pool != pool {
            let why = format!("its pool is {} FLN, not {pool} FLN", offer.pool);
            return not_trusted(why);
        }
        if offer.reasons.len() != offer.cohort.len() {
            return not_trusted("it has not one reason for each selected account".to_owned());
        }
        if offer.commit_by < offer.opened || offer.reveal_by < offer.commit_by {
            return not_trusted("its deadlines are not in order".to_owned());
        }
        Ok(())
    }
}

/// The parts of an enrolment that the participant states.
#[derive(Clone, Debug)]
struct EnrolmentTerms {
    invitation: Option<Invitation>,
    quote_ms: u64,
    at_once: u32,
}

/// Signs enrolments that expire at a given tick.
fn enrolment_signer(
    guard: &SharedFolder,
    spec: &TaskSpec,
    sender: Address,
    terms: EnrolmentTerms,
) -> impl Fn(Timestamp) -> Signed<EnrolRequest> {
    let (market, task) = (spec.market, spec.id());
    move |expires| {
        let EnrolmentTerms { invitation, quote_ms, at_once } = terms.clone();
        guard.sign(EnrolRequest { market, task, sender, invitation, quote_ms, at_once, expires })
    }
}

/// A bond, and the debits that the ledger has applied to it. Their sum is the total of all deposits.
#[derive(Clone, Copy, Debug)]
pub(super) struct BondBalance {
    /// The bond on the ledger.
    pub(super) bond: BondState,
    /// The total of the applied debits.
    pub(super) applied: Amount,
}

impl BondBalance {
    /// Reads both as of one moment: if a debit is applied between the reads, they are repeated.
    /// After [`BALANCE_READS_MAX`] reads the debits are those after the bond, so that the sum is
    /// not below the deposits.
    pub(super) fn read(
        ledger: &dyn Ledger,
        task: TaskId,
        account: Address,
    ) -> Result<Self, LedgerError> {
        let mut before = ledger.claimed_totals(task, account)?.debited;
        for _ in 1..BALANCE_READS_MAX {
            let balance = Self::read_once(ledger, task, account)?;
            if balance.applied == before {
                return Ok(balance);
            }
            before = balance.applied;
        }
        Self::read_once(ledger, task, account)
    }

    fn read_once(ledger: &dyn Ledger, task: TaskId, account: Address) -> Result<Self, LedgerError> {
        let bond = ledger.bond_of(task, account)?;
        Ok(Self { bond, applied: ledger.claimed_totals(task, account)?.debited })
    }
}

/// Bonds the difference to `wanted`, which is a function of the debits that the ledger has applied.
/// A debit that is applied at the same time does not change the total of the deposits. Returns the
/// amount added and the resulting bond.
///
/// # Errors
/// [`LedgerError`]; the same call continues where this one ended.
pub fn top_up_bond(
    ledger: &dyn Ledger,
    by: &dyn WalletSigner,
    task: TaskId,
    wanted: impl Fn(Amount) -> Amount,
) -> Result<(Amount, Amount), LedgerError> {
    let BondBalance { bond: there, applied } = BondBalance::read(ledger, task, by.address())?;
    // Any deposit, even the smallest, cancels a pending withdrawal.
    let least = Amount::from_units(u128::from(there.release.is_some()));
    let added = wanted(applied).minus(there.amount).unwrap_or(Amount::ZERO).max(least);
    if !added.is_zero() {
        ledger.bond(by, task, added)?;
    }
    Ok((added, there.amount.plus(added).unwrap_or(there.amount)))
}

/// The bond that `rows` rows require, at least the task's minimum and at most `limit`.
#[must_use]
pub fn required_bond(spec: &TaskSpec, rows: u64, limit: Option<Amount>) -> Amount {
    let most = Amount::from_units(u128::MAX);
    let all = spec.budget.bond_per_row.mul_div_down(rows.into(), 1).unwrap_or(most);
    all.max(spec.budget.bond_min).min(limit.unwrap_or(most))
}

/// Registers wallet and node key in a role, unless they are registered. Returns whether it
/// registered. Idempotent. A wallet has one node key per role, permanently: two keys could sign
/// conflicting messages.
pub(crate) fn register(
    signer: &NodeSigner,
    wallet: &Wallet,
    client: &Client,
    role: Role,
) -> Result<bool, RegisterError> {
    let known = client.registration(wallet.address(), role)?;
    if let Some(Registration { node_key: registered, .. }) = known {
        if registered == signer.key() {
            return Ok(false);
        }
        let (account, ours) = (wallet.address(), signer.key());
        return Err(RegisterError::OtherNodeKey { account, role, registered, ours });
    }
    let market = client.coordinator().market;
    // The inner error is local, the outer one the coordinator's.
    let outcome = client.with_expiry(EXPIRY_MS, |expires| {
        match Registration::sign(market, wallet, signer, role, expires) {
            Ok(registration) => client.register(&registration).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    })?;
    outcome?;
    Ok(true)
}

/// Errors of a registration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Signing(#[from] SignError),
    #[error("{account} is registered as {role} with another node key, {registered}")]
    OtherNodeKey { account: Address, role: Role, registered: NodeKey, ours: NodeKey },
}

impl Transient for RegisterError {
    fn is_transient(&self) -> bool {
        match self {
            Self::Client(error) => error.is_transient(),
            Self::Signing(_) | Self::OtherNodeKey { .. } => false,
        }
    }
}
