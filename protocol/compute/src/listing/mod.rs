//! A listing: devices that a provider offers under a stake, whose card its probes and its leases test.
//!
//! ```text
//! opened ─▶ computing ─▶ showing ─▶ listed ─▶ computing …      each phase has a deadline
//!              │            │          └─▶ over: withdrawn, expired, or contradicted by three leases
//!              └────────────┴─▶ over: unproven
//! ```
//!
//! A listing follows from its record, as a lease does. It counts for bids while it is listed; the stake is lost only
//! by leases that contradict the provider's predictions.

mod drift;
mod probe;
mod record;
mod terms;

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::merkle::ClaimTotals;
use florin_protocol::{Address, Amount, Canonical, Digest, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

use crate::error::LeaseError;

pub use drift::{DRIFT_ALLOWANCE, DRIFT_LIMIT, DRIFT_RECOVERY_MAX, DRIFT_STEP_MAX, Drift};
pub use probe::{
    DRAWN_LINKS, DrawnProbe, Factor, LISTED_DEVICES_MAX, PROBE_FIELD, PROBE_MATRIX_BYTES,
    PROBE_POOL, PROBE_SIDE, PROBE_STATES_MAX, ProbeLink, ProbeShape, ProbeStep, SHOWN_BYTES_MAX,
    ShownFactor, ShownLink, ShownLinks, ShownState, drawn_links, first_state, pool_matrix,
    state_leaf, step,
};
pub use record::{
    LinksUpload, ListingAction, ListingEvent, ListingOpening, ListingPolicy, ListingRecord,
    ListingRequest, ListingView, SignedListingAction, SignedMessage,
};
pub use terms::{
    Card, LISTING_MS_MAX, LISTING_MS_MIN, ListingTerms, PROBE_SLACK, PROBE_WINDOW_MS, PROBES_MAX,
    SHOW_WINDOW_MS,
};

/// Most leases that a listing measures. It ends with the last one.
const MEASURED_MAX: usize = 4_096;

/// The phase of a listing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ListingPhase {
    /// The coordinator opens a probe. No default: the provider waits.
    Opened,
    /// The provider computes a probe. Default: it is unproven.
    Computing,
    /// The provider shows the drawn links. Default: it is unproven.
    Showing,
    /// The devices are proven, and bids count. It ends with its life.
    Listed,
    /// No bid counts; the stake returns, unless the leases contradicted the card.
    Over,
}

impl ListingPhase {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Computing => "computing",
            Self::Showing => "showing",
            Self::Listed => "listed",
            Self::Over => "over",
        }
    }
}

/// How a listing ended.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub enum ListingOutcome {
    /// A probe was not computed, or its links were not shown, by the deadline.
    Unproven,
    /// The provider ended it.
    Withdrawn,
    /// Its life or its paid probes were over.
    Expired,
    /// Leases took longer than the provider predicted: it lost the stake.
    Contradicted {
        /// The last of them.
        order: Digest,
    },
}

/// A probe of a listing.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Probe {
    /// The seed of its matrices.
    pub seed: Digest,
    /// The commitment to the secret that draws the shown links.
    pub draw: Digest,
    /// When it began.
    pub began: Timestamp,
    /// The root of all states, once it is computed.
    pub root: Option<Digest>,
    /// When it was computed.
    pub computed: Option<Timestamp>,
    /// The opened secret.
    pub secret: Option<Digest>,
}

/// A listing. [`Listing::apply`] performs an event or changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Listing {
    terms: ListingTerms,
    id: Digest,
    coordinator: Address,
    phase: ListingPhase,
    /// The deadline of the phase.
    deadline: Timestamp,
    /// The end of the listing's life.
    ends: Timestamp,
    /// Probes that were opened, and those that were passed.
    probes: u32,
    passed: u32,
    /// The newest probe.
    probe: Option<Probe>,
    /// The orders of measured leases, and what they say of the card.
    measured: BTreeSet<Digest>,
    drift: Drift,
    outcome: Option<ListingOutcome>,
    last: Timestamp,
    length: u32,
}

impl Canonical for Listing {
    const DOMAIN: &'static str = "florin v1 compute listing state";
}

/// The commitment to the secret that draws the links of a probe.
#[must_use]
pub fn draw_commitment(listing: Digest, secret: Digest) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 probe secret");
    hasher.update(&listing.0);
    hasher.update(&secret.0);
    Digest(*hasher.finalize().as_bytes())
}

impl Listing {
    /// A listing before its first probe.
    ///
    /// # Errors
    /// [`LeaseError`] for invalid terms.
    pub fn open(opening: &ListingOpening) -> Result<Self, LeaseError> {
        let ListingOpening { terms, coordinator, opened } = opening;
        terms.check()?;
        let ends = opened.saturating_add_ms(terms.life_ms);
        Ok(Self {
            id: terms.id(),
            coordinator: *coordinator,
            phase: ListingPhase::Opened,
            deadline: ends,
            ends,
            probes: 0,
            passed: 0,
            probe: None,
            measured: BTreeSet::new(),
            drift: Drift::default(),
            outcome: None,
            last: *opened,
            length: 0,
            terms: terms.clone(),
        })
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> Digest {
        self.id
    }

    /// Its terms.
    #[must_use]
    pub const fn terms(&self) -> &ListingTerms {
        &self.terms
    }

    /// The phase, and its deadline.
    #[must_use]
    pub const fn phase(&self) -> (ListingPhase, Timestamp) {
        (self.phase, self.deadline)
    }

    /// The newest probe.
    #[must_use]
    pub const fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Probes that were opened, and those that were passed.
    #[must_use]
    pub const fn probes(&self) -> (u32, u32) {
        (self.probes, self.passed)
    }

    /// Measured leases, and their sum.
    #[must_use]
    pub fn drift(&self) -> (usize, Drift) {
        (self.measured.len(), self.drift)
    }

    /// Whether it measures another lease: with the last one it ends.
    #[must_use]
    pub fn measures_more(&self) -> bool {
        self.measured.len() < MEASURED_MAX
    }

    /// Whether the lease of an order was measured.
    #[must_use]
    pub fn has_measured(&self, order: Digest) -> bool {
        self.measured.contains(&order)
    }

    /// How it ended.
    #[must_use]
    pub const fn outcome(&self) -> Option<ListingOutcome> {
        self.outcome
    }

    /// Whether its leases took the stake.
    #[must_use]
    pub const fn is_contradicted(&self) -> bool {
        matches!(self.outcome, Some(ListingOutcome::Contradicted { .. }))
    }

    /// Number of recorded events.
    #[must_use]
    pub const fn length(&self) -> u32 {
        self.length
    }

    /// When the last event was recorded.
    #[must_use]
    pub const fn last(&self) -> Timestamp {
        self.last
    }

    /// Whether bids of a number of devices count: its newest passed probe is not contradicted by a later one.
    #[must_use]
    pub const fn covers(&self, devices: u32) -> bool {
        self.outcome.is_none() && self.passed > 0 && devices <= self.terms.probe.devices
    }

    /// The drawn probe that the shown links are checked against; `None` unless links are shown now.
    #[must_use]
    pub fn drawn(&self) -> Option<DrawnProbe> {
        let probe = self.probe.filter(|_| self.phase == ListingPhase::Showing)?;
        let (seed, shape) = (probe.seed, self.terms.probe);
        Some(DrawnProbe { shape, seed, root: probe.root?, secret: probe.secret? })
    }

    /// The pay and the debit of each account, once it is over: the coordinator is paid for the probes.
    ///
    /// # Errors
    /// [`LeaseError::Amount`] if the pay overflows.
    pub fn totals(&self) -> Result<BTreeMap<Address, ClaimTotals>, LeaseError> {
        let paid = self.terms.fee.mul_div_down(self.probes.into(), 1)?;
        let debited = if self.is_contradicted() { self.terms.stake } else { Amount::ZERO };
        let zero = Amount::ZERO;
        let all = [
            (self.coordinator, ClaimTotals { paid, debited: zero }),
            (self.terms.provider, ClaimTotals { paid: zero, debited }),
        ];
        Ok(all.into_iter().filter(|(_, totals)| !totals.is_zero()).collect())
    }

    /// Performs the next event of the record, or changes nothing.
    ///
    /// # Errors
    /// [`LeaseError`] for an event of another phase, a wrong signature, a secret that is not the committed one, or a
    /// moment before that of the last event.
    pub fn apply(&mut self, record: &ListingRecord) -> Result<(), LeaseError> {
        if record.at < self.last {
            return Err(LeaseError::Commitment("the order of the record's moments"));
        }
        let mut next = self.clone();
        next.perform(&record.event, record.at)?;
        next.length = next.length.saturating_add(1);
        next.last = record.at;
        *self = next;
        Ok(())
    }

    fn perform(&mut self, event: &ListingEvent, at: Timestamp) -> Result<(), LeaseError> {
        let is_measured = matches!(event, ListingEvent::Measured { .. });
        // The stake answers for leases that end after the listing.
        if self.outcome.is_some() && (!is_measured || self.is_contradicted()) {
            return Err(self.wrong_phase(event));
        }
        match event {
            ListingEvent::Probed { seed, draw } => self.begin_probe(*seed, *draw, at),
            ListingEvent::Signed(signed) => {
                signed.verify(self.terms.market).map_err(|_| {
                    let role = "the account that signed the action";
                    LeaseError::Account { account: self.terms.provider, role }
                })?;
                let body = signed.body;
                if body.by != self.terms.provider || body.listing != self.id {
                    let role = "the provider of this listing";
                    return Err(LeaseError::Account { account: body.by, role });
                }
                match body.message {
                    SignedMessage::Computed { seed, root } => self.computed(seed, root, at),
                    SignedMessage::Withdraw => {
                        self.end(ListingOutcome::Withdrawn);
                        Ok(())
                    }
                }
            }
            ListingEvent::Drawn(secret) => self.draw(*secret, at),
            ListingEvent::Shown(_) => {
                self.require(ListingPhase::Showing, event)?;
                self.require_time(at)?;
                if self.probe.and_then(|probe| probe.secret).is_none() {
                    return Err(LeaseError::Commitment("the secret of the draw"));
                }
                self.passed = self.passed.saturating_add(1);
                (self.phase, self.deadline) = (ListingPhase::Listed, self.ends);
                Ok(())
            }
            ListingEvent::Measured { order, predicted_us, measured_us } => {
                if self.passed == 0 {
                    return Err(self.wrong_phase(event));
                }
                if !self.measures_more() {
                    return Err(LeaseError::Limit { what: "measured leases", max: MEASURED_MAX });
                }
                if !self.measured.insert(*order) {
                    let (account, done) = (self.terms.provider, "been measured by this order");
                    return Err(LeaseError::Repeated { account, done });
                }
                self.drift = self.drift.after(*predicted_us, *measured_us);
                if self.drift.contradicts() {
                    self.end(ListingOutcome::Contradicted { order: *order });
                } else if !self.measures_more() && self.outcome.is_none() {
                    self.end(ListingOutcome::Expired);
                }
                Ok(())
            }
            ListingEvent::Expired => self.expire(at),
            ListingEvent::Resumed => {
                self.resume(at);
                Ok(())
            }
        }
    }

    fn wrong_phase(&self, event: &ListingEvent) -> LeaseError {
        LeaseError::Phase { phase: self.phase.name(), action: event.name() }
    }

    fn require(&self, phase: ListingPhase, event: &ListingEvent) -> Result<(), LeaseError> {
        if self.phase == phase { Ok(()) } else { Err(self.wrong_phase(event)) }
    }

    const fn require_time(&self, at: Timestamp) -> Result<(), LeaseError> {
        if at.0 > self.deadline.0 { Err(LeaseError::Late(self.deadline)) } else { Ok(()) }
    }

    const fn end(&mut self, outcome: ListingOutcome) {
        self.phase = ListingPhase::Over;
        self.outcome = Some(outcome);
    }

    fn begin_probe(&mut self, seed: Digest, draw: Digest, at: Timestamp) -> Result<(), LeaseError> {
        if !matches!(self.phase, ListingPhase::Opened | ListingPhase::Listed) {
            return Err(self.wrong_phase(&ListingEvent::Probed { seed, draw }));
        }
        self.require_time(at)?;
        if self.probes >= self.terms.probes_max {
            self.end(ListingOutcome::Expired);
            return Ok(());
        }
        self.probes = self.probes.saturating_add(1);
        let (root, computed, secret) = (None, None, None);
        self.probe = Some(Probe { seed, draw, began: at, root, computed, secret });
        self.phase = ListingPhase::Computing;
        self.deadline = at.saturating_add_ms(self.terms.probe_ms());
        Ok(())
    }

    fn computed(&mut self, seed: Digest, root: Digest, at: Timestamp) -> Result<(), LeaseError> {
        if self.phase != ListingPhase::Computing {
            let action = "committing to a probe";
            return Err(LeaseError::Phase { phase: self.phase.name(), action });
        }
        self.require_time(at)?;
        if self.probe.is_none_or(|probe| probe.seed != seed) {
            return Err(LeaseError::Commitment("the seed of the newest probe"));
        }
        if let Some(probe) = &mut self.probe {
            (probe.root, probe.computed) = (Some(root), Some(at));
        }
        self.phase = ListingPhase::Showing;
        self.deadline = at.saturating_add_ms(SHOW_WINDOW_MS);
        Ok(())
    }

    fn draw(&mut self, secret: Digest, at: Timestamp) -> Result<(), LeaseError> {
        let id = self.id;
        let phase = self.phase;
        match &mut self.probe {
            Some(probe) if phase == ListingPhase::Showing && probe.secret.is_none() => {
                if draw_commitment(id, secret) != probe.draw {
                    return Err(LeaseError::Commitment("the secret of the draw"));
                }
                probe.secret = Some(secret);
                // The time for showing begins when the links are known.
                self.deadline = at.saturating_add_ms(SHOW_WINDOW_MS);
                Ok(())
            }
            _ => Err(self.wrong_phase(&ListingEvent::Drawn(secret))),
        }
    }

    fn expire(&mut self, at: Timestamp) -> Result<(), LeaseError> {
        if at <= self.deadline {
            return Err(LeaseError::Early(self.deadline));
        }
        let undrawn = self.probe.is_some_and(|probe| probe.secret.is_none());
        match self.phase {
            // The coordinator did not draw: the provider has done its part.
            ListingPhase::Showing if undrawn => self.end(ListingOutcome::Expired),
            ListingPhase::Computing | ListingPhase::Showing => self.end(ListingOutcome::Unproven),
            _ => self.end(ListingOutcome::Expired),
        }
        Ok(())
    }

    /// A coordinator that starts again leaves the phase all the time that was left at the last record. A probe that
    /// was being computed begins anew with the next event, because its time was not measured.
    fn resume(&mut self, at: Timestamp) {
        match self.phase {
            ListingPhase::Computing => {
                self.probes = self.probes.saturating_sub(1);
                self.probe = None;
                let is_new = self.passed == 0;
                self.phase = if is_new { ListingPhase::Opened } else { ListingPhase::Listed };
                self.deadline = self.ends;
            }
            ListingPhase::Showing => {
                let left = self.deadline.ms_since(self.last);
                self.deadline = at.saturating_add_ms(left);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
