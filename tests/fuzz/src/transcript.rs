//! The replay of a transcript: with all of its parts drawn, an accepted one has the result of the engine.

use std::sync::LazyLock;

use florin_learning::mapped::UNLIMITED_MEMORY;
use florin_learning::{Dataset, Reference};
use florin_protocol::{
    Address, Amount, Digest, Holdout, RoundNumber, RoundScope, TaskSpec, UpdateEntry, blob_digest,
    draw_rows, round_seed,
};
use florin_work::{
    CommittedHoldout, EarlierUpdateBlobs, NO_BLOBS, TranscriptSample, ValuationInputs,
    ValuationOutput, compare_results, encode_parameters, replay_transcript, value_and_record,
};

use crate::targets::SMALL;

/// Rows of the holdout, and those of a round.
const ROWS: u32 = 16;
const DRAWN: u32 = 8;

/// A round of two members.
struct SmallRound {
    spec: TaskSpec,
    base: Vec<u8>,
    entries: Vec<UpdateEntry>,
    updates: Vec<Vec<u8>>,
    drawn: Vec<u32>,
    shown: Vec<u8>,
}

impl SmallRound {
    fn new() -> Self {
        let features = (0..2 * ROWS).map(|at| (at * 37 % 11) as f32 * 0.1).collect();
        let labels = (0..ROWS).map(|row| row * 5 % 3 % 2).collect();
        let rows = Dataset::new(features, labels, 2, 2).expect("rows of two classes");
        let holdout = CommittedHoldout::new(rows);
        let mut spec = SMALL.clone();
        spec.holdout = Holdout { root: holdout.root(), rows: ROWS, rows_per_round: DRAWN };
        let base = encode_parameters(&spec, &[0.0; 6]);
        let deltas = [[0.3, -0.2, 0.1, 0.2, 0.0, -0.1], [-0.1, 0.2, 0.3, -0.3, 0.1, 0.0]];
        let updates = deltas.map(|delta| encode_parameters(&spec, &delta)).to_vec();
        let entry = |(member, update): (u8, &Vec<u8>)| UpdateEntry {
            sender: Address([member; 20]),
            header: Digest([member; 32]),
            update: blob_digest(update),
            salt: Digest([member; 32]),
            rows_declared: 10,
            rows_counted: 10,
            bond: Amount::ZERO,
            commit_position: member.into(),
            staleness: 0,
        };
        let entries: Vec<UpdateEntry> = (1..).zip(&updates).map(entry).collect();
        let scope = RoundScope { market: spec.market, task: spec.id(), round: RoundNumber::FIRST };
        let seed = round_seed(scope, &[], &entries);
        let drawn = draw_rows(&spec.holdout, &[], seed).expect("more rows than a round draws");
        let shown = holdout.disclose(&drawn).expect("rows of the holdout").to_bytes();
        Self { spec, base, entries, updates, drawn, shown }
    }

    fn inputs(&self) -> ValuationInputs<'_> {
        ValuationInputs {
            spec: &self.spec,
            graph: None,
            base: &self.base,
            row_indices: &self.drawn,
            disclosed_rows: &self.shown,
            entries: &self.entries,
            updates: &self.updates,
            previous_models: &NO_BLOBS,
            earlier_updates: EarlierUpdateBlobs::NONE,
            earlier_rows: &NO_BLOBS,
            scratch_space: &UNLIMITED_MEMORY,
        }
    }
}

static ROUND: LazyLock<SmallRound> = LazyLock::new(SmallRound::new);

/// The result of the round, and its transcript.
static HONEST: LazyLock<(ValuationOutput, Vec<u8>)> = LazyLock::new(|| {
    let recorded = value_and_record(&ROUND.inputs(), &mut Reference::new());
    let recorded = recorded.expect("the round can be valued");
    (recorded.output, recorded.transcript.expect("a transcript"))
});

pub(super) fn replay(bytes: &[u8]) -> String {
    let sample = TranscriptSample { seed: 1, parts_of_32: 32 };
    match replay_transcript(&ROUND.inputs(), bytes, sample, &mut Reference::new()) {
        Ok(output) => {
            let (honest, _) = &*HONEST;
            if let Err(differs) = compare_results(&honest.result, &output.result) {
                panic!("a false transcript was accepted: {differs}");
            }
            assert!(honest.model == output.model, "an accepted transcript has another model");
            "accepted".to_owned()
        }
        Err(error) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `FLORIN_BLESS=1` writes it again.
    #[test]
    fn the_corpus_has_an_honest_transcript() {
        let (_, transcript) = &*HONEST;
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/transcript/honest");
        if std::env::var_os("FLORIN_BLESS").is_some() {
            std::fs::write(file, transcript).unwrap();
        }
        assert_eq!(replay(transcript), "accepted");
        let stored = std::fs::read(file).unwrap();
        assert_eq!(replay(&stored), "accepted", "bless it: the valuation changed");
    }
}
