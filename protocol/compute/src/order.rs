//! The order: what is to be computed, by which rules it is audited, and what each party deposits.

use borsh::{BorshDeserialize, BorshSerialize};
use florin_protocol::{Address, Amount, AmountError, Canonical, ChainId, Digest, MarketId};
use serde::{Deserialize, Serialize};

use crate::card::STEP_US_MAX;
use crate::data_class::DataClass;
use crate::error::LeaseError;
use crate::lease::{BIDS_MAX, REPLACEMENTS_MAX};
use crate::stake::{PARTS, StakeRule, stake_min};

/// Most segments of an order.
pub(crate) const SEGMENTS_MAX: u32 = 10_000;
/// Most steps of a segment.
pub(crate) const STEPS_MAX: u32 = 1_000_000;
/// Largest share of audited segments, in parts per million: as many fit without two neighbours.
pub(crate) const SHARE_MAX: u32 = 333_333;
/// Most auditors of one segment.
pub(crate) const AUDITORS_MAX: u32 = 16;
/// The bond of a bid is at least this part of the largest price.
pub(crate) const BID_BOND_SHARE: u128 = 10;
/// Longest window in milliseconds: 30 days.
pub(crate) const WINDOW_MS_MAX: u64 = 2_592_000_000;
/// Largest multiple of the predicted time that a segment may take.
pub(crate) const SLACK_MAX: u32 = 100 * PARTS;

/// A training that a renter buys. Job, start and segments fix every bit of the result inside a class.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct ComputeOrder {
    /// Chain and market.
    pub market: MarketId,
    /// The account that pays.
    pub renter: Address,
    /// The account that computes the one step that a dispute ends with, or the rest of a gone provider's segment.
    pub referee: Address,
    /// Digest of all that fixes the training: model, rows, batches, seed, virtual workers.
    pub job: Digest,
    /// Digest of engine, threads and instruction set, inside which bits agree.
    pub class: Digest,
    /// Digest of the state before the first segment.
    pub start: Digest,
    /// Segments of the job that another order computed before: 0, or those that an order delivered whose
    /// provider has stopped.
    pub first_segment: u32,
    /// Distinguishes orders of the same job.
    pub nonce: u64,
    /// Number of segments.
    pub segments: u32,
    /// Steps of a segment.
    pub steps: u32,
    /// The most that the order costs without its audits.
    pub price_max: Amount,
    /// The longest step in microseconds: slower bids do not count.
    pub step_us_max: u64,
    /// Whether the coordinator takes bids of listed devices alone.
    pub listed: bool,
    /// The accounts that may read the rows, and so may audit.
    pub data_class: DataClass,
    /// Deposits.
    pub deposits: Deposits,
    /// Audits.
    pub audit: AuditTerms,
    /// Deadlines.
    pub windows: Windows,
}

/// The deposits of the parties.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Deposits {
    /// With a bid. A bidder that does not reveal its bid, or wins and does not fund the lease, loses it.
    pub bid_bond: Amount,
    /// The provider's, for the lease.
    pub stake: Amount,
    /// An auditor's, for the lease. It loses it by silence and by a wrong end.
    pub audit_bond: Amount,
    /// The part of the stake that a provider loses that does not deliver all segments in time.
    pub default_fine: Amount,
}

/// How segments are audited.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct AuditTerms {
    /// The share of the delivered segments that is audited, in parts per million; rounded up, and at most one
    /// of two neighbours.
    pub share: u32,
    /// Auditors of each audited segment.
    pub auditors: u32,
    /// The share of auditors that could work for the provider, in parts per million, on which the smallest
    /// stake is based.
    pub colluding: u32,
    /// Pay for the audit of one segment.
    pub fee: Amount,
}

/// How long each phase takes, at most, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema, borsh::BorshSchema))]
pub struct Windows {
    /// For sealed bids.
    pub bid: u64,
    /// For opening them.
    pub reveal: u64,
    /// For the winner's stake.
    pub fund: u64,
    /// For a segment: the predicted time multiplied by this, in parts per million.
    pub slack: u32,
    /// For a segment besides that: transfers and start.
    pub segment: u64,
    /// For the draw after the delivery.
    pub draw: u64,
    /// For the auditors' sealed ends, and again for opening leaves and ends.
    pub audit: u64,
    /// For each answer in a dispute.
    pub answer: u64,
}

impl Deposits {
    /// The most that one account can lose in an order.
    #[must_use]
    pub fn largest(&self) -> Amount {
        self.bid_bond.max(self.stake).max(self.audit_bond)
    }
}

impl Canonical for ComputeOrder {
    const DOMAIN: &'static str = "florin v1 compute order";
}

impl ComputeOrder {
    /// A valid order of twenty segments of ten steps, for tests and benchmarks that replace the values that matter
    /// to them.
    #[must_use]
    pub const fn example() -> Self {
        Self {
            market: MarketId { chain: ChainId(1), genesis: Digest([3; 32]) },
            renter: Address([1; 20]),
            referee: Address([2; 20]),
            job: Digest([4; 32]),
            class: Digest([5; 32]),
            start: Digest([6; 32]),
            first_segment: 0,
            nonce: 1,
            segments: 20,
            steps: 10,
            price_max: Amount::from_units(20_000),
            step_us_max: 40,
            listed: false,
            data_class: DataClass::Public,
            deposits: Deposits {
                bid_bond: Amount::from_units(2_000),
                stake: Amount::from_units(22_000),
                audit_bond: Amount::from_units(8_000),
                default_fine: Amount::from_units(2_000),
            },
            audit: AuditTerms {
                share: 100_000,
                auditors: 2,
                colluding: 200_000,
                fee: Amount::from_units(700),
            },
            windows: Windows {
                bid: 1_000,
                reveal: 1_000,
                fund: 1_000,
                slack: 2 * PARTS,
                segment: 500,
                draw: 1_000,
                audit: 1_000,
                answer: 100,
            },
        }
    }

    /// The digest of the order, which names it.
    #[must_use]
    pub fn id(&self) -> Digest {
        self.digest()
    }

    /// Steps of the job before a segment, if the last segment has as many as the others.
    #[must_use]
    pub fn steps_before(&self, segment: u32) -> u64 {
        let number = u64::from(self.first_segment).saturating_add(segment.into());
        number.saturating_mul(self.steps.into())
    }

    /// The audited segments of a number of delivered ones: the share, rounded up, and at most every second.
    #[must_use]
    pub fn audited(&self, delivered: u32) -> u32 {
        let product = u64::from(delivered).saturating_mul(u64::from(self.audit.share));
        let share = u32::try_from(product.div_ceil(u64::from(PARTS))).unwrap_or(u32::MAX);
        // On a ring of one segment there is no neighbour.
        share.min(delivered.checked_div(2).unwrap_or_default().max(delivered.min(1)))
    }

    /// The most that all audits cost.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn audit_budget(&self) -> Result<Amount, AmountError> {
        let audits =
            u128::from(self.audited(self.segments)).saturating_mul(u128::from(self.audit.auditors));
        self.audit.fee.mul_div_down(audits, 1)
    }

    /// The deposit of the renter: the largest price and the audits.
    ///
    /// # Errors
    /// [`AmountError::Overflow`].
    pub fn escrow(&self) -> Result<Amount, AmountError> {
        self.price_max.plus(self.audit_budget()?)
    }

    /// The bounty for a fake segment that an auditor found: a fee divided by the share of audits, which is the
    /// cost of finding one on average.
    #[must_use]
    pub fn bounty(&self) -> Amount {
        let bounty = self.audit.fee.mul_div_down(PARTS.into(), self.audit.share.into());
        bounty.unwrap_or(Amount::from_units(u128::MAX))
    }

    /// The most milliseconds from the opening of an order to its end, if every account waits as long as it may:
    /// the time for which deposits are at risk.
    #[must_use]
    pub fn duration_ms_max(&self) -> u64 {
        let Windows { bid, reveal, fund, draw, audit, answer, .. } = self.windows;
        let count = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let segments = self.segment_ms(self.step_us_max).saturating_mul(self.segments.into());
        // Serving, sealing with its replacements, and opening.
        let rounds = u64::from(REPLACEMENTS_MAX).saturating_add(3);
        // Each dispute halves the steps by an answer of each side, and ends with a ruling.
        let answers = u64::from(u32::BITS.saturating_sub(self.steps.leading_zeros()));
        let answers = answers.saturating_mul(2).saturating_add(self.ruling_windows());
        let disputes = u64::from(self.audited(self.segments))
            .saturating_mul(self.audit.auditors.into())
            .saturating_mul(answers);
        bid.saturating_add(reveal)
            .saturating_add(fund.saturating_mul(count(BIDS_MAX)))
            .saturating_add(segments)
            .saturating_add(draw)
            .saturating_add(audit.saturating_mul(rounds))
            .saturating_add(answer.saturating_mul(disputes))
    }

    /// The windows of answers that a ruling has. On private rows the renter computes and uploads the state before the
    /// step, and the coordinator reads the rows, before the referee begins.
    #[must_use]
    pub const fn ruling_windows(&self) -> u64 {
        match self.data_class {
            DataClass::Private => 3,
            DataClass::Public | DataClass::Buyer => 1,
        }
    }

    /// Checks all numbers, and that the stake makes fake segments a loss.
    ///
    /// # Errors
    /// [`LeaseError::Invalid`] with the field, or an overflow.
    pub fn check(&self) -> Result<(), LeaseError> {
        let Self { audit, windows, .. } = self;
        if self.renter == self.referee {
            let role = "independent: an order has a referee that is not its renter";
            return Err(LeaseError::Account { account: self.referee, role });
        }
        in_range("segments", self.segments.into(), 1..=SEGMENTS_MAX.into(), "from 1 to 10,000")?;
        in_range("steps", self.steps.into(), 1..=STEPS_MAX.into(), "from 1 to 1,000,000")?;
        let auditors = 1..=AUDITORS_MAX.into();
        in_range("audit.auditors", audit.auditors.into(), auditors, "from 1 to 16")?;
        if self.data_class == DataClass::Private {
            let rule = "1 in the data class private: the renter audits its own lease";
            in_range("audit.auditors", audit.auditors.into(), 1..=1, rule)?;
        }
        let rule = "from 1 to 333,333 parts per million: no two neighbours are drawn";
        in_range("audit.share", audit.share.into(), 1..=SHARE_MAX.into(), rule)?;
        let rule = "from 1 µs to one day";
        in_range("step_us_max", self.step_us_max.into(), 1..=STEP_US_MAX.into(), rule)?;
        let rule = "less than 1,000,000 parts per million";
        in_range("audit.colluding", audit.colluding.into(), 0..=(PARTS - 1).into(), rule)?;
        let rule = "from 1,000,000 to 100,000,000 parts per million of the predicted time";
        in_range("windows.slack", windows.slack.into(), PARTS.into()..=SLACK_MAX.into(), rule)?;
        for (what, window) in [
            ("windows.bid", windows.bid),
            ("windows.reveal", windows.reveal),
            ("windows.fund", windows.fund),
            ("windows.segment", windows.segment),
            ("windows.draw", windows.draw),
            ("windows.audit", windows.audit),
            ("windows.answer", windows.answer),
        ] {
            in_range(what, window.into(), 1..=WINDOW_MS_MAX.into(), "from 1 ms to 30 days")?;
        }
        self.check_amounts()
    }

    /// Checks the amounts, and that the stake makes fake segments a loss.
    fn check_amounts(&self) -> Result<(), LeaseError> {
        let Self { deposits, audit, .. } = self;
        let positive = 1..=u128::MAX;
        let rule = "must be more than zero";
        for (what, amount) in [
            ("price_max", self.price_max),
            ("deposits.bid_bond", deposits.bid_bond),
            ("audit.fee", audit.fee),
        ] {
            in_range(what, amount.units(), positive.clone(), rule)?;
        }
        let rule = "must be at least price_max / 10: otherwise a renter seals bids of its own and opens the best";
        let least = self.price_max.mul_div_down(1, BID_BOND_SHARE)?;
        let bid_bond = deposits.bid_bond.units();
        in_range("deposits.bid_bond", bid_bond, least.units()..=u128::MAX, rule)?;
        let rule =
            "must be at least the bond of a bid: otherwise a winner funds the lease and leaves";
        let fine = deposits.default_fine;
        in_range(
            "deposits.default_fine",
            fine.units(),
            deposits.bid_bond.units()..=u128::MAX,
            rule,
        )?;
        let rule = "must be at least the bounty, fee / share: otherwise accusations cost less than they can earn";
        let (bounty, bond) = (self.bounty(), deposits.audit_bond.units());
        in_range("deposits.audit_bond", bond, bounty.units()..=u128::MAX, rule)?;
        if self.data_class == DataClass::Private {
            let rule = "must be at least the bond of a bid: otherwise a renter disputes its own order for nothing";
            in_range("deposits.audit_bond", bond, bid_bond..=u128::MAX, rule)?;
        }
        self.escrow()?;
        let rule =
            "must be at least the bounty, fee / share: the renter pays it for a fake segment";
        in_range("price_max", self.price_max.units(), bounty.units()..=u128::MAX, rule)?;
        let least = self.stake_min()?;
        let rule = "a fake segment would pay: at least (price_max / segments) · (1 − d) / d, and the fine, a bounty and all audits";
        in_range("deposits.stake", deposits.stake.units(), least.units()..=u128::MAX, rule)
    }

    /// The numbers on which the smallest stake depends.
    #[must_use]
    pub fn stake_rule(&self) -> StakeRule {
        StakeRule {
            saving: self.price_max,
            segments: self.segments,
            audited: self.audited(self.segments),
            auditors: self.audit.auditors,
            colluding: self.audit.colluding,
        }
    }

    /// The smallest stake with which a fake segment does not pay.
    ///
    /// # Errors
    /// [`LeaseError::Amount`] if a sum overflows.
    pub fn stake_min(&self) -> Result<Amount, LeaseError> {
        let least = stake_min(&self.stake_rule())?.unwrap_or(Amount::from_units(u128::MAX));
        // The fine may be gone; audits and a bounty may be paid to accounts of the provider itself.
        let fine = self.deposits.default_fine;
        Ok(Amount::total([least, fine, self.bounty(), self.audit_budget()?])?)
    }

    /// Milliseconds of a segment whose steps are predicted to take `step_us`.
    #[must_use]
    pub fn segment_ms(&self, step_us: u64) -> u64 {
        let us = u128::from(step_us.min(STEP_US_MAX)).saturating_mul(self.steps.into());
        let slack = us.saturating_mul(self.windows.slack.into());
        let ms = slack.div_ceil(u128::from(PARTS).saturating_mul(1_000));
        u64::try_from(ms).unwrap_or(u64::MAX).saturating_add(self.windows.segment)
    }
}

fn in_range(
    what: &'static str,
    got: u128,
    range: std::ops::RangeInclusive<u128>,
    rule: &'static str,
) -> Result<(), LeaseError> {
    match range.contains(&got) {
        true => Ok(()),
        false => Err(LeaseError::Invalid { what, got, rule }),
    }
}
