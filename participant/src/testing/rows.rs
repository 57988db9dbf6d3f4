//! The holdout rows of a round: drawn and disclosed as by an honest coordinator, unless a test
//! injects a fault.

use florin_protocol::{Digest, ErrorCode, Offer, Report, UpdateEntry, draw_rows, round_seed};

use super::coordinator::{Answer, Lie, State, refuse};

impl State {
    /// The round's seed and the rows that it draws, unless a fault is injected.
    pub(super) fn draw(&self, offer: &Offer, entries: &[UpdateEntry]) -> (Digest, Vec<u32>) {
        let mut seed = round_seed(offer.scope, &self.said(), entries);
        if self.lies(Lie::OtherSeed) {
            seed = Digest([1; 32]);
        }
        let earlier = self.past.iter().flat_map(|past| past.report.holdout.rows.clone());
        let exposed: Vec<u32> = match self.lies(Lie::SameRows) {
            true => Vec::new(),
            false => earlier.collect(),
        };
        match self.past.first() {
            _ if !self.spec.has_quorum(entries.len()) => (seed, Vec::new()),
            Some(first) if self.lies(Lie::SameRows) => (seed, first.report.holdout.rows.clone()),
            _ => (seed, draw_rows(&self.spec.holdout, &exposed, seed).unwrap()),
        }
    }

    /// The canonical encoding of disclosed rows.
    pub(super) fn shown(&self, drawn: &[u32]) -> Vec<u8> {
        let mut shown = self.holdout.disclose(drawn).unwrap();
        if let (true, Some(row)) = (self.lies(Lie::ForgedRow), shown.rows.get_mut(2)) {
            row.row[0] ^= 1;
        }
        shown.to_bytes()
    }

    pub(super) fn shown_again(&self, report: &Report) -> Answer {
        match self.lies(Lie::HiddenRows) {
            true => refuse(ErrorCode::NotYetPublic),
            false => Ok(self.shown(&report.holdout.rows)),
        }
    }
}
