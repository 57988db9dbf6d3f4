//! Cohorts by every knob, from candidates and the reports of earlier rounds.

use florin_protocol::*;
use serde_json::{Value, json};

use super::{market, settled_round, specs};

/// Participants of the vectors.
const MEMBERS: u8 = 40;

/// A settled round of three accounts.
fn settled_report() -> Report {
    let [mlp, _, _] = specs();
    let scope = RoundScope { market: market(), task: mlp.id(), round: RoundNumber(1) };
    let cohort = [1, 2, 3].map(|i| Address([i; 20]));
    let offer = Offer {
        scope,
        base_model: mlp.base_model,
        previous_report: Digest(mlp.id().0),
        cohort: cohort.to_vec(),
        reasons: vec![SelectionReason::Drawn; 3],
        candidates: Digest::default(),
        opened: Timestamp(1_000),
        commit_by: Timestamp(601_000),
        reveal_by: Timestamp(661_000),
        pool: mlp.budget.data,
    };
    let header = |sender| UpdateHeader {
        scope,
        sender,
        offer: offer.digest(),
        base_model: mlp.base_model,
        rows: 150,
        update: Digest([0x33; 32]),
        bytes: 1,
        salt: Digest([0x44; 32]),
        expires: Timestamp(661_000),
    };
    settled_round(&mlp, &offer, &cohort, &header).2
}

fn account(number: u8) -> Address {
    Address([number.wrapping_mul(53); 20])
}

/// A report of a round in which a window of the members was selected: every seventh failed, some
/// were too slow for an early end, and scores and times follow from the members' numbers. After
/// round 10 others fail in each round.
fn report(example: &Report, round: u32, classes: bool) -> Report {
    let first = u8::try_from(round * 7 % u32::from(MEMBERS)).unwrap();
    let mut asked: Vec<(Address, u8)> =
        (first..first + 12).map(|at| at % MEMBERS).map(|at| (account(at), at)).collect();
    asked.sort_unstable();
    let others = u8::try_from(round.saturating_sub(10)).unwrap();
    let at_fault = |number: u8| ((number + others) % 7 == 3, (number + others) % 11 == 5);
    let opened = Timestamp(u64::from(round) * 1_000_000);
    let (delivered, missing): (Vec<_>, Vec<_>) =
        asked.into_iter().partition(|(_, number)| at_fault(*number) == (false, false));
    let late = round.is_multiple_of(3);
    let closed = opened.saturating_add_ms(if late { 600_001 } else { 40_000 });
    let at = |number: u8| opened.saturating_add_ms(1_000 + 900 * u64::from(number));
    let entry = |who: Address, number: u8| UpdateEntry {
        sender: who,
        rows_counted: 20 + u64::from(number % 5) * 30,
        ..example.entries[0].clone()
    };
    let mut valuation = example.valuation.clone().unwrap();
    let score = |(who, number): &(Address, u8)| UpdateScore {
        account: *who,
        score_nano: (i64::from(number % 9) - 2) * 1_000_000 / i64::from(round),
        ..valuation.scores[0]
    };
    let scores = delivered.iter().map(score).collect();
    valuation.scores = scores;
    valuation.total_nano = 50_000_000 / i64::from(round.pow(3));
    valuation.evidence.class_effects = classes.then(|| class_effects(&delivered, round));
    Report {
        scope: RoundScope { round: RoundNumber(round), ..example.scope },
        outcome: if round == 4 {
            RoundOutcome::Abandoned(AbandonReason::ValuationFailed)
        } else {
            RoundOutcome::Settled
        },
        commits: delivered.iter().map(|(who, _)| (*who, Digest::default())).collect(),
        entries: delivered.iter().map(|(who, number)| entry(*who, *number)).collect(),
        times: RoundTimes {
            opened,
            commit_by: opened.saturating_add_ms(600_000),
            commits: delivered.iter().map(|(_, number)| at(*number)).collect(),
            commits_closed: closed,
            updates: delivered.iter().map(|_| closed).collect(),
        },
        missing: missing
            .iter()
            .map(|(who, number)| {
                let reason = match at_fault(*number) {
                    (true, _) => MissingReason::NoCommit,
                    _ => MissingReason::NoReveal,
                };
                (*who, reason)
            })
            .collect(),
        valuation: (round != 4).then_some(valuation),
        ..example.clone()
    }
}

/// A round of twelve asked members: how many committed, how many of these sent no update, by how many
/// milliseconds its commits closed after the deadline, and the updates that it needed, if it had too few.
type Attended = (u8, u8, i64, Option<u32>);

const ASKED: u8 = 12;

fn attended(example: &Report, round: u32, (commits, silent, late, needed): Attended) -> Report {
    let opened = Timestamp(u64::from(round) * 1_000_000);
    let commit_by = opened.saturating_add_ms(600_000);
    let members = |from: u8, to: u8| {
        let mut members: Vec<Address> = (from..to).map(account).collect();
        members.sort_unstable();
        members
    };
    let committed = members(0, commits);
    let no_commit = members(commits, ASKED).into_iter().map(|who| (who, MissingReason::NoCommit));
    let no_reveal = members(0, silent).into_iter().map(|who| (who, MissingReason::NoReveal));
    let mut missing: Vec<_> = no_reveal.chain(no_commit).collect();
    missing.sort_unstable_by_key(|(who, _)| *who);
    let entry = |sender| UpdateEntry { sender, ..example.entries[0].clone() };
    let reason = match needed {
        Some(needed) => AbandonReason::TooFewUpdates { got: (commits - silent).into(), needed },
        None => AbandonReason::ValuationFailed,
    };
    Report {
        scope: RoundScope { round: RoundNumber(round), ..example.scope },
        outcome: RoundOutcome::Abandoned(reason),
        times: RoundTimes {
            opened,
            commit_by,
            commits: committed.iter().map(|_| opened.saturating_add_ms(1_000)).collect(),
            commits_closed: Timestamp(commit_by.0.saturating_add_signed(late)),
            ..RoundTimes::default()
        },
        commits: committed.iter().map(|who| (*who, Digest::default())).collect(),
        entries: members(silent, commits).into_iter().map(entry).collect(),
        missing,
        valuation: None,
        ..example.clone()
    }
}

/// How many are asked for the target after such rounds: the number shows in the size of the cohort, up to 34
/// eligible members.
fn attendances() -> Vec<(u32, Vec<Attended>)> {
    let early = (10, 0, -1, None);
    let fading = |first: Attended, rounds: usize, last: &[Attended]| {
        [vec![first], vec![early; rounds], last.to_vec()].concat()
    };
    vec![
        (10, vec![(6, 0, 0, None)]),
        (10, vec![(6, 0, -1, None)]),
        (10, vec![(8, 3, 1, None)]),
        (5, vec![(5, 0, 1, None)]),
        (17, vec![(11, 0, 1, None)]),
        (10, vec![(2, 0, 0, None), (7, 0, 0, None)]),
        (2, vec![(1, 0, 0, None)]),
        (4, vec![(0, 0, 1, Some(3)); 2]),
        (2, vec![(2, 0, 1, Some(3)); 6]),
        (4, vec![(3, 2, 1, Some(3))]),
        (10, fading((6, 0, 0, None), 1, &[])),
        (10, fading((6, 0, 0, None), 6, &[])),
        (18, fading((8, 0, 0, None), 12, &[])),
        (8, fading((11, 0, 0, None), 17, &[(0, 0, 1, Some(3))])),
    ]
}

/// Effects on six classes: each member improves one or two of them, some too little to count, and some
/// have no weight. A round has no row of one class.
fn class_effects(delivered: &[(Address, u8)], round: u32) -> ClassEffects {
    let shares = |number: u8| {
        let lowered = |class: u8| match (number + class) % 6 {
            0 => 3_000,
            1 if number.is_multiple_of(3) => 1_000 + i64::from(round),
            _ => -2_000,
        };
        let scale = if number % 10 == 3 { 1 } else { 1_000 };
        let lowered: Vec<i64> = (0..6).map(|class| scale * lowered(class)).collect();
        if number % 10 == 7 { Vec::new() } else { ClassEffects::shares_of(&lowered) }
    };
    let loss = |class: u32| {
        let loss = u64::from(2_000 - 300 * class) * 1_000_000 / u64::from(round);
        (!(class + round).is_multiple_of(6)).then_some(loss)
    };
    ClassEffects {
        losses_nano: (0..6).map(loss).collect(),
        shares: delivered.iter().map(|(_, number)| shares(*number)).collect(),
    }
}

/// The parts of a report that a history reads.
fn history_part(report: &Report) -> Value {
    let entry = |entry: &UpdateEntry| {
        json!({
            "sender": entry.sender,
            "rows_counted": entry.rows_counted,
        })
    };
    let score = |score: &UpdateScore| {
        json!({
            "account": score.account,
            "score_nano": score.score_nano,
            "error_nano": score.error_nano,
        })
    };
    let valuation = report.valuation.as_ref().map(|valuation| {
        json!({
            "total_nano": valuation.total_nano,
            "scores": valuation.scores.iter().map(score).collect::<Vec<_>>(),
            "evidence": { "class_effects": valuation.evidence.class_effects },
        })
    });
    json!({
        "scope": { "round": report.scope.round },
        "outcome": report.outcome,
        "commits": report.commits,
        "entries": report.entries.iter().map(entry).collect::<Vec<_>>(),
        "times": report.times,
        "missing": report.missing,
        "valuation": valuation,
    })
}

fn candidates(round: u32) -> Candidates {
    let one = |number: u8| {
        let standing = match number {
            34 => Standing::Busy(TaskId([5; 32])),
            35 => Standing::Reserved(TaskId([5; 32])),
            36 => Standing::Newcomer,
            37 => Standing::Reserve,
            38 => Standing::Absent,
            39 => Standing::BondTooSmall,
            _ => Standing::Eligible,
        };
        let quote_ms = if number.is_multiple_of(4) { 0 } else { 500 + 450 * u64::from(number) };
        (account(number), Candidate { standing, quote_ms })
    };
    let seed = blob_digest(&round.to_le_bytes());
    Candidates { seed, accounts: (0..MEMBERS).map(one).collect() }
}

/// The cohort of a round, with all that it follows from.
fn vector(
    knob: SelectionKnob,
    (target, over): (u32, u32),
    late: u32,
    reports: &[Report],
    note: &str,
) -> Value {
    let round = u32::try_from(reports.len()).unwrap() + 1;
    let mut history = TaskHistory::default();
    let staleness = StalenessRule { rounds: late, weight: StalenessWeight::default() };
    reports.iter().for_each(|report| history.add_round(staleness, report));
    let rules = RoundRules {
        cohort_target: target,
        cohort_min: if target > 38 { target } else { 3 },
        over_selection: over,
        train_ms: 600_000,
        selection: Selection { knob, explore: Micro(100_000) },
        deadline: match round % 2 {
            0 => DeadlineRule::Fixed,
            _ => DeadlineRule::Predicted { quantile: Micro(900_000), slack: Micro(1_500_000) },
        },
        staleness,
        ..TaskSpec::example().rounds
    };
    let candidates = candidates(round);
    let number = RoundNumber(round);
    let selected = select_cohort(&rules, number, &candidates, &history);
    let cohort: Vec<Address> = selected.iter().map(|one| one.account).collect();
    let reasons: Vec<SelectionReason> = selected.iter().map(|one| one.reason).collect();
    let commit_ms = commit_deadline_ms(&rules, number, &candidates, &history, &cohort);
    json!({
        "name": format!(
            "{}, {target} + {over} of {MEMBERS} in round {round}, late by at most {late}{note}",
            knob.name(),
        ),
        "rules": rules,
        "round": round,
        "reports": reports.iter().map(history_part).collect::<Vec<_>>(),
        "candidates": candidates,
        "candidates_digest": candidates.digest(),
        "cohort": cohort,
        "reasons": reasons,
        "commit_ms": commit_ms,
    })
}

/// Cohorts by every knob in early and late rounds.
pub(super) fn selections() -> Value {
    let example = settled_report();
    let of_classes = |knob, round, places, late, classes| {
        let reports: Vec<Report> =
            (1..round).map(|round| report(&example, round, classes)).collect();
        let note = if classes { ", with classes" } else { "" };
        vector(knob, places, late, &reports, note)
    };
    let one = |knob, round, places, late| of_classes(knob, round, places, late, false);
    let mut all = Vec::new();
    for knob in SelectionKnob::ALL {
        all.push(one(knob, 1, (8, 2), 0));
        all.push(one(knob, 6, (8, 2), 0));
        all.push(one(knob, 11, (12, 4), 0));
    }
    all.push(one(SelectionKnob::Fast, 3, (36, 4), 0));
    all.push(one(SelectionKnob::Random, 2, (40, 4), 0));
    // The same members deliver and fail.
    all.push(one(SelectionKnob::FairWork, 17, (8, 2), 0));
    // Spare places for members that are away.
    for (target, rounds) in attendances() {
        let reports = (1..).zip(rounds).map(|(round, one)| attended(&example, round, one));
        let reports: Vec<Report> = reports.collect();
        all.push(vector(SelectionKnob::FairWork, (target, 40), 0, &reports, ", attendance"));
    }
    // Late updates count. The windows of two rounds overlap.
    for (knob, late) in SelectionKnob::ALL.into_iter().zip([1, 2, 3, 8, 64]) {
        all.push(one(knob, 5, (10, 6), late));
    }
    for knob in [SelectionKnob::FairAccuracy, SelectionKnob::Performance] {
        all.push(of_classes(knob, 2, (8, 2), 0, true));
        all.push(of_classes(knob, 7, (8, 2), 0, true));
        all.push(of_classes(knob, 16, (12, 4), 0, true));
        all.push(of_classes(knob, 9, (10, 6), 2, true));
    }
    all.into()
}
