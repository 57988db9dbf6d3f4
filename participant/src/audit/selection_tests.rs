//! Lies about a cohort that an audit finds, each beside the honest offer.

use florin_protocol::{
    AbandonReason, Amount, Candidate, DeadlineRule, Micro, MissingReason, ReportInputs,
    RoundNumber, RoundScope, Selection, SelectionKnob, SelectionReason, StalenessRule,
    StalenessWeight, close_round,
};

use super::*;

const MEMBERS: u8 = 60;

fn account(number: u8) -> Address {
    Address([number; 20])
}

fn spec() -> TaskSpec {
    let mut spec = TaskSpec::example();
    spec.rounds.cohort_target = 10;
    spec.rounds.train_ms = 60_000;
    spec.rounds.selection = Selection { knob: SelectionKnob::Fast, explore: Micro(100_000) };
    spec.rounds.deadline =
        DeadlineRule::Predicted { quantile: Micro(1_000_000), slack: Micro(2_000_000) };
    spec
}

/// An honest round after those of `audit`: its offer, candidates and report, in which each member
/// commits after as many milliseconds as its number, until the round has its updates.
fn round(
    audit: &SelectionAudit,
    spec: &TaskSpec,
    number: u32,
    before: Option<&Report>,
) -> (Offer, Candidates, Report) {
    round_with(audit, spec, number, before, u32::MAX)
}

/// The same with at most this many commits; with fewer than the target it waits for its deadline.
fn round_with(
    audit: &SelectionAudit,
    spec: &TaskSpec,
    number: u32,
    before: Option<&Report>,
    most: u32,
) -> (Offer, Candidates, Report) {
    let one = |i: u8| (account(i), Candidate { standing: Standing::Eligible, quote_ms: i.into() });
    let seed = audit.seed.unwrap_or(Digest([9; 32]));
    let candidates = Candidates { seed, accounts: (1..=MEMBERS).map(one).collect() };
    let round = RoundNumber(number);
    let cohort = select_cohort(&spec.rounds, round, &candidates, &audit.history);
    let accounts: Vec<Address> = cohort.iter().map(|one| one.account).collect();
    let allowed = commit_deadline_ms(&spec.rounds, round, &candidates, &audit.history, &accounts);
    let opened = Timestamp(1_000_000 * u64::from(number));
    let commit_by = opened.saturating_add_ms(allowed);
    let offer = Offer {
        scope: RoundScope { market: spec.market, task: spec.id(), round },
        base_model: spec.base_model,
        previous_report: before.map_or(Digest(spec.id().0), Report::digest),
        cohort: accounts.clone(),
        reasons: cohort.iter().map(|one| one.reason).collect(),
        candidates: candidates.digest(),
        opened,
        commit_by,
        reveal_by: commit_by.saturating_add_ms(1_000),
        pool: Amount::ZERO,
    };
    let at = |who: &Address| opened.saturating_add_ms(who.0[0].into());
    let mut by_time = accounts.clone();
    by_time.sort_unstable_by_key(at);
    let wanted = spec.rounds.cohort_target.min(u32::try_from(accounts.len()).unwrap());
    by_time.truncate(usize::try_from(wanted.min(most)).unwrap());
    let last = by_time.iter().map(at).max();
    let closed = last.filter(|_| most >= wanted).unwrap_or(commit_by.saturating_add_ms(1));
    let committed: Vec<Address> =
        accounts.iter().copied().filter(|who| by_time.contains(who)).collect();
    let commits: Vec<_> = committed.iter().map(|who| (*who, Digest::default())).collect();
    let reason = |who: &Address| match by_time.contains(who) {
        true => MissingReason::NoReveal,
        false => MissingReason::NoCommit,
    };
    let missing: Vec<_> = accounts.iter().map(|who| (*who, reason(who))).collect();
    let report = close_round(&ReportInputs {
        spec,
        offer: &offer,
        previous_report: before,
        commits: &commits,
        entries: &[],
        times: &RoundTimes {
            commits: committed.iter().map(at).collect(),
            commits_closed: closed,
            ..RoundTimes::default()
        },
        missing: &missing,
        holdout_rows: &[],
        result: Err(AbandonReason::ValuationFailed),
        verified_work: &[],
    });
    (offer, candidates, report.unwrap())
}

/// Three honest rounds, and the audit before the last one.
fn three_rounds() -> (SelectionAudit, TaskSpec, (Offer, Candidates, Report)) {
    let (mut audit, spec) = (SelectionAudit::default(), spec());
    let mut before: Option<Report> = None;
    for number in 1..=2 {
        let (offer, candidates, report) = round(&audit, &spec, number, before.as_ref());
        assert_eq!(audit.check(&spec, &offer, &candidates, &report), [], "round {number}");
        audit.advance(&spec, &report);
        before = Some(report);
    }
    audit.seed = Some(Digest([7; 32]));
    let last = round(&audit, &spec, 3, before.as_ref());
    (audit, spec, last)
}

fn fields(found: &[Mismatch]) -> Vec<&str> {
    found.iter().map(|one| one.line.as_str()).collect()
}

#[test]
fn an_honest_cohort_has_no_mismatch() {
    let (audit, spec, (offer, candidates, report)) = three_rounds();
    assert_eq!(audit.check(&spec, &offer, &candidates, &report), []);
    assert_eq!(audit.unverified_seed(&offer, &candidates), None);
    let first = SelectionAudit::default();
    assert!(first.unverified_seed(&offer, &candidates).is_some(), "the holdout is a secret");
}

#[test]
fn lies_about_an_offer_are_found() {
    type Lie = fn(&mut Offer);
    let (audit, spec, honest) = three_rounds();
    let lies: [(&str, Lie); 4] = [
        ("offer.cohort", |offer| {
            let absent = (1..=MEMBERS).map(account).find(|who| !offer.cohort.contains(who));
            offer.cohort[0] = absent.unwrap();
            offer.cohort.sort_unstable();
        }),
        ("offer.cohort", |offer| offer.cohort.truncate(9)),
        ("offer.reasons", |offer| offer.reasons[0] = SelectionReason::Reserve),
        ("offer.commit_by", |offer| offer.commit_by = offer.commit_by.saturating_add_ms(1)),
    ];
    for (field, lie) in lies {
        let (mut offer, candidates, report) = honest.clone();
        lie(&mut offer);
        let found = audit.check(&spec, &offer, &candidates, &report);
        assert!(fields(&found).contains(&field), "{field}: {found:?}");
    }
}

#[test]
fn lies_about_the_candidates_are_found() {
    type Lie<'a> = &'a dyn Fn(&mut Candidates);
    let (mut audit, spec, honest) = three_rounds();
    let asked = honest.0.cohort[0];
    let known = audit.known.iter().copied().find(|who| *who != asked).unwrap();
    audit.delivered.insert(known);
    audit.before_seed.insert(known);
    let drop_known =
        |candidates: &mut Candidates| candidates.accounts.retain(|who, _| *who != known);
    let seed = |candidates: &mut Candidates| candidates.seed = Digest([8; 32]);
    let sits_out = |candidates: &mut Candidates| {
        candidates.accounts.get_mut(&known).unwrap().standing = Standing::Absent;
    };
    let is_new = |candidates: &mut Candidates| {
        candidates.accounts.get_mut(&known).unwrap().standing = Standing::Newcomer;
    };
    let standing = format!("candidates.accounts[{known}].standing");
    let lies: [(&str, Lie<'_>); 4] = [
        ("candidates.seed", &seed),
        ("candidates.accounts", &drop_known),
        (&standing, &sits_out),
        (&standing, &is_new),
    ];
    for (field, lie) in lies {
        let (mut offer, mut candidates, report) = honest.clone();
        lie(&mut candidates);
        offer.candidates = candidates.digest();
        let found = audit.check(&spec, &offer, &candidates, &report);
        assert!(fields(&found).contains(&field), "{field}: {found:?}");
    }
}

#[test]
fn times_outside_their_phases_are_found() {
    type Lie = fn(&mut Report);
    let (audit, spec, honest) = three_rounds();
    let lies: [Lie; 6] = [
        |report| report.times.commits.truncate(3),
        |report| report.times.commits[0] = Timestamp(0),
        |report| report.times.commits[0] = report.times.commits_closed.saturating_add_ms(1),
        |report| {
            report.times.commits_closed = report.times.commits_closed.saturating_add_ms(1);
        },
        // A round that had its updates and stayed open would have more asked in the next ones.
        |report| report.times.commits_closed = report.times.commit_by,
        |report| report.times.updates.push(Timestamp(1)),
    ];
    for (number, lie) in lies.iter().enumerate() {
        let (offer, candidates, mut report) = honest.clone();
        lie(&mut report);
        let found = audit.check(&spec, &offer, &candidates, &report);
        assert_eq!(fields(&found), ["times"], "lie {number}");
    }
}

/// The number of commits decides how many members are asked.
#[test]
fn made_up_and_withheld_commits_are_found() {
    type Lie = fn(&mut Report);
    let line = "commits of the entries and of those that are missing after one";
    let (audit, spec) = (SelectionAudit::default(), spec());
    let honest = round_with(&audit, &spec, 1, None, 6);
    assert_eq!(audit.check(&spec, &honest.0, &honest.1, &honest.2), []);
    let lies: [(Lie, &[&str]); 4] = [
        (
            |report| {
                report.commits.insert(0, report.commits[0]);
                report.times.commits.insert(0, report.times.commits[0]);
            },
            &[line],
        ),
        (
            |report| {
                report.commits.pop();
                report.times.commits.pop();
            },
            &[line],
        ),
        (
            |report| {
                let silent = report.missing.iter().find(|(_, why)| *why == MissingReason::NoCommit);
                report.commits.push((silent.unwrap().0, Digest::default()));
                report.times.commits.push(report.times.commits[0]);
            },
            &[line],
        ),
        (
            |report| report.times.commits_closed = Timestamp(report.times.commit_by.0 - 1),
            &["times"],
        ),
    ];
    for (number, (lie, lines)) in lies.into_iter().enumerate() {
        let (offer, candidates, mut report) = honest.clone();
        lie(&mut report);
        let found = audit.check(&spec, &offer, &candidates, &report);
        assert_eq!(fields(&found), lines, "lie {number}");
    }
    // More commits than the round waits for.
    let generous = TaskSpec {
        rounds: florin_protocol::RoundRules { cohort_target: 11, ..spec.rounds },
        ..spec.clone()
    };
    let (offer, candidates, report) = round(&audit, &generous, 1, None);
    let found = audit.check(&spec, &offer, &candidates, &report);
    assert!(fields(&found).contains(&"times"), "{found:?}");
}

/// Six of eleven commit before the deadline: the next round asks for more, and an offer that asks as many as
/// before is found.
#[test]
fn a_cohort_that_does_not_grow_after_a_deadline_is_found() {
    let mut spec = spec();
    spec.rounds.over_selection = 40;
    let mut audit = SelectionAudit::default();
    let (first, _, report) = round_with(&audit, &spec, 1, None, 6);
    audit.advance(&spec, &report);
    let (offer, candidates, next) = round(&audit, &spec, 2, Some(&report));
    assert_eq!(audit.check(&spec, &offer, &candidates, &next), []);
    assert_eq!((first.cohort.len(), offer.cohort.len()), (11, 28));
    let mut short = offer;
    short.cohort.truncate(11);
    short.reasons.truncate(11);
    let found = audit.check(&spec, &short, &candidates, &next);
    assert!(fields(&found).contains(&"offer.cohort"), "{found:?}");
}

#[test]
fn a_training_that_goes_on_cannot_be_dropped() {
    let mut spec = spec();
    let rule = StalenessRule { rounds: 2, weight: StalenessWeight::Equal };
    spec.rounds.staleness = rule;
    let mut audit = SelectionAudit::default();
    let (_, _, mut first) = round(&audit, &spec, 1, None);
    // One of the cohort is still training when the commits end.
    let late = first.commits[0].0;
    first.missing.iter_mut().filter(|(who, _)| *who == late).for_each(|(_, why)| {
        *why = MissingReason::NoCommit;
    });
    let place = first.commits.iter().position(|(who, _)| *who == late).unwrap();
    first.commits.remove(place);
    first.times.commits.remove(place);
    audit.advance(&spec, &first);
    let (offer, candidates, report) = round(&audit, &spec, 2, Some(&first));
    assert_eq!(audit.check(&spec, &offer, &candidates, &report), []);
    let place = offer.cohort.binary_search(&late).unwrap();
    assert_eq!(offer.reasons[place], SelectionReason::Continues);
    for standing in [Standing::Absent, Standing::Reserve] {
        let mut candidates = candidates.clone();
        candidates.accounts.get_mut(&late).unwrap().standing = standing;
        let found = audit.check(&spec, &offer, &candidates, &report);
        let line = format!("candidates.accounts[{late}].standing");
        assert!(fields(&found).contains(&line.as_str()), "{standing:?}: {found:?}");
    }
}
