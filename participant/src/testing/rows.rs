//! The holdout rows of a round: drawn and disclosed as by an honest coordinator, unless a test
//! injects a fault.

use florin_protocol::{Digest, ErrorCode, Offer, Report, UpdateEntry, draw_rows, round_seed};

use super::coordinator::{FakeCoordinator, Fault};
use super::response::{FakeResponse, reject};

impl FakeCoordinator {
    /// The round's seed and the rows that it draws, unless a fault is injected.
    pub(super) fn draw(&self, offer: &Offer, entries: &[UpdateEntry]) -> (Digest, Vec<u32>) {
        let mut seed = round_seed(offer.scope, &self.commitments(), entries);
        if self.has_fault(Fault::OtherSeed) {
            seed = Digest([1; 32]);
        }
        let earlier = self.closed_rounds.iter().flat_map(|past| past.report.holdout.rows.clone());
        let exposed: Vec<u32> = match self.has_fault(Fault::SameRows) {
            true => Vec::new(),
            false => earlier.collect(),
        };
        match self.closed_rounds.first() {
            _ if !self.spec.has_quorum(entries.len()) => (seed, Vec::new()),
            Some(first) if self.has_fault(Fault::SameRows) => {
                (seed, first.report.holdout.rows.clone())
            }
            _ => (seed, draw_rows(&self.spec.holdout, &exposed, seed).unwrap()),
        }
    }

    /// The canonical encoding of disclosed rows.
    pub(super) fn disclosed_rows(&self, drawn: &[u32]) -> Vec<u8> {
        let mut shown = self.holdout.disclose(drawn).unwrap();
        if let (true, Some(row)) = (self.has_fault(Fault::ForgedRow), shown.rows.get_mut(2)) {
            row.row[0] ^= 1;
        }
        shown.to_bytes()
    }

    /// The disclosed rows of the earlier rounds that train the public baseline.
    pub(super) fn earlier_rows(&self) -> Vec<Vec<u8>> {
        let past = self.closed_rounds.iter().map(|past| &past.report.holdout.rows);
        let past = past.filter(|rows| !rows.is_empty() && self.spec.rounds.baseline_epochs > 0);
        past.map(|rows| self.disclosed_rows(rows)).collect()
    }

    pub(super) fn disclosed_rows_response(&self, report: &Report) -> FakeResponse {
        match self.has_fault(Fault::HiddenRows) {
            true => reject(ErrorCode::NotYetPublic),
            false => Ok(self.disclosed_rows(&report.holdout.rows)),
        }
    }
}
