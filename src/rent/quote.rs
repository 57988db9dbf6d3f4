//! The quote of an order: what it costs at most, what each side deposits, and how it is audited.

use florin_compute::{ComputeJob, ComputeOrder, LeaseError, PARTS};
use florin_ledger::Terms;
use florin_protocol::{Address, Amount, Timestamp, format_ms};
use serde_json::{Value, json};

use crate::show;

/// A coordinator that is neither renter nor referee, for an order that is only checked.
const ANY_COORDINATOR: Address = Address([0xff; 20]);

/// The numbers of an order that follow from its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderQuote {
    order: ComputeOrder,
    /// Steps and rows of the job.
    steps: u64,
    rows: u64,
    parameters: usize,
    /// The deposit of the renter, and its part for the audits.
    pub(crate) escrow: Amount,
    audit_budget: Amount,
    bounty: Amount,
    stake_min: Amount,
    /// Segments that are audited.
    audited: u32,
    /// The chance that one fake segment is found, in parts per million.
    detection: u32,
    duration_ms_max: u64,
    challenge_ms: u64,
}

impl OrderQuote {
    /// The quote of a valid order.
    ///
    /// # Errors
    /// [`LeaseError`] for an order that no ledger opens: its deposits would be at risk for more than 30 days.
    pub(crate) fn new(
        order: &ComputeOrder,
        job: &ComputeJob,
        challenge_ms: u64,
    ) -> Result<Self, LeaseError> {
        let now = Timestamp(0);
        Terms::from_order(order, order.market, ANY_COORDINATOR, challenge_ms, now)?;
        let rule = order.stake_rule();
        let model = florin_protocol::ModelArchitecture::Graph(job.graph.clone());
        Ok(Self {
            steps: job.steps(),
            rows: job.row_count,
            parameters: florin_work::model_spec(&model).parameters(),
            escrow: order.escrow()?,
            audit_budget: order.audit_budget()?,
            bounty: order.bounty(),
            stake_min: order.stake_min()?,
            audited: rule.audited,
            detection: rule.detection(),
            duration_ms_max: order.duration_ms_max(),
            challenge_ms,
            order: order.clone(),
        })
    }

    /// The quote for people.
    pub(crate) fn facts(&self) -> Vec<(&'static str, String)> {
        [self.size_facts(), self.risk_facts(), self.time_facts()].concat()
    }

    /// Size and cost for people.
    fn size_facts(&self) -> Vec<(&'static str, String)> {
        let first = match self.order.first_segment {
            0 => String::new(),
            first => format!(", from segment {first} of the job on"),
        };
        vec![
            (
                "training",
                format!(
                    "{} steps on {} rows, {} parameters",
                    show::thousands(&self.steps.to_string()),
                    show::thousands(&self.rows.to_string()),
                    show::thousands(&self.parameters.to_string())
                ),
            ),
            ("segments", format!("{} of {} steps{first}", self.order.segments, self.order.steps)),
            (
                "bids",
                if self.order.listed { "of listed devices" } else { "of all accounts" }.to_owned(),
            ),
            ("rows", format!("of the data class {}", self.order.data_class.name())),
            (
                "escrow",
                format!(
                    "{}: at most {} for the training (the price with a single bid), and {} for audits",
                    fln(self.escrow),
                    fln(self.order.price_max),
                    fln(self.audit_budget)
                ),
            ),
        ]
    }

    /// Deposits and audits for people.
    fn risk_facts(&self) -> Vec<(&'static str, String)> {
        let ComputeOrder { audit, deposits, .. } = &self.order;
        vec![
            (
                "provider",
                format!(
                    "bond of a bid {}, stake {} (at least {}), fine {}",
                    fln(deposits.bid_bond),
                    fln(deposits.stake),
                    fln(self.stake_min),
                    fln(deposits.default_fine)
                ),
            ),
            (
                "auditors",
                format!(
                    "bond {}, {} for a segment, {} for a fake one",
                    fln(deposits.audit_bond),
                    fln(audit.fee),
                    fln(self.bounty)
                ),
            ),
            (
                "audits",
                format!(
                    "{} of {} segments by {} each; one fake segment is found in {} of leases",
                    self.audited,
                    self.order.segments,
                    match audit.auditors {
                        1 => "1 auditor".to_owned(),
                        count => format!("{count} auditors"),
                    },
                    percent(self.detection)
                ),
            ),
        ]
    }

    /// Times and parties for people.
    fn time_facts(&self) -> Vec<(&'static str, String)> {
        let windows = &self.order.windows;
        vec![
            (
                "steps",
                format!(
                    "at most {} µs predicted; a segment takes at most {}",
                    show::thousands(&self.order.step_us_max.to_string()),
                    format_ms(self.order.segment_ms(self.order.step_us_max))
                ),
            ),
            (
                "duration",
                format!(
                    "bids {}; at most {} with all delays, then {} until the settlement is final",
                    format_ms(windows.bid),
                    format_ms(self.duration_ms_max),
                    format_ms(self.challenge_ms)
                ),
            ),
            ("class", self.order.class.to_string()),
            ("referee", self.order.referee.to_string()),
        ]
    }

    /// The quote as JSON: amounts in base units, shares in parts per million.
    pub(crate) fn to_json(&self) -> Value {
        let ComputeOrder { deposits, audit, .. } = &self.order;
        json!({
            "steps": self.steps,
            "rows": self.rows,
            "parameters": self.parameters,
            "data_class": self.order.data_class.name(),
            "listed": self.order.listed,
            "first_segment": self.order.first_segment,
            "segments": self.order.segments,
            "steps_per_segment": self.order.steps,
            "price_max": show::units(self.order.price_max),
            "audit_budget": show::units(self.audit_budget),
            "escrow": show::units(self.escrow),
            "bid_bond": show::units(deposits.bid_bond),
            "stake": show::units(deposits.stake),
            "stake_min": show::units(self.stake_min),
            "default_fine": show::units(deposits.default_fine),
            "audit_bond": show::units(deposits.audit_bond),
            "fee": show::units(audit.fee),
            "bounty": show::units(self.bounty),
            "audited_segments": self.audited,
            "auditors": audit.auditors,
            "detection_ppm": self.detection,
            "step_us_max": self.order.step_us_max,
            "segment_ms_max": self.order.segment_ms(self.order.step_us_max),
            "duration_ms_max": self.duration_ms_max,
            "challenge_ms": self.challenge_ms,
            "windows": self.order.windows,
            "class": self.order.class,
            "referee": self.order.referee,
        })
    }
}

fn fln(amount: Amount) -> String {
    format!("{} FLN", show::fln(amount))
}

/// A share in per cent, with one decimal.
pub(crate) fn percent(parts: u32) -> String {
    let tenths = u64::from(parts) * 1_000 / u64::from(PARTS);
    format!("{}.{} %", tenths / 10, tenths % 10)
}
