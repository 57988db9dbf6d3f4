//! The file of `florin participate --rent`: the terms of the orders that train the rounds of a task.

use std::path::Path;

use florin_compute::{ComputeJob, ComputeOrder, DataClass};
use florin_protocol::{Address, Amount, AmountError, Digest};
use serde::Deserialize;

use super::super::file::Duration;
use super::sections::{AuditSection, DepositSection, Microseconds, OrderSection, WindowSection};
use super::{CHALLENGE_MS, OrderDraft, OrderTerms, Refused, data_class, defaults, read_text};
use crate::task_file::TaskFileError;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RentFile {
    data_class: String,
    referee: Address,
    spend_max: Amount,
    challenge: Option<Duration>,
    order: RoundSection,
    #[serde(default)]
    audit: AuditSection,
    #[serde(default)]
    deposits: DepositSection,
    #[serde(default)]
    windows: WindowSection,
}

/// `[order]`: that of an order file without a seed, which follows from the round.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RoundSection {
    segments: Option<u32>,
    steps: Option<u32>,
    price_max: Amount,
    step_max: Option<Microseconds>,
    virtual_workers: u32,
    class: Option<Digest>,
    #[serde(default)]
    listed: bool,
}

/// The terms of the orders of all rounds.
#[derive(Debug, Clone)]
pub(crate) struct RentedRounds {
    /// The readers of the rows.
    pub(crate) data_class: DataClass,
    /// The most that all orders cost together.
    pub(crate) spend_max: Amount,
    /// The account that computes the disputed step.
    pub(crate) referee: Address,
    /// Virtual workers of each job.
    pub(crate) virtual_workers: u32,
    /// The window for bids, which always passes whole, in milliseconds.
    pub(crate) bid_ms: u64,
    challenge_ms: u64,
    terms: OrderTerms,
    text: String,
}

/// Reads the terms of rented rounds.
///
/// # Errors
/// `INVALID_ORDER` with line, key, value and the expected value; `DATA_CLASS_UNSUPPORTED`.
pub(crate) fn read_rented(path: &Path) -> anyhow::Result<RentedRounds> {
    let text = read_text(path)?;
    Ok(from_text(&text).map_err(|refusal| refusal.at(path, &text))?)
}

fn from_text(text: &str) -> Result<RentedRounds, Refused> {
    let file: RentFile = toml::from_str(text).map_err(TaskFileError::from)?;
    let RentFile { referee, spend_max, order, audit, deposits, windows, .. } = file;
    let order = OrderSection {
        segments: order.segments,
        steps: order.steps,
        price_max: order.price_max,
        step_max: order.step_max,
        virtual_workers: order.virtual_workers,
        seed: 0,
        class: order.class,
        listed: order.listed,
    };
    let virtual_workers = order.virtual_workers;
    let bid_ms = windows.bid.map_or(defaults::BID_MS, |window| window.0);
    Ok(RentedRounds {
        data_class: data_class(&file.data_class)?,
        spend_max,
        referee,
        virtual_workers,
        bid_ms,
        challenge_ms: file.challenge.map_or(CHALLENGE_MS, |challenge| challenge.0),
        terms: OrderTerms { referee, nonce: 0, order, audit, deposits, windows },
        text: text.to_owned(),
    })
}

impl RentedRounds {
    /// The most that an order costs without its audits.
    pub(crate) const fn price_max(&self) -> Amount {
        self.terms.order.price_max
    }

    /// The most that an order locks: its price and its audits. `steps` are those of its job, where they are known.
    ///
    /// # Errors
    /// `INVALID_ORDER` with the key.
    pub(crate) fn escrow(&self, path: &Path, steps: Option<u64>) -> anyhow::Result<Amount> {
        let escrow = self.escrow_of(steps);
        Ok(escrow.map_err(|error| Refused::from(error).at(path, &self.text))?)
    }

    fn escrow_of(&self, steps: Option<u64>) -> Result<Amount, TaskFileError> {
        let OrderTerms { order, audit, .. } = &self.terms;
        let price_max = order.price_max;
        let total = steps.unwrap_or_else(|| order.segments.unwrap_or(1).into());
        let (segments, _) = order.segments_of(total)?;
        let overflow = |error: AmountError| {
            TaskFileError::key("order.price_max", price_max.to_string(), error.to_string())
        };
        defaults::check_audit(audit)?;
        let audit =
            defaults::audit(audit, (segments, self.data_class), price_max).map_err(overflow)?;
        let order = ComputeOrder { segments, price_max, audit, ..ComputeOrder::example() };
        order.escrow().map_err(overflow)
    }

    /// The order of a job, with the blobs of the job. `start` is its state before the first step, and `attempt`
    /// distinguishes orders of the same job.
    pub(crate) fn draft(
        &self,
        job: ComputeJob,
        blobs: Vec<(Digest, Vec<u8>)>,
        start: Digest,
        attempt: u64,
    ) -> OrderDraft {
        let terms = OrderTerms { nonce: attempt, ..self.terms.clone() };
        let (challenge_ms, data_class, text) =
            (self.challenge_ms, self.data_class, self.text.clone());
        OrderDraft { job, blobs, start, challenge_ms, data_class, split: None, terms, text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    const FILE: &str = "data_class = \"private\"\nreferee = \"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed\"\n\
                        spend_max = \"2\"\n[order]\nsegments = 10\nprice_max = \"0.5\"\nvirtual_workers = 4\n\
                        [windows]\nbid = \"20 s\"\n";

    #[test]
    fn a_file_has_the_terms_of_all_rounds() {
        let rounds = from_text(FILE).unwrap();
        assert_eq!((rounds.data_class, rounds.bid_ms), (DataClass::Private, 20_000));
        assert_eq!((rounds.spend_max, rounds.virtual_workers), ("2".parse().unwrap(), 4));
        assert_eq!(rounds.challenge_ms, CHALLENGE_MS);
    }

    /// Of ten segments at 0.05 FLN one is audited, by one auditor; of 40 at 0.0125 FLN two are.
    #[test]
    fn the_escrow_of_an_order_has_its_audits() {
        let rounds = from_text(FILE).unwrap();
        let fln = |text: &str| text.parse::<Amount>().unwrap();
        assert_eq!(rounds.escrow_of(None).unwrap(), fln("0.55"));
        assert_eq!(rounds.escrow_of(Some(100)).unwrap(), fln("0.55"));
        let by_steps = from_text(&FILE.replace("segments = 10", "steps = 5")).unwrap();
        assert_eq!(by_steps.escrow_of(Some(200)).unwrap(), fln("0.525"));
        let fee = from_text(&(FILE.to_owned() + "[audit]\nfee = \"0.1\"\n")).unwrap();
        assert_eq!(fee.escrow_of(None).unwrap(), fln("0.6"));
    }

    #[test]
    fn a_mistake_is_named_with_its_key() {
        for (from, to, code, part) in [
            ("\"private\"", "\"split\"", "DATA_CLASS_UNSUPPORTED", "split"),
            ("spend_max = \"2\"\n", "", "INVALID_ORDER", "spend_max"),
            ("segments = 10", "segments = 10\nseed = 3", "INVALID_ORDER", "seed"),
            ("[windows]", "[rows]", "INVALID_ORDER", "rows"),
        ] {
            let text = FILE.replacen(from, to, 1);
            let refusal = from_text(&text).unwrap_err();
            let failure: Failure = refusal.at(Path::new("rent.toml"), &text);
            let message = format!("{failure}");
            assert!(message.contains(part), "{part}: {message}");
            assert_eq!(crate::failure::classify(&failure.into()).0, code, "{message}");
        }
    }
}
