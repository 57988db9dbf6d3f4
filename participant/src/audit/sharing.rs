//! The audit of participants that a task shares with others of its coordinator: a busy one must have
//! worked for the task that its standing names, also between two of its rounds, and one that is left to
//! another task must be one of more than enough.

use std::collections::{BTreeMap, BTreeSet};

use florin_protocol::{
    Address, Candidates, Mismatch, MissingReason, Offer, Report, RoundNumber, RoundRules, Standing,
    TaskId, TaskSpec, Timestamp,
};

use super::{AuditError, Auditor};
use crate::client::ClientError;

/// Most other tasks whose rounds are read for one round.
const OTHER_TASKS_MAX: usize = 16;

/// The contradictions that the candidates show by themselves.
pub(super) fn contradictions(spec: &TaskSpec, candidates: &Candidates) -> Vec<Mismatch> {
    let mut found = Vec::new();
    let id = spec.id();
    let standings = || candidates.accounts.iter().map(|(account, one)| (account, one.standing));
    for (account, standing) in standings() {
        if matches!(standing, Standing::Busy(other) | Standing::Reserved(other) if other == id) {
            found.push(Mismatch::new(line(*account), &format!("{standing:?}"), &"another task"));
        }
    }
    let count = |is: fn(Standing) -> bool| standings().filter(|(_, one)| is(*one)).count();
    let reserved = count(|one| matches!(one, Standing::Reserved(_)));
    let eligible = count(|one| one == Standing::Eligible);
    let places = usize::try_from(spec.rounds.selection_size()).unwrap_or(usize::MAX);
    if reserved > 0 && eligible < places {
        let stated = format!("{reserved} left to other tasks, {eligible} eligible");
        found.push(Mismatch::new("candidates.accounts", &stated, &format!("{places} eligible")));
    }
    found
}

fn line(account: Address) -> String {
    format!("candidates.accounts[{account}].standing")
}

/// The accounts whose trainings go on after a round, so that they work until the next one opens: they
/// sent no commit in it, and not in too many rounds before. `earlier` returns an earlier report.
fn going_on<E>(
    rules: &RoundRules,
    last: &Report,
    mut earlier: impl FnMut(RoundNumber) -> Result<Report, E>,
) -> Result<BTreeSet<Address>, E> {
    let silent = |report: &Report| -> BTreeSet<Address> {
        let missing = report.missing.iter();
        let silent = missing.filter(|(_, reason)| *reason == MissingReason::NoCommit);
        silent.map(|(account, _)| *account).collect()
    };
    let (round, late) = (last.scope.round.0, rules.staleness.rounds);
    if late == 0 || round >= rules.count {
        return Ok(BTreeSet::new());
    }
    let mut going = silent(last);
    if round <= late {
        return Ok(going);
    }
    let mut failed = going.clone();
    for back in 1..=late {
        if failed.is_empty() {
            break;
        }
        let before = silent(&earlier(RoundNumber(round.saturating_sub(back)))?);
        failed.retain(|account| before.contains(account));
    }
    going.retain(|account| !failed.contains(account));
    Ok(going)
}

/// The work of another task's participants at a moment.
enum OtherWork {
    /// For a round with a report, whose commits were open.
    Reported(Box<Report>),
    /// For a round that still runs: its cohort is known, its commits are not.
    Running(Vec<Address>),
    /// Between two rounds: these trainings go on.
    Between(BTreeSet<Address>),
}

impl OtherWork {
    /// Whether the task waited for the account's commit at the moment.
    fn waits_for(&self, account: Address, at: Timestamp) -> bool {
        match self {
            Self::Running(cohort) => cohort.contains(&account),
            Self::Between(going) => going.contains(&account),
            Self::Reported(report) => {
                let commits = report.commits.iter().zip(&report.times.commits);
                let committed = commits.filter(|((sender, _), _)| *sender == account);
                committed.into_iter().any(|(_, time)| *time >= at)
                    || report.missing.iter().any(|(missing, _)| *missing == account)
            }
        }
    }
}

impl Auditor<'_> {
    /// Checks that each busy account was asked by a round that was open when this one opened, and
    /// had not committed to it, or that its training went on between two rounds.
    pub(super) fn check_busy(
        &mut self,
        offer: &Offer,
        candidates: &Candidates,
    ) -> Result<Vec<Mismatch>, AuditError> {
        let mut by_task: BTreeMap<TaskId, Vec<Address>> = BTreeMap::new();
        let (mut found, mut reserved) = (Vec::new(), BTreeSet::new());
        for (account, one) in &candidates.accounts {
            match one.standing {
                Standing::Busy(other) => by_task.entry(other).or_default().push(*account),
                Standing::Reserved(other) => drop(reserved.insert(other)),
                _ => {}
            }
        }
        if !reserved.is_empty() || by_task.len() > OTHER_TASKS_MAX {
            let text = "which other tasks waited for shared participants when a round opened, and \
                        which accounts stated a limit: only the coordinator has both";
            if !self.unverifiable.iter().any(|line| line == text) {
                self.unverifiable.push(text.to_owned());
            }
        }
        for (other, accounts) in by_task.into_iter().take(OTHER_TASKS_MAX) {
            let work = self.work_at(other, offer.opened)?;
            let is_free = |account: &Address| {
                work.as_ref().is_none_or(|work| !work.waits_for(*account, offer.opened))
            };
            let free = accounts.into_iter().filter(is_free);
            let stated = format!("busy for {other}");
            found.extend(free.map(|account| Mismatch::new(line(account), &stated, &"free")));
        }
        Ok(found)
    }

    /// The work for another task at a moment: for the round whose commits were open, or between two
    /// rounds.
    fn work_at(&self, task: TaskId, at: Timestamp) -> Result<Option<OtherWork>, AuditError> {
        let view = match self.client.task(task) {
            Err(ClientError::Rejected(_)) => return Ok(None),
            other => other?,
        };
        let (mut before, mut after) = (0, view.reported.saturating_add(1));
        let mut last = None;
        // The last reported round that opened by then.
        while after - before > 1 {
            let middle = before + (after - before) / 2;
            let report = self.client.report(task, RoundNumber(middle))?.body;
            if report.times.opened <= at {
                (before, last) = (middle, Some(report));
            } else {
                after = middle;
            }
        }
        let last = match last {
            Some(report) if report.times.commits_closed >= at => {
                return Ok(Some(OtherWork::Reported(Box::new(report))));
            }
            other => other,
        };
        let running = view.offer.map(|offer| offer.body).filter(|offer| offer.opened <= at);
        if let Some(offer) = running {
            return Ok(Some(OtherWork::Running(offer.cohort)));
        }
        let Some(last) = last else { return Ok(None) };
        let earlier = |round| self.client.report(task, round).map(|report| report.body);
        let going = going_on(&view.spec.rounds, &last, earlier)?;
        Ok(Some(OtherWork::Between(going)))
    }
}

#[cfg(test)]
mod tests {
    use florin_protocol::{
        AbandonReason, Amount, Candidate, Digest, ReportInputs, RoundScope, RoundTimes, close_round,
    };

    use super::*;

    fn account(number: u8) -> Address {
        Address([number; 20])
    }

    /// The report of a round without commits.
    fn report() -> Report {
        let spec = TaskSpec::example();
        let round = RoundNumber::FIRST;
        let offer = Offer {
            scope: RoundScope { market: spec.market, task: spec.id(), round },
            base_model: spec.base_model,
            previous_report: Digest(spec.id().0),
            cohort: Vec::new(),
            reasons: Vec::new(),
            candidates: Digest::default(),
            opened: Timestamp(0),
            commit_by: Timestamp(1),
            reveal_by: Timestamp(2),
            pool: Amount::ZERO,
        };
        let inputs = ReportInputs {
            spec: &spec,
            offer: &offer,
            previous_report: None,
            commits: &[],
            entries: &[],
            times: &RoundTimes::default(),
            missing: &[],
            holdout_rows: &[],
            result: Err(AbandonReason::ValuationFailed),
            verified_work: &[],
        };
        close_round(&inputs).unwrap()
    }

    fn candidates(standings: &[Standing]) -> Candidates {
        let one = |(at, standing): (usize, &Standing)| {
            (account(at as u8), Candidate { standing: *standing, quote_ms: 0 })
        };
        let accounts = standings.iter().enumerate().map(one).collect();
        Candidates { seed: Digest::default(), accounts }
    }

    #[test]
    fn participants_are_left_to_another_task_only_beyond_all_places() {
        let mut spec = TaskSpec::example();
        spec.rounds.cohort_target = 2;
        spec.rounds.over_selection = 1;
        let other = TaskId([9; 32]);
        let (eligible, reserved) = (Standing::Eligible, Standing::Reserved(other));
        let count = |standings: &[Standing]| contradictions(&spec, &candidates(standings)).len();
        assert_eq!(count(&[eligible, eligible, eligible, reserved]), 0);
        assert_eq!(count(&[eligible, eligible, Standing::Newcomer, reserved]), 1);
        assert_eq!(count(&[eligible, Standing::Busy(other)]), 0);
        assert_eq!(count(&[eligible, Standing::Busy(spec.id())]), 1, "its own round");
    }

    #[test]
    fn an_account_works_for_a_round_until_its_commit() {
        let mut report = report();
        report.times.opened = Timestamp(10);
        report.times.commits_closed = Timestamp(30);
        report.commits = vec![(account(1), Digest::default()), (account(2), Digest::default())];
        report.times.commits = vec![Timestamp(15), Timestamp(25)];
        report.missing = vec![(account(3), MissingReason::NoCommit)];
        let open = OtherWork::Reported(Box::new(report));
        let busy: Vec<u8> = (0..5).filter(|i| open.waits_for(account(*i), Timestamp(20))).collect();
        assert_eq!(busy, [2, 3]);
        let running = OtherWork::Running(vec![account(4)]);
        assert!(running.waits_for(account(4), Timestamp(20)));
        assert!(!running.waits_for(account(1), Timestamp(20)));
    }

    #[test]
    fn a_training_goes_on_between_two_rounds_until_it_has_failed() {
        use MissingReason::{NoCommit, NoReveal};
        let mut rules = TaskSpec::example().rounds;
        (rules.count, rules.staleness.rounds) = (9, 1);
        // Account 1 is silent from round 2 on, 2 from round 3 on, and 3 has committed.
        let missing = |round: u32| {
            let mut report = report();
            report.scope.round = RoundNumber(round);
            let all = [(1, 2, NoCommit), (2, 3, NoCommit), (3, 1, NoReveal)];
            let missing = all.into_iter().filter(|(_, from, _)| *from <= round);
            report.missing = missing.map(|(who, _, why)| (account(who), why)).collect();
            report
        };
        let going = |rules: &RoundRules, round| {
            let earlier = |round: RoundNumber| Ok::<_, std::convert::Infallible>(missing(round.0));
            let Ok(going) = going_on(rules, &missing(round), earlier);
            let work = OtherWork::Between(going);
            (1..4).filter(|i| work.waits_for(account(*i), Timestamp(20))).collect::<Vec<u8>>()
        };
        assert_eq!(going(&rules, 1), [0_u8; 0]);
        assert_eq!(going(&rules, 2), [1]);
        assert_eq!(going(&rules, 3), [2], "account 1 is late by more than a round");
        rules.staleness.rounds = 2;
        assert_eq!(going(&rules, 3), [1, 2]);
        rules.count = 3;
        assert_eq!(going(&rules, 3), [0_u8; 0], "no round follows");
        (rules.count, rules.staleness.rounds) = (9, 0);
        assert_eq!(going(&rules, 3), [0_u8; 0], "no late update counts");
    }
}
