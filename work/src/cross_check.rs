//! Cross-check of a round's scores by sampled coalitions, in a form that an auditor can verify
//! piece by piece.

use florin_contribution::{
    AffineSource, Coalition, CrossCheckOptions, Estimator, OddRegression, RecordedGame, RoundError,
    RoundValuation, cross_check_round, scores_from_table,
};
use florin_protocol::limits::CROSS_CHECK_COHORT_MAX;
use florin_protocol::void::ScoreEstimate;
use florin_protocol::{CoalitionValue, CrossCheck, Valuation, blob_digest};

use crate::round::{ResultMismatch, TOLERANCE_NANO, ValuationInputs};

/// Coalitions besides the pairs: the empty coalition and the grand coalition.
const GRAND_PASSES: u64 = 2;

/// Seed of a cross-check's coalitions, derived from the round's base model and validation rows,
/// which are unknown until the reveal phase ends.
pub(crate) fn cross_check_seed(inputs: &ValuationInputs<'_>) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("florin v1 check");
    hasher.update(&blob_digest(inputs.base).0);
    hasher.update(&blob_digest(inputs.disclosed_rows).0);
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The cross-check over `members` with `pairs` pairs of coalitions per participant, and the number
/// of passes it took. `None` if the task requests none or the cohort's size does not allow one.
pub(crate) fn cross_check<S: AffineSource>(
    source: &mut S,
    rows: &[u64],
    members: &[usize],
    seed: u64,
    pairs: u8,
) -> Result<Option<(CrossCheck, u64)>, RoundError> {
    let moves = members.iter().any(|&member| rows[member] > 0);
    if pairs == 0 || !moves || !(2..=CROSS_CHECK_COHORT_MAX).contains(&members.len()) {
        return Ok(None);
    }
    let estimator = OddRegression;
    let players = members.len();
    let least = Estimator::<RecordedGame<'_>>::passes_min(&estimator, players);
    let passes = (GRAND_PASSES + 2 * u64::from(pairs) * players as u64).max(least);
    let rules = CrossCheckOptions { seed, passes };
    let checked = cross_check_round(&estimator, source, rows, members, rules)?;
    let worth = |(coalition, nano): &(Coalition, i64)| CoalitionValue {
        members: coalition.players().map(|player| player as u16).collect(),
        value_nano: *nano,
    };
    let version = Estimator::<RecordedGame<'_>>::version(&estimator);
    let table = checked.table.iter().map(worth).collect();
    let check = CrossCheck { version, seed, passes, table, scores_nano: checked.scores_nano };
    Ok(Some((check, checked.passes)))
}

/// The cross-checks of a round: one, or two if it is valued again and other members remain.
pub(crate) struct CrossChecks<'a> {
    rows: &'a [u64],
    seed: u64,
    pairs: u8,
    /// The members of the last cross-check, and its result.
    last: Option<(Vec<usize>, Option<CrossCheck>)>,
    /// Passes of all cross-checks.
    units: u64,
}

impl<'a> CrossChecks<'a> {
    /// Cross-checks with `pairs` pairs of coalitions per participant; none if it is 0.
    pub(crate) const fn new(rows: &'a [u64], seed: u64, pairs: u8) -> Self {
        Self { rows, seed, pairs, last: None, units: 0 }
    }

    /// Whether a cross-check of the remaining members confirms their scores.
    pub(crate) fn confirm<S: AffineSource>(
        &mut self,
        source: &mut S,
        valued: &RoundValuation,
    ) -> Result<bool, RoundError> {
        let members: Vec<usize> = valued.remaining().collect();
        let check = self.check(source, &members)?;
        let estimates = members.iter().map(|&member| {
            let row = &valued.rows[member];
            ScoreEstimate { score_nano: row.score_nano, error_nano: row.error_nano }
        });
        Ok(check.is_none_or(|check| check.confirms(estimates, valued.total_nano)))
    }

    /// The cross-check of the members that remain at the end, and the passes of all.
    pub(crate) fn finish<S: AffineSource>(
        mut self,
        source: &mut S,
        valued: &RoundValuation,
    ) -> Result<(Option<CrossCheck>, u64), RoundError> {
        let members: Vec<usize> = valued.remaining().collect();
        let check = self.check(source, &members)?;
        Ok((check, self.units))
    }

    fn check<S: AffineSource>(
        &mut self,
        source: &mut S,
        members: &[usize],
    ) -> Result<Option<CrossCheck>, RoundError> {
        if let Some((of, check)) = &self.last
            && of == members
        {
            return Ok(check.clone());
        }
        let checked = cross_check(source, self.rows, members, self.seed, self.pairs)?;
        self.units += checked.as_ref().map_or(0, |(_, passes)| *passes);
        let check = checked.map(|(check, _)| check);
        self.last = Some((members.to_vec(), check.clone()));
        Ok(check)
    }
}

/// Compares a stated cross-check with the recomputed one: the coalitions, their values within
/// [`TOLERANCE_NANO`], and the scores that follow from the stated values.
pub(crate) fn compare_cross_checks(
    ours: &Valuation,
    theirs: &Valuation,
) -> Result<(), ResultMismatch> {
    let differ = |line: String, ours: String, theirs: String| {
        Err(ResultMismatch {
            line: format!("valuation.evidence.cross_check{line}"),
            recomputed: ours,
            stated: theirs,
        })
    };
    let (a, b) = match (&ours.evidence.cross_check, &theirs.evidence.cross_check) {
        (None, None) => return Ok(()),
        (Some(ours), Some(theirs)) => (ours, theirs),
        (ours, theirs) => {
            let describe =
                |check: &Option<CrossCheck>| if check.is_some() { "a cross-check" } else { "none" };
            return differ(String::new(), describe(ours).to_owned(), describe(theirs).to_owned());
        }
    };
    for (line, ours, theirs) in [
        (".version", u64::from(a.version), u64::from(b.version)),
        (".seed", a.seed, b.seed),
        (".passes", a.passes, b.passes),
        (".table", a.table.len() as u64, b.table.len() as u64),
    ] {
        if ours != theirs {
            return differ(line.to_owned(), ours.to_string(), theirs.to_string());
        }
    }
    for (i, (ours, theirs)) in a.table.iter().zip(&b.table).enumerate() {
        if ours.members != theirs.members {
            let line = format!(".table[{i}].members");
            return differ(line, format!("{:?}", ours.members), format!("{:?}", theirs.members));
        }
        if ours.value_nano.abs_diff(theirs.value_nano) > TOLERANCE_NANO {
            let line = format!(".table[{i}].value_nano");
            return differ(line, ours.value_nano.to_string(), theirs.value_nano.to_string());
        }
    }
    check_scores_follow(theirs)
}

/// Recomputes the scores of a stated cross-check from its stated coalition values.
pub(crate) fn check_scores_follow(stated: &Valuation) -> Result<(), ResultMismatch> {
    let Some(check) = &stated.evidence.cross_check else { return Ok(()) };
    let differ = |line: &str, ours: String, theirs: String| {
        Err(ResultMismatch {
            line: format!("valuation.evidence.cross_check.{line}"),
            recomputed: ours,
            stated: theirs,
        })
    };
    let players = stated.scores.len();
    let members: Vec<usize> =
        (0..players).filter(|entry| !stated.scores[*entry].excluded).collect();
    let mut table = Vec::with_capacity(check.table.len());
    for worth in &check.table {
        let mut coalition = Coalition::empty(players);
        for &entry in &worth.members {
            if usize::from(entry) >= players {
                return differ("table", format!("entries below {players}"), entry.to_string());
            }
            coalition.insert(entry.into());
        }
        table.push((coalition, worth.value_nano));
    }
    let rules = CrossCheckOptions { seed: check.seed, passes: check.passes };
    let scores = match scores_from_table(&OddRegression, &table, &members, rules) {
        Ok(scores) => scores,
        Err(error) => return differ("table", error.to_string(), "the stated table".to_owned()),
    };
    if scores.len() != check.scores_nano.len() {
        let (ours, theirs) = (scores.len().to_string(), check.scores_nano.len().to_string());
        return differ("scores_nano", ours, theirs);
    }
    for (i, (ours, theirs)) in scores.iter().zip(&check.scores_nano).enumerate() {
        if ours.abs_diff(*theirs) > TOLERANCE_NANO {
            let line = format!("scores_nano[{i}]");
            return differ(&line, ours.to_string(), theirs.to_string());
        }
    }
    Ok(())
}
